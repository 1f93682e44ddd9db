"""The parameters of an estimator that concern the loop, checked and resolved."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from sklearn.utils import check_scalar

from ._trainer import TrainerSettings
from .optimizers import LBFGS, BaseOptimizer
from .schedules import resolve_schedule

AUTO_BATCH = 200
"""Rows of a minibatch where ``batch_size="auto"``, as in scikit-learn's MLP."""

LBFGS_PIECE = 4096
"""Rows of the pieces that the full batch of L-BFGS is accumulated from."""


def trainer_settings(estimator: Any) -> TrainerSettings:
    """Return the settings of the loop; TypeError or ValueError says which parameter is wrong."""
    _check_number(estimator, "learning_rate_init", Real, 0.0)
    _check_number(estimator, "max_iter", Integral, 1)
    _check_number(estimator, "n_iter_no_change", Integral, 1)
    _check_number(estimator, "alpha", Real, 0.0)
    _check_number(estimator, "l1_ratio", Real, 0.0, 1.0)
    if estimator.early_stopping:
        _check_number(estimator, "validation_fraction", Real, 0.0, 1.0, ends="neither")
    if estimator.max_grad_norm is not None:
        _check_number(estimator, "max_grad_norm", Real, 0.0, ends="neither")
    check_scalar(estimator.tol, "tol", Real)
    if math.isnan(estimator.tol):
        raise ValueError(f"tol must be a number, got {estimator.tol!r}.")
    return TrainerSettings(
        learning_rate_init=float(estimator.learning_rate_init),
        schedule=resolve_schedule(estimator.learning_rate),
        max_iter=int(estimator.max_iter),
        tol=float(estimator.tol),
        n_iter_no_change=int(estimator.n_iter_no_change),
        early_stopping=bool(estimator.early_stopping),
        verbose=bool(estimator.verbose),
    )


def batch_limit(batch_size: int | str, optimizer: BaseOptimizer) -> int:
    """Return the rows of a batch that the data may still be too few for."""
    if isinstance(optimizer, LBFGS):
        return LBFGS_PIECE
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise ValueError(f"batch_size must be 'auto' or an integer >= 1, got {batch_size!r}.")
        return AUTO_BATCH
    check_scalar(batch_size, "batch_size", Integral, min_val=1)
    return int(batch_size)


def _check_number(
    estimator: Any, name: str, kind: type, low: float, high: float | None = None, *, ends: str = "both"
) -> None:
    value = getattr(estimator, name)
    check_scalar(value, name, kind, min_val=low, max_val=high, include_boundaries=ends)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}.")
