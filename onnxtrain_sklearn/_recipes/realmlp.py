"""RealMLP with its whole recipe: preprocessing, network, and the tuned training settings of its authors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._utils.cache import with_attributes
from .._utils.params import COUNT, POSITIVE, Declaration, OneOf, Sizes, declare, documented
from ..losses import LogLoss
from ..models.embeddings import Embedding
from ..models.layers import signs_of_columns
from ..models.tabular import RealMLP
from ..optimizers import AdamW
from .base import FOR_CLASSES, FOR_NUMBERS, ClassifierRecipe, RegressorRecipe
from .features import LastHiddenLayers
from .preprocessing import Preprocessing, RobustScaling, Scaling

if TYPE_CHECKING:
    from typing_extensions import Self

BETA_2 = 0.95


class Variant(NamedTuple):
    """Settings of the training: rates for classes and numbers, decoupled weight decay."""

    rate_of_classes: float
    rate_of_numbers: float
    weight_decay: float


VARIANTS = {"td": Variant(0.04, 0.2, 0.02), "td-s": Variant(0.04, 0.07, 0.0)}
"""The settings by name; "td-s" is the simple one."""


SMALL_ROWS = 2000
"""Rows below which ``variant="auto"`` trains several small networks, each on other rows, in less than half of the time.

benchmarks/defaults.md shows both on tables on which this was not chosen. On 2,100 rows both score alike."""

OF_SMALL: Mapping[str, object] = {
    "variant": "td-s",
    "n_ensembles": 5,
    "hidden_layer_sizes": (128, 128, 128),
    "max_iter": 64,
    "label_smoothing": 0.0,
    "linear_part": "auto",
}
OF_AUTHORS: Mapping[str, object] = {
    "variant": "td",
    "n_ensembles": 1,
    "hidden_layer_sizes": (256, 256, 256),
    "max_iter": 256,
    "label_smoothing": 0.1,
    "linear_part": False,
}
OF_LARGE: Mapping[str, object] = {**OF_AUTHORS, "label_smoothing": 0.0}
"""Values in place of "auto": OF_SMALL below SMALL_ROWS rows, OF_LARGE from there on, OF_AUTHORS if ``variant`` is "td"
or "td-s".

With ``variant="auto"`` the loss of the held-out rows chooses the epoch of labels. On two tables of 5,472 and 10,000
rows on which this was chosen, the log loss falls from 0.120 to 0.078 and from 0.114 to 0.073, for 0.002 and 0.001 of
the accuracy."""

N_ENSEMBLES = Declaration('int or "auto"', """
Number of models to train. Each holds out other rows, and one graph averages their predictions. "auto": as
``variant`` says.""", (COUNT, OneOf(("auto",))))  # fmt: skip


# fmt: off
@dataclass(eq=False, repr=False)
class RealMLPRecipe:
    """The network of RealMLP and its training, with the parameters of both."""

    variant: str = declare("auto", Declaration('{"auto", "td", "td-s"}', """
Settings of the network and its training. "td": with periodic embeddings of numbers, dropout and weight decay. "td-s":
the simple variant without these; faster, and a little worse. Both have the settings of their authors: "auto" is 1 for
``n_ensembles``, (256, 256, 256) for ``hidden_layer_sizes``, 256 for ``max_iter`` and 0.1 for ``label_smoothing``, and
without ``scoring`` the accuracy or R² chooses the epoch. "auto": "td" from 2,000 rows on, with probabilities in view:
``label_smoothing`` is 0, and the loss chooses the epoch of labels. Below 2,000 rows: five networks "td-s", each on four
of five folds, in a quarter of the epochs. They score better there, in less than half of the time: ``n_ensembles`` is 5,
``hidden_layer_sizes`` (128, 128, 128) and ``max_iter`` 64.""", (OneOf(("auto", *VARIANTS)),)))
    _: KW_ONLY
    hidden_layer_sizes: int | Sequence[int] | str = declare("auto", Declaration('int, sequence of int or "auto"', """
Units of each hidden layer. "auto": as ``variant`` says.""", (Sizes(), OneOf(("auto",)))))
    embedding: str | Embedding | None = declare("auto", Declaration("str, Embedding or None", """
Embedding of the numeric columns. "auto": "periodic" for the variant "td", none for "td-s". "piecewise_linear" is
better if the effect of a number has steps or edges (coordinates of a place), or if single values matter (amounts that
are mostly 0).""", RealMLP.valid["embedding"]))
    learning_rate_init: float | str = declare("auto", Declaration('float or "auto"', """
