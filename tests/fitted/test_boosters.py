"""LightGBM's and XGBoost's models, as files of onnxmltools and as fitted estimators.

The files were made from breast cancer (a tenth of it missing), iris and diabetes, with labels of integers and names.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # skl2onnx reads what scikit-learn means to drop
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),  # LightGBM names its columns itself
]

ENGINES = pytest.mark.parametrize("engine", available_engines())


def with_gaps(X):
    return np.where(np.random.RandomState(0).uniform(size=X.shape) < 0.1, np.nan, X).astype(np.float32)


CANCER, IRIS, DIABETES = (load(return_X_y=True) for load in (load_breast_cancer, load_iris, load_diabetes))
CANCER = with_gaps(CANCER[0]), CANCER[1]
IRIS = IRIS[0].astype(np.float32), IRIS[1]
NAMED = IRIS[0], np.array(["setosa", "versicolor", "virginica"])[IRIS[1]]
DIABETES = DIABETES[0].astype(np.float32), DIABETES[1] / 50

FILES = {
    "lightgbm_binary": CANCER,
    "lightgbm_names": NAMED,
    "lightgbm_poisson": DIABETES,
    "xgboost_binary": CANCER,
    "xgboost_poisson": DIABETES,
    "xgboost_regressor": DIABETES,
    "xgboost_three": IRIS,
}
EACH = pytest.mark.parametrize("name", FILES)
STILL = {"optimizer": "sgd", "learning_rate_init": 1e-30, "max_iter": 1}


def given_booster(name, **parameters):
    kind = OrtGradientRegressor if FILES[name] is DIABETES else OrtGradientClassifier
    return kind(DATA / f"{name}.onnx", **{"max_iter": 20, "learning_rate_init": 0.01, "random_state": 0, **parameters})


def run_booster(model, X):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"X": X})
    last = outputs[-1]
    return outputs[0].ravel(), np.array([list(row.values()) for row in last]) if isinstance(last, list) else last


# Files


def test_some_files_import_no_default_opset():
    imports = {name: {one.domain for one in onnx.load(DATA / f"{name}.onnx").opset_import} for name in FILES}
    assert [name for name, domains in imports.items() if "" not in domains] == [
        "xgboost_binary",
        "xgboost_regressor",
        "xgboost_three",
    ]


@EACH
@ENGINES
def test_training_starts_from_the_file(name, engine):
    X, y = FILES[name]
    labels, numbers = run_booster((DATA / f"{name}.onnx").read_bytes(), X)
    start = given_booster(name, engine=engine, **STILL).fit(X, y)
    if FILES[name] is DIABETES:
        assert_allclose(start.predict(X), numbers.ravel(), rtol=1e-5)
        return
    assert_array_equal(start.classes_, np.unique(y))
    assert_allclose(start.predict_proba(X), numbers, atol=1e-5)
    assert_array_equal(start.predict(X), labels)


@EACH
@ENGINES
def test_leaves_are_trained(name, engine):
    X, y = FILES[name]
    trained = given_booster(name, engine=engine).fit(X, y)
    constant = {"trees.base_values"} if name == "xgboost_regressor" else set()
    assert set(trained.weights_) == {"trees.leaf_values"} | constant
    assert trained.loss_curve_[-1] < 0.9 * trained.loss_curve_[0]
    exported = trained.to_onnx()
    onnx.checker.check_model(exported, full_check=True)
    predicted = trained.predict(X) if FILES[name] is DIABETES else trained.predict_proba(X)
    assert_allclose(run_booster(exported.SerializeToString(), X)[1].ravel(), predicted.ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lightgbm_poisson", "xgboost_poisson"])
def test_the_loss_looks_behind_the_exponential(name):
    X, y = DIABETES
    start = given_booster(name, loss="poisson", **STILL).fit(X, y)
    expected = run_booster((DATA / f"{name}.onnx").read_bytes(), X)[1].ravel()
    assert_allclose(start.predict(X), expected, rtol=1e-5)
    assert_allclose(start.loss_, np.mean(expected - y * np.log(expected)), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "X", "y"),
    [("lightgbm_binary", 2 * CANCER[0], CANCER[1]), ("xgboost_regressor", DIABETES[0], 1.5 * DIABETES[1] + 1)],
    ids=["lightgbm", "xgboost"],
)
def test_training_on_shifted_data_improves_held_out_score(name, X, y):
    half = len(X) // 2
    before = given_booster(name, **STILL).fit(X[:half], y[:half]).score(X[half:], y[half:])
    after = given_booster(name, max_iter=200, tol=0).fit(X[:half], y[:half]).score(X[half:], y[half:])
    assert before + 0.02 < after


# Fitted estimators


def boosters():
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    pytest.importorskip("onnxmltools")
    small, tiny = {"n_estimators": 4, "num_leaves": 5, "verbose": -1, "n_jobs": 1}, {"n_estimators": 4, "n_jobs": 1}
    return {
        "LGBMClassifier": (lightgbm.LGBMClassifier(**small), CANCER),
        "LGBMClassifier of names": (lightgbm.LGBMClassifier(**small), NAMED),
        "LGBMRegressor": (lightgbm.LGBMRegressor(**small), DIABETES),
        "LGBMRegressor of counts": (lightgbm.LGBMRegressor(objective="poisson", **small), DIABETES),
        "XGBClassifier": (xgboost.XGBClassifier(**tiny), CANCER),
        "XGBClassifier of three": (xgboost.XGBClassifier(**tiny), IRIS),
        "XGBRegressor": (xgboost.XGBRegressor(**tiny), DIABETES),
        "XGBRegressor of counts": (xgboost.XGBRegressor(objective="count:poisson", **tiny), DIABETES),
        "XGBRFRegressor": (xgboost.XGBRFRegressor(**tiny), DIABETES),
        "Pipeline": (make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(**small)), IRIS),
        "VotingClassifier": (
            VotingClassifier(
                [("a", LogisticRegression()), ("b", xgboost.XGBClassifier(**tiny))],
                voting="soft",
                flatten_transform=False,
            ),
            IRIS,
        ),
    }


NAMES = (
    "LGBMClassifier",
    "LGBMClassifier of names",
    "LGBMRegressor",
    "LGBMRegressor of counts",
    "XGBClassifier",
    "XGBClassifier of three",
    "XGBRegressor",
    "XGBRegressor of counts",
    "XGBRFRegressor",
    "Pipeline",
    "VotingClassifier",
)


@pytest.mark.parametrize("name", NAMES)
def test_fitted_estimators_start_unchanged_and_learn(name):
    model, (X, y) = boosters()[name]
    model.fit(X, y)
    classifies = hasattr(model, "predict_proba")
    kind, method = (OrtGradientClassifier, "predict_proba") if classifies else (OrtGradientRegressor, "predict")
    start = kind(model, **STILL).fit(X, y)
    assert_allclose(getattr(start, method)(X), getattr(model, method)(X), rtol=1e-4, atol=1e-5)
    trained = kind(model, max_iter=30, learning_rate_init=0.01, random_state=0).fit(X, y)
    assert trained.loss_curve_[-1] < trained.loss_curve_[0]
    with pytest.raises(ModelError, match=r"leaf_values' was trained, and (LGBM|XGB)\w+ keeps its trees in a form of "):
        trained.to_sklearn()


def test_objectives_are_losses():
    for name, loss in {"LGBMRegressor of counts": "poisson", "XGBRegressor of counts": "poisson"}.items():
        model, (X, y) = boosters()[name]
        start = OrtGradientRegressor(model.fit(X, y), **STILL).fit(X, y)
        expected = model.predict(X)
        assert_allclose(start.loss_, np.mean(expected - y * np.log(expected)), rtol=1e-4, err_msg=loss)


def test_untrained_parts_need_no_write_back():
    model, (X, y) = boosters()["VotingClassifier"]
    model.fit(X, y)
    trained = OrtGradientClassifier(model, trainable=["estimators.0.*"], max_iter=5, learning_rate_init=0.05).fit(X, y)
    again = trained.to_sklearn()
    assert_allclose(again.predict_proba(X), trained.predict_proba(X), atol=1e-5)
    assert (again.estimators_[0].coef_ != model.estimators_[0].coef_).any()


def test_zeros_for_missing_values_are_refused():
    lightgbm = pytest.importorskip("lightgbm")
    pytest.importorskip("onnxmltools")
    X, y = IRIS
    model = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1, zero_as_missing=True).fit(X, y)
    with pytest.raises(ModelError, match=r"LGBMClassifier\(zero_as_missing=True\) has no right ONNX form"):
        OrtGradientClassifier(model).fit(X, y)


def registered():
    from skl2onnx._parse import sklearn_parsers_map
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common._registration import _converter_pool, _shape_calculator_pool

    registries = sklearn_parsers_map, sklearn_operator_name_map, _converter_pool, _shape_calculator_pool
    return [dict(one) for one in registries]


def test_skl2onnx_registry_is_unchanged():
    model, (X, y) = boosters()["XGBRegressor"]
    before = registered()
    OrtGradientRegressor(model.fit(X, y), max_iter=1).fit(X, y)
    assert registered() == before


def test_missing_onnxmltools_is_an_error_with_a_remedy(monkeypatch):
    model, (X, y) = boosters()["XGBRegressor"]
    before = registered()
    monkeypatch.setitem(__import__("sys").modules, "onnxmltools.convert.xgboost.operator_converters.XGBoost", None)
    with pytest.raises(ModelError, match=r"no converter for XGBRegressor. Install onnxmltools.*update_registered_conv"):
        OrtGradientRegressor(model.fit(X, y)).fit(X, y)
    assert registered() == before


# Estimators of third parties


class LeastSquares(RegressorMixin, BaseEstimator):
    """A regressor that skl2onnx does not know."""

    def fit(self, X, y):
        self.n_features_in_ = X.shape[1]
        self.coef_ = np.linalg.lstsq(X, np.asarray(y), rcond=None)[0]
        return self

    def predict(self, X):
        return X @ self.coef_


def converted(scope, operator, container):
    held = scope.get_unique_variable_name("coef")
    coef = operator.raw_operator.coef_
    container.add_initializer(held, onnx.TensorProto.FLOAT, [len(coef), 1], coef)
    name = scope.get_unique_operator_name("MatMul")
    container.add_node("MatMul", [operator.inputs[0].full_name, held], operator.outputs[0].full_name, name=name)


def declared(operator):
    operator.outputs[0].type.shape = [None, 1]


def test_converters_that_the_user_registered_are_used(monkeypatch):
    from skl2onnx import update_registered_converter
    from skl2onnx._supported_operators import sklearn_operator_name_map

    X, y = DIABETES
    model = make_pipeline(StandardScaler(), LeastSquares()).fit(X, y)
    with pytest.raises(ModelError, match="LeastSquares in this Pipeline has no converter"):
        OrtGradientRegressor(model).fit(X, y)
    update_registered_converter(LeastSquares, "TestLeastSquares", declared, converted)
    try:
        trained = OrtGradientRegressor(model, max_iter=3).fit(X, y)
        start = OrtGradientRegressor(model, **STILL).fit(X, y)
    finally:
        del sklearn_operator_name_map[LeastSquares]
    assert_allclose(start.predict(X), model.predict(X), rtol=1e-4, atol=1e-4)
    assert "leastsquares.coef" in trained.weights_
    again = trained.to_sklearn()
    assert (again[-1].coef_ != model[-1].coef_).all()
    assert_allclose(again.predict(X), trained.predict(X), rtol=1e-4, atol=1e-4)
