"""Prepare the training of several outputs: parameters by output, examples, decodings, validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from .._data.columns import require_in_memory, warn_of_rounding
from .._data.held_out import naming_validation_data, require_scorable
from .._data.inputs import Inputs, frame_arrays, is_frame
from .._data.lists_of_examples import first_example, require_targets_of_one_shape
from .._data.targets import (
    IGNORED,
    Classes,
    SeveralTargets,
    Targets,
    checked_label_weights,
    checked_weights,
    joined_targets,
    require_same_places,
    rows_without_target,
    spread,
    weighs_labels,
)
from .._estimators.base import BaseOrtGradient
from .._estimators.call import Call, EncodedData, FitContext
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.config import check_estimator_parameters
from .._estimators.examples import graph_inputs, require_rows_of_output
from .._estimators.files import exported_class_weights, settings_of_step
from .._estimators.fit import Preparation
from .._estimators.fitted_state import Columns, FittedState
from .._estimators.graph_plan import GraphPlan, trainable_graph_of
from .._estimators.outputs import (
    DecodedGraph,
    DecodedOutput,
    OutputSpec,
    balanced_class_weights,
    choose_output,
    known_classes,
    require_known_labels,
    require_one_label,
    takes_positions,
    trained_positions,
    weighted_targets,
)
from .._estimators.parameters import CLASSIFIER, SHARED, Parameters
from .._estimators.regressor import OrtGradientRegressor
from .._estimators.scoring import (
    ScoredRows,
    first_outputs,
    require_no_scoring,
    rows_of,
    rows_to_score,
    score_by,
    scored_rows,
)
from .._estimators.streams import Stream
from .._export.exported import ExportedOutput
from .._fitted.fitted_model import is_estimator
from .._inference.graph import Decoding, inference_model
from .._inference.predictor import Predictor
from .._model.links import Task
from .._model.trainable import TrainableModel, with_outputs_of
from .._pretrained.comparison import require_same_outputs
from .._training.step_parts import OutputLoss, StepSettings, TotalLoss
from .._utils.params import Declaration, Instance, OneOf
from .._utils.typing import MatrixLike
from ..exceptions import InvalidParameterError, ModelError, nearest
from ..losses import Loss, resolve_loss
from ..losses.regression import reconstructs
from ..models import GraphModel, resolve_builder
from ..models.given import resolve_graph_model

_BY_OUTPUT = Instance(Mapping, "a dict by output")

_LEFT_OUT = ("finetune",)

OUTPUTS: Mapping[str, Declaration] = {
    **{name: declared for name, declared in SHARED.items() if name not in _LEFT_OUT},
    "model": Declaration("onnx.ModelProto, bytes, path, ONNXProgram or GraphModel", """
The graph to train, with the outputs that ``loss`` names. Its weights are float32 or float64; float16 and bfloat16 are
trained in float32 and exported in their own type. Training starts from the weights of the model, which itself does not
change. :meth:`describe` lists the weights. A final activation of an output is recognized: its loss is computed from the
scores before it. :class:`~onnxtrain_sklearn.GraphModel` adds settings for reading the graph; those that differ between
outputs are dicts by output.""",
        steers=False),
    "loss": Declaration("dict of str to str, Loss or block", """
The loss for each trained output, by the output's name: a name in :data:`onnxtrain_sklearn.losses.LOSSES` or an object.
An output with a loss for classification predicts labels, an output with a loss for regression predicts numbers. The
attribute ``tasks`` of your own loss says which kind it is. Outputs without a loss are neither trained nor
predicted.""",
        (Instance(Mapping, "a dict of losses by output"), None)),
    "loss_weights": Declaration("dict of str to float, or None", """
Factor of each loss in their sum, by output; 1 for an output that the dict does not name. None: 1 for all
outputs.""", (Instance(Mapping, "a dict of numbers by output"), None)),
    "ignore_label": Declaration("int, float, str, None or dict", """
Label to ignore, as in :class:`OrtGradientClassifier`: one for all outputs with labels, or a dict by output; -100 for an
output that the dict does not name.""", (*CLASSIFIER["ignore_label"].rules, _BY_OUTPUT)),
    "class_weight": Declaration('"balanced", None or dict', """
