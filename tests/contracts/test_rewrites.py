"""Fitted scikit-learn models, converted by skl2onnx and rewritten, give what they gave and can be trained.

The unit tests of the rules are in ``tests/ml_operators/test_rewrite.py``; here are the graphs that real models make of
them.
"""

from __future__ import annotations

import functools
import re
import warnings

import numpy as np
import pytest
from skl2onnx import to_onnx
from skl2onnx.common._container import ModelComponentContainer
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    MaxAbsScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, NuSVR, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.queries import is_float
from onnxtrain_sklearn._ml_operators.rewrite import RULES, rewrite
from tests.helpers.differences import assert_gradients, assert_same, run, run_proto
from tests.helpers.environment import available_engines

FLOWERS, KIND = load_iris(return_X_y=True)
FLOWERS, KIND = FLOWERS[::3].astype(np.float32), KIND[::3]
ONE = (KIND == 1).astype(np.int64)
WIDTH = (FLOWERS[:, 3] + FLOWERS[:, 0] ** 2 / 9).astype(np.float32)
TWO = np.stack([WIDTH, FLOWERS[:, 1]], axis=1)
GAPS = FLOWERS.copy()
GAPS[::4, 1] = GAPS[1::5, 3] = np.nan
WHOLE = np.round(FLOWERS).astype(np.int64)

CLASSIFIERS = {
    "linear_classifier": [LogisticRegression(), RidgeClassifier(), LinearSVC(), LinearDiscriminantAnalysis()],
    "svm": [*(SVC(kernel=k) for k in ("linear", "poly", "rbf", "sigmoid")), NuSVC(nu=0.3)],
    "trees": [
        DecisionTreeClassifier(max_depth=4), RandomForestClassifier(5), GradientBoostingClassifier(n_estimators=3),
        HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5), BaggingClassifier(n_estimators=2),
    ],
}  # fmt: skip
REGRESSORS = {
    "linear_regressor": [LinearRegression(), Ridge()],
    "svm": [*(SVR(kernel=k) for k in ("linear", "poly", "rbf", "sigmoid")), NuSVR()],
    "trees": [
        DecisionTreeRegressor(max_depth=4), RandomForestRegressor(5), ExtraTreesRegressor(3),
        GradientBoostingRegressor(n_estimators=3), HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5),
    ],
}  # fmt: skip
# Model, X, y, start of the names of the parameters that the rules make ("": none), options of the converter.
CASES = [
    *((m, FLOWERS, y, stem, {}) for stem, models in CLASSIFIERS.items() for m in models for y in (KIND, ONE)),
    *((m, FLOWERS, WIDTH, stem, {}) for stem, models in REGRESSORS.items() for m in models),
    (Ridge(), FLOWERS, TWO, "linear_regressor", {}),
    (RandomForestRegressor(4), FLOWERS, TWO, "trees", {}),
    (HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5), GAPS, WIDTH, "trees", {}),
    (OneVsRestClassifier(LogisticRegression()), FLOWERS, KIND, "linear_classifier", {}),
    (OneVsOneClassifier(LogisticRegression()), FLOWERS, KIND, "linear_classifier", {}),
    (CalibratedClassifierCV(LinearSVC(), cv=2), FLOWERS, ONE, "linear_classifier", {}),
    (StackingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], cv=2), FLOWERS, KIND, "linear_c", {}),
    (VotingClassifier([("a", LogisticRegression()), ("b", RandomForestClassifier(3))], voting="soft",
                      flatten_transform=False), FLOWERS, KIND, "linear_classifier", {}),
    (LogisticRegression(), FLOWERS, KIND, "linear_classifier", {"zipmap": False}),
    (KNeighborsClassifier(weights="distance"), FLOWERS, KIND, "", {}),
    (KNeighborsRegressor(weights="distance"), FLOWERS, WIDTH, "", {"optim": "cdist"}),
    (KNeighborsRegressor(metric="manhattan"), FLOWERS, WIDTH, "", {}),
    (GaussianProcessRegressor(RBF(2.0), alpha=0.1), FLOWERS, WIDTH, "", {}),
    (GaussianProcessRegressor(Matern() + WhiteKernel(), alpha=0.1), FLOWERS, WIDTH, "", {}),
    (GaussianNB(), FLOWERS, KIND, "", {}),
    (MLPClassifier((5,), max_iter=20), FLOWERS, KIND, "", {}),
    (OneClassSVM(), FLOWERS, None, "svm", {}),
    *((make_pipeline(step, Ridge()), FLOWERS, WIDTH, "scaler", {})
      for step in (StandardScaler(), MaxAbsScaler(), RobustScaler())),
    *((make_pipeline(step, Ridge()), FLOWERS, WIDTH, "linear_regressor", {})
      for step in (Normalizer(), Normalizer("l1"), Normalizer("max"), Binarizer(threshold=3), SelectKBest(k=2),
                   PolynomialFeatures())),
    (make_pipeline(SimpleImputer(), StandardScaler(), SVR()), GAPS, WIDTH, "imputer", {}),
    (make_pipeline(PowerTransformer(), Ridge()), FLOWERS, WIDTH, "scaler", {}),
    (make_pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False), Ridge()), WHOLE, WIDTH, "linear_r", {}),
    (make_pipeline(OrdinalEncoder(), Ridge()), WHOLE, WIDTH, "linear_regressor", {}),
    (make_pipeline(ColumnTransformer([("a", StandardScaler(), [0, 2]), ("b", RobustScaler(), [3])]),
                   LogisticRegression()), FLOWERS, KIND, "scaler", {}),
]  # fmt: skip
NOT_WRITTEN = {("ai.onnx.ml", name) for name in ("FeatureVectorizer", "TreeEnsemble")}
"""Operators that other converters write."""


