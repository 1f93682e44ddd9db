"""What checkpoints hold, and whether two trainings are the same to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onnxtrain_sklearn.callbacks.checkpoint import read_state
from tests.helpers.callbacks import without_seconds
from tests.helpers.training import weights_equal


def same(a: Any, b: Any) -> bool:
    """Whether two estimators have equal weights, histories and states, to the bit."""
    states = [
        (e._state.optimizer_state.t, e._state.optimizer_state.draws, str(e._state.rng.get_state())) for e in (a, b)
    ]
    slots = [e._state.optimizer_state.slots for e in (a, b)]
    equal = all(np.array_equal(slot, slots[1][name]) for name, slot in slots[0].items())
    rows = [without_seconds(e.history_) for e in (a, b)]
    return weights_equal(a, b) and rows[0] == rows[1] and states[0] == states[1] and equal


def drawn_seed(folder: Path) -> int:
    """Return the only seed in a folder of checkpoints."""
    (file,) = folder.glob("seed-*.npz")
    state = read_state(file)
    assert state is not None
    return int(state["seed"])
