"""Base class of the estimators for raw tables: parameters, preprocessing, training, one graph that predicts.

What is fitted is the graph alone: pickles hold its bytes, ``predict`` runs it, and ``to_onnx`` returns it. A recipe
says how numbers are scaled and which network is trained by which settings.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .._data.targets import Targets, row_weights
from .._estimators import parameters
from .._estimators.parameters import CallbackSupportMixin, DeclaredEstimator
from .._estimators.pickling import resumed_device
from .._estimators.scoring import Scoring
from .._estimators.transaction import raise_or_warn
from .._export.folder import require_known_form, training_folder, write_folder
from .._fitted.skl2onnx_bridge import register_waiting
from .._inference.predictor import Predictor, prediction_graph
from .._model.links import Task
from .._ort import devices, sessions
from .._ort.devices import Device
from .._training.history import EpochRows
from .._utils.declared import Parameter, switch
from .._utils.errors import refusing
from .._utils.params import COUNT, NOT_NEGATIVE, POSITIVE, OneOf, Range, Sizes
from .._utils.typing import MatrixLike
from ..losses import LogLoss
from ..models.tabular import RealMLP, TabM
from .members import (
    MemberRecipe,
    MemberTasks,
    MemberTraining,
    Network,
    PreparedMember,
    TableExamples,
    TrainedMembers,
    epochs_of,
    prepared_members,
    train_members,
)
from .preprocessing import Preprocessing
from .tables import CategoricalFeatures, categorical_columns, read_table, warn_of_columns
from .training_files import source_of_networks, untrained_networks

if TYPE_CHECKING:
    from typing_extensions import Self


DEFAULT_SCORING: Mapping[Task, Scoring] = {"binary": "accuracy", "multiclass": "accuracy", "multilabel": "neg_log_loss"}
"""Scores of classes. All labels of a row are rarely right where there are many: that share would tell epochs apart by
chance, or not at all."""


class BaseRecipe(CallbackSupportMixin, DeclaredEstimator, ABC):
    """An estimator that takes a raw table."""

    categorical_features: CategoricalFeatures
    n_ensembles: int
    validation_fraction: float | None
    scoring: Scoring | None
    callbacks: Sequence[object] | None
    random_state: int | np.random.RandomState | None
    engine: str
    device: str

    _scaling: ClassVar[str]
    _drops_constants: ClassVar[bool] = False
    _early_stopping: ClassVar[bool | str] = "best_epoch"
    classes_: np.ndarray
    n_outputs_: int
    loss_curves_: list[list[float]]
    _task: Task
    _graph: bytes
    _inputs: Preprocessing
    _device: Device
    _predictors: dict[int, Predictor]
    _epochs: list[dict[str, Any]]

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
        X : data frame, table of Arrow or array-like of shape (n_samples, n_features)
            Numbers and categories; None, NaN and the missing values of pandas are missing.
        y : array-like of shape (n_samples,)
            Targets; for several numbers, or labels that are 0 or 1, of shape (n_samples, n_outputs).
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
            tasks = MemberTasks(self)
            interrupted = tasks.run(lambda: self._fit(X, y, sample_weight, tasks))
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        if interrupted is not None:
            raise_or_warn(interrupted, self)
        return self

    def _fit(
        self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None, tasks: MemberTasks
    ) -> KeyboardInterrupt | None:
        """Fit; return the interrupt that ended the training early."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        table = read_table(self, X, reset=True)
        categorical = categorical_columns(table, self.categorical_features)
        warn_of_columns(table, self.categorical_features)
        targets = self._encode(y)
        check_consistent_length(table.columns[0], targets.values)
        weights = row_weights(sample_weight, targets, getattr(self, "class_weight", None))
        device = devices.resolve_device(self.device)
        examples = TableExamples(table, categorical, targets, weights)
        training = MemberTraining(self._early_stopping, self._watched(targets), tasks.fit)
        trained = train_members(self._members(examples), training, examples, device)
        self._keep(examples, trained, device)
        return trained.interrupted

    def _members(self, examples: TableExamples) -> Iterator[PreparedMember]:
        """Yield the networks to train."""
        recipe = MemberRecipe(self._scaling, self._drops_constants, self._network)
        shares = self.n_ensembles, self.validation_fraction
        return prepared_members(recipe, examples, *shares, examples.generator(self))

    def _watched(self, targets: Targets) -> Scoring | None:
        """Return the score on the rows held out; the recipes' authors watch the accuracy, not the loss."""
        if self.scoring is None:
            return DEFAULT_SCORING.get(targets.task)
        if self.validation_fraction is None:
            raise ValueError(
                f"scoring={self.scoring!r} needs rows that are held out: set validation_fraction, 0.2 for example."
            )
        return self.scoring

    def _keep(self, examples: TableExamples, trained: TrainedMembers, device: Device) -> None:
        """Set the fitted attributes, all at once."""
        networks = trained.networks
        vars(self).update(
            _graph=trained.graph.content,
            _prediction=trained.graph,
            _inputs=trained.preprocessing,
            _device=device,
            _predictors={},
            _epochs=epochs_of(networks),
            n_outputs_=networks[0].n_outputs_,
            n_iter_=max(network.n_iter_ for network in networks),
            loss_curves_=[network.loss_curve_ for network in networks],
            validation_scores_=[network.validation_scores_ for network in networks],
            engine_=networks[0].engine_,
            device_=networks[0].device_,
        )
        if examples.classes is not None:
            self.classes_, self._task = examples.classes, examples.targets.task

    @property
    def history_(self) -> EpochRows:
        """A dict for each epoch of each network, as that of the networks; ``network`` is its number."""
        if "loss_curves_" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'history_': it is not fitted.")
        return EpochRows(map(dict, self._epochs))

    def export_training(
        self,
        folder: str | os.PathLike[str],
        X: MatrixLike,
        y: ArrayLike,
        *,
        form: str = "both",
        target: str = "any",
    ) -> None:
        """Write a folder of graphs that train this model in any onnxruntime, in any language.

        The graphs take rows of the table, texts among them, and hold the preprocessing, which is fitted to ``X``, and
        the network as it is before training. The manifest names the schedules of the recipe, which
        :func:`load_training` follows. The estimator stays as it is.

        Parameters
        ----------
        folder : str or path
            The folder to write. One that holds an earlier export is replaced as a whole.
        X, y : data as for :meth:`fit`
            All rows but those that ``validation_fraction`` holds out shape the preprocessing.
        form : {"both", "step", "epoch"}, default="both"
            The training graphs to write.
        target : {"any", "web"}, default="any"
            What the graphs are to run on. "web": also on WebGPU in browsers, which lacks float64.

        Raises
        ------
        ModelError
            A column has the name of a tensor of the state.
        FileExistsError
            The folder holds other files.

        Notes
        -----
        A loop elsewhere trains to its last epoch: no rows are held out, and no best epoch is kept. What
        :func:`load_training` reads predicts from the table, also with a state that was trained elsewhere (``state``).

        With ``n_ensembles``, a step trains all networks on the same minibatch, each as it would be alone.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> from onnxtrain_sklearn import RealMLPClassifier, load_training
        >>> X = pd.DataFrame({"petals": [3, 4, 5, 6] * 25, "color": ["red", "blue", "white", "red"] * 25})
        >>> y = ["rose", "iris", "rose", "tulip"] * 25
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RealMLPClassifier("td-s", max_iter=20, random_state=0).export_training(f"{folder}/flowers", X, y)
        ...     training = load_training(f"{folder}/flowers", random_state=0)
        >>> for _ in range(20):
        ...     training = training.partial_fit(X, y)
        >>> bool((training.predict(X) == y).all())
        True
        """
        require_known_form(form, target)
        twin = clone(self)
        twin.check_declared()
        networks = list(untrained_networks(twin, X, y))
        with refusing("The training graphs cannot be made"):
            content = training_folder(source_of_networks(type(self).__name__, networks, target), form)
        write_folder(content, folder)

    def _predict(self, X: MatrixLike, output: int) -> np.ndarray:
        """Return an output of the graph for the rows of a table."""
        check_is_fitted(self)
        table = read_table(self, X, reset=False)
        rows = len(table)
        # onnxruntime multiplies one row alone by another kernel, whose last bit differs: two rows are as any others.
        columns = self._inputs.columns(table.rows(np.zeros(2, int)) if rows == 1 else table)
        key = sessions.forks()
        if key not in self._predictors:
            graph = vars(self).get("_prediction") or prediction_graph(ir.from_proto(self.to_onnx()))
            self._predictors[key] = Predictor(graph, self._device, None, width=self._inputs.width)
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
        kept = {name: value for name, value in state.items() if name != "_prediction"}  # the bytes are in _graph
        return {**kept, "_predictors": {}} if "_predictors" in kept else kept

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy; if its device is missing, it continues on the CPU."""
        super().__setstate__(state)
        register_waiting()  # so that skl2onnx, imported by now, converts what is loaded here
        if "_device" in vars(self):
            self._device = resumed_device(self, self._device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_graph")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


def even_batch(n_rows: int, most: int) -> int:
    """Return the rows of a minibatch, at most ``most``, that make the fewest steps of about equal size."""
    return math.ceil(n_rows / math.ceil(n_rows / most))


# The parameters of the recipes: valid values and documentation, declared once.
#
# Where a text depends on the estimator, it has a name in braces, which the estimator fills in.


IN_ALL: Mapping[str, Parameter] = {
    "n_ensembles": Parameter("int", """
