"""Data for transformers and detectors of outliers, and what their graphs compute."""

from __future__ import annotations

import numpy as np
import onnxruntime

from onnxtrain_sklearn._fitted.convert import converted
from onnxtrain_sklearn._ir.protobuf import to_proto

rng = np.random.default_rng(0)


X = rng.normal(size=(80, 4)).astype(np.float32)


NUMBER = X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 * rng.normal(size=80)


OUTLIERS = np.where(np.abs(X[:, 0]) + np.abs(X[:, 1]) > 2, -1, 1)


GAPS = np.where(rng.random(X.shape) < 0.25, np.float32(np.nan), X)


GAPS[3], GAPS[0, 0] = np.nan, np.nan


def outputs(model, rows):
    """Return what the graph of a fitted model gives for rows."""
    graph, _ = converted(model)
    session = onnxruntime.InferenceSession(to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: rows})


def tuned(kind, model, rows, y, **parameters):
    defaults = {"max_iter": 5, "learning_rate_init": 0.01, "random_state": 0}
    return kind(model, **defaults | parameters).fit(rows, y)
