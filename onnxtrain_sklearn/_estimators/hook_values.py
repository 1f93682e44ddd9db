"""What hooks of callbacks may ask for: the rows that are trained on, and an estimator as if training had ended now."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._callbacks.base import ACTIVE
from .._data.inputs import Inputs
from .._training.loop import Trainer
from .examples import Call
from .run import Run
from .scoring import rows_of
from .validation import ScoredRows

UNFITTED = (ACTIVE, "_parent_callback_ctx", "_callback_fit_ctx", "_skl_callbacks_to_teardown")
"""Attributes of an estimator in training that a copy of it does not have."""


class HookValues:
    """The values of a training, each computed on demand."""

    def __init__(self, estimator: object, run: Run, trainer: Trainer, call: Call, trained: ScoredRows) -> None:
        self._estimator, self._run, self._trainer, self._call, self._trained = estimator, run, trainer, call, trained

    def functions(self) -> Mapping[str, Callable[[], Any]]:
        """Return the functions that compute them, by name."""
        return {
            "X": lambda: self._trained.data[0],
            "y": lambda: self._trained.data[1],
            "metadata": self._metadata,
            "fitted_estimator": self._fitted_estimator,
        }

    def _metadata(self) -> dict[str, Any] | None:
        given = self._call.sample_weight
        if given is None:
            return None
        rows = self._trained.rows
        if isinstance(given, Mapping):  # by output
            return {"sample_weight": {n: None if w is None else np.asarray(w)[rows] for n, w in given.items()}}
        return {"sample_weight": rows_of(given, rows) if isinstance(given, Inputs) else np.asarray(given)[rows]}

    def fitted_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes as if training had ended now; later epochs do not change them."""
        self._trainer.step.synchronize()
        run = copy.copy(self._run)
        run.parameters, run.state = copy.deepcopy(run.parameters), copy.deepcopy(run.state)
        run.rng = copy.deepcopy(run.rng)
        run.history = copy.copy(run.history)
        run.history.change(progress=copy.copy(run.history.progress), memories=copy.deepcopy(run.history.memories))
        return run.fitted_attributes()

    def _fitted_estimator(self) -> Any:
        twin = object.__new__(type(self._estimator))
        vars(twin).update({n: v for n, v in vars(self._estimator).items() if n not in UNFITTED})
        vars(twin).update(self.fitted_attributes())
        return twin
