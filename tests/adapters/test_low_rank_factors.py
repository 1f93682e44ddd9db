"""Low-rank factors beside matrices: their gradients, and the graph with and without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._model.weights import merged
from onnxtrain_sklearn.adapters import matrices_of, with_low_rank, without_low_rank
from tests.helpers.environment import each_engine
from tests.helpers.sessions import session

# A body and the shapes of its weights; X has the shape of "X".
FORMS = {
    "MatMul, weight on the right": ("scores = MatMul(X, W)", {"X": (3, 4), "W": (4, 5)}),
    "MatMul of sequences": ("scores = MatMul(X, W)", {"X": (2, 3, 4), "W": (4, 5)}),
    "MatMul, weight on the left": ("scores = MatMul(W, X)", {"X": (2, 4, 3), "W": (5, 4)}),
    "MatMul by a transpose": (
        "V = Transpose <perm = [1, 0]>(W)\n scores = MatMul(X, V)",
        {"X": (2, 3, 4), "W": (5, 4)},
    ),
    "MatMul by a transpose on the left": (
        "U = Identity(W)\n V = Transpose(U)\n scores = MatMul(V, X)",
        {"X": (2, 4, 3), "W": (4, 5)},
    ),
    "Gemm": ("scores = Gemm <alpha = 0.7>(X, W, b)", {"X": (3, 4), "W": (4, 5), "b": (5,)}),
    "Gemm, transB": ("scores = Gemm <transB = 1, beta = 0.5>(X, W, b)", {"X": (3, 4), "W": (5, 4), "b": (5,)}),
    "Gemm, transA": ("V = Transpose(X)\n scores = Gemm <transA = 1>(V, W)", {"X": (3, 4), "W": (4, 5)}),
    "Gemm, weight on the left": ("V = Gemm(W, X)\n scores = Transpose(V)", {"X": (3, 4), "W": (5, 3)}),
    "Gemm, transposed weight on the left": (
        "scores = Gemm <transA = 1, transB = 1, alpha = 2.0>(W, X)",
        {"X": (3, 4), "W": (4, 3)},
    ),
    "Conv": (
        "scores = Conv <strides = [2, 1], pads = [1, 0, 0, 1], dilations = [1, 2]>(X, W, b)",
        {"X": (2, 3, 6, 5), "W": (4, 3, 2, 2), "b": (4,)},
    ),
    "Conv of series": ("scores = Conv <kernel_shape = [3]>(X, W)", {"X": (2, 3, 6), "W": (4, 3, 3)}),
    "Conv in groups": ("scores = Conv <group = 2>(X, W)", {"X": (2, 4, 5, 5), "W": (6, 2, 3, 3)}),
    "twice, in both directions": (
        "U = Gemm(X, W)\n V = Tanh(U)\n scores = Gemm <transB = 1>(V, W)",
        {"X": (3, 4), "W": (4, 5)},
    ),
    "a product with itself": ("V = MatMul(W, W)\n scores = MatMul(X, V)", {"X": (3, 4), "W": (4, 4)}),
    "two matrices": ("U = MatMul(W, b)\n scores = MatMul(X, U)", {"X": (3, 4), "W": (4, 5), "b": (5, 2)}),
    "a table, looked up": (
        "U = Gemm(X, W)\n i = Constant <value = int64[3] {0, 2, 2}>()\n V = Gather(W, i)\n scores = Add(U, V)",
        {"X": (3, 4), "W": (4, 5)},
    ),
}
rng = np.random.default_rng(0)


def written(form, dtype="float"):
    """Return the graph of a form, its weights random, in a type."""
    body, shapes = FORMS[form]
    weights = [name for name in shapes if name != "X"]
    declared = ", ".join(f"{dtype}{list(shapes[name])} {name}" for name in ["X", *weights])
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({declared}) => ({dtype} scores) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    values = {n: np.random.default_rng(i).normal(size=shapes[n]) for i, n in enumerate(weights)}
    kind = np.float32 if dtype == "float" else np.float64
    for name, array in values.items():
        given = next(v for v in model.graph.input if v.name == name)
        model.graph.input.remove(given)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(kind), name))
    return model


def with_random_factors(form, rank=2, scale=1.5):
    source = trainable_model(load(written(form)))
    changed = with_low_rank(source, matrices_of(source), rank, scale, np.random.RandomState(0))
    weights = changed.weights()
    names = [name for one in changed.low_rank for name in one.factors]
    for name in names:
        weights[name] = np.random.default_rng(len(name)).normal(size=weights[name].shape).astype(np.float32)
    return changed.with_weights(weights), names


def value_in_double(form, changed, weights, X, weighting):
    """Return the weighted sum of the scores of the graph as it was given, with merged weights, in float64."""
    model, dense = written(form, "double"), merged(weights, changed.low_rank)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(dense[tensor.name], tensor.name))
    (scores,) = onnx.reference.ReferenceEvaluator(model).run(None, {"X": X})
    return float((scores * weighting).sum())


def differences(function, array, step=1e-5):
    """Return the gradient of a function that reads ``array``, by central differences."""
    result = np.zeros_like(array)
    for place in np.ndindex(array.shape):
        kept = array[place]
        ends = []
        for sign in (1, -1):
            array[place] = kept + sign * step
            ends.append(function())
        array[place] = kept
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


def with_rows(proto, rows):
    """Fix the batch axis."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = rows
    return proto