Weights of the classes, as in :class:`OrtGradientClassifier`: "balanced" for all outputs with labels, or a dict by
output; None for an output that the dict does not name.
"balanced" is not for ``partial_fit``.""", (OneOf(("balanced",)), _BY_OUTPUT, None)),
    "scoring": Declaration("callable or None", """
Score on the validation data, higher is better, in place of the mean of the scores of the outputs: a function
``(estimator, X, y) -> float``. It is called after each epoch with an estimator that predicts the validation data ``X``
with the weights of that epoch. It needs validation data: ``early_stopping=True``, or ``X_val`` and ``y_val``."""),
}  # fmt: skip
"""The parameters of :class:`OrtGradientMultiOutput`."""


# The functions called by ``prepare`` in `_estimators/fit.py` that differ for several outputs.


def several_outputs(output_specs: OutputSpecs, stream: Callable[..., Stream]) -> Preparation:
    """Return the functions with which ``prepare`` prepares the training of the outputs with these specifications."""
    return Preparation(
        graph_plan=lambda estimator, resumed, X: GraphPlan(_known_outputs(estimator, resumed, output_specs, X)),
        examples=lambda estimator, call, graph, fitted, resumed: several_examples(
            estimator, output_specs, call, graph, resumed
        ),
        decoding=partial(choose_decodings, output_specs),
        complete_state=partial(complete_state_of_outputs, output_specs),
        validation=partial(validation_of_outputs, output_specs),
        exported=partial(exported_outputs, output_specs),
        stream=lambda estimator: stream,
    )


def _known_outputs(
    estimator: Parameters, resumed: FittedState | None, output_specs: OutputSpecs, X: object
) -> TrainableModel:
    """Return the graph of an earlier call, or the given graph pruned to the outputs that have a loss."""
    names = tuple(output_specs)
    if resumed is not None:
        assert resumed.began is not None
        resumed.began.require_same(estimator)
        earlier = tuple(form.output for form in resumed.graph.forms)
        if earlier != names:
            raise ModelError(
                f"loss was changed from the outputs {list(earlier)} to {list(names)}, but warm_start and partial_fit "
                f"go on training those of the first call. Give a loss for each of them, in that order."
            )
        return resumed.with_activation
    given = resolve_graph_model(estimator.model)
    model = given.graph
    if is_estimator(model) or resolve_builder(model) is not None:
        what = "None" if model is None else repr(model) if isinstance(model, str) else type(model).__name__
        raise ValueError(
            f"model must be an ONNX graph with the outputs {list(names)}: a ModelProto, bytes, a path or an "
            f"ONNXProgram. Builders and fitted models have one output; got {what}."
        )
    whole_data = estimator.batch_size is None
    return trainable_graph_of(given, several=names, whole_data=whole_data, example=first_example(X))[0]


# Choose the decoding of each output as for a single output, then the settings of the joint step.


def choose_decodings(
    output_specs: OutputSpecs, context: FitContext, graph: TrainableModel, examples: EncodedData
) -> DecodedGraph:
    """Return the joint decoding of all outputs, with the values of each output of the given graph for some rows."""
    estimator, config, resumed, targets = context.estimator, context.config, context.resumed, examples.targets
    assert isinstance(targets, SeveralTargets)
    decodings = [None] * len(output_specs) if resumed is None else resumed.decoding.parts
    given = estimator.model if resumed is None else None
    weights, model = loss_weights(estimator), graph.model
    parts = list[DecodedOutput]()
    losses = list[OutputLoss]()
    for (name, output_spec), view, decoding, own in zip(
        output_specs.items(), graph.views, decodings, targets.parts, strict=True
    ):
        with naming(name):
            view = replace(view, model=model)
            loss = cast("Loss", output_spec.loss)
            columns, device = examples.columns, config.device
            part = choose_output(output_spec, loss, view, own, columns, device, given=given, earlier=decoding)
        if part.decoding.n_targets is not None:
            raise ValueError(
                f"Output {name!r}: loss={type(loss).__name__} takes another number of scores than of targets, which "
                f"OrtGradientClassifier and OrtGradientRegressor train, on one output."
            )
        parts.append(part)
        model = part.original.model  # choosing a decoding may add an inverse link to the graph
        positions = trained_positions(part.decoding, own)
        at_positions = () if positions is None else (positions.axes, positions.shape, positions.label_weights)
        more = part.decoding.task, part.decoding.link, part.decoding.n_scores, part.decoding.groups, weights[name]
        n_shares = 0 if own.label_shares is None else own.n_labels
        ignores = own.counts_in_part
        losses.append(OutputLoss(name, loss, *more, *at_positions, ignores=ignores, n_shares=n_shares))  # type: ignore[misc]
    whole = replace(graph, model=model)
    # The joint decoding describes the joint targets: a matrix of numbers, in which each output has its own columns.
    # A prediction of each output, without what its loss predicts besides.
    alone = tuple(replace(part.decoding, distribution=None) for part in parts)
    decoding = Decoding("regression", "identity", targets.n_scores, parts=alone)
    seed = int(context.rng.randint(2**31 - 1)) if resumed is None else resumed.seed
    settings = config.with_decoding(TotalLoss(tuple(losses), targets.has_factors), decoding, seed)
    return DecodedGraph(
        with_outputs_of(whole, [part.original for part in parts]),
        with_outputs_of(whole, [part.graph for part in parts]),
        decoding,
        settings,
        tuple(part.reference for part in parts),
    )


def complete_state_of_outputs(
    output_specs: OutputSpecs, context: FitContext, state: FittedState, chosen: DecodedGraph, examples: EncodedData
) -> list[np.ndarray]:
    """Check and complete a state: raise ModelError if an output predicts other values than the given graph.

    Return the scores of each output for the rows on which all outputs were run.
    """
    state.balanced_outputs = balanced_outputs(output_specs, context.call, examples)
    if context.call.stream is not None:
        state.balanced_outputs = context.call.stream.balanced_outputs([one.classes for one in state.decoding.parts])
    references, columns, scores = chosen.references, examples.columns, []
    # Outputs may have been run on different numbers of rows; compare the training graph on rows that all of them have.
    rows = min((one.rows for one in references if one is not None), key=len, default=np.empty(0, np.int64))
    for view, deployed, decoding, reference in zip(
        state.graph.views, state.deployed.views, state.decoding.parts, references, strict=True
    ):
        if reference is not None:
            inference = inference_model(deployed, state.weights(), decoding, with_scores=True, in_double=False)
            predictor = Predictor(
                inference, state.device, state.session_options, batch=state.graph.batch, whole=state.graph.is_whole
            )
            found = require_same_outputs(reference, view, decoding, predictor, columns, state.device)
            same = len(rows) == len(found)
            scores.append(found if same else predictor.run(columns, rows, output=-1))
    for decoding, (name, y) in zip(
        state.decoding.parts, by_output(context.call.y, output_specs, "y").items(), strict=True
    ):
        if decoding.task == "regression":
            warn_of_rounding(y, state.trained_form.dtype, f"y[{name!r}]")
    return scores


# The score of several outputs on validation data: the mean of their scores, or a function of the user.


def validation_of_outputs(
    output_specs: OutputSpecs, context: FitContext, state: FittedState, settings: StepSettings, examples: EncodedData
) -> tuple[ScoredRows | None, Callable[[], float] | None]:
    """Return the validation rows, and a function that scores the current parameters on them; None without such rows."""
    estimator = context.estimator
    call = context.call
    held_out = context.split.of(examples)[1]
    if call.validation is not None:
        data = call.validation[:2]
        with naming_validation_data():
            given = several_validation_examples(estimator, output_specs, state, *call.validation)
            training, validation = cast("SeveralTargets", examples.targets), cast("SeveralTargets", given.targets)
            for name, own, other in zip(output_specs, training.parts, validation.parts, strict=True):
                with naming(name):
                    require_same_places(own, other)
        scored = rows_to_score(state, given, np.arange(len(given)), lambda: data)
    elif held_out is not None:
        scored = scored_rows(state, examples, held_out, call)
    else:
        require_no_scoring(estimator, call)
        return None, None

    targets = cast("SeveralTargets", scored.targets)
    for name, part, weights in zip(output_specs, targets.parts, targets.weights, strict=True):
        with naming(name):
            if weights is not None and not weights.any():
                raise ValueError(
                    "The validation rows have no positive weight for this output, so that it has no score there."
                )
            require_scorable(part, weights)
    if estimator.scoring is not None:
        return scored, score_by(estimator, estimator.scoring, state, scored)
    predictor = state.live_predictor(scored.live)
    numbers = first_outputs(state.decoding, with_scores=False)
    each = list(zip(output_specs.values(), targets.parts, targets.weights, strict=True))

    def score() -> float:
        found = predictor.run_several(scored.live, numbers, scored.rows)
        if not all(own.dtype.kind != "f" or np.isfinite(own).all() for own in found):
            return math.nan
        return float(np.mean([one.score(p, true, w) for p, (one, true, w) in zip(found, each, strict=True)]))

    return scored, score


# Treat each output as a classifier or a regressor, which defines how targets are read and scored.


OF_GRAPH = ("output_kind", "class_axis")
OF_TARGETS = ("ignore_label", "class_weight")
"""Settings of a :class:`GraphModel` and parameters of the estimator that may be dicts by output."""

OF_LABELS = {"class_axis", *OF_TARGETS}
"""Those for outputs with labels alone."""


def output_specs_of(estimator: Any) -> dict[str, OutputSpec]:
    """Return the specification of each output that has a loss."""
    losses, found = _losses_by_output(estimator), {}
    for name, value in _settings_of(estimator).items():
        if isinstance(value, Mapping):
            _require_outputs(name, value, losses)
    for output, loss in losses.items():
        with naming(output):
            single = _single(estimator, output, loss)
            check_estimator_parameters(single)
            found[output] = single._output_spec()
            if found[output].declared is not None:
                raise ValueError(
                    f"loss={loss!r} takes targets of its own, which OrtGradientRegressor trains, on one output."
                )
            if reconstructs(loss):
                raise ValueError("loss='reconstruction' learns the rows of X alone, by OrtGradientRegressor.")
            if (kind := found[output].label_kind) != "labels":
                raise ValueError(
                    f"loss={loss!r} takes soft labels (targets={kind!r}), which OrtGradientClassifier trains, on one "
                    f"output. Give labels, and a loss of them."
                )
    return found


@contextmanager
def naming(output: str) -> Iterator[None]:
    """Prepend the name of an output to the messages of errors."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if type(error) not in (ValueError, TypeError, ModelError, InvalidParameterError):
            raise
        raise type(error)(f"Output {output!r}: {error}") from error


