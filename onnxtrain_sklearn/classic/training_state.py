"""The state of a training session: weights, moments and counts of the optimizer; saving and loading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._runtime import objects as runtime
from ..exceptions import ModelError
from .classic_optimizers import MOMENTS, UPDATE_COUNT


class TrainingState:
    """Weights by name, moments by weight and slot, and the number of updates of each weight.

    Parameters
    ----------
    weights : dict of str to ndarray
    optimizer : str
        Name of the optimizer; "": none.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], optimizer: str) -> None:
        self.weights = {name: np.array(array) for name, array in weights.items()}
        self.optimizer = optimizer
        self.counts = dict.fromkeys(self.weights, 0)
        self.moments: dict[str, dict[str, np.ndarray]] = {}
        if optimizer not in ("", "SGDOptimizer"):
            self.moments = {n: {m: np.zeros_like(w) for m in MOMENTS} for n, w in self.weights.items()}

    def model_state(self) -> dict[str, np.ndarray]:
        """Return copies of the weights."""
        return {name: array.copy() for name, array in self.weights.items()}

    def optimizer_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of moments and counts by weight; empty where the optimizer has no moments."""
        return {
            name: {
                **{slot: array.copy() for slot, array in slots.items()},
                UPDATE_COUNT: np.array([self.counts[name]]),
            }
            for name, slots in self.moments.items()
        }

    def all_arrays(self) -> dict[str, np.ndarray]:
        """Return copies of weights, moments and counts in one dict."""
        state = self.model_state()
        for weight, slots in self.optimizer_state().items():
            state |= {f"{slot}_{weight}": array for slot, array in slots.items()}
        return state

    def load(self, given: Mapping[str, Any], *, strict: bool) -> None:
        """Load a state of :meth:`all_arrays`; ``strict`` raises for missing or unknown names."""
        current = self.all_arrays()
        missing, unknown = current.keys() - given.keys(), given.keys() - current.keys()
        if strict and (missing or unknown):
            raise ModelError(f"The state does not fit: missing {sorted(missing)}, unknown {sorted(unknown)}.")
        new = {name: to_array(given[name]) for name in current if name in given}
        for name, array in new.items():
            if array.shape != current[name].shape or array.dtype != current[name].dtype:
                found, expected = (f"{a.dtype}{list(a.shape)}" for a in (array, current[name]))
                raise ModelError(f"The state holds {name!r} as {found}, expected {expected}.")
        current |= new
        self.weights = {name: current[name] for name in self.weights}
        self.moments = {n: {m: current[f"{m}_{n}"] for m in slots} for n, slots in self.moments.items()}
        self.counts |= {name: int(current[f"{UPDATE_COUNT}_{name}"][0]) for name in self.moments}

    def load_optimizer(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Load a state of :meth:`optimizer_state`, or a part of it."""
        known = self.optimizer_state()
        flat = {}
        for name, slots in state.items():
            for slot, array in slots.items():
                if slot not in known.get(name, {}):
                    raise ModelError(f"The optimizer has no state {slot!r} of {name!r}; its weights are {list(known)}.")
                flat[f"{slot}_{name}"] = array
        self.load(flat, strict=False)

    def feed(self, gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs of the update graph; the counts include this update."""
        feed: dict[str, np.ndarray] = {}
        for name, weight in self.weights.items():
            moments = {f"{m}_{name}": array for m, array in self.moments.get(name, {}).items()}
            count = {f"{UPDATE_COUNT}_{name}": np.array([self.counts[name] + 1])}
            feed |= {name: weight, f"{name}_grad": gradients[name], **moments, **count}
        return feed

    def take(self, found: Mapping[str, np.ndarray]) -> None:
        """Store the outputs of the update graph."""
        self.weights = {name: found[f"New_{name}"] for name in self.weights}
        self.moments = {n: {m: found[f"New_{m}_{n}"] for m in slots} for n, slots in self.moments.items()}
        self.counts = {name: count + 1 for name, count in self.counts.items()}


class StatefulSession:
    """The methods of a training session that return and set its state."""

    _state: TrainingState
    _sums: dict[str, np.ndarray]
    _runs: int

    def get_state(self) -> dict[str, np.ndarray]:
        """Return copies of all weights, moments (``Moment_1_NAME``) and counts (``Update_Count_NAME``) by name.

        ``SGDOptimizer`` has neither moments nor counts.
        """
        return self._state.all_arrays()

    def load_state(self, dict: Mapping[str, Any], strict: bool = False) -> None:
        """Set weights, moments and counts by name, as :meth:`get_state` returns them.

        Parameters
        ----------
        dict : dict of str to ndarray
        strict : bool, default=False
            Whether missing or unknown names raise ValueError; else they are ignored.
        """
        self._state.load(dict, strict=strict)
        self._sums, self._runs = {}, 0

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of the weights, under "full_precision"."""
        if include_mixed_precision_weights:
            raise ValueError("There are no weights of mixed precision: leave include_mixed_precision_weights=False.")
        return {"full_precision": self._state.model_state()}

    def get_optimizer_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of moments and counts by weight; empty for ``SGDOptimizer`` and without an optimizer."""
        return self._state.optimizer_state()

    def get_partition_info_map(self) -> dict[str, dict[str, list[int]]]:
        """Return how weights are partitioned among processes: they are not."""
        return {}


def to_array(value: Any) -> np.ndarray:
    """Return a copy of an array or of an OrtValue as an array."""
    unwrapped = runtime.unwrapped_value(value)
    return np.array(value) if unwrapped is None else runtime.copied_array(unwrapped)
