"""Class probabilities coupled from those of pairs: LIBSVM's iteration, in a graph of one size, with its gradients."""

import pickle
from itertools import combinations

import numpy as np
import onnx_ir as ir
import pytest
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC

from onnxtrain_sklearn import OrtGradientClassifier, gradient_graph
from onnxtrain_sklearn._ir.control_flow import unroll
from onnxtrain_sklearn._ml_operators import kernel_methods
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import available_engines
from tests.helpers.selection import one_case
from tests.helpers.sessions import session as session_of

TINY = 1e-7
CLASSES = (2, 3, 5, 12)


def without_warnings(test):
    """Ignore the warnings of few epochs, and of probability=True, which scikit-learn will drop."""
    for category in ("sklearn.exceptions.ConvergenceWarning", "FutureWarning"):
        test = pytest.mark.filterwarnings(f"ignore::{category}")(test)
    return test


def libsvm(pairs, classes):
    """Couple the pairs of one row as ``multiclass_probability`` of LIBSVM does, in float64."""
    r = np.zeros((classes, classes))
    for (i, j), p in zip(combinations(range(classes), 2), pairs.astype(np.float64), strict=True):
        r[i, j], r[j, i] = p, 1 - p
    q = -r.T * r
    np.fill_diagonal(q, (r**2).sum(axis=0))
    p = np.full(classes, 1 / classes)
    for _ in range(max(100, classes)):
        product = q @ p
        value = p @ product
        if np.abs(product - value).max() < 0.005 / classes:
            return p
        for t in range(classes):
            step = (value - product[t]) / q[t, t]
            p[t] += step
            value = (value + step * (step * q[t, t] + 2 * product[t])) / (1 + step) ** 2
            product = (product + step * q[t]) / (1 + step)
            p /= 1 + step
    raise AssertionError("LIBSVM's iteration does not end")


def drawn_pairs(classes, rows=40):
    """Probabilities of pairs: of all kinds, near 0 and 1, contradictory, even."""
    rng = np.random.default_rng(classes)
    count = classes * (classes - 1) // 2
    plain = rng.uniform(size=(rows, count))
    sharp = np.clip(rng.integers(0, 2, size=(rows, count)), TINY, 1 - TINY)
    logits = rng.normal(size=(rows, count)) * 6
    even = np.full((1, count), 0.5)
    return np.concatenate([plain, sharp, 1 / (1 + np.exp(-logits)), even]).astype(np.float32)