@pytest.fixture(autouse=True)
def _booleans_as_ints(monkeypatch):
    """The converter of histogram trees writes booleans where protobuf wants integers."""
    add = ModelComponentContainer.add_node

    def add_node(self, *args, **attributes):
        lists = {name: a for name, a in attributes.items() if isinstance(a, list)}
        attributes |= {n: [int(x) if isinstance(x, bool | np.bool_) else x for x in a] for n, a in lists.items()}
        return add(self, *args, **attributes)

    monkeypatch.setattr(ModelComponentContainer, "add_node", add_node)


@functools.cache
def converted_model(index):
    estimator, X, y, _, options = CASES[index]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence
        model = clone(estimator)
        if "random_state" in model.get_params():
            model.set_params(random_state=0)
        model.fit(X, y)
        settings = {id(model): options} if options else None
        return to_onnx(model, X[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options=settings)


def moved(X):
    """Return rows beside the training points: distances are not differentiable on them."""
    return X + np.float32(0.03) if X.dtype == np.float32 else X


def name(index):
    return f"{index}-{repr(CASES[index][0]).partition('(')[0]}"


def covered_by_rewrite(index):
    """Return the classes of a model, and which rule its parameters come from."""
    model, *_, stem, options = CASES[index]
    return {stem, *options, *re.findall(r"[A-Z]\w+(?=\()", repr(model))}


def every_rewrite(test):
    return pytest.mark.thinned(by=covered_by_rewrite)(
        pytest.mark.parametrize("index", range(len(CASES)), ids=name)(test)
    )


@every_rewrite
def test_values_are_those_of_the_converted_model(index):
    proto, X = converted_model(index), moved(CASES[index][1])
    feeds = {proto.graph.input[0].name: X}
    rewritten = rewrite(load(proto))
    for expected, found in zip(run_proto(proto, feeds), run(rewritten.model, feeds), strict=True):
        if isinstance(expected, list):  # of dictionaries, which the border makes tensors of
            expected = np.array([list(row.values()) for row in expected], np.float32)
        assert_same(np.asarray(expected), np.asarray(found))


@pytest.mark.proof
@every_rewrite
def test_every_parameter_has_its_gradient(index):
    _, X, _, stem, _ = CASES[index]
    proto = converted_model(index)
    rewritten = rewrite(load(proto))
    outputs = [v.name for v in rewritten.model.graph.outputs if is_float(v)]
    feeds = {proto.graph.input[0].name: moved(X[:9])}
    made = {role.name for role in rewritten.roles}
    for engine in available_engines():
        try:
            names = assert_gradients(rewritten.model, outputs[-1], feeds, engine, entries=4, tolerance=1e-3, only=made)
        except Exception as error:
            if not ("NOT_IMPLEMENTED" in str(error) and "ReduceProd" in str(error)):
                raise
            pytest.skip("this onnxruntime has no ReduceProd in float64 for the differences")
        assert any(name.startswith(stem) for name in names)
    assert not stem or any(role.name.startswith(stem) for role in rewritten.roles)


@pytest.mark.exhaustive
def test_converted_models_meet_every_rule():
    met = {(node.domain, node.op_type) for index in range(len(CASES)) for node in converted_model(index).graph.node}
    assert met >= set(RULES) - NOT_WRITTEN
    assert not met & NOT_WRITTEN
