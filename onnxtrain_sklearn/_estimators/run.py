"""A training run: the graph, its weights and everything that a later call needs to predict or to go on.

The functions here put the layers below together: which graph, which parameters, which scores, which step. Sessions are
caches of a run; they are left out of pickles and rebuilt on first use. Nothing here knows scikit-learn's interface.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from .. import _runtime
from .._data.batches import MERGE_LIMIT, Batches, distinct_rows, weighted_rows
from .._data.columns import Column
from .._data.targets import Targets
from .._fitted.model import FittedModel, fitted_model, is_estimator
from .._given.comparison import as_columns, run_graph
from .._given.ml_files import fitted_file, is_fitted_graph
from .._graph.constants import dequantized
from .._graph.links import Link, Task
from .._graph.protobuf import LABELS, load
from .._graph.trainable import TrainableModel, trainable_model
from .._inference.graph import inference_model
from .._inference.head import Head
from .._inference.predictor import Predictor
from .._refusal import refusing
from .._training.device_step import DeviceStep
from .._training.history import History
from .._training.host_step import OptimizerState, TrainingStep, in_trainable_type
from .._training.loss_graph import TARGET, StepSettings, as_float32, n_classes_of, target_layout
from .._training.parameters import FlatParameters, Trainable
from .._training.selection import selected
from ..exceptions import instead_of
from ..losses import LOSSES, Loss
from ..models import Builder, ModelSource
from ..optimizers import Optimizer
from .content import content
from .start import Start

Columns = Mapping[str, Column]


@dataclass
class Run:
    """State of a training run.

    Attributes
    ----------
    source, model : TrainableModel
        The graph with the loss placed before or behind its final activation, and the form of it that is trained: the
        same, or in float32.
    activation : dict
        How the output of the graph comes from its scores: another loss may want its final activation back.
    frozen : dict of str to ndarray
        Parameters that are not trained, and running statistics that stay.
    parameters : FlatParameters
        The trained ones, and running statistics that move.
    rng : numpy.random.RandomState
        Draws the order of the epochs and the validation split.
    seed : int
        Of dropout.
    fitted : FittedModel or None
        What is known of a fitted model that the graph was made from.
    sample : data or None
        Some rows as scikit-learn takes them, to compare predictions on. Pickles do not hold it: they hold no data.
    began : Start or None
        The model that was given, and the output of it.
    """

    source: TrainableModel
    model: TrainableModel
    activation: Mapping[str, Any]
    frozen: dict[str, np.ndarray]
    parameters: FlatParameters
    head: Head
    rng: np.random.RandomState
    device: _runtime.Device
    session_options: Mapping[str, Any] | None
    engine: str
    seed: int
    fitted: FittedModel | None = None
    sample: Any = None
    began: Start | None = None
    state: OptimizerState = field(default_factory=OptimizerState)
    history: History = field(default_factory=History)
    step: TrainingStep | DeviceStep | None = None
    step_key: object = None
    predictors: dict[tuple[str, int], Predictor] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "sample": None, "step": None, "step_key": None, "predictors": {}}

    @property
    def given(self) -> TrainableModel:
        """The graph as it was given."""
        return replace(self.source, **self.activation)

    @property
    def deployed(self) -> TrainableModel:
        """The graph that predicts and is given away: of a table it takes each column."""
        if self.fitted is None or self.fitted.parts is None:
            return self.source
        whole = self.fitted.parts.whole
        return replace(self.source, model=whole.model, inputs=whole.inputs)

    def weights(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter and running statistic, in the graph's order and type."""
        current = {**self.frozen, **self.parameters.weights()}
        return {name: current[name].astype(array.dtype) for name, array in self.source.weights().items()}

    def predictor(self, *, with_scores: bool = False) -> Predictor:
        """Return the session that predicts with the current weights; the scores can be its last output."""
        key = ("scores" if with_scores else "predict", _runtime.forks())
        if key not in self.predictors:
            graph = inference_model(self.deployed, self.weights(), self.head, with_scores=with_scores)
            width = sum(math.prod(n or 1 for n in spec.shape[1:]) for spec in self.model.inputs)
            self.predictors[key] = Predictor(graph, self.device, self.session_options, width=width)
        return self.predictors[key]

    def predictions(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return what the graph predicts, by the method of scikit-learn."""
        results = {"predict": self.predictor().run(columns)}
        if self.head.has_probabilities:
            results["predict_proba"] = self.predictor().run(columns, output=1)
        elif self.head.task != "regression":
            results["decision_function"] = self.predictor().run(columns, output=1)
        return results

    def plain_predictor(self) -> Predictor:
        """Return a session that gives the numbers of the graph itself, and the scores last."""
        graph = inference_model(self.deployed, self.weights(), self.head, with_scores=True, in_double=False)
        return Predictor(graph, self.device, self.session_options)

    def live_predictor(self) -> Predictor:
        """Return a session that reads the parameters while they are trained."""
        graph = inference_model(self.model, self.frozen, self.head)
        return Predictor(graph, self.device, self.session_options, live=self.parameters)


def source_of(
    model: ModelSource, output: str | None, *, has_text: bool = False
) -> tuple[TrainableModel, FittedModel | None]:
    """Return the trainable form of what the user gave as ``model``; for a fitted one, what else is known of it.

    ``has_text`` says whether the data have columns that are no numbers.
    """
    if is_estimator(model):
        if output is not None:
            raise ValueError(f"output={output!r} names an output of an ONNX graph; model is a {type(model).__name__}.")
        return fitted_model(model, has_text=has_text)
    if not isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        raise TypeError(
            f"model must be an onnx.ModelProto, its bytes, the path of an ONNX file, a fitted scikit-learn model, a "
            f"graph builder such as MLP(), or None, {instead_of(model)}."
        )
    whole = dequantized(load(model))
    if (labels := whole.meta[LABELS]) or is_fitted_graph(whole):
        with refusing("The graph cannot be prepared for training"):
            return fitted_file(whole, output, labels)
    return replace(trainable_model(whole, output, foreign=True), reference=whole), None


def built_source(builder: Builder, n_features: int, n_outputs: int, rng: np.random.RandomState) -> TrainableModel:
    """Return the trainable form of the graph that a builder makes for the data."""
    whole = load(builder.build(n_features, n_outputs, rng))
    return replace(trainable_model(whole), reference=whole)


def score_columns(source: TrainableModel, columns: Columns, device: _runtime.Device) -> int:
    """Return the number of scores a row, found by running the graph on three rows of the data."""
    graph = source.model.clone()
    keep = next(v for v in graph.graph.outputs if v.name == source.scores)
    graph.graph.outputs.clear()
    graph.graph.outputs.append(keep)
    last = len(next(iter(columns.values()))) - 1
    return int(as_columns(run_graph(graph, columns, np.array([0, last, 0]), device), source.scores).shape[1])


def head_for(source: TrainableModel, loss: Loss, targets: Targets, n_columns: int) -> tuple[TrainableModel, Head]:
    """Return what comes after the scores, and the model with the loss placed before or behind its final activation."""
    of_pairs = source.link == "votes"
    task = _task(targets, n_classes_of(n_columns) if of_pairs and n_columns > 1 else n_columns)
    of_label: Task = "multiclass" if task == "multioutput" else task
    if of_label not in loss.tasks:
        valid = ", ".join(repr(name) for name, kind in LOSSES.items() if of_label in kind.tasks)
        raise ValueError(f"loss={type(loss).__name__} is not for {task} targets. Losses for them: {valid}.")
    link = loss.link(of_label)
    if task == "regression":
        seen = source if source.link == link else source.ignoring_activation()
        return seen, Head(task, link, n_columns)
    if of_pairs:
        return source, Head(task, "identity", n_columns, targets.classes)
    if source.link not in ("sigmoid", "softmax"):
        return source.ignoring_activation(), Head(task, link, n_columns, targets.classes)
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
    return source, Head(task, own, n_columns, targets.classes)


def _task(targets: Targets, n_columns: int) -> Task:
    """Return the task of ``n_columns`` scores; two classes on two scores are trained like several."""
    if targets.task == "binary" and n_columns == 2:
        return "multiclass"
    if n_columns != targets.n_outputs:
        what = {"regression": "outputs", "multilabel": "labels"}.get(targets.task, "classes")
        count = targets.n_outputs if targets.classes is None else len(targets.classes)
        known = targets.task in ("binary", "multiclass") and count < n_columns
        hint = " Where y lacks some of the classes, name them all: fit(X, y, classes=...)." if known else ""
        raise ValueError(f"The graph's output has {n_columns} column(s), but y has {count} {what}.{hint}")
    return targets.task


def new_run(
    given: TrainableModel,
    source: TrainableModel,
    head: Head,
    settings: StepSettings,
    trainable: Trainable,
    columns: Columns,
    rng: np.random.RandomState,
    fitted: FittedModel | None,
) -> Run:
    """Return a new run from the weights of ``source``, which is ``given`` as the loss sees it."""
    source, names = selected(replace(source, reference=None), trainable)
    weights = source.weights()
    fixed = source.with_shapes(_shapes(columns)).with_frozen_statistics(names)
    model = in_trainable_type(fixed, settings, names)
    run = Run(
        source=source,
        model=model,
        activation=given.activation,
        frozen={},
        parameters=FlatParameters({}, model.dtype),
        head=head,
        rng=rng,
        device=settings.device,
        session_options=settings.session_options,
        engine=settings.engine,
        seed=settings.seed,
        fitted=fitted,
    )
    _choose(run, names, weights)
    return run


def resume_run(
    old: Run, source: TrainableModel, head: Head, settings: StepSettings, trainable: Trainable, columns: Columns
) -> Run:
    """Return the run that goes on from the weights of ``old`` with settings that may have changed since."""
    source, names = selected(source, trainable)
    fixed = source.with_shapes(_shapes(columns)).with_frozen_statistics(names)
    run = replace(
        old,
        source=source,
        model=fixed if old.model.dtype == fixed.dtype else as_float32(fixed),
        head=head,
        device=settings.device,
        session_options=settings.session_options,
        engine=settings.engine,
        predictors={},
    )
    if set(names) != set(run.parameters.names):
        _choose(run, names, {**source.weights(), **old.weights()})
    return run


def _choose(run: Run, names: Sequence[str], weights: Mapping[str, np.ndarray]) -> None:
    dtype, running_statistics = run.model.dtype, run.model.running_statistics
    trained, moved = ({name: weights[name] for name in group} for group in (names, running_statistics))
    run.parameters = FlatParameters(trained, dtype, moved)
    run.frozen = {n: array.astype(dtype) for n, array in weights.items() if n not in trained and n not in moved}
    run.step, run.state, run.history.last_finite = None, OptimizerState(draws=run.state.draws), None


@refusing("The graph cannot be trained")
def prepare_step(run: Run, settings: StepSettings, batch: int, limit: int) -> TrainingStep | DeviceStep:
    """Return the step of a run, a new one only where the one at hand does not fit.

    It fits for these settings and with room for ``batch`` rows, but not for more than ``limit``: rows that are there
    to fill up cost as much as others.
    """
    shapes = tuple(spec.shape for spec in run.model.inputs)
    key = (_runtime.forks(), _key(settings), run.head.task, run.head.link, run.parameters.names, shapes)
    if run.step is None or run.step_key != key or not batch <= run.step.batch <= limit:
        on_device = settings.device.memory is not None and isinstance(settings.optimizer, Optimizer)
        kind = DeviceStep if on_device else TrainingStep
        run.step = kind(run.model, settings, run.parameters, run.frozen, run.state, batch)
        run.step_key, run.engine = key, run.step.engine
    return run.step


def _key(settings: StepSettings) -> tuple[object, ...]:
    """Objects of one class and equal content stand for the same step."""
    objects = content([settings.loss, settings.optimizer, settings.session_options])
    return (objects, settings.alpha, settings.l1_ratio, settings.max_grad_norm, settings.engine, settings.device)


def batches_for(
    run: Run, columns: Columns, targets: Targets, weights: np.ndarray | None, rows: np.ndarray, size: int, shuffle: bool
) -> Batches:
    """Return the minibatches of some rows, the target among their columns."""
    values = targets.values
    shape, dtype = target_layout(run.head.task, run.head.n_outputs, len(values), run.model.dtype)
    every = {**columns, TARGET: Column(values.reshape(shape), dtype)}
    n_rows = len(rows)
    fits = (
        n_rows <= min(size, MERGE_LIMIT) and not run.model.running_statistics
    )  # equal rows count in the statistics of a batch
    rows, weights = distinct_rows(every, rows, weights) if fits else weighted_rows(rows, weights)
    return Batches(every, rows, weights, size, run.rng if shuffle else None, n_rows=n_rows)


def require_rows(columns: Columns, targets: Targets, name: str) -> None:
    """Raise where there are more targets than rows, or fewer."""
    n_rows, n_targets = len(next(iter(columns.values()))), len(targets.values)
    if n_rows != n_targets:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows}, {name} has {n_targets}."
        )


def require_like(targets: Targets, head: Head, name: str) -> None:
    """Raise where targets that come later are not like the first: in number, and one label a row or several."""
    if targets.task == "regression" and targets.n_outputs != head.n_outputs:
        raise ValueError(f"{name} has {targets.n_outputs} output(s), expected {head.n_outputs}.")
    if (targets.task == "multilabel") != (head.task == "multilabel"):
        expected = "indicators of several labels a row" if head.task == "multilabel" else "one label a row"
        raise ValueError(f"{name} does not hold {expected}, as y did when training began.")


def _shapes(columns: Columns) -> dict[str, tuple[int, ...]]:
    return {name: column.shape[1:] for name, column in columns.items()}
