"""Fitted classifiers that choose by votes, or at a threshold: labels, scores, the loss of pairs, exported files."""

from __future__ import annotations

import functools
import pickle
from itertools import combinations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_classification
from sklearn.ensemble import BaggingClassifier, StackingClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, LinearSVC, NuSVC
from sklearn.tree import DecisionTreeClassifier

from onnxtrain_sklearn import MLP, OrtGradientClassifier, gradient_graph, losses
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import available_engines
from tests.helpers.sessions import session as session_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::FutureWarning")

X, FOUR = make_classification(
    240, 6, n_informative=5, n_redundant=0, n_classes=4, n_clusters_per_class=1, class_sep=0.6, random_state=0
)
X = X.astype(np.float32)
TWO = (FOUR > 1).astype(int)
OLD, NEW = slice(0, 120), slice(120, None)
PAIRS = list(combinations(range(4), 2))

BY_PAIRS = [
    SVC(),
    SVC(decision_function_shape="ovo"),
    SVC(break_ties=True),
    SVC(kernel="linear", class_weight="balanced"),
    NuSVC(nu=0.2),
    make_pipeline(StandardScaler(), SVC(kernel="poly", degree=2)),
    OneVsOneClassifier(LogisticRegression()),
    OneVsOneClassifier(LinearSVC(random_state=0)),
    OneVsOneClassifier(GaussianNB()),
]

PROBABLE = [SVC(probability=True, random_state=0), NuSVC(nu=0.2, probability=True, random_state=0)]


def at_the_start(model, X, y, **parameters):
    """Return the estimator at the fitted model: nothing has moved."""
    return OrtGradientClassifier(model, learning_rate_init=0.0, max_iter=1, shuffle=False, **parameters).fit(X, y)


@functools.cache
def still_pairs(model):
    """Return one of the models by pairs, fitted to the old rows, and the estimator at it."""
    model.fit(X[OLD], FOUR[OLD])
    return model, at_the_start(model, X[NEW], FOUR[NEW])


def file_outputs(tuned, X, **options):
    session = onnxruntime.InferenceSession(
        tuned.to_onnx(**options).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: X})


@pytest.mark.slow
@pytest.mark.parametrize("model", BY_PAIRS, ids=str)
class TestPairs:
    def test_start_is_the_fitted_model(self, model):
        model, tuned = still_pairs(model)
        assert_allclose(tuned.decision_function(X), model.decision_function(X), rtol=1e-4, atol=1e-4)
        clear = np.abs(confidences(model, X)).min(axis=1) > 1e-5
        assert_array_equal(tuned.predict(X)[clear], model.predict(X)[clear])
        assert not hasattr(tuned, "predict_proba")

    def test_loss_is_that_of_the_pairs_of_the_row_s_class(self, model):
        model.fit(X[OLD], FOUR[OLD])
        settings = {"batch_size": 120, "loss": losses.SquaredHinge(), "class_weight": {}}
        tuned = at_the_start(model, X[NEW], FOUR[NEW], **settings)
        assert_allclose(tuned.loss_, pairwise_loss(confidences(model, X[NEW]), FOUR[NEW]), rtol=1e-4)

    @pytest.mark.parametrize("engine", available_engines())
    def test_training_lowers_the_loss_and_can_be_written_back(self, model, engine):
        model.fit(X[OLD], FOUR[OLD])
        tuned = OrtGradientClassifier(
            model, learning_rate_init=1e-3, max_iter=20, random_state=0, engine=engine, batch_size=120
        ).fit(X[NEW], FOUR[NEW])
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0] * (1 - 1e-4)
        back = tuned.to_sklearn()
        assert_allclose(tuned.decision_function(X), back.decision_function(X), rtol=1e-5, atol=2e-5)
        again = pickle.loads(pickle.dumps(tuned))
        assert_array_equal(again.predict(X), tuned.predict(X))

    def test_exported_file(self, model):
        _, tuned = still_pairs(model)
        labels, scores = file_outputs(tuned, X)
        assert_array_equal(labels, tuned.predict(X))
        assert_array_equal(scores, tuned.decision_function(X))


def confidences(model, X):
    """Return scikit-learn's scores of the pairs in float64, positive for the second class."""
    if isinstance(model, OneVsOneClassifier):
        return np.stack([_confidence(machine, X) for machine in model.estimators_], axis=1)
    machine = model[-1] if hasattr(model, "steps") else model
    rows = model[:-1].transform(X) if hasattr(model, "steps") else X
    shape, machine.decision_function_shape = machine.decision_function_shape, "ovo"
    ties, machine.break_ties = machine.break_ties, False
    scores = -machine.decision_function(rows)
    machine.decision_function_shape, machine.break_ties = shape, ties
    return scores


