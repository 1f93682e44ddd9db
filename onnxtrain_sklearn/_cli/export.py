"""``gradient`` and ``export-training``: write the graphs of a training as files.

``gradient`` differentiates an ONNX file. ``export-training`` writes a stored estimator as a folder of graphs that any
onnxruntime trains.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx.helper
import onnx_ir as ir

from .._estimators.base import GraphEstimator
from .._estimators.regressor import OrtGradientRegressor
from .._export.exported import TARGETS
from .._export.graphs import TRAINING_FORMS
from .._gradient.derivatives import gradient_graph
from .._gradient.engine import ENGINES
from .._ir.files import read
from .._ir.protobuf import from_proto
from .._ir.queries import is_float
from .._ir.shapes import infer_shapes
from .._recipes.base import BaseRecipe
from ..exceptions import nearest
from ..models import GraphModel
from .console import Command, Console, Outcome, UsageError, write_model
from .model_option import BUILDERS, SECURITY, model_named


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
    names = options.wrt
    if not names:
        # The initializers that an estimator would train. What reading restores, such as a parameter of PyTorch that the
        # exporter split or computed with, has no name in the file.
        described = OrtGradientRegressor(GraphModel(proto, of)).describe()
        stored = {tensor.name for tensor in proto.graph.initializer}
        names = [entry.name for entry in described.of("trained") if entry.name in stored]
    if not names:
        raise UsageError("No initializer of the graph is a weight under its own name: name some values by --wrt.")
    if options.sum:
        proto, of = _with_sum(proto, of)
    console.progress(f"differentiating {of!r} by {', '.join(names)}")
    result = gradient_graph(proto, wrt=names, of=of, engine=options.engine)
    path = options.output or options.model.with_suffix(".gradient.onnx")
    size = write_model(result, path)
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


def _with_sum(proto: onnx.ModelProto, of: str) -> tuple[onnx.ModelProto, str]:
    """Return a copy of the model with the sum of an output as a further output, and the name of the sum."""
    graph = infer_shapes(from_proto(proto)).graph
    value = next(one for one in graph.outputs if one.name == of)
    name = f"{of}_sum"
    if not is_float(value):
        raise UsageError(f"--of {of!r} holds no floats, which alone have a gradient.")
    if name in {one.name for node in graph.all_nodes() for one in node.outputs} | {v.name for v in graph.inputs}:
        raise UsageError(f"The graph has a value {name!r} already, the name of the sum of {of!r}.")
    # added to the file as it is: the graph above was changed by reading it
    result = deepcopy(proto)
    result.graph.node.append(onnx.helper.make_node("ReduceSum", [of], [name], name=f"summed/{of}", keepdims=0))
    kind = (value.dtype or ir.DataType.FLOAT).value
    result.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, []))
    return result, name


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("estimator", metavar="ESTIMATOR", help="joblib, pickle or skops file with a fitted OrtGradient estimator")
    add("folder", type=Path, metavar="FOLDER", help="folder to write; an earlier export is replaced")
    add("--form", choices=list(TRAINING_FORMS), default="both", help="the training graphs to write (default: both)")
    add("--target", choices=list(TARGETS), default="any", help='"web": also for WebGPU in browsers (default: any)')
    add("--batch-size", type=int, metavar="ROWS", help="rows of a minibatch (default: those of the estimator)")
    add("--trust", nargs="+", default=[], metavar="TYPE", help="types in a skops file to load")


def _export(options: argparse.Namespace, console: Console) -> Outcome:
    found: Any = model_named(options.estimator, options.trust).model
    estimator = found.steps[-1][1] if hasattr(found, "steps") else found
    if isinstance(estimator, BaseRecipe):
        raise UsageError(
            f"{options.estimator!r} holds a {type(estimator).__name__}, whose training graphs begin with the network "
            "before training and need the rows that its preprocessing is fitted to: call "
            "export_training(folder, X, y) in Python."
        )
    if not isinstance(estimator, GraphEstimator):
        no_file = isinstance(estimator, str) or options.estimator in BUILDERS
        held = "is no stored estimator" if no_file else f"holds a {type(estimator).__name__}"
        raise UsageError(
            f"{options.estimator!r} {held}, and training graphs are made of an OrtGradientClassifier, "
            "OrtGradientRegressor or OrtGradientMultiOutput. Fit one on this model, and name its joblib, pickle or "
            "skops file."
        )
    if estimator is not found:
        console.progress(f"exported: the last step, {type(estimator).__name__}; it takes what the steps before it give")
    estimator.export_training(options.folder, batch_size=options.batch_size, form=options.form, target=options.target)
    sizes = {file.name: file.stat().st_size for file in sorted(options.folder.iterdir())}
    lines = [f"{options.folder / name}: {size} bytes" for name, size in sizes.items()]
    return Outcome({"folder": str(options.folder), "files": sizes}, lines)


GRADIENT = Command(_gradient_arguments, _gradient)

EXPORT_TRAINING = Command(_export_arguments, _export, SECURITY)
