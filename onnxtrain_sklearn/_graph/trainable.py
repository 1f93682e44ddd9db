"""A graph as it is trained: pruned to the output that a loss is taken on, with its parameters found.

Nothing here knows of losses, data or sessions, and nothing changes a model that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from .. import _runtime
from .._refusal import refusing
from ..exceptions import ModelError, UnsupportedOperatorError, nearest
from .builder import GraphBuilder, infer_shapes, int_attribute, is_float
from .constants import narrow_weights, quantized_nodes, store_weights, verdicts
from .final_activation import activation_of, scores_of
from .ranges import range_of
from .roles import Verdict
from .versions import readable, values
from .weights import TRAINED_TYPES, array_of, common_dtype, listing, parameters_of, statistics_of


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of a graph input; None stands for a dimension that is not fixed."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class TrainableModel:
    """A graph pruned to the output that is trained.

    Attributes
    ----------
    model : onnx_ir.Model
        Its outputs are ``scores`` and, where they are others, ``output`` and ``choice``. Read only.
    inputs : tuple of TensorSpec
        The graph's inputs; the first axis of each is the batch.
    output : str
        The output that the user asked for.
    scores : str
        The value that the loss is taken on: ``output``, or what goes into its final activation.
    link : str or None
        The link that the final activation computes: "softmax", "sigmoid", "exp"; None: there is none. "votes": the
        scores are those of pairs of classes, and the output is the decision function that is made of them.
    log_output : bool
        Whether ``output`` is the logarithm of that link.
    paired : bool
        Whether ``output`` has two columns, 1 - p and p, of one score.
    normalised : bool
        Whether the link makes probabilities of numbers that need not stay any while they are trained.
    reference : onnx_ir.Model or None
        The graph as it was given, for comparison before training begins.
    parameters : tuple of str
        Names of the float initializers that are weights and that ``scores`` depends on.
    statistics : tuple of str
        Names of the running statistics.
    dtype : numpy.dtype
        Type of the parameters.
    choice : str or None
        The value that holds the index of the class that the graph itself chooses, by votes or at a threshold; None:
        the scores alone decide.
    roles : dict of str to str
        Of a foreign graph: what makes a weight of each parameter.
    constants : dict of str to str
        Of a foreign graph: the float constants that are no weights, and why.
    quantized : tuple of str
        Of a foreign graph: the nodes that compute with integers in place of floats.
    narrow : tuple of str
        Of a foreign graph: the weights that are floats of another type than float32 and float64.
    """

    model: ir.Model
    inputs: tuple[TensorSpec, ...]
    output: str
    scores: str
    link: str | None
    log_output: bool
    parameters: tuple[str, ...]
    statistics: tuple[str, ...]
    dtype: np.dtype[Any]
    choice: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    quantized: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    paired: bool = False
    normalised: bool = False
    reference: ir.Model | None = None

    @property
    def activation(self) -> dict[str, Any]:
        """How the output comes from the scores."""
        names = ("scores", "link", "log_output", "paired", "normalised")
        return {name: getattr(self, name) for name in names}

    @property
    def range(self) -> tuple[float, float]:
        """The bounds that the operators of the graph hold its output to."""
        return range_of(self._value(self.output))

    @property
    def ends_in_log(self) -> bool:
        """Whether the output is a logarithm, the last operator."""
        node = self._value(self.output).producer()
        return node is not None and (node.op_type, node.domain) == ("Log", "")

    def weights(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter and running statistic by name."""
        initializers = self.model.graph.initializers
        return {name: np.array(array_of(initializers[name])) for name in (*self.parameters, *self.statistics)}

    @property
    def running_statistics(self) -> dict[str, str]:
        """The running statistics that training changes: name of each, and of the value that is its next one."""
        nodes = [node for node in self.model.graph if _normalises_by_batch(node)]
        return {node.inputs[i].name: node.outputs[i - 2].name for node in nodes for i in (3, 4)}  # type: ignore[union-attr,misc]

    def with_frozen_statistics(self, trained: Collection[str]) -> TrainableModel:
        """Return the same model with BatchNormalization in inference mode where neither scale nor bias is trained."""

        def stays(node: ir.Node) -> bool:
            return not any(x is not None and x.name in trained for x in node.inputs[1:3])

        if not any(_normalises_by_batch(node) and stays(node) for node in self.model.graph):
            return self
        model = self.model.clone()
        for node in [n for n in model.graph if _normalises_by_batch(n) and stays(n)]:
            _normalise_by_running_statistics(node)
        return replace(self, model=model)

    def integer_nodes(self) -> str:
        """Return the first nodes that compute with integers, for a message."""
        return _first(self.quantized)

    def ignoring_activation(self) -> TrainableModel:
        """Return the same model with the loss taken on its output as it is."""
        return replace(self, scores=self.output, link=None, log_output=False, paired=False, normalised=False)

    def taking_output_for(self, link: str, *, log: bool = False, normalised: bool = False) -> TrainableModel:
        """Return the same model with scores of which ``link`` gives the output, or what it is the logarithm of."""
        model = self.model.clone()
        graph, output = model.graph, next(v for v in model.graph.outputs if v.name == self.output)
        op = GraphBuilder(graph, dtype=output.dtype or ir.DataType.FLOAT, prefix="scores", constant_nodes=True)
        scores = scores_of(op, output, link, log=log)
        graph.outputs.append(scores)
        found = replace(self.ignoring_activation(), model=infer_shapes(model), scores=scores.name or "", link=link)
        return replace(found, log_output=log, normalised=normalised)

    def _value(self, name: str) -> ir.Value:
        return next(v for v in self.model.graph.outputs if v.name == name)

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> TrainableModel:
        """Return the same model with the axes behind the batch axis fixed to ``shapes`` by input name."""
        if all(spec.shape[1:] == shapes[spec.name] for spec in self.inputs):
            return self
        model = self.model.clone()
        for value in model.graph.inputs:
            value.shape = ir.Shape([ir.SymbolicDim("N"), *shapes[value.name or ""]])
        _forget_shapes(model.graph)
        inputs = tuple(replace(spec, shape=(None, *shapes[spec.name])) for spec in self.inputs)
        return replace(self, model=infer_shapes(model), inputs=inputs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "model": ir.to_proto(self.model).SerializeToString(), "reference": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = readable(onnx.load_model_from_string(state["model"]), _runtime.limits())
        self.__dict__.update(state, model=model)


@refusing("The graph cannot be prepared for training")
def trainable_model(
    source: ir.Model,
    output: str | None = None,
    *,
    pairs: str | None = None,
    choice: str | None = None,
    foreign: bool = False,
) -> TrainableModel:
    """Prune ``source`` to the output that is trained and find its parameters.

    Those of a ``foreign`` graph are found by their roles, wherever the graph holds them; else they are all float
    initializers that no operator takes for a setting. ``choice`` names the output with the index of the class that the
    graph itself chooses, ``pairs`` the one with scores of pairs of classes, where the trained output is a decision
    function made of them.
    """
    model = source.clone()
    _free_batch_axis(model)
    graph, initializers = model.graph, listing(model.graph)
    if foreign:
        store_weights(graph)
    find = _foreign_parameters if foreign else parameters_of
    named = {v.name: v for v in graph.outputs}
    final = _trained_output(graph, output, find)
    activation = activation_of(final) if pairs is None else None
    scores = named[pairs] if pairs is not None else final if activation is None else activation.scores(graph, final)
    graph.outputs.clear()
    graph.outputs.extend(dict.fromkeys([scores, final] if choice is None else [scores, final, named[choice]]))
    common.RemoveUnusedNodesPass()(model)
    for value in [v for v in graph.inputs if not v.uses()]:
        graph.inputs.remove(value)
    if not graph.inputs:
        raise ModelError(f"Output {final.name!r} depends on no input of the graph: there are no data to train it on.")
    _prepare_batch_statistics(graph)
    judged = verdicts(graph, scores) if foreign else {}
    parameters = _weights_among(graph, judged) if foreign else parameters_of(graph, scores)
    if not parameters:
        raise ModelError(
            f"Output {scores.name!r} depends on no float parameter. Initializers of the graph: {initializers}. Weights "
            f"must be float32 or float64 initializers of the main graph."
        )
    return TrainableModel(
        model=model,
        inputs=tuple(spec_of(v) for v in graph.inputs),
        output=final.name or "",
        scores=scores.name or "",
        link=activation.link if activation is not None else None if pairs is None else "votes",
        log_output=activation is not None and activation.log,
        paired=activation is not None and activation.paired,
        parameters=tuple(parameters),
        statistics=tuple(statistics_of(graph)),
        dtype=common_dtype(graph, parameters),
        choice=choice,
        roles={name: verdict.reason for name, verdict in judged.items() if name in parameters},
        constants={name: verdict.reason for name, verdict in judged.items() if name not in parameters},
        quantized=quantized_nodes(graph, scores) if foreign else (),
        narrow=narrow_weights(graph, scores) if foreign else (),
    )


def _first(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(nodes[:3]) + more


def _foreign_parameters(graph: ir.Graph, scores: ir.Value) -> list[str]:
    return _weights_among(graph, verdicts(graph, scores))


def _weights_among(graph: ir.Graph, judged: Mapping[str, Verdict]) -> list[str]:
    return [name for name, verdict in judged.items() if verdict.is_weight and name in graph.initializers]


def alone(source: ir.Model, output: str) -> ir.Model:
    """Return the inference form of ``source`` with one output."""
    model = inference_form(source)
    _free_batch_axis(model)
    graph = model.graph
    graph.outputs[:] = [v for v in graph.outputs if v.name == output]
    common.RemoveUnusedNodesPass()(model)
    for value in [v for v in graph.inputs if not v.uses()]:
        graph.inputs.remove(value)
    return model


def with_batch(model: ir.Model, batch: int) -> ir.Model:
    """Return a clone whose inputs have ``batch`` rows, its shapes inferred anew."""
    fixed = model.clone()
    for value in fixed.graph.inputs:
        if value.shape is not None and len(value.shape):
            value.shape = ir.Shape([batch, *list(value.shape)[1:]])
    _forget_shapes(fixed.graph)
    return infer_shapes(fixed)


def swap_initializers(graph: ir.Graph, weights: Mapping[str, np.ndarray]) -> None:
    """Replace the values of initializers by name, in place."""
    for name, array in weights.items():
        graph.initializers[name].const_value = ir.tensor(np.asarray(array, order="C"), name=name)


def initializers_to_inputs(graph: ir.Graph, names: list[str]) -> None:
    """Turn initializers into graph inputs, in place, so that a session reads them from memory that we own."""
    for name in names:
        value = graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)


def in_dtype(model: ir.Model, dtype: ir.DataType) -> ir.Model:
    """Return a clone in which every float32 and float64 tensor, input and type attribute is of type ``dtype``."""
    clone = model.clone()
    for value in values(clone):
        if value.dtype in TRAINED_TYPES and not _is_single(value.producer()):
            value.type = ir.TensorType(dtype)  # setting value.dtype would change the original, which shares the object
        if value.const_value is not None and value.const_value.dtype in TRAINED_TYPES:
            array = array_of(value).astype(TRAINED_TYPES[dtype])
            value.const_value = ir.tensor(array, name=value.name)
    for node in clone.graph.all_nodes():
        _attributes_in_dtype(node, dtype)
    return clone


def inference_form(model: ir.Model) -> ir.Model:
    """Return a clone for inference: Dropout passes its input on, BatchNormalization takes its running statistics."""
    clone = model.clone()
    for node in list(clone.graph.all_nodes()):
        if node.op_type == "Dropout" and not node.domain:
            _pass_on(node)
        elif _normalises_by_batch(node):
            _normalise_by_running_statistics(node)
    return clone


def _pass_on(node: ir.Node) -> None:
    source, dropped, graph = node.inputs[0], node.outputs[0], node.graph
    assert source is not None
    assert graph is not None
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1] in graph.outputs):
        raise ModelError(f"The mask of Dropout node {node.name!r} is used: the graph has no inference form.")
    if dropped in graph.outputs:
        identity = ir.node("Identity", [source], name=f"{node.name}/identity")
        graph.insert_before(node, identity)
        identity.outputs[0].name, source = dropped.name, identity.outputs[0]
        graph.outputs[graph.outputs.index(dropped)] = source
        source.type, source.shape, dropped.name = dropped.type, dropped.shape, None
    ir.convenience.replace_all_uses_with(dropped, source)
    graph.remove(node, safe=True)


