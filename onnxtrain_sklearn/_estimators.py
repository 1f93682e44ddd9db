"""The estimators: scikit-learn's conventions around a training run.

Constructors store their arguments and do nothing else. ``fit`` resolves and checks everything before it changes the
estimator; an error leaves it as it was. What the two estimators do differently, targets and predictions, is in the
two public classes; all else is in their base.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
import onnx
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from . import _runtime
from ._data import Column, dict_columns, shaped
from ._gradient.engine import choose_engine
from ._graph.model import TensorSpec, TrainableModel, to_proto
from ._inference import inference_model
from ._run import (
    Run,
    batches_for,
    built_source,
    go_on,
    head_for,
    is_builder,
    prepare_step,
    score_columns,
    source_of,
    start,
)
from ._step import StepSettings
from ._targets import Targets, class_targets, regression_targets, row_weights
from ._trainer import Trainer, TrainerSettings
from .exceptions import DivergenceError
from .losses import LOSSES, Loss, resolve_loss
from .models import MLP
from .optimizers import LBFGS, BaseOptimizer, resolve_optimizer
from .schedules import Schedule, resolve_schedule

AUTO_BATCH = 200
"""Rows of a minibatch where ``batch_size="auto"``, as in scikit-learn's MLP."""

LBFGS_PIECE = 4096
"""Rows of the pieces that the full batch of L-BFGS is accumulated from."""

Columns = dict[str, Column]


