"""Constants of formulas in files that skl2onnx and onnxmltools wrote: they become Constant nodes.

Both write the constants of their formulas as initializers, beside the weights. A file does not say which is which, and
the graph does not tell them apart either: the weight of a boosted classifier and the sum of all weights are both single
numbers that scores are multiplied by. The names of the converters' variables do. Fitted estimators do not need this:
their converters name each parameter.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import hold_as_constant

_FORMULA = re.compile(
    r"(unity|negate|n_classes|num_classes|clf_length|exponent|prod_operand|mul_operand|half_scalar|est_weights_sum|"
    r"symmetrix_weight|constant|zero_tensor|unit_float_tensor|const_[np]\d+|cst|eqp\w*cst|dec_\w*cst)\d*"
)
_ANY_NUMBER = re.compile(r"_[A-Z]\w*cst\d*$")


def hold_formulas(model: ir.Model) -> None:
    """Turn the constants of formulas into Constant nodes, in place.

    onnxmltools has all weights in attributes, so that each single number that is an initializer is such a constant.
    """
    if model.producer_name not in ("OnnxMLTools", "skl2onnx"):
        return
    every_number = model.producer_name == "OnnxMLTools"
    op = GraphBuilder(model.graph, prefix="setting", constant_nodes=True)
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or not tensor.dtype.is_floating_point():
            continue
        if (every_number and tensor.size == 1) or _is_formula(name, tensor.numpy()):
            hold_as_constant(op, value)
    model.graph.sort()


def _is_formula(name: str, array: np.ndarray) -> bool:
    """Whether skl2onnx gives this name to constants of formulas, or to any number and this one is whole or a half."""
    if _FORMULA.fullmatch(name):
        return True
    return array.size == 1 and bool(_ANY_NUMBER.search(name)) and float(2 * array.ravel()[0]).is_integer()
