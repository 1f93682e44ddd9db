"""How far a run of a network is from PyTorch's in float64, for ``networks.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from network_runs import Arrays, OurRun, TorchRun

SMALL = 1e-3
"""Share of the whole gradient's norm below which a parameter's gradient is compared with that share."""


def of_torch(arrays: Mapping[str, np.ndarray], name: str, shape: Sequence[int]) -> np.ndarray | None:
    """Return the array of a parameter of the module, from arrays by our names; None where there is none."""
    found = arrays[name] if name in arrays else arrays[f"{name}.T"].T if f"{name}.T" in arrays else None
    return None if found is None or found.size != int(np.prod(shape)) else found.reshape(shape).astype(np.float64)


def matched(ours: OurRun, start: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """Return the trained parameters of the module that the file holds as they are."""
    found = []
    for name in names:
        array = of_torch(ours.start, name, start[name].shape)
        if array is not None and np.array_equal(array, start[name]):
            found.append(name)
    return found


def norm(arrays: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(float((array**2).sum()) for array in arrays)))


def gradient_error(found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> float:
    """Return the largest error of a parameter's gradient, by its norm."""
    least = SMALL * norm(list(exact.values()))
    return max(norm([found[n] - g]) / max(norm([g]), least) for n, g in exact.items()) if least else 0.0


def weight_error(
    found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], start: Mapping[str, np.ndarray]
) -> float:
    moved = norm([exact[n] - start[n] for n in exact])
    return norm([found[n] - exact[n] for n in exact]) / moved if moved else 0.0


def loss_error(found: Sequence[float], exact: Sequence[float]) -> float:
    return float(np.max(np.abs(np.subtract(found, exact)) / np.abs(exact)))


def errors(ours: OurRun, theirs: TorchRun, exact: TorchRun, start: Arrays) -> dict[str, Any]:
    names = matched(ours, start, list(exact.gradients))
    known, last = {n: exact.gradients[n] for n in names}, exact.weights()
    moved = {n: last[n] for n in names}

    def restored(arrays: Mapping[str, np.ndarray]) -> Arrays:
        return {n: of_torch(arrays, n, start[n].shape) for n in names}  # type: ignore[misc]

    return {
        "parameters": sum(start[n].size for n in exact.gradients),
        "compared": sum(start[n].size for n in names),
        "trained": sum(array.size for array in ours.start.values()),
        "gradient": gradient_error(restored(ours.gradients), known),
        "gradient_torch": gradient_error(theirs.gradients, known),
        "weights": weight_error(restored(ours.weights()), moved, start),
        "weights_torch": weight_error(theirs.weights(), moved, start),
        "loss": loss_error(ours.losses, exact.losses),
        "loss_torch": loss_error(theirs.losses, exact.losses),
    }


def errors_of_statistics(ours: OurRun, theirs: TorchRun, exact: TorchRun) -> dict[str, float]:
    """Return the errors of the running statistics by the distance moved; nothing where they stay."""
    start, final = exact.statistics_before, exact.statistics()
    if all(np.array_equal(start[name], array) for name, array in final.items()):
        return {}
    found = {name: ours.weights()[name].astype(np.float64) for name in final}
    return {
        "statistics": weight_error(found, final, start),
        "statistics_torch": weight_error(theirs.statistics(), final, start),
    }
