"""What the two estimators share: scikit-learn's conventions around a training run.

Constructors store their arguments and do nothing else. ``fit`` resolves and checks everything before it changes the
estimator: an error leaves it as it was, weights, optimizer state and random numbers included. Targets and predictions,
in which classification and regression differ, are left to the public classes.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import _runtime
from .._data.inputs import has_several_inputs, input_columns
from .._data.rounding import warn_of_rounding
from .._data.targets import Classes, Targets, require_labels, row_weights
from .._data.validation import faults_of_validation_data, require_scorable, split_rows
from .._fitted.encoding import Columns, Specs, as_trained, table_columns
from .._fitted.equivalence import require_equal, sample_rows
from .._fitted.model import FEATURES, FittedModel, is_estimator, takes_nan
from .._fitted.tables import holds_text
from .._fitted.write_back import write_back
from .._given.comparison import own_output, require_own_start, settled
from .._given.ml_files import FittedFile, of_kind, started
from .._gradient.engine import available_engines, choose_engine
from .._graph.protobuf import to_proto
from .._graph.trainable import TrainableModel
from .._inference.graph import OutputOptions, inference_model
from .._optimizers.lbfgs import LBFGS, BaseOptimizer
from .._training.loop import Trainer
from .._training.loss_graph import StepSettings
from .._typing import Estimator, MatrixLike, Validation
from ..exceptions import ModelError, OnnxTrainWarning
from ..losses import Loss, resolve_loss
from ..models import MLP, Builder, ModelSource, is_builder
from ..optimizers import resolve_optimizer
from ..schedules import Schedule
from .attempt import Attempt
from .coefficients import LinearCoefficients
from .components import resolved
from .description import Describable
from .run import (
    Run,
    batches_for,
    built_source,
    head_for,
    new_run,
    prepare_step,
    require_like,
    require_rows,
    resume_run,
    score_columns,
    source_of,
)
from .settings import batch_limit, require_own_kind, trainer_settings
from .start import Start
from .stored import plain, restored

if TYPE_CHECKING:
    from typing_extensions import Self


class BaseOrtGradient(Attempt, LinearCoefficients, Describable, BaseEstimator, ABC):
    """What the classifier and the regressor share."""

    def __init__(
        self,
        model: ModelSource = None,
        *,
        loss: str | Loss = "squared_error",
        optimizer: str | BaseOptimizer = "adamw",
        learning_rate_init: float = 0.001,
        learning_rate: str | Schedule = "constant",
        batch_size: int | str = "auto",
        max_iter: int = 200,
        shuffle: bool = True,
        alpha: float = 0.0,
        l1_ratio: float = 0.0,
        max_grad_norm: float | None = None,
        trainable: str | Sequence[str] | Callable[[str, np.ndarray], bool] = "all",
        output: str | None = None,
        output_kind: str = "auto",
        tol: float = 1e-4,
        n_iter_no_change: float = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        session_options: Mapping[str, object] | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.learning_rate_init = learning_rate_init
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.max_grad_norm = max_grad_norm
        self.trainable = trainable
        self.output = output
        self.output_kind = output_kind
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.engine = engine
        self.device = device
        self.providers = providers
        self.provider_options = provider_options
        self.session_options = session_options

    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> Self:
        """Train the graph for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), or dict of str to array-like
            Data in the shape of the graph's input; rows that are flattened are given the input's shape. A graph with
            several inputs takes a dict of arrays by input name, :class:`Inputs`, or a data frame whose columns are
            named after the inputs; a fitted model that encodes text takes what it was fitted on.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of every row in the mean that the loss is, >= 0; None: one.
        X_val, y_val, sample_weight_val : like the ones above, default=None
            Validation data, scored after each epoch; with ``early_stopping`` they take the place of a split.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data are wrong; the estimator is left as it was.
        ModelError
            The graph cannot be read, or not be trained on these data.
        DivergenceError
            The loss became NaN or infinite; the estimator holds the last finite weights.
        """
        return self._fit(X, y, sample_weight, (X_val, y_val, sample_weight_val))

    def _fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        held: tuple[MatrixLike | None, ArrayLike | None, ArrayLike | None],
        classes: Classes = None,
    ) -> Self:
        if (held[0] is None) != (held[1] is None):
            raise ValueError("X_val and y_val belong together: give both or neither.")
        validation = None if held[0] is None or held[1] is None else (held[0], held[1], held[2])
        return self._train(X, y, sample_weight, resume=self.warm_start, classes=classes, validation=validation)

    @abstractmethod
    def to_onnx(self) -> onnx.ModelProto:
        """Return the trained inference graph."""

    def _exported(self, form: OutputOptions) -> onnx.ModelProto:
        check_is_fitted(self)
        return to_proto(inference_model(self._run.deployed, self._run.weights(), self._run.head, form=form))

    def to_sklearn(self, X: MatrixLike | None = None) -> Any:
        """Return the fitted scikit-learn model that was given, with the trained numbers written back.

        Parameters
        ----------
        X : data as for :meth:`fit`, default=None
            Rows to compare the predictions of both models on. None: some of those of the last fit. A copy that was
            pickled holds no data and needs them.

        Returns
        -------
        estimator
            A deep copy of ``model``, which itself is left as it is. It predicts what this estimator predicts, within
            1e-5 where scikit-learn computes in float64.

        Raises
        ------
        ModelError
            ``model`` is no fitted scikit-learn model, or a number was trained that scikit-learn does not hold; the
            message names it.
        ValueError
            There are no rows to compare on.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from onnxtrain_sklearn import OrtGradientRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> fitted = make_pipeline(StandardScaler(), Ridge()).fit(X[:200], y[:200])
        >>> tuned = OrtGradientRegressor(fitted, trainable=["ridge.*"], learning_rate_init=0.1, max_iter=500)
        >>> tuned = tuned.fit(X[200:], y[200:]).to_sklearn()
        >>> type(tuned).__name__, bool((tuned[-1].coef_ != fitted[-1].coef_).all())
        ('Pipeline', True)
        """
        check_is_fitted(self)
        run = self._run
        if run.fitted is None or isinstance(run.fitted, FittedFile):
            raise ModelError(
                "to_sklearn() needs model= to be a fitted scikit-learn estimator; this one was built or given as ONNX. "
                "Use to_onnx()."
            )
        if X is None and run.sample is None:
            raise ValueError(
                "to_sklearn() compares both models on rows of data, and a pickled estimator holds none: give "
                "some rows, to_sklearn(X)."
            )
        rows = run.sample if X is None else sample_rows(X)
        result = write_back(cast("Estimator", self.model), run.fitted.origins, run.source.weights(), run.weights())
        found = self._on_rows(run, rows)
        require_equal(result, rows, found, what="Take to_onnx(), as the trained graph", tolerance=1e-5)
        return result

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy; a fitted model among the parameters stays what it is."""
        parameters = self.get_params(deep=False)
        copies: dict[str, Any] = {
            n: v if n == "model" and is_estimator(v) else clone(v, safe=False) for n, v in parameters.items()
        }
        twin = type(self)(**copies)
        for name in ("_metadata_request", "_sklearn_output_config"):
            if name in vars(self):
                setattr(twin, name, copy.deepcopy(vars(self)[name]))
        return twin

    def set_params(self, **params: Any) -> Self:
        """Set parameters of this estimator, or of a builder or an object within it by ``NAME__PARAMETER``.

        Where a name stands for an object (``optimizer="sgd"``, or ``model=None`` for ``MLP()``), setting a parameter
        within it puts the object in the name's place.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            A name is unknown, or is one of a fitted model's: its parameters are what it was fitted with.
        """
        within = [name for name in params if name.startswith("model__")]
        if within and is_estimator(params.get("model", self.model)):
            raise ValueError(
                f"{within[0]}: the parameters of a fitted model are those that it was fitted with. Set them before "
                f"fitting it, and give it as model."
            )
        return super().set_params(**resolved(self, params))

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained inference graph, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    @property
    def weights_(self) -> dict[str, np.ndarray]:
        """A copy of every float parameter of the graph, trained or frozen, and of running statistics, by name."""
        check_is_fitted(self)
        return self._run.weights()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy holds: parameters, and what was fitted as plain data."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_run": plain(state["_run"])} if "_run" in state else state

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy; one that was fitted where there was more goes on with what there is here."""
        super().__setstate__(state)
        if "_run" not in state:
            return
        run = self._run = restored(state["_run"])
        if missing := _runtime.missing_providers(run.device.providers):
            self._go_on_with(f"on {missing[0]}", device="cpu", providers=None, provider_options=None)
            run.device = _runtime.resolve_device()
            self.device_ = run.device.name
        if self.engine not in ("auto", *available_engines()):
            self._go_on_with(f"by the engine {self.engine!r}", engine="auto")

    def _go_on_with(self, was: str, **parameters: object) -> None:
        name, value = next(iter(parameters.items()))
        warnings.warn(
            f"This {type(self).__name__} was trained {was}, which the installed onnxruntime {_runtime.version()} "
            f"lacks: it goes on with {name}={value!r}.",
            OnnxTrainWarning,
            stacklevel=3,
        )
        self.__dict__.update(parameters)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = is_estimator(self.model) and takes_nan(self.model)
        return tags

    @abstractmethod
    def _encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return the targets as numbers; ``classes`` are those already known."""

    @abstractmethod
    def _score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return the validation score of what a live predictor predicts."""

    _default_loss: str
    """The loss for which that of a fitted model is taken."""

    def _prepare(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        resume: bool,
        one_pass: bool,
        classes: Classes,
        validation: Validation | None,
    ) -> tuple[Run, Trainer]:
        """Check everything and put together what trains; nothing has been trained yet.

        The step comes last: it is the first to change what a run that goes on shares with the old one.
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        loop = trainer_settings(self)
        old: Run | None = getattr(self, "_run", None) if resume else None
        rng = check_random_state(self.random_state) if old is None else old.rng
        source, fitted = self._known_source(old, X)
        if old is None and fitted is not None:
            self._take_features(fitted)
        specs = None if source is None else source.inputs
        reset = old is None and (fitted is None or isinstance(fitted, FittedFile))
        columns = as_trained(self._columns(X, specs, fitted, reset=reset), fitted, specs)
        known = classes if fitted is None else fitted.known_classes(classes, y)
        if one_pass and old is None:
            require_labels(y, known, classifies=is_classifier(self))
        targets = self._encode(y, known if old is None else old.head.classes)
        require_rows(columns, targets, "y")
        weights = row_weights(sample_weight, targets, getattr(self, "class_weight", None))
        if old is not None:
            require_like(targets, old.head, "y")
        if source is None:
            source, columns = self._built(columns, targets, rng)
        run, settings = self._run_for(old, source, fitted, columns, targets, rng)
        if old is None and isinstance(fitted, FittedFile):
            run.fitted = started(fitted, columns, run.predictions)
        elif old is None and fitted is not None:
            self._require_equal_start(run, X, fitted)
        self._require_numbers(run, columns)
        if targets.task == "regression":
            warn_of_rounding(y, run.model.dtype, "y")
        run.predictors.clear()  # they hold the weights of now
        rows, split = self._split(rng, targets, weights, given=validation is not None or one_pass)
        limit = batch_limit(self.batch_size, settings.optimizer)
        shuffle = bool(self.shuffle) and not isinstance(settings.optimizer, LBFGS)
        batches = batches_for(run, columns, targets, weights, rows, min(len(rows), limit), shuffle)
        validate = self._validation(run, columns, targets, weights, split, validation)
        if one_pass:  # calls may bring more or fewer rows
            step = prepare_step(run, settings, min(len(rows), limit), limit)
        else:
            step = prepare_step(run, settings, batches.size, batches.size)
        return self._announced(run, old), Trainer(loop, step, batches, run.history, validate)

    def _known_source(self, old: Run | None, X: MatrixLike) -> tuple[TrainableModel | None, FittedModel | None]:
        """Return the graph where it is known before the data are: given, or trained before."""
        if old is not None:
            if old.began is not None:
                old.began.require_same(self.model, self.output, self.output_kind)
            return old.given, old.fitted
        if self.model is None or is_builder(self.model):
            return None, None
        if is_estimator(self.model):
            require_own_kind(self)
        return of_kind(source_of(self.model, self.output, has_text=holds_text(X)), classifies=is_classifier(self))

    def _take_features(self, fitted: FittedModel) -> None:
        """Hold the data to the features that the fitted model knows."""
        self._forget_features()
        self.__dict__.update(fitted.features)

    def _forget_features(self) -> None:
        for name in FEATURES:
            self.__dict__.pop(name, None)

    def _require_equal_start(self, run: Run, X: MatrixLike, fitted: FittedModel) -> None:
        """Raise where the graph does not predict what the fitted model predicts; words may differ in every row."""
        rows = X if fitted.table is not None and fitted.table.takes_words else sample_rows(X)
        what = "It is refused, as training would begin from another model: its ONNX form"
        require_equal(cast("Estimator", self.model), rows, self._on_rows(run, rows), what=what, tolerance=1e-4)
        run.sample = sample_rows(X)

    def _on_rows(self, run: Run, rows: MatrixLike) -> dict[str, np.ndarray]:
        """Return what the graph predicts for some rows, by the method of scikit-learn."""
        return run.predictions(self._columns(rows, run.source.inputs, run.fitted, reset=False))

    def _built(self, columns: Columns, targets: Targets, rng: np.random.RandomState) -> tuple[TrainableModel, Columns]:
        """Return the graph that the builder makes for the data, and the data as its input."""
        (column,) = columns.values()
        builder = MLP() if self.model is None else cast("Builder", self.model)
        source = built_source(builder, column.shape[1], targets.n_outputs, rng)
        if len(source.inputs) != 1:
            raise ModelError(f"{type(self.model).__name__}.build made a graph with {len(source.inputs)} inputs, not 1.")
        spec = source.inputs[0]
        return source, {spec.name: column.of_type(spec.dtype)}

    def _run_for(
        self,
        old: Run | None,
        source: TrainableModel,
        fitted: FittedModel | None,
        columns: Columns,
        targets: Targets,
        rng: np.random.RandomState,
    ) -> tuple[Run, StepSettings]:
        """Return a new run, or the old one brought in line with parameters that were changed since."""
        follows = fitted is not None and isinstance(self.loss, str) and self.loss == self._default_loss
        loss = resolve_loss(fitted.loss if follows and fitted is not None else self.loss)
        optimizer = resolve_optimizer(self.optimizer)
        loss.check_targets(targets.values)
        device = _runtime.resolve_device(self.device, self.providers, self.provider_options)
        own = None if old is not None or fitted is not None else own_output(self.model, source, columns, device)
        if own is not None:
            source, n_columns = settled(source, own, self.output_kind, classifies=is_classifier(self))
        elif old is not None:
            n_columns = old.head.n_outputs
        else:
            n_columns = targets.n_outputs if fitted is None else score_columns(source, columns, device)
        seen, head = head_for(source, loss, targets, n_columns)
        settings = StepSettings(
            loss=loss,
            task=head.task,
            link=head.link,
            n_outputs=n_columns,
            groups=head.groups,
            optimizer=optimizer,
            alpha=float(self.alpha),
            l1_ratio=float(self.l1_ratio),
            max_grad_norm=None if self.max_grad_norm is None else float(self.max_grad_norm),
            engine=choose_engine(self.engine),
            device=device,
            session_options=self.session_options,
            seed=int(rng.randint(2**31 - 1)) if old is None else old.seed,
        )
        if old is None:
            run = new_run(source, seen, head, settings, self.trainable, columns, rng, fitted)
            run.began = Start.of(self.model, self.output, self.output_kind)
            if own is not None:
                require_own_start(own, seen, head, run.plain_predictor(), columns, device)
            return run, settings
        return resume_run(old, seen, head, settings, self.trainable, columns), settings

    def _split(
        self, rng: np.random.RandomState, targets: Targets, weights: np.ndarray | None, *, given: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows to train on, and those held out for early stopping; rows of weight zero are in neither."""
        rows = np.arange(len(targets.values)) if weights is None else np.flatnonzero(weights)
        if not self.early_stopping or given:
            return rows, None
        return split_rows(rows, targets, float(self.validation_fraction), rng)

    def _validation(
        self,
        run: Run,
        columns: Columns,
        targets: Targets,
        weights: np.ndarray | None,
        split: np.ndarray | None,
        given: Validation | None,
    ) -> Callable[[], float] | None:
        """Return the function that scores the parameters while they are trained."""
        if given is not None:
            with faults_of_validation_data():
                columns, targets, weights = self._given_validation(run, *given)
            require_scorable(targets, weights)
            split = np.arange(len(targets.values))
        if split is None:
            return None
        held = Targets(targets.values[split], targets.task, targets.n_outputs, targets.classes)
        held_weights = None if weights is None else weights[split]
        predictor = run.live_predictor()
        live = {spec.name: columns[spec.name].of_type(spec.dtype) for spec in run.model.inputs}

        def score() -> float:
            predicted = predictor.run(live, split)
            finite = predicted.dtype.kind != "f" or np.isfinite(predicted).all()
            return self._score(predicted, held, held_weights) if finite else math.nan

        return score

    def _given_validation(
        self, run: Run, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[Columns, Targets, np.ndarray | None]:
        """Return validation data as the graph's inputs, targets and weights, checked like those of training."""
        columns = self._columns(X, run.source.inputs, run.fitted, reset=False)
        columns = as_trained(columns, run.fitted, run.source.inputs)
        targets = self._encode(y, run.head.classes)
        require_rows(columns, targets, "y")
        require_like(targets, run.head, "y")
        return columns, targets, row_weights(sample_weight, targets, getattr(self, "class_weight", None))

    def _columns(self, X: MatrixLike, specs: Specs, fitted: FittedModel | None, *, reset: bool) -> Columns:
        """Return the data as the graph's inputs; ``specs`` None stands for a graph that is yet to be built."""
        if fitted is not None and fitted.table is not None:
            return table_columns(self, X, fitted.table)
        if fitted is not None and has_several_inputs(X):
            raise TypeError("A fitted scikit-learn model takes X as it was fitted, got a dict of arrays.")
        if reset:
            self._forget_features()
        return input_columns(self, X, specs, reset=reset, gaps=self._allows_gaps(fitted))

    def _predict(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> np.ndarray:
        check_is_fitted(self)
        columns = self._columns(X, self._run.source.inputs, self._run.fitted, reset=False)
        self._require_numbers(self._run, columns)
        return self._run.predictor(with_scores=with_scores).run(columns, output=output)

    def _allows_gaps(self, fitted: FittedModel | None) -> bool:
        return fitted.takes_gaps if isinstance(fitted, FittedFile) else self.__sklearn_tags__().input_tags.allow_nan

    def _require_numbers(self, run: Run, columns: Columns) -> None:
        """Raise where a fitted model gives NaN for missing values: a step takes them, and the next one does not."""
        if run.fitted is None or run.fitted.table is not None or not self._allows_gaps(run.fitted):
            return
        gaps = np.unique(np.concatenate([column.gaps() for column in columns.values()]))
        if len(gaps) and np.isnan(run.predictor(with_scores=True).run(columns, gaps, output=-1)).any():
            raise ValueError(
                f"Input X contains NaN in columns in which {type(self.model).__name__} takes no missing values. Fill "
                f"them in before, with a SimpleImputer for instance."
            )
