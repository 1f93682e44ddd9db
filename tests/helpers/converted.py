"""Data and comparisons for models that converters of this package convert."""

from __future__ import annotations

import copy

import numpy as np
from sklearn.datasets import make_classification
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._fitted.fitted_model import follow
from onnxtrain_sklearn._fitted.provenance import FORMS

X, FOUR = make_classification(
    240, 5, n_informative=4, n_redundant=0, n_classes=4, n_clusters_per_class=1, class_sep=0.7, random_state=0
)


X = X.astype(np.float32)


THREE, TWO = np.minimum(FOUR, 2), (FOUR > 1).astype(int)


NUMBER = X @ np.array([1.0, -2.0, 0.5, 0.0, 1.0]) + FOUR


GAPS = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.float32(np.nan), X)


OLD, NEW = slice(0, 80), slice(80, None)


SVM, TREE = LinearSVC(random_state=0), DecisionTreeClassifier(max_depth=3, random_state=0)


def still(model, X, y, **parameters):
    """Return the estimator at the fitted model: nothing has moved."""
    kind = OrtGradientRegressor if y.dtype.kind == "f" else OrtGradientClassifier
    return kind(model, learning_rate_init=0.0, max_iter=1, shuffle=False, batch_size=len(y), **parameters).fit(X, y)


def given(model, y):
    return copy.deepcopy(model).fit(X[OLD], y[OLD])


def changed(model, origin, w):
    """Return the model with an attribute set to other numbers, in float64."""
    model = copy.deepcopy(model)
    holder = follow(model, (*origin.owner, *origin.attribute[:-1]))
    name = origin.attribute[-1]
    old = getattr(holder, name)
    w = FORMS[origin.form][1](w)
    setattr(holder, name, w.reshape(np.shape(old)) if np.ndim(old) else float(w[0]))
    if name == "y_thresholds_":
        holder._build_f(holder.X_thresholds_, holder.y_thresholds_)
    return model