Models that are trained, each with another validation part, and averaged in one graph.""", (COUNT,)),
    "validation_fraction": Parameter("float or None", """
Share of the rows that each model holds out, at most one half: the epoch that scores best on them (``scoring``) is kept.
None: nothing is held out, and {unvalidated}.""", (Range(Real, 0, 0.5, closed="right"), None)),
    "scoring": Parameter("str, callable or None", """
Score on the rows held out, higher is better: the name of a scorer of scikit-learn (``"neg_mean_absolute_error"``, for
classes ``"neg_log_loss"`` or ``"roc_auc"``), or a function ``(estimator, X, y) -> float``, which is given a network and
its preprocessed rows. None: {score}."""),
    "categorical_features": Parameter('"from_dtype", list or None', """
Columns that are categories. "from_dtype": text, booleans and pandas categories. A list of names, of indices or a mask
of all columns; None: no column."""),
    "random_state": Parameter("int, RandomState or None", """
Seeds validation parts, initial weights, the order of the rows and dropout."""),
    **{name: parameters.SHARED[name] for name in ("callbacks", "verbose", "engine", "device")},
}  # fmt: skip

CLASS_WEIGHT: Mapping[str, Parameter] = {
    "class_weight": Parameter('dict, list of dicts, "balanced" or None', """