def coupling(classes, rows="N", dtype=ir.DataType.FLOAT):
    """Return a model of the probabilities, and of their sum under the weights w."""
    x, w = (ir.val(name, dtype, [rows, size]) for name, size in (("x", classes * (classes - 1) // 2), ("w", classes)))
    graph = ir.Graph([x, w], [], nodes=[], name="coupling", opset_imports={"": 18})
    op = GraphBuilder(graph, dtype=dtype, constant_nodes=True)
    p = kernel_methods.coupled(op, x, classes)
    total = op.ReduceSum(op.Mul(p, w), keepdims=False)
    for value, name, shape in ((total, "total", []), (p, "p", [rows, classes])):
        value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)
        graph.outputs.append(value)
    return ir.Model(graph, ir_version=9)


def coupling_session(model):
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    return session_of(proto)


def run_coupling(model, *names, **feeds):
    return coupling_session(model).run(list(names), feeds)


def pair_weights(x, classes):
    return np.random.default_rng(1).normal(size=(len(x), classes)).astype(x.dtype)


@pytest.mark.parametrize("classes", CLASSES)
def test_probabilities_are_those_of_libsvm(classes):
    x = drawn_pairs(classes)
    found = run_coupling(coupling(classes), "p", x=x, w=pair_weights(x, classes))[0]
    np.testing.assert_allclose(found, [libsvm(row, classes) for row in x], rtol=0, atol=1e-6)


def test_rows_do_not_depend_on_each_other():
    x = drawn_pairs(4)
    w = pair_weights(x, 4)
    together, runner = run_coupling(coupling(4), "p", x=x, w=w)[0], coupling_session(coupling(4))
    alone = [runner.run(["p"], {"x": x[i : i + 1], "w": w[:1]})[0][0] for i in range(len(x))]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-7)


def test_size_of_the_graph_depends_neither_on_sweeps_nor_on_classes(monkeypatch):
    sizes = {len(list(coupling(classes).graph.all_nodes())) for classes in (3, 12)}
    monkeypatch.setattr(kernel_methods, "SWEEPS", 50)
    sizes.add(len(list(coupling(3).graph.all_nodes())))
    assert len(sizes) == 1
    assert sizes.pop() < 100


@one_case
@pytest.mark.parametrize("classes", CLASSES[1:] + CLASSES[:1])
def test_written_out_it_gives_the_same(classes):
    x = drawn_pairs(classes)
    w = pair_weights(x, classes)
    model = coupling(classes)
    flat = unroll(model.clone())
    assert not {"Loop", "Scan", "If"} & {node.op_type for node in flat.graph.all_nodes()}
    np.testing.assert_allclose(
        run_coupling(flat, "p", x=x, w=w)[0], run_coupling(model, "p", x=x, w=w)[0], rtol=0, atol=1e-7
    )


@pytest.mark.slow
@pytest.mark.thinned(by=lambda classes, rows: {rows})
@pytest.mark.parametrize("classes", [3, 2, 5])
@pytest.mark.parametrize("rows", ["N", 6])
def test_gradients_are_those_of_central_differences(classes, rows):
    x = np.random.default_rng(classes).uniform(0.05, 0.95, size=(6, classes * (classes - 1) // 2))
    w = pair_weights(x, classes)
    model = coupling(classes, rows, ir.DataType.DOUBLE)
    found = run_coupling(gradient_graph(ir.to_proto(model), wrt="x", engine="portable"), "x_grad", x=x, w=w)[0]
    runner, expected = coupling_session(model), np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        above, below = (runner.run(["total"], {"x": x + s, "w": w})[0] for s in (step, -step))
        expected[place] = (above - below) / 2e-6
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


@one_case
@pytest.mark.parametrize("classes", [3, 2, 4])
def test_gradients_do_not_cancel_near_zero_and_one(classes):
    x = drawn_pairs(classes, 20)[20:40]
    w = pair_weights(x, classes)
    found = [
        run_coupling(
            gradient_graph(ir.to_proto(model), wrt="x", engine="portable"), "x_grad", x=x.astype(t), w=w.astype(t)
        )[0]
        for t in (np.float32, np.float64)
        for model in [coupling(classes, len(x), ir.DataType.from_numpy(np.dtype(t)))]
    ]
    np.testing.assert_allclose(*found, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif("ort-training" not in available_engines(), reason="needs onnxruntime-training")
@one_case
@pytest.mark.parametrize("classes", [2, 4])
def test_both_engines_give_one_gradient(classes):
    x = np.random.default_rng(classes).uniform(size=(7, classes * (classes - 1) // 2)).astype(np.float32)
    w = pair_weights(x, classes)
    proto = ir.to_proto(coupling(classes, len(x)))
    found = [
        run_coupling(gradient_graph(proto, wrt="x", engine=e), "x_grad", x=x, w=w)[0]
        for e in ("portable", "ort-training")
    ]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(n_class=3, return_X_y=True)
    return (x[:120] / 16).astype(np.float32), y[:120]


@pytest.fixture(scope="module")
def fitted_machine(digits):
    return SVC(probability=True, random_state=0).fit(*digits)


@pytest.fixture(scope="module", params=available_engines())
def trained_machine(request, fitted_machine, digits):
    estimator = OrtGradientClassifier(fitted_machine, engine=request.param, max_iter=2, random_state=0)
    return make_pipeline(FunctionTransformer(), estimator).fit(*digits)


@pytest.mark.slow
@without_warnings
class TestMachines:
    def test_training_begins_from_the_fitted_machine(self, fitted_machine, digits):
        model = OrtGradientClassifier(fitted_machine, learning_rate_init=0.0, max_iter=1).fit(*digits)
        np.testing.assert_allclose(model.predict_proba(digits[0]), fitted_machine.predict_proba(digits[0]), atol=1e-5)

    def test_both_engines_train_the_same_machine(self, fitted_machine, trained_machine, digits):
        model = OrtGradientClassifier(fitted_machine, engine="portable", max_iter=2, random_state=0).fit(*digits)
        expected = model.predict_proba(digits[0])
        np.testing.assert_allclose(trained_machine.predict_proba(digits[0]), expected, atol=1e-4)
        assert np.abs(expected - fitted_machine.predict_proba(digits[0])).max() > 1e-3

    def test_the_graph_is_small_and_gives_the_same(self, trained_machine, digits):
        model = trained_machine[-1].to_onnx()
        assert len(list(ir.from_proto(model).graph.all_nodes())) < 150
        found = coupling_session(model).run(["probabilities"], {"X": digits[0]})[0]
        np.testing.assert_allclose(found, trained_machine.predict_proba(digits[0]), atol=1e-6)

    def test_pickles_give_the_same(self, trained_machine, digits):
        again = pickle.loads(pickle.dumps(trained_machine))
        np.testing.assert_array_equal(again.predict_proba(digits[0]), trained_machine.predict_proba(digits[0]))

    def test_the_machine_that_is_written_back_gives_the_same(self, trained_machine, digits):
        machine = trained_machine[-1].to_sklearn()
        np.testing.assert_allclose(
            machine.predict_proba(digits[0]), trained_machine.predict_proba(digits[0]), atol=1e-4
        )

    def test_pipelines_convert_without_a_subgraph(self, trained_machine, digits):
        skl2onnx = pytest.importorskip("skl2onnx")
        model = skl2onnx.to_onnx(trained_machine, digits[0][:1], target_opset=18, options={"zipmap": False})
        assert not list(ir.from_proto(model).graph.subgraphs())
        found = coupling_session(model).run(["probabilities"], {"X": digits[0]})[0]
        np.testing.assert_allclose(found, trained_machine.predict_proba(digits[0]), atol=1e-5)
