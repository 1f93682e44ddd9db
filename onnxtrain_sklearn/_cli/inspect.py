"""``inspect``: show what a file contains, what would be trained of it, and what each engine differentiates."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.graph_plan import trainable_graph_of
from .._estimators.regressor import OrtGradientRegressor
from .._gradient.engine import ENGINES, available_engines, differentiate
from .._ir.files import read
from .._ir.protobuf import from_proto, to_proto
from .._model.batch_axis import with_batch
from .._model.trainable import TrainableModel
from .._training.parameters import selected
from ..exceptions import ModelError
from ..graph import GraphBuilder
from ..models import GraphModel
from .console import Command, Console, Outcome, Record, UsageError, sentence
from .model_option import (
    CONSTANT_HELP,
    SECURITY,
    ModelOption,
    constant_inputs,
    is_classifier_option,
    model_named,
    own_estimator,
)

MOST_PARAMETERS = 100
"""Most parameters that are tried one by one where an engine refuses all of them together."""

BATCH, SCALAR = 2, "onnxtrain/inspected"


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="ONNX file, or a fitted model as .joblib, .pkl or .skops")
    add("--of", metavar="OUTPUT", help="the output that would be trained; default: found as the estimators do")
    add("--constant", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=CONSTANT_HELP)
    add("--trainable", nargs="+", metavar="PATTERN", help="names or patterns of what would be trained; default: all")
    add("--trust", nargs="+", default=[], metavar="TYPE", help="types in a skops file that may be loaded")


def _inspect(options: argparse.Namespace, console: Console) -> Outcome:
    option = model_named(options.model, options.trust)
    if option.kind == "own":
        # the graph of an estimator of this package; of a pipeline that of its last step
        net = own_estimator(option.model)
        if net is not option.model:
            console.progress(f"inspected: the last step, {type(net).__name__}; it takes what the steps before it give")
        option = ModelOption("graph", net.to_onnx(), option.text)
    if option.kind not in ("graph", "fitted"):
        raise UsageError(f"{options.model!r} is built for the data of a fit: inspect takes a file.")
    given = GraphModel(option.model, options.of, constant_inputs=constant_inputs(option, options.constant))
    record: dict[str, Any] = {"model": option.text}
    if option.kind == "graph":
        record |= _facts(from_proto(read(option.model)))
    patterns = options.trainable or "all"
    kind = OrtGradientClassifier if is_classifier_option(option) else OrtGradientRegressor
    try:
        described = kind(given, trainable=patterns).describe()
        source, trained = selected(trainable_graph_of(given)[0], patterns)
        source = source.with_frozen_statistics(trained)  # as fit does: frozen layers need no batch statistics
    except ModelError as error:
        # A graph that cannot be trained has facts to show; a fitted model that is refused has no graph.
        if not record.get("nodes"):
            raise
        record |= {"trainable": False, "reason": sentence(error), "parameters": [], "engines": {}}
        return Outcome(record, _lines(record))
    if option.kind == "fitted":
        record |= _facts(source.model)
    names = [entry.name for entry in described.of("trained")]
    console.progress(f"{len(names)} parameters to train")
    record |= {
        "trainable": True,
        "trained_output": described.output,
        "loss": described.loss,
        "n_trained": described.n_trained,
        "parameters": [
            {"name": e.name, "shape": e.shape, "type": e.dtype.name, "status": e.status, "reason": e.reason}
            for e in described.entries
        ],
        "engines": {engine: _differentiated(engine, source, names) for engine in ENGINES},
    }
    return Outcome(record, _lines(record))


def _facts(model: ir.Model) -> dict[str, Any]:
    graph = model.graph
    constants = set(graph.initializers.values())
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in graph.all_nodes())
    return {
        "producer": " ".join(filter(None, [model.producer_name, model.producer_version])) or None,
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in graph.opset_imports.items()},
        "nodes": sum(operators.values()),
        "operators": dict(operators.most_common()),
        "inputs": [_told_value(value) for value in graph.inputs if value not in constants],
        "outputs": [_told_value(value) for value in graph.outputs],
    }


def _told_value(value: ir.Value) -> dict[str, Any]:
    """Return name, type and shape of an input or output; None stands for a size without a name."""
    sizes = None if value.shape is None else [getattr(size, "value", size) for size in value.shape]
    shape = None if sizes is None else [size if size is None or isinstance(size, int) else str(size) for size in sizes]
    kind = str(value.type) if value.dtype is None else value.dtype.name.lower()
    return {"name": value.name, "type": kind, "shape": shape}


def _differentiated(engine: str, graph: TrainableModel, names: Sequence[str]) -> dict[str, Any]:
    """Return whether an engine differentiates the graph; if not, its reasons with the parameters that each blocks."""
    if engine not in available_engines():
        return {"available": False, "differentiable": None, "obstacles": []}
    whole = _refusal_of(engine, graph, names)
    if whole is None:
        return {"available": True, "differentiable": True, "obstacles": []}
    # Try each parameter alone: an engine names one obstacle at a time, and a parameter after it may be trained.
    obstacles: dict[str, list[str]] = {}
    for name in names[:MOST_PARAMETERS]:
        if (reason := _refusal_of(engine, graph, [name])) is not None:
            obstacles.setdefault(reason, []).append(name)
    found = [{"reason": reason, "parameters": blocked} for reason, blocked in obstacles.items()]
    return {"available": True, "differentiable": False, "obstacles": found or [{"reason": whole, "parameters": names}]}


def _refusal_of(engine: str, graph: TrainableModel, names: Sequence[str]) -> str | None:
    """Return the engine's reason for refusing the scores of a fixed batch; None: it differentiates them."""
    # The sum of the scores stands for a loss: engines differentiate a scalar. A fixed batch is what fits have.
    model = with_batch(graph.model, BATCH)
    ir_graph = model.graph
    scores = next(value for value in ir_graph.outputs if value.name == graph.scores)
    op = GraphBuilder(ir_graph, dtype=ir.DataType.from_numpy(graph.dtype), prefix="inspected")
    total = op.ReduceSum(scores, keepdims=0)
    total.name, total.dtype, total.shape = SCALAR, op.dtype, ir.Shape([])
    ir_graph.outputs.clear()
    ir_graph.outputs.append(total)
    try:
        to_proto(differentiate(model, list(names), SCALAR, engine).model)
    except ModelError as error:
        return sentence(error)
    return None


