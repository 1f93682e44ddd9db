"""Parameters of the recipes: valid values and documentation, declared once.

Each recipe sets one of these mappings as its ``declared``. A text that depends on the estimator has a name in braces,
which ``documented`` replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

from .._estimators import parameters
from .._utils.params import COUNT, NOT_NEGATIVE, POSITIVE, OneOf, Parameter, Range, Sizes, switch
from ..losses import LogLoss
from ..models.tabular import RealMLP, TabM

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
"""Texts of a classifier's documentation, by the names in braces that they replace."""

FOR_NUMBERS: Mapping[str, str] = {"attributes": f"Attributes\n----------\n{_ATTRIBUTES}", "score": "R²"}
"""The same for a regressor."""
