"""Operators that onnxruntime's optimizers write: in ONNX's own they compute the same, and have the right gradient.

Values are compared with onnxruntime's kernel of the fused operator, or with numpy where the installed one has none. The
gradients are compared with central differences in float64 of what the operator was put into.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import erf

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import helper, numpy_helper

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._gradient.engine import available_engines
from onnxtrain_sklearn._graph.contrib.lowering import FIRST_OPSETS, FORMS, lower
from onnxtrain_sklearn._graph.precision import in_dtype
from onnxtrain_sklearn._graph.protobuf import load, to_proto
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError

CONTRIB = "com.microsoft"
NO_KERNEL = "NOT_IMPLEMENTED|is not a registered function/op|Could not find an implementation|No Op registered"


@dataclass(frozen=True)
class Case:
    """A node: its inputs in their order (None: left out), how many outputs it has, and what they are in numpy.

    ``refused`` says why it has no form; ``opsets`` are those that it is tried in. ``broken`` begins the versions of
    onnxruntime whose kernel is for other devices (packed keys), crashes (Attention without its optional bias), passes
    over an input (the bias of SkipSimplifiedLayerNormalization) or reads beyond it (an attention_bias for one row).
    """

    operator: str
    inputs: tuple[np.ndarray | None, ...]
    attributes: dict = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    reference: object = None
    refused: str = ""
    opsets: tuple[int, ...] = (13, 18)
    broken: str = ""

    @property
    def domain(self):
        return CONTRIB if self.operator.startswith(CONTRIB) else ""


CASES: list[Case] = []


def draw(value):
    if isinstance(value, tuple):
        return np.random.default_rng(len(CASES) + sum(value)).normal(size=value).astype(np.float32)
    return value


def case(
    operator, *inputs, plain=False, outputs=(0,), reference=None, refused="", opsets=(13, 18), broken="", **attributes
):
    """Add a case; a tuple stands for random numbers of that shape."""
    name = operator if plain else f"{CONTRIB}.{operator}"
    CASES.append(Case(name, tuple(map(draw, inputs)), attributes, outputs, reference, refused, opsets, broken))


def ints(*values, kind=np.int32):
    return np.array(values, kind)


def exact(x):
    return 0.5 * x * (1 + np.vectorize(erf)(x * np.sqrt(0.5)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def tanh_form(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


X = (2, 3, 4)
case("Gelu", X, opsets=(11, 13, 18, 20))
case("BiasGelu", X, (4,), opsets=(13, 20))
case("FastGelu", X)
case("FastGelu", X, (4,))
case("QuickGelu", X)
case("QuickGelu", X, alpha=1.0)
case("BiasAdd", X, (4,), X, reference=lambda x, b, s: x + b + s)
case("BiasSplitGelu", X, (4,), reference=lambda x, b: (x + b)[..., :2] * exact((x + b)[..., 2:]))
case("BiasSoftmax", X, (2, 1, 4), axis=2, is_inner_broadcast=1, reference=lambda x, b: softmax(x + b))
case("BiasSoftmax", X, (3, 4), axis=-1, is_inner_broadcast=0, reference=lambda x, b: softmax(x + b))
case("BiasSoftmax", X, (4,), axis=1, is_inner_broadcast=1, refused="its axis is not the last one")
case("BiasDropout", X, (4,), X, np.array(0.5, np.float32), np.array(False), reference=lambda x, b, s, *_: x + b + s)
case("BiasDropout", X, (4,), seed=3, reference=lambda x, b: x + b)

case("FusedMatMul", (2, 3, 4), (2, 4, 5), alpha=0.3)
case("FusedMatMul", (2, 4, 3), (2, 5, 4), transA=1, transB=1)
case("FusedMatMul", (4, 3), (4, 5), transA=1)
case("FusedMatMul", (3, 2, 4), (2, 4, 5), transBatchA=1)
case("FusedMatMul", (4, 2, 3), (2, 4, 5), transA=1, transBatchA=1)
case("FusedMatMul", (2, 3, 4), (4, 2, 5), transBatchB=1)
case("FusedMatMul", (2, 3, 4), (5, 2, 4), transB=1, transBatchB=1)
case("TransposeMatMul", (2, 4, 3), (2, 5, 4), transA=1, transB=1, alpha=0.5)
for name, settings in {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "LeakyRelu": {"activation_alpha": 0.2},
    "Elu": {"activation_alpha": 0.7},
    "ThresholdedRelu": {"activation_alpha": 0.3},
    "HardSigmoid": {"activation_alpha": 0.4, "activation_beta": 0.3},
    "Selu": {"activation_alpha": 1.2, "activation_gamma": 0.7},
}.items():
    case("FusedGemm", (2, 3), (3, 4), (4,), activation=name, **settings)
case("FusedGemm", (3, 2), (4, 3), (2, 1), activation="Relu", alpha=0.5, beta=0.3, transA=1, transB=1)
case("FusedGemm", (2, 3), (3, 4), activation="Tanh")
case("FusedGemm", (2, 3), (3, 4), (4,), activation="Celu", refused="its activation 'Celu' is not known")
case("FusedGemm", (2, 3), (3, 4), (4,), activation="LeakyRelu", refused="activation_alpha is missing")
case("GemmFastGelu", (2, 3), (3, 4), (4,), reference=lambda x, w, b: tanh_form(x @ w + b))
case("GemmFastGelu", (2, 3), (3, 4), reference=lambda x, w: tanh_form(x @ w))

IMAGE, KERNEL = (2, 2, 5, 5), (4, 2, 3, 3)
case("FusedConv", IMAGE, KERNEL, (4,), activation="Relu")
case("FusedConv", IMAGE, KERNEL, activation="Tanh", pads=[1, 1, 1, 1], strides=[2, 2])
case("FusedConv", IMAGE, KERNEL, (4,), activation="Sigmoid", dilations=[2, 2], kernel_shape=[3, 3])
case("FusedConv", IMAGE, (4, 1, 3, 3), (4,), activation="LeakyRelu", activation_params=[0.2], group=2)
case("FusedConv", IMAGE, KERNEL, (4,), activation="HardSigmoid", activation_params=[0.3, 0.4], auto_pad="SAME_UPPER")
case("FusedConv", IMAGE, KERNEL, (4,), activation="Clip", activation_params=[-0.5, 0.5])
case("FusedConv", IMAGE, KERNEL, (4,), (2, 4, 3, 3), activation="Relu")
case("FusedConv", IMAGE, KERNEL, (4,), (2, 4, 3, 3))
case("FusedConv", IMAGE, KERNEL, (4,), activation="HardSwish", refused="its activation 'HardSwish' with 0 parameters")

case("LayerNormalization", X, (4,), (4,), plain=True, opsets=(11, 13))
case("LayerNormalization", X, (4,), plain=True, epsilon=0.1, opsets=(13,))
case("LayerNormalization", X, (3, 4), (3, 4), plain=True, axis=1, outputs=(0, 1, 2), opsets=(13,))
case("LayerNormalization", X, (4,), (4,), plain=True, axis=2, stash_type=1, opsets=(13,))
case("SimplifiedLayerNormalization", X, (4,), plain=True, epsilon=0.1)
case("SimplifiedLayerNormalization", X, (4,), plain=True, axis=-1, stash_type=1)
case("SimplifiedLayerNormalization", X, (3, 4), plain=True, axis=1, outputs=(0, 1))
case("SkipLayerNormalization", X, X, (4,))
case("SkipLayerNormalization", X, X, (4,), (4,), (4,), epsilon=0.1, outputs=(0, 3))
case("SkipLayerNormalization", X, (1, 3, 4), (4,), (4,))
case("SkipLayerNormalization", X, X, (4,), outputs=(0, 1), refused="its outputs mean and inv_std_var are not known")
case("SkipSimplifiedLayerNormalization", X, X, (4,))
case(
    "SkipSimplifiedLayerNormalization", X, X, (4,), (4,), epsilon=0.1, outputs=(0, 3), broken="1.19",
    reference=lambda x, s, g, b: [root_mean_square(x + s + b, 0.1) * g, x + s + b],
)  # fmt: skip
IDS, SEGMENTS = ints([1, 2, 2], [0, 1, 3]), ints([0, 0, 1], [0, 1, 1])
MASK, PLACED = ints([1, 1, 0], [1, 1, 1]), ints([1, 0, 3], [2, 2, 5])
TABLES = ((5, 4), (6, 4))
case("EmbedLayerNormalization", IDS, None, *TABLES, None, (4,), (4,), epsilon=0.1, outputs=(0, 1))
case("EmbedLayerNormalization", IDS, SEGMENTS, *TABLES, (2, 4), (4,), (4,), MASK, outputs=(0, 1))
case("EmbedLayerNormalization", IDS, SEGMENTS, *TABLES, (2, 4), (4,), (4,), MASK, outputs=(0, 1, 2), mask_index_type=1)
case("EmbedLayerNormalization", IDS, SEGMENTS, *TABLES, (2, 4), (4,), (4,), None, PLACED, outputs=(0, 1))

ROWS, QKV = (2, 3, 8), (8, 24)
CLEAR = ints([1, 1, 0], [1, 0, 1])
case("Attention", ROWS, QKV, (24,), num_heads=2)
case(
    "Attention",
    ROWS,
    QKV,
    num_heads=4,
    scale=0.7,
    broken="1",
    reference=lambda x, w: attended(*np.split(x @ w, 3, -1), 4, 0.7),
)
case("Attention", ROWS, QKV, (24,), CLEAR, num_heads=2)
case("Attention", ROWS, QKV, (24,), CLEAR, num_heads=2, mask_filter_value=-1.5)
case("Attention", ROWS, QKV, (24,), num_heads=2, unidirectional=1)
case("Attention", ROWS, QKV, (24,), CLEAR, num_heads=2, unidirectional=1)
case("Attention", ROWS, QKV, (24,), np.stack([MASK, CLEAR, MASK], 1), num_heads=2)
case("Attention", ROWS, QKV, (24,), ints(2, 3), num_heads=2)
case("Attention", ROWS, QKV, (24,), ints(2, 3, 1, 0), num_heads=2)
case("Attention", ROWS, (8, 20), (20,), num_heads=2, qkv_hidden_sizes=[8, 8, 4])
case("Attention", ROWS, QKV, (24,), None, None, (2, 2, 3, 3), num_heads=2)
case("Attention", ROWS, QKV, (24,), num_heads=2, do_rotary=0, past_present_share_buffer=0)
case("Attention", ROWS, QKV, (24,), num_heads=2, do_rotary=1, refused="attribute do_rotary = 1")
case("Attention", ROWS, QKV, (24,), None, (2, 2, 2, 2, 4), num_heads=2, refused="it has a past")
OTHERS = (2, 4, 8)
case("MultiHeadAttention", ROWS, OTHERS, OTHERS, num_heads=2)
case("MultiHeadAttention", ROWS, OTHERS, OTHERS, (24,), num_heads=4, scale=0.7, outputs=(0, 1, 2))
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, CLEAR, num_heads=2, mask_filter_value=-2.0)
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, np.stack([MASK, CLEAR, MASK], 1), num_heads=2)
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, ints(2, 3), num_heads=2)
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, None, (2, 2, 3, 3), num_heads=2, unidirectional=1)
case(
    "MultiHeadAttention", ROWS, ROWS, ROWS, None, None, (1, 2, 3, 3), num_heads=2, broken="1.19",
    reference=lambda q, k, v, _, __, bias: attended(q, k, v, 2, 0.5, bias),
)  # fmt: skip
case("MultiHeadAttention", ROWS, ROWS, (2, 3, 4), num_heads=2)
case("MultiHeadAttention", ROWS, (2, 2, 5, 4), (2, 2, 5, 4), num_heads=2)
PAST = ((2, 2, 2, 4), (2, 2, 2, 4))
case("MultiHeadAttention", ROWS, ROWS, ROWS, (24,), None, None, *PAST, num_heads=2, outputs=(0, 1, 2))
case("MultiHeadAttention", ROWS, ROWS, ROWS, None, None, None, *PAST, num_heads=2, unidirectional=1, outputs=(0, 1, 2))
case(
    "MultiHeadAttention", (2, 3, 2, 3, 4), num_heads=2, broken="1",
    reference=lambda x: attended(*(x[..., i, :].reshape(2, 3, 8) for i in range(3)), 2, 0.5),
)  # fmt: skip
case(
    "MultiHeadAttention", ROWS, (2, 5, 2, 2, 4), num_heads=2, broken="1",
    reference=lambda q, x: attended(q, *(x[..., i, :].reshape(2, 5, 8) for i in range(2)), 2, 0.5),
)  # fmt: skip
case("MultiHeadAttention", (2, 3, 2, 3, 4), None, None, (24,), num_heads=2, refused="a bias beside packed keys")
case("MultiHeadAttention", (2, 3, 24), num_heads=2, refused="packed into one axis with others")
ANGLES = ((6, 2), (6, 2))
PLACES = ints([0, 1, 2], [3, 4, 5], kind=np.int64)
case("RotaryEmbedding", ROWS, PLACES, *ANGLES)
case("RotaryEmbedding", ROWS, ints(2, kind=np.int64), *ANGLES)
case("RotaryEmbedding", (2, 2, 3, 4), PLACES, *ANGLES, interleaved=1)
case("RotaryEmbedding", ROWS, PLACES, *ANGLES, num_heads=1, rotary_embedding_dim=4)
case("RotaryEmbedding", ROWS, PLACES, *ANGLES, scale=2.0, refused="attribute scale = 2.0")
case("RotaryEmbedding", ROWS, PLACES, *ANGLES, is_packed_batching=1, refused="attribute is_packed_batching = 1")

PACKED = np.zeros((4, 1, 8), np.uint8)
case("MatMulNBits", (2, 16), PACKED, (4,), K=16, N=4, bits=4, block_size=16, refused="its numbers are quantized")
case("Inverse", (2, 3, 3), refused="no gradient for it")


def model_of(one, opset, *, dynamic=False):
    """Return a model of the node; its float outputs, weighted, sum up to the first output."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(one.inputs)]
    outputs = [f"y{i}" if i in one.outputs else "" for i in range(max(one.outputs) + 1)]
    node = helper.make_node(
        one.operator.rpartition(".")[2], names, outputs, name="node", domain=one.domain, **one.attributes
    )
    given = []
    for i, x in ((i, x) for i, x in enumerate(one.inputs) if x is not None):
        shape = ["N", *x.shape[1:]] if dynamic and rows(one, i) else x.shape
        given.append(helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype), shape))
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in one.outputs]
    for value in results:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32 if counts(one, value.name) else onnx.TensorProto.FLOAT
    graph = helper.make_graph([node], "net", given, results)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def rows(one, index):
    """Whether the first axis of an input is that of the rows."""
    x, first = one.inputs[index], one.inputs[0]
    weights = {"Gemm": (), "FusedGemm": (), "FusedMatMul": (), "TransposeMatMul": (), "GemmFastGelu": ()}
    if one.operator.rpartition(".")[2] in weights or x.ndim < 2 or x.shape[0] != first.shape[0]:
        return index == 0 and one.operator.rpartition(".")[2] == "GemmFastGelu"
    return "Conv" not in one.operator or index in (0, 3)