def loss_weights(estimator: Any) -> dict[str, float]:
    """Return the factor of each output's loss in the total loss."""
    losses = _losses_by_output(estimator)
    given = estimator.loss_weights or {}
    _require_outputs("loss_weights", given, losses)
    wrong = [w for w in given.values() if not isinstance(w, Real) or not 0 <= float(w) < math.inf]
    if wrong:
        raise ValueError(f"loss_weights must be finite numbers, not negative, got {wrong[0]!r}.")
    weights = {name: float(given.get(name, 1.0)) for name in losses}
    if not any(weights.values()):
        raise ValueError("loss_weights are all zero: nothing would be trained.")
    return weights


def _losses_by_output(estimator: Parameters) -> dict[str, Loss]:
    if not isinstance(estimator.loss, Mapping) or not estimator.loss:
        raise ValueError(
            f"loss must be a dict with a loss for each output of the graph that is trained, such as "
            f"{{'label': 'log_loss', 'size': 'squared_error'}}, got {estimator.loss!r}."
        )
    found = {}
    for name, loss in estimator.loss.items():
        with naming(name):
            found[name] = resolve_loss(loss)
    return found


def _require_outputs(what: str, given: Mapping[str, object], losses: Mapping[str, Loss]) -> None:
    if unknown := [name for name in given if name not in losses]:
        raise ValueError(f"{what} names {unknown[0]!r}, an output without a loss.{nearest(str(unknown[0]), losses)}")


