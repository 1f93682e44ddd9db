"""Which engine is faster, by family of operators.

``python benchmarks/engine_families.py`` measured the table, with onnxruntime-training 1.19.2, in CPU time on one
thread. A number is the time of a training step of the portable engine by that of ort-training: below 1, the portable
engine is faster.

The families stand in the order of the time that their operators take: of those that occur in a graph the first one
decides. Checked on networks of several families: an embedded transformer 1.12, LeNet 1.04, an embedding with a hidden
layer of tanh 0.69.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

FAMILIES: dict[str, tuple[float, str]] = {
    "convolution": (1.05, "Conv"),
    "attention": (1.08, "Softmax"),
    "leaky rectifiers": (0.51, "LeakyRelu"),
    "lookups": (0.74, "Gather"),
    "pooling": (1.13, "MaxPool AveragePool"),
    "normalization": (1.08, "LayerNormalization"),
    "sigmoids": (1.11, "Tanh Sigmoid"),
    "rectifiers": (0.95, "Relu Exp Erf"),
    "shapes": (0.94, "Transpose Split Concat"),
    "reductions": (0.95, "ReduceMean ReduceSum"),
    "products": (0.97, "MatMul Gemm"),
}
"""For each family the ratio, and its operators."""

CLEAR = 0.9
"""Ratio below which the portable engine is taken: two runs of the benchmark differ by a tenth."""


def portable_is_faster(nodes: Iterable[ir.Node]) -> bool:
    """Whether the portable engine is clearly faster for a graph whose gradient passes through ``nodes``."""
    operators = {node.op_type for node in nodes if not node.domain}
    ratios = (ratio for ratio, names in FAMILIES.values() if operators.intersection(names.split()))
    return next(ratios, 1.0) < CLEAR