def _lines(record: Record) -> list[str]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in record["opsets"].items())
    operators = ", ".join(f"{name} {count}" for name, count in list(record["operators"].items())[:12])
    lines = [
        f"{record['model']}: {record['nodes']} nodes, opset {opsets}, IR {record['ir_version']}",
        f"producer: {record['producer'] or 'unknown'}",
        f"operators: {operators}{', ...' if len(record['operators']) > 12 else ''}",
        *(f"input  {_line_of(value)}" for value in record["inputs"]),
        *(f"output {_line_of(value)}" for value in record["outputs"]),
    ]
    if not record["trainable"]:
        return [*lines, f"not trainable: {record['reason']}"]
    lines.append(f"trained output {record['trained_output']!r}, loss taken {record['loss']}")
    lines.append(f"{record['n_trained']:,} trained numbers")
    for entry in record["parameters"]:
        shape = "x".join(map(str, entry["shape"])) or "scalar"
        lines.append(f"  {entry['status']:9} {entry['name']} {shape} {entry['type']}: {entry['reason']}")
    for engine, verdict in record["engines"].items():
        if not verdict["available"]:
            lines.append(f"engine {engine}: not installed")
        elif verdict["differentiable"]:
            lines.append(f"engine {engine}: differentiates all trained parameters")
        else:
            lines.append(f"engine {engine}: does not differentiate")
            lines += [f"  {', '.join(one['parameters'])}: {one['reason']}" for one in verdict["obstacles"]]
    return lines


def _line_of(value: Record) -> str:
    sizes = "?" if value["shape"] is None else f"[{', '.join(str(size or '?') for size in value['shape'])}]"
    return f"{value['name']}: {value['type']} {sizes}"


INSPECT = Command(_inspect_arguments, _inspect, SECURITY)
