"""TabM with its whole recipe: preprocessing, network, and the training settings of its authors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._utils.cache import with_attributes
from .._utils.params import COUNT, NOT_NEGATIVE, POSITIVE, Declaration, OneOf, declare, documented, switch
from ..models.embeddings import Embedding
from ..models.tabular import TabM
from ..optimizers import AdamW
from .base import FOR_CLASSES, FOR_NUMBERS, ClassifierRecipe, RegressorRecipe
from .preprocessing import Preprocessing, QuantileScaling, Scaling

if TYPE_CHECKING:
    from typing_extensions import Self

SMALL_ROWS = 2000
"""Rows below which "auto" trains smaller networks in smaller steps.

Steps of 256 rows are one or two an epoch there, so that the authors' patience ends training after a few dozen of them,
which may be too early: on hitters (benchmarks/defaults.py) with an R² of 0.05 in place of 0.57."""


# fmt: off
@dataclass(eq=False, repr=False)
class TabMRecipe:
    """The network of TabM and its training, with the parameters of both."""

    n_members: int = declare(32, Declaration("int", "Number of networks that share weights.", TabM.valid["n_members"]))
    _: KW_ONLY
    mini: bool = declare(False, switch("""
Whether they share all weights but a vector before the first layer and the last layer."""))
    embedding: str | Embedding | None = declare(None, Declaration("str, Embedding or None", """
Embedding of the numeric columns; TabM's authors use "piecewise_linear".""", TabM.valid["embedding"]))
    hidden_layer_sizes: int | Sequence[int] | str = declare("auto", Declaration('int, sequence of int or "auto"', """
Units of each hidden layer. "auto": three layers of 512, below 2,000 rows of 256; two after an embedding.""",
        TabM.valid["hidden_layer_sizes"]))
    dropout: float = declare(0.1, Declaration("float", """
Share of the hidden units that each training step drops.""", TabM.valid["dropout"]))
    learning_rate_init: float = declare(0.002, Declaration("float", """
Learning rate, the same in all steps.""", (POSITIVE,)))
    weight_decay: float = declare(3e-4, Declaration("float", "Decoupled weight decay, as in AdamW.", (NOT_NEGATIVE,)))
    max_iter: int = declare(1000, Declaration("int", """
Largest number of epochs. Training ends earlier if the validation score does not rise in ``n_iter_no_change``
epochs.""", (COUNT,)))
    n_iter_no_change: int = declare(16, Declaration("int", """
Epochs without a better validation score that end training.""", (COUNT,)))
    batch_size: int | str = declare("auto", Declaration('int or "auto"', """
Largest number of rows of a minibatch; the rows of an epoch are divided about equally. "auto": 256, below 2,000 rows
32.""", (COUNT, OneOf(("auto",)))))
    # fmt: on

    _scaling: ClassVar[type[Scaling]] = QuantileScaling
    _drops_constants: ClassVar[bool] = True
    _early_stopping: ClassVar[bool | str] = True

    def _values_for(self, n_rows: int) -> dict[str, object]:
        """Return the values of the parameters that are "auto"."""
        units, batch_size = (256, 32) if n_rows < SMALL_ROWS else (512, 256)
        values = {"batch_size": batch_size, "hidden_layer_sizes": (units,) * (3 if self.embedding is None else 2)}
        return {name: value for name, value in values.items() if isinstance(getattr(self, name), str)}

    def _model(self, preprocessing: Preprocessing) -> TabM:
        return TabM(
            self.n_members,
            mini=self.mini,
            embedding=self.embedding,
            hidden_layer_sizes=self.hidden_layer_sizes,
            dropout=self.dropout,
            categories=preprocessing.code_columns or None,
        )

    def _training(self, n_rows: int) -> dict[str, Any]:
        """Return the settings of the training on ``n_rows`` rows."""
        assert not isinstance(self.batch_size, str)
        steps = math.ceil(n_rows / self.batch_size)
        return {
            "optimizer": AdamW(weight_decay=self.weight_decay),
            "learning_rate_init": self.learning_rate_init,
            "batch_size": math.ceil(n_rows / steps),  # steps of about equal size: a short last one would weigh as much
            "max_iter": self.max_iter,
            "tol": 1e-9,  # any rise of the validation score counts
            "n_iter_no_change": self.n_iter_no_change,
        }


