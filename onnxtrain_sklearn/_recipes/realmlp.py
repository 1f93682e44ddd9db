"""RealMLP with its whole recipe: preprocessing, network, and the tuned training settings of its authors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._utils.params import documented
from .._utils.typing import ClassWeight
from ..losses import LogLoss
from ..models.embeddings import Embedding
from ..models.tabular import RealMLP
from ..optimizers import AdamW
from ..runtime import Runtime
from .base import CLASS_WEIGHT, FOR_CLASSES, FOR_NUMBERS, LABEL_SMOOTHING, REALMLP, ClassifierRecipe, RegressorRecipe
from .preprocessing import Preprocessing
from .raw_table import CategoricalFeatures

BETA_2 = 0.95


@dataclass(frozen=True)
class Variant:
    """Settings of the training: rates for classes and numbers, decoupled weight decay."""

    rate_of_classes: float
    rate_of_numbers: float
    weight_decay: float


VARIANTS = {"td": Variant(0.04, 0.2, 0.02), "td-s": Variant(0.04, 0.07, 0.0)}
"""The settings by name; "td-s" is the simple one."""


def _realmlp_settings(recipe: Any, rate: float, n_rows: int, seed: int) -> dict[str, Any]:
    """Return the parameters that both kinds of network share."""
    given, decay = recipe.learning_rate_init, VARIANTS[recipe.variant].weight_decay
    schedule = "flat_cos" if decay else "constant"
    return {
        "optimizer": AdamW(beta_2=BETA_2, weight_decay=decay, weight_decay_schedule=schedule),
        "learning_rate_init": rate if isinstance(given, str) else given,
        "learning_rate": "coslog4",
        "batch_size": min(n_rows, recipe.batch_size),
        "drop_last": True,
        "max_iter": recipe.max_iter,
        "n_iter_no_change": recipe.max_iter,  # never: the schedule is planned to the last epoch
        "random_state": seed,
        "verbose": recipe.verbose,
        "engine": recipe.engine,
        "device": recipe.device,
        "runtime": recipe.runtime,
        "dropout_schedule": schedule,
    }


def _realmlp(recipe: Any, preprocessing: Preprocessing) -> RealMLP:
    embedding, categories = recipe.embedding, preprocessing.code_columns or None
    return RealMLP(recipe.variant, recipe.hidden_layer_sizes, embedding=embedding, categories=categories)


ABOUT_REALMLP = {
    "data": """\
Columns of numbers are scaled and clipped smoothly, missing ones replaced by the median and marked; categories
become indicators, or with "td" trained vectors where there are more than eight. All of it is in the ONNX graph, which
takes the table as it is. The settings are RealMLP's, tuned over many data sets: there is no need to search.""",
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


@documented(**ABOUT_REALMLP, **FOR_CLASSES, rate="0.04")
class RealMLPClassifier(ClassifierRecipe):
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
    declared: ClassVar = {**REALMLP, **LABEL_SMOOTHING, **CLASS_WEIGHT}

    variant: str
    label_smoothing: float

    _scaling = "robust"

    def __init__(
        self,
        variant: str = "td",
        *,
        hidden_layer_sizes: int | Sequence[int] = (256, 256, 256),
        embedding: str | Embedding | None = "auto",
        learning_rate_init: float | str = "auto",
        max_iter: int = 256,
        batch_size: int = 256,
        n_ensembles: int = 1,
        validation_fraction: float | None = 0.2,
        scoring: str | Callable[..., float] | None = None,
        label_smoothing: float = 0.1,
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
        settings = _realmlp_settings(self, VARIANTS[self.variant].rate_of_classes, n_rows, seed)
        loss = LogLoss(label_smoothing=self.label_smoothing)
        return OrtGradientClassifier(_realmlp(self, preprocessing), loss=loss, **settings)


@documented(**ABOUT_REALMLP, **FOR_NUMBERS, rate='0.2, for "td-s" 0.07')
class RealMLPRegressor(RegressorRecipe):
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
    declared = REALMLP

    variant: str

    _scaling = "robust"

    def __init__(
        self,
        variant: str = "td",
        *,
        hidden_layer_sizes: int | Sequence[int] = (256, 256, 256),
        embedding: str | Embedding | None = "auto",
        learning_rate_init: float | str = "auto",
        max_iter: int = 256,
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
        settings = _realmlp_settings(self, VARIANTS[self.variant].rate_of_numbers, n_rows, seed)
        return OrtGradientRegressor(_realmlp(self, preprocessing), clip_predictions=True, **settings)
