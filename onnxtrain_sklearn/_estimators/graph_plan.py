"""Find or build the graph to train: given (also at its fixed batch), converted, a builder's, or an earlier call's.

:func:`graph_plan` returns a :class:`GraphPlan`. If the graph is ``known`` before the data, its inputs determine how X
is read. After the data are read, ``complete`` returns the graph for them: a builder builds it, or a new head is sized
to the targets.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import scipy.sparse as sp
from sklearn.base import clone, is_classifier

from .._data.lists_of_examples import first_example, ranks_of
from .._data.target_scale import TargetScale, target_scale
from .._fitted.fitted_model import FittedModel, holds_text, is_estimator
from .._importers.load import LABELS, given_graph, load
from .._ir.files import without_program
from .._ir.limits import current_limits, require_within_limits
from .._ir.opsets import readable
from .._ir.protobuf import erase_initializers
from .._ir.queries import reads
from .._ir.shapes import infer_declared, infer_shapes
from .._model.fixed_batch import own_batch
from .._model.given_inputs import bind_constants, move_rows_first
from .._model.heads import SAME_TYPES, graph_of_features, join_outputs, types_of_head, with_head
from .._model.links import TargetScaling
from .._model.modes import in_training_mode
from .._model.own_loss import with_own_loss
from .._model.packed_examples import packed
from .._model.trainable import TrainableModel, trainable_model
from .._model.weights import initial_value, template_of
from .._ort import devices
from .._pretrained.comparison import as_columns, require_independent_features, run_graph
from .._pretrained.ml_files import FittedFile, is_fitted_graph, is_text_network
from .._utils.cache import Cache, content, is_plain
from .._utils.errors import ignores_float_errors, refusing
from .._utils.typing import MatrixLike
from ..exceptions import InvalidParameterError, ModelError, instead_of, nearest
from ..finetuning import FineTuner
from ..graph import GraphBuilder, operators_of
from ..losses import LOSSES, LossBlock, resolve_loss
from ..models import MLP, MODELS, Builder, GraphModel, RealMLP, keywords_of, resolve_builder
from ..models.base import BY_CHANNEL, BY_COLUMN, Draft, makes_drafts
from ..models.given import resolve_graph_model
from ..models.layers import signs_of_columns
from .call import Call, EncodedData, Split
from .config import TrainingConfig, require_own_kind
from .examples import graph_inputs, scaled
from .fitted_state import FittedState
from .outputs import is_own_loss, scores_for
from .parameters import Parameters

LONGEST_NAME = 40
"""Largest length of a string that may be a misspelled builder name; longer strings are paths."""


def trainable_graph_of(
    given: GraphModel,
    *,
    has_text: bool = False,
    joined: bool = False,
    several: Sequence[str] = (),
    whole_data: bool = False,
    own_loss: str | None = None,
    example: object = None,
) -> tuple[TrainableModel, FittedModel | None]:
    """Return the trainable form of the user's model, and the description of a fitted model (None for others).

    ``has_text`` says whether the data have columns that are not numeric, ``joined`` whether the loss is computed on the
    concatenation of all outputs of the graph; ``several`` names the outputs that are trained together. With
    ``whole_data``, the data of a network are one thing: see :mod:`.._model.whole_data`. ``own_loss`` is the loss of the
    estimator if the graph is to compute it. ``example`` is the first of X if X is a list of examples of different
    sizes: see :mod:`.._model.packed_examples`.
    """
    model = without_program(given.graph)
    output = given.output
    whole_data = whole_data or example is not None
    if is_estimator(model):
        if output is not None:
            raise ValueError(f"output={output!r} names an output of an ONNX graph; model is a {type(model).__name__}.")
        from .._fitted.prepare import fitted_model  # needs skl2onnx and private names of scikit-learn

        return fitted_model(model, has_text=has_text)
    if not isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        raise TypeError(
            f"model must be an onnx.ModelProto, its bytes, the path of an ONNX file, a fitted scikit-learn model, a "
            f"graph builder such as MLP(), its name, or None, {instead_of(model)}."
        )
    if isinstance(model, str) and len(model) <= LONGEST_NAME and model.isidentifier() and not os.path.exists(model):
        raise InvalidParameterError(
            f"Unknown model {model!r}.{nearest(model, MODELS)} Other strings are paths of ONNX files, and there is no "
            f"file {model!r}."
        )
    whole, layout = graph_by_rows(given, whole_data=whole_data)
    whole = in_training_mode(whole) if given.training_mode else whole
    if own_loss is not None:
        if example is not None:
            raise ModelError(
                f"loss={own_loss!r} takes targets as inputs of the graph, with a row for each sample, and X is a list "
                f"of examples of different sizes: let the graph give scores, and set another loss."
            )
        if whole.meta[LABELS] or is_fitted_graph(whole, output):
            raise ModelError(
                f"loss={own_loss!r} is for networks, and this graph is that of a fitted model (ai.onnx.ml)."
            )
        whole, output, rows, own = with_own_loss(whole, own_loss, output, LOSSES)
        found = trainable_model(whole, output, foreign=True, losses=rows)
        return replace(found, reference=whole, layout=layout, own_loss=own), None
    # A text network whose outputs are joined, or of which several are trained, is read like any other graph;
    # ``input_columns`` then refuses its text input.
    refuses_text = is_text_network(whole, output) and (joined or bool(several))
    if (labels := whole.meta[LABELS]) or (is_fitted_graph(whole, output) and not refuses_text):
        if several:
            raise ModelError(
                f"The graph is that of a fitted model (ai.onnx.ml), which is trained on one output, not on "
                f"{list(several)}: take OrtGradientClassifier or OrtGradientRegressor."
            )
        if given.constant_inputs or given.batch_axis:
            name = "constant_inputs" if given.constant_inputs else "batch_axis"
            raise ModelError(
                f"{name} is for networks, and this graph is that of a fitted model (ai.onnx.ml): leave it."
            )
        from .._pretrained.ml_conversion import fitted_file  # needs much of scikit-learn

        with refusing("The graph cannot be prepared for training"):
            return fitted_file(whole, output, labels)
    whole, widths = join_outputs(whole) if joined and output is None else (whole, ())
    found = trainable_model(whole, output, foreign=True, several=several, whole=whole_data)
    if example is not None:
        found = packed(found, ranks_of(example, [spec.name for spec in found.inputs]))
    return replace(found, reference=whole, joined=widths, layout=layout), None


def graph_by_rows(given: GraphModel, *, whole_data: bool = False) -> tuple[ir.Model, dict[str, int]]:
    """Return the graph of a file, changed so that the rows are on the first axis of every input and output.

    Also return the axis of the rows in the file by the name of an input or output, for those that were changed.
    """
    whole = given_graph(cast("bytes", given.graph))
    bind_constants(whole, given.constant_inputs or {}, given.batch_axis, whole=whole_data)
    return whole, move_rows_first(whole, given.batch_axis)


class GraphPlan:
    """A plan for the graph that an estimator trains. In this base class, the graph is known before the data.

    Attributes
    ----------
    known : TrainableModel or None
        The graph; with a new head, the part of the graph upstream of it. None if a builder builds the graph.
    fitted : FittedModel or None
        The fitted scikit-learn model that is trained; None without one, or if it gets a new head.
    transforming_model : FittedModel or None
        The fitted model that the transformers of the graph come from: ``fitted``, or the model that gets a new head.
    head_names : tuple of str
        The names of the weights of a new head; empty without one.
    target_scale : TargetScale or None
        The scale of the targets; a builder's graph learns scaled targets.
    """

    def __init__(
        self, known: TrainableModel | None, fitted: FittedModel | None = None, scale: TargetScale | None = None
    ) -> None:
        self.known, self.fitted, self.transforming_model = known, fitted, fitted
        self.head_names: tuple[str, ...] = ()
        self.target_scale = scale

    def complete(
        self, config: TrainingConfig, call: Call, examples: EncodedData, split: Split, rng: np.random.RandomState
    ) -> tuple[TrainableModel, EncodedData]:
        """Return the graph for the data, and the examples with X as its inputs."""
        assert self.known is not None
        return self.known, examples

    def at_own_batch(self) -> GraphPlan | None:
        """Return a plan that calls a given graph at the fixed batch of its file; None if it has none.

        It is the fallback for graphs whose batch axis cannot be freed.
        """
        known = self.known
        whole = None if known is None else known.reference
        if known is None or whole is None or known.own_loss is not None or self.fitted is not None:
            return None
        batch = own_batch(whole)
        several = [form.output for form in known.forms]
        if batch is None:
            return None
        found = trainable_model(whole, known.output, foreign=True, several=several, batch=batch)
        return GraphPlan(replace(found, reference=whole, joined=known.joined, layout=known.layout))


def graph_plan(estimator: Parameters, resumed: FittedState | None, X: MatrixLike) -> GraphPlan:
    """Return the plan for the graph of an estimator with one output: of an earlier call, of the user, or to build."""
    if resumed is not None:
        if resumed.began is not None:
            resumed.began.require_same(estimator)
        return GraphPlan(resumed.with_activation, resumed.fitted, resumed.decoding.target_scale)
    if resolve_builder(estimator.model) is not None:
        return BuiltGraph(estimator)
    given = resolve_graph_model(estimator.model)
    tuner = estimator.finetune
    example: Any = first_example(X)
    if isinstance(tuner, FineTuner):
        tuner.validate()
        if example is not None:
            raise ValueError(
                "finetune takes rows of one size, and X is a list of examples of different sizes: set finetune=None."
            )
        if estimator.batch_size is None:
            raise ValueError(
                "finetune takes rows of X, and with batch_size=None a given graph takes all data at once: set "
                "finetune=None, or batch_size to a number."
            )
        if tuner.new_head:
            return GraphWithNewHead(given, estimator.loss)
    if is_estimator(given.graph):
        require_own_kind(estimator)
    joined = isinstance(estimator.loss, LossBlock)
    own_loss = estimator.loss if isinstance(estimator.loss, str) and is_own_loss(estimator.loss) else None
    whole_data = estimator.batch_size is None
    found, fitted = trainable_graph_of(
        given,
        has_text=holds_text(X),
        joined=joined,
        whole_data=whole_data,
        own_loss=own_loss,
        example=None if is_estimator(given.graph) else example,
    )
    if isinstance(fitted, FittedFile):
        fitted = fitted.for_task(classifies=is_classifier(estimator))
    if is_estimator(given.graph) and getattr(estimator, "class_weight", {}) is None:
        from .._fitted.objective import warn_of_lost_class_weights  # imports a third of scikit-learn

        warn_of_lost_class_weights(given.graph)
    return GraphPlan(found, fitted)


class GraphWithNewHead(GraphPlan):
    """A given model whose head is replaced by one for other classes or targets; the part upstream of it is kept."""

    def __init__(self, given: GraphModel, loss: Any) -> None:
        model, output, self._loss = given.graph, given.output, loss
        whole, layout = (None, {}) if is_estimator(model) else graph_by_rows(given)
        self._layout = {
            name: axis for name, axis in layout.items() if whole and name in {v.name for v in whole.graph.inputs}
        }
        self._types = SAME_TYPES  # element types of the replaced head: of its weights, and of its output
        if whole is not None and not (whole.meta[LABELS] or is_fitted_graph(whole, output)):
            whole = infer_shapes(whole.clone())  # the final activation is recognized by the axes that it normalizes
            body, features = graph_of_features(whole, output)
            super().__init__(replace(trainable_model(body, features, foreign=True), reference=None))
            self._types = types_of_head(whole, output)
            return
        graph, fitted = trainable_graph_of(GraphModel(model))
        if fitted is not None and fitted.table is not None:
            raise ModelError(
                f"new_head=True needs a model that takes numbers, and {type(model).__name__} encodes text. Convert the "
                f"table with its transformers first, and give only the model that reads their output."
            )
        final = next(v for v in graph.model.graph.outputs if v.name == graph.scores)
        body, features = graph_of_features(graph.model, output, final)
        super().__init__(trainable_model(body, features))
        self.transforming_model = fitted

    def complete(
        self, config: TrainingConfig, call: Call, examples: EncodedData, split: Split, rng: np.random.RandomState
    ) -> tuple[TrainableModel, EncodedData]:
        """Return the graph with a head for the targets."""
        body = self.known
        assert body is not None
        rows = np.array([0, len(examples) - 1, 0])
        found = run_graph(body.model, examples.columns, rows, devices.resolve_device())
        require_independent_features(body.model, body.output, body.parameters)
        width = as_columns(found, body.output).shape[1]
        n_scores = scores_for(resolve_loss(self._loss), examples.targets)
        whole, self.head_names = with_head(body.model, body.output, width, n_scores, self._types)
        return replace(trainable_model(whole, foreign=self.transforming_model is None), layout=self._layout), examples


NEEDS_ROWS = {"X", "y", "sample_weight"}
"""The keywords of a builder that depend on the split into training and validation rows."""


class BuiltGraph(GraphPlan):
    """A graph that a builder builds for the data.

    The data are read before the graph exists, as float32 in their own shape. They are read again if the built graph
    takes another type, or rows of another shape.
    """

    def __init__(self, estimator: Parameters) -> None:
        super().__init__(None)
        self._estimator = estimator

    def complete(
        self, config: TrainingConfig, call: Call, examples: EncodedData, split: Split, rng: np.random.RandomState
    ) -> tuple[TrainableModel, EncodedData]:
        """Return the graph for the data, and the examples with X as its input."""
        builder, estimator, targets = config.builder, self._estimator, examples.targets
        start = None
        if getattr(estimator, "target_scaling", None) is not None and getattr(builder, "scales_targets", False):
            loss = resolve_loss(estimator.loss)
            loss.check_targets(targets.content)
            rows = split.of(examples)[0]
            centered = getattr(builder, "fit_intercept", True)
            method = loss.target_scaling if targets.declared is None else None

            def measured(method: TargetScaling | None) -> TargetScale | None:
                if call.stream is not None:
                    merged: TargetScale | None = call.stream.scale(method, centered=centered)
                    return merged
                return target_scale(method, targets, rows, examples.weights, centered=centered)

            self.target_scale = measured(method)
            if loss.starts_at_mean and targets.declared is None and is_plain(builder):
                start = measured("mean")
        builder = _with_signs_of_columns(builder, estimator, examples)
        training_rows = None if NEEDS_ROWS.isdisjoint(keywords_of(builder)) else split.of(examples)[0]
        # If the builder asks for it (``scales_rows``), two nodes at the front of the graph scale X (``scale_rows``),
        # except in three cases:
        # - The targets of a regressor are not scaled.
        # - The builder is the user's: its weights may suit the rows as they are.
        # - A linear model has a penalty, whose meaning depends on the units.
        kind = getattr(builder, "scales_rows", None)
        in_units = targets.task == "regression" and self.target_scale is None and start is None
        linear = kind != BY_CHANNEL and not np.size(getattr(builder, "hidden_layer_sizes", ()))
        unscaled = kind is None or in_units or not is_plain(builder) or (config.alpha and linear)
        scale = None if unscaled else scale_for(builder, examples, split.of(examples)[0])
        n_scores = scores_for(resolve_loss(estimator.loss), targets)
        graph = built_graph(builder, scaled(examples, self.target_scale), n_scores, training_rows, rng, scale)
        if start is not None:
            graph = _with_first_scores(graph, np.log(start.scale))
        (column,) = examples.columns.values()
        if column.matches(graph.inputs[0]):
            return graph, replace(examples, columns={graph.inputs[0].name: column})
        return graph, replace(examples, columns=graph_inputs(estimator, call.X, graph.inputs, None, reset=False))


def _with_first_scores(graph: TrainableModel, start: np.ndarray) -> TrainableModel:
    """Return a new network that predicts more by ``start`` in its first scores: in the bias of its last layer."""
    nodes = reversed(list(template_of(graph.model).graph))
    bias = next(n for node in nodes for n in (x.name for x in reads(node)) if n and n.rpartition(".")[2] == "bias")
    values = np.array(initial_value(graph.model, bias))
    values[..., : len(start)] += start
    return graph.with_weights({bias: values})


def _with_signs_of_columns(builder: Builder, estimator: Any, examples: EncodedData) -> Builder:
    """Return a builder whose ``monotonic_cst`` has a sign for each column; raise ValueError for unsuitable targets."""
    if not isinstance(builder, MLP | RealMLP) or builder.monotonic_cst is None:
        return builder
    targets = examples.targets
    (column,) = examples.columns.values()
    n_features = math.prod(column.shape[1:])
    loss = resolve_loss(estimator.loss)
    if targets.declared is not None or loss.n_scores(targets.task, targets.n_scores) != targets.n_scores:
        raise ValueError(f"monotonic_cst is for losses of one score a target, got loss={estimator.loss!r}.")
    if targets.task not in ("regression", "binary", "multilabel"):
        raise ValueError(
            "monotonic_cst is for numbers, two classes, or several labels that are 0 or 1: of more classes, the "
            "probability of one cannot rise in a column unless those of others fall."
        )
    signs = signs_of_columns(builder.monotonic_cst, n_features, getattr(estimator, "feature_names_in_", None))
    return clone(builder).set_params(monotonic_cst=signs.astype(int).tolist())


def built_graph(
    builder: Builder,
    examples: EncodedData,
    n_scores: int,
    training_rows: np.ndarray | None,
    rng: np.random.RandomState,
    scale: InputScale | None = None,
) -> TrainableModel:
    """Return the trainable form of the graph that a builder builds for the training rows; None takes all rows.

    ``scale`` is built into the graph. It is None for the user's own builders.
    """
    (column,) = examples.columns.values()
    n_features = math.prod(column.shape[1:])
    rows = np.arange(len(examples)) if training_rows is None else np.sort(training_rows)
    targets, weights = examples.targets, examples.weights
    makers: dict[str, Callable[[], object]] = {
        "row_shape": lambda: column.shape[1:],
        "X": lambda: column.read_only(rows),
        "y": lambda: targets.take(rows).content,
        "sample_weight": lambda: None if weights is None else weights[rows],
    }
    keywords = {name: makers[name]() for name in keywords_of(builder)}  # only keywords that the builder takes
    if is_plain(builder) and makes_drafts(builder):
        draft = builder.draft(n_features, n_scores, rng, **keywords)
        numbers = None if scale is None else (scale.center.tobytes(), scale.divisor.tobytes())
        key = content(builder), n_features, n_scores, draft.form, numbers, current_limits()
        graph = _drafted_graphs.get(key, lambda: _drafted_graph(builder, draft, scale)).with_weights(draft.weights)
    else:
        with operators_of(f"{type(builder).__name__}.build"):
            built = builder.build(n_features, n_scores, rng, **keywords)
        whole = load(built)
        scale_rows(whole, scale)
        graph = replace(_graph_built_by(builder, whole), reference=whole)

    # The graph must accept the rows.
    name = f"{type(builder).__name__}.build"
    row = column.shape[1:]
    if len(graph.inputs) != 1:
        raise ModelError(f"{name} made a graph with {len(graph.inputs)} inputs, not 1.")
    spec = graph.inputs[0]
    if len(spec.shape) <= len(row):
        shape = ", ".join(["'N'", *map(str, row)])
        raise ModelError(
            f"{name} made a graph whose input {spec.name!r} has {len(spec.shape)} axes, but X has {len(row) + 1}. Give "
            f"the input the shape ({shape}), and flatten the rows inside the graph."
        )
    return graph


_drafted_graphs: Cache[TrainableModel] = Cache(64, 2**25, lambda graph: sum(a.nbytes for a in graph.weights().values()))


def _drafted_graph(builder: Builder, draft: Draft, scale: InputScale | None) -> TrainableModel:
    """Return the graph of a draft with zeros as weights, to be cached; each fit sets its own weights."""
    proto = draft.graph()
    erase_initializers(proto, draft.weights)
    # A draft needs no repairs, unlike a file: it has no functions, no fused operators and no wrong type declarations.
    require_within_limits(proto)
    with refusing("The graph that the builder builds is not valid"):
        whole = infer_declared(readable(proto))
    scale_rows(whole, scale)
    graph = _graph_built_by(builder, whole)
    return graph.with_weights(graph.weights())  # copy weights of an external file into memory


def _graph_built_by(builder: Builder, whole: ir.Model) -> TrainableModel:
    members = getattr(builder, "n_members", None)
    # check it here, because a user's builder may not
    if members is not None and not (isinstance(members, int | np.integer) and members >= 1):
        raise ValueError(f"n_members of {type(builder).__name__} must be an int, at least 1, or None, got {members!r}.")
    graph = replace(trainable_model(whole), members=None if members is None else int(members))
    if graph.members is not None and graph.link is not None:
        raise ModelError(
            f"The graph ends in the function {graph.link!r}. If a builder has n_members, its graph must return the "
            f"scores of the members; the function that the loss needs is added to them."
        )
    return graph


# Scale columns of large numbers: the graph subtracts a center and divides by a power of two.
#
# With initial weights, outputs are about as large as inputs, so one column of large numbers dominates. Center and
# divisor are constants of the graph, not weights, so the exported file takes the columns in their own units. The
# divisor is a power of two and the center a multiple of it: similar data then give equal constants, and reuse compiled
# graphs.


LEAST_SIZE = 2.0
"""Columns of at least this root mean square are scaled; standardized columns, of about one, stay as they are."""

CLEARLY_SMALL = 0.9 * LEAST_SIZE**2
"""A float32 mean square below this limit is certainly below LEAST_SIZE**2, in spite of its rounding."""

LOOKED_AT_ROWS = 10_000
LOOKED_AT_NUMBERS = 2**23
LEAST_ROWS = 100
"""Limits of the sample on which the size of the columns is measured: rows at most, numbers at most, rows at least.

