"""Nested parameters: a name such as ``optimizer="sgd"`` becomes an object when parameters within it are set.

``set_params(optimizer__momentum=0.9)`` needs an object that has a momentum. The constructor keeps the name, as
scikit-learn requires. The object replaces the name when a parameter within it is set; from then on ``get_params``,
``clone`` and a search see the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sklearn.base import BaseEstimator

from ..exceptions import instead_of
from ..finetuning import FineTuner
from ..losses import resolve_loss
from ..models import resolve_builder
from ..optimizers import resolve_optimizer
from ..schedules import resolve_schedule

_RESOLVERS: dict[str, Callable[[Any], Any]] = {
    "model": lambda model: resolve_builder(model) or model,
    "loss": lambda loss: resolve_loss(loss) if isinstance(loss, str) else loss,
    "optimizer": lambda optimizer: resolve_optimizer(optimizer) if isinstance(optimizer, str) else optimizer,
    "adapters": lambda adapters: adapters,
    "finetune": lambda tuner: FineTuner() if tuner == "auto" else tuner,
    **dict.fromkeys(
        ("learning_rate", "weight_decay_schedule", "dropout_schedule"),
        lambda schedule: resolve_schedule(schedule) if isinstance(schedule, str) else schedule,
    ),
}


def resolved(estimator: BaseEstimator, params: Mapping[str, object]) -> dict[str, Any]:
    """Return ``params`` with objects in place of names for components whose own parameters are set.

    The order of the parameters does not matter: ``optimizer__momentum`` applies to the ``optimizer`` of the same call.
    """
    result = dict(params)
    for name, resolve in _RESOLVERS.items():
        nested = {key: value for key, value in params.items() if key.startswith(f"{name}__")}
        given: Any = params.get(name, getattr(estimator, name))
        component = resolve(given) if nested else given
        if nested and (isinstance(component, type) or not hasattr(component, "set_params")):
            raise ValueError(
                f"{next(iter(nested))} sets a parameter of {name}, which has none; {instead_of(component)}."
            )
        if component is not given:  # set on a new object, so that an invalid name leaves the estimator unchanged
            own = {key.removeprefix(f"{name}__"): value for key, value in nested.items()}
            result = {key: value for key, value in result.items() if key not in nested}
            result[name] = component.set_params(**own)
    return result
