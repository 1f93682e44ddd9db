"""Choose the head, which turns scores into predictions (task, link, labels), and replace the head of a given model.

The loss, the targets and the number of scores determine the head. A given graph is run first, to find out whether its
output holds scores, probabilities or logarithms. :class:`Plan` passes what is known about a call to these functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from .._data.targets import Targets
from .._fitted.fitted_model import FittedModel, is_estimator
from .._given.given_output import (
    OwnOutput,
    as_columns,
    own_output,
    require_column_shape,
    require_own_features,
    require_target_shape,
    run_graph,
    settled,
)
from .._given.ml_files import is_fitted_graph
from .._importers.load import LABELS, given_graph
from .._inference.graph import Head
from .._ir.shapes import infer_shapes
from .._model.links import Link, Task
from .._model.new_head import SAME_TYPES, HeadTypes, graph_of_features, types_of_head, with_head
from .._model.score_axes import Positions
from .._model.trainable import TrainableModel, trainable_model
from .._ort import devices
from .._ort.devices import Device
from .._training.loss_graph import n_classes_of
from .._training.step_parts import StepSettings
from ..exceptions import ModelError
from ..finetuning import FineTuner
from ..losses import LOSSES, Loss, resolve_loss
from ..models import resolve_builder
from ..models.given import bare_model, resolve_graph_model
from .config import TrainingConfig
from .examples import Call, Examples, TrainingRows, ignoring, positions_of, trained_positions
from .fitted_state import Columns, FittedState
from .parameters import Parameters
from .source import source_of
from .tasks import OutputTask


@dataclass(frozen=True)
class HeadChoice:
    """The head of a training and related decisions.

    Attributes
    ----------
    source : TrainableModel
        The graph; it knows whether its output holds scores, probabilities or logarithms.
    seen : TrainableModel
        The graph as seen by the loss: ``scores`` is the value that it reads, before or after the final activation.
    head : Head
    settings : StepSettings
    owns : tuple of OwnOutput or None
        Each output of a given graph as found by running it on some rows of the data; None without a given graph.
    """

    source: TrainableModel
    seen: TrainableModel
    head: Head
    settings: StepSettings
    owns: tuple[OwnOutput | None, ...]


def choose_head(plan: Plan, source: TrainableModel, examples: Examples) -> HeadChoice:
    """Return the head for the loss and the targets, and the settings of the step."""
    estimator, config, old, fitted = plan.estimator, plan.config, plan.old, plan.fitted
    task: OutputTask = estimator._task()
    loss = loss_of(task, fitted, source)
    loss.check_targets(examples.targets.values)
    device = config.device
    own = None
    if source.members is not None or plan.body is not None:
        if task.output_kind not in ("auto", "scores"):
            raise ValueError(
                f"output_kind={task.output_kind!r}: the graph of an ensemble (n_members), or with a new head, gives "
                f"scores. Set 'auto'."
            )
    elif old is None and fitted is None:
        own = own_output(bare_model(estimator.model), source, examples.columns, device)
    positions = places_of_labels(task, None if old is None else old.head, source, own, examples.targets)
    if own is not None:
        own = own.at(positions) if positions is not None else of_whole_rows(own, examples.targets)
        source, n_columns = settled(source, own, task.output_kind, classifies=task.classifies)
    elif old is not None:
        n_columns = old.head.n_outputs
    elif fitted is not None:
        n_columns = _score_columns(source, examples.columns, device)
    else:
        n_columns = examples.targets.n_outputs
    seen, head = head_for(source, loss, examples.targets, n_columns, positions)
    seed = int(plan.rng.randint(2**31 - 1)) if old is None else old.seed
    known = trained_positions(head, examples.targets)
    settings = config.with_head(loss, head, seed, known)
    return HeadChoice(source, seen, head, ignoring(settings, examples.targets), (own,))


def places_of_labels(
    task: OutputTask, old: Head | None, source: TrainableModel, own: OwnOutput | None, targets: Targets
) -> Positions | None:
    """Return the axes of the scores if the targets have labels at positions, else None."""
    if old is not None:
        return old.positions
    return positions_of(own, source, targets, task.class_axis) if targets.has_positions else None


def of_whole_rows(own: OwnOutput, targets: Targets) -> OwnOutput:
    """Return the output of a given graph; raise if its rows do not have the shape of the rows of the targets."""
    if targets.task == "regression":
        require_target_shape(own, targets)
    else:
        require_column_shape(own.row_shape, own.name)
    return own


def loss_of(task: OutputTask, fitted: FittedModel | None, source: TrainableModel) -> Loss:
    """Return the loss; the default for a fitted model is the loss that the model minimizes."""
    follows = isinstance(task.loss, str) and task.loss == task.default_loss
    return resolve_loss(fitted.loss if follows and fitted is not None else task.loss, source.joined)


def _score_columns(source: TrainableModel, columns: Columns, device: Device) -> int:
    """Return the number of scores per row, determined by running the graph on three rows of the data."""
    graph = source.model.clone()
    keep = next(v for v in graph.graph.outputs if v.name == source.scores)
    graph.graph.outputs.clear()
    graph.graph.outputs.append(keep)
    last = len(next(iter(columns.values()))) - 1
    return int(as_columns(run_graph(graph, columns, np.array([0, last, 0]), device), source.scores).shape[1])


def head_for(
    source: TrainableModel, loss: Loss, targets: Targets, n_columns: int, positions: Positions | None
) -> tuple[TrainableModel, Head]:
    """Return the model with ``scores`` set before or after its final activation, and the head."""
    of_pairs = source.link == "votes"
    task = _task(targets, n_classes_of(n_columns) if of_pairs and n_columns > 1 else n_columns)
    of_label: Task = "multiclass" if task == "multioutput" else task
    if of_label not in loss.tasks:
        valid = ", ".join(repr(name) for name, kind in LOSSES.items() if of_label in kind.tasks)
        raise ValueError(f"loss={type(loss).__name__} is not for {task} targets. Losses for them: {valid}.")
    link = loss.link(of_label)
    if task == "regression":
        seen = source if source.link == link else source.ignoring_activation()
        return seen, Head(task, link, n_columns, row_shape=targets.row_shape)
    if of_pairs:
        return source, Head(task, "identity", n_columns, targets.classes)
    if source.link not in ("sigmoid", "softmax"):
        return source.ignoring_activation(), Head(task, link, n_columns, targets.classes, positions=positions)
    if task == "multioutput":
        raise ValueError(
            f"The graph ends in a {source.link}, which cannot model several labels of several classes each; let it end "
            f"in the scores of all classes."
        )
    if source.link == "softmax" and task != "multiclass":
        raise ValueError(
            f"The graph ends in a softmax over {n_columns} column(s), which cannot model {task} targets; use sigmoid."
        )
    own: Link = source.link if link in ("sigmoid", "softmax") else link  # type: ignore[assignment]
    return source, Head(task, own, n_columns, targets.classes, positions=positions)


def _task(targets: Targets, n_columns: int) -> Task:
    """Return the task for ``n_columns`` scores; two classes with two scores are trained as multiclass."""
    if targets.task == "binary" and n_columns == 2:
        return "multiclass"
    if n_columns != targets.n_outputs:
        what = {"regression": "outputs", "multilabel": "labels"}.get(targets.task, "classes")
        count = targets.n_outputs if targets.classes is None else len(targets.classes)
        known = targets.task in ("binary", "multiclass") and count < n_columns
        hint = " If y lacks some of the classes, name them all: fit(X, y, classes=...)." if known else ""
        raise ValueError(
            f"The graph's output has {n_columns} column(s), but y has {count} {what}.{hint} A trained model gets a new "
            f"last layer, for other {what}, by finetune=FineTuner(new_head=True)."
        )
    return targets.task


# Everything known about a call before its state exists, passed on as one object.


@dataclass(frozen=True, eq=False)
class Plan:
    """The arguments, parameters and decisions of a call of ``fit`` or ``partial_fit``.

    Attributes
    ----------
    estimator : BaseOrtGradient
    call : Call
    config : TrainingConfig
    old : FittedState or None
        The state that the call continues.
    rng : numpy.random.RandomState
    rows : TrainingRows
    fitted : FittedModel or None
        The fitted scikit-learn model that is trained; None without one, or if it gets a new head (see ``body``).
    tuner : FineTuner or None
        The settings of fine-tuning; None in plain training.
    body : Body or None
        The part of the given model that is kept if it gets a new head, else None.
    head_names : tuple of str
        The names of the weights of the new head; empty without one.
    """

    estimator: Any
    call: Call
    config: TrainingConfig
    old: FittedState | None
    rng: np.random.RandomState
    rows: TrainingRows
    fitted: FittedModel | None
    tuner: FineTuner | None
    body: Body | None
    head_names: tuple[str, ...]


# A new head, for other classes or targets than those of the given model: the features that it reads, and its weights.


@dataclass(frozen=True)
class Body:
    """The part of a given model upstream of its head, which gets a new head.

    Attributes
    ----------
    source : TrainableModel
        The graph that ends in the features.
    fitted : FittedModel or None
        The fitted model of which it is a part, and whose transformers stay frozen by default; None for an ONNX file.
    types : HeadTypes
        The types in which the file keeps the weights and the output that the new head replaces.
    """

    source: TrainableModel
    fitted: FittedModel | None
    types: HeadTypes = SAME_TYPES


def gets_new_head(estimator: Parameters, old: FittedState | None) -> bool:
    """Return True if a call of ``fit`` replaces the head of the given model."""
    tuner = estimator.finetune
    if old is not None or not isinstance(tuner, FineTuner) or resolve_builder(estimator.model) is not None:
        return False
    tuner.validate()
    return bool(tuner.new_head)


def body_of(estimator: Parameters) -> Body:
    """Return the part of the given model upstream of its head."""
    given = resolve_graph_model(estimator.model)
    model, output = given.graph, given.output
    whole = None if is_estimator(model) else given_graph(cast("bytes", model))
    if whole is not None and not (whole.meta[LABELS] or is_fitted_graph(whole, output)):
        whole = infer_shapes(whole.clone())  # the final activation is recognized by the axes that it normalizes
        graph, features = graph_of_features(whole, output)
        source = replace(trainable_model(graph, features, foreign=True), reference=None)
        return Body(source, None, types_of_head(whole, output))
    source, fitted = source_of(model, None)
    if fitted is not None and fitted.table is not None:
        raise ModelError(
            f"new_head=True needs a model that takes numbers, and {type(model).__name__} encodes text. Convert the "
            f"table with its transformers first, and give only the model that reads their output."
        )
    final = next(v for v in source.model.graph.outputs if v.name == source.scores)
    graph, features = graph_of_features(source.model, output, final)
    return Body(trainable_model(graph, features), fitted)


def headed(body: Body, examples: Examples) -> tuple[TrainableModel, tuple[str, str]]:
    """Return the graph with a head for the targets, and the names of the head's weights."""
    rows = np.array([0, len(examples) - 1, 0])
    found = run_graph(body.source.model, examples.columns, rows, devices.resolve_device())
    require_own_features(body.source.model, body.source.output, body.source.parameters)
    width = as_columns(found, body.source.output).shape[1]
    graph, names = with_head(body.source.model, body.source.output, width, examples.targets.n_outputs, body.types)
    return trainable_model(graph, foreign=body.fitted is None), names
