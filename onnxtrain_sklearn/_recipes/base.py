"""Base class of the estimators for raw tables: preprocessing, training of the members, one graph that predicts.

What is fitted is the graph alone: pickles hold its bytes, ``predict`` runs it, and ``to_onnx`` returns it. A recipe
says how numbers are scaled and which network is trained by which settings.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .._data.targets import Targets, row_weights
from .._estimators.attempt import INTERRUPTED
from .._estimators.interrupts import belongs_to_caller
from .._graph.protobuf import to_proto
from .._inference.predictor import Predictor
from .._runtime import devices, sessions
from .._runtime.devices import Device
from .._support.declared import Declared
from .._support.typing import MatrixLike
from ..exceptions import warn
from .assembly import Member, assembled
from .examples import TableExamples
from .folds import validation_folds
from .preprocessing import Preprocessing, fit_preprocessing
from .raw_table import CategoricalFeatures, categorical_columns, read_table
from .scaling import SCALINGS

if TYPE_CHECKING:
    from typing_extensions import Self

Network: TypeAlias = Any
"""An :class:`OrtGradientClassifier` or :class:`OrtGradientRegressor`; their attributes are set by ``fit``."""


class BaseRecipe(Declared, BaseEstimator, ABC):
    """An estimator that takes a raw table."""

    categorical_features: CategoricalFeatures
    n_ensembles: int
    validation_fraction: float | None
    random_state: int | np.random.RandomState | None
    engine: str
    device: str

    _scaling: ClassVar[str]
    _drops_constants: ClassVar[bool] = False
    _early_stopping: ClassVar[bool | str] = "best_epoch"
    _graph: bytes
    _inputs: Preprocessing
    _device: Device
    _predictors: dict[int, Predictor]
    classes_: np.ndarray
    n_outputs_: int

    @abstractmethod
    def _encode(self, y: ArrayLike) -> Targets:
        """Return the targets."""

    @abstractmethod
    def _network(self, preprocessing: Preprocessing, n_rows: int, seed: int) -> Network:
        """Return the estimator to train on ``n_rows`` rows of the preprocessed table."""

    def fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the preprocessing and train the network.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, n_features)
            Numbers and categories; None, NaN and the missing values of pandas are missing.
        y : array-like of shape (n_samples,)
            Targets; for regression also of shape (n_samples, n_outputs).
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss and in the validation score, >= 0; None: one. The preprocessing counts all
            rows alike, but those of weight 0 not at all.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data are invalid.
        DivergenceError
            The loss became NaN or infinite.

        After an error the estimator is what it was before. After an interrupt (Ctrl-C) it keeps the weights reached so
        far; members of an ensemble that were not begun are left out.
        """
        self.check_declared()
        before = dict(vars(self))
        try:
            interrupted = self._fit(X, y, sample_weight)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        if interrupted is not None:
            if belongs_to_caller(self):
                raise interrupted
            warn(INTERRUPTED, UserWarning)
        return self

    def _fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None) -> KeyboardInterrupt | None:
        """Fit; return the interrupt that ended the training early."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        table = read_table(self, X, reset=True)
        categorical = categorical_columns(table, self.categorical_features)
        targets = self._encode(y)
        check_consistent_length(table.columns[0], targets.values)
        weights = row_weights(sample_weight, targets, getattr(self, "class_weight", None))
        device = devices.resolve_device(self.device)
        return self._train(TableExamples(table, categorical, targets, weights), device)

    def _train(self, examples: TableExamples, device: Device) -> KeyboardInterrupt | None:
        rng, interrupted = check_random_state(self.random_state), None
        trained: list[tuple[Preprocessing, Network]] = []
        count, fraction = self.n_ensembles, self.validation_fraction
        try:
            for split in validation_folds(examples.used, examples.labels, count, fraction, rng):
                self._add_member(trained, examples, split, device, np.random.RandomState(rng.randint(2**31 - 1)))
        except KeyboardInterrupt as error:
            interrupted = error
            trained = [(prepared, network) for prepared, network in trained if hasattr(network, "n_iter_")]
            if not trained:
                raise
        members = [Member(prepared, ir.from_proto(network.to_onnx())) for prepared, network in trained]
        graph, networks = assembled(members, examples.classes), [network for _, network in trained]
        self._keep(examples, networks, to_proto(graph).SerializeToString(), members[0].preprocessing, device)
        return interrupted

    def _add_member(
        self,
        trained: list[tuple[Preprocessing, Network]],
        examples: TableExamples,
        split: tuple[np.ndarray, np.ndarray],
        device: Device,
        rng: np.random.RandomState,
    ) -> None:
        """Train a member of the ensemble on the first rows of ``split``, and validate it on the others.

        It is among ``trained`` before its training begins, so that an interrupt does not lose it.
        """
        rows, held = split
        own, scaling = examples.table.rows(rows), SCALINGS[self._scaling]
        prepared = fit_preprocessing(own, examples.categorical, scaling, rng, drops_constants=self._drops_constants)
        network = self._network(prepared, len(rows), rng.randint(2**31 - 1))
        X, y, weights = examples.prepared(prepared, rows, device)
        settings: dict[str, Any] = {"sample_weight": weights}
        if len(held):
            names, parts = ("X_val", "y_val", "sample_weight_val"), examples.prepared(prepared, held, device)
            settings |= dict(zip(names, parts, strict=True))
            network.set_params(early_stopping=self._early_stopping)
        if examples.classes is not None:
            settings["classes"] = examples.classes
        trained.append((prepared, network))
        network.fit(X, y, **settings)

    def _keep(
        self, examples: TableExamples, networks: list[Network], graph: bytes, inputs: Preprocessing, device: Device
    ) -> None:
        """Set the fitted attributes, all at once."""
        vars(self).update(
            _graph=graph,
            _inputs=inputs,
            _device=device,
            _predictors={},
            n_outputs_=networks[0].n_outputs_,
            n_iter_=max(network.n_iter_ for network in networks),
            loss_curves_=[network.loss_curve_ for network in networks],
            validation_scores_=[network.validation_scores_ for network in networks],
            engine_=networks[0].engine_,
            device_=networks[0].device_,
        )
        if examples.classes is not None:
            self.classes_ = examples.classes

    def _predict(self, X: MatrixLike, output: int) -> np.ndarray:
        """Return an output of the graph for the rows of a table."""
        check_is_fitted(self)
        table = read_table(self, X, reset=False)
        rows = len(table)
        # onnxruntime multiplies one row alone by another kernel, whose last bit differs: two rows are as any others.
        columns = self._inputs.columns(table.rows(np.zeros(2, int)) if rows == 1 else table)
        key = sessions.forks()
        if key not in self._predictors:
            model = ir.from_proto(self.to_onnx())
            self._predictors[key] = Predictor(model, self._device, None, width=self._inputs.width)
        return self._predictors[key].run(columns, output=output)[:rows]

    def to_onnx(self) -> onnx.ModelProto:
        """Return the graph that predicts from the raw table.

        Returns
        -------
        onnx.ModelProto
            Preprocessing, networks and their mean. A table of numbers is one input ``X`` of shape (N, n_features);
            missing numbers are NaN. A table with text has an input of shape (N, 1) for each column, by its name: text
            as strings, all others as float32; missing text is the empty string. The outputs are those of
            :meth:`predict`: ``variable`` for regression, ``label`` and ``probabilities`` for classification.
        """
        check_is_fitted(self)
        return onnx.load_model_from_string(self._graph)

    @property
    def model_(self) -> onnx.ModelProto:
        """The graph that predicts, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_predictors": {}} if "_predictors" in state else state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_graph")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


def balanced_batch(n_rows: int, wanted: int) -> int:
    """Return the rows of a minibatch that make as many steps as full ones of ``wanted`` rows, without a remainder."""
    return math.ceil(n_rows / max(1, n_rows // wanted))


def even_batch(n_rows: int, most: int) -> int:
    """Return the rows of a minibatch, at most ``most``, that make the fewest steps of about equal size."""
    return math.ceil(n_rows / math.ceil(n_rows / most))
