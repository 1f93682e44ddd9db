"""onnxruntime-training's own on-device interface and artifacts, without PyTorch, and graphs compared up to names.

The package ``onnxruntime.training`` imports PyTorch for interfaces that are not needed here; its subpackages do not.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx.numpy_helper
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state as C

needs_training = pytest.mark.skipif(not hasattr(C, "TrainingAgent"), reason="needs onnxruntime-training")


def _module(name):
    """Import a module of onnxruntime.training; where there is no PyTorch, without the code of the package itself."""
    package = "onnxruntime.training"
    if package not in sys.modules and importlib.util.find_spec("torch") is None:
        stand_in = ModuleType(package)
        stand_in.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
        sys.modules[package] = stand_in
    return importlib.import_module(f"{package}.{name}")


def artifacts():
    return _module("artifacts")


def onnxblock():
    return _module("onnxblock")


def api():
    return _module("api")


def canonical(model):
    """Return what a model computes, with values named by the order in which they appear."""
    names = {"": ""}

    def name(value):
        return names.setdefault(value, f"v{len(names)}")

    inputs = [(name(v.name), v.type.SerializeToString()) for v in model.graph.input]
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes, constants = [], []
    for node in model.graph.node:
        constants += [held.pop(x) for x in node.input if x in held]
        attributes = sorted((a.name, a.SerializeToString()) for a in node.attribute)
        nodes.append(
            (node.op_type, node.domain, [name(x) for x in node.input], [name(y) for y in node.output], attributes)
        )
    return inputs, nodes, [name(v.name) for v in model.graph.output], constants


def assert_equal_graphs(found, expected):
    """Compare inputs, nodes, edges, attributes, outputs and constants; names of inner values may differ."""
    *found, numbers = canonical(found)
    *expected, wanted = canonical(expected)
    for a, b in zip(found, expected, strict=True):
        assert a == b
    for a, b in zip(numbers, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
