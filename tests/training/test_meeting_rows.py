"""Graphs and losses in which the rows of a minibatch meet: short minibatches are trained as they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from onnxtrain_sklearn import (
    LBFGS,
    SGD,
    FineTuner,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    TabM,
    load_training,
)
from onnxtrain_sklearn._estimators import config as estimator_settings
from onnxtrain_sklearn._training.rows_meet import meet_in_numbers, rows_meet_in_loss, where_rows_meet_in_graph
from onnxtrain_sklearn.callbacks import EpochScoring
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import LOSSES
from tests.helpers.environment import available_engines, can_compile
from tests.helpers.meeting_losses import (
    Cox,
    HardTriplets,
    InfoNCE,
    OfNumberOfRows,
    PairRanking,
    cox,
    hard_triplets,
    info_nce,
    of_number_of_rows,
    pair_ranking,
)
from tests.helpers.observed import predict_in_chunks
from tests.helpers.step_options import configured

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:Output 'Y' of the graph for a row of X depends on the other rows"),
]

rng = np.random.default_rng(0)
N = 130
X = rng.normal(size=(N, 4)).astype(np.float32)
Y = (X[:, :2] + 0.3 * rng.normal(size=(N, 2))).astype(np.float32)
LABELS = (np.arange(N) * 7 + (X[:, 0] > 0)) % 3
W1, W2 = np.array([[0.1], [0.2], [0.3], [0.4]]), np.array([[0.4, -0.2], [0.1, 0.5], [-0.3, 0.2], [0.2, 0.1]])


def graph(body="Y = MatMul(X, W)", weights=W1, opset=18):
    numbers = ", ".join(str(x) for x in np.ravel(weights))
    rows, columns = weights.shape
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]> net (float[N, 4] X) => (float[N, {columns}] Y)
        <float[{rows}, {columns}] W = {{{numbers}}}, int64[1] zero = {{0}}, int64[1] one = {{1}}> {{ {body} }}"""
    )


CENTERED = "P = MatMul(X, W) m = ReduceMean(P, zero) Y = Sub(P, m)"


def squared(s, y):
    return ((s - y) ** 2).mean(1)


def centered(x, w):
    return x @ w - (x @ w).mean(0)


def linear(x, w):
    return x @ w


W3 = np.column_stack([W2, [0.3, -0.1, 0.2, 0.4]])
TIMES = (np.exp(rng.normal(size=(N, 1))) * np.where(rng.random((N, 1)) < 0.3, -1, 1)).astype(np.float32)
CASES = {
    "centered": (graph(CENTERED), "squared_error", Y[:, :1], W1, centered, squared),
    "InfoNCE": (graph(weights=W2), InfoNCE(), Y, W2, linear, info_nce),
    "Cox": (graph(), Cox(), TIMES, W1, linear, cox),
    "ranking": (graph(), PairRanking(), Y[:, :1], W1, linear, pair_ranking),
    "triplets": (graph(weights=W3), HardTriplets(), LABELS, W3, linear, hard_triplets),
    "number": (graph(weights=W2), OfNumberOfRows(), Y, W2, linear, of_number_of_rows),
}


def trained(case, groups, rate, weights=None):
    """Return the weights after a step on each group of minibatches, by numerical gradients in float64."""
    _, _, y, w, scores, loss = CASES[case]
    x, y, w = X.astype(np.float64), y.astype(np.float64), w.astype(np.float64)
    weights = np.ones(N) if weights is None else weights

    def mean(w, group):
        totals = [weights[rows] @ loss(scores(x[rows], w), y[rows]) for rows in group]
        return sum(totals) / sum(weights[rows].sum() for rows in group)

    for group in groups:
        gradient = np.zeros_like(w)
        for i in np.ndindex(w.shape):
            step = np.zeros_like(w)
            step[i] = 1e-5
            gradient[i] = (mean(w + step, group) - mean(w - step, group)) / 2e-5
        w = w - rate * gradient
    return w


def parts(size, rows=None):
    rows = np.arange(N) if rows is None else rows
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def estimator(case, **settings):
    model, loss, *_ = CASES[case]
    kind = OrtGradientClassifier if case == "triplets" else OrtGradientRegressor
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.02, "batch_size": 100, "shuffle": False, "max_iter": 1}
    return configured(kind(model, loss=loss), **defaults | settings)


