"""Marks of one-hot rows, which sum to one: the gradient of their log-likelihood needs no sum over the classes."""

from __future__ import annotations

import onnx_ir as ir

_ONE_HOT = "onnxtrain/one_hot"


def mark_one_hot(value: ir.Value) -> ir.Value:
    """Mark the result of a node: each of its rows is one in one column and zero in the others; return it."""
    node = value.producer()
    assert node is not None
    node.meta[_ONE_HOT] = True
    return value


def is_one_hot(value: ir.Value | None) -> bool:
    """Whether a value is marked."""
    node = None if value is None else value.producer()
    return node is not None and _ONE_HOT in node.meta