def counts(one, name):
    return one.operator.endswith("EmbedLayerNormalization") and name == "y1"


def feeds(one, kind=np.float32):
    known = {f"x{i}": x for i, x in enumerate(one.inputs) if x is not None}
    return {name: x.astype(kind) if x.dtype == np.float32 else x for name, x in known.items()}


def session_of(proto):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto, given, names=None):
    return session_of(proto).run(names, given)


def root_mean_square(x, epsilon):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)


def attended(q, k, v, heads, scale, bias=0.0):
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for x in (q, k, v))
    y = softmax(scale * q @ k.swapaxes(2, 3) + bias) @ v
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def expected(one, proto):
    """Return what onnxruntime's kernel computes, or numpy where there is none."""
    if one.broken and onnxruntime.__version__.startswith(one.broken):
        found = one.reference(*one.inputs)
        return found if isinstance(found, list) else [found]
    try:
        return run(proto, feeds(one))
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)) or one.reference is None:
            raise
        return [one.reference(*one.inputs)]


def lowered(one, proto):
    result = lower(ir.from_proto(proto))
    left = [node for node in result.graph.all_nodes() if node.domain or node.op_type in FIRST_OPSETS]
    assert not [node for node in left if node.domain == CONTRIB]
    return to_proto(result)


def variants(*, right, newest=False):
    for index, one in enumerate(CASES):
        if bool(one.refused) != right:
            for opset in one.opsets[-1:] if newest else one.opsets:
                yield pytest.param(one, opset, id=f"{one.operator.rpartition('.')[2]}-{index}-opset{opset}")