def weights_of(fitted):
    return fitted.weights_["W"]


def target(case):
    y = CASES[case][2]
    return y[:, 0] if y.shape[1:] == (1,) else y


ENGINES = [*available_engines(), *(["compiled"] if can_compile() else [])]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_short_minibatch_is_not_padded(case, engine):
    if engine == "ort-training" and case == "triplets":
        pytest.skip("the engine has no gradient of ReduceMax")
    fitted = estimator(case, engine=engine, max_iter=2).fit(X, target(case))
    expected = trained(case, [[rows] for rows in parts(100)] * 2, 0.02)
    assert_allclose(weights_of(fitted), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["centered", "InfoNCE"])
def test_accumulated_minibatches_meet_each_in_itself(case, engine):
    fitted = estimator(case, engine=engine, batch_size=25, optimizer__accumulate=4).fit(X, target(case))
    groups = [parts(25)[:4], parts(25)[4:]]  # the last one has 25 and 5 rows
    assert_allclose(weights_of(fitted), trained(case, groups, 0.02), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("case", ["centered", "InfoNCE"])
def test_calls_with_fewer_rows_are_not_filled_up(case):
    model, y = estimator(case), target(case)
    for rows in (slice(0, 100), slice(100, 110), slice(110, 130)):
        model.partial_fit(X[rows], y[rows])
    groups = [[np.arange(0, 100)], [np.arange(100, 110)], [np.arange(110, 130)]]
    assert_allclose(weights_of(model), trained(case, groups, 0.02), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("case", ["centered", "InfoNCE"])
def test_rows_of_weight_zero_do_not_meet_others(case):
    weights = np.where(np.arange(N) % 3, np.linspace(0.2, 3, N), 0)
    fitted = estimator(case, batch_size=60).fit(X, target(case), sample_weight=weights)
    groups = [[rows] for rows in parts(60, np.flatnonzero(weights))]
    assert_allclose(weights_of(fitted), trained(case, groups, 0.02, weights), rtol=2e-4, atol=2e-5)


def test_equal_rows_of_a_single_minibatch_stay_apart():
    twice = np.r_[np.arange(20), np.arange(10)]
    fitted = estimator("ranking", batch_size=200).fit(X[twice], target("ranking")[twice])
    assert_allclose(weights_of(fitted), trained("ranking", [[twice]], 0.02), rtol=2e-4, atol=2e-5)


def test_a_full_batch_is_no_sum_over_pieces(monkeypatch):
    monkeypatch.setattr(estimator_settings, "LBFGS_PIECE", 50)
    fitted = estimator("centered", optimizer=LBFGS(), max_iter=100, tol=1e-10).fit(X, target("centered"))
    exact = np.linalg.lstsq(X - X.mean(0, dtype=np.float64), Y[:, :1], rcond=None)[0]
    assert_allclose(weights_of(fitted), exact, atol=2e-4)
    pieces = np.concatenate([X[rows] - X[rows].mean(0) for rows in parts(50)])
    assert np.abs(np.linalg.lstsq(pieces, Y[:, :1], rcond=None)[0] - exact).max() > 2e-3


def test_predictions_of_many_rows_are_those_of_the_file(monkeypatch, tmp_path):
    fitted = estimator("centered").fit(X, target("centered"))
    onnx.save(fitted.to_onnx(), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    expected = session.run(None, {"X": X})[0]
    predict_in_chunks(monkeypatch, rows=50)
    assert_allclose(fitted.predict(X), expected.ravel(), rtol=1e-5, atol=1e-6)
    assert_allclose(fitted.partial_fit(X[:100], target("centered")[:100]).predict(X).mean(), 0, atol=1e-5)


@pytest.mark.parametrize("case", ["InfoNCE", "number"])
def test_the_loss_of_validation_rows_is_that_of_minibatches(case):
    y, w, loss = target(case), CASES[case][3], CASES[case][5]
    weights = np.where(np.arange(N) % 5, 1.0, 0.0)
    model = estimator(case, learning_rate_init=0.0, callbacks=[EpochScoring("loss")], batch_size=40)
    model.fit(X, y, X_val=X, y_val=y, sample_weight_val=weights)
    kept = np.flatnonzero(weights)
    losses = [loss(X[rows].astype(np.float64) @ w, y[rows].astype(np.float64)) for rows in parts(40, kept)]
    assert_allclose(model.history_[-1]["validation_loss"], np.concatenate(losses).mean(), rtol=1e-5)


def test_training_graphs_take_whole_minibatches(tmp_path):
    y = target("InfoNCE")
    estimator("InfoNCE", batch_size=50).export_training(tmp_path / "folder", X, y)
    training = load_training(tmp_path / "folder", shuffle=False)
    assert not training.manifest["padding"]
    training.partial_fit(X[:100], y[:100])
    expected = trained("InfoNCE", [[rows] for rows in parts(50, np.arange(100))], 0.02)
    assert_allclose(training.state["parameters"].reshape(4, 2), expected, rtol=2e-4, atol=2e-5)
    with pytest.raises(ValueError, match=r"multiple of 50 rows.*got 130"):
        training.partial_fit(X, y)


def test_accumulated_minibatches_of_a_graph_meet_separately(tmp_path):
    y = target("InfoNCE")
    model = estimator("InfoNCE", batch_size=25, optimizer__accumulate=2)
    model.export_training(tmp_path / "folder", X, y)
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(X[:100], y[:100])
    expected = trained("InfoNCE", [parts(25)[:2], parts(25)[2:4]], 0.02)
    assert_allclose(training.state["parameters"].reshape(4, 2), expected, rtol=2e-4, atol=2e-5)
    with pytest.raises(ValueError, match=r"multiple of 2.*InfoNCE"):
        model.export_training(tmp_path / "odd", X, y, batch_size=33)


@pytest.mark.parametrize("case", ["centered", "InfoNCE"])
def test_fine_tuning_is_refused(case):
    with pytest.raises(ModelError, match="rows meet within a minibatch"):
        OrtGradientRegressor(CASES[case][0], loss=CASES[case][1], finetune=FineTuner()).fit(X, target(case))


class InfoNCEOfNumbers(InfoNCE):
    tasks = frozenset({"regression"})


TWO_OUTPUTS = f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, 4] X) => (float[N, 2] A, float[N, 1] B)
<float[4, 2] W = {{{", ".join(map(str, W2.ravel()))}}}, float[4, 1] V = {{{", ".join(map(str, W1.ravel()))}}}>
{{ A = MatMul(X, W) B = MatMul(X, V) }}"""


def of_two_outputs(**settings):
    losses = {"A": InfoNCEOfNumbers(), "B": "squared_error"}
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.02, "batch_size": 100, "shuffle": False, "max_iter": 1}
    return configured(OrtGradientMultiOutput(onnx.parser.parse_model(TWO_OUTPUTS), loss=losses), **defaults | settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_meet_in_the_loss_of_one_of_several_outputs(engine):
    fitted = of_two_outputs(engine=engine).fit(X, {"A": Y, "B": Y[:, 0]})
    expected = trained("InfoNCE", [[rows] for rows in parts(100)], 0.02)
    assert_allclose(fitted.weights_["W"], expected, rtol=2e-4, atol=2e-5)
    v = W1.copy()
    for rows in parts(100):
        v -= 0.02 * 2 * X[rows].T.astype(np.float64) @ (X[rows] @ v - Y[rows, :1]) / len(rows)
    assert_allclose(fitted.weights_["V"], v, rtol=2e-4, atol=2e-5)


def test_rows_without_a_label_of_an_output_do_not_meet_those_with_one(tmp_path):
    y, weights = {"A": Y, "B": Y[:, 0]}, np.r_[np.zeros(7), np.ones(N - 7)]
    with pytest.raises(ValueError, match=r"'A': its loss compares rows with each other, and 7 of 130 rows"):
        of_two_outputs().fit(X, y, sample_weight={"A": weights})
    of_two_outputs().fit(X, y, sample_weight={"B": weights})
    with pytest.raises(ModelError, match=r"'A': rows meet in its loss\. In training graphs"):
        of_two_outputs().fit(X, y).export_training(tmp_path / "folder")


def test_members_and_positions_do_not_meet():
    with pytest.raises(ModelError, match=r"PairRanking, so it cannot be used with the 3 members"):
        OrtGradientRegressor(TabM(n_members=3, hidden_layer_sizes=(4,)), loss=PairRanking()).fit(X, Y[:, 0])
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 4] X) => (float[N, 4, 3] Y)
        <float[1, 3] W = {0.1, 0.2, 0.3}, int64[1] two = {2}> { u = Unsqueeze(X, two) Y = MatMul(u, W) }"""
    )
    with pytest.raises(ModelError, match=r"HardTriplets, so it cannot be used with labels at positions"):
        OrtGradientClassifier(model, loss=HardTriplets()).fit(X, np.arange(4 * N).reshape(N, 4) % 3)


