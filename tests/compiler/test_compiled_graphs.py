"""Graphs as machine code have the numbers of the reference evaluator of ONNX in float64, whatever their shapes are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from scipy.special import log_softmax

from onnxtrain_sklearn._compiler.code import graph_code
from onnxtrain_sklearn._compiler.kernels import tile_of
from onnxtrain_sklearn._compiler.nodes import TRANSLATIONS
from onnxtrain_sklearn._compiler.plan import NotCompiledError
from tests.helpers.compiled_graphs import Run, assert_right, code_of, exact, inputs_of, model_of, random_graph

pytest.importorskip("llvmlite", reason="graphs are compiled by llvmlite")

PAIRS = [
    ("3,17", "3,17"),
    ("3,17", "17"),
    ("3,17", "3,1"),
    ("3,17", "1"),
    ("33", "2,1,33"),
    ("3,1", "1,17"),
    ("2,1,5,1", "3,1,16"),
    ("1,1", "1"),
    ("100", "100"),
    ("", "7,15"),
    ("4,1,3", "1,10,3"),
]
"""Shapes of two operands."""
SHAPES = ["1", "2", "16", "3,17", "2,1,33", "10,100"]

BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"]
COMPARED = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
LOGICAL = ["And", "Or"]
UNARY = ["Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"]
UNARY += ["Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tanh"]
POSITIVE = ["Log", "Sqrt"]

AXES = [("3,17", [0]), ("3,17", [1]), ("3,17", [0, 1]), ("2,3,17,5", [0, 2]), ("2,3,17,5", [1, 2]), ("1,33", [-1])]
AXES += [("2,3,17", [0, -1]), ("100", [0]), ("5,1,16", [0]), ("40,15", [0]), ("4,3,1", [2])]
REDUCED = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"]

PRODUCTS = [("3,4", "4,5"), ("17,33", "33,10"), ("1,10", "10,1"), ("2,3,4", "4,5"), ("2,3,4", "2,4,5"), ("4", "4,5")]
PRODUCTS += [("3,4", "4"), ("4", "4"), ("2,1,3,4", "5,4,16"), ("3,4", "2,4,15"), ("1,1", "1,1"), ("1,3,4", "2,4,5")]


def rounded(shape):
    """Return numbers with equal ones, and zeros, among them."""
    return np.random.default_rng(len(shape)).integers(-2, 3, shape)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_operators_of_two_operands(a, b):
    nodes = [f"r_{op} = {op}(a, b) \n s_{op} = {op}(b, a)" for op in BINARY]
    outputs = ", ".join(f"float r_{op}, float s_{op}" for op in BINARY)
    assert_right(f"g (float[{a}] a, float[{b}] b) => ({outputs}) {{ {' '.join(nodes)} }}")


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_truth_values(a, b):
    made = [f"t_{op} = {op}(a, b)" for op in COMPARED]
    made += [f"l_{op} = {op}(t_Less, t_Equal)" for op in LOGICAL]
    names = [*(f"t_{op}" for op in COMPARED), *(f"l_{op}" for op in LOGICAL)]
    casts = [f"f_{name} = Cast<to = 1>({name})" for name in names]
    more = [
        "n = Not(t_Greater) fn = Cast<to = 1>(n)",
        "w = Where(t_Less, a, b) v = Where(l_Or, one, a)",
        "bool_of = Cast<to = 9>(a) fb = Cast<to = 1>(bool_of)",
    ]
    outputs = ", ".join([*(f"float f_{name}" for name in names), "float fn, float w, float v, float fb"])
    text = f"g (float[{a}] a, float[{b}] b) => ({outputs}) {{ {' '.join([*made, *casts, *more])} }}"
    assert_right(text, {"one": np.float32(1.5)}, draw=rounded)


@pytest.mark.parametrize("shape", SHAPES)
def test_operators_of_one_operand(shape):
    nodes = [f"r_{op} = {op}(a)" for op in UNARY] + [f"r_{op} = {op}(r_Exp)" for op in POSITIVE]
    nodes += ["c = Clip(a, low, high)", "d = Clip(a, , high)", "e = Clip(a, low)", "f = Clip(a)"]
    nodes += [f"p{i} = Pow(a, e{i})" for i in (1, 2, 3)] + ["p0 = Pow(r_Exp, half)"]
    outputs = ", ".join(f"float {one.partition(' ')[0]}" for one in nodes)
    constants = {"low": -0.5, "high": 0.25, "half": 0.5, **{f"e{i}": float(i) for i in (1, 2, 3)}}
    constants = {name: np.float32(value) for name, value in constants.items()}
    assert_right(f"g (float[{shape}] a) => ({outputs}) {{ {' '.join(nodes)} }}", constants)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(("shape", "axes"), AXES, ids=str)
def test_reductions(shape, axes, keep):
    nodes = [f"r_{op} = {op}<keepdims = {keep}>({'b' if op == 'ReduceMean' else 'a'}, axes)" for op in REDUCED]
    outputs = ", ".join(f"float r_{op}" for op in REDUCED)
    text = f"g (float[{shape}] a) => ({outputs}) {{ b = Mul(a, a) {' '.join(nodes)} }}"
    assert_right(text, {"axes": np.array(axes, np.int64)})


@pytest.mark.parametrize(("attributes", "rank"), [("", 0), ("<keepdims = 1>", 2), ("<noop_with_empty_axes = 1>", 2)])
def test_reductions_over_no_axes_or_all(attributes, rank):
    attributes = attributes or "<keepdims = 0>"
    assert_right(f"g (float[3,17] a) => (float r) {{ r = ReduceSum{attributes}(a) }}")


@pytest.mark.parametrize("perm", [[0, 2, 1], [1, 0, 2], [2, 1, 0], [1, 2, 0]])
@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [1, 2], [0, 1, 2]])
def test_reductions_of_views(perm, axes):
    text = f"""g (float[3,16,5] a) => (float r, float m, float s) {{
        t = Transpose<perm = {perm}>(a)
        r = ReduceSum<keepdims = 0>(t, axes)
        u = Expand(t, shape)
        m = ReduceMax<keepdims = 0>(u, axes)
        s = Softmax(t)
    }}"""
    shape = [2, *np.array([3, 16, 5])[perm]]
    assert_right(text, {"axes": np.array(axes, np.int64), "shape": np.array(shape, np.int64)})


@pytest.mark.parametrize(("a", "b"), PRODUCTS)
def test_products(a, b):
    assert_right(f"g (float[{a}] a, float[{b}] b) => (float r) {{ r = MatMul(a, b) }}")


@pytest.mark.parametrize("bias", ["5", "1,5", "3,5", "3,1", "1", "", None])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(bias, turned):
    a, b = ("17,3" if turned[0] else "3,17"), ("5,17" if turned[1] else "17,5")
    third, c = ("", "") if bias is None else (f", float[{bias}] c", ", c")
    attributes = f"<transA = {turned[0]}, transB = {turned[1]}>"
    assert_right(f"g (float[{a}] a, float[{b}] b{third}) => (float r) {{ r = Gemm{attributes}(a, b{c}) }}")


@pytest.mark.parametrize(("a", "b"), [("3,17", "33,17"), ("2,3,17", "2,5,17"), ("2,3,17", "5,17")])
def test_products_of_views(a, b):
    rank_a, rank_b = a.count(",") + 1, b.count(",") + 1
    turned_a, turned_b = ([*range(rank - 2), rank - 1, rank - 2] for rank in (rank_a, rank_b))
    text = f"""g (float[{a}] a, float[{b}] b) => (float r, float s, float q) {{
        t = Transpose<perm = {turned_b}>(b)
        r = MatMul(a, t)
        e = Relu(r)
        u = Transpose<perm = {turned_a}>(a)
        v = Transpose<perm = {turned_a}>(u)
        s = MatMul(v, t)
        sum = Add(s, e)
        q = MatMul(sum, b)
    }}"""
    assert_right(text)


@pytest.mark.parametrize("shape", ["1", "3,2", "3,17", "2,3,16", "1,100", "5,1"])
def test_softmax(shape):
    text = f"g (float[{shape}] a) => (float r, float s) {{ r = Softmax<axis = -1>(a) s = LogSoftmax<axis = -1>(a) }}"
    assert_right(text)
    sizes = [int(n) for n in shape.split(",")]
    inputs = {"a": 100 * np.random.default_rng(0).standard_normal(sizes).astype(np.float32)}
    results, wanted = Run(text, {}, inputs)(inputs), log_softmax(inputs["a"].astype(float), -1).ravel()
    np.testing.assert_allclose(results["s"], wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(results["r"], np.exp(wanted), rtol=1e-5, atol=1e-37)


VIEWS = {
    "chained": "t = Transpose<perm = [1, 0]>(a) r = Reshape(t, s4) u = Transpose<perm = [3, 1, 0, 2]>(r) c = Neg(u)",
    "chained, out": "t = Transpose<perm = [1, 0]>(a) r = Reshape(t, s4) c = Transpose<perm = [3, 1, 0, 2]>(r)",
    "input": "c = Identity(a)",
    "part of an input": "c = Reshape(a, s4)",
    "flat": "t = Transpose<perm = [1, 0]>(a) c = Flatten<axis = 0>(t)",
    "flat behind": "c = Flatten<axis = 2>(a)",
    "more axes": "u = Unsqueeze(a, places) e = Expand(u, wide) c = Squeeze(e, third)",
    "no more axes": "u = Unsqueeze(a, places) c = Squeeze(u)",
    "repeated": "m = ReduceSum<keepdims = 1>(a, second) c = Expand(m, two)",
    "repeated, read": "m = ReduceSum<keepdims = 1>(a, second) e = Expand(m, two) x = Mul(e, a) c = Sub(x, e)",
    "repeated, in another shape": "m = ReduceSum<keepdims = 1>(a, second) e = Expand(m, two) c = Reshape(e, s4)",
    "a number": "c = Expand(number, two)",
    "constants": "x = Add(a, row) y = Mul(x, matrix) z = Sub(y, number) c = MatMul(z, turned)",
    "a constant": "c = Identity(matrix)",
    "constant times constant": "x = MatMul(matrix, turned) c = MatMul(x, a)",
    "a stage taken back": "x = Exp(a) t = Transpose<perm = [1, 0]>(x) y = MatMul(x, t) z = Neg(x) c = MatMul(y, z)",
    "own transpose": "x = Exp(a) t = Transpose<perm = [1, 0]>(x) r = Reshape(t, two) c = Add(x, r)",
    "square": "r = Reshape(a, square) t = Transpose<perm = [1, 0]>(r) x = Add(r, t) u = Transpose(x) c = Sub(u, r)",
    "column of ones": "m = ReduceSum<keepdims = 1>(a, second) x = Neg(m) y = Add(x, m) c = Mul(y, a)",
    "long lived": "x = Exp(a) y = MatMul(x, turned) z = MatMul(y, a) w = MatMul(z, turned) v = MatMul(w, x) "
    "c = Add(v, x)",
}


def test_products_of_matrices_without_neighbors():
    """The elements of a matrix are neighbors neither along its rows nor along its columns, or are all the same."""
    text = """g (float[5,6,7] a, float[7,5] b, float[1] c) => (float r, float s, float q, float p) {
        t = Transpose<perm = [2, 0, 1]>(a)
        u = Transpose<perm = [0, 2, 1]>(t)
        r = MatMul(t, u)
        s = MatMul(u, t)
        e = Expand(c, shape)
        q = MatMul(b, e)
        p = Gemm(e, b)
    }"""
    assert_right(text, {"shape": np.array([5, 7], np.int64)})


SHAPES_OF_VIEWS = {
    "s4": [6, 2, 1, 3],
    "places": [0, 2],
    "wide": [2, 1, 1, 1],
    "two": [4, 9],
    "square": [6, 6],
    "second": [1],
    "third": [2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    nodes, numbers = VIEWS[name], np.random.default_rng(7)
    constants = {key: np.array(value, np.int64) for key, value in SHAPES_OF_VIEWS.items()}
    constants |= {"number": np.float32(1.25), "row": numbers.normal(size=9)}
    constants |= {"matrix": numbers.normal(size=(4, 9)), "turned": numbers.normal(size=(9, 4))}
    used = {key: value for key, value in constants.items() if key in nodes}
    assert_right(f"g (float[4,9] a, float[3] unused) => (float c) {{ {nodes} }}", used)


def test_outputs_that_are_one_value():
    """A buffer serves one output; others get copies, also inputs that are returned, and views of outputs."""
    text = """g (float[3,17] a, float[17] b) => (float x, float y, float z, float t, float r, float i, float j) {
        x = Add(a, b) y = Identity(x) z = Identity(y) t = Transpose<perm = [1, 0]>(x) r = Reshape(x, flat)
        i = Identity(a) j = Identity(a)
    }"""
    assert_right(text, {"flat": np.array([51], np.int64)})


def test_an_output_is_read_further():
    text = """g (float[3,17] a) => (float x, float y, float z) {
        x = Exp(a) y = ReduceSum<keepdims = 1>(x, axes) w = Div(x, y) z = Log(w)
    }"""
    assert_right(text, {"axes": np.array([1], np.int64)})


PARTS = {
    "joined": "x = Exp(a) t = Transpose<perm = [1, 0]>(b) c = Concat<axis = 1>(x, t, a, x)",
    "joined rows": "x = Exp(a) y = Concat<axis = 0>(a, x, a) m = ReduceSum<keepdims = 1>(y, first) c = Mul(y, m)",
    "sliced": "x = Slice(a, starts, ends) y = Exp(x) c = Neg(y)",
    "sliced along an axis": "x = Slice(a, start, end, last) t = Transpose<perm = [1, 0]>(x) c = MatMul(x, t)",
    "sliced and returned": "c = Slice(a, starts, ends)",
    "sliced and reduced": "x = Slice(a, starts, ends) c = Softmax<axis = -1>(x)",
    "sliced and shaped": "x = Slice(a, starts, ends) c = Flatten<axis = 0>(x)",
    "parts": "x, y, z = Split<axis = 1>(a, lengths) s = ReduceSum(x) u = Mul(y, s) c = Concat<axis = 1>(u, z)",
    "between zeros": "x = Exp(a) y = Pad(x, counts) c = Neg(y)",
    "between numbers of an axis": "x = Pad(a, pair, number, last) t = Transpose<perm = [1, 0]>(x) c = MatMul(x, t)",
    "rows of a table": "x = Gather<axis = 0>(a, rows) y = Exp(x) c = Neg(y)",
    "logarithm of a sum": "x = ReduceLogSumExp<keepdims = 1>(a, last) y = Sub(a, x) c = Mul(y, a)",
    "logarithms of sums": "c = ReduceLogSumExp<keepdims = 0>(a, last)",
    "factors of Gemm": "x = Gemm<alpha = 0.5, beta = 2.0>(a, b, square) c = Gemm<alpha = 3.0>(x, x)",
    "normalized rows": "x = LayerNormalization<epsilon = 0.01>(a, wide, wide) c = LayerNormalization(x, wide)",
    "normalized columns": "s = Exp(wide) c = BatchNormalization<epsilon = 0.01>(a, s, wide, wide, s)",
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_and_normalization(name):
    nodes, numbers = PARTS[name], np.random.default_rng(7)
    lists = {"starts": [1, 2], "ends": [-1, 100], "start": [-5], "end": [-1], "lengths": [3, 2, 4]}
    lists |= {"counts": [1, 0, 2, 3], "pair": [2, 1]}
    lists |= {"rows": [[3, 0, -1], [2, 2, 1]], "first": [0], "last": [-1]}
    constants = {key: np.array(value, np.int64) for key, value in lists.items()}
    constants |= {"number": np.float32(-1.5)}
    constants |= {"square": numbers.normal(size=(4, 4)), "wide": numbers.normal(size=9)}
    used = {key: value for key, value in constants.items() if re.search(rf"\b{key}\b", nodes)}
    assert_right(f"g (float[4,9] a, float[9,4] b) => (float c) {{ {nodes} }}", used)


def test_every_operator_is_tested():
    paths = [Path(__file__), Path(__file__).with_name("test_compiled_tables.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert not [name for name in TRANSLATIONS if not re.search(rf"\b{name}\b", text)]


def test_an_exponent_adds_axes():
    nodes = " ".join(f"r{i} = Pow(a, e{i})" for i in (1, 2))
    constants = {f"e{i}": np.full((1, 1, 1), i, np.float32) for i in (1, 2)}
    assert_right(f"g (float[3,17] a) => (float r1, float r2) {{ {nodes} }}", constants)


SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-42, 3e38])


def test_nan_and_infinity():
    """The rules of onnxruntime: NaN passes, comparisons with NaN do not hold."""
    ops = ["Max", "Min", "Add", "Mul", "Div", "Sub"]
    nodes = [f"r_{op} = {op}(a, b)" for op in ops]
    nodes += [f"t_{op} = {op}(a, b) r_{op} = Cast<to = 1>(t_{op})" for op in COMPARED]
    nodes += ["r_Where = Where(t_Less, a, b)", "r_Relu = Relu(a)", "r_Clip = Clip(a, low, high)", "r_Neg = Neg(a)"]
    nodes += ["t_nan = Equal(a, a) t_not = Not(t_nan) r_not = Cast<to = 1>(t_not)"]
    names = [*ops, *COMPARED, "Where", "Relu", "Clip", "Neg", "not"]
    outputs = ", ".join(f"float r_{name}" for name in names)
    size = SPECIAL.size**2
    text = f"g (float[{size}] a, float[{size}] b) => ({outputs}) {{ {' '.join(nodes)} }}"
    constants = {"low": np.float32(-0.5), "high": np.float32(2.0)}
    inputs = {"a": np.repeat(SPECIAL, SPECIAL.size), "b": np.tile(SPECIAL, SPECIAL.size)}
    session = onnxruntime.InferenceSession(model_of(text, constants).SerializeToString())
    results = Run(text, constants, inputs)(inputs)
    for name, wanted in zip(results, session.run(list(results), inputs), strict=True):
        np.testing.assert_array_equal(results[name], wanted, err_msg=name)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed):
    text, constants = random_graph(np.random.default_rng(seed), 10 + 2 * seed)
    assert_right(text, constants, seed, tolerance=100.0)  # softmax and sums of many values amplify rounding


REFUSED = {
    "an operator": ("r = Det(a)", "Det"),
    "an exponent": ("r = Pow(a, number)", "exponent"),
    "integers": ("i = Cast<to = 7>(a) j = Div(i, three) r = Cast<to = 1>(j)", "Div.* computes with integers"),
    "float64": ("d = Cast<to = 11>(a) r = Cast<to = 1>(d)", "Cast.* converts to DOUBLE"),
    "a step back": ("s = Slice(a, three, zero, zero, back) r = ReduceSum<keepdims = 0>(s)", "Slice.* negative step"),
    "an axis": ("r = Softmax<axis = 0>(a)", "last"),
    "no rows": ("s = Slice(a, three, three, zero) r = ReduceSum<keepdims = 0>(s, zero)", "'s' has no elements"),
    "bounds in the wrong order": ("s = Slice(a, three, zero, zero) r = Concat<axis = 0>(s, a)", "'s' has no elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_nodes_are_named(name):
    nodes, reason = REFUSED[name]
    constants = {"number": np.float32(2.5), "three": np.array([3]), "zero": np.array([0])}
    constants |= {"back": np.array([-1])}
    constants = {key: value for key, value in constants.items() if key in nodes}
    with pytest.raises(NotCompiledError, match=reason):
        code_of(f"g (float[4,4] a) => (float r) {{ {nodes} }}", constants)


@pytest.mark.parametrize(
    ("kind", "shape", "reason"),
    [
        (ir.DataType.FLOAT, ["n", 3], "'a' has a shape that is not known"),
        (ir.DataType.FLOAT, [0, 3], "'a' has no elements"),
        (ir.DataType.DOUBLE, [2, 3], "'a' has the type DOUBLE"),
    ],
)
def test_inputs_have_known_sizes_and_float32(kind, shape, reason):
    value = ir.Value(name="a", type=ir.TensorType(kind), shape=ir.Shape(shape))
    node = ir.node("Relu", [value])
    node.outputs[0].name = "r"
    with pytest.raises(NotCompiledError, match=reason):
        graph_code(ir.Graph([value], node.outputs, nodes=[node]), tile_of(""))


@pytest.mark.parametrize(("shape", "axis"), [("300000,3", 0), ("2,300000", 1), ("300000,1", 0), ("5,70001,2", 1)])
def test_a_long_sum_keeps_its_digits(shape, axis):
    """Added up in order in float32, it would have an error of 1e-5 or more."""
    text = f"g (float[{shape}] a) => (float r, float s) {{ r = ReduceSum(a, axis) s = ReduceMean(a, axis) }}"
    constants = {"axis": np.array([axis])}
    inputs = inputs_of(model_of(text, constants), None, np.random.default_rng(0).random)
    results = Run(text, constants, inputs)(inputs)
    for name, wanted in exact(text, constants, inputs).items():
        np.testing.assert_allclose(results[name], wanted.ravel(), rtol=1e-6)