At least LEAST_ROWS rows are read (all, if there are fewer), even if they hold more than LOOKED_AT_NUMBERS numbers.
"""

_NUMBERS_AT_ONCE = 2**17
"""Most numbers that are read at once, because rows may be images that are mapped from a file."""

_LARGEST_EXPONENT = 120
"""The largest exponent of a divisor; its reciprocal 2**-e must be a normal number in float32."""


@dataclass(frozen=True, eq=False)
class InputScale:
    """Center and divisor of rows: ``(row - center) / divisor``, both float32 and with the axes of a row."""

    center: np.ndarray
    divisor: np.ndarray


def scale_for(builder: Builder, examples: EncodedData, training_rows: np.ndarray) -> InputScale | None:
    """Return the scale that the graph of a builder applies to X; None if no column of the training rows is large."""
    # Sample rows that are evenly spaced and in order, because they may be read from a file.
    (column,) = examples.columns.values()
    kind = getattr(builder, "scales_rows", None)
    row_shape = column.shape[1:]
    n_numbers = math.prod(column.shape[1:])
    most = min(LOOKED_AT_ROWS, max(LEAST_ROWS, LOOKED_AT_NUMBERS // n_numbers))
    training_rows = np.sort(training_rows)
    chosen = training_rows[:: max(1, -(-len(training_rows) // most))]
    weights = np.ones(len(chosen)) if examples.weights is None else examples.weights[chosen].astype(np.float64)
    if not column.is_sparse and len(chosen) * n_numbers <= _NUMBERS_AT_ONCE:
        numbers = np.asarray(column.read_only(chosen)).reshape(-1, n_numbers)
        if _are_small(numbers, weights):
            return None

    # Mean, deviation and root mean square of each column, or of each channel of images. Add up differences from the
    # first row, because in the squares of numbers far from 0 the spread would be rounded away.
    every_axis = tuple(range(len(row_shape)))
    axes = () if kind == BY_COLUMN else every_axis[1:] if len(every_axis) == 3 else every_axis
    origin: Any = 0.0
    if not column.is_sparse and len(chosen):
        first_row = np.asarray(column.read_only(chosen[:1]), np.float64)[0]
        origin = first_row.mean(axis=axes, keepdims=True)
    sums = np.zeros((2, *row_shape))
    for piece in np.array_split(np.arange(len(chosen)), max(1, len(chosen) * n_numbers // _NUMBERS_AT_ONCE)):
        rows: Any = column.read_only(chosen[piece])
        own, are_sparse = weights[piece], sp.issparse(rows)
        if are_sparse:
            rows = rows.astype(np.float64)
            sums += np.stack([np.ravel(own @ rows), np.ravel(own @ rows.multiply(rows))])
        else:
            rows = np.asarray(rows, np.float64) - origin
            sums += np.stack([np.tensordot(own, rows, 1), np.tensordot(own, rows * rows, 1)])
    first, second = (sums / weights.sum()).mean(axis=tuple(axis + 1 for axis in axes), keepdims=True)
    variance = np.maximum(second - first**2, 0.0)
    mean = origin + first
    deviation, size = np.sqrt(variance), np.sqrt(variance + mean**2)

    # The divisor of a large column is its root mean square or, if it is centered, its deviation, at least 1. A constant
    # column, of deviation 0, is divided by its root mean square.
    large = (size >= LEAST_SIZE) & np.isfinite(size)
    if not large.any():
        return None
    centered = bool(getattr(builder, "fit_intercept", True)) and not column.is_sparse
    around = np.where(deviation > 0, np.maximum(deviation, 1.0), size)
    sizes = np.where(large, around if centered else size, 1.0)
    divisor = np.ldexp(1.0, np.minimum(np.frexp(sizes)[1] - 1, _LARGEST_EXPONENT))
    center = np.where(large & centered, np.round(mean / divisor) * divisor, 0.0)
    return InputScale(center.astype(np.float32), divisor.astype(np.float32))


@ignores_float_errors
def _are_small(rows: np.ndarray, weights: np.ndarray) -> bool:
    """Return True if no column is large, by a quick float32 test: all mean squares are clearly below the limit."""
    mean_squares = weights.astype(rows.dtype) @ (rows * rows) / weights.sum()
    return bool((mean_squares < CLEARLY_SMALL).all())


def scale_rows(model: ir.Model, scale: InputScale | None) -> None:
    """Insert the nodes that scale X at the front of ``model``, in place; None inserts nothing."""
    if scale is None:
        return
    (rows,) = model.graph.inputs
    uses = list(rows.uses())
    op = GraphBuilder(model.graph, prefix="scaled", constant_nodes=True)
    scaled = op.Sub(rows, scale.center[np.newaxis]) if scale.center.any() else rows
    scaled = op.Mul(scaled, 1 / scale.divisor[np.newaxis]) if (scale.divisor != 1).any() else scaled
    for node, index in uses:
        node.replace_input_with(index, scaled)
    model.graph.sort()
