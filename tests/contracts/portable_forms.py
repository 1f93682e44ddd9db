"""Which forms of a case the portable engine is held to: its opsets, what it refuses, what no runtime computes."""

from __future__ import annotations

import onnx

from tests.contracts import ort_training_cases
from tests.contracts.gradient_cases import operators
from tests.helpers.environment import NEWEST_OPSET

NEWEST = NEWEST_OPSET

MAY_REFUSE = {
    "its auto_pad needs fixed sizes": "the pads that it stands for depend on the sizes",
    "the sizes from its axis on must be fixed": "a scale for each block along an axis of unknown size",
    "is deprecated in domain_version": "ONNX's checker takes no deprecated operators",
}
"""What it may refuse in some forms of a case, and why it has to."""

NO_DOUBLE = ("RNN", "GRU", "LSTM", "Attention")
"""Operators without a kernel in float64: sessions are created, and fail or give NaN when they run."""


SHARED = {id(one) for one in ort_training_cases.CASES}
"""The cases of both engines."""


def refusal(one):
    """Return the reason for which the engine refuses a case in every form, "" where it has to be right.

    What a shared case says of refusals is about the other engine.
    """
    return "" if id(one) in SHARED else one.refused


def signature(operator, opset):
    if "." in operator:  # ONNX knows no schema of another domain, which its own opset does not change
        return None
    schema = onnx.defs.get_schema(operator, opset, "")
    defaults = {name: a.default_value.s for name, a in schema.attributes.items() if name != "round_mode"}
    return [x.name for x in schema.inputs], defaults  # a new default names a new set of values; only 8-bit floats round


def opsets(one):
    """Return the opsets of a case, and the newest one where all its operators have the form of before."""
    last = max(one.opsets)
    more = 18 <= last < NEWEST and all(signature(name, last) == signature(name, NEWEST) for name in operators(one))
    return (*one.opsets, NEWEST) if more else one.opsets


def lacks_double(one):
    return any(f"{name}<" in one.body or f"{name}(" in one.body for name in NO_DOUBLE)
