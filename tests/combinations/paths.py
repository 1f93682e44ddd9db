"""Ways through the code that only large data, many classes or other devices take, taken by small cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from onnxtrain_sklearn import clear_cache
from onnxtrain_sklearn._data import columns
from onnxtrain_sklearn._estimators import examples
from onnxtrain_sklearn._training import device_step, loss_graph, update_executors
from onnxtrain_sklearn._training.update_executors import UpdateTuning
from tests.combinations.draws import Draw
from tests.helpers.environment import OWN_MEMORY

PATCHES: dict[str, list[tuple[object, str, object]]] = {
    "usual": [],
    "vectors in pieces": [(update_executors, "TUNING", UpdateTuning(piece=3, block=4))],
    "NumPy updates in blocks": [(update_executors, "TUNING", UpdateTuning(piece=3, block=4, least_elements=0))],
    "compiled updates": [
        (update_executors.SAVINGS, "suffice", True), (update_executors, "TUNING", UpdateTuning(least_elements=0)),
    ],
    "device": [],
    "device without the data": [(device_step, "RESIDENT_LIMIT", 0)],
    "class indices": [(loss_graph, "MANY_CLASSES", 2)],
    "sparse rows": [(columns, "LEAST_COLUMNS", 1), (columns, "DENSE", 2.0), (examples, "MERGE_LIMIT", 0)],
    "rows that are not merged": [(examples, "MERGE_LIMIT", 0)],
}  # fmt: skip


@contextmanager
def path(name: str) -> Iterator[None]:
    """Let all training in the block take this way."""
    with ExitStack() as stack:
        for module, constant, value in PATCHES[name]:
            stack.enter_context(mock.patch.object(module, constant, value))
        if name.startswith("device"):
            stack.enter_context(mock.patch.dict(OWN_MEMORY, {"CPUExecutionProvider": "cpu"}))
        clear_cache()
        try:
            yield
        finally:
            clear_cache()


def suited(draw: Draw, name: str) -> Draw:
    """Return the case as this way takes it."""
    if name == "sparse rows":
        draw.sparse = True
        draw.X = draw.X * (np.random.default_rng(draw.number).random(draw.X.shape) < 0.5).astype(np.float32)
    return draw