def _confidence(machine, X):
    if hasattr(machine, "decision_function"):
        return machine.decision_function(X)
    p = machine.predict_proba(X)
    return np.log(p[:, 1] + 1e-6) - np.log(p[:, 0] + 1e-6)


def pairwise_loss(scores, y):
    """Return the mean squared hinge loss over the rows and over the three pairs that the class of each belongs to."""
    total = 0.0
    for row, label in zip(scores, y, strict=True):
        for s, (i, j) in zip(row, PAIRS, strict=True):
            if label in (i, j):
                total += max(0.0, 1.0 - (s if label == j else -s)) ** 2 / 3
    return total / len(y)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("name", ["log_loss", "hinge", "squared_hinge", "modified_huber", "focal"])
def test_pairwise_loss_and_its_gradient(name, engine):
    rng = np.random.default_rng(0)
    scores, y, w = rng.normal(size=(7, 6)) * 2, rng.integers(0, 4, 7), rng.uniform(0, 2, 7)
    w[2] = 0
    run = pairwise_gradient(losses.LOSSES[name](), y, w, engine)
    value, gradient = run(scores)
    rows = [
        np.mean([binary_loss(name, s, label == j) for s, (i, j) in zip(row, PAIRS, strict=True) if label in (i, j)])
        for row, label in zip(scores, y, strict=True)
    ]
    assert_allclose(value, (w * rows).sum() / w.sum(), rtol=1e-6)
    assert_allclose(gradient, differences(run, scores), rtol=2e-2, atol=2e-4)
    outside = np.array([[label not in pair for pair in PAIRS] for label in y])
    assert_array_equal(gradient[outside], 0)
    assert_array_equal(gradient[2], 0)


def binary_loss(name, s, positive):
    z = s if positive else -s
    p = 1 / (1 + np.exp(-z))
    return {
        "log_loss": -np.log(p),
        "hinge": max(0, 1 - z),
        "squared_hinge": max(0, 1 - z) ** 2,
        "modified_huber": max(0, 1 - z) ** 2 if z >= -1 else -4 * z,
        "focal": -((1 - p) ** 2) * np.log(p),
    }[name]


def pairwise_gradient(loss, y, w, engine):
    """Return the function from scores to the loss and its gradient."""
    weights, labels = ir.val("w", ir.DataType.FLOAT, (7,)), ir.val("y", ir.DataType.INT64, (7,))
    scores = ir.val("scores", ir.DataType.FLOAT, (7, 6))
    graph = ir.Graph([weights, labels, scores], [], nodes=[], opset_imports={"": 18}, name="pairs")
    op = GraphBuilder(graph)
    total = losses.append_pairwise_loss(op, loss, scores=scores, y=labels, sample_weight=weights, n_classes=4)
    total.name, total.dtype, total.shape = "loss", ir.DataType.FLOAT, ir.Shape([])
    graph.outputs.append(total)
    session = session_of(gradient_graph(ir.to_proto(ir.Model(graph, ir_version=8)), wrt="scores", engine=engine))

    def run(values):
        feeds = {"w": w.astype(np.float32), "y": y, "scores": values.astype(np.float32)}
        value, gradient = session.run(["loss", "scores_grad"], feeds)
        return float(value), gradient.astype(np.float64)

    return run


def differences(run, scores):
    result, width = np.zeros_like(scores), 1e-2
    for place in np.ndindex(*scores.shape):
        sides = []
        for sign in (1, -1):
            moved = scores.copy()
            moved[place] += sign * width
            sides.append(run(moved)[0])
        result[place] = (sides[0] - sides[1]) / (2 * width)
    return result


def test_loss_of_a_row_is_refused_for_pairs():
    class OfRows(losses.Hinge):
        def __call__(self, op, scores, y, link):
            return op.ReduceSum(super().__call__(op, scores, y, link), axes=[-1], keepdims=True)

    model = SVC().fit(X[OLD], FOUR[OLD])
    with pytest.raises(ModelError, match="one loss a row"):
        OrtGradientClassifier(model, loss=OfRows()).fit(X[NEW], FOUR[NEW])