Largest learning rate of the schedule. "auto": the rate of the variant, {rate}.""", (POSITIVE, OneOf(("auto",)))))
    max_iter: int | str = declare("auto", Declaration('int or "auto"', """
Number of epochs. "auto": as ``variant`` says.""", (COUNT, OneOf(("auto",)))))
    linear_part: bool | str = declare("auto", Declaration('bool or "auto"', """
Whether a linear model is mixed with each network: logistic regression, or ridge regression of numbers, of the
preprocessed columns and the same rows. All networks use the same share, chosen by the likelihood of the held-out rows.
It helps where effects are linear and rows are few or positives rare. "auto": below 2,000 rows, if ``variant`` is
"auto", rows are held out, and each has one label or all its numbers.""", (bool, OneOf(("auto",)))))
    monotonic_cst: Any = declare(None, Declaration("array-like of int, dict of str or int to int, or None", """
Columns of numbers in which the predictions never fall (1) or never rise (-1), if the other columns stay equal; 0: free.
An array has a sign for each column, a dict names some by name or index. For losses of one score a target, and for two
classes, whose second then gets more or less likely, or several labels a row. Missing numbers are beyond the order.""",
        RealMLP.valid["monotonic_cst"]))
    batch_size: int = declare(256, Declaration("int", """
Rows of a minibatch. Each epoch leaves out the last rows of its random order if they do not fill a minibatch.""",
        (COUNT,)))
    # fmt: on

    _scaling: ClassVar[type[Scaling]] = RobustScaling
    _drops_constants: ClassVar[bool] = False
    _early_stopping: ClassVar[bool | str] = "best_epoch"

    def _values_for(self, n_rows: int) -> dict[str, object]:
        """Return the values of the parameters that are "auto", and whether the loss chooses the epoch."""
        auto = self.variant == "auto"
        values = OF_AUTHORS if not auto else OF_SMALL if n_rows < SMALL_ROWS else OF_LARGE
        given = vars(self)
        chosen = {n: value for n, value in values.items() if isinstance(given.get(n), str) and given[n] == "auto"}
        linear_part = chosen.get("linear_part", self.linear_part)
        return {**chosen, "_watches_loss": auto, "_linear_part": linear_part}

    def _model(self, preprocessing: Preprocessing) -> RealMLP:
        categories = preprocessing.code_columns or None
        sizes = self.hidden_layer_sizes
        assert not isinstance(sizes, str)
        signs = self._signs(preprocessing)
        return RealMLP(self.variant, sizes, embedding=self.embedding, categories=categories, monotonic_cst=signs)

    def _signs(self, preprocessing: Preprocessing) -> dict[int, int] | None:
        """Return ``monotonic_cst`` by the columns of the preprocessed table."""
        if self.monotonic_cst is None:
            return None
        names, numbers = preprocessing.names, preprocessing.numbers
        signs = signs_of_columns(self.monotonic_cst, len(names), names)
        for place in np.flatnonzero(signs):
            if place not in numbers:
                raise ValueError(
                    f"monotonic_cst is for columns of numbers, and column {names[place]!r} holds categories or times. "
                    f"Leave it out; categories in order may be numbers."
                )
        return {j: int(signs[i]) for j, i in enumerate(numbers) if i < len(names) and signs[i]} or None

    def _training(self, n_rows: int, rate: float) -> dict[str, Any]:
        """Return the settings of the training on ``n_rows`` rows; ``rate`` is the learning rate for "auto"."""
        given = self.learning_rate_init
        decay = VARIANTS[self.variant].weight_decay
        schedule = "flat_cos" if decay else "constant"
        return {
            "optimizer": AdamW(beta_2=BETA_2, weight_decay=decay, weight_decay_schedule=schedule),
            "learning_rate_init": rate if isinstance(given, str) else given,
            "learning_rate": "coslog4",
            "batch_size": min(n_rows, self.batch_size),
            "drop_last": True,
            "max_iter": self.max_iter,
            "n_iter_no_change": self.max_iter,  # never: the schedule is planned to the last epoch
            "dropout_schedule": schedule,
        }


SCORE_OF_CLASSES = """\
the loss with ``variant="auto"``, else the accuracy; for several labels a row "neg_log_loss\""""

