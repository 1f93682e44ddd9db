"""A warning where a pattern selects the bias of a layer and misses its matrix, whose name the exporter made up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from .._graph.queries import operand
from .._graph.trainable import TrainableModel
from ..exceptions import warn
from .parameters import Trainable, matches


def warn_of_missed_matrices(source: TrainableModel, trainable: Trainable, names: Collection[str]) -> None:
    """Warn if a pattern such as ``"encoder.1.*"`` selects the bias of a product, and nothing selects its matrix.

    Names in full and patterns such as ``"*.bias"`` are taken to mean what they select.
    """
    if callable(trainable) or not isinstance(trainable, str | Iterable):
        return
    whole = [p for p in ([trainable] if isinstance(trainable, str) else trainable) if _takes_a_layer(p)]
    biases = {name for name in names if any(matches(name, pattern) for pattern in whole)}
    if not biases:
        return
    missed = {
        matrix: bias
        for bias, matrix in _biased_products(source)
        if bias in biases and matrix in source.parameters and matrix not in names
    }
    if missed:
        told = ", ".join(f"{matrix!r} (bias {bias!r})" for matrix, bias in [*missed.items()][:3])
        more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        warn(
            f"trainable={trainable!r} selects biases and misses the matrices of the same layers, which have "
            f"other names in the file: {told}{more}. They stay as they are. Add them to trainable to train the whole "
            f"layers; describe() lists all names."
        )


def _takes_a_layer(pattern: str) -> bool:
    """Whether a pattern ends with a ``*`` that stands for all parameters of a layer."""
    return pattern.replace("/", ".").rpartition(".")[2] == "*" and pattern != "*"


def _biased_products(source: TrainableModel) -> Iterator[tuple[str, str]]:
    """Yield the names of bias and matrix of each product that has both as initializers."""
    initializers = source.model.graph.initializers
    for node in source.model.graph.all_nodes():
        for bias, matrix in _bias_and_matrix(node):
            if bias is not None and matrix is not None and {bias.name, matrix.name} <= initializers.keys():
                yield bias.name or "", matrix.name or ""


def _bias_and_matrix(node: ir.Node) -> Iterator[tuple[ir.Value | None, ir.Value | None]]:
    if node.domain:
        return
    if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
        yield operand(node, 2), operand(node, 1)
    elif node.op_type == "Add":
        for bias, product in (node.inputs, node.inputs[::-1]):
            maker = None if product is None else product.producer()
            if maker is not None and (maker.op_type, maker.domain) == ("MatMul", ""):
                yield bias, maker.inputs[1]
