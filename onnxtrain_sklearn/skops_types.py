"""The types that ``skops.io.load`` must trust to load the estimators of this package.

skops builds an object only if it knows its type or the caller names it. ``TRUSTED_TYPES`` names the types of this
package (estimators, registered components, and types inside fitted estimators) and three others. Loading them reads
numbers, strings and ONNX graphs, imports no other module and runs no code from the file.
"""

from __future__ import annotations

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
    "PaddedRows",
    "RealMLPClassifier",
    "RealMLPRegressor",
    "TabMClassifier",
    "TabMRegressor",
)
HELD = (
    "_model.declared_targets.DeclaredTargets",
    "_model.declared_targets.SizedTarget",
    "_recipes.ensemble.MemberPlace",
    "_recipes.importances.EffectSource",
    "_recipes.preprocessing.Categories",
    "_recipes.preprocessing.Preprocessing",
    "_recipes.preprocessing.QuantileScaling",
    "_recipes.preprocessing.RobustScaling",
    "_recipes.raw_table.RawTable",
    "_recipes.times.Calendar",
    "_ort.devices.Device",
    "_training.step.StepKind",
    "adapters.LoRA",
    "finetuning.FineTuner",
    "models.GraphModel",
    "runtime.Runtime",
    "schedules.Progress",
)
"""Classes of this package, by module, that parameters and fitted recipes hold besides registered components."""

OTHER_TYPES = ("builtins.frozenset", "numpy.dtype", "onnx.onnx_ml_pb2.ModelProto")


TRUSTED_TYPES: tuple[str, ...] = tuple(
    sorted(
        [
            *(
                f"{kind.__module__}.{kind.__qualname__}"
                for registry in (LOSSES, MODELS, OPTIMIZERS, SCHEDULES, CALLBACKS)
                for kind in registry.values()
            ),
            *(f"onnxtrain_sklearn.{name}" for name in (*ESTIMATORS, *HELD)),
            *OTHER_TYPES,
        ]
    )
)
"""Value of ``trusted`` with which ``skops.io.load`` loads every estimator of this package.

A pipeline may hold types of other packages, and an estimator may hold a fitted model or your own functions.
``skops.io.get_untrusted_types`` lists such types; decide for each whether you trust it.

Examples
--------
>>> from onnxtrain_sklearn.skops_types import TRUSTED_TYPES
>>> "onnxtrain_sklearn.OrtGradientClassifier" in TRUSTED_TYPES
True
"""
