"""Selected elements, integers and truth values in machine code: the numbers of ONNX, and nothing outside of arrays."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxtrain_sklearn._compiler.code import BoundCode, graph_code
from onnxtrain_sklearn._compiler.kernels import tile_of
from onnxtrain_sklearn._compiler.plan import NotCompiledError
from onnxtrain_sklearn._ort.llvm import features
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.compiled_graphs import Run, assert_right, code_of, model_of

pytest.importorskip("llvmlite", reason="graphs are compiled by llvmlite")

SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 1e-42, 3e38])


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reference(text, constants, inputs):
    """Return what onnxruntime computes."""
    session = onnxruntime.InferenceSession(model_of(text, constants).SerializeToString())
    return dict(zip([v.name for v in session.get_outputs()], session.run(None, inputs), strict=True))


def assert_equal(text, inputs, constants=None):
    """Assert that results are those of onnxruntime, to the bit but for NaN, in two runs."""
    constants = {key: np.asarray(array) for key, array in (constants or {}).items()}
    run, wanted = Run(text, constants, inputs), reference(text, constants, inputs)
    for _ in range(2):
        results = run(inputs)
        for name, array in wanted.items():
            np.testing.assert_array_equal(results[name], array.ravel(), err_msg=name)
            if array.dtype.kind == "f":
                known = ~np.isnan(array.ravel())
                np.testing.assert_array_equal(np.signbit(results[name])[known], np.signbit(array.ravel())[known])
    return run


COLUMNS = {
    "neighbors": [2, 3, 4],
    "all": range(7),
    "every other": [0, 2, 4, 6],
    "one": [5],
    "the last ones": [-2, -1],
    "repeated": [3, 3, 3, 3],
    "runs": [1, 1, 1, 4, 5, 6, 0],
    "backwards": [6, 5, 4, 3, 2, 1, 0],
    "mixed": [6, 0, -1, 3, 3, 1, 5, -7, 2],
    "a number": 4,
    "a matrix": [[0, 1, 2], [5, 5, 5]],
    "one in a matrix": [[6]],
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", COLUMNS)
def test_gather_by_constants(name, axis):
    """Columns stand alone, between other operators, as operands of a product, and as a result."""
    indices = np.array(COLUMNS[name], np.int64)
    nodes = f"c = Gather<axis = {axis}>(a, i) x = Exp(a) d = Gather<axis = {axis}>(x, i) e = Neg(d) s = ReduceSum(e)"
    text = f"g (float[7,7,7] a) => (float c, float d, float e, float s) {{ {nodes} }}"
    assert_right(text, {"i": indices})
    assert_equal(
        f"g (float[7,7,7] a) => (float c) {{ c = Gather<axis = {axis}>(a, i) }}",
        {"a": numbers((7, 7, 7))},
        {"i": indices},
    )


def test_columns_are_factors():
    text = """g (float[20,9] a, float[3,4] w, float[5,2] v) => (float r, float s) {
        c = Gather<axis = 1>(a, every) r = MatMul(c, w)
        d = Gather<axis = 1>(a, mixed) t = Transpose<perm = [1, 0]>(d) q = MatMul(t, c) s = Gemm<transA = 1>(v, q)
    }"""
    assert_right(text, {"every": [1, 4, 7], "mixed": [8, 0, 3, 3, 5]})


INDICES = np.array([[3, 0, -1, 4], [-5, 3, 3, 2]])


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize(
    ("shape", "axis"), [("5", 0), ("5,3", 0), ("5,33", -2), ("4,5", 1), ("2,5,16", 1), ("2,3,5", -1)]
)
def test_gather_by_computed_indices(shape, axis, kind):
    text = f"g (float[{shape}] a, {kind}[2,4] i) => (float r, float s) {{"
    text += f" r = Gather<axis = {axis}>(a, i) x = Exp(a) y = Gather<axis = {axis}>(x, i) s = Neg(y) }}"
    sizes = [int(n) for n in shape.split(",")]
    run = assert_equal(text.replace("Exp", "Abs"), {"a": numbers(sizes), "i": INDICES.astype(kind)})
    assert run.code.checks


@pytest.mark.parametrize("wrong", [5, -6, 2**24, -(2**24) - 1, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("place", [0, 17, 32])
def test_an_index_outside_is_an_error(wrong, place):
    text = """g (float[5,3] a, float[33,3] u, int64[33] i) => (float r, float s) {
        r = Gather(a, i) j = Unsqueeze(i, one) k = Expand(j, wide) s = ScatterElements<reduction = "add">(a, k, u)
    }"""
    inputs = {"a": numbers((5, 3)), "u": numbers((33, 3), 1), "i": np.arange(33) % 5}
    run = Run(text, {"one": np.array([1]), "wide": np.array([33, 3])}, inputs)
    right = run(inputs)
    broken = inputs["i"].copy()
    broken[place] = wrong
    with pytest.raises(ModelError, match=r"\(Gather\) selects the index -?\d+, beyond the 5 .* from 0 to 4 are valid"):
        run({**inputs, "i": broken})
    for name, array in run(inputs).items():  # the next run is right again
        np.testing.assert_array_equal(array, right[name])


def test_an_error_names_the_first_node_and_an_index():
    text = "g (float[5] a, float[3] b, int64[20] i) => (float r, float s) { r = Gather(b, i) s = Gather(a, i) }"
    inputs = {"a": numbers(5), "b": numbers(3), "i": np.array([2, -3, *[0] * 17, 4])}
    with pytest.raises(ModelError, match="selects the index 4, beyond the 3"):
        Run(text, {}, inputs)(inputs)
    with pytest.raises(ModelError, match="selects the index -4, beyond the 3"):
        Run(text, {}, inputs)({**inputs, "i": np.array([*[-4] * 20])})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 5.0, -6.0])
def test_indices_from_numbers(value):
    """Numbers become integers towards zero; NaN and infinity are no index."""
    text = "g (float[5] a, float[19] x) => (float r) { i = Cast<to = 7>(x) r = Gather(a, i) }"
    inputs = {"a": numbers(5), "x": np.linspace(-5.9, 4.9, 19).astype(np.float32)}
    run = assert_equal(text, inputs)
    inputs["x"][7] = value
    with pytest.raises(ModelError, match="Gather"):
        run(inputs)


ELEMENTS = {
    "rows": ("5,3", "4,3", 0),
    "columns": ("5,3", "5,7", 1),
    "fewer": ("5,9", "2,4", 0),
    "middle": ("3,5,4", "2,6,3", 1),
    "vector": ("5", "21", 0),
    "wide": ("5,40", "6,40", 0),
    "last": ("2,3,5", "2,3,33", -1),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_gather_elements(name):
    shape, indices, axis = ELEMENTS[name]
    length = int(shape.split(",")[axis])
    sizes, places = ([int(n) for n in one.split(",")] for one in (shape, indices))
    given = np.random.default_rng(0).integers(-length, length, places)
    text = f"g (float[{shape}] a, int64[{indices}] i) => (float r) {{ r = GatherElements<axis = {axis}>(a, i) }}"
    run = assert_equal(text, {"a": numbers(sizes), "i": given})
    with pytest.raises(ModelError, match="GatherElements"):
        run({"a": numbers(sizes), "i": np.where(given == given.min(), length, given)})


def scattered(a, i, u, axis, reduction):
    """Return the result in float64, element by element in their order."""
    result = a.astype(float)
    for place in np.ndindex(i.shape):
        at = list(place)
        at[axis] = i[place]
        old, new = result[tuple(at)], float(u[place])
        joins = {
            "none": new,
            "add": old + new,
            "mul": old * new,
            "max": np.maximum(old, new),
            "min": np.minimum(old, new),
        }
        result[tuple(at)] = joins[reduction]
    return result


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_scatter_elements(name, reduction):
    shape, indices, axis = ELEMENTS[name]
    length = int(shape.split(",")[axis])
    sizes, places = ([int(n) for n in one.split(",")] for one in (shape, indices))
    given = np.random.default_rng(1).integers(-length, length, places)
    text = f"""g (float[{shape}] a, int64[{indices}] i, float[{indices}] u) => (float r, float s) {{
        r = ScatterElements<axis = {axis}, reduction = "{reduction}">(a, i, u) s = Neg(a)
    }}"""
    inputs = {"a": numbers(sizes), "i": given, "u": numbers(places, 1)}
    run = Run(text, {}, inputs)
    first = run(inputs)
    wanted = scattered(*inputs.values(), axis, reduction)
    np.testing.assert_allclose(first["r"], wanted.ravel(), rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(first["s"], -inputs["a"].ravel())
    assert run(inputs)["r"].tobytes() == first["r"].tobytes()


def test_gradient_of_looked_up_rows():
    """The indices of rows are repeated along the columns, and the table begins with zeros."""
    text = """g (float[12,20] u, float[12] x) => (float r) {
        zeros = ConstantOfShape(shape) i = Cast<to = 7>(x) j = Unsqueeze(i, one) k = Expand(j, wide)
        r = ScatterElements<axis = 0, reduction = "add">(zeros, k, u)
    }"""
    constants = {"shape": np.array([6, 20]), "one": np.array([1]), "wide": np.array([12, 20])}
    inputs = {"u": numbers((12, 20)), "x": np.float32([0, 1, 1, 5, 5, 5, 0, 3, 2, 2, 2, 2])}
    wanted = np.zeros((6, 20))
    np.add.at(wanted, inputs["x"].astype(int), inputs["u"].astype(float))
    np.testing.assert_allclose(Run(text, constants, inputs)(inputs)["r"], wanted.ravel(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_integers(kind):
    """Results are those of integers: zeros have no sign, and comparisons tell neighbors apart."""
    to = {"int64": 7, "int32": 6}[kind]
    made = [
        "s = Add(i, j)",
        "d = Sub(i, j)",
        "p = Mul(i, j)",
        "m = Max(i, j)",
        "l = Min(i, j)",
        "n = Neg(i)",
        "a = Abs(i)",
    ]
    made += [f"c{test} = {test}(i, j)" for test in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")]
    made += [
        "w = Where(cLess, i, j)",
        f"t = Cast<to = {to}>(cLess)",
        "o = Add(t, i)",
        "b = Cast<to = 9>(i)",
        "g = Sign(i)",
    ]
    names = [one.partition(" ")[0] for one in made]
    casts = [f"f{name} = Cast<to = 1>({name}) r{name} = Reciprocal(f{name})" for name in names]
    outputs = ", ".join(f"float f{name}, float r{name}" for name in names)
    text = f"g ({kind}[81] i, {kind}[81] j) => ({outputs}) {{ {' '.join([*made, *casts])} }}"
    values = np.array([0, 1, -1, 2, 2047, -2048, 5, -7, 1000], kind)
    assert_equal(text, {"i": np.repeat(values, 9), "j": np.tile(values, 9)})


@pytest.mark.parametrize("node", ["Add(i, j)", "Sub(i, j)", "Mul(j, i)", "Less(i, i)", "Equal(i, i)"])
@pytest.mark.parametrize("value", [2**24, -(2**24), 2**53 + 1, -(2**63)])
def test_integers_beyond_float_precision_are_refused(node, value):
    name = node.partition("(")[0]
    text = f"g (int64[40] i, int64[40] j) => (float r) {{ x = {node} r = Cast<to = 1>(x) }}"
    inputs = {"i": np.arange(40), "j": np.arange(40)[::-1].copy()}
    run = assert_equal(text, inputs)
    with pytest.raises(ModelError, match=rf"\({name}\) computes with the integer -?\d+.*engine='portable'"):
        run({**inputs, "i": np.where(np.arange(40) == 19, value, inputs["i"])})


def test_large_integers_only_moved_or_compared():
    text = """g (int64[6] i) => (float f, float e, float m) {
        f = Cast<to = 1>(i) c = Equal(i, three) e = Cast<to = 1>(c) x = Max(i, three) m = Cast<to = 1>(x)
    }"""
    inputs = {"i": np.array([3, 2**24 + 1, 2**40 + 3, -(2**63), 2**63 - 1, -3])}
    assert_equal(text, inputs, {"three": np.array(3)})


def test_types_of_inputs_and_outputs():
    text = """g (float[9] a, int64[9] i, int32[9] k, bool[9] b) => (float r, float s, float t, int64[9] j, int64[9] n) {
        r = Where(b, a, zero) s = Cast<to = 1>(k) t = Cast<to = 1>(b) j = Identity(i) n = Cast<to = 7>(a)
    }"""
    inputs = {"a": numbers(9) * 3, "i": np.arange(9) - 4, "k": np.arange(9, dtype=np.int32), "b": np.arange(9) % 2 == 0}
    run = assert_equal(text, inputs, {"zero": np.float32(0)})
    with pytest.raises(ModelError, match=r"'j' has the integer 167772\d\d"):
        run({**inputs, "i": inputs["i"] + 2**24})


def test_casts_of_special_numbers():
    """ONNX leaves open what infinity becomes as an integer: the nearest one."""
    text = """g (float[9] a) => (float n, float p, float q, float t, float u, float b) {
        x = IsNaN(a) n = Cast<to = 1>(x) y = IsInf(a) p = Cast<to = 1>(y)
        z = IsInf<detect_negative = 0>(a) q = Cast<to = 1>(z) v = IsInf<detect_positive = 0>(a) t = Cast<to = 1>(v)
        w = Xor(x, y) u = Cast<to = 1>(w) c = Cast<to = 9>(a) b = Cast<to = 1>(c)
    }"""
    assert_equal(text, {"a": SPECIAL})
    nodes = "i = Cast<to = 7>(a) r = Cast<to = 1>(i) j = Cast<to = 6>(a) s = Cast<to = 1>(j)"
    text = f"g (float[9] a) => (float r, float s) {{ {nodes} }}"
    results = Run(text, {}, {"a": SPECIAL})({"a": SPECIAL})
    np.testing.assert_array_equal(results["r"], np.float32([-(2**63), 2**63, -(2**63), 0, 0, 1, -1, 0, 2**63]))
    np.testing.assert_array_equal(results["s"], np.float32([-(2**31), 2**31, -(2**31), 0, 0, 1, -1, 0, 2**31]))
    assert not np.signbit(results["r"][[3, 4, 7]]).any()


def test_an_integer_that_a_type_lacks_is_an_error():
    text = "g (int64[3] i) => (float r) { k = Cast<to = 6>(i) r = Cast<to = 1>(k) }"
    run = assert_equal(text, {"i": np.array([1, -(2**31), 2**30])})
    with pytest.raises(ModelError, match="gets the integer 4294967296, which INT32 lacks"):
        run({"i": np.array([1, 2**32, 0])})


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 9])
def test_triangles(upper, k):
    text = f"g (float[2,5,7] a) => (float r) {{ r = Trilu<upper = {upper}>(a{'' if k is None else ', k'}) }}"
    a = numbers((2, 5, 7))
    a[:, 4, 0] = a[:, 0, 6] = np.nan
    assert_equal(text, {"a": a}, {} if k is None else {"k": np.array(k)})


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    nodes = f"r = OneHot<axis = {axis}>(i, n, v) s = OneHot(i, n, known)"
    text = f"g (int64[3,4] i, float[2] v) => (float r, float s) {{ {nodes} }}"
    inputs = {"i": np.array([[0, 1, 4, -1], [-5, 5, -6, 2], [2**40, 3, 3, -(2**40)]]), "v": np.float32([-2.0, 3.0])}
    assert_equal(text, inputs, {"n": np.array(5), "known": np.float32([0.0, 1.0])})


@pytest.mark.parametrize("node", ["Gelu(a)", 'Gelu<approximate = "tanh">(a)', "Mish(a)"])
def test_activations_of_newer_opsets(node):
    header = '<ir_version: 9, opset_import: ["": 20]>'
    model = onnx.parser.parse_model(f"{header} g (float[200] a) => (float[200] r) {{ r = {node} }}")
    a, result = np.linspace(-9, 9, 200, dtype=np.float32), np.zeros(200, np.float32)
    BoundCode(graph_code(ir.from_proto(model).graph, tile_of(features())), {"a": a}, {"r": result}).run()
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"a": a})[0]
    np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)


def test_steps_of_slices():
    text = "g (float[7,20] a) => (float r, float s) { r = Slice(a, b, e, x, d) x2 = Exp(r) s = MatMul(x2, w) }"
    constants = {"b": [1, 0], "e": [7, 100], "x": [0, 1], "d": [2, 3]}
    assert_right(text, {**{key: np.array(one) for key, one in constants.items()}, "w": numbers((7, 3))})


REFUSED = {
    "an index outside": ("x = Exp(a) r = GatherElements(x, i)", "GatherElements.* selects the index 9 of 4"),
    "a table of integers": (
        's = ScatterElements<reduction = "add">(n, j, n) r = Cast<to = 1>(s)',
        "Scatter.* integers",
    ),
    "a depth": ("d = Cast<to = 7>(b) o = OneHot(j, d, two) r = Identity(o)", "OneHot.* has to be a constant"),
    "no indices": ("r = Gather(a, none)", "no elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_nodes_are_named(name):
    nodes, reason = REFUSED[name]
    constants = {"i": np.array([0, 9]), "two": np.float32([0, 1]), "none": np.zeros(0, np.int64)}
    used = {key: array for key, array in constants.items() if re.search(rf"\b{key}\b", nodes)}
    with pytest.raises(NotCompiledError, match=reason):
        code_of(f"g (float[4] a, float[1] b, int64[4] j, int64[4] n) => (float r) {{ {nodes} }}", used)


def test_a_table_longer_than_exact_integers_is_refused():
    table, index = (
        ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(shape))
        for name, kind, shape in (("a", ir.DataType.FLOAT, [2**24 + 1]), ("i", ir.DataType.INT64, [3]))
    )
    node = ir.node("Gather", [table, index])
    node.outputs[0].name = "r"
    with pytest.raises(NotCompiledError, match=r"more than 2\*\*24"):
        graph_code(ir.Graph([table, index], node.outputs, nodes=[node], opset_imports={"": 18}), tile_of(""))