ABOUT_REALMLP = {
    "data": """\
Columns of numbers are scaled and clipped smoothly, missing ones replaced by the median and marked; categories
become indicators, or with "td" trained vectors where there are more than eight. All of it is in the ONNX graph, which
takes the table as it is. The settings are RealMLP's, tuned over many data sets, and below 2,000 rows those of five
smaller networks: there is no need to search.""",
    "unvalidated": "the last epoch is kept",
    "notes": """\
Notes
-----
There is neither ``partial_fit`` nor ``warm_start``: the preprocessing is fitted to all rows, the learning rate falls to
0 in the last epoch, and rows are held out to choose the epoch, on which a later call would train. Rows that arrive over
time are for ``OrtGradientClassifier(RealMLP())`` or the regressor, behind transformers that were fitted once.

References
----------
Holzmüller, Grinsztajn and Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
NeurIPS 2024.""",
}
"""Texts of both estimators' documentation, by the names in braces that they replace."""


@documented(**ABOUT_REALMLP, **{**FOR_CLASSES, "score": SCORE_OF_CLASSES}, rate="0.04")
@dataclass(kw_only=True, eq=False, repr=False)
class RealMLPClassifier(LastHiddenLayers, ClassifierRecipe, RealMLPRecipe):
    """Classify the rows of a table by RealMLP, a multi-layer perceptron with tuned default settings.

    {data}

    {parameters}
    {attributes}

    See Also
    --------
    RealMLP : The network alone, for :class:`OrtGradientClassifier`.

    {notes}

    Examples
    --------
    >>> import pandas as pd
    >>> from onnxtrain_sklearn import RealMLPClassifier
    >>> X = pd.DataFrame({"petals": [3, 4, 5, None] * 25, "color": ["red", "blue", None, "red"] * 25})
    >>> y = ["rose", "iris", "rose", "tulip"] * 25
    >>> classifier = RealMLPClassifier("td-s", max_iter=20, random_state=0).fit(X, y)
    >>> classifier.score(X, y)
    1.0
    >>> [value.name for value in classifier.to_onnx().graph.input]
    ['petals', 'color']
    """

    __module__ = "onnxtrain_sklearn"  # the path by which pickles name it

    n_ensembles: int | str = declare("auto", N_ENSEMBLES)
    label_smoothing: float | str = declare("auto", Declaration('float or "auto"', """
Share of each target that is spread evenly over the classes, in [0, 1). "auto": as ``variant`` says. With 0.1, the
value of RealMLP's authors, a network of two classes learns probabilities between 0.05 and 0.95. With 0, let the loss
choose the epoch (``scoring="neg_log_loss"``), as "auto" does: if the accuracy does, probabilities may be too near to 0
and 1. If a row has several labels, each label has the two classes 0 and 1.""",
        (*LogLoss.valid["label_smoothing"], OneOf(("auto",)))))  # fmt: skip

    def _for_rows(self, n_rows: int) -> Self:
        return with_attributes(self, **self._values_for(n_rows))

    def _network(self, preprocessing: Preprocessing, n_rows: int) -> OrtGradientClassifier:
        training = self._training(n_rows, VARIANTS[self.variant].rate_of_classes)
        loss = LogLoss(label_smoothing=float(self.label_smoothing))
        return OrtGradientClassifier(self._model(preprocessing), loss=loss, **training)


@documented(**ABOUT_REALMLP, **FOR_NUMBERS, rate='0.2, for "td-s" 0.07')
@dataclass(kw_only=True, eq=False, repr=False)
class RealMLPRegressor(LastHiddenLayers, RegressorRecipe, RealMLPRecipe):
    """Predict numbers from the rows of a table by RealMLP, a multi-layer perceptron with tuned default settings.

    {data}

    {parameters}
    {attributes}

    See Also
    --------
    RealMLP : The network alone, for :class:`OrtGradientRegressor`.

    {notes}

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onnxtrain_sklearn import RealMLPRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> regressor = RealMLPRegressor("td-s", max_iter=20, random_state=0).fit(X[:342], y[:342])
    >>> regressor.score(X[342:], y[342:]) > 0.4
    True
    """

    __module__ = "onnxtrain_sklearn"  # the path by which pickles name it

    n_ensembles: int | str = declare("auto", N_ENSEMBLES)

    def _for_rows(self, n_rows: int) -> Self:
        return with_attributes(self, **self._values_for(n_rows))

    def _network(self, preprocessing: Preprocessing, n_rows: int) -> OrtGradientRegressor:
        training = self._training(n_rows, VARIANTS[self.variant].rate_of_numbers)
        return OrtGradientRegressor(self._model(preprocessing), loss=self.loss, clip_predictions=True, **training)