def covered(one, opset, engine=None):
    """Return the operator with its attributes, and with each input that is there."""
    given = [i for i, x in enumerate(one.inputs) if x is not None]
    return {(one.operator, engine, subject) for subject in (*one.attributes, *given)}


@pytest.mark.thinned(by=covered)
@pytest.mark.parametrize(("one", "opset"), variants(right=True))
def test_values_are_those_of_the_kernel(one, opset):
    """The number of rows is fixed in the oldest opset, and not in the others."""
    proto = model_of(one, opset, dynamic=opset != one.opsets[0])
    for found, wanted in zip(run(lowered(one, proto), feeds(one)), expected(one, proto), strict=True):
        assert found.shape == wanted.shape
        assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def with_loss(one, opset, dynamic):
    """Return the model with a weighted sum of its float outputs as the output that is differentiated."""
    proto = model_of(one, opset, dynamic=dynamic)
    values = run(lowered(one, proto), feeds(one))
    totals = []
    for value, found in zip(list(proto.graph.output), values, strict=True):
        if found.dtype != np.float32:
            continue
        weighting = np.random.default_rng(7).normal(size=found.shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weighting, f"w_{value.name}"))
        proto.graph.node.append(
            helper.make_node("Mul", [value.name, f"w_{value.name}"], [f"p_{value.name}"], f"mul_{value.name}")
        )
        proto.graph.node.append(
            helper.make_node("ReduceSum", [f"p_{value.name}"], [f"t_{value.name}"], f"sum_{value.name}", keepdims=0)
        )
        totals.append(f"t_{value.name}")
    proto.graph.node.append(helper.make_node("Sum", totals, ["loss"], "total"))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return proto


