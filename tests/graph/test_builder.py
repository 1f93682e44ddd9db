"""The emitter of nodes: one form of call for every opset, names of its own, constants shared and of the right type."""

from __future__ import annotations

import numpy as np
import onnx.checker
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import onnxruntime
import pytest

from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import LIMITS

OPSETS = range(11, LIMITS.opset + 1)
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def builder(opset=18, dtype=ir.DataType.FLOAT, **options):
    x = ir.val("X", dtype, ("N", 3))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": opset}, name="g")
    return GraphBuilder(graph, **options), x


def evaluate_built(op, value, x=X):
    """The value that ``value`` takes; the graph must be valid."""
    op.shape(value)
    op.graph.outputs.append(value)
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(ir.Model(op.graph, ir_version=8)), strict_mode=True)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": x})[0]


FORMS = {
    "ReduceSum": (lambda op, x: op.ReduceSum(x, axes=[1], keepdims=False), lambda x: x.sum(axis=1)),
    "ReduceSum of all": (lambda op, x: op.ReduceSum(x, keepdims=False), lambda x: x.sum()),
    "ReduceMean": (lambda op, x: op.ReduceMean(x, axes=[0], keepdims=True), lambda x: x.mean(axis=0, keepdims=True)),
    "ReduceMax": (lambda op, x: op.ReduceMax(x, axes=[1], keepdims=True), lambda x: x.max(axis=1, keepdims=True)),
    "Unsqueeze": (lambda op, x: op.Unsqueeze(x, axes=[1]), lambda x: x[:, None]),
    "Squeeze": (lambda op, x: op.Squeeze(op.Unsqueeze(x, axes=[2]), axes=[2]), lambda x: x),
    "Clip": (lambda op, x: op.Clip(x, min=-0.5, max=0.5), lambda x: x.clip(-0.5, 0.5)),
    "Clip above": (lambda op, x: op.Clip(x, max=0.5), lambda x: x.clip(None, 0.5)),
    "Clip without min": (lambda op, x: op.Clip(x, min=None, max=0.5), lambda x: x.clip(None, 0.5)),
    "Softmax": (lambda op, x: op.Softmax(x, axis=-1), lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)),
    "Reshape": (lambda op, x: op.Reshape(x, [3, -1]), lambda x: x.reshape(3, -1)),
    "Reshape to a scalar": (lambda op, x: op.Reshape(op.ReduceSum(x), []), lambda x: x.sum()),
    "Gemm": (lambda op, x: op.Gemm(x, np.eye(3, dtype=np.float32), None, alpha=2.0), lambda x: 2 * x),
    "Cast": (lambda op, x: op.Cast(op.Greater(x, 0.0), to=ir.DataType.FLOAT), lambda x: (x > 0).astype(np.float32)),
    "Where": (lambda op, x: op.Where(op.Greater(x, 0.0), x, 0.0), lambda x: np.maximum(x, 0)),
    "Where of a constant": (lambda op, x: op.Where(np.array(True), x, 0.0), lambda x: x),
    "list of numbers": (lambda op, x: op.Mul(x, [1.0, 2.0, 3.0]), lambda x: x * [1, 2, 3]),
    "list of integers": (lambda op, x: op.Mul(x, [1, 2, 3]), lambda x: x * [1, 2, 3]),
    "integer": (lambda op, x: op.Mul(2, x), lambda x: 2 * x),
    "integer of int64": (lambda op, x: op.Cast(op.Add(op.Shape(x), 1), to=1), lambda x: [5, 4]),
}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("form", FORMS)
def test_one_form_for_every_opset(form, opset):
    emit, reference = FORMS[form]
    op, x = builder(opset)
    np.testing.assert_allclose(evaluate_built(op, emit(op, x)), reference(X), rtol=1e-6, atol=1e-6)


def test_numbers_take_the_type_of_the_builder():
    op, x = builder(dtype=ir.DataType.DOUBLE)
    assert op.value(0.5).dtype is ir.DataType.FLOAT
    double = GraphBuilder(op.graph, dtype=ir.DataType.DOUBLE)
    result = evaluate_built(double, double.Add(double.Mul(x, 0.1), 1), X.astype(np.float64))
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, X.astype(np.float64) * 0.1 + 1)


def test_arrays_keep_their_type():
    op, _ = builder()
    for array in (np.float64(0.5), np.ones(2, np.int32), np.array([True]), np.float16(1)):
        assert op.value(array).dtype == ir.DataType.from_numpy(array.dtype)
    assert op.value(np.array(["a", "bc"])).dtype is ir.DataType.STRING


def test_equal_constants_are_shared():
    op, x = builder()
    values = [op.value(1.0), op.value(np.float32(1)), op.constant(np.array(1, np.float32))]
    assert values[0] is values[1] is values[2]
    others = [op.value(1), op.value([1.0]), op.value(np.float64(1)), op.value(-1.0), op.value(True)]
    assert len({id(value) for value in [values[0], *others]}) == 6
    op.Add(op.Mul(x, 2.0), 2.0)
    assert sum(float(v.const_value.numpy().ravel()[0]) == 2 for v in op.graph.initializers.values()) == 1


