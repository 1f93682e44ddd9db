"""The state of a fitted estimator: plain data, and the sessions and derived graphs that are made from it on demand.

:class:`FittedState` holds everything that a later call needs to predict or to continue training; pickles hold the same.
:class:`LiveSessions` holds its caches, which :mod:`.pickling` omits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import onnx

from .._data.columns import InputData
from .._fitted.fitted_model import FittedModel
from .._importers.quantization import holds_fakes
from .._inference.graph import Decoding, OutputOptions, ensemble_of, exported_model, inference_model
from .._inference.predictor import Predictor, filled_graph, prediction_graph
from .._ir.files import without_program
from .._ir.protobuf import to_proto
from .._model.packed_examples import unpacked
from .._model.trainable import TrainableModel
from .._model.weights import merged
from .._model.whole_data import bound_to_data
from .._ort import sessions
from .._ort.devices import Device
from .._training.history import History
from .._training.parameters import FlatParameters
from .._training.rows_meet import where_rows_meet_in_graph
from .._training.step import StepKind, TrainingStep, as_float32
from .._training.step_parts import OptimizerState
from .._utils.cache import content
from .._utils.params import copied
from .._utils.typing import DType
from ..adapters import LoRA, without_low_rank
from ..exceptions import ModelError
from ..models import ModelLike, resolve_builder
from ..models.given import bare_model, resolve_graph_model
from .parameters import Parameters

Columns = Mapping[str, InputData]


@dataclass
class LiveSessions:
    """The caches of a state, rebuilt on first use.

    Attributes
    ----------
    trained_form : TrainableModel or None
        The trained form of the graph (see :func:`in_trained_form`).
    step : TrainingStep or None
        The step of the last call; a later call reuses it if ``step_key``, the settings that it depends on, is equal.
    predictors : dict of Predictor
        Predictors of the current weights; code that changes weights must clear the dict.
    sample : data or None
        Some rows of X as the user gave them, to compare predictions. They are here because pickles hold no data.
    """

    trained_form: TrainableModel | None = None
    step: TrainingStep | None = None
    step_key: object = None
    predictors: dict[tuple[object, int, tuple[str, ...]], Predictor] = field(default_factory=dict)
    sample: Any = None


@dataclass
class FittedState:
    """Graph, weights, optimizer, history and random state of an estimator.

    Attributes
    ----------
    graph : TrainableModel
        The graph whose ``scores`` are before or after its final activation, as the loss requires. All other forms are
        derived from it.
    activation : dict
        The ``activation`` of the :class:`TrainableModel` as it was before ``graph`` was changed for the loss. A later
        call with another loss restores it.
    shapes : dict of str to tuple
        The shape of a row of each input, as in the data of the last call.
    frozen : dict of str to ndarray
        Parameters that are not trained, and fixed running statistics.
    parameters : FlatParameters
        The trained parameters, and the updated running statistics.
    decoding : Decoding
        How scores become predictions.
    rng : numpy.random.RandomState
        Draws the order of the rows in each epoch and the validation split.
    device : Device
    session_options : dict or None
        Options of the user for sessions of onnxruntime.
    engine : str
        Name of the gradient engine.
    seed : int
        Seed of dropout.
    fitted : FittedModel or None
        Description of the fitted model from which the graph was made; None for any other model.
    began : Start or None
        The given model and the settings with which it was read.
    optimizer_state : OptimizerState
    history : History
    snapshots : tuple of ndarray
        Parameter buffers saved during training (``SnapshotEnsemble``), whose predictions are averaged. If empty,
        ``parameters`` are used.
    balanced : tuple of float or None
        The weight of each class that ``class_weight="balanced"`` computed from the data of the last fit.
    balanced_outputs : tuple of (tuple of float or None)
        ``balanced`` of each output, if several outputs are trained together.
    minibatch_rows : int or None
        Minibatch size of the last call, to which later calls pad shorter minibatches; None without plain training,
        because fine-tuning has a step of its own.
    alpha : float
        The strength of the penalty on weights in the last call, that of ``alpha="auto"`` resolved.
    sparse : tuple of str
        The inputs that were sparse matrices in the last call.
    step_kind : StepKind or None
        How the last step ran its passes and updates, and why, for ``describe()``; None without plain training.
    compared : str
        Text for ``describe()``: which comparisons with a given file were made before training.
    live : LiveSessions
        The caches, which pickles leave out.
    """

    graph: TrainableModel
    activation: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    frozen: dict[str, np.ndarray]
    parameters: FlatParameters
    decoding: Decoding
    rng: np.random.RandomState
    device: Device
    session_options: Mapping[str, Any] | None
    engine: str
    seed: int
    fitted: FittedModel | None = None
    began: Start | None = None
    optimizer_state: OptimizerState = field(default_factory=OptimizerState)
    history: History = field(default_factory=History)
    snapshots: tuple[np.ndarray, ...] = ()
    balanced: tuple[float, ...] | None = None
    balanced_outputs: tuple[tuple[float, ...] | None, ...] = ()
    minibatch_rows: int | None = None
    alpha: float = 0.0
    sparse: tuple[str, ...] = ()
    step_kind: StepKind | None = None
    compared: str = ""
    live: LiveSessions = field(default_factory=LiveSessions)

    @property
    def trained_form(self) -> TrainableModel:
        """The trained form of the graph, made on first use."""
        if self.live.trained_form is None:
            dtype = self.parameters.buffer.dtype
            self.live.trained_form = in_trained_form(self.graph, self.shapes, self.parameters.names, dtype)
        return self.live.trained_form

    def scored_form(self, columns: Columns) -> TrainableModel:
        """Return the form that predicts with the parameters in training: the trained form, if it takes ``columns``.

        It takes rows of the shape of those that are trained on; the given graph takes others where it leaves axes free.
        """
        rows = {name: column.shape[1:] for name, column in columns.items()}
        fits = all(rows.get(spec.name, spec.shape[1:]) == spec.shape[1:] for spec in self.trained_form.inputs)
        if fits and not (self.graph.is_whole or self.graph.takes_examples):
            return self.trained_form
        return self.graph if self.graph.dtype == self.parameters.buffer.dtype else as_float32(self.graph)

    @property
    def with_activation(self) -> TrainableModel:
        """``graph`` with its final activation restored, because a later loss may read a value elsewhere in it."""
        return replace(self.graph, **self.activation)

    @property
    def deployed(self) -> TrainableModel:
        """The graph for prediction and export: low-rank factors merged, and an input for each column of a table."""
        graph = without_low_rank(self.graph, [one for one in self.graph.low_rank if one.is_merged])
        if self.fitted is None or self.fitted.parts is None:
            return graph
        whole = self.fitted.parts.whole
        return replace(graph, model=whole.model, inputs=whole.inputs)

    def fitted_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name, without those that :class:`Recorded` properties read from history."""
        found: dict[str, Any] = {
            "_state": self,
            "n_outputs_": self.decoding.n_columns,
            "engine_": self.engine,
            "device_": self.device.name,
        }
        if self.decoding.parts:
            names = [form.output for form in self.graph.forms]
            known = {
                n: part.classes for n, part in zip(names, self.decoding.parts, strict=True) if part.classes is not None
            }
            return {**found, "n_outputs_": len(names), "output_names_": names, "classes_": known}
        return found if self.decoding.classes is None else {**found, "classes_": self.decoding.classes}

    def weights(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter and running statistic that predictions use, in the graph's order and type.

        They are averaged if the optimizer averages, and low-rank factors are merged into the matrices.
        """
        return self.graph.kept.rounded(merged(self.prediction_weights(), self.graph.low_rank))

    def prediction_weights(self) -> dict[str, np.ndarray]:
        """Return :meth:`weights` before merging: low-rank factors are separate entries beside the matrices."""
        return self.graph.weights({**self.frozen, **self.parameters.prediction_views()})

    def trained_weights(self) -> dict[str, np.ndarray]:
        """Return the weights as they are trained: not averaged, and with low-rank factors as separate entries."""
        return self.graph.weights({**self.frozen, **self.parameters.views()})

    def predictor(self, columns: Columns, *, with_scores: bool = False) -> Predictor:
        """Return a predictor with a copy of the current weights, for inputs as sparse or dense as ``columns``.

        With ``with_scores``, the scores are its last output.
        """
        sparse = sparse_inputs(columns)
        key = ("scores" if with_scores else "predict", sessions.forks(), sparse)
        if key not in self.live.predictors:
            make: Callable[..., Any] = inference_model if sparse else filled_graph
            inference = make(*predicting_model(self), self.decoding, with_scores=with_scores)
            width = sum(math.prod(shape) for shape in self.shapes.values())
            self.live.predictors[key] = Predictor(
                inference,
                self.device,
                self.session_options,
                width=width,
                sparse=sparse,
                rows_meet=partial(self.rows_of_predictions_meet, with_scores=with_scores),
                whole=self.graph.is_whole,
                batch=self.graph.batch,
            )
        return self.live.predictors[key]

    def kept_predictor(
        self, kind: tuple[object, ...], sparse: tuple[str, ...], make: Callable[[], Predictor]
    ) -> Predictor:
        """Return the predictor of another output of the graph; it is made once for the current weights."""
        key = (kind, sessions.forks(), sparse)
        if key not in self.live.predictors:
            self.live.predictors[key] = make()
        return self.live.predictors[key]

    def predictions(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return the predictions for ``columns``, by the name of scikit-learn's method."""
        predictor = self.predictor(columns)
        results = {"predict": predictor.run(columns)}
        if self.decoding.has_probabilities:
            results["predict_proba"] = predictor.run(columns, output=1)
        elif self.decoding.task != "regression":
            results["decision_function"] = predictor.run(columns, output=1)
        return results

    def plain_predictor(self) -> Predictor:
        """Return a predictor for the outputs of the graph in the units in which it is trained; the scores are last.

        It reads the parameters in place if the graph uses them unchanged, which saves the two copies of a session.
        """
        decoding = self.decoding.in_units_of_training()
        graph, dtype = self.graph, self.parameters.buffer.dtype
        live = self.fitted is None and graph.dtype == dtype and not graph.changes_weights
        weights = {**self.frozen, **self.parameters.prediction_views()} if live else self.weights()
        inference = inference_model(self.deployed, weights, decoding, with_scores=True, in_double=False)
        return Predictor(
            inference,
            self.device,
            self.session_options,
            live=self.parameters if live else None,
            rows_meet=partial(self.rows_of_predictions_meet, with_scores=True),
            whole=self.graph.is_whole,
            batch=self.graph.batch,
        )

    def to_onnx(self, options: OutputOptions, *, rows_first: bool = False) -> onnx.ModelProto:
        """Return the inference graph with the current weights.

        Its inputs and outputs have the rows on the same axes as the given file; with ``rows_first``, on the first axis.
        """
        graph, weights = predicting_model(self, exports=True)
        graph = replace(graph, layout={}) if rows_first else graph
        return to_proto(exported_model(graph, weights, self.decoding, options))

    def graph_to_predict(self) -> bytes:
        """Return the inference graph of :meth:`predictor`, with the current weights, to embed in a larger graph."""
        return prediction_graph(inference_model(*predicting_model(self), self.decoding)).content

    def live_predictor(self, columns: Columns, *, with_scores: bool = False) -> Predictor:
        """Return a predictor that reads the parameters while they are trained, for inputs as sparse as ``columns``."""
        sparse = sparse_inputs(columns)
        # its predictions may not read all parameters
        with_scores = with_scores or self.graph.own_loss is not None
        if sparse:
            inference: Any = inference_model(
                self.scored_form(columns), self.frozen, self.decoding, with_scores=with_scores
            )
        else:
            live = self.parameters.prediction_views()
            weights = {**self.frozen, **live}
            inference = filled_graph(
                self.scored_form(columns), weights, self.decoding, with_scores=with_scores, live=live
            )
        rows_meet = partial(self.rows_of_predictions_meet, with_scores=with_scores)
        return Predictor(
            inference,
            self.device,
            self.session_options,
            live=self.parameters,
            sparse=sparse,
            rows_meet=rows_meet,
            whole=self.graph.is_whole,
            batch=self.graph.batch,
        )

    def rows_of_predictions_meet(self, *, with_scores: bool) -> bool:
        """Return True if rows meet: the prediction of a row depends on the rows that are predicted with it."""
        form = self.trained_form
        if form.own_loss is not None and not with_scores:  # the scores are the losses
            form = replace(form, scores=form.output)
        return where_rows_meet_in_graph(form, self.session_options, in_training=False) is not None


def sparse_inputs(columns: Columns, *, every: bool = False) -> tuple[str, ...]:
    """Return the names of the inputs that stay sparse in products or, with ``every``, of all sparse inputs."""
    return tuple(name for name, one in columns.items() if one.stays_sparse or (every and one.is_sparse))


def in_trained_form(
    graph: TrainableModel,
    shapes: Mapping[str, tuple[int, ...]],
    trained: Collection[str],
    dtype: DType | None = None,
    columns: Columns | None = None,
) -> TrainableModel:
    """Return the graph as it is trained: rows have ``shapes``, and statistics that no trained weight affects are fixed.

    ``dtype`` float32 converts a float64 graph; None keeps its type. A graph whose data are one thing is bound to
    ``columns``; without them, it keeps its inputs.
    """
    fixed = graph.with_shapes(shapes).with_frozen_statistics(trained)
    if graph.is_whole and columns is not None:
        fixed = bound_to_data(fixed, {name: column.rows(slice(None)) for name, column in columns.items()})
    return fixed if dtype in (None, fixed.dtype) else as_float32(fixed)


# The ``model`` of the first call. Later calls continue to train its graph, and refuse another model.


@dataclass(frozen=True)
class Start:
    """The parameters of the first call that determine the graph; objects are copied."""

    model: ModelLike
    output: str | None
    output_kind: str | Mapping[str, str] = "auto"
    training_mode: bool = False
    constant_inputs: Mapping[str, Any] | None = None
    batch_axis: int | Mapping[str, int] = 0
    adapters: LoRA | None = None

    @classmethod
    def by(cls, estimator: Parameters) -> Start:
        """Return copies of the parameters of ``estimator`` that determine the graph."""
        model = bare_model(estimator.model)
        kept = copied(model) if hasattr(model, "build") else without_program(model)
        return cls(kept, **{name: copied(value) for name, value in _compared(estimator).items()})

    def require_same(self, estimator: Parameters) -> None:
        """Raise ModelError if a later call has another model, or reads it with other settings."""
        for name, now in _compared(estimator).items():
            first = getattr(self, name)
            if content(first) != content(now):
                raise ModelError(_message(name, first, now))
        model = bare_model(estimator.model)
        if model is not self.model and content(_default(model)) != self._content:
            raise ModelError(_message("model", _model_text(self.model), _model_text(model)))

    @cached_property
    def _content(self) -> object:
        return content(_default(self.model))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_content"}


def _compared(estimator: Parameters) -> dict[str, Any]:
    """Return the settings that determine the graph, without the model itself."""
    given = resolve_graph_model(estimator.model)
    names = ("output", "output_kind", "training_mode", "constant_inputs", "batch_axis")
    settings = {name: getattr(given, name) for name in names}
    return {**settings, "adapters": estimator.adapters}


def _default(model: ModelLike) -> Any:
    if isinstance(model, os.PathLike):
        return os.fspath(model)
    return resolve_builder(model) or without_program(model)


def _model_text(model: ModelLike) -> str:
    model = without_program(model)
    return repr(model) if model is None or isinstance(model, str) or hasattr(model, "build") else type(model).__name__


def _message(name: str, first: object, now: object) -> str:
    change = f"from {first} to {now}" if str(first) != str(now) else f"to another {now}"
    return (
        f"{name} was changed {change}, but warm_start and partial_fit go on training the graph of the first call. Set "
        f"the earlier {name} to go on; to train another, set warm_start=False and call fit, or take a new "
        f"estimator (sklearn.base.clone)."
    )


# Predict with snapshots: the weights of several moments of a training.


class RunOfMembers(Protocol):
    """The attributes of a state that :func:`predicting_model` reads."""

    graph: TrainableModel
    decoding: Decoding
    frozen: dict[str, np.ndarray]
    parameters: FlatParameters
    snapshots: tuple[np.ndarray, ...]

    @property
    def deployed(self) -> TrainableModel: ...
    def weights(self) -> dict[str, np.ndarray]: ...


def predicting_model(state: RunOfMembers, *, exports: bool = False) -> tuple[TrainableModel, dict[str, np.ndarray]]:
    """Return the graph that predicts, and its weights. With snapshots, it computes the mean of all their networks.

    If it ``exports``, examples are not packed.
    """
    deployed = unpacked(state.deployed) if exports else state.deployed
    if not state.snapshots:
        return deployed, state.weights()
    graph, members = state.graph, []
    for buffer in state.snapshots:
        weights = graph.weights({**state.frozen, **state.parameters.with_buffer(buffer).prediction_views()})
        members.append(graph.kept.rounded(merged(weights, graph.low_rank)))
    return ensemble_of(deployed, members)


def require_single_scores(state: RunOfMembers) -> None:
    """Raise ValueError if a SnapshotEnsemble cannot average the predictions of this model."""
    graph, decoding = state.graph, state.decoding
    reasons = {
        "its graph has several outputs": bool(decoding.parts),
        "its labels are at positions of a row": decoding.positions is not None,
        "its targets have several axes": bool(decoding.row_shape),
        "its graph is an ensemble already": graph.members is not None,
        "its classes are chosen by votes or by a threshold": graph.link == "votes" or graph.class_output is not None,
        "its file keeps weights in a narrow type": bool(graph.kept.weights),
        "its graph is quantized": holds_fakes(graph.model),
        "it trains low-rank factors": bool(graph.low_rank),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"SnapshotEnsemble is for one network with a score a target or class, but {reason}.")


# Fitted attributes about the course of training, read from the history of the fitted state.
#
# They are properties, not copies set at the end of a call. So they always agree with each other and with the weights,
# whenever training ended, and callbacks see their current values.


class NotRecordedError(Exception):
    """Raised if the history has no value for a fitted attribute; the message is the reason."""


class Recorded(property):
    """A property that computes a fitted attribute from the history; AttributeError before the estimator is fitted."""

    def __init__(self, read: Callable[[History], Any], doc: str) -> None:
        super().__init__(self._value, doc=doc)
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _value(self, estimator: object) -> Any:
        state = vars(estimator).get("_state")
        try:
            if state is None:
                raise NotRecordedError("it is not fitted")
            return self._read(state.history)
        except NotRecordedError as reason:
            name = type(estimator).__name__
            raise AttributeError(f"{name!r} object has no attribute {self._name!r}: {reason}.") from None


def best_validation_score(history: History) -> float | None:
    """Return the best validation score; None without validation data, or if no score was a finite number."""
    return history.best_score if history.scores.size and math.isfinite(history.best_score) else None


def fine_tuning_columns(history: History) -> dict[str, np.ndarray]:
    """Return the table of fine-tuning's candidates: a copy of each column, by name."""
    if history.fine_tuning is None:
        raise NotRecordedError("its model was not fine-tuned")
    return {name: column.copy() for name, column in history.fine_tuning.items()}