Weight of the rows of each class by label, multiplied with ``sample_weight``. Several labels a row: a list with a dict
for each, or "balanced"; a row weighs the product of the weights of its labels."""),
}  # fmt: skip

LABEL_SMOOTHING: Mapping[str, Parameter] = {
    "label_smoothing": Parameter("float", """
Share of each target that is spread evenly over the classes, in [0, 1); each of several labels a row has two, 0 and 1.
With the 0.1 of RealMLP's authors no probability of two classes is learned that is outside of 0.05 to 0.95. 0 is for
probabilities of rare classes, together with ``scoring="neg_log_loss"``: where the accuracy chooses the epoch, they may
be near 0 and 1 without reason.""",
        LogLoss.valid["label_smoothing"]),
}  # fmt: skip

REALMLP: Mapping[str, Parameter] = {
    **IN_ALL,
    "variant": Parameter('{"td", "td-s"}', """
Settings of the network and of its training. "td": periodic embeddings of numbers, dropout, weight decay. "td-s", the
simple one: none of them; faster, and a little worse.""", (OneOf(("td", "td-s")),)),
    "batch_size": Parameter("int", """
Rows of a minibatch. Each epoch leaves out the rows at the end of its random order that do not fill one.""", (COUNT,)),
    "hidden_layer_sizes": Parameter("int or sequence of int", "Units of each hidden layer.", (Sizes(),)),
    "embedding": Parameter("str, Embedding or None", """
