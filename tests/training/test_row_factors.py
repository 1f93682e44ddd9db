"""Steps with fewer nodes: the shares of rows given by the host, and the column of weights factored out of slopes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._data.batches import ArrayBatches
from onnxtrain_sklearn._data.columns import InputData
from onnxtrain_sklearn._gradient.portable import factor_out_columns
from onnxtrain_sklearn._training.loss_graph import TARGET
from onnxtrain_sklearn._training.passes import NormalizedWeights
from onnxtrain_sklearn._training.step_parts import Rates
from onnxtrain_sklearn.losses import LogLoss
from tests.helpers.steps import data, fill, mlp, new_step

RNG = np.random.default_rng(0)


def graph_of(body, width=3, column="N, 1"):
    """A graph of which ``z`` is the only output."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[4, {width}] a, float[4, {width}] b, float[{column.replace("N", "4")}] c, float[4, 1] d)
          => (float[4, {width}] z) {{ {body} }}""")


def factored(proto):
    """Return the types of the nodes after the factoring, and the model."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    factor_out_columns(model.graph, list(model.graph))
    return [node.op_type for node in model.graph], ir.to_proto(model)


def outputs(proto, width, column=(4, 1)):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    shapes = {"a": (4, width), "b": (4, width), "c": column, "d": (4, 1)}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return session.run(None, {v.name: feeds[v.name] for v in session.get_inputs()})[0]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("operator", ["Add", "Sub"])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(("c", "m"), repeat=2)))
def test_one_product_is_the_sum_of_two(first, second, operator, width):
    proto = graph_of(f"m = Neg(c) x = Mul({first}, a) y = Mul(b, {second}) z = {operator}(x, y)", width)
    types, model = factored(proto)
    both_negative = first == "m" and (second == "m") == (operator == "Add")
    assert types.count("Mul") == (2 if both_negative else 1)
    assert_allclose(outputs(model, width), outputs(proto, width), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "column"),
    [
        ("x = Mul(c, a) y = Mul(d, b) z = Add(x, y)", "N, 1"),  # two columns
        ("x = Mul(c, a) y = Mul(c, b) t = Add(x, y) z = Add(t, x)", "N, 1"),  # read twice
        ("x = Mul(c, a) y = Mul(c, b) z = Sub(x, y)", "N, 3"),  # no column
        ("x = Mul(c, a) y = Div(b, c) z = Sub(x, y)", "N, 1"),  # no product
    ],
)
def test_other_sums_stay(body, column):
    proto = graph_of(body, column=column)
    types, model = factored(proto)
    assert types == [node.op_type for node in proto.graph.node]
    assert model.graph.output[0].name == "z"


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_slopes_of_the_log_loss_are_one_product(task):
    link, columns = {"binary": ("sigmoid", 1), "multiclass": ("softmax", 3)}[task]
    given = {"loss": LogLoss(), "task": task, "link": link, "n_scores": columns, "engine": "portable"}
    step = new_step(mlp(activation="relu", n_outputs=columns), batch=8, **given)
    graph = onnx.load_from_string(step.program.graph).graph
    own = [node.op_type for node in graph.node if node.name.startswith("gradient/")]
    assert "ReduceSum" not in own
    assert own.count("Sub") == (task == "binary")  # several classes: the shares at the labels are added
    assert "Div" not in {node.op_type for node in graph.node}


def test_a_label_outside_the_classes_of_a_given_graph_has_no_gradient():
    """The rows of a user's own comparison need not sum to one."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[2, 3] scores, int64[2, 1] y) => (float loss) <int64[3] classes = {0, 1, 2}>
        { hit = Equal(y, classes) rows = Cast <to = 1> (hit) log_p = LogSoftmax <axis = -1> (scores)
          picked = Mul(rows, log_p) total = ReduceSum <keepdims = 0> (picked) loss = Neg(total) }""")
    graph = gradient_graph(proto, wrt=["scores"], engine="portable")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    scores = RNG.normal(size=(2, 3)).astype(np.float32)
    (gradient,) = session.run(["scores_grad"], {"scores": scores, "y": np.array([[1], [-1]])})
    softmax = np.exp(scores.astype(np.float64))
    softmax /= softmax.sum(axis=1, keepdims=True)
    assert_allclose(gradient, [softmax[0] - [0, 1, 0], np.zeros(3)], atol=1e-6)


def test_shares_follow_the_weights():
    weights = np.ones(4, np.float32)
    shares = NormalizedWeights(weights, 3)
    full, partial = [1, 1, 1, 1], [1, 1, 1, 0]
    for values in (full, partial, [2, 0, 0, 6], [3, 3, 3, 3], [0, 0, 0, 0], full, partial, [2, 0, 0, 6], full):
        weights[...] = values
        shares.update()
        assert (shares.of_ones, shares.equal is None) == (values == full, len(set(values)) > 1)
        assert_array_equal(shares.column[:, 0], weights / max(weights.sum(), np.finfo(np.float32).tiny))
        assert_array_equal(shares.matrix, np.repeat(shares.column, 3, axis=1))


@pytest.mark.parametrize("weights", [None, np.array([1.0, 3.0, 0.0, 0.5, 2.0])], ids=["plain", "weighted"])
def test_partial_weighted_minibatch_has_gradients_of_its_rows(weights):
    X, y = data(5)
    step = new_step(mlp(), batch=8)
    fill(step, X[:3], y[:3])  # the weights of the step before are not those of the next
    step.compute_gradients(1.0)
    fill(step, X, y, weights)
    loss = step.compute_gradients(1.0)
    own = np.ones(5) if weights is None else weights
    total, expected = np.zeros(len(step.parameters.vector)), 0.0
    for i in range(5):
        single = new_step(mlp(), batch=1)
        fill(single, X[i : i + 1], y[i : i + 1])
        expected += own[i] / own.sum() * single.compute_gradients(1.0)
        total += own[i] / own.sum() * single.parameters.gradient.astype(np.float64)
    assert_allclose(loss, expected, rtol=1e-5)
    assert_allclose(step.parameters.gradient, total, rtol=1e-4, atol=1e-6)


def test_weights_that_are_written_between_passes_count():
    X, y = data(8)
    passed, fresh = new_step(mlp(), batch=8), new_step(mlp(), batch=8)
    column, target = InputData(X, X.dtype), InputData(y[:, None], y.dtype)
    whole = ArrayBatches({"X": column, TARGET: target}, np.arange(8), None, 8, None)
    for _ in passed.train(whole, lambda: Rates(0.0)):
        pass
    weights = np.linspace(0, 2, 8)
    losses = []
    for step in (passed, fresh):
        fill(step, X, y, weights)
        losses.append(step.compute_gradients(weights.sum()))
    assert losses[0] == losses[1]
    assert_array_equal(passed.parameters.gradient, fresh.parameters.gradient)
