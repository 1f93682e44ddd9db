"""Labels of several classes each, losses over labels, graphs that are built for them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.class_weight import compute_sample_weight

from onnxtrain_sklearn import MLP, GraphModel, Linear, OrtGradientClassifier
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.several_labels import (
    CODES,
    KINDS,
    NEW,
    OF_KINDS,
    OLD,
    YES,
    X,
    by_name,
    fitted_to_labels,
    label_classifier,
    run_file,
    unmoved,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def positive_of(model, rows):
    return np.stack([p[:, 1] for p in model.predict_proba(rows)], axis=1)


class TestSeveralClasses:
    @by_name(OF_KINDS)
    @pytest.mark.parametrize("y", [KINDS, CODES], ids=["texts", "numbers"])
    @pytest.mark.parametrize("engine", available_engines())
    def test_begins_from_the_fitted_model(self, model, y, engine):
        model = fitted_to_labels(model, y)
        tuned = unmoved(model, y, engine=engine)
        assert tuned.engine_ == engine
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert tuned.predict(X).dtype.kind == y.dtype.kind
        for ours, theirs, known in zip(tuned.predict_proba(X), model.predict_proba(X), tuned.classes_, strict=True):
            assert ours.shape == (120, len(known))
            assert_allclose(ours, theirs, atol=5e-6)
        assert [known.tolist() for known in tuned.classes_] == [np.unique(column).tolist() for column in y[OLD].T]

    @by_name(OF_KINDS)
    def test_is_trained_and_written_back(self, model):
        model = fitted_to_labels(model, KINDS)
        tuned = label_classifier(model, max_iter=30).fit(X[NEW], KINDS[NEW])
        assert tuned.loss_curve_[-1] < 0.97 * tuned.loss_curve_[0]
        back = tuned.to_sklearn()
        assert_array_equal(back.predict(X), tuned.predict(X))
        for ours, theirs in zip(tuned.predict_proba(X), back.predict_proba(X), strict=True):
            assert_allclose(ours, theirs, atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::FutureWarning")  # of probability=True, which will be dropped
    def test_votes_of_machines_decide(self):
        model = MultiOutputClassifier(SVC(probability=True, C=0.1, random_state=0)).fit(X[OLD], KINDS[OLD])
        tuned = unmoved(model, KINDS)
        assert_array_equal(tuned.predict(X), model.predict(X))
        likely = [known[p.argmax(axis=1)] for known, p in zip(model.classes_, model.predict_proba(X), strict=True)]
        assert not np.array_equal(tuned.predict(X), np.stack(likely, axis=1))
        assert_array_equal(run_file(tuned.to_onnx())[0], tuned.predict(X))

    @by_name(OF_KINDS)
    @pytest.mark.parametrize("y", [KINDS, CODES], ids=["texts", "numbers"])
    def test_file(self, model, y):
        tuned = label_classifier(fitted_to_labels(model, y)).fit(X[NEW], y[NEW])
        file = tuned.to_onnx()
        onnx.checker.check_model(file, full_check=True)
        assert [output.name for output in file.graph.output] == ["label", "probabilities"]
        label, probabilities = run_file(file)
        assert_array_equal(label, tuned.predict(X))
        assert isinstance(probabilities, list)
        for ours, theirs in zip(tuned.predict_proba(X), probabilities, strict=True):
            assert_array_equal(ours, theirs)

    def test_decision_function(self):
        model = fitted_to_labels(OF_KINDS["estimator-an-output"], KINDS)
        tuned = unmoved(model, KINDS)
        first, second, third = tuned.decision_function(X)
        assert_allclose(first, model.estimators_[0].decision_function(X), rtol=1e-5, atol=1e-5)
        assert_allclose(second, model.estimators_[1].decision_function(X), rtol=1e-5, atol=1e-5)
        assert third.shape == (120,)
        scores = run_file(tuned.to_onnx(raw_scores=True))[1]
        for ours, theirs in zip((first, third), (scores[0], scores[2]), strict=True):
            assert_array_equal(theirs, np.stack([-ours, ours], axis=1))
        assert_array_equal(scores[1], second)

    @pytest.mark.parametrize("part", [LinearSVC(), RidgeClassifier()], ids=str)
    def test_margins(self, part):
        model = fitted_to_labels(MultiOutputClassifier(part), KINDS)
        tuned = unmoved(model, KINDS)
        rows = []
        for j, (ours, one) in enumerate(zip(tuned.decision_function(X), model.estimators_, strict=True)):
            margins = one.decision_function(X)
            assert_allclose(ours, margins, rtol=1e-4, atol=1e-5)
            true = KINDS[:, [j]] == one.classes_
            margins = np.stack([-margins, margins], axis=1) if margins.ndim == 1 else margins
            rows.append((np.maximum(0, 1 - (2 * true - 1) * margins) ** 2).mean(axis=1)[NEW])
        assert tuned.loss_ == pytest.approx(np.mean(rows), rel=1e-5)
        raw = run_file(tuned.to_onnx(raw_scores=True))[1]
        assert_allclose(raw[0][:, 1], tuned.decision_function(X)[0], rtol=1e-6)
        assert_array_equal(run_file(tuned.to_onnx())[0], tuned.predict(X))

    def test_machines_of_several_classes_are_refused(self):
        with pytest.raises(ModelError, match=r"count votes.*probability=True"):
            label_classifier(fitted_to_labels(MultiOutputClassifier(SVC()), KINDS)).fit(X, KINDS)

    @pytest.mark.parametrize("zipmap", [True, "columns"])
    def test_zipmap_is_refused(self, zipmap):
        tuned = unmoved(fitted_to_labels(OF_KINDS["tree"], KINDS), KINDS)
        with pytest.raises(ModelError, match=f"zipmap={zipmap!r} is for one label a row, and here are 3"):
            tuned.to_onnx(zipmap=zipmap)

    def test_one_label_in_a_column(self):
        model = MultiOutputClassifier(LogisticRegression()).fit(X[OLD], YES[OLD, :1])
        tuned = label_classifier(model).fit(X[NEW], YES[NEW, :1])
        assert_array_equal(tuned.predict(X), tuned.to_sklearn().predict(X))
        assert [p.shape for p in tuned.predict_proba(X)] == [(120, 2)]

    def test_score(self):
        model = fitted_to_labels(OF_KINDS["estimator-an-output"], KINDS)
        tuned = unmoved(model, KINDS)
        assert tuned.score(X, KINDS) == pytest.approx(model.score(X, KINDS))
        weights = np.arange(120)
        right = (model.predict(X) == KINDS).all(axis=1)
        assert tuned.score(X, KINDS, weights) == pytest.approx((right * weights).sum() / weights.sum())

    def test_classes_missing_in_the_new_rows(self):
        model = fitted_to_labels(OF_KINDS["forest"], KINDS)
        few = np.flatnonzero((KINDS != "cat").all(axis=1) & (KINDS[:, 1] == "bird"))
        tuned = label_classifier(model).fit(X[few], KINDS[few])
        assert [len(known) for known in tuned.classes_] == [2, 3, 2]

    def test_class_weights(self):
        model = fitted_to_labels(OF_KINDS["estimator-an-output"], KINDS)
        chosen = [{"bird": 1, "cat": 3}, {"bird": 2, "cat": 1, "dog": 5}, {"bird": 1, "cat": 0.5}]
        for weight in ("balanced", chosen):
            rows = compute_sample_weight(weight, KINDS[NEW])
            weighted = label_classifier(model).fit(X[NEW], KINDS[NEW], sample_weight=rows)
            tuned = label_classifier(model, class_weight=weight).fit(X[NEW], KINDS[NEW])
            assert_array_equal(tuned.weights_["estimators.1.coef"], weighted.weights_["estimators.1.coef"])

    def test_early_stopping(self):
        model = fitted_to_labels(OF_KINDS["estimator-an-output"], KINDS)
        tuned = label_classifier(model, early_stopping=True, max_iter=8)
        tuned.fit(X[NEW], KINDS[NEW], X_val=X[OLD], y_val=KINDS[OLD])
        assert tuned.best_validation_score_ == pytest.approx(tuned.score(X[OLD], KINDS[OLD]))
        assert len(label_classifier(model, early_stopping=True).fit(X, KINDS).validation_scores_) == 5


class TestLossOfSeveralClasses:
    """The loss of a row is the mean of the losses of its labels, each on the columns of its own."""

    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("loss", ["log_loss", "hinge", "squared_hinge", "modified_huber", "focal"])
    def test_value_and_gradient(self, loss, engine):
        tuned = OrtGradientClassifier(
            Linear(),
            loss=loss,
            engine=engine,
            max_iter=1,
            learning_rate_init=0.0,
            batch_size=60,
            shuffle=False,
            random_state=0,
        ).fit(X[NEW], KINDS[NEW])
        run, step = tuned._state, tuned._state.live.step
        run.parameters.vector[:] = 0.5 * np.random.default_rng(1).normal(size=run.parameters.vector.shape)
        weights = {name: array.astype(np.float64) for name, array in run.parameters.weights().items()}
        (W,), (b,) = ([a for a in weights.values() if a.ndim == n] for n in (2, 1))
        W = W if W.shape[0] == 4 else W.T

        def reference(W, b):
            parts = np.split(X[NEW].astype(np.float64) @ W + b, [2, 5], axis=1)
            known = [np.unique(column) for column in KINDS[NEW].T]
            return np.mean([LOSSES[loss](s, KINDS[NEW][:, [j]] == known[j]) for j, s in enumerate(parts)])

        assert step.compute_gradients(60.0) == pytest.approx(reference(W, b), rel=1e-5)
        gradient = run.parameters.gradient.copy()
        found = {a.ndim: gradient[run.parameters.span(n)].reshape(a.shape) for n, a in weights.items()}
        got = found[2] if found[2].shape == W.shape else found[2].T
        for place in np.ndindex(W.shape):
            move = np.zeros_like(W)
            move[place] = 1e-6
            slope = (reference(W + move, b) - reference(W - move, b)) / 2e-6
            assert got[place] == pytest.approx(slope, rel=1e-3, abs=1e-5)


def _margins(s, y):
    return (2.0 * y - 1) * s


def _focal(s, y):
    p = np.exp(log_softmax(s, axis=1))[y]
    return -((1 - p) ** 2 * np.log(p)).mean()


LOSSES = {
    "log_loss": lambda s, y: -log_softmax(s, axis=1)[y].mean(),
    "hinge": lambda s, y: np.maximum(0, 1 - _margins(s, y)).mean(),
    "squared_hinge": lambda s, y: (np.maximum(0, 1 - _margins(s, y)) ** 2).mean(),
    "modified_huber": lambda s, y: np.where(
        _margins(s, y) >= -1, np.maximum(0, 1 - _margins(s, y)) ** 2, -4 * _margins(s, y)
    ).mean(),
    "focal": _focal,
}


class TestBuiltGraphs:
    def test_learn_several_labels(self):
        tuned = OrtGradientClassifier(MLP((16,)), learning_rate_init=0.02, max_iter=300, random_state=0).fit(X, KINDS)
        assert tuned.score(X, KINDS) > 0.9
        assert tuned.n_outputs_ == 7
        for p in tuned.predict_proba(X):
            assert_allclose(p.sum(axis=1), 1, rtol=1e-5)

    def test_pass_by_pass(self):
        classes = [np.unique(column) for column in KINDS.T]
        tuned = OrtGradientClassifier(Linear(), random_state=0)
        with pytest.raises(ValueError, match="classes must be passed"):
            tuned.partial_fit(X[:5], KINDS[:5])
        tuned.partial_fit(X[:1], KINDS[:1], classes=classes).partial_fit(X[5:9], KINDS[5:9])
        tuned.partial_fit(X, KINDS, classes=classes)
        with pytest.raises(ValueError, match="is not the same as on the last call"):
            tuned.partial_fit(X, KINDS, classes[:2])
        assert [p.shape[1] for p in tuned.predict_proba(X)] == [2, 3, 2]

    def test_modified_huber_gives_probabilities(self):
        tuned = OrtGradientClassifier(Linear(), loss="modified_huber", max_iter=20, random_state=0).fit(X, KINDS)
        for p in tuned.predict_proba(X):
            assert_allclose(p.sum(axis=1), 1, rtol=1e-5)

    def test_a_graph_that_ends_in_a_softmax_is_refused(self):
        graph = OrtGradientClassifier(MLP((4,)), max_iter=1).fit(X, np.arange(120) % 7).to_onnx()
        with pytest.raises(ValueError, match="softmax, which cannot model several labels of several classes"):
            OrtGradientClassifier(GraphModel(graph, output="probabilities")).fit(X, KINDS)

    def test_columns_that_do_not_fit(self):
        graph = OrtGradientClassifier(Linear(), max_iter=1, loss="hinge").fit(X, np.arange(120) % 3).to_onnx()
        with pytest.raises(ValueError, match=r"output has 3 column\(s\)"):
            OrtGradientClassifier(graph, loss="hinge").fit(X, KINDS)