class TestProbabilities:
    @pytest.mark.slow
    @pytest.mark.parametrize("model", PROBABLE, ids=str)
    @pytest.mark.parametrize("names", [[0, 0, 1, 1], [0, 1, 2, 3], list("badc"), [False, False, True, True]], ids=str)
    def test_labels_are_the_votes(self, model, names):
        y = np.array(names)[FOUR]
        model.fit(X[OLD], y[OLD])
        tuned = at_the_start(model, X[NEW], y[NEW])
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert tuned.predict(X).dtype == model.predict(X).dtype
        assert_allclose(tuned.predict_proba(X), model.predict_proba(X), atol=1e-5)
        assert_array_equal(file_outputs(tuned, X)[0].astype(y.dtype), model.predict(X))

    def test_votes_and_probabilities_disagree_in_this_data(self):
        model = PROBABLE[0].fit(X[OLD], FOUR[OLD])
        probable = model.classes_[model.predict_proba(X).argmax(axis=1)]
        assert (probable != model.predict(X)).mean() > 0.02

    @pytest.mark.long
    def test_validation_score_is_that_of_predict(self):
        model = PROBABLE[0].fit(X[OLD], FOUR[OLD])
        tuned = OrtGradientClassifier(model, max_iter=3, learning_rate_init=0.01, random_state=0)
        tuned.fit(X[OLD], FOUR[OLD], X_val=X[NEW], y_val=FOUR[NEW])
        assert tuned.validation_scores_[-1] == tuned.score(X[NEW], FOUR[NEW])


THRESHOLDS = {
    "fixed": lambda: FixedThresholdClassifier(LogisticRegression(), threshold=0.2),
    "automatic": lambda: FixedThresholdClassifier(LogisticRegression()),
    "first class": lambda: FixedThresholdClassifier(LogisticRegression(), threshold=0.2, pos_label=0),
    "decision": lambda: FixedThresholdClassifier(
        LogisticRegression(), threshold=-0.7, response_method="decision_function"
    ),
    "decision of the first class": lambda: FixedThresholdClassifier(
        RidgeClassifier(), threshold=-0.4, pos_label=0, response_method="decision_function"
    ),
    "decision alone": lambda: FixedThresholdClassifier(LinearSVC(random_state=0), threshold=0.3),
    "two columns": lambda: FixedThresholdClassifier(DecisionTreeClassifier(max_depth=3, random_state=0), threshold=0.3),
    "tuned": lambda: TunedThresholdClassifierCV(LogisticRegression(), scoring="f1", thresholds=20, cv=3),
    "tuned for a label": lambda: TunedThresholdClassifierCV(
        LogisticRegression(), scoring=make_scorer(f1_score, pos_label=0), thresholds=20, cv=3
    ),
    "in a pipeline": lambda: make_pipeline(
        StandardScaler(), FixedThresholdClassifier(LogisticRegression(), threshold=0.2)
    ),
    "around a pipeline": lambda: FixedThresholdClassifier(
        make_pipeline(StandardScaler(), LogisticRegression()), threshold=0.2
    ),
}


def test_one_pair_of_probabilities():
    model = OneVsOneClassifier(GaussianNB()).fit(X[OLD], TWO[OLD])
    assert (model.decision_function(X) > 0).all()
    tuned = at_the_start(model, X[NEW], TWO[NEW])
    assert_array_equal(tuned.predict(X), model.predict(X))
    assert_allclose(tuned.decision_function(X), model.decision_function(X), atol=1e-5)


class TestThresholds:
    @pytest.mark.parametrize("name", THRESHOLDS)
    def test_labels(self, name):
        model = THRESHOLDS[name]().fit(X[OLD], TWO[OLD])
        tuned = at_the_start(model, X[NEW], TWO[NEW])
        assert_array_equal(tuned.predict(X), model.predict(X))
        labels = file_outputs(tuned, X)[0]
        assert_array_equal(labels, model.predict(X))

    @pytest.mark.parametrize("name", THRESHOLDS)
    def test_trained_and_written_back(self, name):
        model = THRESHOLDS[name]().fit(X[OLD], TWO[OLD])
        tuned = OrtGradientClassifier(model, max_iter=5, learning_rate_init=0.05, random_state=0)
        back = tuned.fit(X[NEW], TWO[NEW]).to_sklearn()
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        assert_array_equal(back.predict(X), tuned.predict(X))

    def test_a_threshold_matters_in_this_data(self):
        model = THRESHOLDS["fixed"]().fit(X[OLD], TWO[OLD])
        assert (model.predict(X) != model.estimator_.predict(X)).mean() > 0.1

    @pytest.mark.parametrize(
        "inner", [SVC(probability=True, random_state=0), OneVsOneClassifier(GaussianNB())], ids=["votes", "pairs"]
    )
    def test_decides_in_place_of_votes(self, inner):
        model = FixedThresholdClassifier(inner, threshold=0.3).fit(X[OLD], TWO[OLD])
        tuned = at_the_start(model, X[NEW], TWO[NEW])
        assert_array_equal(tuned.predict(X), model.predict(X))

    def test_of_a_decision_function_that_is_not_trained(self):
        model = FixedThresholdClassifier(SVC(probability=True), threshold=0.2, response_method="decision_function")
        with pytest.raises(ModelError, match="response_method='predict_proba'"):
            at_the_start(model.fit(X[OLD], TWO[OLD]), X[NEW], TWO[NEW])