DIRECTIONS = 4


def differences(proto, one, names):
    """Return random directions by input, and the slopes along them: central differences in float64."""
    double = to_proto(in_dtype(lower(ir.from_proto(proto)), ir.DataType.DOUBLE))
    session = session_of(double)
    given, rng = feeds(one, np.float64), np.random.default_rng(11)
    for name in names * DIRECTIONS:
        direction = rng.normal(size=given[name].shape)
        ends = [session.run(["loss"], {**given, name: given[name] + step * direction})[0] for step in (1e-5, -1e-5)]
        yield name, direction, (ends[0] - ends[1]) / 2e-5


@pytest.mark.proof(operators=lambda one, opset, engine: one.operator.rpartition(".")[2])
@pytest.mark.thinned(by=covered)
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("one", "opset"), variants(right=True, newest=True))
def test_gradients_are_right(one, opset, engine):
    """The engine for training may lack the gradient of what an operator consists of; the portable one may not."""
    names = [name for name, x in feeds(one).items() if x.dtype == np.float32 and x.ndim]
    proto = with_loss(one, opset, dynamic=False)
    try:
        slopes = list(differences(proto, one, names))
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)):
            raise
        pytest.skip(f"no differences in float64: {error}")
    for dynamic in (False, True):
        try:
            graph = gradient_graph(with_loss(one, opset, dynamic), wrt=names, engine=engine)
        except UnsupportedOperatorError:
            if engine == "portable":
                raise
            continue
        found = dict(zip(names, run(graph, feeds(one), [f"{name}_grad" for name in names]), strict=True))
        for name, direction, wanted in slopes:
            scale = max(1.0, np.abs(found[name]).sum())
            assert found[name].shape == direction.shape
            assert_allclose((found[name] * direction).sum(), wanted, rtol=1e-4, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize(("one", "opset"), variants(right=False, newest=True))
@pytest.mark.parametrize("engine", available_engines())
def test_what_has_no_form_is_refused(one, opset, engine):
    proto = model_of(one, opset)
    proto.graph.node.append(helper.make_node("ReduceSum", ["y0"], ["loss"], "sum", keepdims=0))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    for name in [name for name in proto.graph.node[0].output if name != "y0"]:  # a node whose outputs are read
        proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["a", "b", "c"]))
    with pytest.raises(UnsupportedOperatorError, match=re.escape(one.refused)):
        gradient_graph(proto, wrt="x0", of="loss", engine=engine)


