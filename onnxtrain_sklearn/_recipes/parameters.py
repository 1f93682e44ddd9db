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
Number of models to train. Each holds out other rows, and one graph averages their predictions.""", (COUNT,)),
    "validation_fraction": Parameter("float or None", """
Share of the rows that each model holds out, at most one half. The epoch with the best score on these rows is kept
(``scoring``). None: no rows are held out, and {unvalidated}.""", (Range(Real, 0, 0.5, closed="right"), None)),
    "scoring": Parameter("str, callable or None", """
Score on the rows held out: the name of a scorer of scikit-learn (``"neg_mean_absolute_error"``, for classes
``"neg_log_loss"`` or ``"roc_auc"``), or a function ``(estimator, X, y) -> float`` of a network and its preprocessed
rows. Higher is better. None: {score}."""),
    "categorical_features": Parameter('"from_dtype", list or None', """
The columns that are categories: a list of names or indices, or a mask of all columns. "from_dtype": columns of text,
booleans and pandas categories. None: no column."""),
    "random_state": Parameter("int, RandomState or None", """
Seeds the rows held out, the initial weights, the order of the rows and dropout."""),
    **{name: parameters.SHARED[name] for name in ("callbacks", "verbose", "engine", "device")},
}  # fmt: skip

CLASS_WEIGHT: Mapping[str, Parameter] = {
    "class_weight": Parameter('dict, list of dicts, "balanced" or None', """
Weights of the classes, a dict from labels to weights, which multiply ``sample_weight``. "balanced": inversely
proportional to the weight of the class in ``y``. If a row has several labels: a list with a dict for each, or
"balanced"; the row gets the product of the weights of its labels."""),
}  # fmt: skip

LABEL_SMOOTHING: Mapping[str, Parameter] = {
    "label_smoothing": Parameter("float", """
Share of each target that is spread evenly over the classes, in [0, 1). With 0.1, the value of RealMLP's authors, a
network of two classes learns probabilities between 0.05 and 0.95. For probabilities of rare classes, set 0 together
with ``scoring="neg_log_loss"``: if the accuracy chooses the epoch, probabilities may be too near to 0 and 1. If a row
has several labels, each label has the two classes 0 and 1.""",
        LogLoss.valid["label_smoothing"]),
}  # fmt: skip

REALMLP: Mapping[str, Parameter] = {
    **IN_ALL,
    "variant": Parameter('{"td", "td-s"}', """
Settings of the network and its training. "td": with periodic embeddings of numbers, dropout and weight decay. "td-s":
the simple variant without these; faster, and a little worse.""", (OneOf(("td", "td-s")),)),
    "batch_size": Parameter("int", """
Rows of a minibatch. Each epoch leaves out the last rows of its random order if they do not fill a minibatch.""",
        (COUNT,)),
    "hidden_layer_sizes": Parameter("int or sequence of int", "Units of each hidden layer.", (Sizes(),)),
    "embedding": Parameter("str, Embedding or None", """
Embedding of the numeric columns. "auto": "periodic" for the variant "td", none for "td-s". "piecewise_linear" is
better if the effect of a number has steps or edges (coordinates of a place), or if single values matter (amounts that
are mostly 0).""",
        RealMLP.valid["embedding"]),
    "learning_rate_init": Parameter('float or "auto"', """
Largest learning rate of the schedule. "auto": the rate of the variant, {rate}.""", (POSITIVE, OneOf(("auto",)))),
    "max_iter": Parameter("int", "Number of epochs.", (COUNT,)),
}  # fmt: skip

TABM: Mapping[str, Parameter] = {
    **IN_ALL,
    "batch_size": Parameter("int", """
Largest number of rows of a minibatch; the rows of an epoch are divided about equally.""",
        (COUNT,)),
    "n_members": Parameter("int", "Number of networks that share weights.", TabM.valid["n_members"]),
    "mini": switch("Whether they share all weights but a vector before the first layer and the last layer."),
    "embedding": Parameter("str, Embedding or None", """
Embedding of the numeric columns; TabM's authors use "piecewise_linear".""", TabM.valid["embedding"]),
    "hidden_layer_sizes": Parameter('int, sequence of int or "auto"', """
Units of each hidden layer. "auto": three layers of 512; two after an embedding.""",
        TabM.valid["hidden_layer_sizes"]),
    "dropout": Parameter("float", "Share of the hidden units that each training step drops.", TabM.valid["dropout"]),
    "learning_rate_init": Parameter("float", "Learning rate, the same in all steps.", (POSITIVE,)),
    "weight_decay": Parameter("float", "Decoupled weight decay, as in AdamW.", (NOT_NEGATIVE,)),
    "max_iter": Parameter("int", """
Largest number of epochs. Training ends earlier if the validation score does not rise in ``n_iter_no_change``
epochs.""",
        (COUNT,)),
    "n_iter_no_change": Parameter("int", "Epochs without a better validation score that end training.", (COUNT,)),
}  # fmt: skip

_CLASSES = """\
classes_ : ndarray of shape (n_classes,)
    Sorted labels; if a row has several labels, their indices.
"""

_ATTRIBUTES = """\
n_features_in_ : int
    Number of columns of ``X``.
feature_names_in_ : ndarray of str
    Names of the columns, if ``X`` has them.
n_outputs_ : int
    Number of scores of a row.
n_iter_ : int
    Number of epochs trained.
loss_curves_, validation_scores_ : list of list of float
    Mean loss of each epoch, and score on the rows held out: a list for each network.
history_ : list of dict
    A dict for each epoch: ``network`` (its number), ``epoch``, ``loss``, ``validation_score``, ``seconds`` and others.
    ``history_.to_frame()`` returns a pandas DataFrame.
engine_, device_ : str
    The gradient engine and the device that were used.
model_ : onnx.ModelProto
    The graph that :meth:`to_onnx` returns."""

FOR_CLASSES: Mapping[str, str] = {
    "attributes": f"Attributes\n----------\n{_CLASSES}{_ATTRIBUTES}",
    "score": 'the accuracy; for several labels a row "neg_log_loss"',
}
"""Texts of a classifier's documentation, by the names in braces that they replace."""

FOR_NUMBERS: Mapping[str, str] = {"attributes": f"Attributes\n----------\n{_ATTRIBUTES}", "score": "R²"}
"""The same for a regressor."""
