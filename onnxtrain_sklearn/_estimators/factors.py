"""Factors by parameter: the glob patterns of the builder and of the user, resolved to names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._graph.trainable import TrainableModel
from .._optimizers.lbfgs import LBFGS, BaseOptimizer
from .._runtime.devices import Device
from .._support.rules import FACTORS, check_parameters
from .._training.loss_graph import EXACT, LAZY, Scheduled
from .._training.parameters import Trainable, matches
from .._training.segments import NO_FACTORS, Factors
from ..exceptions import nearest
from ..models import resolve_builder
from .parameters import Parameters

RATE, DECAY = "learning_rate_factors", "weight_decay_factors"


def factors_of(estimator: Parameters, source: TrainableModel, optimizer: BaseOptimizer) -> Mapping[str, Factors]:
    """Return the factors of the parameters by name, where any of them is not one.

    The patterns of a builder, its attributes of the same names, come before those of the estimator: the last pattern
    that matches counts.
    """
    _require_effect(estimator, optimizer)
    builder: Any = resolve_builder(estimator.model)
    owners = [] if builder is None or isinstance(optimizer, LBFGS) else [builder]
    names = _parameter_names(source, estimator.trainable)
    rates, decays = (_resolved(attribute, [*owners, estimator], names) for attribute in (RATE, DECAY))
    if not (rates or decays):
        return NO_FACTORS
    every = {name: Factors(rates.get(name, 1.0), decays.get(name, 1.0)) for name in names}
    return {name: factors for name, factors in every.items() if factors != Factors()}


def _require_effect(estimator: Parameters, optimizer: BaseOptimizer) -> None:
    """Raise if factors are given to an optimizer that has nothing to multiply by them."""
    kind = type(optimizer).__name__
    for attribute in (RATE, DECAY):
        if getattr(estimator, attribute) and isinstance(optimizer, LBFGS):
            raise ValueError(f"{attribute} has no effect with {kind}, which has no learning rate. Set it to None.")
    if estimator.weight_decay_factors and not hasattr(optimizer, "weight_decay"):
        raise ValueError(
            f"{DECAY} multiplies the parameter weight_decay of the optimizer, which {kind} lacks. Set it to None, or "
            f"take another optimizer, such as AdamW()."
        )


def require_schedulable(scheduled: Scheduled, optimizer: BaseOptimizer) -> None:
    """Raise if a schedule is given to an optimizer that takes no steps, or has no weight decay."""
    kind = type(optimizer).__name__
    for used, name in zip(scheduled, ("weight_decay_schedule", "dropout_schedule"), strict=True):
        if used and isinstance(optimizer, LBFGS):
            raise ValueError(f"{name} has no effect with {kind}, which takes no minibatch steps. Set it to 'constant'.")
    if scheduled.decay and not hasattr(optimizer, "weight_decay"):
        raise ValueError(
            f"weight_decay_schedule multiplies the parameter weight_decay of the optimizer, which {kind} lacks. Set it "
            f"to 'constant', or take another optimizer, such as AdamW()."
        )


def require_steps(estimator: Parameters, optimizer: BaseOptimizer) -> None:
    """Raise if what applies to the steps of minibatches is given to an optimizer that takes none."""
    defaults: Mapping[str, object] = {
        "ema_decay": None,
        "accumulate": 1,
        "drop_last": False,
        "max_grad_norm": None,
        "sparse_updates": EXACT,
    }
    for name, default in defaults.items():
        if isinstance(optimizer, LBFGS) and getattr(estimator, name) != default:
            raise ValueError(
                f"{name} has no effect with {type(optimizer).__name__}, which takes no minibatch steps. Set it to "
                f"{default!r}."
            )


def sparse_updates_of(estimator: Parameters, device: Device) -> str:
    """Return what happens to the rows of matrices that do not occur; devices update all of them."""
    if estimator.sparse_updates == LAZY and device.memory is not None:
        raise ValueError(
            f"sparse_updates={LAZY!r} updates single rows in the host's memory, but training runs on {device.name!r}. "
            f"Set sparse_updates={EXACT!r}, or device='cpu'."
        )
    return estimator.sparse_updates


def _parameter_names(source: TrainableModel, trainable: Trainable) -> list[str]:
    """Return the names of all parameters, of constants too where ``trainable`` names them in full."""
    if isinstance(trainable, str):
        trainable = [trainable]
    named = set(trainable) if isinstance(trainable, Iterable) else set()
    return [*source.parameters, *(name for name in source.constants if name in named)]


def _resolved(attribute: str, owners: Sequence[object], names: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for owner in owners:
        if getattr(owner, attribute, None):
            check_parameters(owner, {attribute: (FACTORS, None)})
            for pattern, factor in getattr(owner, attribute).items():
                found |= dict.fromkeys(_matched(attribute, pattern, names), float(factor))
    return found


def _matched(attribute: str, pattern: str, names: Sequence[str]) -> list[str]:
    matched = [name for name in names if matches(name, pattern)]
    if not matched:
        raise ValueError(f"{attribute}: {pattern!r} matches no parameter of the graph.{nearest(pattern, names)}")
    return matched
