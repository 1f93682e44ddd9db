"""Parameters that are accepted and change nothing: each is to change what is trained, or to be refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxtrain_sklearn import LBFGS
from onnxtrain_sklearn.exceptions import OnnxTrainError
from onnxtrain_sklearn.optimizers import Lion
from tests.combinations.outcomes import outcome
from tests.combinations.wide_draws import WideDraw

OTHERS: dict[str, Any] = {
    "learning_rate_init": 0.02,
    "learning_rate": "linear",
    "batch_size": 3,
    "max_iter": 6,
    "shuffle": False,
    "drop_last": True,
    "alpha": 2.0,
    "l1_ratio": 0.6,
    "optimizer__max_grad_norm": 1e-3,
    "optimizer__learning_rate_factors": {"*": 0.7},
    "optimizer__weight_decay_factors": {"*": 0.0},
    "optimizer__weight_decay_schedule": "linear",
    "dropout_schedule": "linear",
    "optimizer__ema_decay": 0.7,
    "optimizer__accumulate": 4,
    "class_weight": {3: 3.0, "ant": 3.0},
    "target_scaling": None,
    "clip_predictions": True,
    "early_stopping": True,
    "random_state": 1,
    "sample_weight": None,
}
"""Parameters, each with a value that is not the default."""

ELSEWHERE = {
    "model loss optimizer callbacks": "components, of which each entry of a registry has contract tests",
    "trainable adapters finetune": "they choose what is trained: draws and tests of their own",
    "ignore_label validation_split scoring tol n_iter_no_change": "they need labels, held-out rows, or many epochs",
    "warm_start": "a relation of the draws",
    "engine device runtime verbose": "predictions do not depend on them",
}
"""The other parameters of the estimators, by the reason why a draw cannot show that they are read."""


def changes_nothing(draw: WideDraw, name: str) -> bool:
    """Whether another value of a parameter leaves all that is trained and predicted as it was."""
    first = outcome(draw.fit(), draw.X)
    try:
        if name == "sample_weight":
            other = draw.fit(sample_weight=np.arange(1.0, 1 + len(draw.y)))
        else:
            value = OTHERS[name]
            if name == "class_weight":
                value = {k: v for k, v in value.items() if isinstance(k, int) == (draw.task == "binary")}
            other = draw.fit(draw.estimator(**{name: value}))
    except (ValueError, TypeError, OnnxTrainError):
        return False
    second = outcome(other, draw.X)
    return all(np.array_equal(array, second[key]) for key, array in first.items())


def clips_nothing(draw: WideDraw) -> bool:
    """Whether no prediction leaves the range of all targets, or the draw is refused."""
    try:
        predicted, y = draw.fit().predict(draw.X), np.asarray(draw.y)
    except (ValueError, TypeError, OnnxTrainError):
        return True
    return bool(((predicted >= y.min(axis=0)) & (predicted <= y.max(axis=0))).all())


def may_be_inert(draw: WideDraw, name: str) -> bool:
    """Whether there is a reason for a parameter to change nothing here."""
    given, optimizer = draw.parameters, draw.parameters["optimizer"]
    second, full = isinstance(optimizer, LBFGS), draw.parameters["batch_size"] != 4
    decays = bool(getattr(optimizer, "weight_decay", 0))
    built = draw.kind in ("mlp", "dropout", "batch", "linear", "convnet", "tabm")
    reasons = {
        "l1_ratio": not given.get("alpha"),
        "optimizer__weight_decay_factors": not decays,
        "optimizer__weight_decay_schedule": not decays,
        "dropout_schedule": second or draw.kind not in ("dropout", "tabm") or not draw.rows_meet,
        "optimizer__accumulate": second or full or given.get("optimizer__accumulate", 1) > 1,
        "shuffle": second or full or given.get("optimizer__accumulate", 1) > 1,
        "drop_last": second or full or draw.has("early_stopping") or draw.weights is not None or len(draw.y) % 4 == 0,
        "random_state": not built or (draw.kind == "linear" and second),
        "optimizer__max_grad_norm": isinstance(optimizer, Lion),  # which takes the signs alone
        "learning_rate_init": second,
        "learning_rate": second,
        "batch_size": second,
        "early_stopping": draw.has("early_stopping") or draw.validation is not None,  # the last epoch may be the best
        "target_scaling": not built,
        "class_weight": draw.task not in ("binary", "multiclass"),
    }
    if name in ("target_scaling", "clip_predictions") and draw.task != "regression":
        return True
    if name == "clip_predictions" and clips_nothing(draw):
        return True
    return bool(reasons.get(name)) or (name in given and given[name] == OTHERS[name])
