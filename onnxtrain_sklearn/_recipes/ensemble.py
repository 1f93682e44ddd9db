"""Networks of a recipe: prepare each with rows held out, train it, and join all to one graph that predicts their mean.

``prepared_members`` yields the networks one after the other, each with a preprocessing that is fitted to its own rows.
``train_members`` trains them as tasks of the recipe (``MemberTasks`` passes callbacks on) and assembles the graph;
``untrained_networks`` and ``exported_networks`` make training graphs of them instead, with the preprocessing in front.
``TableExamples`` are the rows, their targets and their weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir
from sklearn.utils.validation import check_consistent_length

from .._data.held_out import RowsToSplit, ValidationSplit, is_share, named_splits
from .._data.row_weights import weights_of_classes
from .._data.targets import Targets, class_targets, regression_targets, require_all_numbers
from .._estimators.call import digest_of_targets
from .._estimators.files import exported_training, untrained_state
from .._estimators.parameters import SET, call_with_teardown, is_propagated, set_callbacks_of
from .._estimators.scoring import Scoring
from .._export.exported import ExportedTraining
from .._export.graphs import name_in_network
from .._inference.graph import averaged_predictions
from .._inference.predictor import PredictionGraph, prediction_graph
from .._ir.edits import append_graph
from .._ir.protobuf import from_bytes
from .._ir.shapes import infer_shapes
from .._model.links import Task
from .._ort import devices
from .._ort.devices import Device
from .._utils.cache import digest
from .._utils.typing import ClassWeight, Validation
from ..callbacks.base import TrainingInProgress
from ..callbacks.monitoring import TimeLimit
from ..exceptions import warn
from ..losses import Loss
from ..runtime import resolve_runtime
from .linear_part import HeldOut, LinearModel, share_of_linear
from .preprocessing import Preprocessing, Scaling, fit_preprocessing
from .raw_table import RawTable, categorical_columns, read_table, warn_of_columns

Network: TypeAlias = Any
"""An :class:`OrtGradientClassifier` or :class:`OrtGradientRegressor`; their attributes are set by ``fit``."""

Recipe: TypeAlias = Any
"""An estimator for raw tables."""

ValidationRows: TypeAlias = "Callable[[Preprocessing, Place], Validation]"
"""A function that returns validation rows as a network takes them: matrix, targets, weights."""


@dataclass(frozen=True)
class Place:
    """The device on which a recipe runs its preprocessing and its predictions, and the options of their sessions."""

    device: Device
    session_options: Mapping[str, object] | None

    @classmethod
    def of(cls, recipe: Recipe) -> Place:
        """Return the place that the parameters ``device`` and ``runtime`` of a recipe name."""
        runtime = resolve_runtime(recipe.runtime)
        device = devices.resolve_device(recipe.device, runtime.providers, runtime.provider_options)
        return cls(device, runtime.session_options)


@dataclass(frozen=True)
class MemberRecipe:
    """How a recipe makes a member: scaling, columns and network.

    Attributes
    ----------
    scaling : type
        The scaling of numbers, a class of ``preprocessing``.
    drops_constants : bool
        Whether columns of one value are left out.
    network : callable
        Returns the estimator to train, given the preprocessing, the number of rows and a seed.
    """

    scaling: type[Scaling]
    drops_constants: bool
    network: Callable[[Preprocessing, int, int], Network]


@dataclass(frozen=True)
class MemberTraining:
    """How a recipe trains a member.

    Attributes
    ----------
    early_stopping : bool or str
        The network's ``early_stopping`` where rows are held out.
    scoring : str, callable or None
        The score on these rows, as the network takes it.
    fit : callable
        Fits the network, given X, y and further arguments.
    validation : callable or None
        Returns the rows that the user gives to score the network, given its preprocessing and the place to run it.
    is_over : callable
        Returns True if no time is left for a further network.
    mixes_linear : bool
        Whether a linear model is mixed with each network, where rows are held out.
    """

    early_stopping: bool | str
    scoring: Scoring | None
    fit: Callable[[Network, Any, Any, dict[str, Any]], None]
    validation: ValidationRows | None
    is_over: Callable[[], bool]
    mixes_linear: bool


@dataclass(frozen=True, eq=False)
class PreparedMember:
    """An untrained network, its fitted preprocessing, and the rows to train and to validate it on."""

    network: Network
    preprocessing: Preprocessing
    rows: np.ndarray
    held: np.ndarray


@dataclass(frozen=True, eq=False)
class TrainedMembers:
    """The trained networks, one graph of all of them, and the interrupt that ended training early.

    ``places`` say where the networks are in the graph. ``preprocessing`` belongs to the first member; it turns a table
    into the inputs of the graph.
    """

    networks: list[Network]
    graph: PredictionGraph
    places: list[MemberPlace]
    preprocessing: Preprocessing
    interrupted: KeyboardInterrupt | None


class RecipeExamples(Protocol):
    """The rows to fit, in memory or in blocks. ``rows`` are indices of rows, or of blocks.

    Attributes
    ----------
    task : str
    classes : ndarray or None
        The labels of a classifier.
    total_rows : int
        All rows to fit, held-out ones included: in memory those of positive weight, in blocks all.
    """

    @property
    def total_rows(self) -> int: ...

    @property
    def task(self) -> Task: ...

    @property
    def classes(self) -> np.ndarray | None: ...

    def parts(self) -> Iterator[bytes]:
        """Yield digests of the data, by which a Checkpoint knows them again."""

    def sample(self, count: int) -> tuple[RawTable, Sequence[bool]]:
        """Return up to ``count`` rows from all over the table, and flags of the columns that are categories."""

    def folds(
        self, count: int, choice: ValidationSplit | None, rng: np.random.RandomState
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows to train on and rows to validate on, ``count`` times."""

    def n_rows(self, rows: np.ndarray) -> int:
        """Return the number of rows to train on."""

    def preprocessing(self, recipe: MemberRecipe, rows: np.ndarray, rng: np.random.RandomState) -> Preprocessing:
        """Return the preprocessing, fitted to these rows."""

    def arguments(self, member: PreparedMember, place: Place) -> tuple[Any, Any, dict[str, Any]]:
        """Return X and y of the network's ``fit``, and its other arguments, such as the validation data."""


