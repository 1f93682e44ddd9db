"""Several labels a row: fitted models and graphs whose labels are 0 or 1, or each of classes of its own.

Which fitted models are trained, and that their gradients are right, is in contracts/test_fitted_models.py.
"""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.class_weight import compute_sample_weight

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, losses
from onnxtrain_sklearn._gradient.engine import available_engines
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

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


def classifier(model, **parameters):
    defaults = {"max_iter": 5, "learning_rate_init": 0.01, "random_state": 0}
    return OrtGradientClassifier(model, **defaults | parameters)


def unmoved(model, y=YES, **parameters):
    settings = {"learning_rate_init": 0.0, "max_iter": 1, "batch_size": 60, "shuffle": False}
    return classifier(model, **settings | parameters).fit(X[NEW], y[NEW])


def fitted(model, y=YES):
    return clone(model).fit(X[OLD], y[OLD])


def positive(model):
    """Return scikit-learn's probabilities that labels are 1, a column a label."""
    found = model.predict_proba(X)
    return np.stack([p[:, 1] for p in found], axis=1) if isinstance(found, list) else found


def run(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: X})


def by_name(models):
    return pytest.mark.parametrize("model", models.values(), ids=list(models))


class TestYesOrNo:
    @by_name(OF_YES)
    @pytest.mark.parametrize("engine", available_engines())
    def test_begins_from_the_fitted_model(self, model, engine):
        model = fitted(model)
        tuned = unmoved(model, engine=engine)
        assert tuned.engine_ == engine
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert_allclose(tuned.predict_proba(X), positive(model), atol=5e-6)
        assert_array_equal(tuned.classes_, [0, 1, 2])
        p = np.clip(positive(model)[NEW], 1e-6, 1 - 1e-6)
        expected = np.mean([log_loss(YES[NEW, j], p[:, j]) for j in range(3)])
        assert tuned.loss_ == pytest.approx(expected, rel=1e-4)

    @by_name(OF_YES)
    def test_is_trained_and_written_back(self, model):
        model = fitted(model)
        before = pickle.dumps(model)
        tuned = classifier(model, max_iter=30).fit(X[NEW], YES[NEW])
        assert tuned.loss_curve_[-1] < 0.97 * tuned.loss_curve_[0]
        back = tuned.to_sklearn()
        assert pickle.dumps(model) == before
        assert type(back) is type(model)
        assert_array_equal(back.predict(X), tuned.predict(X))
        assert_allclose(positive(back), tuned.predict_proba(X), atol=1e-5)
        assert np.abs(positive(back) - positive(model)).max() > 1e-2

    @by_name(OF_YES)
    def test_file(self, model):
        tuned = classifier(fitted(model)).fit(X[NEW], YES[NEW])
        onnx.checker.check_model(tuned.to_onnx(), full_check=True)
        label, probabilities = run(tuned.to_onnx())
        assert_array_equal(label, tuned.predict(X))
        assert_array_equal(probabilities, tuned.predict_proba(X))

    def test_logits_are_those_of_the_model(self):
        for wrap in (OneVsRestClassifier, MultiOutputClassifier):
            model = fitted(wrap(LogisticRegression()))
            expected = np.stack([one.decision_function(X) for one in model.estimators_], axis=1)
            assert_allclose(unmoved(model).decision_function(X), expected, rtol=1e-5, atol=1e-5)
        far = (1e4 * X).astype(np.float32)  # where probabilities say nothing any more
        expected = model.estimators_[0].decision_function(far)
        assert_allclose(unmoved(model).decision_function(far)[:, 0], expected, rtol=1e-5)

    @pytest.mark.parametrize(
        "model",
        [
            OneVsRestClassifier(LinearSVC()),
            OneVsRestClassifier(SVC()),
            OneVsRestClassifier(RidgeClassifier()),
            RidgeClassifier(),
            MultiOutputClassifier(LinearSVC()),
            MultiOutputClassifier(SVC()),
        ],
        ids=str,
    )
    def test_margins(self, model):
        model = fitted(model)
        tuned = unmoved(model)
        assert isinstance(tuned._run.step.settings.loss, losses.Hinge)
        assert not hasattr(tuned, "predict_proba")
        margins = tuned.decision_function(X)
        parts = [one.decision_function(X) for one in getattr(model, "estimators_", ())]
        assert_allclose(margins, np.stack(parts, axis=1) if parts else model.decision_function(X), rtol=1e-4, atol=1e-4)
        assert_array_equal(tuned.predict(X), model.predict(X))
        hinge = np.maximum(0, 1 - (2 * YES[NEW] - 1) * margins[NEW]).mean()
        assert tuned.loss_ == pytest.approx(hinge, rel=1e-5)
        tuned = classifier(model, max_iter=20).fit(X[NEW], YES[NEW])
        assert_array_equal(tuned.to_sklearn().predict(X), tuned.predict(X))

    def test_names_and_patterns(self):
        model = fitted(make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression())))
        frozen = unmoved(model).weights_
        part = "multioutputclassifier.estimators"
        names = {f"{part}.{i}.{name}" for i in range(3) for name in ("coef", "intercept")}
        assert set(frozen) == names | {"standardscaler.mean", "standardscaler.scale"}
        tuned = classifier(model, trainable=["*.1.coef"]).fit(X[NEW], YES[NEW])
        changed = {name for name, array in tuned.weights_.items() if not np.array_equal(array, frozen[name])}
        assert changed == {f"{part}.1.coef"}
        back = tuned.to_sklearn()
        assert_array_equal(back[-1].estimators_[0].coef_, model[-1].estimators_[0].coef_)

    def test_equal_numbers_of_two_outputs_are_trained_apart(self):
        twice = YES[:, [0, 0]]
        model = MultiOutputClassifier(GaussianNB()).fit(X[OLD], twice[OLD])
        tuned = classifier(model).fit(X[NEW], np.stack([YES[NEW, 0], 1 - YES[NEW, 0]], axis=1))
        first, second = (tuned.weights_[f"estimators.{i}.log_class_prior"] for i in range(2))
        assert not np.allclose(first, second, atol=1e-4)
        assert_allclose(positive(tuned.to_sklearn()), tuned.predict_proba(X), atol=1e-5)

    def test_a_label_that_is_always_no(self):
        never = YES * [1, 0, 1]
        with pytest.warns(UserWarning, match="not is present|Label"):
            model = OneVsRestClassifier(LogisticRegression()).fit(X[OLD], never[OLD])
        tuned = classifier(model).fit(X[NEW], YES[NEW])
        assert set(tuned.weights_) == {f"estimators.{i}.{name}" for i in (0, 2) for name in ("coef", "intercept")}
        assert_allclose(tuned.predict_proba(X)[:, 1], 0, atol=5e-6)

    @pytest.mark.filterwarnings("ignore::FutureWarning")  # of probability=True, which will be dropped
    @pytest.mark.parametrize("wrap", [OneVsRestClassifier, MultiOutputClassifier])
    @pytest.mark.parametrize("y", [YES, YES * [1, 0, 1]], ids=["yes", "never"])
    def test_votes_of_machines_decide(self, wrap, y):
        model = wrap(SVC(probability=True, C=0.1, random_state=0))
        if wrap is MultiOutputClassifier:
            y = YES
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a label that is always no
            model.fit(X[OLD], y[OLD])
        tuned = unmoved(model, y)
        assert_allclose(tuned.predict_proba(X), positive(model), atol=1e-5)
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert not np.array_equal(tuned.predict(X), positive(model) > 0.5)
        assert_array_equal(run(tuned.to_onnx())[0], tuned.predict(X))
        tuned = classifier(model, max_iter=10).fit(X[NEW], y[NEW])
        assert_array_equal(tuned.to_sklearn().predict(X), tuned.predict(X))

    @pytest.mark.parametrize("method", ["predict", "predict_proba"])
    @pytest.mark.parametrize("order", [None, [2, 0, 1]], ids=["given", "other"])
    def test_chains(self, method, order):
        model = fitted(ClassifierChain(LogisticRegression(), order=order, chain_method=method))
        tuned = unmoved(model)
        assert_allclose(tuned.predict_proba(X), model.predict_proba(X), atol=5e-6)
        assert_allclose(tuned.decision_function(X), model.decision_function(X), rtol=1e-4, atol=1e-4)
        assert_array_equal(tuned.predict(X), model.predict(X))
        tuned = classifier(model, max_iter=20).fit(X[NEW], YES[NEW])
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        assert_allclose(tuned.to_sklearn().predict_proba(X), tuned.predict_proba(X), atol=1e-5)

    def test_chains_that_are_not_converted(self):
        for model, y, text in (
            (ClassifierChain(LogisticRegression(), chain_method="decision_function"), YES, "'decision_function'"),
            (ClassifierChain(LogisticRegression()), CODES, "labels that are not 0 or 1"),
        ):
            with pytest.raises(ModelError, match=text):
                classifier(fitted(model, y)).fit(X, y)

    @pytest.mark.parametrize("kind", [bool, float])
    def test_types(self, kind):
        model = MultiOutputClassifier(LogisticRegression()).fit(X[OLD], YES[OLD].astype(kind))
        tuned = classifier(model).fit(X[NEW], YES[NEW].astype(kind))
        assert_array_equal(tuned.predict(X), tuned.to_sklearn().predict(X))

    def test_sparse_and_frames(self):
        model = fitted(OF_YES["one-vs-rest"])
        expected = classifier(model).fit(X[NEW], YES[NEW]).predict_proba(X)
        for y in (sp.csr_matrix(YES[NEW]), pd.DataFrame(YES[NEW]), YES[NEW].tolist()):
            assert_array_equal(classifier(model).fit(X[NEW], y).predict_proba(X), expected)


