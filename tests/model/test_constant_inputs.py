"""``constant_inputs``: inputs of a file that are the same in every call become constants of the graph."""

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
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import (
    MLP,
    SGD,
    FineTuner,
    GraphModel,
    LoRA,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
)
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
NODES, FEATURES, HIDDEN, ROWS = 5, 3, 4, 30
A = np.abs(RNG.normal(size=(NODES, NODES))).astype(np.float32)
X = RNG.normal(size=(ROWS, NODES, FEATURES)).astype(np.float32)
y = RNG.normal(size=ROWS)
W = RNG.normal(size=(FEATURES, HIDDEN)).astype(np.float32)
V = RNG.normal(size=(HIDDEN, 1)).astype(np.float32)


def parsed(nodes, inputs, output="float[N, 1] out", opset=18, **arrays):
    text = f'<ir_version: 8, opset_import: ["": {opset}]> net ({inputs}) => ({output}) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


GCN = parsed(
    """n = MatMul(adjacency, X) h = MatMul(n, W) r = Tanh(h) s = ReduceSum<keepdims = 0>(r, axis) p = MatMul(s, V)
    out = Mul(p, gain)""",
    "float[N, nodes, 3] X, float[nodes, nodes] adjacency, float gain",
    W=W,
    V=V,
    axis=np.array([1]),
)
SETTINGS = {"optimizer": SGD(), "learning_rate_init": 0.01, "batch_size": ROWS, "shuffle": False, "max_iter": 1}


def regressor(model=GCN, constants=None, **settings):
    constants = {"adjacency": A, "gain": 0.5} if constants is None else constants
    return OrtGradientRegressor(GraphModel(model, constant_inputs=constants), **SETTINGS | settings)


def predictions(w, v, a=A, rows=X, gain=0.5):
    hidden = np.tanh(a.astype(np.float64) @ rows.astype(np.float64) @ w)
    return (hidden.sum(axis=1) @ v).ravel() * gain


def slopes(array, loss, step=1e-6):
    """Return central differences of a function of ``array`` in float64."""
    found = np.zeros(array.shape)
    for at in np.ndindex(array.shape):
        values = []
        for sign in (1, -1):
            moved = array.astype(np.float64)
            moved[at] += sign * step
            values.append(loss(moved))
        found[at] = (values[0] - values[1]) / (2 * step)
    return found


@each_engine
def test_step_with_constant_inputs_matches_central_differences(engine):
    fitted = regressor(engine=engine).fit(X, y)
    of_w = slopes(W, lambda w: np.mean((predictions(w, V.astype(float)) - y) ** 2))
    of_v = slopes(V, lambda v: np.mean((predictions(W.astype(float), v) - y) ** 2))
    assert set(fitted.weights_) == {"W", "V"}  # neither the matrix nor the number is trained
    assert_allclose(fitted.weights_["W"], W - 0.01 * of_w, rtol=1e-5, atol=2e-6)
    assert_allclose(fitted.weights_["V"], V - 0.01 * of_v, rtol=1e-5, atol=2e-6)
    w, v = (fitted.weights_[name].astype(float) for name in ("W", "V"))
    assert_allclose(fitted.predict(X), predictions(w, v), rtol=1e-4, atol=1e-5)


def test_constant_inputs_are_described_as_constants():
    described = regressor().describe()
    assert {entry.name: entry.reason for entry in described.of("constant")} == dict.fromkeys(
        ("adjacency", "gain"), "a constant input"
    )
    assert {entry.name for entry in described.of("trained")} == {"W", "V"}


def test_exported_file_holds_the_constants_and_needs_no_more_inputs():
    fitted = regressor(max_iter=3).fit(X, y)
    proto = fitted.to_onnx()
    assert [value.name for value in proto.graph.input] == ["X"]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (found,) = session.run(None, {"X": X})
    assert_array_equal(found.ravel(), fitted.predict(X))
    # The given file with the trained weights computes the same from all of its inputs.
    given = onnx.ModelProto.FromString(GCN.SerializeToString())
    kept = [tensor for tensor in given.graph.initializer if tensor.name not in ("W", "V")]
    del given.graph.initializer[:]
    given.graph.initializer.extend([*kept, *(numpy_helper.from_array(a, n) for n, a in fitted.weights_.items())])
    session = onnxruntime.InferenceSession(given.SerializeToString())
    (expected,) = session.run(None, {"X": X, "adjacency": A, "gain": np.array(0.5, np.float32)})
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("matrix", [sp.csr_matrix(A), A.tolist(), A.astype(np.float64)], ids=["csr", "list", "float64"])
def test_matrix_may_come_in_other_forms(matrix):
    found = regressor(constants={"adjacency": matrix, "gain": np.array([0.5])}).fit(X, y)
    assert_array_equal(found.predict(X), regressor().fit(X, y).predict(X))


