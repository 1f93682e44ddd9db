"""What the output of a given graph holds: told by its operators, by its numbers, or by the user; and its proof."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, SGD, GraphModel, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._estimators import starting_state
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._model import activation
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.RandomState(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
NUMBERS = X @ np.array([1.0, -1.0, 0.5, 0.0])
TWO = (NUMBERS > 0).astype(int)
THREE = np.digitize(NUMBERS, [-0.5, 0.8])
SETTINGS = {"max_iter": 5, "random_state": 0, "batch_size": 20, "learning_rate_init": 0.01}
UNTRAINED = SETTINGS | {"learning_rate_init": 0, "max_iter": 1}


def scoring_graph(tail: str, output: str, k: int = 1, dtype: str = "float", **weights: np.ndarray) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 18]> net ({dtype}[N,4] X) => ({output}) {{ {tail} }}'
    model = onnx.parser.parse_model(text)
    draw = np.random.RandomState(1)
    arrays = weights or {"W": draw.normal(size=(4, k)) * 0.3, "B": draw.normal(size=k) * 0.1}
    for name, array in arrays.items():
        kind = np.float32 if dtype == "float" else np.float64
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, kind), name))
    return model


def run_outputs(model: onnx.ModelProto, X: np.ndarray = X, output: str | None = None) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([output or session.get_outputs()[0].name], {session.get_inputs()[0].name: X})[0]


def quiet(estimator: Any, *data: Any) -> Any:
    """Return the estimator, fitted without a word about its output."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        return estimator.fit(*data)


SIGMOID = scoring_graph("z = Gemm(X, W, B) p = Sigmoid(z)", "float[N,1] p")
LOGITS = scoring_graph("z = Gemm(X, W, B)", "float[N,3] z", 3)

# A stump for each of two features as matrix products, as Hummingbird writes forests.
FOREST = scoring_graph(
    "zero = Constant <value_float = 0.0> () d = Gemm(X, N) a = Greater(d, zero) f = Cast <to = 1> (a) "
    "l = Gemm(f, S, C) p = MatMul(l, leaves)",
    "float[N,3] p",
    N=np.eye(4)[:, :2],
    S=[[1, -1, 0, 0], [0, 0, 1, -1]],
    C=[0, 1, 0, 1],
    leaves=np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]) / 2,
)
# One column of it: nothing tells that it is a probability.
STUMP = scoring_graph(
    "zero = Constant <value_float = 0.0> () d = Gemm(X, N) a = Greater(d, zero) f = Cast <to = 1> (a) "
    "l = Gemm(f, S, C) p = MatMul(l, leaves)",
    "float[N,1] p",
    N=np.eye(4)[:, :1],
    S=[[1, -1]],
    C=[0, 1],
    leaves=[[0.95], [0.1]],
)
LEAVES = {"trainable": ["leaves"]}


# -- the numbers tell -------------------------------------------------------------------------------------------------


def test_numbers_summing_to_one_warn_as_probabilities():
    with pytest.warns(OnnxTrainWarning, match=r"'p'.*taken for probabilities.*add up to one.*output_kind='prob"):
        fitted = OrtGradientClassifier(FOREST, **LEAVES, **UNTRAINED).fit(X, THREE)
    assert_allclose(fitted.predict_proba(X), run_outputs(FOREST), atol=3e-6)
    assert_allclose(fitted.loss_, log_loss(THREE, run_outputs(FOREST)), rtol=1e-5)
    claimed = quiet(
        OrtGradientClassifier(GraphModel(FOREST, output_kind="probabilities"), **LEAVES, **UNTRAINED), X, THREE
    )
    assert_allclose(claimed.predict_proba(X), fitted.predict_proba(X), atol=1e-7)


def test_declared_probabilities_stay_probabilities():
    estimator = OrtGradientClassifier(
        GraphModel(FOREST, output_kind="probabilities"), **LEAVES, **SETTINGS | {"max_iter": 50}
    )
    fitted = estimator.fit(X, THREE)
    p = fitted.predict_proba(X)
    assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    assert ((p >= 0) & (p <= 1)).all()
    assert log_loss(THREE, p) < 0.9 * log_loss(THREE, run_outputs(FOREST))
    assert_allclose(run_outputs(fitted.to_onnx(), output="probabilities"), p, atol=1e-6)


