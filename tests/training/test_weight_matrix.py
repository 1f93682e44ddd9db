"""Graphs that read a matrix of normalized weights in place of a column give the same loss and gradients."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, clear_cache
from onnxtrain_sklearn._training import programs
from onnxtrain_sklearn._training.loss_graph import LOSS, WEIGHT
from onnxtrain_sklearn._training.pass_rewrites import WEIGHT_MATRIX, WEIGHT_MATRIX_CLASSES, read_weight_matrix
from onnxtrain_sklearn.losses import Hinge, LogLoss
from tests.helpers.sessions import session

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
ROWS = 6
RNG = np.random.default_rng(0)
AXES = "a = Constant<value_ints = {}>() "
SUMMED = AXES.format("[1]") + "r = ReduceSum<keepdims = 1>(m, a) "


def graph_of(body, classes=3, opset=18, rows=ROWS):
    """Return a graph that reads normalized weights as matrix ``m`` and column ``w``; outputs: the loss and ``z``."""
    size = f"[{rows}, {classes}]"
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float{size} m, float[{rows}, 1] w) => (float loss, float[M, N] z) {{ {body} }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    found = ir.from_proto(model)
    for value in (*found.graph.inputs, *found.graph.outputs):
        value.name = {"w": WEIGHT, "loss": LOSS}.get(value.name or "", value.name)
    return found


def results(model, classes):
    """Return the outputs, and the operators."""
    normalized = np.linspace(0.1, 0.9, ROWS, dtype=np.float32)[:, None]
    feeds = {WEIGHT: normalized, WEIGHT_MATRIX: np.repeat(normalized, classes, axis=1)}
    feeds["m"] = np.random.default_rng(1).normal(size=(ROWS, classes)).astype(np.float32)
    run = session(ir.to_proto(model))
    return run.run(None, {v.name: feeds[v.name] for v in run.get_inputs()}), [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("body", "sums", "opset"),
    [
        (f"z = Mul(m, w) {SUMMED} n = Neg(r) p = Mul(w, n) loss = ReduceSum<keepdims = 0>(p)", 1, 18),
        (f"z = Mul(w, m) {SUMMED} p = Mul(r, w) loss = ReduceSum<keepdims = 0>(p)", 1, 18),
        ("z = Mul(m, w) r = ReduceSum<axes = [-1]>(m) p = Mul(w, r) loss = ReduceSum<keepdims = 0>(p)", 1, 11),
        (f"z = Mul(m, w) {SUMMED} p = Mul(w, r) loss = ReduceSum<keepdims = 1>(p)", 2, 18),
        (f"z = Mul(m, w) {SUMMED} e = Exp(r) p = Mul(w, e) loss = ReduceSum<keepdims = 0>(p)", 2, 18),
        (f"z = Mul(m, w) {SUMMED} p = Mul(r, r) loss = ReduceSum<keepdims = 0>(p)", 2, 18),
        (f"z = Mul(m, w) {SUMMED} p = Add(w, r) loss = ReduceSum<keepdims = 0>(p)", 2, 18),
        ("z = Mul(m, w) r = ReduceMean<axes = [1]>(m) p = Mul(w, r) loss = ReduceSum<keepdims = 0>(p)", 1, 11),
        ("z = Mul(m, w) p = Mul(m, w) loss = ReduceSum<keepdims = 0>(p)", 1, 18),
        ("z = Mul(m, w) loss = ReduceMean<keepdims = 0>(z)", 0, 18),
        (f"z = Mul(m, w) {SUMMED} n = Neg(r) p = Mul(n, w) t = Exp(n) loss = ReduceSum<keepdims = 0>(p)", 2, 18),
    ],
)  # fmt: skip
def test_results_stay(body, sums, opset):
    plain, model = (graph_of(body, opset=opset) for _ in range(2))
    assert read_weight_matrix(model.graph) == 3
    (wanted, _), (found, operators) = results(plain, 3), results(model, 3)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert operators.count("ReduceSum") == sums
    assert [value.name for value in model.graph.outputs] == [LOSS, "z"]
    onnx.checker.check_model(ir.to_proto(model))


@pytest.mark.parametrize(
    ("body", "classes"),
    [
        ("z = Mul(m, w) loss = ReduceSum<keepdims = 0>(z)", 1),
        ("z = Mul(m, w) loss = ReduceSum<keepdims = 0>(z)", WEIGHT_MATRIX_CLASSES + 1),
        ("z = Add(m, w) loss = ReduceSum<keepdims = 0>(z)", 3),
        ("z = MatMul(m, w) loss = ReduceSum<keepdims = 0>(z)", ROWS),
    ],
)
def test_other_graphs_keep_the_column(body, classes):
    model = graph_of(body, classes)
    assert read_weight_matrix(model.graph) == 0
    assert [value.name for value in model.graph.inputs] == ["m", WEIGHT]


X = RNG.normal(size=(50, 5)).astype(np.float32)
WEIGHTS = np.where(RNG.random(50) < 0.3, 0.0, RNG.uniform(0.5, 2, 50))
LABELS = RNG.integers(4, size=50)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(("loss", "classes"), [(LogLoss(), 4), (LogLoss(label_smoothing=0.1), 0), (Hinge(), 0)])
def test_fits_are_those_with_the_column(loss, classes, weights, monkeypatch):
    found, columns = [], []
    for function in (read_weight_matrix, lambda graph: 0):
        monkeypatch.setattr(programs, "read_weight_matrix", function)
        clear_cache()
        settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "batch_size": 16, "max_iter": 3, "random_state": 0}
        model = OrtGradientClassifier(MLP(6), loss=loss, engine="portable", **settings)
        found.append(model.fit(X, LABELS, sample_weight=weights))
        columns.append(model._state.live.step.program.weight_columns)
    clear_cache()
    assert columns == [classes, 0]
    assert_allclose(found[0].loss_curve_, found[1].loss_curve_, rtol=1e-5)
    for name, array in found[0].weights_.items():
        assert_allclose(array, found[1].weights_[name], rtol=0, atol=1e-5)