@pytest.mark.parametrize("declared", ["", "[1]", "[1, 1]", "[k]"])
@pytest.mark.parametrize(
    ("kind", "value"), [("int64", 3), ("int32", 3.0), ("float", 3), ("double", np.float32(3)), ("bool", True)]
)
@pytest.mark.parametrize("form", [lambda v: v, lambda v: np.array([v])], ids=["number", "array"])
def test_number_suits_any_axes_of_size_one(declared, kind, value, form):
    model = parsed(
        "f = Cast<to = 1>(setting) a = MatMul(X, w) out = Mul(a, f)",
        f"float[N, 4] X, {kind}{declared} setting",
        "float[N, 1] out",
        w=np.ones((4, 1), np.float32),
    )
    rows = RNG.normal(size=(12, 4)).astype(np.float32)
    fitted = regressor(model, {"setting": form(value)}, learning_rate_init=0.0).fit(rows, np.zeros(12))
    factor = 1 if kind == "bool" else 3
    assert_allclose(fitted.predict(rows), factor * rows.sum(axis=1), rtol=1e-5, atol=1e-5)


BRANCHES = """
    wide = Constant<value = int64 {16000}>() is_wide = Equal(rate, wide)
    out = If (is_wide) <
        then_branch = first () => (float[N, 1] a) { a = MatMul(X, P) },
        else_branch = second () => (float[N, 1] b) { b = MatMul(X, Q) }>
"""


@each_engine
@pytest.mark.parametrize(("rate", "trained"), [(16000, "P"), (8000, "Q")])
def test_branch_of_a_constant_condition_is_taken(engine, rate, trained):
    """The form of Silero VAD: a network for each sampling rate."""
    start = {"P": np.ones((3, 1), np.float32), "Q": np.full((3, 1), 2, np.float32)}
    model = parsed(BRANCHES, "float[N, 3] X, int64 rate", **start)
    rows = X[:, 0]
    fitted = regressor(model, {"rate": rate}, engine=engine).fit(rows, y)
    assert list(fitted.weights_) == [trained]
    w = start[trained].astype(np.float64)
    gradient = 2 * rows.T.astype(float) @ (rows @ w - y[:, np.newaxis]) / ROWS
    assert_allclose(fitted.weights_[trained], w - 0.01 * gradient, rtol=1e-5, atol=1e-6)
    assert all(node.op_type != "If" for node in fitted.to_onnx().graph.node)


def test_constant_inputs_survive_copies_and_searches():
    estimator = regressor(max_iter=2)
    twin = clone(estimator)
    assert_array_equal(twin.get_params()["model__constant_inputs"]["adjacency"], A)
    assert twin.model.constant_inputs["adjacency"] is not A
    fitted = estimator.fit(X, y)
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.predict(X), fitted.predict(X))
    assert_array_equal(copy.partial_fit(X, y).predict(X), fitted.partial_fit(X, y).predict(X))
    grid = {"model__constant_inputs": [{"adjacency": A, "gain": g} for g in (0.5, 3.0)]}
    search = GridSearchCV(regressor(max_iter=1, batch_size=10), grid, cv=2).fit(X, y)
    assert len(search.cv_results_["params"]) == 2
    assert len(set(search.cv_results_["mean_test_score"])) == 2


def test_other_constants_need_a_new_fit():
    fitted = regressor().fit(X, y)
    before = fitted.predict(X)
    fitted.set_params(model__constant_inputs={"adjacency": A, "gain": 2.0})
    with pytest.raises(ModelError, match="constant_inputs was changed"):
        fitted.partial_fit(X, y)
    assert_array_equal(fitted.predict(X), before)
    again = fitted.fit(X, y)
    w, v = (again.weights_[name].astype(float) for name in ("W", "V"))
    assert_allclose(again.predict(X), predictions(w, v, gain=2.0), rtol=1e-4, atol=1e-5)


def test_constants_are_not_trained_by_low_rank_factors_or_a_new_head():
    adapted = regressor(adapters=LoRA(rank=1, targets="W")).fit(X, y)
    assert set(adapted.adapters_)
    assert all("adjacency" not in name for name in adapted.adapters_)
    labels = np.array(["a", "b", "c"])[np.arange(ROWS) % 3]
    model = GraphModel(GCN, output="s", constant_inputs={"adjacency": A, "gain": 0.5})
    head = OrtGradientClassifier(model, finetune=FineTuner(new_head=True), random_state=0).fit(X, labels)
    assert head.predict_proba(X).shape == (ROWS, 3)
    assert [value.name for value in head.to_onnx().graph.input] == ["X"]


def test_exported_training_graphs_hold_the_constants(tmp_path):
    fitted = regressor(max_iter=2, batch_size=10).fit(X, y)
    fitted.export_training(tmp_path)
    inputs = {v.name for file in tmp_path.glob("*.onnx") for v in onnx.load(file).graph.input}
    assert "X" in inputs
    assert not {"adjacency", "gain"} & inputs
    onnx.checker.check_model(fitted.to_training_onnx(), full_check=True)