def _single(estimator: Parameters, output: str, loss: Loss) -> BaseOrtGradient:
    """Return the classifier or regressor that defines the task of one output; the loss decides between them."""
    classifies = bool(loss.tasks - {"regression"})
    regresses = "regression" in loss.tasks
    if classifies and regresses:
        raise ValueError(
            f"{type(loss).__name__} is for regression and for classification. Say which it is here by its attribute "
            f"tasks: frozenset({{'regression'}}), or those of classification."
        )
    kind: Any = OrtGradientClassifier if classifies else OrtGradientRegressor
    found, model = {}, resolve_graph_model(estimator.model)
    for name, value in _settings_of(estimator).items():
        by_output = isinstance(value, Mapping)
        if by_output and output in value and name in OF_LABELS and not classifies:
            raise ValueError(f"{name} is for classification, and {type(loss).__name__} is a loss for regression.")
        if (classifies or name not in OF_LABELS) and (not by_output or output in value):
            found[name] = value[output] if by_output else value
    reading = {name: found.pop(name) for name in OF_GRAPH if name in found}
    given = GraphModel(model.graph, training_mode=model.training_mode, **reading)
    single: BaseOrtGradient = kind(given, loss=loss, **found)
    return single


def _settings_of(estimator: Any) -> dict[str, Any]:
    """Return the settings of an estimator that may be dicts by output."""
    model = resolve_graph_model(estimator.model)
    return {name: getattr(model if name in OF_GRAPH else estimator, name) for name in (*OF_GRAPH, *OF_TARGETS)}