class TestTrees:
    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    @pytest.mark.parametrize(
        "model", [DecisionTreeClassifier(min_samples_leaf=60), RandomForestClassifier(2, min_samples_leaf=60)], ids=str
    )
    def test_without_a_split(self, model, y):
        tuned = classifier(fitted(model, y), max_iter=20).fit(X[NEW], y[NEW])
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        found, back = tuned.predict_proba(X), tuned.to_sklearn()
        if y is YES:
            assert_allclose(found, positive(back), atol=1e-5)
        else:
            assert_allclose(np.hstack(found), np.hstack(back.predict_proba(X)), atol=1e-5)

    def test_rows_on_thresholds(self):
        """A threshold lies between two float32 numbers, or on one: rows beside it go where scikit-learn sends them."""
        model = DecisionTreeClassifier(random_state=0).fit(X.astype(np.float64) + 1e-9, YES)
        tree = model.tree_
        inner = np.flatnonzero(tree.children_left >= 0)
        edges = np.repeat(X[:1], 3 * len(inner), axis=0)
        for i, node in enumerate(inner):
            at = np.float32(tree.threshold[node])
            sides = [np.nextafter(at, np.float32(-np.inf)), at, np.nextafter(at, np.float32(np.inf))]
            edges[3 * i : 3 * i + 3, tree.feature[node]] = sides
        tuned = unmoved(model)
        assert_array_equal(tuned.predict(edges), model.predict(edges))

    def test_missing_values(self):
        gaps = np.where(rng.random(X.shape) < 0.2, np.float32(np.nan), X)
        model = RandomForestClassifier(5, max_depth=4, random_state=0).fit(gaps, YES)
        tuned = classifier(model, learning_rate_init=0.0, max_iter=1).fit(gaps, YES)
        assert_allclose(tuned.predict_proba(gaps), positive_of(model, gaps), atol=5e-6)

    def test_leaves_stay_probabilities(self):
        tuned = classifier(fitted(OF_KINDS["tree"], KINDS), learning_rate_init=0.3, max_iter=50).fit(X[NEW], KINDS[NEW])
        tree = tuned.to_sklearn().tree_
        ends = tree.children_left < 0
        assert_allclose(tree.value[ends].sum(axis=2), 1, rtol=1e-6)
        assert (tree.value[ends] >= 0).all()
        assert_array_equal(tree.value[ends][:, [0, 2], 2], 0)  # two classes have no third

    def test_a_label_of_one_class(self):
        once = YES * [1, 0, 1]
        model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X[OLD], once[OLD])
        tuned = classifier(model).fit(X[NEW], once[NEW])
        assert [known.tolist() for known in tuned.classes_] == [[0, 1], [0], [0, 1]]
        assert_array_equal(tuned.predict_proba(X)[1], np.ones((120, 1)))
        assert_array_equal(tuned.predict(X), tuned.to_sklearn().predict(X))
        with pytest.raises(ValueError, match=r"Column 1 of y contains labels that are not among the classes: \[1\]"):
            classifier(model).fit(X[NEW], YES[NEW])