def test_several_outputs_share_the_constants():
    model = parsed(
        "a = MatMul(X, P) b = MatMul(X, Q) one = Mul(a, rate) two = Add(b, rate)",
        "float[N, 3] X, float rate",
        "float[N, 1] one, float[N, 1] two",
        P=np.ones((3, 1), np.float32),
        Q=np.ones((3, 1), np.float32),
    )
    rows = X[:, 0]
    loss = {"one": "squared_error", "two": "squared_error"}
    net = OrtGradientMultiOutput(GraphModel(model, constant_inputs={"rate": 2.0}), loss=loss, learning_rate_init=0.0)
    found = net.fit(rows, {"one": y, "two": y}).predict(rows)
    assert_allclose(found["one"], 2 * rows.sum(axis=1), rtol=1e-5, atol=1e-5)
    assert_allclose(found["two"], 2 + rows.sum(axis=1), rtol=1e-5, atol=1e-5)


REFUSED = [
    ({"adjacensy": A, "gain": 1}, ModelError, "names 'adjacensy', which is no input of the graph.*'adjacency'"),
    ({"adjacency": A}, ModelError, "'gain' is a single float32.*constant_inputs={'gain': 1}"),
    ({"adjacency": A[:4], "gain": 1}, ModelError, "the axis 'nodes' has 4 elements in 'adjacency', but 5"),
    ({"adjacency": A[0], "gain": 1}, ModelError, r"shape \(5,\), but .* takes the shape \('nodes', 'nodes'\)"),
    ({"adjacency": A, "gain": [1, 2]}, ModelError, r"shape \(2,\), but .* takes a single number"),
    ({"adjacency": A, "gain": 1e300}, ModelError, "takes float32, which cannot hold .*1e.300"),
    ({"adjacency": A, "gain": np.nan}, ModelError, r"constant_inputs\['gain'\] contains NaN"),
    ({"adjacency": A, "gain": "loud"}, ModelError, "must be a number or an array of float32, got 'loud'"),
    ({"adjacency": A, "gain": None}, ModelError, "must be a number or an array of float32, got None"),
    ({"adjacency": A, "gain": 1, "X": X}, ModelError, "names all inputs of the graph"),
    ([("gain", 1)], InvalidParameterError, "'constant_inputs' parameter of GraphModel must be a dict"),
]


@pytest.mark.parametrize(("constants", "error", "message"), REFUSED)
def test_constant_that_does_not_suit_its_input_is_refused(constants, error, message):
    estimator = OrtGradientRegressor(GraphModel(GCN, constant_inputs=constants), **SETTINGS)
    with pytest.raises(error, match=message):
        estimator.fit(X, y)
    assert not hasattr(estimator, "n_iter_")
    assert not hasattr(estimator, "n_features_in_")


@pytest.mark.parametrize(("kind", "value"), [("int64", 0.5), ("int32", 2**40), ("bool", 2)])
def test_number_that_the_type_of_the_input_cannot_hold_is_refused(kind, value):
    model = parsed(
        "f = Cast<to = 1>(s) a = MatMul(X, w) out = Mul(a, f)", f"float[N, 4] X, {kind} s", w=np.ones((4, 1), "f")
    )
    with pytest.raises(ModelError, match=f"the input takes {kind}, which cannot hold"):
        regressor(model, {"s": value}).fit(np.ones((4, 4)), np.ones(4))


def test_constant_with_an_axis_of_rows_is_refused():
    model = parsed("s = Add(X, state) out = MatMul(s, w)", "float[N, 4] X, float[N, 4] state", w=np.ones((4, 1), "f"))
    with pytest.raises(ModelError, match=r"axis 0 of this input is 'N', the axis of the rows of 'X'.*depends on the r"):
        regressor(model, {"state": np.zeros((30, 4))}).fit(np.ones((30, 4)), np.ones(30))


def test_sizes_of_constants_hold_for_the_rows():
    with pytest.raises(ValueError, match=r"rows of shape \(6, 3\), but the graph's input 'X' takes rows of shape \(5"):
        regressor().fit(np.ones((ROWS, 6, 3)), y)


@pytest.mark.parametrize("model", [MLP(), None, Ridge().fit(X[:, 0], y)], ids=["builder", "none", "fitted model"])
@pytest.mark.parametrize("setting", [{"constant_inputs": {"rate": 1}}, {"batch_axis": 1}], ids=["constant", "axis"])
def test_settings_of_inputs_are_for_given_graphs(model, setting):
    with pytest.raises(InvalidParameterError, match=f"{next(iter(setting))}=.* is for given ONNX graphs"):
        OrtGradientRegressor(GraphModel(model, **setting)).fit(X[:, 0], y)


@pytest.mark.parametrize("kind", [OrtGradientClassifier, OrtGradientRegressor, OrtGradientMultiOutput])
def test_settings_of_the_model_as_parameters_say_where_they_belong(kind):
    with pytest.raises(TypeError, match=rf"give {kind.__name__}\(GraphModel\(graph, constant_inputs=\.\.\.\)\)"):
        kind(GCN, loss=None, constant_inputs={"gain": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'constants'"):
        kind(GCN, loss=None, constants={"gain": 1})
    with pytest.raises(InvalidParameterError, match="model__constant_inputs"):
        kind(GCN, loss=None).set_params(constant_inputs={"gain": 1})