def right_cases(operator):
    return [one for one in CASES if one.operator == operator and not one.refused]


@pytest.mark.parametrize("operator", FORMS)
def test_everything_honored_has_a_case(operator):
    """Attributes of every form are set in a case, inputs given and outputs read."""
    form, cases = FORMS[operator], right_cases(operator)
    set_somewhere = {name for one in cases for name in one.attributes}
    assert set(form.values) <= set_somewhere
    given = {i for one in cases for i, x in enumerate(one.inputs) if x is not None}
    unproven = {"com.microsoft.Attention": {4}}  # a past is refused
    assert given == set(range(form.inputs)) - unproven.get(operator, set())
    read = {i for one in cases for i in one.outputs}
    never = {1} if operator.endswith("BiasDropout") else {1, 2} if "Skip" in operator else set()
    assert read == set(range(form.outputs)) - never


NOTHING = {"mask_index_type", "is_inner_broadcast", "kernel_shape", "seed"}
"""Attributes that tell what the inputs tell already, or the numbers that are drawn in training."""


@pytest.mark.parametrize("operator", FORMS)
def test_each_attribute_matters(operator):
    """Without it, some case gives other values, or none at all."""
    for name in set(FORMS[operator].values) - NOTHING:
        assert any(changes(one, name) for one in right_cases(operator) if name in one.attributes), name


