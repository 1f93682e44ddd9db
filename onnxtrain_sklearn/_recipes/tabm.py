"""TabM with its whole recipe: estimators for raw tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._models.embeddings import Embedding
from .._models.tabm import TabM
from .._support.rules import COUNT, NOT_NEGATIVE, Rules
from .._support.typing import ClassWeight
from ..optimizers import AdamW
from .base import SHARED_RULES, balanced_batch
from .kinds import ClassifierRecipe, RegressorRecipe
from .preprocessing import Preprocessing
from .raw_table import CategoricalFeatures

BUILT = ("n_members", "mini", "embedding", "hidden_layer_sizes", "dropout")
"""The parameters of the network."""

RULES: Rules = {
    **SHARED_RULES,
    **{name: TabM.valid[name] for name in BUILT},
    "weight_decay": (NOT_NEGATIVE,),
    "n_iter_no_change": (COUNT,),
}


def _tabm_settings(recipe: Any, n_rows: int, seed: int) -> dict[str, Any]:
    """Return the parameters of the network that both kinds share."""
    return {
        "optimizer": AdamW(weight_decay=recipe.weight_decay),
        "learning_rate_init": recipe.learning_rate_init,
        "batch_size": balanced_batch(n_rows, recipe.batch_size),
        "max_iter": recipe.max_iter,
        "tol": 1e-9,
        "n_iter_no_change": recipe.n_iter_no_change,
        "random_state": seed,
        "verbose": recipe.verbose,
        "engine": recipe.engine,
        "device": recipe.device,
    }


def _tabm(recipe: Any, preprocessing: Preprocessing) -> TabM:
    built = {name: getattr(recipe, name) for name in BUILT}
    return TabM(**built, categories=preprocessing.code_columns or None)


class TabMClassifier(ClassifierRecipe):
    """Classify the rows of a table by TabM, an ensemble of networks that share most weights.

    Columns of numbers are mapped to quantiles of the normal distribution, missing ones replaced by the median and
    marked; constant ones are left out. Categories become indicators. All of it is in the ONNX graph, which takes the
    table as it is. A step costs forty to seventy times one of RealMLP: 32 networks of 512 units are trained.

    Parameters
    ----------
    n_members : int, default=32
        Networks that share weights.
    mini : bool, default=False
        Whether they share all but a vector in front and the last layer.
    embedding : str, Embedding or None, default=None
        Embedding of the numeric columns: "piecewise_linear" is the one that TabM's authors take.
    hidden_layer_sizes : int, sequence of int or "auto", default="auto"
        Units of each hidden layer; "auto": three layers of 512, or two behind an embedding.
    dropout : float, default=0.1
        Share of the hidden units that a training step leaves out.
    learning_rate_init : float, default=0.002
        The learning rate, which is constant.
    weight_decay : float, default=0.0003
        Decoupled decay of the weights.
    max_iter : int, default=1000
        Epochs, at most: training ends when the validation score has not risen for ``n_iter_no_change`` epochs.
    n_iter_no_change : int, default=16
        The patience.
    batch_size : int, default=256
        Rows of a minibatch; a little more where that leaves no remainder.
    n_ensembles : int, default=1
        Ensembles that are trained, each with another validation part, and averaged in one graph.
    validation_fraction : float or None, default=0.2
        Share of the rows that each network holds out, at most one half: the epoch that scores best on them (accuracy)
        is kept. None: nothing is held out, and the training loss says when training ends.
    class_weight : dict, "balanced" or None, default=None
        Weight of the rows of each class by label, multiplied with ``sample_weight``.
    categorical_features : "from_dtype", list or None, default="from_dtype"
        Columns that are categories. "from_dtype": text, booleans and pandas categories. A list of names, of indices
        or a mask of all columns; None: no column.
    random_state : int, RandomState or None, default=None
        Seeds validation parts, initial weights, the order of the rows and dropout.
    verbose : bool or int, default=0
        Whether to print a line for each epoch.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        What differentiates the graph.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:1".

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
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
    engine_, device_ : str
        What was used.
    model_ : onnx.ModelProto
        The graph, as :meth:`to_onnx` returns it.

    See Also
    --------
    TabM : The network alone, for :class:`OrtGradientClassifier`.

    Notes
    -----
    There is no ``partial_fit``: the preprocessing is fitted to all rows.

    References
    ----------
    Gorishniy, Kotelnikov and Babenko, "TabM: advancing tabular deep learning with parameter-efficient ensembling",
    ICLR 2025.

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

    _scaling = "quantile"
    _drops_constants = True
    _early_stopping = True
    _parameter_rules = RULES

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
        class_weight: ClassWeight = None,
        categorical_features: CategoricalFeatures = "from_dtype",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
    ) -> None:
        self._store(vars())

    def _network(self, preprocessing: Preprocessing, n_rows: int, seed: int) -> OrtGradientClassifier:
        settings = _tabm_settings(self, n_rows, seed)
        return OrtGradientClassifier(_tabm(self, preprocessing), **settings)