def by_output(data: Any, outputs: Mapping[str, object], what: str) -> dict[str, Any]:
    """Return data as a dict by output, from a dict, :class:`Inputs`, or a data frame with the outputs' names."""
    require_in_memory(data, what)
    if is_frame(data):
        data = frame_arrays(data, list(outputs))
    data = data.arrays if isinstance(data, Inputs) else data
    if not isinstance(data, Mapping):
        raise TypeError(
            f"{what} must be a dict of arrays by output of the graph, Inputs(dict), which scikit-learn can split, or a "
            f"data frame whose columns are named after the outputs {list(outputs)}, got {type(data).__name__}."
        )
    if unknown := [name for name in data if name not in outputs]:
        raise ValueError(f"{what} names {unknown[0]!r}, an output without a loss.{nearest(str(unknown[0]), outputs)}")
    if missing := [name for name in outputs if name not in data]:
        raise ValueError(f"{what} lacks the output(s) {missing}; it must have all that have a loss: {list(outputs)}.")
    return dict(data)


def weights_by_output(sample_weight: Any, outputs: Mapping[str, object]) -> dict[str, Any]:
    """Return the row weights of each output, None for weights of one; a single array applies to all outputs."""
    require_in_memory(sample_weight, "sample_weight")
    if not isinstance(sample_weight, Mapping | Inputs) and not is_frame(sample_weight):
        return dict.fromkeys(outputs, sample_weight)
    given = sample_weight.arrays if isinstance(sample_weight, Inputs) else sample_weight
    if isinstance(given, Mapping):
        given = {**dict.fromkeys(outputs), **given}
    return by_output(given, outputs, "sample_weight")


# Training and validation examples for several outputs: the rows, with targets and weights for each output.


OutputSpecs = Mapping[str, OutputSpec]


