"""Rows with several labels, fitted models of them, and what is asked of them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from onnxtrain_sklearn import OrtGradientClassifier

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 4)).astype(np.float32)
SCORES = X @ rng.normal(size=(4, 3)) + 0.5 * rng.normal(size=(120, 3))
YES = (SCORES > 0).astype(int)
KINDS = np.array(["bird", "cat", "dog"])[np.stack([YES[:, 0], np.digitize(SCORES[:, 1], [-1, 1]), YES[:, 2]], axis=1)]
CODES = np.stack([3 * YES[:, 0] - 1, np.digitize(SCORES[:, 1], [-1, 1]), YES[:, 2]], axis=1)
OLD, NEW = slice(0, 60), slice(60, None)

OF_YES = {
    "one-vs-rest": OneVsRestClassifier(LogisticRegression()),
    "estimator-an-output": MultiOutputClassifier(LogisticRegression()),
    "perceptron": MLPClassifier((6,), max_iter=30, random_state=0),
    "forest": RandomForestClassifier(5, max_depth=3, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), MultiOutputClassifier(GaussianNB())),
}
OF_KINDS = {
    "estimator-an-output": MultiOutputClassifier(LogisticRegression()),
    "tree": DecisionTreeClassifier(max_depth=3, random_state=0),
    "forest": RandomForestClassifier(5, max_depth=3, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), MultiOutputClassifier(GaussianNB())),
}


def label_classifier(model, **parameters):
    defaults = {"max_iter": 5, "learning_rate_init": 0.01, "random_state": 0}
    return OrtGradientClassifier(model, **defaults | parameters)


def unmoved(model, y=YES, **parameters):
    settings = {"learning_rate_init": 0.0, "max_iter": 1, "batch_size": 60, "shuffle": False}
    return label_classifier(model, **settings | parameters).fit(X[NEW], y[NEW])


def fitted_to_labels(model, y=YES):
    return clone(model).fit(X[OLD], y[OLD])


def positive_probabilities(model):
    """Return scikit-learn's probabilities that labels are 1, a column a label."""
    found = model.predict_proba(X)
    return np.stack([p[:, 1] for p in found], axis=1) if isinstance(found, list) else found


def run_file(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: X})


def by_name(models):
    return pytest.mark.parametrize("model", models.values(), ids=list(models))