@pytest.mark.parametrize("updates", ["exact", "lazy"])
def test_rows_of_large_matrices_are_added_up_by_minibatch(updates):
    """Those of an embedding, and those that sparse rows are multiplied by."""
    table = rng.normal(size=(5000, 2)).astype(np.float32)
    embedded = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (int64[N] X) => (float[N, 2] Y) { Y = Gather(table, X) }"""
    )
    embedded.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    multiplied = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 5000] X) => (float[N, 2] Y) { Y = MatMul(X, table) }"""
    )
    multiplied.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    read = rng.integers(0, 50, N)
    sparse = sp.csr_matrix((np.ones(N, np.float32), (np.arange(N), read)), (N, 5000))
    expected = table.astype(np.float64)
    for rows in parts(100):
        logits = expected[read[rows]] @ Y[rows].T
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.add.at(expected, read[rows], -0.5 * (shares @ Y[rows] - Y[rows]) / len(rows))
    settings = {"optimizer": SGD(), "learning_rate_init": 0.5, "batch_size": 100, "shuffle": False, "max_iter": 1}
    for model, data in ((embedded, read), (multiplied, sparse)):
        one = (
            configured(OrtGradientRegressor(model, loss=InfoNCE()), **settings)
            .set_params(optimizer__lazy_rows=updates == "lazy")
            .fit(data, Y)
        )
        assert_allclose(one.weights_["table"], expected, rtol=1e-4, atol=1e-5)


