"""RealMLP with its whole recipe: estimators for raw tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._models.realmlp import RealMLP
from .._support.rules import POSITIVE, OneOf, Rules, Sizes
from .._support.typing import ClassWeight
from ..losses import LogLoss
from ..optimizers import AdamW
from .base import SHARED_RULES, balanced_batch
from .kinds import ClassifierRecipe, RegressorRecipe
from .preprocessing import Preprocessing
from .raw_table import CategoricalFeatures

BETA_2 = 0.95
LABEL_SMOOTHING = 0.1

RULES: Rules = {
    **SHARED_RULES,
    "variant": (OneOf(("td", "td-s")),),
    "hidden_layer_sizes": (Sizes(),),
    "learning_rate_init": (POSITIVE, OneOf(("auto",))),
}


@dataclass(frozen=True)
class Variant:
    """Settings of the training: rates for classes and numbers, decoupled weight decay."""

    rate_of_classes: float
    rate_of_numbers: float
    weight_decay: float


VARIANTS = {"td": Variant(0.04, 0.2, 0.02), "td-s": Variant(0.04, 0.07, 0.0)}
"""The settings by name; "td-s" is the simple one."""


def _realmlp_settings(recipe: Any, rate: float, n_rows: int, seed: int) -> dict[str, Any]:
    """Return the parameters of the network that both kinds share."""
    given, decay = recipe.learning_rate_init, VARIANTS[recipe.variant].weight_decay
    scheduled = {"weight_decay_schedule": "flat_cos", "dropout_schedule": "flat_cos"} if decay else {}
    return {
        "optimizer": AdamW(beta_2=BETA_2, weight_decay=decay),
        "learning_rate_init": rate if isinstance(given, str) else given,
        "learning_rate": "coslog4",
        "batch_size": balanced_batch(n_rows, recipe.batch_size),
        "max_iter": recipe.max_iter,
        "n_iter_no_change": recipe.max_iter,
        "random_state": seed,
        "verbose": recipe.verbose,
        "engine": recipe.engine,
        "device": recipe.device,
        **scheduled,
    }


def _realmlp(recipe: Any, preprocessing: Preprocessing) -> RealMLP:
    return RealMLP(recipe.variant, recipe.hidden_layer_sizes, categories=preprocessing.code_columns or None)


class RealMLPClassifier(ClassifierRecipe):
    """Classify the rows of a table by RealMLP, a multi-layer perceptron with tuned default settings.

    Columns of numbers are scaled and clipped smoothly, missing ones replaced by the median and marked; categories
    become indicators, or trained vectors where there are more than eight. All of it is in the ONNX graph, which takes
    the table as it is. The settings are RealMLP's, which were tuned over many data sets: there is no need to search.

    Parameters
    ----------
    variant : {"td", "td-s"}, default="td"
        Settings of the network and of its training. "td": periodic embeddings of numbers, dropout, weight decay.
        "td-s", the simple one: none of them; faster, and a little worse.
    hidden_layer_sizes : int or sequence of int, default=(256, 256, 256)
        Units of each hidden layer.
    learning_rate_init : float or "auto", default="auto"
        Largest learning rate of the schedule; "auto": that of the variant, 0.04.
    max_iter : int, default=256
        Epochs.
    batch_size : int, default=256
        Rows of a minibatch; a little more where that leaves no remainder.
    n_ensembles : int, default=1
        Networks that are trained, each with another validation part, and averaged in one graph.
    validation_fraction : float or None, default=0.2
        Share of the rows that each network holds out, at most one half: the epoch that scores best on them (accuracy)
        is kept. None: nothing is held out, and the last epoch is kept.
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
    RealMLP : The network alone, for :class:`OrtGradientClassifier`.

    Notes
    -----
    There is no ``partial_fit``: the preprocessing is fitted to all rows.

    References
    ----------
    Holzmüller, Grinsztajn and Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
    NeurIPS 2024.

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

    variant: str

    _scaling = "robust"
    _parameter_rules = RULES

    def __init__(
        self,
        variant: str = "td",
        *,
        hidden_layer_sizes: int | Sequence[int] = (256, 256, 256),
        learning_rate_init: float | str = "auto",
        max_iter: int = 256,
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
        settings = _realmlp_settings(self, VARIANTS[self.variant].rate_of_classes, n_rows, seed)
        return OrtGradientClassifier(
            _realmlp(self, preprocessing), loss=LogLoss(label_smoothing=LABEL_SMOOTHING), **settings
        )


class RealMLPRegressor(RegressorRecipe):
    """Predict numbers from the rows of a table by RealMLP, a multi-layer perceptron with tuned default settings.

    Columns of numbers are scaled and clipped smoothly, missing ones replaced by the median and marked; categories
    become indicators, or trained vectors where there are more than eight. All of it is in the ONNX graph, which takes
    the table as it is. The settings are RealMLP's, which were tuned over many data sets: there is no need to search.

    Parameters
    ----------
    variant : {"td", "td-s"}, default="td"
        Settings of the network and of its training. "td": periodic embeddings of numbers, dropout, weight decay.
        "td-s", the simple one: none of them; faster, and a little worse.
    hidden_layer_sizes : int or sequence of int, default=(256, 256, 256)
        Units of each hidden layer.
    learning_rate_init : float or "auto", default="auto"
        Largest learning rate of the schedule; "auto": that of the variant, 0.2, for "td-s" 0.07.
    max_iter : int, default=256
        Epochs.
    batch_size : int, default=256
        Rows of a minibatch; a little more where that leaves no remainder.
    n_ensembles : int, default=1
        Networks that are trained, each with another validation part, and averaged in one graph.
    validation_fraction : float or None, default=0.2
        Share of the rows that each network holds out, at most one half: the epoch that scores best on them (R²)
        is kept. None: nothing is held out, and the last epoch is kept.
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
    RealMLP : The network alone, for :class:`OrtGradientRegressor`.

    Notes
    -----
    There is no ``partial_fit``: the preprocessing is fitted to all rows.

    References
    ----------
    Holzmüller, Grinsztajn and Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
    NeurIPS 2024.

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

    variant: str

    _scaling = "robust"
    _parameter_rules = RULES

    def __init__(
        self,
        variant: str = "td",
        *,
        hidden_layer_sizes: int | Sequence[int] = (256, 256, 256),
        learning_rate_init: float | str = "auto",
        max_iter: int = 256,
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
        settings = _realmlp_settings(self, VARIANTS[self.variant].rate_of_numbers, n_rows, seed)
        return OrtGradientRegressor(_realmlp(self, preprocessing), clip_predictions=True, **settings)
