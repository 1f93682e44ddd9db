"""Numbers of a head that differ from fit to fit: the scale of the targets, and the range of clipped predictions.

A template has placeholders in their place: NaN with a payload that nothing else has. They are found in the graph
by their bytes, among the constants that the head added, and filled with the numbers of a fit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from .._data.target_range import TargetRange
from .._data.target_scale import TargetScale
from .._support.typing import DType
from .head import Head

_QUIET_NAN = 0x7FF8 << 48
_PAYLOAD = 46
"""Lowest bit of the payload: it remains in float32."""


def numbers_of_targets(head: Head) -> dict[str, np.ndarray]:
    """Return the numbers that are filled in, by name; a center of zeros is none, as its graph has no addition."""
    scale, bounds = head.target_scale, head.target_range
    found: dict[str, np.ndarray] = {}
    if scale is not None:
        found["scale"] = scale.scale
        if scale.center.any():
            found["center"] = scale.center
    if bounds is not None and bounds.limits is not None:
        found |= dict(zip(("low", "high"), bounds.limits, strict=True))
    return found


def with_placeholders(head: Head) -> Head:
    """Return the head with placeholders for its numbers."""
    marks = {name: _placeholder(name, array) for name, array in numbers_of_targets(head).items()}
    scale, bounds = head.target_scale, head.target_range
    if scale is not None:
        scale = TargetScale(scale.method, marks.get("center", np.zeros_like(scale.center)), marks["scale"])
    bounds = TargetRange(marks["low"], marks["high"], clips=True) if "low" in marks else None
    return replace(head, target_scale=scale, target_range=bounds)


def places(graph: ir.Graph, head: Head, dtype: DType, earlier: Collection[str | None]) -> dict[str, str]:
    """Return the name of the node of each placeholder; ``earlier`` are the names of the graph before the head."""
    wanted = {
        _placeholder(name, array).astype(dtype).tobytes(): name for name, array in numbers_of_targets(head).items()
    }
    added = [node for node in graph if node.op_type == "Constant" and node.name not in earlier]
    constants = {node.name or "": node.attributes["value"].as_tensor() for node in added if "value" in node.attributes}
    contents = {name: t.tobytes() for name, t in constants.items() if t.dtype != ir.DataType.STRING}
    found = {wanted[content]: name for name, content in contents.items() if content in wanted}
    assert len(found) == len(wanted), f"The graph lacks placeholders: {sorted(set(wanted.values()) - set(found))}."
    return found


def fill_places(proto: Any, places: Mapping[str, str], head: Head, dtype: DType) -> None:
    """Replace the placeholders of a graph in protobuf by the numbers of ``head``."""
    if not places:
        return
    contents = {places[name]: array.astype(dtype).tobytes() for name, array in numbers_of_targets(head).items()}
    for node in proto.graph.node:
        if node.name in contents:
            node.attribute[0].t.raw_data = contents[node.name]


def _placeholder(name: str, array: np.ndarray) -> np.ndarray:
    bits = _QUIET_NAN | (("scale", "center", "low", "high").index(name) + 1) << _PAYLOAD
    return np.full(array.shape, bits, np.uint64).view(np.float64)
