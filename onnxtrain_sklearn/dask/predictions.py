"""Lazy predictions of Dask collections, partition by partition, by one session in each worker."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

MODELS = 4
"""Estimators that a worker keeps with their sessions."""


class Model(NamedTuple):
    """A fitted estimator for the workers, which keep it between two partitions."""

    digest: bytes
    content: bytes

    @classmethod
    def of(cls, estimator: Any) -> Model:
        """Return the model of a fitted local estimator."""
        content = pickle.dumps(estimator)
        return cls(blake2b(content, digest_size=16).digest(), content)

    @property
    def estimator(self) -> Any:
        """The estimator, shared by all tasks of a process: predictions change nothing."""
        with _lock:
            found = _models.get(self.digest)
            if found is None:
                found = _models[self.digest] = pickle.loads(self.content)
            _models.move_to_end(self.digest)
            while len(_models) > MODELS:
                _models.popitem(last=False)
        return found


_models: OrderedDict[bytes, Any] = OrderedDict()
_lock = threading.Lock()


def is_collection(X: object) -> bool:
    """Return True if X is a collection of Dask."""
    return type(X).__module__.partition(".")[0] == "dask"


def on_partitions(estimator: Any, method: str, X: Any) -> Any:
    """Return the predictions of a method of ``estimator``, a collection like ``X``."""
    import dask

    local = estimator.to_local()  # raises if it is not fitted
    model = Model.of(local)
    is_frame = hasattr(X, "map_partitions") and not hasattr(X, "chunks")
    some: Any = X._meta_nonempty if is_frame else np.zeros((1, *X.shape[1:]), X.dtype)
    if not is_frame:
        X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    found = getattr(local, method)(some)
    if isinstance(found, list):
        raise ValueError(f"{method} gives a list of arrays for several labels: call it for a partition of to_local().")
    example = np.asarray(found)
    shared = dask.delayed(model, name=f"model-{model.digest.hex()}", traverse=False)
    if is_frame:
        return X.map_partitions(
            _predict_frame, shared, method, example[:0], meta=_as_frame(example, some.index[: len(example)])[:0]
        )
    lost = list(range(example.ndim, X.ndim))
    chunks = (X.chunks[0], *((n,) for n in example.shape[1:]))
    return X.map_blocks(
        _predict_block,
        shared,
        method,
        example[:0],
        dtype=example.dtype,
        chunks=chunks,
        drop_axis=lost,
        meta=example[:0],
    )


def _predict_block(X: Any, model: Model, method: str, like: np.ndarray) -> np.ndarray:
    """Return the predictions of a block; of one without rows, an array as others have it."""
    if not X.shape[0]:
        return like
    return np.asarray(getattr(model.estimator, method)(X))


def _predict_frame(X: Any, model: Model, method: str, like: np.ndarray) -> Any:
    """Return the predictions of a partition as a series, or as a data frame of several columns."""
    return _as_frame(_predict_block(X, model, method, like).astype(like.dtype, copy=False), X.index)


def _as_frame(values: np.ndarray, index: Any) -> Any:
    import pandas as pd

    return pd.Series(values, index=index) if values.ndim == 1 else pd.DataFrame(values, index=index)