def positive_of(model, rows):
    return np.stack([p[:, 1] for p in model.predict_proba(rows)], axis=1)


class TestSeveralClasses:
    @by_name(OF_KINDS)
    @pytest.mark.parametrize("y", [KINDS, CODES], ids=["texts", "numbers"])
    @pytest.mark.parametrize("engine", available_engines())
    def test_begins_from_the_fitted_model(self, model, y, engine):
        model = fitted(model, y)
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
        model = fitted(model, KINDS)
        tuned = classifier(model, max_iter=30).fit(X[NEW], KINDS[NEW])
        assert tuned.loss_curve_[-1] < 0.97 * tuned.loss_curve_[0]
        back = tuned.to_sklearn()
        assert_array_equal(back.predict(X), tuned.predict(X))
        for ours, theirs in zip(tuned.predict_proba(X), back.predict_proba(X), strict=True):
            assert_allclose(ours, theirs, atol=1e-5)

    @pytest.mark.filterwarnings("ignore::FutureWarning")  # of probability=True, which will be dropped
    def test_votes_of_machines_decide(self):
        model = MultiOutputClassifier(SVC(probability=True, C=0.1, random_state=0)).fit(X[OLD], KINDS[OLD])
        tuned = unmoved(model, KINDS)
        assert_array_equal(tuned.predict(X), model.predict(X))
        likely = [known[p.argmax(axis=1)] for known, p in zip(model.classes_, model.predict_proba(X), strict=True)]
        assert not np.array_equal(tuned.predict(X), np.stack(likely, axis=1))
        assert_array_equal(run(tuned.to_onnx())[0], tuned.predict(X))

    @by_name(OF_KINDS)
    @pytest.mark.parametrize("y", [KINDS, CODES], ids=["texts", "numbers"])
    def test_file(self, model, y):
        tuned = classifier(fitted(model, y)).fit(X[NEW], y[NEW])
        file = tuned.to_onnx()
        onnx.checker.check_model(file, full_check=True)
        assert [output.name for output in file.graph.output] == ["label", "probabilities"]
        label, probabilities = run(file)
        assert_array_equal(label, tuned.predict(X))
        assert isinstance(probabilities, list)
        for ours, theirs in zip(tuned.predict_proba(X), probabilities, strict=True):
            assert_array_equal(ours, theirs)

    def test_decision_function(self):
        model = fitted(OF_KINDS["estimator-an-output"], KINDS)
        tuned = unmoved(model, KINDS)
        first, second, third = tuned.decision_function(X)
        assert_allclose(first, model.estimators_[0].decision_function(X), rtol=1e-5, atol=1e-5)
        assert_allclose(second, model.estimators_[1].decision_function(X), rtol=1e-5, atol=1e-5)
        assert third.shape == (120,)
        scores = run(tuned.to_onnx(raw_scores=True))[1]
        for ours, theirs in zip((first, third), (scores[0], scores[2]), strict=True):
            assert_array_equal(theirs, np.stack([-ours, ours], axis=1))
        assert_array_equal(scores[1], second)

    @pytest.mark.parametrize("part", [LinearSVC(), RidgeClassifier()], ids=str)
    def test_margins(self, part):
        model = fitted(MultiOutputClassifier(part), KINDS)
        tuned = unmoved(model, KINDS)
        rows = []
        for j, (ours, one) in enumerate(zip(tuned.decision_function(X), model.estimators_, strict=True)):
            margins = one.decision_function(X)
            assert_allclose(ours, margins, rtol=1e-4, atol=1e-5)
            true = KINDS[:, [j]] == one.classes_
            margins = np.stack([-margins, margins], axis=1) if margins.ndim == 1 else margins
            rows.append(np.maximum(0, 1 - (2 * true - 1) * margins).mean(axis=1)[NEW])
        assert tuned.loss_ == pytest.approx(np.mean(rows), rel=1e-5)
        raw = run(tuned.to_onnx(raw_scores=True))[1]
        assert_allclose(raw[0][:, 1], tuned.decision_function(X)[0], rtol=1e-6)
        assert_array_equal(run(tuned.to_onnx())[0], tuned.predict(X))

    def test_machines_of_several_classes_are_refused(self):
        with pytest.raises(ModelError, match=r"count votes.*probability=True"):
            classifier(fitted(MultiOutputClassifier(SVC()), KINDS)).fit(X, KINDS)

    @pytest.mark.parametrize("zipmap", [True, "columns"])
    def test_zipmap_is_refused(self, zipmap):
        tuned = unmoved(fitted(OF_KINDS["tree"], KINDS), KINDS)
        with pytest.raises(ModelError, match=f"zipmap={zipmap!r} is for one label a row, and here are 3"):
            tuned.to_onnx(zipmap=zipmap)

    def test_one_label_in_a_column(self):
        model = MultiOutputClassifier(LogisticRegression()).fit(X[OLD], YES[OLD, :1])
        tuned = classifier(model).fit(X[NEW], YES[NEW, :1])
        assert_array_equal(tuned.predict(X), tuned.to_sklearn().predict(X))
        assert [p.shape for p in tuned.predict_proba(X)] == [(120, 2)]

    def test_score(self):
        model = fitted(OF_KINDS["estimator-an-output"], KINDS)
        tuned = unmoved(model, KINDS)
        assert tuned.score(X, KINDS) == pytest.approx(model.score(X, KINDS))
        weights = np.arange(120)
        right = (model.predict(X) == KINDS).all(axis=1)
        assert tuned.score(X, KINDS, weights) == pytest.approx((right * weights).sum() / weights.sum())

    def test_classes_missing_in_the_new_rows(self):
        model = fitted(OF_KINDS["forest"], KINDS)
        few = np.flatnonzero((KINDS != "cat").all(axis=1) & (KINDS[:, 1] == "bird"))
        tuned = classifier(model).fit(X[few], KINDS[few])
        assert [len(known) for known in tuned.classes_] == [2, 3, 2]

    def test_class_weights(self):
        model = fitted(OF_KINDS["estimator-an-output"], KINDS)
        chosen = [{"bird": 1, "cat": 3}, {"bird": 2, "cat": 1, "dog": 5}, {"bird": 1, "cat": 0.5}]
        for weight in ("balanced", chosen):
            rows = compute_sample_weight(weight, KINDS[NEW])
            weighted = classifier(model).fit(X[NEW], KINDS[NEW], sample_weight=rows)
            tuned = classifier(model, class_weight=weight).fit(X[NEW], KINDS[NEW])
            assert_array_equal(tuned.weights_["estimators.1.coef"], weighted.weights_["estimators.1.coef"])

    def test_early_stopping(self):
        model = fitted(OF_KINDS["estimator-an-output"], KINDS)
        tuned = classifier(model, early_stopping=True, max_iter=8)
        tuned.fit(X[NEW], KINDS[NEW], X_val=X[OLD], y_val=KINDS[OLD])
        assert tuned.best_validation_score_ == pytest.approx(tuned.score(X[OLD], KINDS[OLD]))
        assert len(classifier(model, early_stopping=True).fit(X, KINDS).validation_scores_) == 5


