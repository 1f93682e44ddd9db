"""Graphs that read normalized weights at the labels in place of the labels give the same loss and gradient."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn._training.loss_graph import LOSS, TARGET
from onnxtrain_sklearn._training.pass_rewrites import (
    WEIGHT_MATRIX,
    WEIGHTS_AT_LABELS,
    NormalizedWeights,
    WeightsAtLabels,
    read_weights_at_labels,
)
from onnxtrain_sklearn.losses import LogLoss
from tests.helpers.sessions import session

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
ROWS, CLASSES = 6, 3
RNG = np.random.default_rng(0)
LABELS = RNG.integers(CLASSES, size=ROWS)
ABSENT = ", ".join(["nan"] * 9)
EYE = f"float[6, 3] table = {{1, 0, 0, 0, 1, 0, 0, 0, 1, {ABSENT}}}"
LOSS_NODES = (
    "log_p = LogSoftmax <axis = -1> (scores) y = Gather(table, labels) by_label = Mul(y, log_p)"
    " weighted = Mul(normalized, by_label) sum = ReduceSum <keepdims = 0> (weighted) loss = Neg(sum)"
)
GRADIENT = "p = Exp(log_p) excess = Sub(p, y) z = Mul(excess, normalized)"


def graph_of(body, table=EYE):
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[6, 3] scores, int64[6] labels, float[6, 3] normalized) => (float loss, float[6, 3] z) <{table}>
        {{ {body} }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    found = ir.from_proto(model)
    for value in (*found.graph.inputs, *found.graph.outputs):
        value.name = {"labels": TARGET, "normalized": WEIGHT_MATRIX, "loss": LOSS}.get(value.name or "", value.name)
    return found


def outputs(model, scores, weights):
    """Return the loss and the gradient by the scores."""
    normalized = NormalizedWeights(weights, CLASSES)
    normalized.update()
    labeled = WeightsAtLabels(LABELS, normalized)
    labeled.update()
    feeds = {"scores": scores, TARGET: LABELS, WEIGHT_MATRIX: normalized.matrix, WEIGHTS_AT_LABELS: labeled.matrix}
    run = session(ir.to_proto(model))
    return run.run(None, {v.name: feeds[v.name] for v in run.get_inputs()})


@pytest.mark.parametrize("weights", [np.ones(ROWS), [1, 1, 1, 1, 0, 0], [0.5, 2, 0, 3, 1, 1], np.zeros(ROWS)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_results_are_those_in_float64(weights, scale):
    weights = np.asarray(weights, np.float32)
    scores = (RNG.normal(size=(ROWS, CLASSES)) * scale).astype(np.float32)
    model = graph_of(f"{LOSS_NODES} {GRADIENT}")
    assert read_weights_at_labels(model.graph)
    onnx.checker.check_model(ir.to_proto(model))
    assert [value.name for value in model.graph.inputs] == ["scores", WEIGHT_MATRIX, WEIGHTS_AT_LABELS]
    assert [node.op_type for node in model.graph] == ["LogSoftmax", "Mul", "ReduceSum", "Exp", "Mul", "Add"]
    loss, slope = outputs(model, scores, weights)
    wide, normalized = scores.astype(np.float64), (weights / max(weights.sum(), 1e-30)).astype(np.float64)[:, None]
    assert_allclose(loss, -(normalized[:, 0] * log_softmax(wide, axis=1)[np.arange(ROWS), LABELS]).sum(), rtol=1e-6)
    assert_allclose(slope, normalized * (softmax(wide, axis=1) - np.eye(CLASSES)[LABELS]), rtol=0, atol=2e-7)


def test_certain_rows_have_no_gradient():
    scores = np.where(np.eye(CLASSES)[LABELS] == 1, 1e4, -1e4).astype(np.float32)
    model = graph_of(f"{LOSS_NODES} {GRADIENT}")
    assert read_weights_at_labels(model.graph)
    loss, slope = outputs(model, scores, np.array([0.3, 1, 1, 2, 5, 1], np.float32))
    assert loss == 0
    assert_array_equal(slope, np.zeros_like(slope))


@pytest.mark.parametrize(
    ("body", "table"),
    [
        (f"{LOSS_NODES} p = Exp(log_p) excess = Sub(y, p) z = Mul(excess, normalized)", EYE),
        (f"{LOSS_NODES} p = Exp(log_p) excess = Sub(p, y) z = Mul(excess, excess)", EYE),
        (f"{LOSS_NODES} p = Exp(log_p) excess = Sub(p, y) t = Add(excess, y) z = Mul(t, normalized)", EYE),
        (f"{LOSS_NODES} p = Exp(log_p) excess = Sub(p, y) t = Add(excess, by_label) z = Mul(t, normalized)", EYE),
        (f"{LOSS_NODES} p = Exp(log_p) excess = Sub(p, y) t = Mul(excess, normalized) z = Add(t, sum)", EYE),
        (f"{LOSS_NODES} {GRADIENT}".replace("<keepdims = 0>", "<keepdims = 0, noop_with_empty_axes = 1>"), EYE),
        (f"{LOSS_NODES} {GRADIENT}".replace("Neg", "Abs"), EYE),
        (f"{LOSS_NODES} {GRADIENT}".replace("Gather(", "Gather <axis = -2> ("), EYE),
        (f"{LOSS_NODES} {GRADIENT}".replace("Mul(normalized, by_label)", "Mul(log_p, by_label)"), EYE),
        (f"{LOSS_NODES} {GRADIENT}", f"float[6, 3] table = {{1, 0, 0, 0, 1, 0, 0, 0, 2, {ABSENT}}}"),
        (f"{LOSS_NODES} {GRADIENT}", "float[3, 3] table = {1, 0, 0, 0, 1, 0, 0, 0, 1}"),
    ],
)  # fmt: skip
def test_other_graphs_keep_the_labels(body, table):
    model = graph_of(body, table)
    nodes = [node.op_type for node in model.graph]
    assert not read_weights_at_labels(model.graph)
    assert [node.op_type for node in model.graph] == nodes
    assert [value.name for value in model.graph.inputs] == ["scores", TARGET, WEIGHT_MATRIX]


def test_shares_at_the_labels_follow_weights_and_labels():
    weights, labels = np.ones(4, np.float32), np.array([0, 2, 1, 1])
    normalized = NormalizedWeights(weights, 3)
    labeled = WeightsAtLabels(labels, normalized)
    for values in ([1, 1, 1, 1], [1, 1, 1, 0], [2, 0, 0, 6], [3, 3, 3, 3], [0, 0, 0, 0], [1, 1, 1, 1]):
        weights[...], labels[...] = values, np.roll(labels, 1)
        normalized.update()
        labeled.update()
        assert_array_equal(labeled.matrix, -normalized.matrix * np.eye(3, dtype=np.float32)[labels])


@pytest.mark.parametrize("label", [-3, -1, 3, 5])
@pytest.mark.parametrize("values", [[1, 1], [1, 3]])
def test_a_label_that_is_no_class_makes_its_row_nan(label, values):
    normalized = NormalizedWeights(np.array(values, np.float32), 3)
    normalized.update()
    labeled = WeightsAtLabels(np.array([label, 1]), normalized)
    labeled.update()
    assert_array_equal(np.isnan(labeled.matrix), [[True] * 3, [False] * 3])


@pytest.mark.parametrize(("loss", "reads"), [(LogLoss(), True), (LogLoss(label_smoothing=0.1), False)])
def test_log_loss_of_several_classes_reads_normalized_weights(loss, reads):
    X, y = RNG.normal(size=(40, 5)).astype(np.float32), np.arange(40) % 4
    model = OrtGradientClassifier(MLP(6), loss=loss, engine="portable", batch_size=16, max_iter=2, random_state=0)
    model.fit(X, y)
    program = model._state.live.step.program
    assert program.weights_at_labels == reads
    inputs = [value.name for value in onnx.load_from_string(program.graph).graph.input]
    assert (WEIGHTS_AT_LABELS in inputs, TARGET in inputs) == (reads, not reads)
