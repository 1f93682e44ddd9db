"""Which engine is faster, by family of operators.

``python benchmarks/engine_families.py`` measured the table, with onnxruntime-training 1.19.2, in CPU time on one
thread. A number is the time of a training step of the portable engine by that of ort-training: below 1, the portable
engine is faster.

The families stand in the order of the time that their operators take: of those that occur in a graph the first one
decides. Checked on networks of several families: an embedding and attention 1.07, LeNet 1.13, an embedding with a
hidden layer of tanh 0.94 and 1.09 in two runs, with a linear layer 0.90 and 1.00.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

FAMILIES: dict[str, tuple[float, str]] = {
    "convolution": (1.03, "Conv"),
    "attention": (1.06, "Softmax"),
    "leaky rectifiers": (0.48, "LeakyRelu"),
    "lookups": (0.76, "Gather"),
    "pooling": (1.15, "MaxPool AveragePool"),
    "normalization": (1.05, "LayerNormalization"),
    "sigmoids": (1.16, "Tanh Sigmoid"),
    "rectifiers": (0.99, "Relu Exp Erf"),
    "shapes": (0.96, "Transpose Split Concat"),
    "reductions": (0.90, "ReduceMean ReduceSum"),
    "products": (0.94, "MatMul Gemm"),
}
"""For each family the ratio, and its operators."""

CLEAR = 0.9
"""Ratio below which the portable engine is taken: two runs of the benchmark differ by a tenth."""


def portable_is_faster(nodes: Iterable[ir.Node]) -> bool:
    """Whether the portable engine is clearly faster for a graph whose gradient passes through ``nodes``."""
    operators = {node.op_type for node in nodes if not node.domain}
    ratios = (ratio for ratio, names in FAMILIES.values() if operators.intersection(names.split()))
    return next(ratios, 1.0) < CLEAR
