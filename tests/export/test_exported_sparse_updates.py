"""Training graphs with lazy updates of embeddings go on as the estimator does, which copies the rows that occur."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, Adagrad, AdamW, OrtGradientRegressor, RMSprop, load_training
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from onnxtrain_sklearn.optimizers import Lion, Optimizer, Parameter
from tests.helpers.step_options import configured
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS, Folder

WORDS, WIDTH, LENGTH, BATCH, ROWS = 60, 4, 3, 8, 43  # the last minibatch has three rows
RNG = np.random.default_rng(0)
WEIGHTS = {
    "T": RNG.normal(size=(WORDS, WIDTH)),
    "W": RNG.normal(size=(WIDTH, 1)),
    "b": RNG.normal(size=WORDS),
    "s": np.ones(WIDTH),
    "d": np.zeros(WIDTH),
    "m": np.zeros(WIDTH),
    "v": np.ones(WIDTH),
    "t": np.array(2.0),
}
X = RNG.integers(0, 20, (ROWS, LENGTH)) * 3 % WORDS
X[40:] = [[57, 54, 51]] * 3  # none of which is in the first row or the last one before
X[:40][X[:40] > 50] = 0
Y = RNG.normal(size=ROWS)
ABSENT = np.setdiff1d(np.arange(WORDS), X)
MEAN = "M = ReduceMean <axes = [1], keepdims = 0> (E)"
PLAIN = f"E = Gather(T, X) {MEAN} Y = MatMul(M, W)"
TWICE = f"A = Gather(T, X) B = Gather(T, X) E = Mul(A, B) {MEAN} Y = MatMul(M, W)"
VECTOR = f"E = Gather(T, X) {MEAN} P = MatMul(M, W) F = Gather(b, X) S = ReduceMean <axes = [1]> (F) Y = Add(P, S)"
SCALED = f"E = Gather(T, X) {MEAN} P = MatMul(M, W) Y = Mul(P, t)"
NORMALIZED = f"""E = Gather(T, X) {MEAN} N, n, u = BatchNormalization <training_mode = 1> (M, s, d, m, v)
    Y = MatMul(N, W)"""
PADDED = "padded"


def graph(nodes: str = PLAIN, opset: int = 17, dtype: type = np.float32) -> onnx.ModelProto:
    """Return a network; PADDED: that of PyTorch with ``padding_idx=3``."""
    body, kind = PLAIN if nodes == PADDED else nodes, "float" if dtype is np.float32 else "double"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> net (int64[N, {LENGTH}] X) => ({kind}[N, 1] Y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    read = {name for node in model.graph.node for name in node.input}
    kept = {name: array.astype(dtype) for name, array in WEIGHTS.items() if name in read}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in kept.items())
    if nodes == PADDED:
        target = "torch.ops.aten.embedding.default"
        call = f"%embedding : [num_users=1] = call_function[target={target}](args = (%t, %x, 3), kwargs = {{}})"
        model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.fx_node", value=call)
    return model


def lazy(nodes: str = PLAIN, dtype: type = np.float32, **settings: object) -> OrtGradientRegressor:
    given = SETTINGS | {"batch_size": BATCH, "optimizer__lazy_rows": True} | settings
    return configured(OrtGradientRegressor(graph(nodes, dtype=dtype)), **given)


def goes_on(model: OrtGradientRegressor, path: Path, rows: np.ndarray = X) -> Folder:
    """Fit, export, train a pass by steps and one by the epoch, and in the estimator; compare the whole state."""
    y = Y[: len(rows)]
    quietly(model.fit, rows, y).export_training(path)
    folder, target = Folder(path), y.reshape(-1, 1).astype(np.float32)
    folder.steps({"X": rows, "y": target})
    folder.epoch({"X": rows, "y": target})
    for _ in range(2):
        quietly(model.partial_fit, rows, y)
    run = model._state
    assert_allclose(folder.state["parameters"], run.parameters.vector, rtol=1e-6, atol=1e-6)
    for name, vector in run.optimizer_state.slots.items():  # gradients of other engines differ in the last digits
        assert_allclose(folder.state[name], vector, rtol=1e-5, atol=1e-6, err_msg=name)
    if run.parameters.running_statistics:
        assert_allclose(folder.state["statistics"], run.parameters.statistics, rtol=1e-6, atol=1e-6)
    assert folder.state["step"] == run.optimizer_state.t
    return folder


@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.9, weight_decay=0.1), AdamW(weight_decay=0.1), RMSprop(momentum=0.9), Adagrad(), Lion()],
    ids=repr,
)
def test_rows_that_do_not_occur_stay(optimizer, tmp_path):
    model = lazy(optimizer=optimizer)
    folder = goes_on(model, tmp_path / "folder")
    span = model._state.parameters.span("T")
    slots = optimizer.slots(Parameter("parameters", model._state.parameters.vector.shape))
    of_table = {name: folder.state[name][span].reshape(WORDS, WIDTH) for name in ("parameters", *slots)}
    assert len(ABSENT) > 20
    assert_array_equal(of_table["parameters"][ABSENT], WEIGHTS["T"].astype(np.float32)[ABSENT])
    for name, slot in slots.items():
        assert_array_equal(of_table[name][ABSENT], np.float32(slot.fill))
    last = of_table["parameters"][[57, 54, 51]]
    assert np.abs(last - WEIGHTS["T"][[57, 54, 51]]).min() > 1e-4


def test_exact_updates_give_other_weights(tmp_path):
    """So that the comparisons above would show a row which is updated without occurring."""
    models = [lazy(optimizer=AdamW(), optimizer__lazy_rows=how) for how in (True, False)]
    vectors = [goes_on(m, tmp_path / str(m.optimizer.lazy_rows)).state["parameters"] for m in models]
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 1.0, "optimizer__max_grad_norm": 0.5},
        {"optimizer__ema_decay": 0.8},
        {"optimizer__accumulate": 3},
        {"optimizer__learning_rate_factors": {"T": 0.5}, "optimizer__weight_decay_factors": {"W": 0.0}},
        {"nodes": TWICE},
        {"nodes": VECTOR},
        {"nodes": SCALED, "trainable": ["T", "W", "t"]},
        {"nodes": PADDED},
        {"nodes": PADDED, "optimizer__accumulate": 2, "alpha": 0.1},
    ],
    ids=str,
)
def test_settings(settings, tmp_path):
    goes_on(lazy(**{"optimizer": AdamW(weight_decay=0.1)} | settings), tmp_path / "folder")


def test_padding_does_not_occur(tmp_path):
    assert (X == 3).any()
    model = lazy(PADDED, optimizer=AdamW(weight_decay=0.1))
    folder = goes_on(model, tmp_path / "folder")
    table = folder.state["parameters"][model._state.parameters.span("T")].reshape(WORDS, WIDTH)
    assert_array_equal(table[3], WEIGHTS["T"].astype(np.float32)[3])


def test_negative_indices(tmp_path):
    one, other = (
        goes_on(lazy(optimizer=AdamW()), tmp_path / name, rows) for name, rows in (("a", X), ("b", X - WORDS))
    )
    assert_array_equal(one.state["parameters"], other.state["parameters"])


@pytest.mark.parametrize("nodes", [PLAIN, TWICE, PADDED])
def test_float64(nodes, tmp_path):
    """Where rounding hides nothing."""
    model = quietly(lazy(nodes, np.float64, optimizer=AdamW(weight_decay=0.1), engine="portable").fit, X, Y)
    model.export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False)
    for _ in range(3):
        training.partial_fit(X, Y)
        quietly(model.partial_fit, X, Y)
    assert training.state["parameters"].dtype == np.float64
    for name, vector in {"parameters": model._state.parameters.vector, **model._state.optimizer_state.slots}.items():
        assert_allclose(training.state[name], vector, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_any_minibatch_with_its_own_statistics(count, tmp_path):
    settings = {"optimizer": SGD(0.9, weight_decay=0.1, accumulate=count)}
    goes_on(lazy(NORMALIZED, **settings), tmp_path / "folder", X[11:])


def test_one_file(tmp_path):
    model = quietly(lazy(optimizer=AdamW()).fit, X, Y)
    onnx.save(model.to_training_onnx(), tmp_path / "model.onnx")
    training = load_training(tmp_path / "model.onnx", shuffle=False).partial_fit(X, Y)
    quietly(model.partial_fit, X, Y)
    for name, array in model.weights_.items():
        assert_allclose(training.state[name], array, rtol=1e-6, atol=1e-6)


class Joint(Optimizer):
    """Divides by the norm of the gradients."""

    elementwise = False

    def update(self, op, p, g, state, k):
        norm = op.Sqrt(op.ReduceSum(op.Mul(g, g), keepdims=True))
        return op.Sub(p, op.Div(op.Mul(g, k["learning_rate"]), norm)), {}


def test_refused(tmp_path):
    with pytest.raises(ModelError, match=r"Joint\.update combines .* single rows cannot be updated"):
        lazy(optimizer=Joint()).export_training(tmp_path / "folder", X, Y)
    old = configured(OrtGradientRegressor(graph(opset=15)), **SETTINGS).set_params(optimizer__lazy_rows=True)
    with pytest.raises(UnsupportedOperatorError, match=r"needs opset 16 .* in opset 15: convert it"):
        old.export_training(tmp_path / "folder", X, Y)