def test_ambiguous_single_output_warns_as_score():
    with pytest.warns(OnnxTrainWarning, match=r"taken for scores.*lie in \[0, 1\].*output_kind='scores'\) to confirm"):
        fitted = OrtGradientClassifier(STUMP, **LEAVES, **UNTRAINED).fit(X, TWO)
    assert_allclose(fitted.decision_function(X), run_outputs(STUMP).ravel(), atol=1e-6)
    claimed = quiet(
        OrtGradientClassifier(GraphModel(STUMP, output_kind="probabilities"), **LEAVES, **UNTRAINED), X, TWO
    )
    assert_allclose(claimed.predict_proba(X)[:, 1], run_outputs(STUMP).ravel(), atol=1e-6)
    assert_allclose(claimed.loss_, log_loss(TWO, run_outputs(STUMP).astype(float)), rtol=1e-5)
    confirmed = quiet(OrtGradientClassifier(GraphModel(STUMP, output_kind="scores"), **LEAVES, **UNTRAINED), X, TWO)
    assert_allclose(confirmed.decision_function(X), run_outputs(STUMP).ravel(), atol=1e-6)


def test_scores_of_any_size_are_scores_without_a_warning():
    fitted = quiet(OrtGradientClassifier(LOGITS, **UNTRAINED), X, THREE)
    assert_allclose(fitted.decision_function(X), run_outputs(LOGITS), atol=1e-6)
    zeros = scoring_graph("z = Gemm(X, W, B)", "float[N,1] z", W=np.zeros((4, 1)), B=np.zeros(1))
    assert_allclose(quiet(OrtGradientClassifier(zeros, **UNTRAINED), X, TWO).predict_proba(X), 0.5)


# -- the user tells ---------------------------------------------------------------------------------------------------


def test_declared_scores_are_used_unchanged():
    fitted = quiet(OrtGradientClassifier(GraphModel(SIGMOID, output_kind="scores"), **UNTRAINED), X, TWO)
    assert_allclose(fitted.decision_function(X), run_outputs(SIGMOID).ravel(), atol=1e-6)
    assert_allclose(fitted.predict_proba(X)[:, 1], 1 / (1 + np.exp(-run_outputs(SIGMOID).ravel())), atol=1e-6)


def test_outputs_outside_zero_and_one_are_refused_as_probabilities():
    with pytest.raises(ModelError, match=r"output_kind='probabilities', but output 'z'.*numbers from -.*'scores'"):
        OrtGradientClassifier(GraphModel(LOGITS, output_kind="probabilities"), **SETTINGS).fit(X, THREE)


@pytest.mark.parametrize("kind", ["probability", "means", None, 3])
def test_wrong_values_of_the_classifier(kind):
    with pytest.raises(
        ValueError,
        match=r"output_kind='means' is not for OrtGradientClassifier, .* 'probabilities'|'output_kind' .* Got",
    ):
        OrtGradientClassifier(GraphModel(SIGMOID, output_kind=kind)).fit(X, TWO)


def test_wrong_values_of_the_regressor():
    with pytest.raises(
        ValueError,
        match="output_kind='probabilities' is not for OrtGradientRegressor, which takes 'auto', 'scores', 'means'",
    ):
        OrtGradientRegressor(GraphModel(LOGITS, output_kind="probabilities")).fit(X, THREE)


@pytest.mark.parametrize("model", [None, MLP(), Linear(), LogisticRegression().fit(X, TWO)])
def test_output_kind_of_a_built_graph_is_refused(model):
    with pytest.raises(ValueError, match="output_kind='scores' is for given ONNX graphs"):
        OrtGradientClassifier(GraphModel(model, output_kind="scores")).fit(X, TWO)


def test_output_kind_is_settled_by_the_first_call():
    fitted = OrtGradientClassifier(SIGMOID, warm_start=True, **SETTINGS).fit(X, TWO)
    with pytest.raises(ModelError, match="output_kind was changed from auto to scores"):
        fitted.set_params(model__output_kind="scores").fit(X, TWO)
    assert clone(fitted).model.output_kind == "scores"


