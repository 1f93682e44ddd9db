"""The constants that are built into a graph beside its weights, and whether two graphs have the same ones.

Scales of inputs and of targets, and the labels of the classes, are among them, which a fit takes from its data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from .._graph.low_rank_edits import without_low_rank
from .._graph.queries import constant, every_node
from ..exceptions import ModelError
from .run import Run

LISTED = 1024
"""Numbers of a constant that are listed; a longer one is represented by a digest."""

CLOSE = 1e-6
"""Relative difference of floats that are equal: means of the same data differ in the last bits between processors."""

CLASSES = "classes of "
"""Before the name of an output: its labels, in the order of their scores."""

_LISTED_IN_ERRORS = 6


def constants_of(run: Run) -> dict[str, Any]:
    """Return the constants by name as values of JSON; those that only training reads are left out."""
    source = without_low_rank(run.source)
    own = {*source.parameters, *source.statistics}
    found = {name: _fact(array) for name, array in _arrays(source.model) if name not in own}
    if (scale := run.head.target_scale) is not None:
        found |= {"center of y": _fact(scale.center), "scale of y": _fact(scale.scale)}
    heads = {form.output or "": head for form, head in zip(run.source.forms, run.head.parts, strict=False)}
    for name, head in (heads or {"y": run.head}).items():
        several = head.classes if isinstance(head.classes, list) else None
        labels = {"": head.classes} if several is None else {f"[:, {i}]": one for i, one in enumerate(several)}
        found |= {f"{CLASSES}{name}{i}": _labels_fact(one) for i, one in labels.items() if one is not None}
    return found


def _arrays(model: ir.Model) -> Iterator[tuple[str, np.ndarray]]:
    for node in every_node(model.graph):
        drops = node.op_type == "Dropout" and not node.domain
        for value in node.inputs[:1] if drops else node.inputs:
            if value is not None and value.name and (array := constant(value)) is not None:
                yield value.name, array
        for name, attribute in () if drops or node.op_type == "Constant" else node.attributes.items():
            if isinstance(attribute, ir.Attr) and attribute.type in _FLOATS and not attribute.is_ref():
                yield f"{node.outputs[0].name}.{name}", np.array(attribute.value, np.float32)


def _labels_fact(labels: Any) -> dict[str, Any]:
    """Return the fact of labels, whose integers may be of any width."""
    array = np.asarray(labels)
    return _fact(array.astype(np.int64) if array.dtype.kind in "biu" else array)


_FLOATS = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)


def _fact(array: np.ndarray) -> dict[str, Any]:
    plain = array if array.dtype.kind in "biuf" else array.astype(str)
    fact: dict[str, Any] = {"type": array.dtype.name, "shape": list(array.shape)}
    if array.size <= LISTED and plain.dtype.kind != "f":
        return {**fact, "values": plain.ravel().tolist()}
    if array.size <= LISTED:
        return {**fact, "values": [float(x) if math.isfinite(x) else str(x) for x in plain.ravel().astype(np.float64)]}
    content = "\0".join(plain.ravel().tolist()).encode() if plain.dtype.kind == "U" else plain.tobytes()
    return {**fact, "sha256": hashlib.sha256(content).hexdigest()}


def require_same_constants(run: Run, given: object) -> None:
    """Raise ModelError if the graph of a state has other constants than the one of a run."""
    known = constants_of(run)
    facts = given if isinstance(given, Mapping) else {}
    names = [*known, *(str(name) for name in facts if name not in known)]
    for name in sorted(names, key=lambda name: not name.startswith(CLASSES)):
        ours, theirs = known.get(name), facts.get(name)
        if not _are_equal(ours, theirs) and name.startswith(CLASSES):
            raise ModelError(
                f"The state was trained with other {name}: {_told(theirs)}; the estimator has {_told(ours)}, so that "
                f"its scores mean other labels. Load the state into the estimator that it comes from, or into one that "
                f"was fitted to the same labels; dict(state), of arrays by name, loads the weights alone."
            )
        if not _are_equal(ours, theirs):
            raise ModelError(
                f"The state was trained in a graph whose constant {name!r} is {_told(theirs)}, and that of the "
                f"estimator is {_told(ours)}: it belongs to another model, whose weights mean something else here. "
                f"Load it into the estimator that it comes from, or into one that was fitted to the same data."
            )


def _are_equal(ours: object, theirs: object) -> bool:
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return False
    if ours.get("shape") != theirs.get("shape") or ("values" in ours) != ("values" in theirs):
        return False
    if "values" not in ours:
        return bool(ours == theirs)
    pairs = zip(ours["values"], theirs["values"], strict=False) if isinstance(theirs["values"], list) else ()
    return len(ours["values"]) == len(theirs["values"]) and all(_are_close(a, b) for a, b in pairs)


def _are_close(a: object, b: object) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-30))
    return bool(a == b)


def _told(fact: object) -> str:
    """Return what a constant is, for a message."""
    if not isinstance(fact, dict):
        return "nothing"
    values = fact.get("values")
    if not isinstance(values, list):
        return f"an array of shape {fact.get('shape')} with the SHA-256 {str(fact.get('sha256'))[:12]}..."
    listed = [f"{one:.6g}" if isinstance(one, float) else str(one)[:40] for one in values[:_LISTED_IN_ERRORS]]
    text = ", ".join([*listed, *(["..."] if len(values) > _LISTED_IN_ERRORS else [])])
    return text if fact.get("shape") == [] else f"[{text}]"