Embedding of the numeric columns. "auto": that of the variant, "periodic" for "td" and none for "td-s";
"piecewise_linear": better where the effect of a number has steps or edges, as that of a place has, or is one of single
values, as that of amounts that are mostly 0.""",
        RealMLP.valid["embedding"]),
    "learning_rate_init": Parameter('float or "auto"', """
Largest learning rate of the schedule; "auto": that of the variant, {rate}.""", (POSITIVE, OneOf(("auto",)))),
    "max_iter": Parameter("int", "Epochs.", (COUNT,)),
}  # fmt: skip

TABM: Mapping[str, Parameter] = {
    **IN_ALL,
    "batch_size": Parameter("int", """
Rows of a minibatch, at most; an epoch is divided into steps of about equal size.""", (COUNT,)),
    "n_members": Parameter("int", "Networks that share weights.", TabM.valid["n_members"]),
    "mini": switch("Whether they share all but a vector in front and the last layer."),
    "embedding": Parameter("str, Embedding or None", """
Embedding of the numeric columns: "piecewise_linear" is the one that TabM's authors take.""", TabM.valid["embedding"]),
    "hidden_layer_sizes": Parameter('int, sequence of int or "auto"', """
Units of each hidden layer; "auto": three layers of 512, or two behind an embedding.""",
        TabM.valid["hidden_layer_sizes"]),
    "dropout": Parameter("float", "Share of the hidden units that a training step leaves out.", TabM.valid["dropout"]),
    "learning_rate_init": Parameter("float", "The learning rate, which is constant.", (POSITIVE,)),
    "weight_decay": Parameter("float", "Decoupled decay of the weights.", (NOT_NEGATIVE,)),
    "max_iter": Parameter("int", """
Epochs, at most: training ends when the validation score has not risen for ``n_iter_no_change`` epochs.""", (COUNT,)),
    "n_iter_no_change": Parameter("int", "The patience.", (COUNT,)),
}  # fmt: skip

_CLASSES = """\
classes_ : ndarray of shape (n_classes,)
    Sorted labels; for several labels a row, their indices.
"""

_ATTRIBUTES = """\
n_features_in_ : int
    Columns of ``X``.
feature_names_in_ : ndarray of str
    Names of the columns, where ``X`` has them.
n_outputs_ : int
    Scores a row.
n_iter_ : int
    Epochs trained.
loss_curves_, validation_scores_ : list of list of float
    Mean loss of each epoch and score on the validation part, a list for each network.
history_ : list of dict
    A dict for each epoch: ``network``, its number, ``epoch``, ``loss``, ``validation_score``, ``seconds`` and others;
    ``history_.to_frame()`` returns a pandas DataFrame.
engine_, device_ : str
    What was used.
model_ : onnx.ModelProto
    The graph, as :meth:`to_onnx` returns it."""

FOR_CLASSES: Mapping[str, str] = {
    "attributes": f"Attributes\n----------\n{_CLASSES}{_ATTRIBUTES}",
    "score": 'the accuracy; for several labels a row "neg_log_loss"',
}
"""What the documentation of a classifier says in place of names in braces."""

FOR_NUMBERS: Mapping[str, str] = {"attributes": f"Attributes\n----------\n{_ATTRIBUTES}", "score": "R²"}
"""The same for a regressor."""
