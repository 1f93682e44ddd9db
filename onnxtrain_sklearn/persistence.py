"""Files of skops: the types that a fitted estimator of this package consists of.

``skops.io.load`` builds no object of a type that it does not know and that was not named to it. The types here are
those of this package and three that its estimators hold: loading them reads numbers, texts and ONNX graphs, imports no
other module and runs no code from the file.
"""

from __future__ import annotations

from collections.abc import Iterable

from .callbacks import CALLBACKS
from .losses import LOSSES
from .models import MODELS
from .optimizers import OPTIMIZERS
from .schedules import SCHEDULES

__all__ = ["TRUSTED_TYPES"]

ESTIMATORS = (
    "OrtGradientClassifier",
    "OrtGradientMultiOutput",
    "OrtGradientRegressor",
    "RealMLPClassifier",
    "RealMLPRegressor",
    "TabMClassifier",
    "TabMRegressor",
)
HELD = (
    "_recipes.preprocessing.Categories",
    "_recipes.preprocessing.Preprocessing",
    "_recipes.preprocessing.Quantile",
    "_recipes.preprocessing.Robust",
    "_ort.devices.Device",
    "adapters.LoRA",
    "finetuning.FineTuner",
    "models.GraphModel",
    "runtime.Runtime",
    "schedules.Progress",
)
"""Further classes of this package, by module, of which parameters and fitted recipes are made."""

OTHER_TYPES = ("builtins.frozenset", "numpy.dtype", "onnx.onnx_ml_pb2.ModelProto")


def _type_names(registries: Iterable[Iterable[type]]) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kinds in registries for kind in kinds]


TRUSTED_TYPES: tuple[str, ...] = tuple(
    sorted(
        [
            *_type_names(registry.values() for registry in (LOSSES, MODELS, OPTIMIZERS, SCHEDULES, CALLBACKS)),
            *(f"onnxtrain_sklearn.{name}" for name in (*ESTIMATORS, *HELD)),
            *OTHER_TYPES,
        ]
    )
)
"""What ``skops.io.load`` needs as ``trusted`` for every estimator of this package.

A pipeline may hold types of other packages, and an estimator a fitted model or functions of yours:
``skops.io.get_untrusted_types`` names those that are to be judged one by one.

Examples
--------
>>> from onnxtrain_sklearn.persistence import TRUSTED_TYPES
>>> "onnxtrain_sklearn.OrtGradientClassifier" in TRUSTED_TYPES
True
"""