class TestLoss:
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
        run, step = tuned._run, tuned._run.step
        run.parameters.vector[:] = 0.5 * np.random.default_rng(1).normal(size=run.parameters.vector.shape)
        weights = {name: array.astype(np.float64) for name, array in run.parameters.weights().items()}
        (W,), (b,) = ([a for a in weights.values() if a.ndim == n] for n in (2, 1))
        W = W if W.shape[0] == 4 else W.T

        def reference(W, b):
            parts = np.split(X[NEW].astype(np.float64) @ W + b, [2, 5], axis=1)
            known = [np.unique(column) for column in KINDS[NEW].T]
            return np.mean([LOSSES[loss](s, KINDS[NEW][:, [j]] == known[j]) for j, s in enumerate(parts)])

        assert step.gradients(60.0) == pytest.approx(reference(W, b), rel=1e-5)
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
            OrtGradientClassifier(graph, output="probabilities").fit(X, KINDS)

    def test_columns_that_do_not_fit(self):
        graph = OrtGradientClassifier(Linear(), max_iter=1, loss="hinge").fit(X, np.arange(120) % 3).to_onnx()
        with pytest.raises(ValueError, match=r"output has 3 column\(s\)"):
            OrtGradientClassifier(graph, loss="hinge").fit(X, KINDS)


