"""``gradient``: write the graph that computes the gradient of an output of an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx.helper
import onnx_ir as ir

from .._estimators.regressor import OrtGradientRegressor
from .._gradient.engine import ENGINES, gradient_graph
from .._ir.files import read
from .._ir.protobuf import from_proto
from .._ir.queries import is_float
from .._ir.shapes import infer_shapes
from ..exceptions import nearest
from ..models import GraphModel
from .console import Command, Console, Outcome, UsageError
from .onnx_files import save


def _gradient_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="ONNX file")
    add("--wrt", nargs="+", metavar="NAME", help="initializers or inputs; default: the weights, as inspect shows them")
    add("--of", metavar="OUTPUT", help="a scalar output; default: the first")
    add("--sum", action="store_true", help="differentiate the sum of all numbers of the output, which is added")
    add("--engine", choices=["auto", *ENGINES], default="auto", help="default: %(default)s")
    add("--output", type=Path, metavar="FILE", help="default: MODEL.gradient.onnx")


def _gradient(options: argparse.Namespace, console: Console) -> Outcome:
    if not options.model.is_file():
        raise UsageError(f"There is no file {str(options.model)!r}.")
    proto = read(options.model)
    of = options.of or proto.graph.output[0].name
    if of not in (known := [value.name for value in proto.graph.output]):
        raise UsageError(f"--of {of!r} is no output of the graph.{nearest(of, known)}")
    names = options.wrt or _weights_of(proto, of)
    if options.sum:
        proto, of = _with_sum(proto, of)
    console.progress(f"differentiating {of!r} by {', '.join(names)}")
    result = gradient_graph(proto, wrt=names, of=of, engine=options.engine)
    path = options.output or options.model.with_suffix(".gradient.onnx")
    size = save(result, path)
    record = {
        "output": str(path),
        "bytes": size,
        "of": of,
        "wrt": names,
        "nodes": len(result.graph.node),
        "inputs": [value.name for value in result.graph.input],
        "outputs": [value.name for value in result.graph.output],
    }
    return Outcome(record, [f"{path}: {record['nodes']} nodes, outputs {', '.join(record['outputs'])}"])


def _weights_of(proto: onnx.ModelProto, of: str) -> list[str]:
    """Return the initializers that an estimator would train."""
    described = OrtGradientRegressor(GraphModel(proto, of)).describe()
    stored = {tensor.name for tensor in proto.graph.initializer}
    names = [entry.name for entry in described.of("trained") if entry.name in stored]
    if not names:
        raise UsageError("No initializer of the graph is a weight under its own name: say by --wrt what is wanted.")
    return names


def _with_sum(proto: onnx.ModelProto, of: str) -> tuple[onnx.ModelProto, str]:
    """Return a copy of the model with the sum of an output as a further output, and the name of the sum."""
    graph = infer_shapes(from_proto(proto)).graph
    value, name = next(one for one in graph.outputs if one.name == of), f"{of}_sum"
    if not is_float(value):
        raise UsageError(f"--of {of!r} holds no floats, which alone have a gradient.")
    if name in {one.name for node in graph.all_nodes() for one in node.outputs} | {v.name for v in graph.inputs}:
        raise UsageError(f"The graph has a value {name!r} already, the name of the sum of {of!r}.")
    # added to the file as it is: the graph above was changed by reading it
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    result.graph.node.append(onnx.helper.make_node("ReduceSum", [of], [name], name=f"summed/{of}", keepdims=0))
    kind = (value.dtype or ir.DataType.FLOAT).value
    result.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, []))
    return result, name


GRADIENT = Command(_gradient_arguments, _gradient)