def several_examples(
    estimator: Parameters,
    output_specs: OutputSpecs,
    call: Call,
    graph: TrainableModel | None,
    resumed: FittedState | None,
) -> EncodedData:
    """Return the examples of a call, before the factors of the losses are computed from the training rows."""
    assert graph is not None
    convert = partial(graph_inputs, estimator, specs=graph.inputs, fitted=None, reset=resumed is None)
    columns = convert(call.X) if call.stream is None else call.stream.converted(call.X, convert)
    y = by_output(call.y, output_specs, "y")
    if graph.takes_examples:
        require_targets_of_one_shape(y)
    n_rows = _count_of_rows(columns, graph, y)
    if call.classes is not None and not isinstance(call.classes, Mapping):
        raise TypeError(f"classes must be a dict of labels by output, got {type(call.classes).__name__}.")
    given_classes = cast("Mapping[str, Any]", call.classes or {})
    for name in given_classes:
        if name not in output_specs or not output_specs[name].classifies:
            labels = [known for known, output_spec in output_specs.items() if output_spec.classifies]
            raise ValueError(f"classes names {name!r}, which is no output with labels.{nearest(str(name), labels)}")
    weights = weights_by_output(call.sample_weight, output_specs)
    decodings = dict(
        zip(output_specs, [None] * len(output_specs) if resumed is None else resumed.decoding.parts, strict=True)
    )
    found = []
    for view, (name, output_spec) in zip(graph.views, output_specs.items(), strict=True):
        with naming(name):
            decoding = decodings[name]
            classes = given_classes.get(name)
            at_positions = decoding is None and takes_positions(output_spec, view, y[name])
            if call.stream is not None:
                require_one_label(at_positions=at_positions)
                if classes is None and not call.one_epoch:
                    classes = call.stream.outputs[name].classes  # y is a sample, which may lack some classes
            if call.one_epoch and decoding is None:
                require_known_labels(output_spec, y[name], classes, at_positions=at_positions)
            classes = known_classes(classes, None if decoding is None else decoding.classes, of_columns=True)
            found.append(
                targets_of_output(
                    output_spec,
                    n_rows,
                    y[name],
                    weights[name],
                    classes,
                    decoding,
                    at_positions=at_positions,
                    may_lack_labels=call.one_epoch or call.stream is not None,
                    allow_missing=call.stream is None,
                )
            )
    alike = None if call.stream is None else call.stream.alike
    return EncodedData(columns, *joined_targets(list(output_specs), *zip(*found, strict=True), alike=alike))


def _count_of_rows(columns: Columns, graph: TrainableModel, y: Mapping[str, Any]) -> int:
    """Return the number of rows of X; that of the targets if X has none, because the data are one thing."""
    if not graph.is_whole:
        return len(next(iter(columns.values())))
    lengths = {name: len(own) for name, own in y.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"With batch_size=None, all trained outputs must have the same rows, such as the nodes of a network, got y "
            f"with {lengths} rows."
        )
    return next(iter(lengths.values()))


def targets_of_output(
    output_spec: OutputSpec,
    n_rows: int,
    y: np.ndarray,
    sample_weight: ArrayLike | None,
    classes: Classes,
    decoding: Decoding | None,
    *,
    at_positions: bool = False,
    may_lack_labels: bool = False,
    allow_missing: bool = True,
) -> tuple[Targets, np.ndarray | None]:
    """Return the targets of one output and the row weights, without reading targets of rows of weight zero.

    ``allow_missing`` admits missing numbers (NaN or None).
    """
    weights, counted = weights_and_rows(output_spec, y, sample_weight, n_rows, allow_missing=allow_missing)
    # In a later call of partial_fit, all rows may lack a target for this output: their weights are zero.
    if may_lack_labels and not counted.any() and decoding is not None:
        return _no_targets(decoding, n_rows, np.shape(y)[1:]), np.zeros(n_rows)
    # The targets of rows of weight zero may be anything, such as NaN. Encode only the other rows, then insert
    # placeholders.
    more: dict[str, Any] = {"at_positions": at_positions, "allow_missing": allow_missing}
    if counted.all() or not counted.any() or len(y) != n_rows:
        return weighted_targets(output_spec, n_rows, y, weights, classes, decoding, **more)
    rows = np.flatnonzero(counted)
    own = None if weights is None else weights[rows]
    found = weighted_targets(output_spec, len(rows), rows_of(y, rows), own, classes, decoding, **more)
    return spread(*found, rows, n_rows)


