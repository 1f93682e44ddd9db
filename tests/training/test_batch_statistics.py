"""BatchNormalization in training mode: batches are not filled up, running statistics move, predictions use them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import onnx.parser
import onnx.version_converter
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import LBFGS, SGD, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import DivergenceError, UnsupportedOperatorError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

EPSILON, MOMENTUM = float(np.float32(1e-5)), float(np.float32(0.8))  # attributes are single

rng = np.random.default_rng(0)
X = (rng.normal(size=(23, 3)) * [1, 2, 3] + [0, 1, -2]).astype(np.float32)
y = (X[:, 0] - 0.5 * X[:, 1] + 0.1 * rng.normal(size=23)).astype(np.float32)


def normalizing_graph(
    body="B, m1, v1 = BN (X, s, b, m, v) Y = MatMul(B, W)", kind="float", opset=18, weights="", mode=1
):
    body = body.replace("BN", f"BatchNormalization <training_mode = {mode}, momentum = {MOMENTUM}>")
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]> net ({kind}[N, 3] X) => ({kind}[N, 1] Y)
        <{kind}[3] s = {{1.5, 1, 0.5}}, {kind}[3] b = {{0, 0.1, 0.2}}, {kind}[3] m = {{0, 0, 0}},
        {kind}[3] v = {{1, 1, 1}}, {kind}[3, 1] W = {{0.3, -0.2, 0.1}} {weights}> {{ {body} }}"""
    )


def plain_sgd(sizes, rate, X=X, y=y, ddof=0):
    """Return weights and statistics after one pass in batches of these sizes: the formulas, in float64.

    ``ddof=1`` averages unbiased variances, as PyTorch does; that of a single row is 0.
    """
    w = {"s": [1.5, 1, 0.5], "b": [0, 0.1, 0.2], "m": [0, 0, 0], "v": [1, 1, 1], "W": [[0.3], [-0.2], [0.1]]}
    w = {name: np.array(value, np.float64) for name, value in w.items()}
    for rows in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]):
        x, t, n = X[rows].astype(np.float64), y[rows, None].astype(np.float64), len(rows)
        mean, var = x.mean(0), x.var(0)
        z = (x - mean) / np.sqrt(var + EPSILON)
        h = z * w["s"] + w["b"]
        slope = 2 * (h @ w["W"] - t) / n
        back = slope @ w["W"].T
        slopes = {"W": h.T @ slope, "s": (back * z).sum(0), "b": back.sum(0)}
        w |= {name: w[name] - rate * slopes[name] for name in slopes}
        w["m"], w["v"] = (
            MOMENTUM * w[k] + (1 - MOMENTUM) * new for k, new in (("m", mean), ("v", var * n / max(n - ddof, 1)))
        )
    return w


def normalized_regressor(model=None, **settings):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.05, "batch_size": 10, "shuffle": False, "max_iter": 1}
    return OrtGradientRegressor(normalizing_graph() if model is None else model, **defaults | settings)