def prepared_members(
    recipe: MemberRecipe,
    examples: RecipeExamples,
    n_members: int,
    choice: ValidationSplit | None,
    rng: np.random.RandomState,
) -> Iterator[PreparedMember]:
    """Yield the members one after the other, each with a preprocessing that is fitted to its own rows."""
    for rows, held in examples.folds(n_members, choice, rng):
        # A generator for each member: the number of draws of one member does not change the next one.
        member_rng = np.random.RandomState(rng.randint(2**31 - 1))
        preprocessing = examples.preprocessing(recipe, rows, member_rng)
        network = recipe.network(preprocessing, examples.n_rows(rows), member_rng.randint(2**31 - 1))
        yield PreparedMember(network, preprocessing, rows, held)


def train_members(
    members: Iterable[PreparedMember], training: MemberTraining, examples: RecipeExamples, place: Place
) -> TrainedMembers:
    """Train the members one after the other, and join them to one graph.

    After an interrupt, the graph holds the members that were trained by then, the interrupted one included; without
    any, the interrupt is raised.
    """
    interrupted = None
    begun = list[PreparedMember]()
    linear = list[LinearModel]()
    held_out = list[HeldOut]()
    try:
        for member in members:
            network = member.network
            X, y, settings = examples.arguments(member, place)
            if training.validation is not None:
                parts = training.validation(member.preprocessing, place)
                settings |= dict(zip(("X_val", "y_val", "sample_weight_val"), parts, strict=True))
            if "X_val" in settings:
                network.set_params(early_stopping=training.early_stopping, scoring=training.scoring)
            if examples.classes is not None:
                settings["classes"] = examples.classes
            begun.append(member)  # before its training, so that an interrupt keeps the epochs that it trained
            training.fit(network, X, y, settings)
            if training.mixes_linear:
                codes = member.preprocessing.code_columns
                outputs = _n_outputs(network, examples)
                weights = settings["sample_weight"]
                own = LinearModel.fit(examples.task, X, _encoded(examples, y), weights, codes, outputs)
                linear.append(own)
                if "X_val" in settings:
                    held_out.append(_held_out_by(network, own, examples, settings))
            if training.is_over():
                break
    except KeyboardInterrupt as error:
        interrupted = error
        begun = [one for one in begun if hasattr(one.network, "n_iter_")]
        if not begun:
            raise
    models = [Member(one.preprocessing, one.network._state.graph_to_predict()) for one in begun]
    if linear and len(linear) == len(begun):  # after an interrupt, the last network lacks one
        rows = [len(one.y) for one in held_out]
        n_rows = sum(rows) if training.validation is None else max(rows)  # given ones are the same for each network
        share = share_of_linear(examples.task, held_out, n_rows)
        models = [replace(one, linear=own, share=share) for one, own in zip(models, linear, strict=True)]
    networks = [one.network for one in begun]
    model, places = assembled(models, examples.task, examples.classes, networks[0]._state.decoding.distribution)
    return TrainedMembers(networks, prediction_graph(model), places, begun[0].preprocessing, interrupted)