class TestExportedPairs:
    def test_no_column_per_class(self):
        tuned = at_the_start(SVC(decision_function_shape="ovo").fit(X[OLD], FOUR[OLD]), X[NEW], FOUR[NEW])
        for zipmap in (True, "columns"):
            with pytest.raises(ModelError, match="6 columns, one for each pair"):
                tuned.to_onnx(zipmap=zipmap)

    def test_column_per_class(self):
        tuned = at_the_start(SVC().fit(X[OLD], FOUR[OLD]), X[NEW], FOUR[NEW])
        labels, *columns = file_outputs(tuned, X, zipmap="columns")
        assert_array_equal(labels, tuned.predict(X))
        assert_array_equal(np.stack(columns, axis=1), tuned.decision_function(X))

    def test_in_a_pipeline_of_skl2onnx(self):
        skl2onnx = pytest.importorskip("skl2onnx")
        tuned = OrtGradientClassifier(SVC().fit(X[OLD], FOUR[OLD]), max_iter=2, random_state=0)
        pipeline = make_pipeline(FunctionTransformer(), tuned).fit(X[NEW], FOUR[NEW])
        file = skl2onnx.to_onnx(pipeline, X[:1], options={"zipmap": False}, target_opset=18)
        session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
        labels, scores = session.run(None, {"X": X})
        assert_array_equal(labels, pipeline.predict(X))
        assert_allclose(scores, pipeline.decision_function(X), rtol=1e-5)


THRESHOLD = FixedThresholdClassifier(LogisticRegression(), threshold=0.2)
WITHIN = {
    "stacking": StackingClassifier([("a", LogisticRegression())], THRESHOLD),
    "stacking of votes": StackingClassifier([("a", LogisticRegression())], SVC(probability=True)),
    "several labels": MultiOutputClassifier(THRESHOLD),
    "pairs of several labels": MultiOutputClassifier(OneVsOneClassifier(LogisticRegression())),
    "chain": ClassifierChain(THRESHOLD),
}


@pytest.mark.parametrize("name", WITHIN)
def test_rules_within_other_models(name):
    """One row does not tell that labels differ."""
    y = TWO if "stacking" in name else np.stack([TWO, FOUR if "pairs" in name else TWO], axis=1)
    model = WITHIN[name].fit(X[OLD], y[OLD])
    with pytest.raises(ModelError, match="by a rule of its own"):
        at_the_start(model, X[:1], y[:1])


def test_one_vs_rest_of_decision_functions_and_probabilities():
    model = OneVsRestClassifier(BaggingClassifier(LogisticRegression(), 2)).fit(X[OLD], FOUR[OLD])
    with pytest.raises(ModelError, match="decision functions of its BaggingClassifier"):
        at_the_start(model, X[:1], FOUR[:1])


def test_clipped_margins():
    model = SGDClassifier(loss="modified_huber", random_state=0).fit(X[OLD], FOUR[OLD])
    assert (model.classes_[model.predict_proba(X).argmax(axis=1)] != model.predict(X)).mean() > 0.02
    tuned = at_the_start(model, X[NEW], FOUR[NEW])
    assert_array_equal(tuned.predict(X), model.predict(X))
    tuned = OrtGradientClassifier(model, max_iter=5, learning_rate_init=0.01, random_state=0).fit(X[NEW], FOUR[NEW])
    assert_array_equal(tuned.to_sklearn().predict(X), tuned.predict(X))


def test_parameters_of_the_fitted_model_stay_its_own():
    model = SVC().fit(X[OLD], TWO[OLD])
    tuned = OrtGradientClassifier(model)
    with pytest.raises(ValueError, match="model__kernel"):
        tuned.set_params(model__kernel="linear")
    assert model.kernel == "rbf"
    assert OrtGradientClassifier(MLP()).set_params(model__hidden_layer_sizes=(3,)).model.hidden_layer_sizes == (3,)