BODIES = {
    "product": ("Y = MatMul(X, W)", False),
    "turned twice": ("t = Transpose(X) u = Transpose(t) Y = MatMul(u, W)", False),
    "folded and unfolded": (
        "s = Constant<value_ints = [-1, 2]>() t = Constant<value_ints = [-1, 4]>() "
        "p = Reshape(X, s) q = Relu(p) r = Reshape(q, t) Y = MatMul(r, W)",
        False,
    ),
    "softmax of each row": ("p = Softmax<axis = 1>(X) Y = MatMul(p, W)", False),
    "softmax over rows": ("p = Softmax<axis = 0>(X) Y = MatMul(p, W)", True),
    "mean over rows": (CENTERED, True),
    "mean over columns": ("m = ReduceMean(X, one) c = Sub(X, m) Y = MatMul(c, W)", False),
    "sum of all": ("m = ReduceSum(X) P = MatMul(X, W) Y = Mul(P, m)", True),
    "sums along rows": ("c = CumSum(X, first) Y = MatMul(c, W)", True),
    "attention to other rows": (
        "t = Transpose(X) g = MatMul(X, t) a = Softmax(g) h = MatMul(a, X) Y = MatMul(h, W)",
        True,
    ),
    "row before": (
        "e = Constant<value_ints = [-1]>() p = Slice(X, zero, one, zero) r = Slice(X, zero, e, zero) "
        "b = Concat<axis = 0>(p, r) d = Sub(X, b) Y = MatMul(d, W)",
        True,
    ),
    "divided by columns": ("s = Shape<start = 1>(X) f = Cast<to = 1>(s) d = Div(X, f) Y = MatMul(d, W)", False),
    "divided by rows": ("s = Shape<end = 1>(X) f = Cast<to = 1>(s) d = Div(X, f) Y = MatMul(d, W)", True),
    "ones as many as rows": (
        "s = Shape(X) o = Expand(half, s) n = ReduceSum<keepdims = 0>(o) d = Div(X, n) Y = MatMul(d, W)",
        True,
    ),
    "ones of a shape": (
        "s = Shape(X) o = ConstantOfShape<value = float[1] {1}>(s) n = ReduceSum(o, zero) d = Div(X, n) "
        "Y = MatMul(d, W)",
        True,
    ),
    "ones beside rows": (
        "s = Shape(X) o = ConstantOfShape<value = float[1] {1}>(s) d = Add(X, o) Y = MatMul(d, W)",
        False,
    ),
    "ones of rows, tiled": (
        "s = Shape<end = 1>(X) o = Tile(factor, s) n = ReduceSum<keepdims = 0>(o) d = Div(X, n) Y = MatMul(d, W)",
        True,
    ),
    "normalized over rows": (
        "u = Unsqueeze(X, one) v = MeanVarianceNormalization<axes = [-3]>(u) d = Squeeze(v, one) Y = MatMul(d, W)",
        True,
    ),
    "branch": (
        "s = ReduceSum<keepdims = 0>(X) c = Greater(s, nought) "
        "h = If (c) <then_branch = yes () => (float[N, 4] p) { p = Relu(X) }, "
        "else_branch = no () => (float[N, 4] q) { q = Neg(X) }> Y = MatMul(h, W)",
        True,
    ),
    "branch by a constant": (
        "c = Greater(nought, nought) "
        "h = If (c) <then_branch = yes () => (float[N, 4] p) { p = Relu(X) }, "
        "else_branch = no () => (float[N, 4] q) { q = Neg(X) }> Y = MatMul(h, W)",
        False,
    ),
    "diagonal of outer products": (
        'q = Einsum<equation = "ni,nj->nij">(X, X) r = ReduceSum(q, one) Y = MatMul(r, W)',
        False,
    ),
    "products of pairs": ('q = Einsum<equation = "ni,mi->nm">(X, X) r = ReduceSum(q, one) Y = Mul(r, factor)', True),
}