def _held_out_by(
    network: Network, model: LinearModel, examples: RecipeExamples, settings: Mapping[str, Any]
) -> HeldOut:
    """Return the held-out rows of a network, as the network and the linear model predict them."""
    X = np.asarray(settings["X_val"])
    y = _encoded(examples, settings["y_val"])
    weights = settings["sample_weight_val"]
    kept = np.isfinite(y.reshape(len(y), -1)).all(axis=1)
    X = X[kept]
    y = y[kept]
    weights = None if weights is None else np.asarray(weights, float)[kept]
    found = network.predict(X) if examples.task == "regression" else network.predict_proba(X)
    return HeldOut(y, weights, found.reshape(len(y), -1), model.predict(X))


def _encoded(examples: RecipeExamples, y: Any) -> np.ndarray:
    """Return targets, as a network takes them, as class indices (N,) or numbers (N, n_outputs)."""
    if examples.classes is not None:
        return class_targets(y, examples.classes).values
    values = regression_targets(y, allow_missing=True).values
    return values.reshape(len(values), -1)


def _n_outputs(network: Network, examples: RecipeExamples) -> int:
    """Return the number of classes, or of numbers a row."""
    return int(network.n_outputs_) if examples.classes is None else len(examples.classes)


# Callbacks of a recipe, as scikit-learn's protocol (``sklearn.callback``) has them: each network is a subtask.
#
# Callbacks that scikit-learn propagates to nested estimators, such as its progress bar, hear of the recipe and of its
# networks. All others are about epochs, and hear of the networks alone.


FitResult = TypeVar("FitResult")


class MemberLimit(TimeLimit):
    """The time limit of a recipe, of which ``share`` seconds are left to a network.

    A checkpoint knows the network again by the parameter alone, because the share differs in each call.
    """

    share: float

    def begin(self, training: TrainingInProgress) -> None:
        """Leave no memory: the recipe's user gave no such callback."""

    def after_step(self, training: TrainingInProgress, loss: float) -> bool:
        return training.seconds >= self.share

    def after_epoch(self, training: TrainingInProgress) -> bool:
        return training.seconds >= self.share


class MemberTasks:
    """The tasks that callbacks hear of in one call of a recipe's ``fit``, and the time of the networks."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._began = time.perf_counter()
        self._n_begun = 0
        self._root: Any = None
        self._set = set_callbacks_of(recipe)

    def run(self, fit: Callable[[], FitResult]) -> FitResult:
        """Call ``fit`` as the task of the recipe."""
        if not self._set:
            return fit()
        recipe = self._recipe
        count = None if isinstance(recipe.n_ensembles, str) else recipe.n_ensembles

        def as_task() -> FitResult:
            self._root = root = recipe._init_callback_context(max_subtasks=count)
            root.call_on_fit_task_begin(estimator=recipe)
            result = fit()
            root.call_on_fit_task_end(estimator=recipe)
            return result

        # scikit-learn calls what it finds on the recipe: for the time of the call, the propagated callbacks alone
        held = recipe.__dict__
        given, held[SET] = held[SET], [one for one in self._set if is_propagated(one)]
        try:
            result: FitResult = call_with_teardown(recipe, as_task)
            return result
        finally:
            held[SET] = given

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit of the recipe."""
        limit = self._recipe.time_limit
        return math.inf if limit is None else float(limit) - (time.perf_counter() - self._began)

    def is_over(self, count: int) -> bool:
        """Return True if no time is left for a further network; warn if fewer than ``count`` are trained."""
        over = self.seconds_left <= 0
        if over and self._n_begun < count:
            warn(
                f"time_limit={self._recipe.time_limit} ended the fit after {self._n_begun} of {count} networks, of "
                f"which the model consists."
            )
        return over

    def fit(self, network: Network, X: object, y: object, settings: Mapping[str, object], count: int) -> None:
        """Fit the next of ``count`` networks with the callbacks of the recipe, in its share of the time left."""
        recipe, root = self._recipe, self._root
        callbacks = recipe.callbacks
        if recipe.time_limit is not None:
            # A device waits for each step that a callback follows.
            limit = MemberLimit(recipe.time_limit, within_epochs=recipe.device == "cpu")
            limit.share = self.seconds_left / (count - self._n_begun)
            callbacks = [*(callbacks or ()), limit]
        network.set_params(callbacks=callbacks)
        network._planned_fits = 0 if self._n_begun else count  # the first one announces a long fit for all
        self._n_begun += 1
        if root is None:
            network.fit(X, y, **settings)
            return
        network.set_callbacks(*(one for one in self._set if not is_propagated(one)))
        task = root.subcontext(task_name="network")
        with task.propagate_callback_context(network):
            task.call_on_fit_task_begin(estimator=recipe)
            network.fit(X, y, **settings)
        task.call_on_fit_task_end(estimator=recipe)


