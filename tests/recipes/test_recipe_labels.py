"""Several labels a row, each 0 or 1, in the estimators for raw tables."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import get_scorer, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.utils import get_tags
from sklearn.utils.class_weight import compute_sample_weight

from onnxtrain_sklearn import RealMLPClassifier, TabMClassifier, load_training
from onnxtrain_sklearn.callbacks import EarlyStopping
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.recipes import held_out, member, outputs_of, untrained
from tests.helpers.sessions import evaluate
from tests.helpers.training import quietly

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

REALMLP = {"hidden_layer_sizes": (16,), "max_iter": 30, "batch_size": 64, "random_state": 0}
TABM = {"n_members": 4, "hidden_layer_sizes": 24, "learning_rate_init": 0.01, "max_iter": 60, "random_state": 0}
CLASSIFIERS = {
    "RealMLP": RealMLPClassifier("td", **REALMLP),
    "RealMLP TD-S": RealMLPClassifier("td-s", **REALMLP),
    "TabM": TabMClassifier(**TABM),
    "TabM-mini": TabMClassifier(**TABM, mini=True, embedding="piecewise_linear"),
}
SMALL = RealMLPClassifier("td-s", **REALMLP | {"max_iter": 12})


def by_name(test):
    return pytest.mark.parametrize("name", CLASSIFIERS)(test)


def digits():
    """Return a table with text and missing numbers, and three labels a row: even, at least five, has a loop."""
    pixels, digit = load_digits(return_X_y=True)
    chosen = np.arange(0, 1797, 3)
    X = pd.DataFrame(pixels[chosen][:, [10, 12, 19, 20, 21, 26, 28, 30, 36, 42, 43, 54, 61]].astype(float))
    X.columns = [f"pixel {i}" for i in X]
    X["corner"] = np.where(pixels[chosen, 5] > 8, "dark", np.where(pixels[chosen, 5] > 0, "gray", None))
    X.loc[::9, "pixel 3"] = np.nan
    digit = digit[chosen]
    return X, np.stack([digit % 2 == 0, digit >= 5, np.isin(digit, [0, 6, 8, 9])], axis=1).astype(int)


X, Y = digits()


def feeds():
    text = X["corner"].fillna("").to_numpy(object)
    return {name: (text if name == "corner" else X[name].to_numpy(np.float32)).reshape(-1, 1) for name in X}


def reference(truth, probabilities, weights=None, smoothing=0.0):
    """Return the mean over rows and labels of the log loss, in float64."""
    target, p = truth * (1 - smoothing) + smoothing / 2, probabilities.astype(np.float64)
    rows = -(target * np.log(p) + (1 - target) * np.log(1 - p)).mean(axis=1)
    return np.average(rows, weights=weights)


class TestPredictions:
    @by_name
    @pytest.mark.parametrize("n_ensembles", [1, 2])
    def test_predictions_equal_the_graph(self, name, n_ensembles):
        classifier = clone(CLASSIFIERS[name]).set_params(n_ensembles=n_ensembles).fit(X, Y)
        predicted, p = classifier.predict(X), classifier.predict_proba(X)
        assert predicted.shape == p.shape == Y.shape
        assert (predicted.dtype.kind, p.dtype, classifier.n_outputs_) == ("i", np.float64, 3)
        assert_array_equal(classifier.classes_, [0, 1, 2])
        assert classifier.score(X, Y) == (predicted == Y).all(axis=1).mean() > 0.6
        model = classifier.to_onnx()
        onnx.checker.check_model(model, full_check=True)
        labels, probabilities = evaluate(model, **feeds())
        assert_array_equal(labels, predicted)
        assert_allclose(probabilities, p, rtol=5e-7)
        sure = abs(p - 0.5) > 1e-6
        assert_array_equal((p > 0.5)[sure], predicted[sure] == 1)
        assert np.ptp(p.sum(axis=1)) > 1  # no row of shares

    @pytest.mark.long
    def test_of_several_networks_are_those_of_the_mean(self):
        members = [member(SMALL, X, Y, seed) for seed in range(3)]
        single = [outputs_of([one], "multilabel", **feeds()) for one in members]
        labels, probabilities = outputs_of(members, "multilabel", **feeds())
        mean = np.mean([found[1] for found in single], axis=0)
        assert_allclose(probabilities, mean, atol=1e-6)
        assert_array_equal(labels, mean > 0.5)
        votes = np.mean([found[0] for found in single], axis=0) > 0.5
        assert (labels != votes).any()

    def test_of_text_and_of_numbers_alone(self):
        numbers = X.drop(columns="corner").to_numpy()
        classifier = clone(SMALL).fit(numbers, Y)
        labels, probabilities = evaluate(classifier.to_onnx(), X=numbers.astype(np.float32))
        assert_array_equal(labels, classifier.predict(numbers))
        assert_array_equal(probabilities, classifier.predict_proba(numbers.astype(np.float32)))


class TestLoss:
    """Beside a reference in float64."""

    @pytest.mark.parametrize("weights", [None, np.random.default_rng(0).integers(0, 4, len(Y))])
    @pytest.mark.parametrize("name", ["RealMLP", "TabM"])
    def test_on_the_rows_held_out(self, name, weights):
        """Of the epoch that is kept: the score, and the loss, in which labels are smoothed."""
        classifier = clone(CLASSIFIERS[name]).set_params(max_iter=8, callbacks=[EarlyStopping("validation_loss", 99)])
        classifier.fit(X, Y, sample_weight=weights)
        used = np.arange(len(Y)) if weights is None else np.flatnonzero(weights)
        held = held_out(used)
        own, p = None if weights is None else weights[held], classifier.predict_proba(X.iloc[held])
        best = max(classifier.history_, key=lambda row: row["validation_score"])
        assert best["validation_score"] == pytest.approx(-reference(Y[held], p, own), rel=1e-5)
        smoothing = 0.1 if name == "RealMLP" else 0.0
        assert best["validation_loss"] == pytest.approx(reference(Y[held], p, own, smoothing), rel=1e-5)
        assert smoothing == 0 or best["validation_loss"] > 1.02 * -best["validation_score"]

    @pytest.mark.parametrize("weighted", [False, True])
    def test_of_training(self, weighted):
        """A fit that learns nothing and drops nothing has the loss of the probabilities that it ends with."""
        classifier = TabMClassifier(**TABM | {"n_members": 1, "max_iter": 1, "learning_rate_init": 1e-15})
        classifier.set_params(dropout=0.0, validation_split=None, hidden_layer_sizes=(4,), batch_size=64)
        weights = np.random.default_rng(0).exponential(size=len(Y)) if weighted else None
        classifier.fit(X, Y, sample_weight=weights)
        expected = reference(Y, classifier.predict_proba(X), weights)
        assert abs(expected - np.log(2)) > 1e-3
        assert classifier.loss_curves_[0][0] == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("share", [0.0, 0.3])
    def test_smoothing_bounds_the_probabilities_of_each_label(self, share):
        rows = np.repeat(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), 50, axis=0)
        settings = {"max_iter": 100, "validation_split": None, "label_smoothing": share}
        p = clone(SMALL).set_params(**settings).fit(rows, rows).predict_proba(rows)
        assert_allclose(p, np.where(rows == 1, 1 - share / 2, share / 2), atol=0.02)


class TestWeights:
    def test_rows_of_weight_zero_do_not_count(self):
        weights = np.arange(len(Y)) % 3 > 0
        one = clone(SMALL).fit(X, Y, sample_weight=weights)
        other = clone(SMALL).fit(X[weights], Y[weights], sample_weight=np.ones(weights.sum()))
        assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-6)

    @pytest.mark.parametrize("given", ["balanced", [{1: 5.0}, {}, {0: 0.5, 1: 2.0}]])
    def test_of_classes_are_those_of_scikit_learn(self, given):
        weights = compute_sample_weight(given, Y)
        assert np.ptp(weights) > 0.4
        by_class = clone(SMALL).set_params(class_weight=given).fit(X, Y)
        by_row = clone(SMALL).fit(X, Y, sample_weight=weights)
        assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), atol=1e-6)
        assert abs(by_class.predict_proba(X) - clone(SMALL).fit(X, Y).predict_proba(X)).max() > 0.01

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({1: 2.0}, "class_weight should be a list of dicts"),
            ([{1: 2.0}], "number of elements in class_weight should match number of outputs"),
            ([{1: -1.0}, {}, {}], "must not contain negative weights"),
        ],
    )
    def test_of_classes_that_are_refused(self, given, message):
        with pytest.raises(ValueError, match=message):
            clone(SMALL).set_params(class_weight=given).fit(X, Y)


class TestTargets:
    @pytest.mark.parametrize("form", [pd.DataFrame, sp.csr_matrix, np.ndarray.tolist, np.float64, np.bool_])
    def test_of_any_form(self, form):
        expected = clone(SMALL).fit(X, Y)
        given = form(Y)
        found = clone(SMALL).fit(X, given)
        assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
        assert found.predict(X).dtype == np.int64
        assert found.score(X, given) == expected.score(X, Y)

    def test_unsupported_labels_are_refused(self):
        for labels in (Y * 2 + X[["pixel 0"]].to_numpy().astype(int) % 2, np.array(["a", "b", "c"])[Y]):
            with pytest.raises(ValueError, match="MultiOutputClassifier"):
                clone(SMALL).fit(X, labels)
        with pytest.raises(ValueError, match="must be 0 or 1"):
            clone(SMALL).fit(X, Y + 1)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            clone(SMALL).fit(X, Y[:-1])

    def test_constant_labels(self):
        constant = np.concatenate([Y, np.zeros((len(Y), 1), int), np.ones((len(Y), 1), int)], axis=1)
        predicted = clone(SMALL).fit(X, constant).predict(X)
        assert_array_equal(predicted[:, 3:], constant[:, 3:])

    def test_of_one_label_after_several(self):
        classifier = clone(SMALL).fit(X, Y)
        classifier.fit(X, Y.sum(axis=1))
        assert_allclose(classifier.predict_proba(X).sum(axis=1), 1, rtol=0, atol=1e-15)
        assert classifier.predict(X).shape == (len(X),)


class TestValidation:
    @pytest.mark.parametrize("scoring", ["accuracy", "neg_log_loss", "f1_macro", "roc_auc"])
    def test_score_chooses_the_epoch(self, scoring):
        classifier = clone(SMALL).set_params(scoring=scoring).fit(X, Y)
        (scores,) = classifier.validation_scores_
        held = held_out(np.arange(len(Y)))
        rows = X.iloc[held]
        if scoring == "neg_log_loss":
            p = classifier.predict_proba(rows)
            own = -np.mean([log_loss(Y[held, j], p[:, j], labels=[0, 1]) for j in range(3)])
        else:
            own = get_scorer(scoring)(classifier, rows, Y[held])
        assert own == pytest.approx(max(scores), rel=1e-4)
        assert len(scores) == 12
        default = clone(SMALL).fit(X, Y)
        assert (default.validation_scores_ == [scores]) == (scoring == "neg_log_loss")


class TestScikitLearn:
    def test_tags(self):
        for classifier in (SMALL, TabMClassifier()):
            tags = get_tags(classifier)
            assert tags.classifier_tags.multi_label
            assert not tags.target_tags.multi_output

    def test_pickles(self):
        classifier = clone(SMALL).fit(X, Y)
        copy = pickle.loads(pickle.dumps(classifier))
        assert_array_equal(copy.predict_proba(X), classifier.predict_proba(X))
        assert_array_equal(copy.predict(X), classifier.predict(X))

    @pytest.mark.slow
    def test_search(self):
        search = GridSearchCV(SMALL, {"max_iter": [1, 30]}, cv=3).fit(X, Y)
        assert search.best_params_ == {"max_iter": 30}
        assert search.predict(X).shape == Y.shape
        assert cross_val_score(search.best_estimator_, X, Y, cv=3, scoring="f1_micro").min() > 0.7
        p = cross_val_predict(search.best_estimator_, X, Y, cv=3, method="predict_proba")
        assert ((p > 0.5) == Y).mean() > 0.8

    @pytest.mark.long
    @pytest.mark.parametrize("wrap", [MultiOutputClassifier, ClassifierChain])
    def test_meta_estimators_take_recipes(self, wrap):
        numbers = X.drop(columns="corner").fillna(0).to_numpy()
        model = wrap(clone(SMALL)).fit(numbers, Y)
        assert (model.predict(numbers) == Y).mean() > 0.8


class TestTrainingFiles:
    @pytest.mark.parametrize("count", [1, 2])
    def test_training_files_train_as_the_networks(self, count, tmp_path):
        classifier = clone(SMALL).set_params(n_ensembles=count, validation_split=None, max_iter=4, batch_size=32)
        classifier.export_training(tmp_path / "folder", X, Y)
        training = load_training(tmp_path / "folder", shuffle=False)
        given = X.fillna({"corner": ""})
        for _ in range(4):
            training.partial_fit(given, Y)
        each = untrained(classifier, X, Y)
        assert len(each) == count
        for one in each:
            quietly(one.network.set_params(shuffle=False).fit, one.matrix, one.values)
        mean = np.mean([one.network.predict_proba(one.matrix) for one in each], axis=0)
        found = training.predict(given)
        assert_allclose(training.predict_proba(given), mean, atol=1e-4)
        assert found.dtype == np.int64
        assert_array_equal(found[abs(mean - 0.5) > 1e-4], (mean > 0.5)[abs(mean - 0.5) > 1e-4])

    @pytest.mark.parametrize("given", ["balanced", [{1: 5.0}, {}, {}]])
    def test_weights_of_classes_are_refused(self, given, tmp_path):
        with pytest.raises(ModelError, match="multiply the weights into sample_weight"):
            clone(SMALL).set_params(class_weight=given).export_training(tmp_path / "folder", X, Y)