class BaseOrtGradient(BaseEstimator, ABC):
    """What the classifier and the regressor share."""

    def __init__(
        self,
        model: Any = None,
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
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        session_options: Mapping[str, Any] | None = None,
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
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
    ) -> BaseOrtGradient:
        """Train the graph for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), or dict of str to array-like
            Data in the shape of the graph's input; rows that are flattened are given the input's shape. A graph with
            several inputs takes a dict of arrays by input name.
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
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val belong together: give both or neither.")
        validation = None if X_val is None else (X_val, y_val, sample_weight_val)
        return self._train(X, y, sample_weight, resume=self.warm_start, validation=validation)

    def to_onnx(self) -> onnx.ModelProto:
        """Return the trained inference graph.

        Returns
        -------
        onnx.ModelProto
            Without training-only operators, with the opset domains that it uses. A classifier's has the outputs
            ``label`` and ``probabilities`` (``scores`` where the loss gives no probabilities), as skl2onnx names
            them; a regressor's keeps the graph's output. Its predictions are those of ``predict``.
        """
        check_is_fitted(self)
        return to_proto(inference_model(self._run.source, self._run.weights(), self._run.head))

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained inference graph, as :meth:`to_onnx` returns it."""
        return self.to_onnx()

    @property
    def weights_(self) -> dict[str, np.ndarray]:
        """A copy of every float parameter of the graph, trained or frozen, and of running statistics, by name."""
        check_is_fitted(self)
        return self._run.weights()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @abstractmethod
    def _encode(self, y: Any, classes: Any) -> Targets:
        """Return the targets as numbers; ``classes`` are those already known."""

    @abstractmethod
    def _score(self, output: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return the validation score of a live predictor's output."""

    _live_output: int
    """Which output of a live predictor :meth:`_score` takes."""

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        resume: bool,
        one_pass: bool = False,
        classes: Any = None,
        validation: tuple[Any, Any, Any] | None = None,
    ) -> Any:
        with self._unchanged_on_error():
            run, trainer = self._prepare(X, y, sample_weight, resume, one_pass, classes, validation)
        run.predictors = {}
        try:
            trainer.one_pass() if one_pass else trainer.fit()
        except DivergenceError:
            self._publish(run)
            raise
        self._publish(run)
        return self

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _prepare(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        resume: bool,
        one_pass: bool,
        classes: Any,
        validation: tuple[Any, Any, Any] | None,
    ) -> tuple[Run, Trainer]:
        """Check everything and put together what trains; nothing has been trained yet."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        trainer_settings = self._trainer_settings()
        old: Run | None = getattr(self, "_run", None) if resume else None
        source = self._known_source(old)
        columns = self._columns(X, None if source is None else source.inputs, reset=old is None)
        n_rows = len(next(iter(columns.values())))
        targets = self._encode(y, classes if old is None else old.head.classes)
        _check_rows(columns, len(targets.values), "y")
        weights = row_weights(sample_weight, n_rows, y, getattr(self, "class_weight", None))
        run, settings = self._run_for(old, source, columns, targets)
        rows, split = self._split(run, targets, n_rows, given=validation is not None or one_pass)
        batch = self._batch(len(rows), settings.optimizer)
        batches = batches_for(run, columns, targets, weights, rows, batch, self.shuffle)
        step = prepare_step(run, settings, batches.size)
        validate = self._validation(run, columns, targets, weights, split, validation)
        return run, Trainer(trainer_settings, step, batches, run.history, validate)

    def _trainer_settings(self) -> TrainerSettings:
        """Resolve and check the parameters that concern the loop."""
        _check_number(self, "learning_rate_init", Real, 0.0)
        _check_number(self, "max_iter", Integral, 1)
        _check_number(self, "n_iter_no_change", Integral, 1)
        _check_number(self, "alpha", Real, 0.0)
        _check_number(self, "l1_ratio", Real, 0.0, 1.0)
        if self.early_stopping:
            check_scalar(self.validation_fraction, "validation_fraction", Real, min_val=0.0, max_val=1.0, include_boundaries="neither")
        if self.max_grad_norm is not None:
            check_scalar(self.max_grad_norm, "max_grad_norm", Real, min_val=0.0, include_boundaries="neither")
        if not isinstance(self.tol, Real) or math.isnan(self.tol):
            raise TypeError(f"tol must be a number, got {self.tol!r}.")
        return TrainerSettings(
            learning_rate_init=float(self.learning_rate_init),
            schedule=resolve_schedule(self.learning_rate),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            n_iter_no_change=int(self.n_iter_no_change),
            early_stopping=bool(self.early_stopping),
            verbose=bool(self.verbose),
        )

    def _known_source(self, old: Run | None) -> TrainableModel | None:
        """Return the graph where it is known before the data are: given, or trained before."""
        if old is not None:
            return old.source
        return None if self.model is None or is_builder(self.model) else source_of(self.model, self.output)

    def _run_for(
        self, old: Run | None, source: TrainableModel | None, columns: Columns, targets: Targets
    ) -> tuple[Run, StepSettings]:
        """Return a new run, or the old one brought in line with parameters that were changed since."""
        loss, optimizer = resolve_loss(self.loss), resolve_optimizer(self.optimizer)
        loss.check_targets(targets.values)
        rng = check_random_state(self.random_state) if old is None else old.rng
        device = _runtime.resolve_device(self.device, self.providers, self.provider_options)
        if old is not None:
            assert source is not None
            n_columns = old.head.n_outputs
        elif source is None:
            n_features = next(iter(columns.values())).shape[1]
            source = built_source(MLP() if self.model is None else self.model, n_features, targets.n_outputs, rng)
            n_columns = targets.n_outputs
        else:
            n_columns = score_columns(source, columns, device)
        source, head = head_for(source, loss, targets, n_columns)
        settings = StepSettings(
            loss=loss,
            task=head.task,
            link=head.link,
            n_outputs=n_columns,
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
            return start(source, head, settings, self.trainable, columns, rng), settings
        return go_on(old, source, head, settings, self.trainable, columns), settings

    def _split(self, run: Run, targets: Targets, n_rows: int, *, given: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows to train on, and those held out for early stopping."""
        rows = np.arange(n_rows)
        if not self.early_stopping or given:
            return rows, None
        seed = run.rng.randint(2**31 - 1)
        fraction = float(self.validation_fraction)
        trained, held = train_test_split(rows, test_size=fraction, random_state=seed, stratify=targets.stratify)
        return trained, held

    def _batch(self, n_rows: int, optimizer: BaseOptimizer) -> int:
        if isinstance(optimizer, LBFGS):
            return min(n_rows, LBFGS_PIECE)
        if isinstance(self.batch_size, str):
            if self.batch_size != "auto":
                raise ValueError(f"batch_size must be 'auto' or an integer >= 1, got {self.batch_size!r}.")
            return min(n_rows, AUTO_BATCH)
        check_scalar(self.batch_size, "batch_size", Integral, min_val=1)
        return min(n_rows, int(self.batch_size))

    def _validation(
        self,
        run: Run,
        columns: Columns,
        targets: Targets,
        weights: np.ndarray | None,
        split: np.ndarray | None,
        given: tuple[Any, Any, Any] | None,
    ) -> Callable[[], float] | None:
        """Return the function that scores the parameters while they are trained."""
        if given is not None:
            X, y, sample_weight = given
            columns = self._columns(X, run.source.inputs, reset=False)
            targets = self._encode(y, run.head.classes)
            _check_rows(columns, len(targets.values), "y_val")
            weights = row_weights(sample_weight, len(targets.values), y, None)
            split = np.arange(len(targets.values))
        if split is None:
            return None
        held = Targets(targets.values[split], targets.task, targets.n_outputs, targets.classes)
        held_weights = None if weights is None else weights[split]
        predictor = run.live_predictor()
        live = {spec.name: columns[spec.name].of_type(spec.dtype) for spec in run.model.inputs}
        return lambda: self._score(predictor.run(live, split, self._live_output), held, held_weights)

    def _columns(self, X: Any, specs: tuple[TensorSpec, ...] | None, *, reset: bool) -> Columns:
        """Return the data as the graph's inputs; ``specs`` None stands for a graph that is yet to be built."""
        if isinstance(X, Mapping) and not sp.issparse(X):  # a sparse matrix by keys is a dict too
            return dict_columns(X, specs)
        if specs is not None and len(specs) > 1:
            raise TypeError(
                f"The graph has {len(specs)} inputs: {', '.join(repr(s.name) for s in specs)}. Give X as a dict of arrays by "
                f"input name, got {type(X).__name__}."
            )
        spec = TensorSpec("X", np.dtype(np.float32), (None, None)) if specs is None else specs[0]
        array = validate_data(
            self, X, reset=reset, accept_sparse="csr", allow_nd=len(spec.shape) > 2, ensure_2d=len(spec.shape) > 1
        )
        return {spec.name: Column(shaped(array, spec), spec.dtype)}

    def _publish(self, run: Run) -> None:
        """Set the fitted attributes."""
        history = run.history
        self._run = run
        self.n_outputs_ = run.head.n_outputs
        self.n_iter_, self.t_ = history.progress.epoch, history.progress.samples
        self.loss_curve_ = list(history.loss_curve)
        self.loss_ = history.loss_curve[-1] if history.loss_curve else math.nan
        self.best_loss_ = None if self.early_stopping else history.best_loss
        self.validation_scores_ = list(history.validation_scores) or None
        self.best_validation_score_ = history.best_score if history.validation_scores else None
        self.engine_, self.device_ = run.engine, run.device.name
        if run.head.classes is not None:
            self.classes_ = run.head.classes

    def _predict(self, X: Any, output: int = 0, *, with_scores: bool = False) -> np.ndarray:
        check_is_fitted(self)
        columns = self._columns(X, self._run.source.inputs, reset=False)
        return self._run.predictor(with_scores=with_scores).run(columns, output=output)