@pytest.mark.parametrize("name", BODIES)
def test_trials_find_whether_rows_meet(name):
    body, expected = BODIES[name]
    model = graph(body)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value, kind), own)
        for own, value, kind in (
            ("first", 0, np.int64),
            ("nought", 0, np.float32),
            ("half", 0.5, np.float32),
            ("factor", [0.5173946], np.float32),
        )
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    before = session.run(None, {"X": X[:5]})[0][1:4]
    others = [session.run(None, {"X": np.r_[X[i : i + 1], X[1:4], X[i + 1 : i + 3]]})[0][1:4] for i in range(4, 60)]
    assert any(np.abs(one - before).max() > 1e-5 for one in others) == expected
    fitted = OrtGradientRegressor(model, optimizer=SGD(), learning_rate_init=0.0, max_iter=1).fit(X, Y[:, 0])
    assert (where_rows_meet_in_graph(fitted._state.trained_form, None) is not None) == expected


OF_PLAIN_TARGETS = [name for name, kind in LOSSES.items() if not isinstance(kind().targets, Mapping)]


@pytest.mark.parametrize("name", OF_PLAIN_TARGETS)  # losses with targets by name may compare rows
def test_builtin_losses_are_row_independent(name, monkeypatch):
    loss = LOSSES[name]()
    task = next(task for task in ("regression", "binary", "multiclass") if task in loss.tasks)
    kind = OrtGradientRegressor if task == "regression" else OrtGradientClassifier
    y = np.abs(Y[:, 0]) + 0.1 if task == "regression" else np.arange(N) % (2 if task == "binary" else 3)
    fitted = kind("linear", loss=loss, max_iter=1, learning_rate_init=0.0).fit(X, y)
    settings = fitted._state.live.step.settings
    monkeypatch.setattr("onnxtrain_sklearn._training.rows_meet.LOSSES", {})
    assert not rows_meet_in_loss(settings, np.dtype(np.float32))


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        (lambda x: x, False),
        (lambda x: x - x.mean(axis=0), True),
        (lambda x: np.full_like(x, np.nan), None),
    ],
)
def test_trial_without_finite_results_decides_nothing(results, verdict):
    def draw(trial, rows):
        return {"x": np.random.default_rng(trial).normal(size=(rows, 2))}

    assert meet_in_numbers(lambda feeds: [results(feeds["x"])], draw) is verdict