def weights_and_rows(
    output_spec: OutputSpec, y: Any, sample_weight: Any, n_rows: int, *, allow_missing: bool = True
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the checked weights of the rows or of their labels, and the mask of the rows that have a target."""
    counted: np.ndarray = np.ones(n_rows, bool)
    weights = None
    if weighs_labels(sample_weight):
        weights = checked_label_weights(sample_weight, (n_rows, *np.shape(y)[1:]))
        counted = np.asarray(weights.any(axis=1))
    elif sample_weight is not None:
        weights = checked_weights(sample_weight, n_rows)
        counted = weights > 0
    if allow_missing and not output_spec.classifies and np.shape(y)[:1] == (n_rows,):
        counted = counted & ~rows_without_target(y)
    return weights, counted


def _no_targets(decoding: Decoding, n_rows: int, places: tuple[int, ...]) -> Targets:
    """Return placeholder targets for an output for which no row has a target."""
    if decoding.positions is not None:
        classes: Any = decoding.classes
        values = np.full((n_rows, math.prod(places)), IGNORED, np.int64)
        many = len(classes) > 2
        name: Task = "multiclass" if many else "binary"
        return Targets(values, name, len(classes) if many else 1, classes, places, np.ones(len(classes)))
    if decoding.task in ("binary", "multiclass"):
        two = decoding.classes is not None and len(decoding.classes) == 2
        count = 1 if two else decoding.n_scores
        return Targets(np.zeros(n_rows, np.int64), "binary" if two else "multiclass", count, decoding.classes)
    return Targets(
        np.zeros((n_rows, decoding.n_scores)), decoding.task, decoding.n_scores, decoding.classes, decoding.row_shape
    )


def several_validation_examples(
    estimator: Parameters,
    output_specs: OutputSpecs,
    state: FittedState,
    X: MatrixLike,
    y: MatrixLike,
    sample_weight: Any,
) -> EncodedData:
    """Return the validation examples, checked like the training examples."""
    columns = graph_inputs(estimator, X, state.graph.inputs, None, reset=False)
    y = by_output(y, output_specs, "y")
    weights = weights_by_output(sample_weight, output_specs)
    n_rows = _count_of_rows(columns, state.graph, y)
    found = []
    require_rows_of_output(state, columns, n_rows)
    for decoding, (name, output_spec) in zip(state.decoding.parts, output_specs.items(), strict=True):
        with naming(name):
            found.append(targets_of_output(output_spec, n_rows, y[name], weights[name], decoding.classes, decoding))
    return EncodedData(columns, *joined_targets(list(output_specs), *zip(*found, strict=True)))


def balanced_outputs(
    output_specs: OutputSpecs, call: Call, examples: EncodedData
) -> tuple[tuple[float, ...] | None, ...]:
    """Return the class weights that ``class_weight="balanced"`` computes for each output; None for other outputs."""
    assert isinstance(examples.targets, SeveralTargets)
    weights = weights_by_output(call.sample_weight, output_specs)
    each = zip(output_specs.items(), examples.targets.parts, strict=True)
    return tuple(balanced_class_weights(output_spec, weights[name], part) for (name, output_spec), part in each)


# The content of training graphs for several outputs: the loss of each output, and the weights of its labels.


def exported_outputs(output_specs: OutputSpecs, estimator: Any, state: FittedState) -> tuple[ExportedOutput, ...]:
    """Return the loss and the decoding of each output, for training graphs that continue as ``partial_fit`` would."""
    weights = loss_weights(estimator)
    last = dict[str, OutputLoss]()
    if any(decoding.positions is not None for decoding in state.decoding.parts):  # the last call set label weights
        last = {one.name: one for one in cast("TotalLoss", settings_of_step(state).loss).outputs}
    found = []
    for decoding, (name, output_spec), balanced in zip(
        state.decoding.parts, output_specs.items(), state.balanced_outputs, strict=True
    ):
        with naming(name):
            own: Any = (
                () if decoding.positions is None else (decoding.positions, last[name].places, last[name].label_weights)
            )
            more = decoding.task, decoding.link, decoding.n_scores, decoding.groups, weights[name]
            loss = OutputLoss(name, cast("Loss", output_spec.loss), *more, *own)
            class_weights = exported_class_weights(output_spec, decoding, balanced)
        ignored = None if decoding.positions is None else output_spec.ignore_label
        found.append(ExportedOutput(loss, decoding, class_weights, ignored))
    return tuple(found)