class TestRefused:
    @pytest.mark.parametrize(
        ("model", "y", "new", "text"),
        [
            ("one-vs-rest", YES, YES[:, 0], "predicts 3 labels a row, and y has 1"),
            ("one-vs-rest", YES, YES[:, :2], "predicts 3 labels a row, and y has 2"),
            ("one-vs-rest", YES, 2 * YES, "must be 0 or 1"),
            ("one-vs-rest", YES, CODES, "must be 0 or 1"),
            ("forest", YES, KINDS, "must be 0 or 1"),
            ("forest", KINDS, KINDS[:, :2], "predicts 3 labels a row, and y has 2"),
            ("forest", KINDS, KINDS[:, 0], "predicts 3 labels a row, and y has 1"),
            ("forest", KINDS, np.char.add(KINDS, "s"), "Column 0 of y contains labels that are not among the classes"),
            ("forest", KINDS, YES, "Column 0 of y contains labels that are not among the classes"),
        ],
    )
    def test_labels_of_another_kind(self, model, y, new, text):
        tuned = classifier(fitted((OF_YES | OF_KINDS)[model], y))
        before = dict(vars(tuned))
        with pytest.raises(ValueError, match=text):
            tuned.fit(X, new)
        assert vars(tuned) == before

    def test_several_labels_for_a_model_of_one(self):
        model = LogisticRegression().fit(X, YES[:, 0])
        with pytest.raises(ValueError, match="predicts one label a row, and y has 3"):
            classifier(model).fit(X, YES)

    def test_later_labels_of_another_kind(self):
        tuned = unmoved(fitted(OF_KINDS["forest"], KINDS), KINDS)
        before = dict(vars(tuned))
        for y, text in ((KINDS[:, :2], "y has 2"), (np.char.add(KINDS, "s"), "not among the classes")):
            with pytest.raises(ValueError, match=text):
                tuned.partial_fit(X, y)
        with pytest.raises(ValueError, match="expected 3 labels"):
            tuned.fit(X, KINDS, X_val=X, y_val=KINDS[:, :2])
        assert vars(tuned) == before

    def test_classes_that_are_not_the_models(self):
        tuned = classifier(fitted(OF_KINDS["forest"], KINDS))
        with pytest.raises(ValueError, match="are not those of the fitted model"):
            tuned.partial_fit(X, KINDS, classes=[["bird"], ["cat"], ["dog"]])
        tuned.partial_fit(X, KINDS, classes=[["bird", "cat"], ["bird", "cat", "dog"], ["bird", "cat"]])
        tuned = classifier(fitted(OF_YES["forest"]))
        with pytest.raises(ValueError, match=r"classes=\[0, 1\] are not those of the fitted model, \[0, 1, 2\]"):
            tuned.partial_fit(X, YES, classes=[0, 1])

    def test_regressors_an_output(self):
        model = OneVsRestClassifier(LinearRegression()).fit(X, YES)
        with pytest.raises(ModelError, match="has no decision_function"):
            classifier(model).fit(X, YES)


