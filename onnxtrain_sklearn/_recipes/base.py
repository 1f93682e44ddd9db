"""Base class of the estimators for raw tables: parameters, preprocessing, training, one graph that predicts.

What is fitted is the graph alone: pickles hold its bytes, ``predict`` runs it, and ``to_onnx`` returns it. A recipe
says how numbers are scaled and which network is trained by which settings.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_consistent_length

from .._data.targets import Targets, row_weights
from .._estimators import parameters
from .._estimators.declared_estimator import DeclaredEstimator
from .._estimators.interrupts import raise_or_warn
from .._estimators.scoring import Scoring
from .._model.activation import Task
from .._ort import devices
from .._ort.devices import Device
from .._utils.declared import Parameter, switch
from .._utils.params import COUNT, NOT_NEGATIVE, POSITIVE, OneOf, Range, Sizes
from .._utils.typing import MatrixLike
from ..losses import LogLoss
from ..models.tables import RealMLP, TabM
from .members import (
    FittedGraph,
    MemberRecipe,
    MemberTasks,
    MemberTraining,
    Network,
    PreparedMember,
    TableExamples,
    TracedRecipe,
    TrainedMembers,
    epochs_of,
    prepared_members,
    train_members,
)
from .preprocessing import Preprocessing
from .tables import CategoricalFeatures, categorical_columns, read_table, warn_of_columns

if TYPE_CHECKING:
    from typing_extensions import Self


DEFAULT_SCORING: Mapping[Task, Scoring] = {"binary": "accuracy", "multiclass": "accuracy", "multilabel": "neg_log_loss"}
"""Scores of classes. All labels of a row are rarely right where there are many: that share would tell epochs apart by
chance, or not at all."""


class BaseRecipe(TracedRecipe, FittedGraph, DeclaredEstimator, ABC):
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
    _task: Task

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