def _check_number(estimator: BaseOrtGradient, name: str, kind: type, low: float, high: float | None = None) -> None:
    check_scalar(getattr(estimator, name), name, kind, min_val=low, max_val=high)


def _check_rows(columns: Columns, n_targets: int, name: str) -> None:
    n_rows = len(next(iter(columns.values())))
    if n_rows != n_targets:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: X has {n_rows}, {name} has {n_targets}.")


def _trains_in_minibatches(estimator: BaseOrtGradient) -> bool:
    if isinstance(estimator.optimizer, LBFGS) or estimator.optimizer == "lbfgs":
        raise AttributeError("partial_fit needs an optimizer that trains on minibatches; optimizer='lbfgs' takes all data at once.")
    return True


def _number_type(X: Any) -> type[np.floating[Any]]:
    """Return the type of the predictions for ``X``: as everywhere in scikit-learn, float32 stays what it is."""
    first = next(iter(X.values())) if isinstance(X, Mapping) and not sp.issparse(X) else X
    return np.float32 if getattr(first, "dtype", None) == np.float32 else np.float64


def _check_one_pass(estimator: BaseOrtGradient) -> None:
    if estimator.early_stopping:
        raise ValueError("partial_fit does not support early_stopping=True; it makes one pass and cannot stop earlier.")


def _gives_probabilities(estimator: Any) -> bool:
    run: Run | None = getattr(estimator, "_run", None)
    if run is not None:
        known = run.head.has_probabilities
    else:
        known = isinstance(estimator.loss, str) and estimator.loss not in LOSSES or _links_classes(estimator.loss)
    if not known:
        raise AttributeError(f"predict_proba is not available: loss={estimator.loss!r} gives scores without probabilities.")
    return True


def _links_classes(loss: str | Loss) -> bool:
    return (LOSSES[loss]() if isinstance(loss, str) else loss).link("binary") != "identity"


