"""The trainable model: a graph pruned to the trained output, its parameters, inputs and scores.

:func:`trainable_model` makes a :class:`TrainableModel` from a loaded model; its steps call the other modules of this
package. The methods of the class, :func:`with_outputs_of` and :func:`with_scores_from_output` return variants of a
model. No function changes the model that it is given, so that models may share graphs. Losses, data and sessions are
unknown here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from .._importers.load import RESTORATIONS, record, restored, run_importers
from .._importers.torch_parameters import own_names
from .._ir.edits import keep_outputs
from .._ir.files import require_whole
from .._ir.opsets import readable
from .._ir.queries import is_float, reaching
from .._ir.shapes import infer_shapes
from .._utils.cache import with_attributes
from .._utils.errors import refusing
from ..exceptions import ModelError, nearest
from ..graph import GraphBuilder
from .activation import activation_of, scores_of
from .batch_axis import infer_anew
from .constants import narrow_weights, quantized_nodes, store_weights, verdicts
from .fixed_batch import free_batch_axis
from .modes import normalizes_by_batch, separate_running_statistics, separate_stored_statistics, use_running_statistics
from .own_loss import OwnLoss
from .precision import NOTHING_KEPT, KeptTypes, kept_types
from .ranges import range_of
from .roles import EXPORTER, Verdict
from .weights import (
    LowRank,
    common_dtype,
    initial_value,
    listing,
    parameters_of,
    reweighted,
    statistics_of,
    template_of,
)


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of a graph input; None stands for a dimension that is not fixed.

    With ``by_row``, the first axis is that of the rows of X. Otherwise a run takes all of the input, and the rows are
    those of the output: see :mod:`.whole_data`. ``axes`` are then the names of the axes, None where they have none.
    ``example`` is the shape of an array that is packed into a row, and ``axes`` are its axes; None if rows are not
    packed: see :mod:`.packed_examples`.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    by_row: bool = True
    axes: tuple[str | None, ...] = ()
    example: tuple[int | None, ...] | None = None


@dataclass(frozen=True)
class OutputForm:
    """How one of several trained outputs is computed from its scores, in attributes of :class:`TrainableModel`."""

    output: str
    scores: str
    link: str | None
    log_output: bool = False
    paired: bool = False
    link_unproven: bool = False


@dataclass(frozen=True)
class TrainableModel:
    """A graph pruned to the output that is trained.

    Attributes
    ----------
    model : onnx_ir.Model
        Its outputs are ``scores`` and, if different, ``output`` and ``class_output``. Read only.
    inputs : tuple of TensorSpec
        The graph's inputs; the first axis of each is the batch, unless the graph :attr:`is_whole`.
    output : str
        The output that the user asked for.
    scores : str
        The value from which the loss is computed: ``output``, or the input of its final activation.
    link : str or None
        The link that the final activation computes: "softmax", "sigmoid", "exp", or None. "votes": the scores are
        one-vs-one scores of pairs of classes, and the output is the decision function computed from them.
    log_output : bool
        Whether ``output`` is the logarithm of that link.
    paired : bool
        Whether ``output`` has two columns, 1 - p and p, computed from one score.
    link_unproven : bool
        Whether the output is known to be ``link`` of the scores only for the initial weights. Predictions then apply
        the link to the scores, because the output may stop being probabilities or positive during training.
    reference : onnx_ir.Model or None
        The given graph, whose output is compared with that of ``model`` before training.
    joined : tuple of int
        Number of columns of each output, if ``output`` is several outputs joined along axis 1.
    members : int or None
        Number of members of an ensemble: the scores have the shape (N, members, n_scores). None: (N, n_scores).
    kept : KeptTypes
        The values that the file stores in float16 or bfloat16, which are computed and trained in float32.
    parameters : tuple of str
        Names of the float initializers that are weights and on which ``scores`` depends.
    statistics : tuple of str
        Names of the running statistics of BatchNormalization, in training mode or not.
    dtype : numpy.dtype
        Type of the parameters.
    class_output : str or None
        The output with the index of the predicted class, if the graph chooses it by votes or by a threshold; None if
        the scores determine it.
    roles : dict of str to str
        In a user's file: the reason why each parameter is a weight.
    constants : dict of str to str
        In a user's file: the float constants that are not weights, with the reason.
    quantized : tuple of str
        In a user's file: the nodes that compute with integers instead of floats.
    narrow : tuple of str
        In a user's file: the weights with a float type other than float32 and float64.
    low_rank : tuple of LowRank
        The matrices that low-rank factors change; the factors are among the parameters.
    forms : tuple of OutputForm
        The trained outputs, if there are several; the first is ``output``.
    doubtful : tuple of str
        In a user's file: the parameters that are single numbers and may be constants of formulas instead.
    restored : tuple of str
        In a user's file: the names of the passes of ``_importers/load`` that changed it.
    layout : dict of str to int
        In a user's file: the axis of the rows, by the names of inputs and outputs for which it is not the first axis.
    own_loss : OwnLoss or None
        The loss that the graph computes itself: ``scores`` are then the losses of the rows, and some inputs targets.
    batch : int or None
        The only number of rows on which the graph runs; None if it runs on any number. The gradients of the passes of a
        minibatch are then accumulated.
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
    class_output: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    quantized: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    paired: bool = False
    link_unproven: bool = False
    reference: ir.Model | None = None
    joined: tuple[int, ...] = ()
    members: int | None = None
    kept: KeptTypes = NOTHING_KEPT
    low_rank: tuple[LowRank, ...] = ()
    forms: tuple[OutputForm, ...] = ()
    doubtful: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    layout: Mapping[str, int] = field(default_factory=dict)
    own_loss: OwnLoss | None = None
    batch: int | None = None

    @property
    def takes_examples(self) -> bool:
        """True if X is a list of examples of different sizes, packed into rows: see :mod:`.packed_examples`."""
        return any(spec.example is not None for spec in self.inputs)

    @property
    def inputs_of_X(self) -> tuple[TensorSpec, ...]:
        """The inputs that X holds: all but the targets of a graph that computes its loss itself."""
        return tuple(spec for spec in self.inputs if self.own_loss is None or spec.name not in self.own_loss.targets)

    @property
    def is_whole(self) -> bool:
        """True if the data are one thing: a run takes all of every input, and the rows are those of the output."""
        return any(not spec.by_row for spec in self.inputs)

    @property
    def activation(self) -> dict[str, Any]:
        """The attributes that determine each trained output from its scores, such as ``link``."""
        names = ("scores", "link", "log_output", "paired", "link_unproven", "forms")
        return {name: getattr(self, name) for name in names}

    @property
    def views(self) -> tuple[TrainableModel, ...]:
        """A model for each trained output, with the same graph and parameters."""
        return tuple(replace(self, forms=(), **vars(form)) for form in self.forms)

    @property
    def output_row(self) -> tuple[int | None, ...]:
        """The declared shape of a row of the output; empty if it is not known."""
        shape = self._value(self.output).shape
        return () if shape is None else tuple(d if isinstance(d, int) else None for d in shape[1:])

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of the output that follow from the operators of the graph."""
        return range_of(self._value(self.output))

    @property
    def ends_in_log(self) -> bool:
        """True if the last operator is a logarithm."""
        node = self._value(self.output).producer()
        return node is not None and (node.op_type, node.domain) == ("Log", "")

    @property
    def changes_weights(self) -> bool:
        """True if predictions change the trained weights: they merge low-rank factors, or round to a narrow type."""
        return bool(self.low_rank) or self.kept != NOTHING_KEPT

    def weights(self, current: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Return a copy of every parameter and running statistic by name; ``current`` replaces the initial values."""
        initial = {name: initial_value(self.model, name) for name in (*self.parameters, *self.statistics)}
        if current is None:
            return {name: np.array(array) for name, array in initial.items()}
        return {name: current[name].astype(array.dtype) for name, array in initial.items()}

    @cached_property
    def running_statistics(self) -> dict[str, str]:
        """The running statistics that training updates, as a dict from the name to the name of the updated value."""
        nodes = [node for node in template_of(self.model).graph if normalizes_by_batch(node)]
        return {node.inputs[i].name: node.outputs[i - 2].name for node in nodes for i in (3, 4)}  # type: ignore[union-attr,misc]

    def with_frozen_statistics(self, trained: Collection[str]) -> TrainableModel:
        """Return the model with each BatchNormalization in inference mode, unless its scale or bias is trained.

        A BatchNormalization without parameters of its own stays in training mode if a layer before it is trained.
        """

        def is_frozen(node: ir.Node) -> bool:
            own = {x.name for x in node.inputs[1:3] if x is not None}.intersection(self.parameters)
            relevant = own or reaching(node.outputs[0]).intersection(self.parameters) or set(self.parameters)
            return relevant.isdisjoint(trained)

        if not any(normalizes_by_batch(node) and is_frozen(node) for node in template_of(self.model).graph):
            return self
        model = self.model.clone()
        for node in [n for n in model.graph if normalizes_by_batch(n) and is_frozen(n)]:
            use_running_statistics(node)
        return replace(self, model=model)

    def with_weights(self, weights: Mapping[str, np.ndarray]) -> TrainableModel:
        """Return the model with other values for some of its weights; they are cast to the types of the weights."""
        initializers = template_of(self.model).graph.initializers
        typed = {name: array.astype(initializers[name].dtype.numpy()) for name, array in weights.items()}  # type: ignore[union-attr]
        # unlike replace(), this keeps the cached running_statistics, which depend on the structure alone
        return with_attributes(self, model=reweighted(self.model, typed))

    def ignoring_activation(self) -> TrainableModel:
        """Return the model with the loss computed directly from its output."""
        if self.own_loss is not None:
            return self
        form = self.scores, self.link, self.log_output, self.paired, self.link_unproven
        if form == (self.output, None, False, False, False):
            return self
        return replace(self, **vars(OutputForm(self.output, self.output, None)))

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> TrainableModel:
        """Return the model with the axes after the batch axis fixed to ``shapes``, by input name."""
        if self.is_whole or all(spec.shape[1:] == shapes[spec.name] for spec in self.inputs):
            return self
        model = self.model.clone()
        for value in model.graph.inputs:
            value.shape = ir.Shape([self.batch or ir.SymbolicDim("N"), *shapes[value.name or ""]])
        inputs = tuple(replace(spec, shape=(None, *shapes[spec.name])) for spec in self.inputs)
        return replace(self, model=infer_anew(model), inputs=inputs)

    def _value(self, name: str) -> ir.Value:
        return next(v for v in self.model.graph.outputs if v.name == name)

    def __getstate__(self) -> dict[str, Any]:
        # running_statistics is a cache, and the reference is used only before training
        state = {name: value for name, value in vars(self).items() if name != "running_statistics"}
        proto = require_whole(ir.to_proto(self.model), "A pickle")
        return {**state, "model": proto.SerializeToString(), "reference": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        model = readable(onnx.load_model_from_string(cast("bytes", state["model"])))
        self.__dict__.update(state, model=model)


def with_outputs_of(graph: TrainableModel, views: Sequence[TrainableModel]) -> TrainableModel:
    """Return ``graph`` with the scores and activation of each trained output taken from its model in ``views``."""
    names = [field.name for field in fields(OutputForm)]
    forms = [OutputForm(*(getattr(view, name) for name in names)) for view in views]
    return replace(graph, forms=tuple(forms), **vars(forms[0]))


def with_scores_from_output(
    graph: TrainableModel, link: str, *, log: bool = False, link_unproven: bool = False
) -> TrainableModel:
    """Return the model with scores computed from the output, by the inverse of ``link``.

    With ``log``, the output is the logarithm of ``link(scores)``. ``link_unproven`` is an attribute of the result.
    """
    model = graph.model.clone()
    ir_graph = model.graph
    output = next(v for v in model.graph.outputs if v.name == graph.output)
    op = GraphBuilder(ir_graph, dtype=output.dtype or ir.DataType.FLOAT, prefix="scores", constant_nodes=True)
    scores = scores_of(op, output, link, log=log)
    ir_graph.outputs.append(scores)
    found = replace(graph.ignoring_activation(), model=infer_shapes(model), scores=scores.name or "", link=link)
    return replace(found, log_output=log, link_unproven=link_unproven)


@refusing("The graph cannot be prepared for training")
def trainable_model(
    source: ir.Model,
    output: str | None = None,
    *,
    pairs: str | None = None,
    class_output: str | None = None,
    foreign: bool = False,
    several: Sequence[str] = (),
    whole: bool = False,
    losses: str | None = None,
    batch: int | None = None,
) -> TrainableModel:
    """Prune ``source`` to the trained output, or to ``several``, and find its parameters.

    Parameters
    ----------
    source : onnx_ir.Model
        It is not changed.
    output : str, optional
        The trained output; by default the first float output that depends on a parameter.
    pairs : str, optional
        The output with one-vs-one scores of pairs of classes, if the trained output is a decision function of them.
    class_output : str, optional
        The output with the index of the predicted class, if the graph chooses it.
    foreign : bool, default=False
        Whether the graph is a user's file, in which ``roles`` decides which constants are weights. In graphs of this
        package, all float initializers are weights, except settings of operators.
    several : sequence of str, optional
        The trained outputs, instead of ``output``.
    whole : bool, default=False
        Whether the data are one thing, so that inputs have no axis of rows.
    losses : str, optional
        The output with the losses of the rows, if the graph computes its loss itself.
    batch : int, optional
        The only number of rows on which the graph runs; None: its batch axis is freed.
    """
    # A copy with a free batch axis, whose weights are initializers of the main graph.
    model = source.clone()
    record(model, *restored(source))
    if not whole and batch is None:
        free_batch_axis(model)
    graph, initializers = model.graph, listing(model.graph)
    if foreign:
        model.graph.meta[EXPORTER] = model.producer_name  # Roles judges names by the exporter that gave them
        run_importers(model, RESTORATIONS)
        store_weights(model.graph)

    # Find the trained outputs, their final activations and the scores before these; prune the rest of the graph.
    find = _foreign_parameters if foreign else parameters_of
    named = {v.name: v for v in graph.outputs}
    wanted: Sequence[str | None] = several or [output]
    finals = [_trained_output(graph, name, find) for name in wanted]
    every, forms = list[ir.Value](), list[OutputForm]()
    for final in finals:
        name = final.name or ""
        activation = None if pairs or losses else activation_of(final)
        if activation is not None and foreign:
            # If weights lie between scores and output, training changes the function between them.
            weights = _foreign_parameters(graph, final)
            activation = activation if set(weights) <= {*_foreign_parameters(graph, activation.base)} else None
        if pairs is not None:
            every.append(named[pairs])
            forms.append(OutputForm(name, pairs, "votes"))
        elif losses is not None:
            every.append(named[losses])
            forms.append(OutputForm(name, losses, None))
        elif activation is None:
            every.append(final)
            forms.append(OutputForm(name, name, None))
        else:
            every.append(activation.scores(graph, final))
            link, log = activation.link, activation.log
            forms.append(OutputForm(name, every[-1].name or "", link, log, activation.paired))
    kept = dict.fromkeys([*every, *finals] if class_output is None else [*every, *finals, named[class_output]])
    keep_outputs(model, list(kept), inputs=True)
    if not graph.inputs:
        raise ModelError(
            f"Output {finals[0].name!r} depends on no input of the graph: there are no data to train it on."
        )

    # Parameters. First separate statistics from equal weights with which an exporter merged them, so that the weights
    # can be trained.
    separate_running_statistics(graph)
    separate_stored_statistics(graph)
    judged = verdicts(graph, *every) if foreign else {}
    renamed = own_names(graph, _names_of_weights(graph, judged)) if foreign else {}  # restore PyTorch's names
    judged = {renamed.get(name, name): verdict for name, verdict in judged.items()}
    parameters = _names_of_weights(graph, judged) if foreign else parameters_of(graph, every[0])
    if not parameters:
        raise ModelError(
            f"Output {every[0].name!r} depends on no float parameter. Initializers of the graph: {initializers}. "
            f"Weights must be float32 or float64 initializers of the main graph."
        )
    return TrainableModel(
        model=model,
        inputs=tuple(spec_of(v, by_row=not whole) for v in graph.inputs),
        batch=batch,
        **vars(forms[0]),
        forms=tuple(forms) if several else (),
        parameters=tuple(parameters),
        statistics=tuple(statistics_of(graph)),
        dtype=common_dtype(graph, parameters),
        class_output=class_output,
        roles={name: verdict.reason for name, verdict in judged.items() if name in parameters},
        constants={name: verdict.reason for name, verdict in judged.items() if name not in parameters},
        quantized=tuple(dict.fromkeys(n for v in every for n in quantized_nodes(graph, v))) if foreign else (),
        narrow=tuple(dict.fromkeys(n for v in every for n in narrow_weights(graph, v))) if foreign else (),
        kept=kept_types(graph, finals[0]),
        restored=restored(model),
        doubtful=tuple(name for name, verdict in judged.items() if name in parameters and verdict.is_doubtful),
    )


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
        raise ModelError(f"{why_quantized(rounding)}.")
    raise ModelError(
        f"No float output of the graph depends on a float initializer, so there is no parameter to train. "
        f"Outputs: {kinds}; initializers: {listing(graph)}. Weights must be float32 or float64 initializers of the "
        f"main graph."
    )


def _foreign_parameters(graph: ir.Graph, scores: ir.Value) -> list[str]:
    return _names_of_weights(graph, verdicts(graph, scores))


def _names_of_weights(graph: ir.Graph, judged: Mapping[str, Verdict]) -> list[str]:
    return [name for name, verdict in judged.items() if verdict.is_weight and name in graph.initializers]


def spec_of(value: ir.Value, *, by_row: bool = True) -> TensorSpec:
    """Return name, type and shape of a graph input, whose first axis is the batch if ``by_row``."""
    if value.shape is not None and not len(value.shape) and value.dtype is not None:
        numpy_type = value.dtype.numpy()
        example = "True" if numpy_type == np.bool_ else "1"
        raise ModelError(
            f"Graph input {value.name!r} is a single {numpy_type}, the same for all rows, and every input must have a "
            f"row for each sample. Make it a constant: model=GraphModel(..., constant_inputs={{{value.name!r}: "
            f"{example}}}). The True of a Dropout is for training alone: predictions are without it."
        )
    if not isinstance(value.type, ir.TensorType) or value.dtype is None or value.shape is None:
        raise ModelError(f"Graph input {value.name!r} must be a tensor of a declared type and shape with a batch axis.")
    shape = tuple(d if isinstance(d, int) else None for d in value.shape)
    if by_row:
        return TensorSpec(value.name or "", value.dtype.numpy(), shape)
    axes = tuple(d.value if isinstance(d, ir.SymbolicDim) else None for d in value.shape)
    return TensorSpec(value.name or "", value.dtype.numpy(), shape, by_row, axes)


def why_quantized(nodes: Sequence[str]) -> str:
    """Return the start of an error message: why quantized nodes cannot be trained, and what to do."""
    if all("MatMulNBits" in name for name in nodes):
        return (
            f"The graph is quantized: {first_nodes(nodes)}. Matrices of few bits are not trained themselves. Set "
            f"adapters=LoRA(), which trains float factors beside them"
        )
    said = (
        f"The graph is quantized: {first_nodes(nodes)}. Rounding has no gradient. Supported, by a straight-through "
        f"estimate, are pairs of QuantizeLinear and DequantizeLinear with constant float32 scales, and the integer "
        f"products of quantize_dynamic, MatMulInteger and ConvInteger. Train the float model that the file was made "
        f"from and quantize the trained one again"
    )
    if any("LSTM" in name for name in nodes):
        return f"{said}, or quantize it without its LSTMs: quantize_dynamic(..., op_types_to_quantize=['MatMul'])"
    if any("QLinear" in name for name in nodes):
        return f"{said}, or quantize it in pairs: quantize_static(..., quant_format=QuantFormat.QDQ)"
    return said


def first_nodes(nodes: Sequence[str]) -> str:
    """Return a list of the first names in ``nodes`` for a message."""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(nodes[:3]) + more