def test_shared_nodes_of_values_that_were_let_go_are_not_reused():
    op, x = builder(shared=True)
    results = []
    for i in range(50):  # CPython soon gives a new value the identity of a freed one
        value = ir.Value(name=f"temporary {i}", type=x.type, shape=x.shape)
        results.append(op.Sin(value))
        results[-1].producer().replace_input_with(0, x)
        del value
    assert len({id(result) for result in results}) == 50
    assert op.Sin(x) is op.Sin(x)


def test_zero_and_minus_zero_are_two_constants():
    op, _ = builder()
    assert op.value(0.0) is not op.value(-0.0)


def test_equal_labels_are_shared_by_content():
    op, _ = builder()
    first = op.constant(np.array(["yes", "no"], dtype=object))
    assert first is op.constant(np.array(["yes", "no"]))
    assert first is not op.constant(np.array(["yes", "na"], dtype=object))
    assert [s.decode() for s in first.const_value.numpy()] == ["yes", "no"]


@pytest.mark.parametrize("nodes", [False, True])
def test_constants_as_nodes_or_initializers(nodes):
    op, x = builder(constant_nodes=nodes)
    result = op.Add(op.Mul(x, 2.0), 2.0)
    kinds = [node.op_type for node in op.graph]
    assert kinds == (["Constant", "Mul", "Add"] if nodes else ["Mul", "Add"])
    assert len(op.graph.initializers) == (0 if nodes else 1)
    np.testing.assert_array_equal(evaluate_built(op, result), X * 2 + 2)


def test_parameters_keep_their_names_and_are_never_shared():
    op, _ = builder()
    a, b = (op.parameter(name, np.zeros(2, np.float32)) for name in ("layers.0.bias", "layers.1.bias"))
    assert a is not b
    assert list(op.graph.initializers) == ["layers.0.bias", "layers.1.bias"]


def test_names_are_new_in_the_graph_and_its_subgraphs():
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 3] X, bool c) => (float[N, 3] "train/Add") <float "train/constant" = {1}> {
            "train/Mul" = Mul(X, "train/constant")
            "train/Add" = If (c) <then_branch = t () => (float[N, 3] a) { "train/Sub" = Neg(X) a = Neg("train/Sub") },
                                  else_branch = e () => (float[N, 3] b) { b = Relu("train/Mul") }> }""")
    graph = ir.from_proto(proto).graph
    for i, node in enumerate(graph.all_nodes()):
        node.name = f"train/Div_{i}" if i else "train/Div"
    op = GraphBuilder(graph)
    emitted = [emit(graph.inputs[0], 3.0) for emit in (op.Mul, op.Add, op.Sub, op.Div)]
    names = [v.name for v in emitted] + [v.name for v in emitted[0].producer().inputs[1:]]
    assert names == ["train/Mul_1", "train/Add_1", "train/Sub_1", "train/Div_5", "train/constant_1"]
    assert len({node.name for node in graph.all_nodes()}) == len(list(graph.all_nodes()))


def test_every_node_and_output_has_a_name():
    op, x = builder(prefix="own")
    parts = op.emit("Split", x, [1, 2], axis=1, outputs=2)
    assert [part.name for part in parts] == ["own/Split:0", "own/Split:1"]
    assert parts[0].producer().name == "own/Split"
    assert op.Relu(x).name == op.graph[-1].name == "own/Relu"


def test_operators_of_other_domains():
    op, x = builder()
    op.emit("AdamOptimizer", 0.1, 1, x, x, domain="com.microsoft", outputs=3, alpha=0.5)
    node = op.graph[-1]
    assert (node.domain, node.attributes["alpha"].value) == ("com.microsoft", 0.5)
    assert [v.dtype for v in node.inputs[:2]] == [ir.DataType.FLOAT, ir.DataType.INT64]
    assert op.graph.opset_imports == {"": 18, "com.microsoft": 1}


def test_unknown_operators_and_attributes():
    op, x = builder(11)
    with pytest.raises(ModelError, match="no operator 'Relux' in opset 11, that of this graph"):
        op.Relux(x)
    with pytest.raises(ModelError, match="no operator 'HardSwish' in opset 11"):
        op.HardSwish(x)
    with pytest.raises(ModelError, match="LeakyRelu of opset 11 has no attribute or input 'slope'"):
        op.LeakyRelu(x, slope=0.1)
    with pytest.raises(AttributeError):
        op.relu(x)


def test_shapes_are_inferred_on_demand():
    op, x = builder()
    assert op.shape(op.MatMul(x, np.zeros((3, 2), np.float32))) == ("N", 2)
    assert op.shape(op.ReduceSum(x, keepdims=False)) == ()
    assert op.shape(op.emit("Mystery", x, domain="own")[0]) is None


def test_different_attributes_are_not_merged():
    op = GraphBuilder(ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="g"), prefix="g", shared=True)
    long = np.zeros(5000, np.float32)
    other = long.copy()
    other[2500] = 1.0
    arrays = [np.zeros(4, np.float32), np.zeros((2, 2), np.float32), long, other]
    values = [op.Constant(value=ir.tensor(array)) for array in arrays]
    assert len(set(map(id, values))) == 4
    assert op.Constant(value=ir.tensor(arrays[1])) is values[1]