_PARAMETERS = """
    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, graph builder or None, default=None
        The graph to train: float32 or float64, opset 11 to 21 (a newer one is converted down where ONNX can), with
        its weights as initializers. It is trained from the weights that it has, and is not changed. A graph
        builder, such as ``MLP((64, 32))`` or ``Linear()``, makes one sized to the data; None: ``MLP()``. A softmax
        or sigmoid at its end is recognised: the loss is taken on the logits before it{model_extra}.
    loss : str or Loss, default="{loss}"
        What is minimised: a name in :data:`onnxtrain_sklearn.losses.LOSSES` or an object. The mean over the rows of
        a minibatch, weighted by ``sample_weight``.
    optimizer : str or Optimizer, default="adamw"
        "sgd", "adam", "adamw", "rmsprop", "adagrad", "lbfgs", or an object; its parameters are nested
        (``optimizer__momentum``). "adamw" decays all weights by 0.01 times the learning rate a step, as in PyTorch.
    learning_rate_init : float, default=0.001
        Learning rate that the schedule starts from; 0 leaves the weights as they are.
    learning_rate : str or Schedule, default="constant"
        "constant", "invscaling", "adaptive", "step", "exponential", "cosine", "linear", "one_cycle", "warmup", or
        an object.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto": min(200, n_samples). L-BFGS always takes all rows.
    max_iter : int, default=200
        Epochs at most.
    shuffle : bool, default=True
        Whether the rows are put into a new order before every epoch.
    alpha : float, default=0.0
        Strength of the penalty on parameters of rank >= 2:
        ``alpha (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|²)``, divided by the sum of the sample weights of the
        minibatch, as in scikit-learn's MLP.
    l1_ratio : float, default=0.0
        Share of the L1 norm in the penalty, in [0, 1].
    max_grad_norm : float or None, default=None
        Upper limit of the Euclidean norm of all gradients together; None: no limit.
    trainable : "all", str, list of str, or callable, default="all"
        Which parameters are trained: names or glob patterns ("layers.1.*"), or a function
        ``(name, array) -> bool``. The others keep their values to the bit.
    output : str or None, default=None
        The output of the graph to train; None: the first float output that depends on a float initializer.{class_weight}
    tol : float, default=1e-4
        Least improvement of the loss (or of the validation score) that counts as one.
    n_iter_no_change : int, default=10
        Training ends after more epochs than this in a row without improvement.
    early_stopping : bool, default=False
        Whether to watch the score on validation data instead of the training loss, and to end with the weights that
        scored best.
    validation_fraction : float, default=0.1
        Share of the data that early stopping holds out where ``fit`` is given no ``X_val``.
    warm_start : bool, default=False
        Whether ``fit`` goes on from where the last one ended, weights and optimizer alike.
    random_state : int, RandomState or None, default=None
        Seeds the initial weights of builders, the order of the rows, the validation split and dropout.
    verbose : bool or int, default=0
        Whether to print a line per epoch.
    engine : {{"auto", "ort-training", "portable"}}, default="auto"
        What differentiates the graph.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:1". A device that cannot be had is an error.
    providers, provider_options : list, default=None
        Execution providers of onnxruntime and a dict of options for each, in place of the device's.
    session_options : dict or None, default=None
        Options of onnxruntime's sessions by name (``{{"intra_op_num_threads": 2}}``); names with a dot are configuration
        entries. By default small graphs get one thread, large ones all cores.
"""

_ATTRIBUTES = """
    Attributes
    ----------{classes}
    n_features_in_ : int
        Columns of ``X`` (not for a dict of inputs).
    feature_names_in_ : ndarray of str
        Names of the columns, where ``X`` has them.
    n_outputs_ : int
        Scores a row.
    n_iter_ : int
        Epochs trained.
    t_ : int
        Rows seen.
    loss_ : float
        Mean loss of the last epoch, the penalty included.
    loss_curve_ : list of float
        Mean loss of each epoch.
    best_loss_ : float or None
        Least of them; None with early stopping.
    validation_scores_ : list of float or None
        {score} on the validation data after each epoch.
    best_validation_score_ : float or None
        Best of them.
    engine_, device_ : str
        What was used.
    model_ : onnx.ModelProto
        The trained inference graph.
    weights_ : dict of str to ndarray
        Every float parameter by its name in the graph, trained or frozen, and running statistics.
"""


