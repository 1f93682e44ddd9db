"""Products of integers that saturate on some processors are exact in sessions and in files, as NumPy computes them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper, numpy_helper, parser

from onnxtrain_sklearn import GraphModel, OrtGradientClassifier
from onnxtrain_sklearn._ort import objects, sessions, wrong_kernels
from onnxtrain_sklearn._ort.devices import resolve_device
from tests.helpers.data import DATA
from tests.helpers.quantized import run_by_default

RNG = np.random.default_rng(0)
ROWS = np.full((5, 64), 255, np.uint8)
BYTES = RNG.integers(100, 128, (64, 8)).astype(np.int8)  # two of them times 255 are beyond 16 bits
ZEROS = np.arange(8, dtype=np.int8) - 4
KERNEL = RNG.integers(100, 128, (8, 4, 3, 3)).astype(np.int8)
IMAGES = np.full((2, 4, 3, 3), 255, np.uint8)
SCALE, LARGE = np.float32(1), np.float32(10000)


@pytest.fixture
def saturating(monkeypatch):
    """Let the environment say that the processor saturates."""
    monkeypatch.setenv(wrong_kernels.VARIABLE, "saturating")


def product(rows, zeros=0):
    return rows.astype(np.int64) @ (BYTES.astype(np.int64) - zeros)


SUMS = (255 * KERNEL.astype(np.int64)).sum(axis=(1, 2, 3))[None, :, None, None].repeat(2, axis=0)
FORMS = {
    "matrices": ("Y = MatMulInteger(X, W)", ROWS, {"W": BYTES}, product(ROWS)),
    "zero points": ("Y = MatMulInteger(X, W, a, z)", ROWS, {"W": BYTES, "a": np.uint8(0), "z": ZEROS},
                    product(ROWS, ZEROS)),
    "convolutions": ("Y = ConvInteger(X, K)", IMAGES, {"K": KERNEL}, SUMS),
    "rounded matrices": ("Y = QLinearMatMul(X, s, a, W, s, z, t, a)", ROWS,
                         {"s": SCALE, "a": np.uint8(0), "W": BYTES, "z": np.int8(0), "t": LARGE},
                         np.rint(product(ROWS) / 10000)),
    "rounded convolutions": ("Y = QLinearConv(X, s, a, K, s, z, t, a)", IMAGES,
                             {"s": SCALE, "a": np.uint8(0), "K": KERNEL, "z": np.int8(0), "t": LARGE},
                             np.rint(SUMS / 10000)),
    "a shared matrix": ("P = MatMulInteger(X, W) F = Cast <to = 1> (W) G = Cast <to = 6> (F) "
                        "T = ReduceSum <keepdims = 0> (G) Y = Add(P, T)",
                        ROWS, {"W": BYTES}, product(ROWS) + BYTES.astype(np.int64).sum()),
    "a zero point of both": ("Q = QuantizeLinear(X, s, z) D = DequantizeLinear(Q, s, z) M = DequantizeLinear(W, s, z) "
                             "Y = MatMul(D, M)", ROWS.astype(np.float32),
                             {"s": SCALE, "z": np.int8(-3), "W": BYTES},
                             130 * (BYTES.astype(np.int64) + 3).sum(axis=0)),
    "a branch": ("c = Constant <value_int = 1> () b = Cast <to = 9> (c) "
                 "Y = If (b) <then_branch = yes () => (p) { p = MatMulInteger(X, W) }, "
                 "else_branch = no () => (q) { q = MatMulInteger(X, W) }>", ROWS, {"W": BYTES}, product(ROWS)),
}  # fmt: skip


def graph_of(body, rows, arrays):
    kinds = {np.uint8: "uint8", np.float32: "float"}
    sizes = ", ".join(map(str, rows.shape[1:]))
    kind = "float" if rows.dtype == np.float32 else "uint8" if "QLinear" in body else "int32"
    out = ", ".join(f"d{i}" for i in range(rows.ndim))
    head = f'<ir_version: 8, opset_import: ["": 18]> g ({kinds[rows.dtype.type]}[N, {sizes}] X) => ({kind}[{out}] Y)'
    model = parser.parse_model(f"{head} {{ {body} }}")
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items())
    return model


def constants_of(model):
    held = {t.name: t for t in model.graph.initializer}
    return held | {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}


def types_of(model):
    return {tensor.data_type for tensor in constants_of(model).values()}


@pytest.mark.parametrize("form", FORMS)
def test_signed_weights_become_unsigned_ones_with_the_same_products(form, saturating):
    body, rows, arrays, expected = FORMS[form]
    model = graph_of(body, rows, arrays)
    changed = onnx.load_model_from_string(wrong_kernels.exact(model.SerializeToString()))
    onnx.checker.check_model(changed, full_check=True)
    assert types_of(changed) & {TensorProto.INT8} == (set() if "shared" not in form else {TensorProto.INT8})
    (found,) = run_by_default(changed, {"X": rows})
    assert_array_equal(found, np.broadcast_to(expected, found.shape))
    session = sessions.create_session(model.SerializeToString(), resolve_device())
    assert_array_equal(sessions.run_session(session, ["Y"], {"X": rows})[0], found)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    classic = objects.session(model.SerializeToString(), resolve_device(), options)
    assert_array_equal(classic.run(None, {"X": rows})[0], found)
    assert wrong_kernels.exact(changed.SerializeToString()) == changed.SerializeToString()


COMPUTED = {
    "without zero points": ("Y = MatMulInteger(X, W)", 0),
    "with constant zero points": ("Y = MatMulInteger(X, W, a, z)", ZEROS),
    "with computed zero points": ("e = Cast <to = 3> (f) Y = MatMulInteger(X, W, a, e)", ZEROS),
    "in branches": ("c = Constant <value_int = 1> () b = Cast <to = 9> (c) "
                    "Y = If (b) <then_branch = yes () => (p) { p = MatMulInteger(X, W, a, z) }, "
                    "else_branch = no () => (q) { q = MatMulInteger(X, W, a, z) }>", ZEROS),
    "read by floats": ("P = MatMulInteger(X, W) F = Cast <to = 1> (W) D = DequantizeLinear(W, s) E = Sub(D, F) "
                       "G = Cast <to = 6> (E) T = ReduceSum <keepdims = 0> (G) Y = Add(P, T)", 0),
}  # fmt: skip


@pytest.mark.parametrize("source", ["input", "node"])
@pytest.mark.parametrize("form", COMPUTED)
def test_signed_weights_that_are_no_constants_get_nodes(form, source, saturating):
    body, zeros = COMPUTED[form]
    arrays = {"a": np.uint8(0), "z": ZEROS, "s": SCALE, "f": ZEROS.astype(np.float32)}
    if source == "node":
        body, arrays = f"W = Cast <to = 3> (V) {body}", {**arrays, "V": BYTES.astype(np.float32)}
    model = graph_of(body, ROWS, {name: array for name, array in arrays.items() if name in body})
    feeds = {"X": ROWS}
    if source == "input":
        model.graph.input.append(helper.make_tensor_value_info("W", TensorProto.INT8, BYTES.shape))
        feeds["W"] = BYTES
    changed = onnx.load_model_from_string(wrong_kernels.exact(model.SerializeToString()))
    onnx.checker.check_model(changed, full_check=True)
    nodes = [node for graph in wrong_kernels.graphs_within(changed.graph) for node in graph.node]
    made = {name for node in nodes for name in node.output if "_unsigned" in name}
    products = [node for node in nodes if node.op_type == "MatMulInteger"]
    assert products
    assert {node.input[1] for node in products} <= made
    (found,) = run_by_default(changed, feeds)
    assert_array_equal(found, np.broadcast_to(product(ROWS, zeros), found.shape))
    assert wrong_kernels.exact(changed.SerializeToString()) == changed.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        "Y = QLinearMatMul(X, s, a, W, s, z, t, a)",
        "I = Identity(X) J = Reshape(I, sizes) Y = QLinearMatMul(J, s, a, W, s, z, t, a)",
    ],
)
def test_two_signed_operands_are_unchanged(body, saturating):
    """Their kernel is exact on every processor, and none takes signed rows and unsigned weights."""
    arrays = {"s": SCALE, "a": np.int8(0), "W": BYTES, "z": np.int8(0), "t": LARGE, "sizes": np.array([-1, 64])}
    arrays = {name: array for name, array in arrays.items() if name != "sizes" or "sizes" in body}
    model = graph_of(body, ROWS, arrays)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.INT8
    assert wrong_kernels.exact(model.SerializeToString()) == model.SerializeToString()
    session = sessions.create_session(model.SerializeToString(), resolve_device())
    rows = np.full((5, 64), 127, np.int8)
    (found,) = sessions.run_session(session, ["Y"], {"X": rows})
    assert_array_equal(found, np.rint(product(rows) / 10000))


def test_the_probe_compares_with_the_exact_product(monkeypatch):
    monkeypatch.delenv(wrong_kernels.VARIABLE, raising=False)
    (found,) = run_by_default(wrong_kernels._product(), {"rows": ROWS})
    assert wrong_kernels.saturate() == bool((found != 255 * 127 * 64).any())
    wrong = helper.make_node("Sub", ["exact", "one"], ["product"])
    model = wrong_kernels._product()
    model.graph.node[0].output[0] = "exact"
    model.graph.node.append(wrong)
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), "one"))
    monkeypatch.setattr(wrong_kernels, "_product", lambda: model)
    assert wrong_kernels._probe.__wrapped__()


def test_the_environment_takes_the_place_of_the_probe(monkeypatch):
    for value, expected in wrong_kernels.KINDS.items():
        monkeypatch.setenv(wrong_kernels.VARIABLE, value)
        assert wrong_kernels.saturate() is expected
    monkeypatch.setenv(wrong_kernels.VARIABLE, "fast")
    with pytest.raises(ValueError, match=r"must be one of \['exact', 'saturating'\] or not set, got 'fast'"):
        wrong_kernels.saturate()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("name", ["quantized_mlp", "quantized_cnn"])
def test_files_that_are_given_back_hold_the_same_numbers_either_way(name, adapter, monkeypatch):
    """Unsigned bytes stand for the numbers of the signed ones, with the zero point of 128."""
    model = onnx.load(DATA / f"{name}.onnx")
    X = RNG.random((64, 64)).astype(np.float32).reshape(64, *((64,) if name == "quantized_mlp" else (1, 8, 8)))
    files = {}
    for kind in wrong_kernels.KINDS:
        monkeypatch.setenv(wrong_kernels.VARIABLE, kind)
        settings = {"max_iter": 2, "shuffle": False, "random_state": 0}
        fitted = OrtGradientClassifier(GraphModel(model, output_kind="scores"), **settings).fit(X, np.arange(64) % 10)
        files[kind] = fitted.to_onnx(adapter=adapter)
        assert_allclose(run_by_default(files[kind], {"X": X})[1], fitted.predict_proba(X), rtol=0, atol=0.05)
    assert TensorProto.INT8 in types_of(files["exact"])
    assert TensorProto.INT8 not in types_of(files["saturating"])
    signed, unsigned = (numbers_of(files[kind]) for kind in ("exact", "saturating"))
    assert [a.tolist() for a in signed] == [a.tolist() for a in unsigned]


def numbers_of(model):
    """Return the weights that integers stand for, less their zero points."""
    held = {name: numpy_helper.to_array(tensor) for name, tensor in constants_of(model).items() if tensor.data_type}
    read = [n.input for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in held]
    return [held[w].astype(int) - held[z].reshape(-1, *[1] * (held[w].ndim - 1)).astype(int) for w, _, z in read]