@pytest.mark.parametrize("opset", [14, 15, 18, 21])
@pytest.mark.parametrize(("batch", "sizes"), [(10, [10, 10, 3]), (23, [23]), (22, [22, 1]), (200, [23])])
def test_pass_in_training_mode_equals_the_formulas(batch, sizes, opset):
    fitted = normalized_regressor(normalizing_graph(opset=opset), batch_size=batch).fit(X, y)
    assert fitted.engine_ == "portable"
    for name, expected in plain_sgd(sizes, 0.05).items():
        assert_allclose(fitted.weights_[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


def of_pytorch(model, mark):
    """Return the model as if PyTorch had exported it: by its producer, or by the signature that other tools leave."""
    if mark == "producer":
        model.producer_name = "pytorch"
    else:
        model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value="")
    return model


@pytest.mark.parametrize("mark", ["producer", "signature"])
@pytest.mark.parametrize(("opset", "batch", "sizes"), [(18, 10, [10, 10, 3]), (18, 22, [22, 1]), (14, 23, [23])])
def test_a_graph_from_pytorch_averages_unbiased_variances(mark, opset, batch, sizes):
    fitted = normalized_regressor(of_pytorch(normalizing_graph(opset=opset), mark), batch_size=batch).fit(X, y)
    for name, expected in plain_sgd(sizes, 0.05, ddof=1).items():
        assert_allclose(fitted.weights_[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("how", ["pickle", "new opset"])
def test_a_graph_from_pytorch_is_still_known_as_such(how):
    if how == "pickle":
        fitted = normalized_regressor(of_pytorch(normalizing_graph(), "producer"), batch_size=23)
        fitted = pickle.loads(pickle.dumps(fitted.fit(X[:10], y[:10]))).partial_fit(X[10:], y[10:])
        expected = plain_sgd([10, 13], 0.05, ddof=1)
    else:
        newer = onnx.version_converter.convert_version(of_pytorch(normalizing_graph(), "producer"), 22)
        newer.producer_name = "pytorch"  # older onnxruntimes take no opset 22: it is converted again
        fitted, expected = normalized_regressor(newer).fit(X, y), plain_sgd([10, 10, 3], 0.05, ddof=1)
    assert_allclose(fitted.weights_["v"], expected["v"], rtol=2e-5)


def test_statistics_over_a_map_of_unknown_size():
    body = """e = Neg(X)
    p = Concat <axis = 1> (X, e) q = Reshape(p, r) f = Compress <axis = 2> (q, u)
    B, m1, v1 = BN (f, s, b, m, v)
    g = ReduceMean <keepdims = 0> (B, two) Y = MatMul(g, W)"""
    weights = ", int64[3] r = {0, 3, 2}, bool[2] u = {1, 1}, int64[1] two = {2}"
    fitted = normalized_regressor(of_pytorch(normalizing_graph(body, weights=weights), "producer"), batch_size=23).fit(
        X, y
    )
    maps = np.concatenate([X, -X], axis=1).reshape(23, 3, 2).astype(np.float64)
    expected = MOMENTUM + (1 - MOMENTUM) * maps.var((0, 2), ddof=1)
    assert_allclose(fitted.weights_["v"], expected, rtol=1e-5)


def test_doubles_follow_the_formulas_to_more_digits():
    fitted = normalized_regressor(normalizing_graph(kind="double")).fit(X.astype(np.float64), y.astype(np.float64))
    for name, expected in plain_sgd([10, 10, 3], 0.05).items():
        assert_allclose(fitted.weights_[name], expected, rtol=1e-10, atol=1e-12, err_msg=name)


def test_predictions_use_the_running_statistics_row_by_row():
    fitted = normalized_regressor(max_iter=5).fit(X, y)
    w = fitted.weights_
    expected = ((X - w["m"]) / np.sqrt(w["v"] + EPSILON) * w["s"] + w["b"]) @ w["W"]
    assert_allclose(fitted.predict(X), expected.ravel(), rtol=1e-4, atol=1e-5)
    assert_allclose(fitted.predict(X[:1]), fitted.predict(X)[:1], rtol=1e-6)
    exported = onnx.load_model_from_string(fitted.to_onnx().SerializeToString())
    (node,) = (n for n in exported.graph.node if n.op_type == "BatchNormalization")
    assert len(node.output) == 1
    assert "training_mode" not in {a.name for a in node.attribute}


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_go_on_exactly(how):
    straight = normalized_regressor(shuffle=True, random_state=0, optimizer="adam").partial_fit(X, y)
    twin = how(straight)
    for rows in (23, 7, 12, 23):
        straight.partial_fit(X[:rows], y[:rows])
        twin.partial_fit(X[:rows], y[:rows])
    for name, array in straight.weights_.items():
        assert_array_equal(array, twin.weights_[name])
    assert_array_equal(straight.predict(X), twin.predict(X))


def test_equal_rows_count_in_the_statistics():
    fitted = normalized_regressor(batch_size=23).fit(np.r_[X[:20], X[[0, 0, 0]]], np.r_[y[:20], y[[0, 0, 0]]])
    expected = plain_sgd([23], 0.05, np.r_[X[:20], X[[0, 0, 0]]], np.r_[y[:20], y[[0, 0, 0]]])
    for name in expected:
        assert_allclose(fitted.weights_[name], expected[name], rtol=2e-5, atol=2e-6)


def test_rows_of_weight_zero_count_for_nothing():
    weights = np.r_[np.ones(20), np.zeros(3)]
    fitted, plain = normalized_regressor().fit(X, y, weights), normalized_regressor().fit(X[:20], y[:20])
    for name, array in plain.weights_.items():
        assert_array_equal(fitted.weights_[name], array)


def test_statistics_stay_where_scale_and_shift_are_frozen():
    fitted = normalized_regressor(trainable=["W"], engine="auto", max_iter=3).fit(X, y)
    for name, value in (("m", 0.0), ("v", 1.0)):
        assert_array_equal(fitted.weights_[name], np.full(3, value))
    still = normalized_regressor(
        normalizing_graph("B = BN (X, s, b, m, v) Y = MatMul(B, W)", mode=0), trainable=["W"], max_iter=3
    ).fit(X, y)
    assert_allclose(fitted.weights_["W"], still.weights_["W"], rtol=1e-6)
    thawed = fitted.set_params(trainable="all").partial_fit(X, y)
    assert (thawed.weights_["m"] != 0).all()


def test_the_best_weights_come_back_with_their_statistics():
    fitted = normalized_regressor(early_stopping=True, max_iter=60, learning_rate_init=0.2, n_iter_no_change=60)
    fitted.fit(X, y, X_val=X[:9], y_val=-y[:9])  # gets worse and worse
    best = int(np.argmax(fitted.validation_scores_)) + 1
    assert best < 60
    short = normalized_regressor(max_iter=best, learning_rate_init=0.2).fit(X, y)
    for name, array in short.weights_.items():
        assert_array_equal(fitted.weights_[name], array)


def test_divergence_restores_statistics():
    fitted = normalized_regressor().partial_fit(X, y)
    before = fitted.weights_
    with pytest.raises(DivergenceError):
        fitted.set_params(learning_rate_init=1e30).partial_fit(X, y)
    for name, array in before.items():
        assert_array_equal(fitted.weights_[name], array)


def test_lbfgs_updates_statistics():
    fitted = normalized_regressor(optimizer=LBFGS(), max_iter=50).fit(X, y)
    assert_allclose(fitted.weights_["m"], X.mean(0), rtol=0.1)  # by a fifth of what is left in each evaluation
    assert fitted.score(X, y) > 0.9


STORED = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 2, 3] X) => (float[N, 1] Y)
    <float[2] scale = {1, 2}, float[2] shift = {0, 1}, float[2] mean = {0, 1}, float[2] var = {1, 2},
     float[6, 1] w = {1, 2, 3, 4, 5, 6}>
    { h = BatchNormalization(X, scale, shift, MEAN, VAR) f = Flatten(h) Y = MatMul(f, w) }"""


def test_stored_statistics_as_scale_and_shift_are_not_trained():
    X = np.random.default_rng(0).normal(size=(8, 2, 3)).astype(np.float32)
    settings = {"engine": "portable", "optimizer": SGD(), "learning_rate_init": 1e-3, "batch_size": 8, "max_iter": 5}
    found = []
    for mean, var in (("mean", "var"), ("shift", "scale")):
        model = onnx.parser.parse_model(STORED.replace("MEAN", mean).replace("VAR", var))
        found.append(OrtGradientRegressor(model, **settings).fit(X, X.sum((1, 2))))
    apart, merged = found
    for name in ("scale", "shift", "w"):
        assert_allclose(merged.weights_[name], apart.weights_[name], rtol=1e-6, err_msg=name)
    assert not np.array_equal(apart.weights_["scale"], [1, 2])
    assert_allclose(merged.predict(X), apart.predict(X), rtol=1e-5)


def test_merged_statistics_are_separated():
    body = """B, m1, v1 = BN (X, s, b, m, v) P = Mul(B, B) C, m2, v2 = BN (P, s, b, m, v)
    Y = MatMul(C, W)"""
    fitted = normalized_regressor(normalizing_graph(body), batch_size=23, max_iter=40).fit(X, y)
    assert_allclose(fitted.weights_["m"], X.mean(0), rtol=1e-3, atol=1e-3)
    own = [name for name in fitted.weights_ if name.startswith("m/")]
    assert len(own) == 1
    assert (fitted.weights_[own[0]] > 0.2).all()  # means of squares
    assert_allclose(fitted.predict(X[:3]), fitted.predict(X)[:3], rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "opset", "weights", "reason"),
    [
        ("B, m1, v1, m2, v2 = BatchNormalization (X, s, b, m, v) Y = MatMul(B, W)", 13, "", "before opset 14"),
        ("n = Neg(m) B, m1, v1 = BN (X, s, b, n, v) Y = MatMul(B, W)", 18, "", "not initializers"),
        ("B, m1, v1 = BN (X, s, b, m, v) C = Mul(B, v1) Y = MatMul(C, W)", 18, "", "nothing reads the last two"),
        (
            """B = If (yes) <then_branch = t () => (float[N, 3] p) { p, m1, v1 = BN (X, s, b, m, v) },
                            else_branch = u () => (float[N, 3] q) { q = Identity(X) }> Y = MatMul(B, W)""",
            18,
            ", bool yes = {1}",
            "is in a subgraph",
        ),
    ],
)
def test_untrainable_normalizations_are_refused(body, opset, weights, reason):
    with pytest.raises(UnsupportedOperatorError, match=rf"\(BatchNormalization\) is in training .*{reason}.*eval\("):
        normalized_regressor(normalizing_graph(body, opset=opset, weights=weights)).fit(X, y)
