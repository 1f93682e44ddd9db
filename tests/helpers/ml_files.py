"""Files of fitted models, as skl2onnx writes them, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, Normalizer, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor


def scaled(load, rows):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X[:rows]).astype(np.float32), y[:rows]


NAMES = np.array(["setosa", "versicolor", "virginica"])


IRIS, CANCER, DIGITS = scaled(load_iris, None), scaled(load_breast_cancer, 200), scaled(load_digits, 200)


DIABETES = (scaled(load_diabetes, 200)[0], load_diabetes().target[:200] / 50)


DATA = {
    "cancer": CANCER,
    "diabetes": DIABETES,
    "digits": DIGITS,
    "iris": IRIS,
    "names": (IRIS[0], NAMES[IRIS[1]]),
    "two names": (IRIS[0][:100], NAMES[IRIS[1][:100]]),
    "outliers": (CANCER[0], 2 * CANCER[1] - 1),
}


@dataclass(frozen=True, eq=False)
class FileCase:
    """A file: the estimator that it is made from, its data, and the options of its converter."""

    name: str
    estimator: Any
    data: str
    options: dict[str, Any] = field(default_factory=dict)
    of_margins: bool = False

    def __str__(self) -> str:
        return self.name


STEPS = SimpleImputer(), StandardScaler(), Normalizer(), PCA(9)


MATRIX, MARGINS = {"zipmap": False}, {"zipmap": False, "raw_scores": True}


CASES = [
    FileCase("Ridge", Ridge(), "diabetes"),
    FileCase("Poisson", PoissonRegressor(), "diabetes"),
    FileCase("LogisticRegression", LogisticRegression(), "cancer"),
    FileCase("LogisticRegression of margins", LogisticRegression(), "cancer", MARGINS, of_margins=True),
    FileCase("LogisticRegression of ten", LogisticRegression(), "digits", MATRIX),
    FileCase("LogisticRegression of ten margins", LogisticRegression(), "digits", MARGINS, of_margins=True),
    FileCase("LogisticRegression of columns", LogisticRegression(), "digits", {"zipmap": "columns"}),
    FileCase("LogisticRegression of names", LogisticRegression(), "names"),
    FileCase("LogisticRegression of two names", LogisticRegression(), "two names"),
    FileCase("MaxAbsScaler, LogisticRegression", make_pipeline(MaxAbsScaler(), LogisticRegression()), "cancer"),
    FileCase("Pipeline", make_pipeline(*STEPS, LogisticRegression()), "digits"),
    FileCase("LinearSVC", LinearSVC(random_state=0), "cancer", of_margins=True),
    FileCase("LinearSVC of ten", LinearSVC(random_state=0), "digits", of_margins=True),
    FileCase("RidgeClassifier", RidgeClassifier(), "iris", MATRIX, of_margins=True),
    FileCase("SVC", SVC(), "cancer", of_margins=True),
    FileCase("SVC of margins", SVC(), "cancer", MARGINS, of_margins=True),
    FileCase("SVC of three", SVC(), "iris", MATRIX, of_margins=True),
    FileCase("SVC of pairs", SVC(decision_function_shape="ovo"), "iris", MATRIX, of_margins=True),
    FileCase("SVC with probabilities", SVC(probability=True, random_state=0), "cancer"),
    FileCase("SVC of names with probabilities", SVC(probability=True, random_state=0), "names", MATRIX),
    FileCase("SVR", SVR(), "diabetes"),
    FileCase("OneClassSVM", OneClassSVM(), "outliers", of_margins=True),
    FileCase("DecisionTreeClassifier", DecisionTreeClassifier(max_depth=4, random_state=0), "digits"),
    FileCase("DecisionTreeRegressor", DecisionTreeRegressor(max_depth=4, random_state=0), "diabetes"),
    FileCase("RandomForestClassifier", RandomForestClassifier(4, max_depth=4, random_state=0), "cancer", MATRIX),
    FileCase("RandomForestClassifier of ten", RandomForestClassifier(4, max_depth=4, random_state=0), "digits"),
    FileCase("RandomForestClassifier of names", RandomForestClassifier(4, max_depth=4, random_state=0), "names"),
    FileCase("RandomForestRegressor", RandomForestRegressor(4, max_depth=4, random_state=0), "diabetes"),
    FileCase("GradientBoostingClassifier", GradientBoostingClassifier(n_estimators=4, random_state=0), "cancer"),
    FileCase(
        "GradientBoosting of margins", GradientBoostingClassifier(n_estimators=4), "cancer", MARGINS, of_margins=True
    ),
    FileCase("GradientBoostingClassifier of three", GradientBoostingClassifier(n_estimators=3, random_state=0), "iris"),
    FileCase("GradientBoostingRegressor", GradientBoostingRegressor(n_estimators=4, random_state=0), "diabetes"),
    FileCase("MLPClassifier", MLPClassifier((8,), max_iter=5, random_state=0), "iris"),
    FileCase("GaussianNB", GaussianNB(), "iris"),
    FileCase("SGDClassifier", SGDClassifier(loss="log_loss", random_state=0), "iris"),
    FileCase("OneVsRestClassifier", OneVsRestClassifier(LogisticRegression()), "iris"),
    FileCase("OneVsOneClassifier", OneVsOneClassifier(LogisticRegression()), "iris", MATRIX, of_margins=True),
    FileCase("BaggingClassifier", BaggingClassifier(LogisticRegression(), n_estimators=2, random_state=0), "iris"),
    FileCase("CalibratedClassifierCV", CalibratedClassifierCV(LinearSVC(random_state=0), cv=2), "iris"),
]  # fmt: skip


@cache
def made(case):
    """Return the fitted estimator of a case, and its file."""
    X, y = DATA[case.data]
    estimator = clone(case.estimator).fit(X, y)
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    options = {id(last): case.options} if case.options else None
    return estimator, to_onnx(estimator, X[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


def run(proto, X):
    """Return the labels and the numbers of a file, or None and the numbers."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: X})
    if len(outputs) == 1:
        return None, outputs[0]
    if isinstance(outputs[1], list):
        return outputs[0].ravel(), np.array([list(row.values()) for row in outputs[1]])
    return outputs[0].ravel(), outputs[1] if len(outputs) == 2 else np.stack(outputs[1:], axis=1)


def file_of(name):
    return made(next(case for case in CASES if case.name == name))[1]
