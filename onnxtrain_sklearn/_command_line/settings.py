"""Settings of estimators from the command line: ``--set max_iter=50``."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from .._support.typing import Estimator
from ..exceptions import nearest
from ..losses import LOSSES
from ..optimizers import OPTIMIZERS
from ..schedules import SCHEDULES
from .command import UsageError

_COMPONENTS: dict[str, Mapping[str, type]] = {"optimizer": OPTIMIZERS, "loss": LOSSES, "learning_rate": SCHEDULES}


def parsed_settings(given: Sequence[str]) -> dict[str, object]:
    """Return the values of ``NAME=VALUE``: literals of Python, else text."""
    pairs = [text.partition("=") for text in given]
    if wrong := [name for name, sign, _ in pairs if not sign or not name.strip()]:
        raise UsageError(f"--set takes NAME=VALUE, such as max_iter=50, got {wrong[0]!r}.")
    return {name.strip(): _setting_value(text.strip()) for name, _, text in pairs}


def _setting_value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def apply_settings(estimator: Estimator, settings: dict[str, object]) -> None:
    """Set parameters of an estimator, in place; a name that it lacks raises UsageError."""
    settings = _with_objects(estimator, settings)
    known = estimator.get_params()
    for name in settings:
        if name not in known and name.partition("__")[0] not in known:
            raise UsageError(f"--set {name!r} is no parameter of {type(estimator).__name__}.{nearest(name, known)}")
    try:
        estimator.set_params(**settings)
    except (ValueError, AttributeError) as error:
        raise UsageError(f"--set: {error}") from error


def _with_objects(estimator: Estimator, settings: dict[str, object]) -> dict[str, object]:
    """Return the settings with objects for names whose own parameters are set, such as ``optimizer__momentum``."""
    result = dict(settings)
    for name, components in _COMPONENTS.items():
        chosen = settings.get(name, getattr(estimator, name, None))
        if any(key.startswith(f"{name}__") for key in settings) and isinstance(chosen, str) and chosen in components:
            result[name] = components[chosen]()
    return result