class TabMRegressor(RegressorRecipe):
    """Predict numbers from the rows of a table by TabM, an ensemble of networks that share most weights.

    Columns of numbers are mapped to quantiles of the normal distribution, missing ones replaced by the median and
    marked; constant ones are left out. Categories become indicators. All of it is in the ONNX graph, which takes the
    table as it is. A step costs forty to seventy times one of RealMLP: 32 networks of 512 units are trained.

    Parameters
    ----------
    n_members : int, default=32
        Networks that share weights.
    mini : bool, default=False
        Whether they share all but a vector in front and the last layer.
    embedding : str, Embedding or None, default=None
        Embedding of the numeric columns: "piecewise_linear" is the one that TabM's authors take.
    hidden_layer_sizes : int, sequence of int or "auto", default="auto"
        Units of each hidden layer; "auto": three layers of 512, or two behind an embedding.
    dropout : float, default=0.1
        Share of the hidden units that a training step leaves out.
    learning_rate_init : float, default=0.002
        The learning rate, which is constant.
    weight_decay : float, default=0.0003
        Decoupled decay of the weights.
    max_iter : int, default=1000
        Epochs, at most: training ends when the validation score has not risen for ``n_iter_no_change`` epochs.
    n_iter_no_change : int, default=16
        The patience.
    batch_size : int, default=256
        Rows of a minibatch; a little more where that leaves no remainder.
    n_ensembles : int, default=1
        Ensembles that are trained, each with another validation part, and averaged in one graph.
    validation_fraction : float or None, default=0.2
        Share of the rows that each network holds out, at most one half: the epoch that scores best on them (R²)
        is kept. None: nothing is held out, and the training loss says when training ends.
    categorical_features : "from_dtype", list or None, default="from_dtype"
        Columns that are categories. "from_dtype": text, booleans and pandas categories. A list of names, of indices
        or a mask of all columns; None: no column.
    random_state : int, RandomState or None, default=None
        Seeds validation parts, initial weights, the order of the rows and dropout.
    verbose : bool or int, default=0
        Whether to print a line for each epoch.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        What differentiates the graph.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:1".

    Attributes
    ----------
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
    engine_, device_ : str
        What was used.
    model_ : onnx.ModelProto
        The graph, as :meth:`to_onnx` returns it.

    See Also
    --------
    TabM : The network alone, for :class:`OrtGradientRegressor`.

    Notes
    -----
    There is no ``partial_fit``: the preprocessing is fitted to all rows.

    References
    ----------
    Gorishniy, Kotelnikov and Babenko, "TabM: advancing tabular deep learning with parameter-efficient ensembling",
    ICLR 2025.

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

    _scaling = "quantile"
    _drops_constants = True
    _early_stopping = True
    _parameter_rules = RULES

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
        categorical_features: CategoricalFeatures = "from_dtype",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
    ) -> None:
        self._store(vars())

    def _network(self, preprocessing: Preprocessing, n_rows: int, seed: int) -> OrtGradientRegressor:
        settings = _tabm_settings(self, n_rows, seed)
        return OrtGradientRegressor(_tabm(self, preprocessing), **settings)
