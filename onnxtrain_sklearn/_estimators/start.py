"""The ``model`` from which a run was started. Later calls continue with its graph; another model is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .._graph.files import without_program
from .._support.content import content
from .._support.parametrized import copied
from ..adapters import LoRA
from ..exceptions import ModelError
from ..models import ModelSource, resolve_builder
from .parameters import Parameters


@dataclass(frozen=True)
class Start:
    """The parameters of the first call that determine the graph; objects are copied."""

    model: ModelSource
    output: str | None
    output_kind: str = "auto"
    training_mode: bool = False
    adapters: LoRA | None = None

    @classmethod
    def by(cls, estimator: Parameters) -> Start:
        """Return the start of an estimator with these parameters."""
        model, others = estimator.model, [copied(getattr(estimator, name)) for name in _COMPARED]
        return cls(copied(model) if hasattr(model, "build") else without_program(model), *others)

    def require_same(self, estimator: Parameters) -> None:
        """Raise ModelError if a later call has another model, or takes another form of it."""
        for name in _COMPARED:
            first, now = getattr(self, name), getattr(estimator, name)
            if content(first) != content(now):
                raise ModelError(_message(name, first, now))
        model = estimator.model
        if model is not self.model and content(_default(model)) != self._content:
            raise ModelError(_message("model", _model_text(self.model), _model_text(model)))

    @cached_property
    def _content(self) -> object:
        return content(_default(self.model))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_content"}


_COMPARED = ("output", "output_kind", "training_mode", "adapters")


def _default(model: ModelSource) -> Any:
    if isinstance(model, os.PathLike):
        return os.fspath(model)
    return resolve_builder(model) or without_program(model)


def _model_text(model: ModelSource) -> str:
    model = without_program(model)
    return repr(model) if model is None or isinstance(model, str) or hasattr(model, "build") else type(model).__name__


def _message(name: str, first: object, now: object) -> str:
    change = f"from {first} to {now}" if str(first) != str(now) else f"to another {now}"
    return (
        f"{name} was changed {change}, but warm_start and partial_fit go on training the graph of the first call. Give "
        f"the earlier {name} back to go on; to train another, set warm_start=False and call fit, or take a new "
        f"estimator (sklearn.base.clone)."
    )
