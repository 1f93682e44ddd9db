"""Fine-tuning a fitted pipeline on a few rows of a second scanner: it must pay, and change nothing else.

The digits of the second scanner are turned by fifteen degrees and dimmer. The old model fails on them, and two images a
digit are too few to begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import ndimage
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    TweedieRegressor,
)
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.environment import available_engines

SEEDS = range(4)
PIPELINE = make_pipeline(MinMaxScaler(), PCA(0.95), LogisticRegression(max_iter=1000))


@dataclass(frozen=True)
class Story:
    """A model fitted on the first scanner, twenty images of the second one, and the rest of its images."""

    old: Pipeline
    X_old: np.ndarray
    y_old: np.ndarray
    X_few: np.ndarray
    y_few: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    def score(self, model) -> float:
        return model.score(self.X_test, self.y_test)


def second_scanner(rows):
    images = rows.reshape(-1, 8, 8)
    return 0.7 * ndimage.rotate(images, 15, axes=(1, 2), reshape=False, order=1).reshape(-1, 64)


@cache
def story(seed):
    X, y = load_digits(return_X_y=True)
    X_old, X_new, y_old, y_new = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)
    X_few, X_test, y_few, y_test = train_test_split(
        second_scanner(X_new), y_new, train_size=20, stratify=y_new, random_state=seed
    )
    return Story(clone(PIPELINE).fit(X_old, y_old), X_old, y_old, X_few, y_few, X_test, y_test)


@cache
def fine_tuned(seed, trainable="all", engine="auto"):
    """Fine-tune the old model of a story; it ends by itself, as warnings are errors."""
    told = story(seed)
    rate = 0.0005 if trainable == "all" else 0.01
    names = trainable if trainable == "all" else list(trainable)
    tuner = OrtGradientClassifier(
        told.old, trainable=names, learning_rate_init=rate, tol=1e-2, random_state=0, engine=engine
    )
    return tuner.fit(told.X_few, told.y_few)


def mean_of_story(models):
    return float(np.mean([story(seed).score(models(seed)) for seed in SEEDS]))


@pytest.mark.slow
def test_fine_tuning_beats_the_old_model_and_a_new_one():
    old = mean_of_story(lambda seed: story(seed).old)
    anew = mean_of_story(lambda seed: clone(PIPELINE).fit(story(seed).X_few, story(seed).y_few))
    ours = mean_of_story(fine_tuned)
    assert ours > old + 0.3
    assert ours > anew + 0.12
    assert ours > 0.8


@pytest.mark.long
def test_fine_tuning_is_no_worse_than_refitting_on_both_scanners():
    def on_both(seed):
        told = story(seed)
        return clone(PIPELINE).fit(np.r_[told.X_old, told.X_few], np.r_[told.y_old, told.y_few])

    assert mean_of_story(fine_tuned) > mean_of_story(on_both)


@pytest.mark.long
def test_the_classifier_alone_is_enough():
    head = ("logisticregression.*",)
    assert mean_of_story(lambda seed: fine_tuned(seed, head)) > mean_of_story(lambda seed: story(seed).old) + 0.3
    old, new = story(0).old, fine_tuned(0, head).to_sklearn()
    assert_array_equal(new["pca"].components_, old["pca"].components_)
    assert_array_equal(new["minmaxscaler"].scale_, old["minmaxscaler"].scale_)
    assert (new["logisticregression"].coef_ != old["logisticregression"].coef_).all()


@pytest.mark.parametrize("engine", available_engines())
def test_fine_tuning_starts_from_the_fitted_model(engine):
    told = story(0)
    start = OrtGradientClassifier(told.old, learning_rate_init=0, engine=engine)
    start.partial_fit(told.X_few, told.y_few, classes=range(10))
    assert_array_equal(start.predict(told.X_test), told.old.predict(told.X_test))
    assert_allclose(start.predict_proba(told.X_test), told.old.predict_proba(told.X_test), rtol=0, atol=1e-5)
    assert_allclose(start.weights_["logisticregression.coef"], told.old[-1].coef_, rtol=1e-6)
    assert_allclose(start.weights_["pca.mean"], told.old["pca"].mean_, rtol=1e-6)


@pytest.mark.parametrize("engine", available_engines())
def test_scikit_learn_and_onnxruntime_predict_as_the_estimator(engine):
    told, tuner = story(0), fine_tuned(0, engine=engine)
    assert tuner.engine_ == engine
    labels, probabilities = tuner.predict(told.X_test), tuner.predict_proba(told.X_test)
    pipeline = tuner.to_sklearn()
    assert [name for name, _ in pipeline.steps] == [name for name, _ in told.old.steps]
    assert_array_equal(pipeline.predict(told.X_test), labels)
    assert_allclose(pipeline.predict_proba(told.X_test), probabilities, rtol=0, atol=1e-5)
    assert abs(told.old.predict_proba(told.X_test) - probabilities).max() > 0.5
    graph = tuner.to_onnx().SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: told.X_test.astype(np.float32)})
    assert_array_equal(found[0], labels)
    assert_allclose(found[1], probabilities, rtol=0, atol=5e-7)


@pytest.mark.skipif(len(available_engines()) < 2, reason="needs onnxruntime-training")
def test_the_engines_agree():
    first, second = available_engines()
    for seed in SEEDS:
        assert (
            abs(story(seed).score(fine_tuned(seed, engine=first)) - story(seed).score(fine_tuned(seed, engine=second)))
            < 0.01
        )


def huber(residuals, limit):
    size = np.abs(residuals)
    return np.where(size <= limit, size**2 / 2, limit * (size - limit / 2))


def test_the_loss_is_that_of_the_fitted_model():
    """At the start it has the value that the formula gives for the fitted model's own predictions."""
    X, y = load_diabetes(return_X_y=True)
    models = {
        "poisson": (PoissonRegressor(alpha=1e-3), lambda p: p - y * np.log(p)),
        "gamma": (GammaRegressor(alpha=1e-3), lambda p: np.log(p) + y / p),
        "tweedie of two": (TweedieRegressor(power=2, alpha=1e-3), lambda p: np.log(p) + y / p),
        "huber": (HuberRegressor(), lambda p: huber(p - y, 1.35 * models["huber"][0].scale_)),
        "quantile": (QuantileRegressor(quantile=0.3, alpha=0), lambda p: np.maximum(0.3 * (y - p), 0.7 * (p - y))),
        "squares": (Ridge(), lambda p: (p - y) ** 2),
    }
    for name, (model, loss) in models.items():
        fitted = make_pipeline(StandardScaler(), model).fit(X, y)
        start = OrtGradientRegressor(fitted, learning_rate_init=0).partial_fit(X, y)
        assert_allclose(start.loss_, loss(fitted.predict(X)).mean(), rtol=1e-5, err_msg=name)
        assert [output.name for output in start.to_onnx().graph.output] == ["variable"]