@pytest.mark.slow
def test_later_calls_and_copies_keep_the_settled_output_kind():
    estimator = OrtGradientClassifier(
        GraphModel(FOREST, output_kind="probabilities"), optimizer="adam", **LEAVES, **SETTINGS
    )
    once = clone(estimator).set_params(max_iter=3, shuffle=False, batch_size=60).fit(X, THREE)
    parts = clone(estimator).set_params(shuffle=False, batch_size=60)
    for _ in range(3):
        parts = pickle.loads(pickle.dumps(parts.partial_fit(X, THREE, classes=[0, 1, 2])))
    assert_allclose(parts.weights_["leaves"], once.weights_["leaves"], atol=1e-6)


# -- means ------------------------------------------------------------------------------------------------------------

COUNTS = np.round(np.exp(NUMBERS / 2)) + 1.0
POSITIVE = scoring_graph("z = Gemm(X, W, B)", "float[N,1] z", W=np.full((4, 1), 0.01), B=[2.0])


def test_means_of_counts():
    said = OrtGradientRegressor(GraphModel(POSITIVE, output_kind="means"), loss="poisson", **UNTRAINED).fit(X, COUNTS)
    assert_allclose(said.predict(X), run_outputs(POSITIVE).ravel(), rtol=1e-5)
    logs = OrtGradientRegressor(POSITIVE, loss="poisson", **UNTRAINED).fit(X, COUNTS)
    assert_allclose(logs.predict(X), np.exp(run_outputs(POSITIVE).ravel()), rtol=1e-5)
    exponential = scoring_graph("z = Gemm(X, W, B) p = Exp(z)", "float[N,1] p")
    twice = OrtGradientRegressor(GraphModel(exponential, output_kind="scores"), loss="poisson", **UNTRAINED).fit(
        X, COUNTS
    )
    assert_allclose(twice.predict(X), np.exp(run_outputs(exponential).ravel()), rtol=1e-5)


def test_a_loss_may_change_between_means_and_their_logarithms():
    given = scoring_graph("z = Gemm(X, W, B) p = Softplus(z)", "float[N,1] p")
    fitted = OrtGradientRegressor(given, **SETTINGS | {"max_iter": 50}).fit(X, COUNTS)
    for loss in ("poisson", "squared_error", "gamma"):
        before = fitted.predict(X)
        fitted.set_params(loss=loss, learning_rate_init=1e-6).partial_fit(X, COUNTS)
        assert_allclose(fitted.predict(X), before, rtol=1e-3)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_numbers_with_axes_of_size_one(loss):
    given = scoring_graph(
        "a = Constant <value_ints = [1, 2]> () z = Gemm(X, W, B) e = Exp(z) p = Unsqueeze(e, a)", "float[N,1,1,2] p", 2
    )
    fitted = OrtGradientRegressor(given, loss=loss, **UNTRAINED).fit(X, np.c_[COUNTS, COUNTS])
    assert fitted.predict(X).shape == (60, 2)
    assert_allclose(fitted.predict(X), run_outputs(given).reshape(60, 2), rtol=1e-5)


# -- other graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail", ["p = Softmax(z)", "a = Softmax(z) p = Clip(a, low)", "a = Softmax(z) b = Mul(a, h) p = Add(b, b)"]
)
def test_float64_graphs(tail):
    constants = "low = Constant <value = double {1e-9}> () h = Constant <value = double {0.5}> ()"
    given = scoring_graph(f"{constants} z = Gemm(X, W, B) {tail}", "double[N,3] p", 3, dtype="double")
    fitted = quiet(OrtGradientClassifier(given, engine="portable", **UNTRAINED), X.astype(float), THREE)
    assert_allclose(fitted.predict_proba(X.astype(float)), run_outputs(given, X.astype(float)), atol=1e-6)