class TestGoOn:
    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies(self, copied, y):
        tuned = classifier(fitted(OF_KINDS["forest"], y), warm_start=True).fit(X[NEW], y[NEW])
        twin = copied(tuned)
        for one in (tuned, twin):
            one.fit(X[NEW], y[NEW])
        assert tuned.n_iter_ == 10
        assert_array_equal(twin.predict(X), tuned.predict(X))
        assert_array_equal(twin.to_sklearn(X).predict(X), tuned.to_sklearn().predict(X))
        straight = classifier(fitted(OF_KINDS["forest"], y), max_iter=10).fit(X[NEW], y[NEW])
        assert_array_equal(np.hstack(straight.predict_proba(X)), np.hstack(tuned.predict_proba(X)))

    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    def test_partial_fit_needs_no_classes(self, y):
        tuned = classifier(fitted(OF_KINDS["tree"], y))
        tuned.partial_fit(X[NEW][:2], y[NEW][:2])
        before = tuned.weights_["decisiontreeclassifier.leaf_values"]
        tuned.partial_fit(X[NEW], y[NEW])
        assert not np.array_equal(before, tuned.weights_["decisiontreeclassifier.leaf_values"])
        assert tuned.t_ == 62

    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    def test_search(self, y):
        model = fitted(OF_KINDS["estimator-an-output"], y)
        search = GridSearchCV(classifier(model, max_iter=20), {"learning_rate_init": [0.0, 0.02]}, cv=2).fit(X, y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert search.best_estimator_.model is model

    def test_wrapped(self):
        model = make_pipeline(StandardScaler(), GridSearchCV(OF_KINDS["estimator-an-output"], {"n_jobs": [1]}, cv=2))
        tuned = classifier(model.fit(X, KINDS)).fit(X[NEW], KINDS[NEW])
        assert_array_equal(tuned.to_sklearn().predict(X), tuned.predict(X))


def test_labels_of_unequal_lengths():
    """Words of one label are no shorter for those of another being short."""
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.stack([np.where(X[:, 0] > 0, "a", "b"), np.where(X[:, 1] > 0, "green", "red")], axis=1).astype(object)
    classes = [np.array(["a", "b"]), np.array(["green", "red"])]
    net = OrtGradientClassifier(Linear(), learning_rate_init=0.1, random_state=0)
    for _ in range(20):
        net.partial_fit(X, y, classes=classes)
    assert set(net.predict(X)[:, 1]) == {"green", "red"}
    assert net.score(X, y) > 0.9


def test_a_label_that_was_always_the_same():
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.stack([np.ones(60), X[:, 0] > 0], axis=1).astype(int)
    with pytest.warns(UserWarning, match="present in all"):
        model = OneVsRestClassifier(LinearSVC()).fit(X, y)
    with pytest.raises(ModelError, match="Label 0 of this OneVsRestClassifier was the same"):
        OrtGradientClassifier(model).fit(X, y)