def epochs_of(networks: list[Network]) -> list[dict[str, Any]]:
    """Return the history of all networks, as plain dicts."""
    return [{"network": number, **row} for number, network in enumerate(networks) for row in network.history_]


@dataclass(frozen=True, eq=False)
class TableExamples:
    """The rows to fit, with their targets and weights."""

    table: RawTable
    categorical: tuple[bool, ...]
    targets: Targets
    weights: np.ndarray | None
    given: RowsToSplit

    @property
    def used(self) -> np.ndarray:
        """Indices of the rows of positive weight."""
        return np.arange(len(self.table)) if self.weights is None else np.flatnonzero(self.weights)

    @property
    def total_rows(self) -> int:
        """The number of rows of positive weight."""
        return len(self.used)

    @property
    def classes(self) -> np.ndarray | None:
        """The labels of a classifier."""
        return self.targets.classes if isinstance(self.targets.classes, np.ndarray) else None

    @property
    def labels(self) -> np.ndarray | None:
        """The class of each row in ``used``, for stratified folds; None if there are no classes to balance."""
        return None if self.targets.stratify is None else self.targets.stratify[self.used]

    @property
    def task(self) -> Task:
        """The task of the targets."""
        return self.targets.task

    def folds(
        self, count: int, choice: ValidationSplit | None, rng: np.random.RandomState
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows to train on and rows to validate on, ``count`` times; a share has its share of each class."""
        if choice is None or is_share(choice):
            return validation_folds(self.used, self.labels, count, choice, rng)
        return iter(named_splits(choice, self.used, self.targets, self.given, rng, count))

    def n_rows(self, rows: np.ndarray) -> int:
        """Return the number of rows."""
        return len(rows)

    def preprocessing(self, recipe: MemberRecipe, rows: np.ndarray, rng: np.random.RandomState) -> Preprocessing:
        """Return the preprocessing, fitted to some of the rows."""
        table, whole = self.table.rows(rows), self.table.rows(self.used)
        drops = recipe.drops_constants
        return fit_preprocessing(table, self.categorical, recipe.scaling, rng, drops_constants=drops, whole=whole)

    def arguments(self, member: PreparedMember, place: Place) -> tuple[Any, Any, dict[str, Any]]:
        """Return X and y of the network's ``fit``, and its other arguments."""
        X, y, weights = self.prepared(member.preprocessing, member.rows, place)
        settings: dict[str, Any] = {"sample_weight": weights}
        if len(member.held):
            parts = self.prepared(member.preprocessing, member.held, place)
            settings |= dict(zip(("X_val", "y_val", "sample_weight_val"), parts, strict=True))
        return X, y, settings

    def sample(self, count: int) -> tuple[RawTable, Sequence[bool]]:
        """Return up to ``count`` rows, evenly spaced, and flags of the columns that are categories."""
        used = self.used
        return self.table.rows(used[evenly_spaced(len(used), count)]), self.categorical

    def parts(self) -> Iterator[bytes]:
        """Yield digests of columns, targets and weights, by which a Checkpoint knows the data again."""
        for name, column in zip(self.table.names, self.table.columns, strict=True):
            yield name.encode()
            yield digest(column.tolist() if column.dtype == object else column)
        yield digest(list(self.categorical)) + digest_of_targets(self.targets, self.weights)

    def prepared(
        self, preprocessing: Preprocessing, rows: np.ndarray, place: Place
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return some of the rows as a network takes them: matrix, targets, weights."""
        matrix = preprocessing.transform(self.table.rows(rows), place.device, place.session_options)
        y = self.targets.values[rows]
        if self.targets.task == "multilabel":
            y = np.where(y < 0, np.nan, y) if self.targets.counts_in_part else y.astype(np.int64)
        else:
            y = y if self.classes is None else self.classes[y]  # the network encodes its labels itself
            y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
        return matrix, y, None if self.weights is None else self.weights[rows]


def evenly_spaced(size: int, count: int) -> np.ndarray:
    """Return up to ``count`` indices from 0 to ``size``, evenly spaced."""
    return np.asarray(np.linspace(0, size - 1, min(size, count)).round().astype(int))


# Rows for training and for validation of each member of an ensemble.


LEAST_HELD_OUT = 2
"""Rows below which nothing is held out: R² of one row is undefined."""


def validation_folds(
    rows: np.ndarray, labels: np.ndarray | None, count: int, fraction: float | None, rng: np.random.RandomState
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows to train on and rows to validate on, ``count`` times.

    The rows are split into folds of about ``fraction`` of them, and into ``count`` folds at least: each member holds
    out another fold. Each fold gets the same share of each class; a row alone in its class is in no fold. Nothing
    is held out if ``fraction`` is None, or if there are too few rows.

    Parameters
    ----------
    rows : ndarray of int
    labels : ndarray of int or None
        The class of each of these rows.
    """
    fold = np.full(len(rows), -1)  # in no fold
    if fraction is not None:
        n_folds = max(count, round(1 / fraction))
        order = rng.permutation(len(rows))
        if labels is not None:
            # rows in the order of their classes: dealt out in turn, they give each fold its share of each class
            order = order[np.argsort(labels[order], kind="stable")]
            alone = np.bincount(labels)[labels] == 1
            order = order[~alone[order]]
        fold[order] = np.arange(len(order)) % n_folds
    for member in range(count):
        held = fold == member
        if np.count_nonzero(held) < LEAST_HELD_OUT:
            held = np.zeros(len(rows), bool)
        yield rows[~held], rows[held]


# One graph from a raw table to predictions: preprocessing and network of each member, and the mean of the members.


@dataclass(frozen=True)
class MemberPlace:
    """Where a member is in the graph of all of them.

    Attributes
    ----------
    matrix, predictions : str
        Names of the values that it reads and computes.
    owners : ndarray of int
        The column of the table of which each column of the matrix is made.
    """

    matrix: str
    predictions: str
    owners: np.ndarray


@dataclass(frozen=True, eq=False)
class Member:
    """A trained network and its preprocessing.

    Attributes
    ----------
    preprocessing : Preprocessing
    model : bytes
        The inference graph of the network: a matrix to the predictions, or to label and probabilities.
    linear : LinearModel or None
        The linear model that is mixed with it.
    share : float
        The weight of the linear model's predictions.
    """

    preprocessing: Preprocessing
    model: bytes
    linear: LinearModel | None = None
    share: float = 0.0


def assembled(
    members: Sequence[Member], task: Task, classes: np.ndarray | None = None, distribution: Loss | None = None
) -> tuple[ir.Model, list[MemberPlace]]:
    """Return the graph that predicts from the raw table, and where its members are.

    ``classes`` are the labels of classifiers.

    Several members are averaged: their predictions, or their probabilities, which give the labels; ``distribution`` is
    the loss that combines what else they predict.
    """
    op = members[0].preprocessing.new_graph()
    results = list[Sequence[ir.Value]]()
    ends = list[tuple[ir.Value, ir.Value]]()
    further = list[str]()
    for i, member in enumerate(members):
        matrix = member.preprocessing.emit(op)
        network = from_bytes(member.model).graph
        if task == "regression":  # "predict/scale" where a weight has the name "scale"
            further = [str(value.name).rpartition("/")[2] for value in network.outputs[1:]]
        for domain, version in network.opset_imports.items():
            op.graph.opset_imports.setdefault(domain, version)
        # Weights keep their names, after the number of the network if there are several.
        outputs: Sequence[ir.Value] = append_graph(op, network, [matrix], f"{i}." if len(members) > 1 else "")
        if member.linear is not None:
            outputs = [member.linear.mixed(op, matrix, outputs[-1], member.share)]
        results.append(outputs)
        ends.append((matrix, outputs[0] if task == "regression" else outputs[-1]))
    several = len(members) > 1 or members[0].linear is not None
    outputs = averaged_predictions(op, results, task, classes, distribution) if several else results[0]
    names = ["variable"] if task == "regression" else ["label", "probabilities"]
    names += further
    for name, value in zip(names, outputs, strict=True):
        value.name = op.taken.free(name)
        op.graph.outputs.append(value)
    model = ir.Model(op.graph, ir_version=8, producer_name="onnxtrain_sklearn")
    if any(value.type is None or value.shape is None for value in op.graph.outputs):
        infer_shapes(model)
    named = [(str(matrix.name), str(predictions.name)) for matrix, predictions in ends]
    owners = [member.preprocessing.owners for member in members]
    return model, [MemberPlace(*names, own) for names, own in zip(named, owners, strict=True)]


@dataclass(frozen=True, eq=False)
class UntrainedNetwork:
    """An untrained network, its preprocessing, and the matrix and targets of the rows that ``fit`` would train on."""

    network: Network
    preprocessing: Preprocessing
    matrix: np.ndarray
    values: np.ndarray


def untrained_networks(recipe: Any, given: RowsToSplit) -> Iterator[UntrainedNetwork]:
    """Yield the networks of a recipe as they are before training."""
    table = read_table(recipe, given.X, reset=True)
    warn_of_columns(table, recipe.categorical_features)
    targets = recipe._encode(given.y)
    require_all_numbers(targets, "An exported training")
    check_consistent_length(table.columns[0], targets.values)
    categorical = categorical_columns(table, recipe.categorical_features)
    examples = TableExamples(table, categorical, targets, None, given)
    weights = _class_weights_by_label(recipe, targets)
    place = Place.of(recipe)
    for member in recipe._for_rows(examples.total_rows)._members(examples, recipe.validation_split):
        if weights:
            member.network.set_params(class_weight=weights)
        matrix, values, _ = examples.prepared(member.preprocessing, member.rows, place)
        yield UntrainedNetwork(member.network, member.preprocessing, matrix, values)


def exported_networks(estimator: str, networks: Sequence[UntrainedNetwork], target: str) -> ExportedTraining:
    """Return the training of all networks, to export."""
    exported, batch_size = list[ExportedTraining](), None
    for one in networks:
        state = untrained_state(one.network, one.matrix, one.values)
        exported.append(exported_training(one.network, state, batch_size, target))
        batch_size = exported[0].parts.batch_size  # one graph trains all networks on the same minibatch
    matrices = [one.parts.graph.inputs[0].name for one in exported]
    if len(networks) > 1:
        matrices = [name_in_network(name, number) for number, name in enumerate(matrices)]
    # the graph in front, from the columns of the table to the input of each network
    op = networks[0].preprocessing.new_graph()
    for one, matrix in zip(networks, matrices, strict=True):
        result = op.Identity(one.preprocessing.emit(op))
        result.name = matrix
        op.graph.outputs.append(result)
    front = ir.Model(op.graph, ir_version=8)
    first, *others = (replace(one, front=front) for one in exported)
    return replace(first, facts={**first.facts, "estimator": estimator}, others=tuple(others))


def _class_weights_by_label(recipe: Any, targets: Targets) -> ClassWeight:
    """Return the class weights as numbers by label: those of "balanced" are counted before rows are held out."""
    given: ClassWeight
    classes, given = targets.classes, recipe.class_weight
    if given is None or not isinstance(classes, np.ndarray) or targets.task == "multilabel":
        return given  # for several labels, the export of the network raises the error
    found = weights_of_classes(given, classes, targets.values, np.ones(len(targets.values)))
    return dict(zip(classes.tolist(), found.tolist(), strict=True))