def test_label_first_and_the_wanted_one_of_several_outputs():
    body = (
        "axis = Constant <value_ints = [1]> () z = Gemm(X, W, B) s = Softmax(z) p = Unsqueeze(s, axis) "
        "label = ArgMax <axis = 1, keepdims = 0> (z) g = Sigmoid(z)"
    )
    given = scoring_graph(body, "int64[N] label, float[N,1,3] p, float[N,3] z, float[N,3] g", 3)
    first = quiet(OrtGradientClassifier(given, **UNTRAINED), X, THREE)
    assert_allclose(first.predict_proba(X), run_outputs(given, output="p")[:, 0], atol=1e-6)
    scores = quiet(OrtGradientClassifier(GraphModel(given, output="z"), **UNTRAINED), X, THREE)
    assert_allclose(scores.decision_function(X), run_outputs(given, output="z"), atol=1e-6)
    sigmoids = quiet(OrtGradientClassifier(GraphModel(given, output="g"), **UNTRAINED), X, THREE)
    assert_allclose(sigmoids.predict_proba(X), run_outputs(given, output="g"), atol=1e-6)


@pytest.mark.parametrize("y", [TWO, THREE, np.c_[TWO, 1 - TWO]], ids=["two classes", "three classes", "two labels"])
def test_exported_model_resumes_from_its_predictions(y):
    first = OrtGradientClassifier(MLP((8,)), **SETTINGS).fit(X, y)
    again = quiet(OrtGradientClassifier(GraphModel(first.to_onnx(), output="probabilities"), **UNTRAINED), X, y)
    assert_allclose(again.predict_proba(X), first.predict_proba(X), atol=1e-6)
    assert_allclose(again.decision_function(X), first.decision_function(X), atol=1e-5)
    assert set(again.weights_) == set(first.weights_)


def test_outputs_that_are_drawn_at_random_are_no_reason_to_refuse():
    body = "z = Gemm(X, W, B) r = RandomNormalLike <scale = 0.5> (z) y = Add(z, r)"
    OrtGradientClassifier(scoring_graph(body, "float[N,1] y"), **SETTINGS).fit(X, TWO)


def test_a_network_that_is_right_already_stays_so():
    """A net of PyTorch that ends in ``sigmoid(..).squeeze(-1)``, which was trained as if it gave logits."""
    data = load_breast_cancer()
    features = scale(data.data).astype(np.float32)
    expert = LogisticRegression().fit(features, data.target)
    body = "axis = Constant <value_ints = [-1]> () z = MatMul(X, W) s = Add(z, B) q = Sigmoid(s) p = Squeeze(q, axis)"
    given = scoring_graph(body, "float[N] p", W=expert.coef_.T, B=expert.intercept_)
    given.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 30
    untrained = quiet(OrtGradientClassifier(given, **UNTRAINED), features, data.target)
    assert untrained.score(features, data.target) == expert.score(features, data.target)
    trained = quiet(OrtGradientClassifier(given, **SETTINGS | {"max_iter": 20}), features, data.target)
    assert (
        trained.loss_ < untrained.loss_ == pytest.approx(log_loss(data.target, run_outputs(given, features)), rel=1e-5)
    )


# -- the proof --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["negative", "log_sigmoid"])
def test_scores_that_do_not_give_the_output_are_refused(wrong, monkeypatch):
    monkeypatch.setitem(activation.SCORE_FORMS, "same", activation.SCORE_FORMS[wrong])
    with pytest.raises(ModelError, match=r"not start from the given graph: the link of its scores.*output 'p' differ"):
        OrtGradientClassifier(SIGMOID, **SETTINGS).fit(X, TWO)


@pytest.mark.parametrize(("trainable", "wrong"), [("all", "W"), ("all", "B"), (["B"], "W"), (["B"], "B")])
def test_disagreeing_numbers_are_refused_in_every_form(trainable, wrong, monkeypatch, tmp_path):
    """A weight that training starts from is another one than that of the file, be it trained or frozen."""
    onnx.save(LOGITS, tmp_path / "net.onnx")
    settings, divide = SETTINGS | {"trainable": trainable}, starting_state._divided

    def divide_wrong(model, names, weights, settings):
        return divide(model, names, weights | {wrong: weights[wrong] + 1}, settings)

    OrtGradientClassifier(LOGITS, **settings).fit(X, THREE)
    monkeypatch.setattr(starting_state, "_divided", divide_wrong)
    for given in (LOGITS, LOGITS.SerializeToString(), tmp_path / "net.onnx"):
        with pytest.raises(ModelError, match="not start from the given graph: its scores"):
            OrtGradientClassifier(given, **settings).fit(X, THREE)
        with pytest.raises(ModelError, match=r"not start from the given graph: predict\(\)"):
            OrtGradientRegressor(given, **settings).fit(X, np.c_[NUMBERS, NUMBERS, NUMBERS])