ABOUT_TABM = {
    "data": """\
Columns of numbers are mapped to quantiles of the normal distribution, missing ones replaced by the median and
marked; constant ones are left out. Categories become indicators. All of it is in the ONNX graph, which takes the
table as it is. A step costs forty to seventy times one of RealMLP: 32 networks of 512 units are trained. Below 2,000
rows they have 256 units and take smaller steps, which needs fewer epochs; a fit still takes three to fifteen times as
long as one of RealMLP and scores about the same.""",
    "unvalidated": "the training loss says when training ends",
    "notes": """\
Notes
-----
There is neither ``partial_fit`` nor ``warm_start``: the preprocessing is fitted to all rows, and rows are held out to
choose the epoch, on which a later call would train. Rows that arrive over time are for
``OrtGradientClassifier(TabM())`` or the regressor, behind transformers that were fitted once.

References
----------
Gorishniy, Kotelnikov and Babenko, "TabM: advancing tabular deep learning with parameter-efficient ensembling",
ICLR 2025.""",
}
"""Texts of both estimators' documentation, by the names in braces that they replace."""


@documented(**ABOUT_TABM, **FOR_CLASSES)
@dataclass(kw_only=True, eq=False, repr=False)
class TabMClassifier(ClassifierRecipe, TabMRecipe):
    """Classify the rows of a table by TabM, an ensemble of networks that share most weights.

    {data}

    {parameters}
    {attributes}

    See Also
    --------
    TabM : The network alone, for :class:`OrtGradientClassifier`.

    {notes}

    Examples
    --------
    >>> import pandas as pd
    >>> from onnxtrain_sklearn import TabMClassifier
    >>> X = pd.DataFrame({"petals": [3, 4, 5, None] * 25, "color": ["red", "blue", None, "red"] * 25})
    >>> y = ["rose", "iris", "rose", "tulip"] * 25
    >>> classifier = TabMClassifier(n_members=4, hidden_layer_sizes=32, learning_rate_init=0.01, random_state=0)
    >>> classifier = classifier.fit(X, y)
    >>> classifier.score(X, y)
    1.0
    >>> [value.name for value in classifier.to_onnx().graph.input]
    ['petals', 'color']
    """

    __module__ = "onnxtrain_sklearn"  # the path by which pickles name it

    def _for_rows(self, n_rows: int) -> Self:
        return with_attributes(self, **self._values_for(n_rows))

    def _network(self, preprocessing: Preprocessing, n_rows: int) -> OrtGradientClassifier:
        return OrtGradientClassifier(self._model(preprocessing), **self._training(n_rows))



@documented(**ABOUT_TABM, **FOR_NUMBERS)
@dataclass(kw_only=True, eq=False, repr=False)
class TabMRegressor(RegressorRecipe, TabMRecipe):
    """Predict numbers from the rows of a table by TabM, an ensemble of networks that share most weights.

    {data}

    {parameters}
    {attributes}

    See Also
    --------
    TabM : The network alone, for :class:`OrtGradientRegressor`.

    {notes}

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onnxtrain_sklearn import TabMRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> regressor = TabMRegressor(n_members=4, hidden_layer_sizes=32, learning_rate_init=0.01, random_state=0)
    >>> regressor = regressor.fit(X[:342], y[:342])
    >>> regressor.score(X[342:], y[342:]) > 0.4
    True
    """

    __module__ = "onnxtrain_sklearn"  # the path by which pickles name it

    def _for_rows(self, n_rows: int) -> Self:
        return with_attributes(self, **self._values_for(n_rows))

    def _network(self, preprocessing: Preprocessing, n_rows: int) -> OrtGradientRegressor:
        return OrtGradientRegressor(self._model(preprocessing), loss=self.loss, **self._training(n_rows))