def _normalises_by_batch(node: ir.Node) -> bool:
    """Whether a node takes the statistics of each batch; before opset 14 that is told by its further outputs."""
    is_batch_norm = node.op_type == "BatchNormalization" and not node.domain
    return is_batch_norm and bool(int_attribute(node, "training_mode", 0) or len(node.outputs) > 1)


def _normalise_by_running_statistics(node: ir.Node) -> None:
    node.attributes.pop("training_mode", None)
    node.resize_outputs(1)


def _free_batch_axis(model: ir.Model) -> None:
    """Let the first axis of every input vary: exporters often fix it to the batch that they traced."""
    fixed = [v for v in model.graph.inputs if v.shape is not None and len(v.shape) and isinstance(v.shape[0], int)]
    if not fixed:
        return
    for value in fixed:
        assert value.shape is not None
        value.shape = ir.Shape([ir.SymbolicDim("N"), *list(value.shape)[1:]])
    _forget_shapes(model.graph)
    infer_shapes(model)


def _forget_shapes(graph: ir.Graph) -> None:
    for node in graph.all_nodes():
        for value in node.outputs:
            value.shape = None


def _trained_output(graph: ir.Graph, output: str | None, find: Callable[[ir.Graph, ir.Value], list[str]]) -> ir.Value:
    outputs = {v.name or "": v for v in graph.outputs}
    if output is not None:
        if output not in outputs:
            raise ModelError(f"output={output!r} is no output of the graph.{nearest(output, outputs)}")
        return outputs[output]
    for value in graph.outputs:
        tensor = value.producer() is not None and isinstance(value.type, ir.TensorType)
        if tensor and is_float(value) and find(graph, value):
            return value
    kinds = ", ".join(f"{name!r} ({value.type})" for name, value in outputs.items())
    rounding = [name for value in graph.outputs for name in quantized_nodes(graph, value)]
    if rounding:
        raise ModelError(
            f"The graph is quantized: {_first(rounding)}. Integer weights are not trained, and rounding has no "
            f"gradient. Train the float model that it was made from and quantize the trained one again."
        )
    raise ModelError(
        f"No float output of the graph depends on a float initializer, so there is no parameter to train. "
        f"Outputs: {kinds}; initializers: {listing(graph)}. Weights must be float32 or float64 initializers of the "
        f"main graph."
    )


