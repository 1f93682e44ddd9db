"""Several labels a row: fitted models and graphs whose labels are 0 or 1, or each of classes of its own.

Which fitted models are trained, and that their gradients are right, is in contracts/test_fitted_models.py.
"""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import onnx
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from onnxtrain_sklearn import Linear, OrtGradientClassifier
from onnxtrain_sklearn.exceptions import ModelError
from tests.fitted.test_labels_of_several_classes import positive_of
from tests.helpers.environment import available_engines
from tests.helpers.selection import one_case
from tests.helpers.several_labels import (
    CODES,
    KINDS,
    NEW,
    OF_KINDS,
    OF_YES,
    OLD,
    YES,
    X,
    by_name,
    fitted_to_labels,
    label_classifier,
    positive_probabilities,
    rng,
    run_file,
    unmoved,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class TestYesOrNo:
    @by_name(OF_YES)
    @pytest.mark.parametrize("engine", available_engines())
    def test_begins_from_the_fitted_model(self, model, engine):
        model = fitted_to_labels(model)
        tuned = unmoved(model, engine=engine)
        assert tuned.engine_ == engine
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert_allclose(tuned.predict_proba(X), positive_probabilities(model), atol=5e-6)
        assert_array_equal(tuned.classes_, [0, 1, 2])
        p = np.clip(positive_probabilities(model)[NEW], 1e-6, 1 - 1e-6)
        expected = np.mean([log_loss(YES[NEW, j], p[:, j]) for j in range(3)])
        assert tuned.loss_ == pytest.approx(expected, rel=1e-4)

    @by_name(OF_YES)
    def test_is_trained_and_written_back(self, model):
        model = fitted_to_labels(model)
        before = pickle.dumps(model)
        tuned = label_classifier(model, max_iter=30).fit(X[NEW], YES[NEW])
        assert tuned.loss_curve_[-1] < 0.97 * tuned.loss_curve_[0]
        back = tuned.to_sklearn()
        assert pickle.dumps(model) == before
        assert type(back) is type(model)
        assert_array_equal(back.predict(X), tuned.predict(X))
        assert_allclose(positive_probabilities(back), tuned.predict_proba(X), atol=1e-5)
        assert np.abs(positive_probabilities(back) - positive_probabilities(model)).max() > 1e-2

    @by_name(OF_YES)
    def test_file(self, model):
        tuned = label_classifier(fitted_to_labels(model)).fit(X[NEW], YES[NEW])
        onnx.checker.check_model(tuned.to_onnx(), full_check=True)
        label, probabilities = run_file(tuned.to_onnx())
        assert_array_equal(label, tuned.predict(X))
        assert_array_equal(probabilities, tuned.predict_proba(X))

    def test_logits_are_those_of_the_model(self):
        for wrap in (OneVsRestClassifier, MultiOutputClassifier):
            model = fitted_to_labels(wrap(LogisticRegression()))
            expected = np.stack([one.decision_function(X) for one in model.estimators_], axis=1)
            assert_allclose(unmoved(model).decision_function(X), expected, rtol=1e-5, atol=1e-5)
        far = (1e4 * X).astype(np.float32)  # where probabilities say nothing any more
        expected = model.estimators_[0].decision_function(far)
        assert_allclose(unmoved(model).decision_function(far)[:, 0], expected, rtol=1e-5)

    @pytest.mark.slow
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
        model = fitted_to_labels(model)
        tuned = unmoved(model)
        assert not hasattr(tuned, "predict_proba")
        margins = tuned.decision_function(X)
        parts = [one.decision_function(X) for one in getattr(model, "estimators_", ())]
        assert_allclose(margins, np.stack(parts, axis=1) if parts else model.decision_function(X), rtol=1e-4, atol=1e-4)
        assert_array_equal(tuned.predict(X), model.predict(X))
        hinge = np.maximum(0, 1 - (2 * YES[NEW] - 1) * margins[NEW])
        power = 1 if "SVC())" in str(model) and "Linear" not in str(model) else 2  # LinearSVC() squares the hinge loss
        assert tuned.loss_ == pytest.approx((hinge**power).mean(), rel=1e-5)
        tuned = label_classifier(model, max_iter=20).fit(X[NEW], YES[NEW])
        assert_array_equal(tuned.to_sklearn().predict(X), tuned.predict(X))

    def test_names_and_patterns(self):
        model = fitted_to_labels(make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression())))
        frozen = unmoved(model).weights_
        part = "multioutputclassifier.estimators"
        names = {f"{part}.{i}.{name}" for i in range(3) for name in ("coef", "intercept")}
        assert set(frozen) == names | {"standardscaler.mean", "standardscaler.scale"}
        tuned = label_classifier(model, trainable=["*.1.coef"]).fit(X[NEW], YES[NEW])
        changed = {name for name, array in tuned.weights_.items() if not np.array_equal(array, frozen[name])}
        assert changed == {f"{part}.1.coef"}
        back = tuned.to_sklearn()
        assert_array_equal(back[-1].estimators_[0].coef_, model[-1].estimators_[0].coef_)

    def test_equal_numbers_of_two_outputs_are_trained_apart(self):
        twice = YES[:, [0, 0]]
        model = MultiOutputClassifier(GaussianNB()).fit(X[OLD], twice[OLD])
        tuned = label_classifier(model).fit(X[NEW], np.stack([YES[NEW, 0], 1 - YES[NEW, 0]], axis=1))
        first, second = (tuned.weights_[f"estimators.{i}.log_class_prior"] for i in range(2))
        assert not np.allclose(first, second, atol=1e-4)
        assert_allclose(positive_probabilities(tuned.to_sklearn()), tuned.predict_proba(X), atol=1e-5)

    def test_a_label_that_is_always_no(self):
        never = YES * [1, 0, 1]
        with pytest.warns(UserWarning, match="not is present|Label"):
            model = OneVsRestClassifier(LogisticRegression()).fit(X[OLD], never[OLD])
        tuned = label_classifier(model).fit(X[NEW], YES[NEW])
        assert set(tuned.weights_) == {f"estimators.{i}.{name}" for i in (0, 2) for name in ("coef", "intercept")}
        assert_allclose(tuned.predict_proba(X)[:, 1], 0, atol=5e-6)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::FutureWarning")  # of probability=True, which will be dropped
    @pytest.mark.parametrize(
        ("wrap", "y"),
        [(OneVsRestClassifier, YES), (OneVsRestClassifier, YES * [1, 0, 1]), (MultiOutputClassifier, YES)],
        ids=["yes", "never", "an estimator a label"],
    )
    @one_case
    def test_votes_of_machines_decide(self, wrap, y):
        model = wrap(SVC(probability=True, C=0.1, random_state=0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a label that is always no
            model.fit(X[OLD], y[OLD])
        tuned = unmoved(model, y)
        assert_allclose(tuned.predict_proba(X), positive_probabilities(model), atol=1e-5)
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert not np.array_equal(tuned.predict(X), positive_probabilities(model) > 0.5)
        assert_array_equal(run_file(tuned.to_onnx())[0], tuned.predict(X))
        tuned = label_classifier(model, max_iter=10).fit(X[NEW], y[NEW])
        assert_array_equal(tuned.to_sklearn().predict(X), tuned.predict(X))

    @pytest.mark.parametrize("method", ["predict", "predict_proba"])
    @pytest.mark.parametrize("order", [None, [2, 0, 1]], ids=["given", "other"])
    def test_chains(self, method, order):
        model = fitted_to_labels(ClassifierChain(LogisticRegression(), order=order, chain_method=method))
        tuned = unmoved(model)
        assert_allclose(tuned.predict_proba(X), model.predict_proba(X), atol=5e-6)
        assert_allclose(tuned.decision_function(X), model.decision_function(X), rtol=1e-4, atol=1e-4)
        assert_array_equal(tuned.predict(X), model.predict(X))
        tuned = label_classifier(model, max_iter=20).fit(X[NEW], YES[NEW])
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        assert_allclose(tuned.to_sklearn().predict_proba(X), tuned.predict_proba(X), atol=1e-5)

    def test_chains_that_are_not_converted(self):
        for model, y, text in (
            (ClassifierChain(LogisticRegression(), chain_method="decision_function"), YES, "'decision_function'"),
            (ClassifierChain(LogisticRegression()), CODES, "labels other than 0 and 1"),
        ):
            with pytest.raises(ModelError, match=text):
                label_classifier(fitted_to_labels(model, y)).fit(X, y)

    @pytest.mark.parametrize("kind", [bool, float])
    def test_types(self, kind):
        model = MultiOutputClassifier(LogisticRegression()).fit(X[OLD], YES[OLD].astype(kind))
        tuned = label_classifier(model).fit(X[NEW], YES[NEW].astype(kind))
        assert_array_equal(tuned.predict(X), tuned.to_sklearn().predict(X))

    def test_sparse_and_frames(self):
        model = fitted_to_labels(OF_YES["one-vs-rest"])
        expected = label_classifier(model).fit(X[NEW], YES[NEW]).predict_proba(X)
        for y in (sp.csr_matrix(YES[NEW]), pd.DataFrame(YES[NEW]), YES[NEW].tolist()):
            assert_array_equal(label_classifier(model).fit(X[NEW], y).predict_proba(X), expected)


class TestTreesOfSeveralLabels:
    @pytest.mark.slow
    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    @pytest.mark.parametrize(
        "model", [DecisionTreeClassifier(min_samples_leaf=60), RandomForestClassifier(2, min_samples_leaf=60)], ids=str
    )
    def test_without_a_split(self, model, y):
        tuned = label_classifier(fitted_to_labels(model, y), max_iter=20).fit(X[NEW], y[NEW])
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        found, back = tuned.predict_proba(X), tuned.to_sklearn()
        if y is YES:
            assert_allclose(found, positive_probabilities(back), atol=1e-5)
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
        tuned = label_classifier(model, learning_rate_init=0.0, max_iter=1).fit(gaps, YES)
        assert_allclose(tuned.predict_proba(gaps), positive_of(model, gaps), atol=5e-6)

    def test_leaves_stay_probabilities(self):
        tuned = label_classifier(fitted_to_labels(OF_KINDS["tree"], KINDS), learning_rate_init=0.3, max_iter=50).fit(
            X[NEW], KINDS[NEW]
        )
        tree = tuned.to_sklearn().tree_
        ends = tree.children_left < 0
        assert_allclose(tree.value[ends].sum(axis=2), 1, rtol=1e-6)
        assert (tree.value[ends] >= 0).all()
        assert_array_equal(tree.value[ends][:, [0, 2], 2], 0)  # two classes have no third

    def test_a_label_of_one_class(self):
        once = YES * [1, 0, 1]
        model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X[OLD], once[OLD])
        tuned = label_classifier(model).fit(X[NEW], once[NEW])
        assert [known.tolist() for known in tuned.classes_] == [[0, 1], [0], [0, 1]]
        assert_array_equal(tuned.predict_proba(X)[1], np.ones((120, 1)))
        assert_array_equal(tuned.predict(X), tuned.to_sklearn().predict(X))
        with pytest.raises(ValueError, match=r"Column 1 of y contains labels that are not among the classes: \[1\]"):
            label_classifier(model).fit(X[NEW], YES[NEW])


class TestRefusedLabels:
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
        tuned = label_classifier(fitted_to_labels((OF_YES | OF_KINDS)[model], y))
        before = dict(vars(tuned))
        with pytest.raises(ValueError, match=text):
            tuned.fit(X, new)
        assert vars(tuned) == before

    def test_several_labels_for_a_model_of_one(self):
        model = LogisticRegression().fit(X, YES[:, 0])
        with pytest.raises(ValueError, match="predicts one label a row, and y has 3"):
            label_classifier(model).fit(X, YES)

    @pytest.mark.long
    def test_later_labels_of_another_kind(self):
        tuned = unmoved(fitted_to_labels(OF_KINDS["forest"], KINDS), KINDS)
        before = dict(vars(tuned))
        for y, text in ((KINDS[:, :2], "y has 2"), (np.char.add(KINDS, "s"), "not among the classes")):
            with pytest.raises(ValueError, match=text):
                tuned.partial_fit(X, y)
        with pytest.raises(ValueError, match="expected 3 labels"):
            tuned.fit(X, KINDS, X_val=X, y_val=KINDS[:, :2])
        assert vars(tuned) == before

    def test_classes_that_are_not_the_models(self):
        tuned = label_classifier(fitted_to_labels(OF_KINDS["forest"], KINDS))
        with pytest.raises(ValueError, match="are not those of the fitted model"):
            tuned.partial_fit(X, KINDS, classes=[["bird"], ["cat"], ["dog"]])
        tuned.partial_fit(X, KINDS, classes=[["bird", "cat"], ["bird", "cat", "dog"], ["bird", "cat"]])
        tuned = label_classifier(fitted_to_labels(OF_YES["forest"]))
        with pytest.raises(ValueError, match=r"classes=\[0, 1\] are not those of the fitted model, \[0, 1, 2\]"):
            tuned.partial_fit(X, YES, classes=[0, 1])

    def test_regressors_an_output(self):
        model = OneVsRestClassifier(LinearRegression()).fit(X, YES)
        with pytest.raises(ModelError, match="has no decision_function"):
            label_classifier(model).fit(X, YES)


class TestGoOnWithSeveralLabels:
    @pytest.mark.slow
    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies(self, copied, y):
        tuned = label_classifier(fitted_to_labels(OF_KINDS["forest"], y), warm_start=True).fit(X[NEW], y[NEW])
        twin = copied(tuned)
        for one in (tuned, twin):
            one.fit(X[NEW], y[NEW])
        assert tuned.n_iter_ == 10
        assert_array_equal(twin.predict(X), tuned.predict(X))
        assert_array_equal(twin.to_sklearn(X).predict(X), tuned.to_sklearn().predict(X))
        straight = label_classifier(fitted_to_labels(OF_KINDS["forest"], y), max_iter=10).fit(X[NEW], y[NEW])
        assert_array_equal(np.hstack(straight.predict_proba(X)), np.hstack(tuned.predict_proba(X)))

    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    def test_partial_fit_needs_no_classes(self, y):
        tuned = label_classifier(fitted_to_labels(OF_KINDS["tree"], y))
        tuned.partial_fit(X[NEW][:2], y[NEW][:2])
        before = tuned.weights_["decisiontreeclassifier.leaf_values"]
        tuned.partial_fit(X[NEW], y[NEW])
        assert not np.array_equal(before, tuned.weights_["decisiontreeclassifier.leaf_values"])
        assert tuned.t_ == 62

    @pytest.mark.slow
    @pytest.mark.parametrize("y", [YES, KINDS], ids=["yes", "kinds"])
    def test_search(self, y):
        model = fitted_to_labels(OF_KINDS["estimator-an-output"], y)
        search = GridSearchCV(label_classifier(model, max_iter=20), {"learning_rate_init": [0.0, 0.02]}, cv=2).fit(X, y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert search.best_estimator_.model is model

    def test_wrapped(self):
        model = make_pipeline(StandardScaler(), GridSearchCV(OF_KINDS["estimator-an-output"], {"n_jobs": [1]}, cv=2))
        tuned = label_classifier(model.fit(X, KINDS)).fit(X[NEW], KINDS[NEW])
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