class OrtGradientRegressor(MultiOutputMixin, RegressorMixin, BaseOrtGradient):
    __doc__ = (
        "Train an ONNX graph for regression, by gradient descent on its own weights.\n"
        + _PARAMETERS.format(
            loss="squared_error",
            model_extra=" for classifiers; an exponential for the losses with a log link (poisson, gamma)",
            class_weight="",
        )
        + _ATTRIBUTES.format(classes="", score="R²")
        + """
    See Also
    --------
    OrtGradientClassifier : The same for classification.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> X, y = make_regression(200, 5, noise=1.0, random_state=0)
    >>> regressor = OrtGradientRegressor(Linear(), optimizer="lbfgs", random_state=0).fit(X, y)
    >>> round(regressor.score(X, y), 2)
    1.0
    """
    )

    _live_output = 0

    @available_if(_trains_in_minibatches)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> OrtGradientRegressor:
        """Train for one pass over the data, going on from where the last call ended.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        self
        """
        _check_one_pass(self)
        return self._train(X, y, sample_weight, resume=True, one_pass=True)  # type: ignore[no-any-return]

    def predict(self, X: Any) -> np.ndarray:
        """Predict numbers.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            float32 where ``X`` is float32, else float64; the numbers are those that the graph gives.
        """
        prediction = self._predict(X).astype(_number_type(X), copy=False)
        return prediction.ravel() if self.n_outputs_ == 1 else prediction

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss == "gamma"
        return tags

    def _encode(self, y: Any, classes: Any) -> Targets:
        return regression_targets(y)

    def _score(self, output: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        return float(r2_score(targets.values, output.reshape(targets.values.shape), sample_weight=weights))


class OrtGradientClassifier(ClassifierMixin, BaseOrtGradient):
    __doc__ = (
        "Train an ONNX graph for classification, by gradient descent on its own weights.\n"
        + _PARAMETERS.format(
            loss="log_loss",
            model_extra=", and ``predict_proba`` returns what it gives",
            class_weight="""
    class_weight : dict, "balanced" or None, default=None
        Weight of the rows of each class, multiplied with ``sample_weight``.""",
        )
        + _ATTRIBUTES.format(
            classes="""
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; for several labels a row, their indices.""",
            score="Accuracy",
        )
        + """
    See Also
    --------
    OrtGradientRegressor : The same for regression.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = OrtGradientClassifier(MLP((16,)), learning_rate_init=0.01, max_iter=300, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True
    >>> [output.name for output in classifier.to_onnx().graph.output]
    ['label', 'probabilities']
    """
    )

    _live_output = -1

    def __init__(
        self,
        model: Any = None,
        *,
        loss: str | Loss = "log_loss",
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
        class_weight: Mapping[Any, float] | str | None = None,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        session_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model,
            loss=loss,
            optimizer=optimizer,
            learning_rate_init=learning_rate_init,
            learning_rate=learning_rate,
            batch_size=batch_size,
            max_iter=max_iter,
            shuffle=shuffle,
            alpha=alpha,
            l1_ratio=l1_ratio,
            max_grad_norm=max_grad_norm,
            trainable=trainable,
            output=output,
            tol=tol,
            n_iter_no_change=n_iter_no_change,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
            engine=engine,
            device=device,
            providers=providers,
            provider_options=provider_options,
            session_options=session_options,
        )
        self.class_weight = class_weight

    @available_if(_trains_in_minibatches)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> OrtGradientClassifier:
        """Train for one pass over the data, going on from where the last call ended.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), default=None
            All labels that any call will bring; needed at the first call, may be left out later.

        Returns
        -------
        self
        """
        _check_one_pass(self)
        known = self._known_classes(y, classes)
        return self._train(X, y, sample_weight, resume=True, one_pass=True, classes=known)  # type: ignore[no-any-return]

    def predict(self, X: Any) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray of shape (n_samples,), or (n_samples, n_labels) of indicators
        """
        labels = self._predict(X)
        return labels if labels.ndim == 2 else np.asarray(labels).astype(self.classes_.dtype)

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict probabilities.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``; for several labels a row, the probability of each.
        """
        return self._predict(X, output=1)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores: logits for the likelihood losses, margins for the hinge losses.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray of shape (n_samples,) for two classes, else (n_samples, n_classes)
        """
        scores = self._predict(X, output=-1, with_scores=True)
        if scores.shape[1] == 1:
            return scores.ravel()
        multilabel = self._run.head.task == "multilabel"
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 and not multilabel else scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _known_classes(self, y: Any, classes: Any) -> np.ndarray | None:
        if hasattr(self, "_run"):
            if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise ValueError(f"classes={np.unique(classes)!r} is not the same as on the last call, {self.classes_!r}.")
            return None
        if classes is None and type_of_target(y) != "multilabel-indicator":
            raise ValueError("classes must be passed on the first call to partial_fit: all labels that any call will bring.")
        return None if classes is None else np.unique(classes)

    def _encode(self, y: Any, classes: Any) -> Targets:
        return class_targets(y, classes)

    def _score(self, output: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        truth = targets.values
        if targets.task == "multilabel":
            labels = output > 0
        else:
            labels = (output[:, 0] > 0 if output.shape[1] == 1 else output.argmax(axis=1)).astype(np.int64)
        return float(accuracy_score(truth.astype(labels.dtype), labels, sample_weight=weights))
