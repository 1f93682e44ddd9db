"""TabM with its whole recipe: preprocessing, network, and the training settings of its authors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._utils.params import documented
from .._utils.typing import ClassWeight
from ..models.embeddings import Embedding
from ..models.tabular import TabM
from ..optimizers import AdamW
from ..runtime import Runtime
from .base import CLASS_WEIGHT, FOR_CLASSES, FOR_NUMBERS, TABM, ClassifierRecipe, RegressorRecipe
from .preprocessing import Preprocessing
from .raw_table import CategoricalFeatures

BUILT = ("n_members", "mini", "embedding", "hidden_layer_sizes", "dropout")
"""Parameters of the recipe that it passes on to the network."""


def _tabm_settings(recipe: Any, n_rows: int, seed: int) -> dict[str, Any]:
    """Return the parameters that both kinds of network share."""
    steps = math.ceil(n_rows / recipe.batch_size)
    return {
        "optimizer": AdamW(weight_decay=recipe.weight_decay),
        "learning_rate_init": recipe.learning_rate_init,
        "batch_size": math.ceil(n_rows / steps),  # steps of about equal size: a short last one would weigh as much
        "max_iter": recipe.max_iter,
        "tol": 1e-9,  # any rise of the validation score counts
        "n_iter_no_change": recipe.n_iter_no_change,
        "random_state": seed,
        "verbose": recipe.verbose,
        "engine": recipe.engine,
        "device": recipe.device,
        "runtime": recipe.runtime,
    }


def _tabm(recipe: Any, preprocessing: Preprocessing) -> TabM:
    built = {name: getattr(recipe, name) for name in BUILT}
    return TabM(**built, categories=preprocessing.code_columns or None)


ABOUT_TABM = {
    "data": """\
Columns of numbers are mapped to quantiles of the normal distribution, missing ones replaced by the median and
marked; constant ones are left out. Categories become indicators. All of it is in the ONNX graph, which takes the
table as it is. A step costs forty to seventy times one of RealMLP: 32 networks of 512 units are trained.""",
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
class TabMClassifier(ClassifierRecipe):
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
    declared: ClassVar = {**TABM, **CLASS_WEIGHT}

    _scaling = "quantile"
    _drops_constants = True
    _early_stopping = True

    def __init__(
        self,
        n_members: int = 32,
        *,
        mini: bool = False,
        embedding: str | Embedding | None = None,
        hidden_layer_sizes: int | Sequence[int] | str = "auto",
        dropout: float = 0.1,
        learning_rate_init: float = 0.002,
        weight_decay: float = 3e-4,
        max_iter: int = 1000,
        n_iter_no_change: int = 16,
        batch_size: int = 256,
        n_ensembles: int = 1,
        validation_fraction: float | None = 0.2,
        scoring: str | Callable[..., float] | None = None,
        class_weight: ClassWeight = None,
        categorical_features: CategoricalFeatures = "from_dtype",
        random_state: int | np.random.RandomState | None = None,
        callbacks: Sequence[object] | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
        runtime: Runtime | None = None,
    ) -> None:
        self._store(vars())

    def _network(self, preprocessing: Preprocessing, n_rows: int, seed: int) -> OrtGradientClassifier:
        settings = _tabm_settings(self, n_rows, seed)
        return OrtGradientClassifier(_tabm(self, preprocessing), **settings)


@documented(**ABOUT_TABM, **FOR_NUMBERS)
class TabMRegressor(RegressorRecipe):
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
    declared = TABM

    _scaling = "quantile"
    _drops_constants = True
    _early_stopping = True

    def __init__(
        self,
        n_members: int = 32,
        *,
        mini: bool = False,
        embedding: str | Embedding | None = None,
        hidden_layer_sizes: int | Sequence[int] | str = "auto",
        dropout: float = 0.1,
        learning_rate_init: float = 0.002,
        weight_decay: float = 3e-4,
        max_iter: int = 1000,
        n_iter_no_change: int = 16,
        batch_size: int = 256,
        n_ensembles: int = 1,
        validation_fraction: float | None = 0.2,
        scoring: str | Callable[..., float] | None = None,
        categorical_features: CategoricalFeatures = "from_dtype",
        random_state: int | np.random.RandomState | None = None,
        callbacks: Sequence[object] | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
        runtime: Runtime | None = None,
    ) -> None:
        self._store(vars())

    def _network(self, preprocessing: Preprocessing, n_rows: int, seed: int) -> OrtGradientRegressor:
        settings = _tabm_settings(self, n_rows, seed)
        return OrtGradientRegressor(_tabm(self, preprocessing), **settings)