def test_error_leaves_estimator_unchanged(monkeypatch):
    fitted = OrtGradientClassifier(SIGMOID, **SETTINGS).fit(X, TWO)
    before = fitted.predict_proba(X)
    monkeypatch.setitem(activation.SCORE_FORMS, "same", activation.SCORE_FORMS["negative"])
    with pytest.raises(ModelError, match="not start from the given graph"):
        fitted.fit(X, TWO)
    assert_allclose(fitted.predict_proba(X), before)


# -- what is no activation --------------------------------------------------------------------------------------------

NONE = {
    "softmax over rows": ("z = Gemm(X, W, B) p = Softmax <axis = 0> (z)", "float[N,3] p"),
    "transposed": ("z = Gemm(X, W, B) t = Transpose(z) s = Softmax <axis = 0> (t) p = Transpose(s)", "float[N,3] p"),
    "bounds that bind": (
        "h = Constant <value_float = 0.9> () z = Gemm(X, W, B) s = Sigmoid(z) p = Min(s, h)",
        "float[N,3] p",
    ),
    "twice the probability": (
        "t = Constant <value_float = 2.0> () z = Gemm(X, W, B) s = Sigmoid(z) p = Mul(s, t)",
        "float[N,3] p",
    ),
    "the sum of other exponents": (
        "i = Constant <value_ints = [1]> () z = Gemm(X, W, B) e = Exp(z) n = Neg(z) f = Exp(n) s = ReduceSum(f, i) "
        "p = Div(e, s)",
        "float[N,3] p",
    ),
    "the sum over rows": (
        "i = Constant <value_ints = [0]> () z = Gemm(X, W, B) e = Exp(z) s = ReduceSum(e, i) p = Div(e, s)",
        "float[N,3] p",
    ),
    "an operator of another domain": ("z = Gemm(X, W, B) p = com.microsoft.Gelu(z)", "float[N,3] p"),
}


@pytest.mark.parametrize("name", NONE)
def test_other_final_operators_are_no_activations(name):
    tail, output = NONE[name]
    given = scoring_graph(tail, output, 3)
    given.opset_import.add(domain="com.microsoft", version=1)
    found = trainable_model(load(given))
    assert (found.link, found.scores) == (None, "p")


def test_step_on_mean_of_networks_follows_its_log_loss():
    """Two softmaxes on weights of their own, averaged: the gradient reaches both through the logarithm of the mean."""
    draw = np.random.RandomState(3)
    weights = {name: draw.normal(size=(4, 3)) * 0.4 for name in ("V", "W")}
    body = "a = MatMul(X, V) b = MatMul(X, W) s = Softmax(a) t = Softmax(b) u = Add(s, t) p = Mul(u, half)"
    given = scoring_graph(f"half = Constant <value_float = 0.5> () {body}", "float[N,3] p", **weights)
    settings = {"optimizer": SGD(), "learning_rate_init": 1.0, "max_iter": 1, "batch_size": 60, "random_state": 0}
    fitted = quiet(OrtGradientClassifier(given, **settings), X, THREE)
    softmax = {name: np.exp(X @ w) / np.exp(X @ w).sum(axis=1, keepdims=True) for name, w in weights.items()}
    mean, hot = (softmax["V"] + softmax["W"]) / 2, np.eye(3)[THREE]
    for name, w in weights.items():
        true = (softmax[name] * hot).sum(axis=1, keepdims=True)
        slope = -X.T @ (true * (hot - softmax[name]) / (2 * (mean * hot).sum(axis=1, keepdims=True))) / 60
        assert_allclose(fitted.weights_[name], w - slope, atol=1e-5)


def test_regressor_trains_on_sigmoid_outputs():
    fitted = OrtGradientRegressor(SIGMOID, **UNTRAINED).fit(X, NUMBERS)
    assert_allclose(fitted.loss_, np.mean((run_outputs(SIGMOID).ravel() - NUMBERS) ** 2), rtol=1e-5)