def changes(one, name):
    opset = min(one.opsets)
    proto = model_of(one, opset)
    with_it = run(lowered(one, proto), feeds(one))
    del proto.graph.node[0].attribute[[a.name for a in proto.graph.node[0].attribute].index(name)]
    try:
        without = run(lowered(one, proto), feeds(one))
    except Exception:
        return True
    return any(a.shape != b.shape or not np.allclose(a, b, 1e-4, 1e-5) for a, b in zip(with_it, without, strict=True))


@pytest.mark.parametrize("operator", [name for name in FORMS if name.startswith(CONTRIB)])
def test_an_attribute_or_input_that_is_new_is_refused(operator):
    """As a newer onnxruntime may bring one."""
    one = right_cases(operator)[0]
    proto = model_of(one, 18)
    proto.graph.node[0].attribute.append(helper.make_attribute("brought_later", 1))
    with pytest.raises(AssertionError):
        lowered(one, proto)
    more = model_of(one, 18)
    inputs = more.graph.node[0].input
    inputs.extend([""] * (FORMS[operator].inputs - len(inputs)))
    inputs.append("x0")
    with pytest.raises(AssertionError):
        lowered(one, more)


def test_names_of_outputs_and_initializers_stay():
    one = next(c for c in CASES if c.operator.endswith("BiasGelu"))
    proto = model_of(one, 18)
    bias = proto.graph.input.pop()
    proto.graph.initializer.append(numpy_helper.from_array(one.inputs[1], bias.name))
    result = load(proto)
    assert [v.name for v in result.graph.outputs] == ["y0"]
    assert list(result.graph.initializers) == ["x1"]
    onnx.checker.check_model(to_proto(result), full_check=True)