def _prepare_batch_statistics(graph: ir.Graph) -> None:
    """Give each BatchNormalization in training mode running statistics of its own: exporters merge equal ones."""
    seen: set[ir.Value] = set()
    for node in [n for n in graph.all_nodes() if _normalises_by_batch(n)]:
        _require_running_statistics(graph, node)
        for i in (3, 4):
            x = node.inputs[i]
            if x in seen:
                assert x is not None
                name = f"{x.name}/{node.name}"
                own = ir.Value(name=name, type=x.type, shape=x.shape, const_value=ir.tensor(array_of(x), name=name))
                graph.initializers.add(own)
                node.replace_input_with(i, own)
            elif x is not None:
                seen.add(x)


def _require_running_statistics(graph: ir.Graph, node: ir.Node) -> None:
    statistics, updated = node.inputs[3:5], node.outputs[1:]
    reason = ""
    if node.graph is not graph:
        reason = "it stands in a subgraph"
    elif graph.opset_imports[""] < 14:
        reason = "before opset 14 it has no form that is trained"
    elif any(x is None or x.name not in graph.initializers for x in statistics):
        reason = "its running statistics are no initializers"
    elif len(updated) != 2 or any(not v.name or v.uses() or v.is_graph_output() for v in updated):
        reason = "it must have three outputs, of which nothing reads the last two"
    if reason:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} (BatchNormalization) is in training mode and cannot be trained: {reason}. Export the "
            f"model in evaluation mode (in PyTorch: model.eval())."
        )


def spec_of(value: ir.Value) -> TensorSpec:
    """Return name, type and shape of a graph input, whose first axis is the batch."""
    if not isinstance(value.type, ir.TensorType) or value.dtype is None or value.shape is None or not len(value.shape):
        raise ModelError(f"Graph input {value.name!r} must be a tensor of a declared type and shape with a batch axis.")
    shape = tuple(d if isinstance(d, int) else None for d in value.shape)
    return TensorSpec(value.name or "", value.dtype.numpy(), shape)


def _is_single(node: ir.Node | None) -> bool:
    """Whether a node returns float32 whatever it is fed, as do the operators of ai.onnx.ml before version 5."""
    return node is not None and node.domain == "ai.onnx.ml" and node.op_type != "TreeEnsemble"


def _attributes_in_dtype(node: ir.Node, dtype: ir.DataType) -> None:
    for key in ("to", "dtype", "output_datatype"):
        if key in node.attributes and node.attributes[key].value in TRAINED_TYPES:
            node.attributes[key] = ir.AttrInt64(key, dtype.value)
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in TRAINED_TYPES:
            array = attribute.value.numpy().astype(TRAINED_TYPES[dtype])
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.tensor(array))
