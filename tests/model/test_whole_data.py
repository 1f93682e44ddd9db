"""``batch_size=None``: the data of a given graph are one thing, such as a network of nodes and edges."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper

from onnxtrain_sklearn import (
    LBFGS,
    SGD,
    FineTuner,
    GraphModel,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RowBlocks,
)
from onnxtrain_sklearn.callbacks import EpochScoring
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

NODES, FEATURES, HIDDEN, CLASSES = 30, 5, 8, 3


def parsed(text, **arrays):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 18]> ' + text)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def network_of(seed, n_nodes=NODES):
    """Return features, the normalized adjacency, edges and their weights."""
    rng = np.random.default_rng(seed)
    adjacency = rng.random((n_nodes, n_nodes)) < 0.1
    adjacency = (adjacency | adjacency.T | np.eye(n_nodes, dtype=bool)).astype(float)
    degree = adjacency.sum(axis=1)
    adjacency /= np.sqrt(degree[:, None] * degree)
    edges = np.array(np.nonzero(adjacency))
    return rng.normal(size=(n_nodes, FEATURES)), adjacency, edges, adjacency[tuple(edges)][:, None]


x, A, EDGES, EDGE_WEIGHTS = network_of(0)
labels = np.random.default_rng(1).integers(0, CLASSES, NODES)
numbers = np.random.default_rng(2).normal(size=NODES)
known = np.arange(NODES) % 3 != 1
W1, W2 = normal(FEATURES, HIDDEN), normal(HIDDEN, CLASSES, seed=1)

DENSE = parsed(
    """gcn (float[N, 5] x, float[N, N] adjacency) => (float[N, 3] scores) {
        xw = MatMul(x, W1)
        h = MatMul(adjacency, xw)
        a = Relu(h)
        aw = MatMul(a, W2)
        scores = MatMul(adjacency, aw)
    }""",
    W1=W1,
    W2=W2,
)

# The messages along edges, as torch_geometric's GCNConv computes them: gathered, weighted, added to their targets.
EDGE_LIST = parsed(
    """gcn (float[N, 5] x, int64[2, E] edge_index, float[E, 1] edge_weight) => (float[N, 3] scores) {
        source = Gather <axis = 0> (edge_index, zero)
        targets = Gather <axis = 0> (edge_index, one)
        target = Unsqueeze(targets, last)
        n = Shape <start = 0, end = 1> (x)
        xw = MatMul(x, W1)
        from1 = Gather <axis = 0> (xw, source)
        message1 = Mul(from1, edge_weight)
        size1 = Concat <axis = 0> (n, hidden)
        zeros1 = ConstantOfShape(size1)
        h = ScatterND <reduction = "add"> (zeros1, target, message1)
        a = Relu(h)
        aw = MatMul(a, W2)
        from2 = Gather <axis = 0> (aw, source)
        message2 = Mul(from2, edge_weight)
        size2 = Concat <axis = 0> (n, classes)
        zeros2 = ConstantOfShape(size2)
        scores = ScatterND <reduction = "add"> (zeros2, target, message2)
    }""",
    W1=W1,
    W2=W2,
    zero=np.array(0),
    one=np.array(1),
    last=np.array([1]),
    hidden=np.array([HIDDEN]),
    classes=np.array([CLASSES]),
)

GCNS = {
    "constant adjacency": (GraphModel(DENSE, constant_inputs={"adjacency": A}), x),
    "adjacency": (DENSE, {"x": x, "adjacency": A}),
    "edges": (EDGE_LIST, {"x": x, "edge_index": EDGES, "edge_weight": EDGE_WEIGHTS}),
}
each_gcn = pytest.mark.parametrize("form", GCNS)

# A graph isomorphism network: each node adds its neighbors to (1 + eps) times itself.
GIN = parsed(
    """gin (float[N, 5] x, int64[2, E] edge_index) => (float[N, 1] y) {
        source = Gather <axis = 0> (edge_index, zero)
        targets = Gather <axis = 0> (edge_index, one)
        target = Unsqueeze(targets, last)
        from1 = Gather <axis = 0> (x, source)
        none = Mul(x, nothing)
        summed = ScatterND <reduction = "add"> (none, target, from1)
        own = Mul(x, eps)
        all = Add(own, summed)
        z = MatMul(all, W1)
        zb = Add(z, b)
        a = Tanh(zb)
        y = MatMul(a, V)
    }""",
    W1=W1,
    V=normal(HIDDEN, 1, seed=2),
    b=normal(HIDDEN, seed=3),
    eps=np.float32(1.1),
    nothing=np.float32(0),
    zero=np.array(0),
    one=np.array(1),
    last=np.array([1]),
)

ONE_STEP = {"optimizer": SGD(momentum=0.0), "learning_rate_init": 0.5, "max_iter": 1, "alpha": 0.0, "batch_size": None}


def classifier(form, **settings):
    return OrtGradientClassifier(GCNS[form][0], **ONE_STEP | settings)


def scores_of(w1, w2, features=x, adjacency=A):
    hidden = np.maximum(adjacency @ features @ w1, 0)
    return hidden, adjacency @ hidden @ w2


def gradients(weights):
    """Return the gradients of the weighted mean of the log loss by both matrices, in float64."""
    w1, w2 = W1.astype(float), W2.astype(float)
    hidden, scores = scores_of(w1, w2)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    of_scores = (p - np.eye(CLASSES)[labels]) * (weights / weights.sum())[:, None]
    of_hidden = (A.T @ of_scores @ w2.T) * (hidden > 0)
    return {"W1": (A @ x).T @ of_hidden, "W2": (A @ hidden).T @ of_scores}


def require_gradients(fitted, expected, before):
    for name, gradient in expected.items():
        found = (before[name] - fitted.weights_[name]) / fitted.learning_rate_init
        assert_allclose(found, gradient, atol=2e-6, err_msg=name)
        assert np.abs(gradient).max() > 1e-3


@each_gcn
@each_engine
def test_weight_zero_masks_nodes_and_gradients_are_those_of_float64(form, engine):
    weights = np.where(known, np.random.default_rng(3).uniform(0.5, 2, NODES), 0.0)
    engine = "auto" if form == "edges" else engine  # onnxruntime-training adds no numbers in ScatterND
    fitted = classifier(form, engine=engine).fit(GCNS[form][1], labels, sample_weight=weights)
    require_gradients(fitted, gradients(weights), {"W1": W1, "W2": W2})


@each_gcn
def test_nan_masks_nodes_as_weight_zero_does(form):
    X = GCNS[form][1]
    masked, weighted = classifier(form, max_iter=20), classifier(form, max_iter=20)
    masked.fit(X, np.where(known, labels, np.nan))
    weighted.fit(X, labels, sample_weight=known.astype(float))
    assert_array_equal(masked.predict_proba(X), weighted.predict_proba(X))
    assert masked.predict(X).shape == (NODES,)
    expected = np.mean(masked.predict(X)[known] == labels[known])
    assert masked.score(X, np.where(known, labels, np.nan)) == pytest.approx(expected)
    assert masked.score(X, labels, known.astype(float)) == pytest.approx(expected)


def test_missing_labels_of_text_are_none():
    words = np.array(["red", "green", "blue"], object)[labels]
    words[~known] = None
    fitted = classifier("edges", max_iter=5).fit(GCNS["edges"][1], words)
    letters = np.array(["c", "b", "a"])[labels]
    other = classifier("edges", max_iter=5).fit(GCNS["edges"][1], letters, known.astype(float))
    assert fitted.classes_.tolist() == ["blue", "green", "red"]
    assert_array_equal(fitted.predict_proba(GCNS["edges"][1]), other.predict_proba(GCNS["edges"][1]))
    assert 0 < fitted.score(GCNS["edges"][1], words) <= 1


@each_engine
def test_gin_matches_central_differences(engine):
    X = {"x": x, "edge_index": EDGES}
    V, b = (numpy_helper.to_array(GIN.graph.initializer[i]) for i in (1, 2))
    sums = np.zeros((NODES, NODES))
    np.add.at(sums, (EDGES[1], EDGES[0]), 1.0)

    def loss(w1, v, bias, eps):
        hidden = np.tanh((eps * x + sums @ x) @ w1 + bias)
        return np.mean((hidden @ v - numbers[:, None])[known] ** 2)

    arrays = [W1.astype(float), V.astype(float), b.astype(float), np.float64(np.float32(1.1))]
    expected = {}
    for i, name in enumerate(("W1", "V", "b")):
        found = np.zeros(arrays[i].shape)
        for at in np.ndindex(found.shape):
            values = []
            for sign in (1, -1):
                moved = [one.copy() for one in arrays]
                moved[i][at] += sign * 1e-5
                values.append(loss(*moved))
            found[at] = (values[0] - values[1]) / 2e-5
        expected[name] = found
    y = np.where(known, numbers, np.nan)
    settings = ONE_STEP | {"learning_rate_init": 0.01, "trainable": ["W1", "V", "b"]}
    fitted = OrtGradientRegressor(GIN, engine=engine, **settings).fit(X, y)
    for name, gradient in expected.items():
        before = next(numpy_helper.to_array(one) for one in GIN.graph.initializer if one.name == name)
        tolerance = 1e-4 * np.abs(gradient).max()
        assert_allclose((before - fitted.weights_[name]) / 0.01, gradient, rtol=1e-4, atol=tolerance)
    r2 = 1 - np.sum((fitted.predict(X) - numbers)[known] ** 2) / np.sum((numbers[known] - numbers[known].mean()) ** 2)
    assert fitted.score(X, y) == pytest.approx(r2)


def test_other_networks_are_predicted_and_validated():
    other_x, other_A, other_edges, other_weights = network_of(5, n_nodes=17)
    X = {"x": other_x, "edge_index": other_edges, "edge_weight": other_weights}
    y = np.where(np.arange(17) % 4 == 0, np.nan, np.arange(17) % 3)
    fitted = classifier("edges", max_iter=4, early_stopping=True)
    fitted.fit(GCNS["edges"][1], labels, X_val=X, y_val=y)
    scores = scores_of(*(fitted.weights_[name].astype(float) for name in ("W1", "W2")), other_x, other_A)[1]
    assert_allclose(fitted.decision_function(X), scores, atol=1e-5)
    assert len(fitted.validation_scores_) == 4
    best = max(fitted.validation_scores_)
    assert best * 12 == pytest.approx(round(best * 12))  # y_val has 12 labels and 5 gaps


def test_early_stopping_holds_out_nodes():
    weights = known.astype(float)
    fitted = classifier("edges", early_stopping=True, validation_split=0.4, max_iter=3, random_state=0)
    fitted.fit(GCNS["edges"][1], labels, sample_weight=weights)
    held_out = round(0.4 * known.sum())
    scores = np.array(fitted.validation_scores_) * held_out
    assert_allclose(scores, scores.round(), atol=1e-9)
    mask = np.arange(NODES) % 4 == 0
    masked = classifier("edges", early_stopping=True, validation_split=mask)
    masked.fit(GCNS["edges"][1], labels, sample_weight=weights)
    require_gradients(masked, gradients(np.where(mask, 0.0, weights)), {"W1": W1, "W2": W2})
    named = classifier("edges", early_stopping=True, validation_split=0.4, max_iter=3, random_state=0)
    named.set_params(scoring="accuracy").fit(GCNS["edges"][1], np.where(known, labels, np.nan))
    assert_allclose(named.validation_scores_, fitted.validation_scores_)
    scorer = classifier("edges", early_stopping=True, validation_split=0.4, max_iter=3, random_state=0)
    scorer.set_params(scoring="neg_log_loss").fit(GCNS["edges"][1], np.where(known, labels, np.nan))
    assert np.isfinite(scorer.validation_scores_).all()


def test_functions_score_the_nodes_whose_labels_are_known():
    seen = []

    def share(estimator, X, y):
        seen.append(len(y))
        return float(np.mean(estimator.predict(X) == y))

    X, y = GCNS["edges"][1], np.where(known, labels, np.nan)
    settings = {"early_stopping": True, "max_iter": 3, "random_state": 0}
    mask = np.arange(NODES) % 2 == 0
    for more, count in (({}, np.sum(known & mask)), ({"X_val": X, "y_val": y}, known.sum())):
        expected = classifier("edges", validation_split=mask, **settings).fit(X, y, **more)
        found = classifier("edges", validation_split=mask, scoring=share, **settings).fit(X, y, **more)
        assert set(seen) == {count}
        assert_allclose(found.validation_scores_, expected.validation_scores_)
        seen.clear()
    trained = classifier("edges", callbacks=[EpochScoring(share, on="train")], max_iter=3).fit(X, y)
    assert set(seen) == {known.sum()}
    assert trained.history_[-1]["train_share"] == pytest.approx(np.mean(trained.predict(X) == labels, where=known))


def test_balanced_class_weights_count_the_labels_that_are_known():
    counts = np.bincount(labels[known], minlength=CLASSES)
    weights = np.where(known, (known.sum() / (CLASSES * counts))[labels], 0.0)
    fitted = classifier("edges", class_weight="balanced").fit(GCNS["edges"][1], np.where(known, labels, np.nan))
    require_gradients(fitted, gradients(weights), {"W1": W1, "W2": W2})


def test_nodes_with_equal_features_are_not_merged():
    X = dict(GCNS["edges"][1], x=np.ones((NODES, FEATURES)))
    fitted = classifier("edges").fit(X, labels)
    assert np.isfinite(fitted.loss_)
    w1, w2 = W1.astype(float), W2.astype(float)
    scores = scores_of(w1, w2, np.ones((NODES, FEATURES)))[1]
    expected = np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(NODES), labels])
    assert fitted.loss_ == pytest.approx(expected, rel=1e-5)


def test_lbfgs_minimizes_the_loss_of_all_nodes():
    fitted = classifier("edges", optimizer=LBFGS(), max_iter=100).fit(GCNS["edges"][1], np.where(known, labels, np.nan))
    assert fitted.score(GCNS["edges"][1], np.where(known, labels, np.nan)) > 0.9


def test_pickles_and_files_hold_no_data_and_predict_the_same():
    X = GCNS["edges"][1]
    fitted = classifier("edges", max_iter=3).fit(X, labels)
    content = pickle.dumps(fitted)
    assert x.astype(np.float32).tobytes() not in content
    assert_array_equal(pickle.loads(content).predict_proba(X), fitted.predict_proba(X))
    file = fitted.to_onnx()
    assert [value.name for value in file.graph.input] == ["x", "edge_index", "edge_weight"]
    feeds = {"x": x.astype(np.float32), "edge_index": EDGES, "edge_weight": EDGE_WEIGHTS.astype(np.float32)}
    for nodes in (NODES, NODES + 4):  # nodes without edges may follow
        feeds["x"] = np.concatenate([x, np.ones((nodes - NODES, FEATURES))]).astype(np.float32)
        found = onnxruntime.InferenceSession(file.SerializeToString()).run(None, feeds)
        assert_allclose(found[1], fitted.predict_proba({**X, "x": feeds["x"]}), atol=1e-6)


def test_warm_start_and_partial_fit_continue_on_other_data():
    other_x, _, other_edges, other_weights = network_of(5, n_nodes=17)
    X = {"x": other_x, "edge_index": other_edges, "edge_weight": other_weights}
    y = np.arange(17) % CLASSES
    one = classifier("edges", warm_start=True).fit(GCNS["edges"][1], labels).fit(X, y)
    two = classifier("edges").partial_fit(GCNS["edges"][1], labels, classes=range(CLASSES))
    two = pickle.loads(pickle.dumps(two)).partial_fit(X, y)
    fresh = classifier("edges").fit(X, y)
    assert not np.allclose(one.weights_["W1"], fresh.weights_["W1"])
    assert_allclose(one.weights_["W1"], two.weights_["W1"], atol=1e-6)


def test_sparse_features_are_taken():
    X = {"x": sp.csr_matrix(np.where(np.abs(x) > 0.5, x, 0)), "edge_index": EDGES, "edge_weight": EDGE_WEIGHTS}
    plain = {**X, "x": X["x"].toarray()}
    fitted = classifier("edges").fit(X, labels)
    assert_array_equal(fitted.predict_proba(X), classifier("edges").fit(plain, labels).predict_proba(plain))


@each_engine
def test_step_of_plain_rows_is_that_of_the_whole_table(engine):
    net = parsed("net (float[N, 5] x) => (float[N, 3] scores) { h = MatMul(x, W1) a = Relu(h) scores = MatMul(a, W2) }",
                 W1=W1, W2=W2)  # fmt: skip
    all_at_once = OrtGradientClassifier(net, engine=engine, **ONE_STEP).fit(x, labels)
    one_batch = OrtGradientClassifier(net, engine=engine, **ONE_STEP | {"batch_size": NODES}).fit(x, labels)
    assert_allclose(all_at_once.weights_["W1"], one_batch.weights_["W1"], atol=1e-6)
    builder = OrtGradientClassifier(batch_size=None, max_iter=3, random_state=0).fit(x, labels)
    same = OrtGradientClassifier(batch_size=NODES, max_iter=3, random_state=0).fit(x, labels)
    assert_array_equal(builder.predict_proba(x), same.predict_proba(x))


@pytest.mark.parametrize("rows", [17, 16, 18, 5])
def test_targets_of_later_calls_and_of_validation_belong_to_all_rows(rows):
    other_x, _, other_edges, other_weights = network_of(5, n_nodes=17)
    X = {"x": other_x, "edge_index": other_edges, "edge_weight": other_weights}
    y = np.arange(rows) % CLASSES
    begun = classifier("edges", warm_start=True).fit(GCNS["edges"][1], labels)
    before = begun.weights_["W1"].copy()
    calls = {
        "y has": [lambda: begun.fit(X, y), lambda: begun.partial_fit(X, y)],
        "y_val has": [lambda: classifier("edges").fit(GCNS["edges"][1], labels, X_val=X, y_val=y)],
    }
    for words, call in [(words, call) for words, several in calls.items() for call in several]:
        if rows == 17:
            assert call().n_iter_ >= 1
        else:
            with pytest.raises(ValueError, match=rf"{words} {rows} rows"):
                call()
            assert_array_equal(begun.weights_["W1"], before)


REFUSED = {
    "rows of y": (lambda: classifier("edges").fit(GCNS["edges"][1], labels[:-1]), ValueError, "y has 29 rows"),
    "a part of the edges": (
        lambda: classifier("edges").fit({**GCNS["edges"][1], "edge_weight": EDGE_WEIGHTS[:-1]}, labels),
        ValueError,
        "axis 'E' of the graph has",
    ),
    "edges as pairs": (
        lambda: classifier("edges").fit({**GCNS["edges"][1], "edge_index": EDGES.T}, labels),
        ValueError,
        r"the graph takes \(2, \?\)",
    ),
    "no label": (lambda: classifier("edges").fit(GCNS["edges"][1], labels * np.nan), ValueError, "NaN in all rows"),
    "lengths of rows": (
        lambda: classifier("edges", batch_size=10).fit(GCNS["edges"][1], labels),
        ModelError,
        "batch_size=None",
    ),
    "nodes in constants": (
        lambda: classifier("constant adjacency", batch_size=10).fit(x, labels),
        ModelError,
        "batch_size=None",
    ),
    "batch_size": (lambda: classifier("edges", batch_size="none").fit(x, labels), InvalidParameterError, "or None"),
    "fine-tuning": (
        lambda: OrtGradientClassifier(EDGE_LIST, batch_size=None, finetune=FineTuner()).fit(GCNS["edges"][1], labels),
        ValueError,
        "finetune=None",
    ),
    "a new head": (
        lambda: OrtGradientClassifier(EDGE_LIST, batch_size=None, finetune=FineTuner(new_head=True)).fit(
            GCNS["edges"][1], labels
        ),
        ValueError,
        "finetune=None",
    ),
    "export of the training": (
        lambda: classifier("edges").fit(GCNS["edges"][1], labels).to_training_onnx(),
        ModelError,
        "train it in Python",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_to_do(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("model", [None, "file"])
def test_table_in_blocks_is_refused(model, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    columns = {f"x{i}": x[:, i] for i in range(FEATURES)} | {"y": labels}
    pd.DataFrame(columns).to_parquet(tmp_path / "table.parquet", row_group_size=10)
    given = None if model is None else Linear().build(n_features=FEATURES, n_outputs=CLASSES, random_state=0)
    estimator = OrtGradientClassifier(given, batch_size=None)
    with pytest.raises(ValueError, match=r"batch_size=None takes all rows at once.*Give arrays"):
        estimator.fit(RowBlocks(tmp_path / "table.parquet", target="y", buffer_rows=10))
    assert not hasattr(estimator, "classes_")


# Several outputs of one network.

TWO = onnx.ModelProto()
TWO.CopyFrom(EDGE_LIST)
TWO.graph.node.append(onnx.helper.make_node("MatMul", ["scores", "U"], ["height"], name="height"))
TWO.graph.initializer.append(numpy_helper.from_array(normal(CLASSES, 1, seed=8), "U"))
TWO.graph.output.append(onnx.helper.make_tensor_value_info("height", onnx.TensorProto.FLOAT, ["N", 1]))
LOSSES = {"scores": "log_loss", "height": "squared_error"}


def two_outputs(**settings):
    return OrtGradientMultiOutput(TWO, loss=LOSSES, **ONE_STEP | settings)


def test_two_outputs_of_a_network_add_their_gradients():
    weights = np.where(known, np.random.default_rng(3).uniform(0.5, 2, NODES), 0.0)
    X, y = GCNS["edges"][1], {"scores": labels, "height": numbers}
    first = two_outputs(loss_weights={"height": 0.0}).fit(X, y, sample_weight={"scores": weights})
    require_gradients(first, gradients(weights), {"W1": W1, "W2": W2})
    second = two_outputs(loss_weights={"scores": 0.0}).fit(X, y, sample_weight={"scores": weights})
    both = two_outputs().fit(X, y, sample_weight={"scores": weights})
    for name, start in (("W1", W1), ("W2", W2)):
        steps = [one.weights_[name] - start for one in (first, second, both)]
        assert_allclose(steps[0] + steps[1], steps[2], atol=2e-6)
    hidden, scores = scores_of(W1.astype(float), W2.astype(float))
    errors = 2 * (scores @ normal(CLASSES, 1, seed=8) - numbers[:, None]) / NODES
    gradient = (A @ hidden).T @ (errors @ normal(CLASSES, 1, seed=8).T)
    assert_allclose((W2 - second.weights_["W2"]) / second.learning_rate_init, gradient, rtol=1e-4, atol=1e-4)


def test_two_outputs_of_a_network_mask_their_own_nodes():
    X, settings = GCNS["edges"][1], {"max_iter": 3, "learning_rate_init": 0.01}
    masked = {"scores": np.where(known, labels, np.nan), "height": numbers}
    fitted = two_outputs(**settings).fit(X, masked)
    weighted = two_outputs(**settings).fit(
        X, {"scores": labels, "height": numbers}, sample_weight={"scores": known.astype(float)}
    )
    for name, array in fitted.weights_.items():
        assert_array_equal(array, weighted.weights_[name])
    expected = np.mean(fitted.predict(X)["scores"][known] == labels[known])
    assert fitted.output_scores(X, masked)["scores"] == pytest.approx(expected)
    stopped = two_outputs(**settings).fit(X, masked, X_val=X, y_val=masked)
    assert stopped.validation_scores_[-1] == pytest.approx(fitted.score(X, masked), rel=1e-5)
    assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X)["height"], fitted.predict(X)["height"])


def test_two_outputs_need_a_target_for_each_node():
    X, fewer = GCNS["edges"][1], {"scores": labels[:-1], "height": numbers[:-1]}
    with pytest.raises(ValueError, match="all trained outputs must have the same rows"):
        two_outputs().fit(X, {"scores": labels[:-1], "height": numbers})
    with pytest.raises(ValueError, match="29 rows: y must have a target for each row of the output"):
        two_outputs().fit(X, fewer)
    with pytest.raises(ValueError, match=r"Output 'height' .*29 rows: y_val must have a target for each row"):
        two_outputs().fit(X, {"scores": labels, "height": numbers}, X_val=X, y_val=fewer)
    with pytest.raises(TypeError, match="y as a dict of arrays by output"):
        two_outputs().fit(X, labels)