@each_engine
@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_the_factors(form, engine):
    changed, names = with_random_factors(form)
    X = rng.normal(size=FORMS[form][1]["X"])
    proto = with_rows(to_proto(changed.model), len(X))
    scores = session(proto).run(["scores"], {"X": X.astype(np.float32)})[0]
    weighting = rng.normal(size=scores.shape).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weighting, "weighting"))
    proto.graph.node.append(onnx.helper.make_node("Mul", ["scores", "weighting"], ["weighted"], name="weighted"))
    proto.graph.node.append(onnx.helper.make_node("ReduceSum", ["weighted"], ["value"], name="value", keepdims=0))
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("value", onnx.TensorProto.FLOAT, []))
    graph = gradient_graph(proto, wrt=names, engine=engine)
    found = session(graph).run([f"{name}_grad" for name in names], {"X": X.astype(np.float32)})
    weights = {name: array.astype(np.float64) for name, array in changed.weights().items()}
    for name, gradient in zip(names, found, strict=True):
        expected = differences(lambda: value_in_double(form, changed, weights, X, weighting), weights[name])
        assert np.abs(expected).max() > 0.1
        assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_the_merged_matrices(form):
    changed, _ = with_random_factors(form)
    X = rng.normal(size=FORMS[form][1]["X"])
    scores = session(to_proto(changed.model)).run(["scores"], {"X": X.astype(np.float32)})[0]
    plain = without_low_rank(changed).with_weights(merged(changed.weights(), changed.low_rank))
    same = session(to_proto(plain.model)).run(["scores"], {"X": X.astype(np.float32)})[0]
    assert_allclose(scores, same, rtol=1e-4, atol=1e-4)
    given = session(written(form)).run(["scores"], {"X": X.astype(np.float32)})[0]
    assert np.abs(scores - given).max() > 0.1


@pytest.mark.parametrize("form", FORMS)
def test_the_start_is_the_given_graph_to_the_bit(form):
    source = trainable_model(load(written(form)))
    changed = with_low_rank(source, matrices_of(source), 3, 8 / 3, np.random.RandomState(0))
    X = rng.normal(size=FORMS[form][1]["X"]).astype(np.float32)
    begun, given = (session(to_proto(one.model)).run(["scores"], {"X": X})[0] for one in (changed, source))
    assert_array_equal(begun, given)
    dense = merged(changed.weights(), changed.low_rank)
    assert dense.keys() == source.weights().keys()
    for name, array in source.weights().items():
        assert_array_equal(dense[name], array)


def structure_of(proto):
    nodes = [(n.op_type, list(n.input), list(n.output), sorted(map(str, n.attribute))) for n in proto.graph.node]
    return nodes, [t.name for t in proto.graph.initializer], [v.name for v in proto.graph.output]


@pytest.mark.parametrize("form", FORMS)
def test_without_factors_the_graph_is_the_given_one(form):
    source = trainable_model(load(written(form)))
    changed = with_low_rank(source, matrices_of(source), 2, 1.0, np.random.RandomState(0))
    assert len(changed.model.graph) > len(source.model.graph)
    back = without_low_rank(changed)
    assert structure_of(to_proto(back.model)) == structure_of(to_proto(source.model))
    assert replace(back, model=source.model) == source


def test_first_factors_are_drawn_as_peft_does():
    bounds = {"Gemm, transB": 4, "MatMul, weight on the right": 4, "Conv": 12, "Conv in groups": 18}
    for form, inputs in bounds.items():
        source = trainable_model(load(written(form)))
        changed = with_low_rank(source, ["W"], 200, 1.0, np.random.RandomState(0))
        first, last = (changed.weights()[name] for name in ("W.lora_A", "W.lora_B"))
        assert not last.any()
        assert 0.98 / inputs**0.5 < np.abs(first).max() <= 1 / inputs**0.5
        assert_allclose(first.std(), 1 / (3 * inputs) ** 0.5, rtol=0.05)


def test_matrices_alone_are_changed():
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[N, 4] X) => (float[N, 5] scores)
    <float[4, 4] W = {}, float[3, 4, 4] heads = {}, float[4] s = {}, float[6, 4] table = {}, float[4, 5] V = {}>
    { a = MatMul(X, W)  b = Mul(a, s)  i = ArgMax <axis = 1, keepdims = 0>(b)  e = Gather(table, i)
      c = Add(b, e)  d = MatMul(c, heads)  f = ReduceSum <keepdims = 0>(d, axes)  scores = MatMul(f, V) }"""
    sizes = {"W": (4, 4), "heads": (3, 4, 4), "s": (4,), "table": (6, 4), "V": (4, 5)}
    for name, shape in sizes.items():
        numbers = ", ".join(f"{x:.3f}" for x in np.random.default_rng(1).normal(size=shape).ravel())
        text = text.replace(f"{name} = {{}}", f"{name} = {{{numbers}}}")
    model = onnx.parser.parse_model(text.replace("float[4, 4] W", "int64[1] axes = {0}, float[4, 4] W"))
    assert matrices_of(trainable_model(load(model))) == ["W", "V"]
