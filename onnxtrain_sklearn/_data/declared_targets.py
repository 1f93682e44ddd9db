"""Check ``y`` against the targets that a loss declares, and make their columns of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._model.declared_targets import LARGEST, DeclaredTargets, SizedTarget, Target
from .._model.trainable import TensorSpec
from ..exceptions import nearest
from .columns import InputData, require_no_times, require_unmasked
from .targets import Targets, require_present


def declared_targets(
    y: Any, declared: Mapping[str, Target], n_rows: int, earlier: DeclaredTargets | None, loss: str
) -> Targets:
    """Return the targets that the loss named ``loss`` declares, for ``n_rows`` rows.

    ``earlier`` are those of the first call, whose rows have the same shapes; None in the first call. ``y`` is a
    mapping, a data frame or a structured array with the names of the targets. A single target may be given as it is.
    """
    parts = _parts(y, declared, loss)
    if earlier is not None and {one.name: len(one.row_shape) for one in earlier.targets} != {
        name: len(target.shape) - 1 for name, target in declared.items()
    }:
        began = ", ".join(f"{one.name!r} with rows of shape {one.row_shape}" for one in earlier.targets) or "none"
        raise ValueError(
            f"Training began with other targets than those of loss={loss}: {began}. Take that loss again, or fit anew."
        )
    sizes = {"N": (n_rows, "X")}
    for one in () if earlier is None else earlier.targets:
        for name, size in zip(declared[one.name].shape[1:], one.row_shape, strict=True):
            sizes.setdefault(str(name), (size, f"{one.name!r} when training began"))
    arrays, found = [], []
    for name, target in declared.items():
        array = _typed(parts[name], name, target)
        _require_shape(array, name, target, sizes)
        arrays.append(array)
        found.append(SizedTarget(name, target.dtype, array.shape[1:]))
    known = DeclaredTargets(tuple(found))
    return Targets(known.matrix(arrays, n_rows), "regression", known.width, declared=known)


def target_inputs(
    y: Any, specs: Sequence[TensorSpec], n_rows: int, loss: str, rows: Mapping[str, tuple[int, ...]]
) -> dict[str, InputData]:
    """Return ``y`` as the targets of a graph that computes its loss itself, by the names of its inputs.

    ``loss`` is the output that is the loss, and ``rows`` holds the shapes of rows of an earlier call.
    """
    declared = {}
    for spec in specs:
        kind: Any = {"f": "float", "b": "bool"}.get(spec.dtype.kind, "int64")
        own = rows.get(spec.name, spec.shape[1:])
        axes = (size if size is not None else f"axis {i} of {spec.name}" for i, size in enumerate(own, 1))
        declared[spec.name] = Target(("N", *axes), kind)
    parts = _parts(y, declared, loss)
    sizes = {"N": (n_rows, "X")}
    found = {}
    for spec in specs:
        target = declared[spec.name]
        array = _typed(parts[spec.name], spec.name, target, most=None)
        if array.ndim + 1 == len(target.shape) and target.shape[-1] in (1, f"axis {array.ndim} of {spec.name}"):
            array = array[..., np.newaxis]  # (N,) for (N, 1), as X and plain targets may be given
        _require_shape(array, spec.name, target, sizes)
        typed = array.astype(spec.dtype)
        if spec.dtype.kind in "iu" and (typed != array).any():
            raise ValueError(
                f"The target {spec.name!r} takes {spec.dtype}, which cannot hold {array[typed != array][0]}."
            )
        found[spec.name] = InputData(typed, spec.dtype)
    return found


def _parts(y: Any, declared: Mapping[str, Target], loss: str) -> dict[str, Any]:
    """Return the parts of ``y`` by name."""
    expected = ", ".join(f"{name!r} {_text(target.shape)}" for name, target in declared.items())
    if not declared:
        if y is not None:
            raise ValueError(f"loss={loss} takes no targets: leave y=None, got {type(y).__name__}.")
        return {}
    names = y.keys() if isinstance(y, Mapping) else getattr(y, "columns", None)
    names = getattr(getattr(y, "dtype", None), "names", None) if names is None else names
    if names is None and len(declared) == 1 and y is not None:
        return dict.fromkeys(declared, y)
    if names is None:
        shape = getattr(y, "shape", None)
        raise ValueError(
            f"loss={loss} takes the targets {expected}: give y as a dict, a data frame or a structured array with "
            f"these names, got {type(y).__name__}{'' if shape is None else f' of shape {shape}'}."
        )
    names = [str(name) for name in names]
    if unknown := [name for name in names if name not in declared]:
        raise ValueError(
            f"y has {unknown[0]!r}, which is no target of loss={loss}. It takes {expected}."
            f"{nearest(unknown[0], declared)}"
        )
    if missing := [name for name in declared if name not in names]:
        raise ValueError(f"y lacks the target {missing[0]!r}: loss={loss} takes {expected}, got {sorted(names)}.")
    return {name: y[name] for name in declared}


def _typed(part: Any, name: str, target: Target, most: int | None = LARGEST) -> np.ndarray:
    """Return a target as an array of finite numbers; unless it holds floats, whole ones of at most ``most``."""
    label = f"target {name!r}"
    require_unmasked(part, label)
    require_no_times(part, label)
    if not (isinstance(part, np.ndarray) and part.ndim > 2):
        require_present(part)
    try:
        array = np.asarray(part)
    except ValueError:  # rows of a list that differ in length
        raise ValueError(f"The rows of {label} differ in shape: pad them.") from None
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"The {label} must hold numbers, got objects.") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"The {label} must hold numbers ({target.dtype}), got {array.dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = np.count_nonzero(~np.isfinite(array))
        raise ValueError(f"The {label} contains NaN or infinity in {count} of {array.size} elements: leave rows out.")
    if target.dtype == "bool" and (wrong := array[~np.isin(array, (0, 1))]).size:
        raise ValueError(f"The {label} must be True or False (1 or 0), got values such as {wrong[0]}.")
    if target.dtype == "int64":
        if array.dtype.kind == "f" and (array != np.rint(array)).any():
            raise ValueError(f"The {label} must hold whole numbers, got fractions.")
        if most is not None and array.size and max(abs(int(array.max())), abs(int(array.min()))) > LARGEST:
            raise ValueError(
                f"The {label} holds whole numbers beyond {LARGEST}, which training does not hold exactly. Number them "
                f"anew: numpy.unique(..., return_inverse=True)."
            )
    return array if array.dtype.kind == "f" else array.astype(np.float64 if target.dtype == "float" else np.int64)


def _require_shape(array: np.ndarray, name: str, target: Target, sizes: dict[str, tuple[int, str]]) -> None:
    """Raise unless an array has the declared axes; ``sizes`` holds those known so far, and where from."""
    if array.ndim != len(target.shape):
        raise ValueError(f"Target {name!r} must have the axes {_text(target.shape)}, got the shape {array.shape}.")
    for axis, (expected, got) in enumerate(zip(target.shape, array.shape, strict=True)):
        wanted, of = (expected, "") if isinstance(expected, int) else sizes.setdefault(expected, (got, repr(name)))
        if got != wanted:
            raise ValueError(
                f"Axis {axis} ({expected}) of target {name!r} has {got} entries, expected {wanted}"
                f"{f', as in {of}' if of else ''}; its shape is {array.shape}."
            )
        if got == 0 and axis:
            raise ValueError(f"Axis {axis} ({expected}) of target {name!r} is empty; its shape is {array.shape}.")


def _text(shape: tuple[str | int, ...]) -> str:
    """Return a shape as text: (N, length)."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
