"""The estimators inside scikit-learn's: pipelines, searches, ensembles, calibration, metadata routing, displays."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import load_iris, make_classification, make_regression
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingRegressor,
    StackingClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import SelectKBest
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_validate,
    learning_curve,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, scale

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = load_iris(return_X_y=True)
X = scale(X)
R, r = make_regression(120, 4, noise=1.0, random_state=0)
R, r = scale(R), scale(r)


def wrapped_classifier(**parameters: object) -> OrtGradientClassifier:
    defaults = {"learning_rate_init": 0.05, "max_iter": 15, "batch_size": 32, "random_state": 0}
    return OrtGradientClassifier(MLP((8,)), **defaults | parameters)


def wrapped_regressor(**parameters: object) -> OrtGradientRegressor:
    defaults = {"learning_rate_init": 0.05, "max_iter": 15, "batch_size": 32, "random_state": 0}
    return OrtGradientRegressor(Linear(), **defaults | parameters)


WRAPPED = {
    "pipeline": lambda: make_pipeline(StandardScaler(), SelectKBest(k=3), wrapped_classifier()),
    "one vs rest": lambda: OneVsRestClassifier(wrapped_classifier()),
    "one vs rest of hinges": lambda: OneVsRestClassifier(wrapped_classifier(loss="hinge")),
    "one vs one": lambda: OneVsOneClassifier(wrapped_classifier()),
    "calibrated": lambda: CalibratedClassifierCV(wrapped_classifier(), cv=2),
    "calibrated hinge": lambda: CalibratedClassifierCV(wrapped_classifier(loss="squared_hinge"), cv=2),
    "voting": lambda: VotingClassifier([("a", wrapped_classifier()), ("b", LogisticRegression())], voting="soft"),
    "stacking": lambda: StackingClassifier([("a", wrapped_classifier()), ("b", LogisticRegression())], cv=2),
    "boosted": lambda: AdaBoostClassifier(wrapped_classifier(), n_estimators=3, random_state=0),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_classifiers_learn(name):
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    fitted = WRAPPED[name]().fit(X, names)
    assert fitted.score(X, names) > 0.88
    assert fitted.predict(X).dtype.kind == "U"


@pytest.mark.parametrize(
    "wrapper",
    [
        lambda: BaggingRegressor(wrapped_regressor(), n_estimators=3, random_state=0),
        lambda: VotingRegressor([("a", wrapped_regressor()), ("b", wrapped_regressor(loss="huber"))]),
        lambda: TransformedTargetRegressor(wrapped_regressor(), transformer=StandardScaler()),
        lambda: make_pipeline(StandardScaler(), wrapped_regressor()),
    ],
)
def test_wrapped_regressors_learn(wrapper):
    assert wrapper().fit(R, r).score(R, r) > 0.95


def test_calibration_with_weights():
    """Scikit-learn 1.6 takes scores and weights of one type alone."""
    calibrated = CalibratedClassifierCV(wrapped_classifier(), cv=2)
    assert calibrated.fit(X, y, sample_weight=np.linspace(0.5, 1.5, 150)).score(X, y) > 0.88


def test_several_outputs_by_copies():
    Y = np.c_[y == 0, y == 1].astype(int)
    for wrapper in (MultiOutputClassifier(wrapped_classifier()), ClassifierChain(wrapped_classifier())):
        assert wrapper.fit(X, Y).score(X, Y) > 0.7
    targets = np.c_[r, -r]
    assert MultiOutputRegressor(wrapped_regressor()).fit(R, targets).score(R, targets) > 0.95


@pytest.mark.slow
def test_out_of_fold_predictions():
    p = cross_val_predict(wrapped_classifier(), X, y, cv=3, method="predict_proba")
    assert p.shape == (150, 3)
    assert np.mean(p.argmax(axis=1) == y) > 0.9
    scores = cross_validate(
        wrapped_classifier(), X, y, cv=3, scoring=["accuracy", "neg_log_loss", "roc_auc_ovr"], error_score="raise"
    )
    assert scores["test_roc_auc_ovr"].min() > 0.9


@pytest.mark.slow
def test_search_over_nested_parameters():
    grid = {
        "net__optimizer__momentum": [0.0, 0.9],
        "net__model__hidden_layer_sizes": [(2,), (8, 8)],
        "net__learning_rate_init": [1e-5, 0.05],
    }
    pipeline = Pipeline([("scale", StandardScaler()), ("net", wrapped_classifier(optimizer=SGD()))])
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["net__learning_rate_init"] == 0.05
    assert search.best_params_["net__optimizer__momentum"] == 0.9
    best = search.best_estimator_["net"]
    assert best.weights_["layers.0.weight"].shape[1] == search.best_params_["net__model__hidden_layer_sizes"][0]
    assert best.optimizer.momentum == 0.9
    assert pipeline["net"].optimizer.momentum == 0.0


def test_search_over_names_and_objects():
    choices = {"optimizer": ["adam", "sgd", SGD(momentum=0.5)], "loss": ["log_loss", "focal"], "alpha": [0.0, 1e-3]}
    search = RandomizedSearchCV(wrapped_classifier(), choices, n_iter=4, cv=2, random_state=0, error_score="raise").fit(
        X, y
    )
    assert search.best_score_ > 0.8


def test_mixed_columns_of_a_frame():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 2], "c": np.where(X[:, 3] > 0, "high", "low")})
    columns = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(), ["c"]))
    pipeline = make_pipeline(columns, wrapped_classifier(max_iter=40)).fit(frame, y)
    assert pipeline.score(frame, y) > 0.85


def test_frames_as_output_of_a_transformer():
    frame = pd.DataFrame(X, columns=list("abcd"))
    pipeline = make_pipeline(StandardScaler(), wrapped_classifier()).set_output(transform="pandas").fit(frame, y)
    assert pipeline[-1].feature_names_in_.tolist() == list("abcd")
    pipeline.predict(frame)


def test_sample_weights_through_a_pipeline():
    weights = np.where(y == 2, 0.0, 1.0)
    pipeline = Pipeline([("scale", StandardScaler()), ("clf", wrapped_classifier())]).fit(
        X, y, clf__sample_weight=weights
    )
    assert set(pipeline.predict(X)) == {0, 1}
    assert pipeline["clf"].classes_.tolist() == [0, 1, 2]


def test_metadata_are_routed():
    weights = np.where(y == 2, 0.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = wrapped_classifier().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(estimator, {"alpha": [0.0]}, cv=2, error_score="raise").fit(X, y, sample_weight=weights)
        assert set(search.predict(X)) == {0, 1}
        assert search.best_score_ > 0.9
        first = wrapped_classifier().set_partial_fit_request(sample_weight=True, classes=True)
        assert "sample_weight" in str(first.get_metadata_routing())
        wrapped_regressor().set_fit_request(sample_weight=True, X_val=True, y_val=True, sample_weight_val=True)


def test_weights_by_bagging():
    bagging = BaggingRegressor(wrapped_regressor(), n_estimators=4, max_samples=0.5, random_state=0)
    fitted = bagging.fit(R, r, sample_weight=np.ones(120))
    assert fitted.score(R, r) > 0.95


def test_learning_curve_over_partial_fit():
    sizes, _, scores = learning_curve(
        wrapped_classifier(),
        X,
        y,
        cv=2,
        train_sizes=[0.3, 1.0],
        exploit_incremental_learning=True,
        shuffle=True,
        random_state=0,
    )
    assert len(sizes) == len(scores) == 2
    assert np.isfinite(scores).all()


def test_importance_of_columns():
    data, labels = make_classification(
        200, 4, n_informative=1, n_redundant=0, n_clusters_per_class=1, shuffle=False, random_state=0
    )
    fitted = wrapped_classifier().fit(scale(data), labels)
    importances = permutation_importance(fitted, scale(data), labels, n_repeats=2, random_state=0).importances_mean
    assert importances.argmax() == 0


def test_displays():
    estimator = make_pipeline(StandardScaler(), wrapped_classifier(optimizer=SGD(momentum=0.9)))
    assert "OrtGradientClassifier" in estimator._repr_html_()
    assert "momentum=0.9" in repr(estimator)
    assert "OrtGradientClassifier" in estimator.fit(X, y)._repr_html_()
    graph = OrtGradientClassifier(MLP((300, 300)).build(100, 3, 0))
    assert len(repr(graph)) < 2000
    assert len(graph._repr_html_()) < 200_000


def test_a_chain_of_probabilities_is_consistent():
    fitted = CalibratedClassifierCV(wrapped_classifier(), cv=2, ensemble=False).fit(X, y)
    assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)
    assert_array_equal(fitted.predict(X), fitted.predict_proba(X).argmax(axis=1))
