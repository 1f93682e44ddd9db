"""The base classes of the estimators: scikit-learn's conventions, and the public methods that all estimators share.

Constructors only store their arguments. :func:`~.fit.train` resolves and validates everything before it changes the
estimator: an error leaves it unchanged, including weights, optimizer state and random state, with the exceptions
that :class:`~.fit.Transaction` lists. Every other method calls a function on the fitted state.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from .._export.state_files import StateArrays
from .._fitted.fitted_model import is_estimator
from .._inference.graph import OutputOptions
from .._ir.files import require_whole, write
from .._ir.protobuf import to_proto
from .._ir.queries import is_in_file
from .._utils.typing import MatrixLike, TableLike
from ..exceptions import instead_of
from ..finetuning import FineTuner
from ..models import GraphModel
from ..models.given import bare_model
from .adaptation import adaptable_graph, adapters_of, save_adapter
from .call import Call, optional_data
from .coefficients import coefficients_of, intercept_of, trained_estimator
from .config import is_on
from .describe import Description, describe
from .files import export_folder, load_state, read_checkpoint, training_onnx, write_artifacts
from .fit import ONE_OUTPUT, Preparation, initialize, train
from .fitted_state import FittedState, Recorded, best_validation_score, fine_tuning_columns
from .hidden_features import HiddenFeatures
from .outputs import OutputSpec, takes_y
from .parameters import CallbackSupportMixin, Parameters, require_own_names, resolved
from .pickling import cloned, restore_copy, state_of_copy
from .predict import predicted
from .streams_predictions import Batching
from .training_state import constants_of, load_training_state, training_state

if TYPE_CHECKING:
    from typing_extensions import Self


class GraphEstimator(CallbackSupportMixin, Parameters, ABC):
    """Base class of the estimators that train an ONNX graph, on one output or on several."""

    _state: FittedState
    n_outputs_: int
    classes_: Any

    @abstractmethod
    def _preparation(self) -> Preparation:
        """Return the functions with which ``prepare`` prepares this estimator, of one trained output or several."""

    def _decoding_settings(self) -> dict[str, Any]:
        """Return the attributes of :class:`Decoding` that parameters set: those that change predictions alone."""
        return {}

    @abstractmethod
    def to_onnx(self) -> onnx.ModelProto:
        """Return the trained inference graph."""

    def _exported(self, form: OutputOptions, *, adapter: bool, path: str | os.PathLike[str] | None) -> onnx.ModelProto:
        check_is_fitted(self)
        if not isinstance(adapter, bool):
            raise ValueError(f"adapter must be True or False, got {adapter!r}.")
        if path is not None and not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be the path of a file or None, {instead_of(path)}.")
        proto = to_proto(adaptable_graph(self._state, form)) if adapter else self._state.to_onnx(form)
        return require_whole(proto, "A ModelProto") if path is None else write(proto, path)

    # scikit-learn's conventions

    def set_params(self, **params: Any) -> GraphEstimator:
        """Set parameters of this estimator, or of a nested builder or component by ``NAME__PARAMETER``.

        If a component is given by name (``optimizer="sgd"``, or ``model=None`` for ``MLP()``), setting a parameter
        within it replaces the name by the object.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            A name is unknown, or is a parameter of a fitted model, which must be set before that model is fitted.
        """
        model = params.get("model", self.model)
        prefix = "model__"
        if isinstance(model, GraphModel):
            model, prefix = model.graph, "model__graph__"
        within = [name for name in params if name.startswith(prefix)]
        if within and is_estimator(model):
            raise ValueError(
                f"{within[0]}: the parameters of a fitted model are those that it was fitted with. Set them before "
                f"fitting it, and give it as model."
            )
        if not params.keys() <= set(self._own_names()):
            require_own_names(self, params)
            return super().set_params(**resolved(self, params))
        for name, value in params.items():  # what scikit-learn's set_params does, without its slow get_params
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        # Without it scikit-learn looks through all attributes, which fails while another thread fits the estimator.
        return "_state" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        model = bare_model(self.model)
        if is_estimator(model):
            from .._fitted.model_record import takes_nan  # needs much of scikit-learn

            tags.input_tags.allow_nan = takes_nan(model)
        return tags

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy; a fitted model among the parameters stays fitted."""
        return cloned(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: parameters, and the fitted state as plain data."""
        return state_of_copy(super().__getstate__())

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy; if its device or engine is missing, it continues on the CPU or with engine="auto"."""
        super().__setstate__(state)
        restore_copy(self, state)

    # Attributes of a fitted estimator

    n_iter_ = Recorded(lambda history: history.progress.epoch, "Epochs trained, over all calls.")
    t_ = Recorded(lambda history: history.progress.samples, "Rows trained on, over all calls.")
    loss_ = Recorded(
        lambda history: history.losses.last(), "Mean loss of the last epoch; NaN before the first epoch has ended."
    )
    loss_curve_ = Recorded(lambda history: history.loss_curve, "Mean loss of each epoch, of the latest 100,000.")
    history_ = Recorded(
        lambda history: history.rows,
        """A dict for each epoch: epoch, step, loss, learning_rate, seconds, scores, and what callbacks add.

        ``history_.to_frame()`` returns a pandas DataFrame. Epochs before the latest 10,000 keep only epoch and loss.
        """,
    )
    callbacks_ = Recorded(
        lambda history: copy.deepcopy(history.memories),
        """The memory of each callback, by class name. The second one of a class is named ``"EpochScoring 2"``.""",
    )
    best_loss_ = Recorded(
        lambda history: None if history.early_stopping else history.least_loss,
        "Lowest mean loss of an epoch; None with early stopping.",
    )
    validation_scores_ = Recorded(
        lambda history: history.validation_scores or None,
        "Score after each epoch, of the latest 100,000; None without validation data.",
    )
    best_validation_score_ = Recorded(
        best_validation_score,
        "Best validation score; with early stopping, the score of the best epoch. None without validation data.",
    )
    fine_tuning_ = Recorded(fine_tuning_columns, "The candidates of fine-tuning, in columns; plain training has none.")

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained inference graph, as ``to_onnx()`` returns it; a model above 2 GiB lacks this attribute."""
        if any(map(is_in_file, self._state.graph.model.graph.initializers.values())):
            raise AttributeError("No ModelProto can hold a model above 2 GiB: write it by to_onnx(path=...).")
        return self.to_onnx()

    @property
    def weights_(self) -> dict[str, np.ndarray]:
        """A copy of every float parameter of the graph, trained or frozen, and of running statistics, by name."""
        check_is_fitted(self)
        return StateArrays(self._state.weights(), constants_of(self._state))

    @property
    def adapters_(self) -> dict[str, np.ndarray]:
        """A copy of the low-rank factors by name; without adapters there is no such attribute."""
        return adapters_of(self)

    # Public methods that do not predict

    def describe(self) -> Description:
        """Describe what is trained, what stays unchanged, and why.

        Before ``fit``, the description says what would be trained of a given graph or fitted model; after ``fit``, what
        was trained. ``fit`` prints it with ``verbose=1``.

        Returns
        -------
        Description
            ``print`` it, or read its ``entries``: name, shape, dtype, status ("trained", "frozen", "statistic",
            "constant"), reason and factors of every float constant on which the trained output depends. It also holds
            ``n_trained``, ``engine``, ``opset``, ``output``, ``loss``, ``compared`` and ``restored``.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from onnxtrain_sklearn import OrtGradientRegressor
        >>> ridge = Ridge().fit(*load_diabetes(return_X_y=True))
        >>> described = OrtGradientRegressor(ridge, trainable="ridge.coef").describe()
        >>> [(entry.name, entry.status) for entry in described.entries], described.n_trained
        ([('ridge.coef', 'trained'), ('ridge.intercept', 'frozen')], 10)
        """
        return describe(self)

    def save_adapter(self, path: str | os.PathLike[str]) -> None:
        """Write the trained parameters to an ``.onnx_adapter`` file of onnxruntime.

        The file belongs to the graph of ``to_onnx(adapter=True)``, which predicts as the given model until an adapter
        is active. Adapters of other fits of the same model to the same ``targets``, of any rank, fit that graph too.
        The file holds the factors, the scale ``alpha / rank`` multiplied into them, and the parameters that
        ``trainable`` adds. Without ``adapters=LoRA(...)`` it holds all trained parameters: a runtime can then swap the
        weights of one model. ``load_state`` reads the file back.

        Parameters
        ----------
        path : str or path
            The file to write. onnxruntime 1.20 or newer writes and reads it.

        Raises
        ------
        RuntimeNotFoundError
            The installed onnxruntime has no adapter files.

        Examples
        --------
        >>> import tempfile
        >>> import onnxruntime
        >>> from sklearn.datasets import load_digits
        >>> from onnxtrain_sklearn import Linear, LoRA, OrtGradientClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> given = Linear().build(n_features=64, n_outputs=10, random_state=0)
        >>> classifier = OrtGradientClassifier(given, adapters=LoRA(2), learning_rate_init=0.01, tol=1).fit(X, y)
        >>> session = onnxruntime.InferenceSession(classifier.to_onnx(adapter=True).SerializeToString())
        >>> if hasattr(onnxruntime, "LoraAdapter"):
        ...     adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        ...     with tempfile.TemporaryDirectory() as folder:
        ...         classifier.save_adapter(f"{folder}/digits.onnx_adapter")
        ...         adapter.Load(f"{folder}/digits.onnx_adapter")
        ...     options.add_active_adapter(adapter)
        ...     labels, _ = session.run(None, {"X": X.astype("float32")}, options)
        ...     assert (labels == classifier.predict(X)).all()
        """
        check_is_fitted(self)
        save_adapter(self._state, path)

    def load_state(self, state: str | os.PathLike[str] | dict[str, np.ndarray]) -> Self:
        """Load weights that were trained elsewhere, and the optimizer's state if it is included.

        Parameters
        ----------
        state : str, path or dict of str to ndarray
            A folder of :meth:`export_training`, a file in the format of safetensors that a loop over its graphs wrote,
            a file of :meth:`save_adapter`, or a dict of arrays. Its names are those of the graph, as in ``weights_``,
            or those of the vectors in the training graphs.

        Returns
        -------
        self

        Raises
        ------
        ModelError
            A name, a shape or a number does not fit, or the state was trained in a graph with other constants, such as
            another scale of the inputs, or with other class labels; the estimator is unchanged.

        Notes
        -----
        The constants of the graph are compared if the state records them. Folders, files of training graphs, and an
        unmodified ``weights_`` do. A dict made by hand, or a file without the metadata, is compared by names and shapes
        alone.

        A dict with the names of the graph holds no optimizer state, so the optimizer starts anew. If the estimator has
        low-rank adapters, the matrices in the dict have the adapters merged into them, so the adapters start anew from
        a change of zero. With the vectors of training graphs, :meth:`partial_fit` continues exactly: schedules resume
        at the step of the state. Only dropout masks differ, because the estimator draws its own.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> one, other = (OrtGradientClassifier(MLP((8,)), random_state=i) for i in (0, 1))
        >>> one, other = (net.partial_fit(X, y, classes=[0, 1, 2]) for net in (one, other))
        >>> bool((other.load_state(one.weights_).predict_proba(X) == one.predict_proba(X)).all())
        True
        """
        check_is_fitted(self)
        load_state(self._state, state, self.optimizer)
        return self

    def training_state(self) -> dict[str, Any]:
        """Return a copy of everything that training continues from, as arrays, numbers and strings by name.

        Returns
        -------
        dict of str to ndarray, int, float, bool or str
            ``parameters``, all trained weights in one vector, running ``statistics``, the ``average`` of the weights,
            ``slots/NAME`` of the optimizer, counts of steps, the position of the schedules, the random state, the
            history and the memories of callbacks; also a digest of the graph, its constants, the engine and the seed.
            ``numpy.savez(file, **state)`` and msgpack store it without pickling. If the memory of a callback holds any
            other object, a TypeError is raised.

        Examples
        --------
        >>> import io
        >>> import numpy as np
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> net = OrtGradientClassifier(MLP((8,)), random_state=0).partial_fit(X, y, classes=[0, 1, 2])
        >>> file = io.BytesIO()
        >>> np.savez(file, **net.training_state())
        >>> later = OrtGradientClassifier(MLP((8,)), random_state=0).initialize(X, y)
        >>> later = later.load_training_state(np.load(io.BytesIO(file.getvalue()))).partial_fit(X, y)
        >>> bool((later.predict_proba(X) == net.partial_fit(X, y).predict_proba(X)).all())
        True
        """
        check_is_fitted(self)
        return training_state(self._state)

    def load_training_state(self, state: Mapping[str, Any]) -> Self:
        """Load the training state of an estimator with the same graph; training then continues bit for bit.

        Parameters
        ----------
        state : mapping of str to ndarray, number or text
            The result of :meth:`training_state`, possibly from another process or read from a file.

        Returns
        -------
        self

        Raises
        ------
        ModelError
            The state belongs to another graph, to other constants, scales, classes or frozen weights, to another
            optimizer or engine, or is damaged; the estimator is unchanged.

        Notes
        -----
        Parameters are not part of a state: learning rate, schedule and batch size are those of this estimator. The
        estimator must be fitted, or prepared by :meth:`initialize`. Results are equal to the bit only with equal
        package versions and an equal processor.
        """
        check_is_fitted(
            self,
            msg="This %(name)s is not fitted, and a training state belongs to a graph: call initialize(X, y) on the "
            "data of the training first; it takes no step.",
        )
        load_training_state(self, self._state, state)
        vars(self).update(self._state.fitted_attributes())
        return self

    def export_training(
        self,
        folder: str | os.PathLike[str],
        X: MatrixLike | None = None,
        y: MatrixLike | None = None,
        *,
        batch_size: int | None = None,
        form: str = "both",
        target: str = "any",
    ) -> None:
        """Write a folder of graphs that train this model in any onnxruntime, in any language.

        The folder holds ``step.onnx``, a step on a minibatch, ``epoch.onnx``, a loop over the minibatches of an epoch,
        ``predict.onnx``, whose weights are inputs, ``state.safetensors`` with the weights and the optimizer's state,
        and ``manifest.json``, which says what the inputs and outputs are. The graphs consist of ONNX's own operators.
        They continue training as :meth:`partial_fit` would; :meth:`load_state` loads the result back.

        Parameters
        ----------
        folder : str or path
            The folder to write. One that holds an earlier export is replaced as a whole.
        X, y : data as for :meth:`fit`, default=None
            Some rows, which an estimator that is not fitted needs for the shapes of its graph and its classes. Its
            initial state is exported, and the estimator stays unfitted.
        batch_size : int, default=None
            Rows of a minibatch; None: the estimator's batch size times ``accumulate``.
        form : {"both", "step", "epoch"}, default="both"
            The training graphs to write.
        target : {"any", "web"}, default="any"
            Where the graphs must run. "web" includes WebGPU in browsers, which lacks float64: the scalars of a step,
            such as the bias corrections of Adam, and scaled targets are then computed in float32.

        Raises
        ------
        ModelError
            The graphs cannot express a setting (L-BFGS), or an input or a weight has the same name as a tensor of the
            state.
        FileExistsError
            The folder holds other files.

        Examples
        --------
        >>> import os, tempfile
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = OrtGradientClassifier(MLP((8,)), random_state=0).partial_fit(X, y, classes=[0, 1, 2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier.export_training(f"{folder}/iris", batch_size=32)
        ...     sorted(os.listdir(f"{folder}/iris"))
        ['epoch.onnx', 'manifest.json', 'predict.onnx', 'state.safetensors', 'step.onnx']
        """
        export_folder(self, folder, X, y, batch_size=batch_size, form=form, target=target)

    def to_training_onnx(self, *, batch_size: int | None = None) -> onnx.ModelProto:
        """Return the graph of ``to_onnx()`` with a training step in ``training_info``, ONNX's own form.

        The step (``algorithm``) reads the weights of the inference graph by their names. Its own initializers are the
        optimizer's state, which ``initialization`` resets. ``update_binding`` says which output replaces which
        initializer. Runtimes that only predict ignore the step. :func:`~onnxtrain_sklearn.load_training` continues
        training the file.

        Parameters
        ----------
        batch_size : int, default=None
            Rows of a minibatch; None: the estimator's batch size times ``accumulate``.

        Raises
        ------
        ModelError
            The graphs cannot express a setting, as for :meth:`export_training`; the step needs operators outside of
            the default domain; the inference graph lacks the trained values (low-rank factors, float16 weights); or
            the model encodes columns of a table.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import SGD, MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = OrtGradientClassifier(MLP((8,)), optimizer=SGD(), random_state=0)
        >>> classifier = classifier.partial_fit(X, y, classes=[0, 1, 2])
        >>> info = classifier.to_training_onnx().training_info[0]
        >>> sorted(binding.key for binding in info.update_binding)
        ['layers.0.bias', 'layers.0.weight', 'layers.1.bias', 'layers.1.weight', 'step']
        """
        check_is_fitted(self)
        return training_onnx(self, batch_size)


@dataclass(kw_only=True, eq=False, repr=False)
class BaseOrtGradient(HiddenFeatures, GraphEstimator):
    """Base class of the classifier and the regressor: one trained output."""

    finetune: str | FineTuner | None = "auto"  # type: ignore[misc]  # elsewhere it is fixed

    @abstractmethod
    def _output_spec(self) -> OutputSpec:
        """Return the task of the output, as the parameters of the estimator define it."""

    def fit(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        X_old: MatrixLike | None = None,
        y_old: ArrayLike | None = None,
        sample_weight_old: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Train the graph for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), dict of str to array-like, or source
            Data in the shape of the graph's input; flattened rows are reshaped to it. A graph with
            several inputs takes a dict of arrays by input name, :class:`Inputs`, or a data frame whose columns are
            named after the inputs; a fitted model that encodes text takes what it was fitted on. Of examples that
            differ in size, a list: of arrays, or of dicts. Tables in files, by path, pattern or folder, and other
            sources that :class:`RowBlocks` reads, need not fit into memory.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), or of more axes, or str or list of str
            Targets. Rows of several axes, such as images, have the shape of a row of the graph's output. A number or
            label that is missing (NaN or None) beside others of its row does not count; a row without any is left out
            with a warning. Ignored with ``loss="reconstruction"``. Of a table in files, the name of the target column,
            or a list of names; None for
            :class:`RowBlocks`, which holds it.
        sample_weight : array-like of shape (n_samples,) or (n_samples, n_outputs), or str, default=None
            Weight in the mean loss, >= 0, of each row, or of each number or label of rows that have several; None: one.
            Of a table in files, the name of its column, with the weights of rows.
        X_val, y_val, sample_weight_val : like X, y and sample_weight, default=None
            Validation data, scored after each epoch; with ``early_stopping`` they replace the split.
        X_old, y_old, sample_weight_old : like X, y and sample_weight, default=None
            Rows like those that a model was trained on before, for fine-tuning only. They help if the new rows are
            few. ``old_weight`` of :class:`FineTuner` sets their weight relative to the new rows.
        groups : array-like of shape (n_samples,), default=None
            The group of each row, which a splitter reads, such as ``validation_split=GroupShuffleSplit()``.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data are invalid; the estimator is unchanged.
        ModelError
            The graph cannot be read, or cannot be trained on these data.
        DivergenceError
            The loss, weights, optimizer state or validation predictions became NaN or infinite; the estimator holds
            the weights at the start of the last epoch that began with a finite loss.
        """
        needs_y = takes_y(getattr(self, "loss", None))
        validation = optional_data("val", X_val, y_val, sample_weight_val, needs_y=needs_y)
        old_rows = optional_data("old", X_old, y_old, sample_weight_old)
        resume = is_on(self.warm_start)
        return train(self, Call(X, y, sample_weight, None, validation, resume=resume, old_rows=old_rows, groups=groups))

    def initialize(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Prepare the estimator for training, as :meth:`fit` does, without taking a step.

        The graph is built for the data, its weights are drawn, scales and classes are determined, and the optimizer is
        in its initial state: ``t_`` is 0, and the estimator predicts with the initial weights. :meth:`partial_fit`, and
        :meth:`fit` with ``warm_start``, continue from there. :meth:`load_training_state` can load the state of another
        process, because equal data, parameters and ``random_state`` give the same graph. If a fraction of the rows is
        held out for early stopping, the next call draws these rows anew.

        Parameters
        ----------
        X, y, sample_weight, groups : as for :meth:`fit`

        Returns
        -------
        self

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> trained, other = (OrtGradientClassifier(MLP((8,)), random_state=0).initialize(X, y) for _ in range(2))
        >>> other.t_
        0
        >>> trained = trained.partial_fit(X, y)
        >>> other = other.load_training_state(trained.training_state())
        >>> bool((other.predict_proba(X) == trained.predict_proba(X)).all())
        True
        """
        return initialize(self, Call(X, y, sample_weight, None, groups=groups))

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features in the decision function or the prediction, if the graph is one linear layer."""
        return coefficients_of(self)

    @property
    def intercept_(self) -> np.ndarray | float:
        """The bias that is added to the weighted features, if the graph is one linear layer."""
        return intercept_of(self)

    def to_sklearn(self, X: MatrixLike | None = None) -> Any:
        """Return the fitted scikit-learn model that was given, with the trained numbers written back.

        Parameters
        ----------
        X : data as for :meth:`fit`, default=None
            Rows on which the predictions of both models are compared. None: some rows of the last fit. An unpickled
            estimator holds no data and needs ``X``.

        Returns
        -------
        estimator
            A deep copy of ``model``, which is unchanged. Its predictions are those of this estimator, within 1e-5 if
            scikit-learn computes in float64.

        Raises
        ------
        ModelError
            ``model`` is not a fitted scikit-learn model, or a trained number has no counterpart in it; the message
            names the number.
        ValueError
            There are no rows for the comparison.

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
        return trained_estimator(self, self._state, X)

    def export_artifacts(self, folder: str | os.PathLike[str], prefix: str = "") -> None:
        """Write the files from which onnxruntime-training continues training on a device.

        Parameters
        ----------
        folder : str or path
            Folder for ``training_model.onnx``, ``eval_model.onnx``, ``optimizer_model.onnx`` and ``checkpoint``.
        prefix : str, default=""
            Prefix of the file names.

        Raises
        ------
        ModelError
            The files cannot express a setting: a penalty, an optimizer other than SGD, Adam, AdamW and
            OrtAdamW, or batch statistics.

        Notes
        -----
        The inputs of the training model are those of the graph, and the target: ``labels`` (indices into ``classes_``)
        for several classes, else ``target`` in the units of ``y``. Its outputs are the mean loss over the rows, and the
        scores before they are scaled to the units of ``y``. The optimizer starts from its initial state.

        Examples
        --------
        >>> import tempfile
        >>> from sklearn.datasets import load_diabetes
        >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> regressor = OrtGradientRegressor(Linear()).partial_fit(X, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     regressor.export_artifacts(folder)
        ...     loaded = regressor.load_checkpoint(f"{folder}/checkpoint")
        >>> loaded is regressor
        True
        """
        check_is_fitted(self)
        write_artifacts(self, self._state, folder, prefix)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> Self:
        """Load the weights from a checkpoint of onnxruntime-training, and the optimizer's state if it is included.

        Parameters
        ----------
        path : str or path
            A checkpoint that was trained from the files of :meth:`export_artifacts`.

        Returns
        -------
        self

        Raises
        ------
        ModelError
            The file is not a checkpoint, or belongs to another model; the estimator is unchanged.
        """
        check_is_fitted(self)
        read_checkpoint(self._state, path)
        return self

    def _predict(self, X: MatrixLike, output: int = 0, *, with_scores: bool = False) -> np.ndarray:
        return predicted(self, X, output, with_scores=with_scores)

    def _batching(self) -> Batching:
        """Return how the rows of a source are predicted in batches."""
        return Batching.of(self)

    def _preparation(self) -> Preparation:
        return ONE_OUTPUT
