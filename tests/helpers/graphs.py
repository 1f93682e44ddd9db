"""Graphs of one input and one output, by the text of their nodes."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir

from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._model.precision import in_dtype
from onnxtrain_sklearn._model.trainable import trainable_model

W = "float[3, 1] W = {1, -2, 3}"


def model(body="Y = MatMul(X, W)", *, x="float[N, 3] X", y="float[N, 1] Y", weights=W, opset=18, ir_version=8, more=""):
    domains, functions = more or ("", "")
    return onnx.parser.parse_model(f"""
        <ir_version: {ir_version}, opset_import: ["": {opset}{domains}]>
        net ({x}) => ({y}) <{weights}> {{ {body} }} {functions}""")


def trainable(*args, output=None, **kwargs):
    return trainable_model(load(model(*args, **kwargs)), output)


def from_file(proto, limits=None):
    """Return a file as training takes it: what its exporter broke is restored, and its parameters are found."""
    return trainable_model(load(proto, limits) if limits else load(proto), foreign=True)


def in_double(proto):
    return ir.to_proto(in_dtype(ir.from_proto(proto), ir.DataType.DOUBLE))


def operator_types(graph):
    return [node.op_type for node in graph]
