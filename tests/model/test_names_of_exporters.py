"""Constants whose names tell what they are: those that exporters make up, and those of parameters and buffers.

The names are from files of PaddleOCR, YOLOv8, Magika, Basic Pitch and Silero VAD.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxtrain_sklearn import OrtGradientRegressor
from tests.helpers.data import rows
from tests.helpers.environment import available_engines

WEIGHTS = {"w": np.full((3, 4), 0.5, np.float32), "v": np.full((4, 1), 0.5, np.float32)}
GELU = "a = MatMul(X, w) d = Div(a, {}) e = Erf(d) y = MatMul(e, v)"
SCALED = "a = MatMul(X, w) r = Relu(a) d = Mul(r, {}) y = MatMul(d, v)"
SHIFTED = "a = MatMul(X, w) r = Relu(a) d = Add(r, {}) y = MatMul(d, v)"
CROPPED = """x = Unsqueeze(X, one) c = Conv(x, k) s = Slice(c, zero, two, last) b = Add(s, {}) f = Flatten(b)
    y = ReduceMean <keepdims = 1> (f, one)"""
SPECTRUM = "x = Unsqueeze(X, one) c = Conv(x, {}) f = Flatten(c) h = MatMul(f, q) y = MatMul(h, v)"
KERNEL = {"k": np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 1, 2)}
NUMBERS, CHANNELS = np.float32(0.7), np.linspace(0.1, 1, 4).astype(np.float32)

CONSTANTS = {
    "PaddlePaddle: a root in GELU": (GELU, "helper.constant.0", NUMBERS, WEIGHTS),
    "PaddlePaddle: a root in GELU of older files": (GELU, "p2o.helper.constant.3", NUMBERS, WEIGHTS),
    "PaddlePaddle: a number in hard swish": (SHIFTED, "Constant@1", NUMBERS, WEIGHTS),
    "PaddlePaddle: a scale of scores": (SCALED, "auto.cast.74", NUMBERS.reshape(1), WEIGHTS),
    "YOLO: the stride of a level": (SHIFTED, "/model.22/Squeeze_1_output_0", NUMBERS, WEIGHTS),
    "YOLO: anchors that a simplifier folded": (SHIFTED, "/model.22/Concat_4_output_0", CHANNELS, WEIGHTS),
    "tf2onnx: the reciprocal in a mean": (SCALED, "net/LayerNorm_1/truediv_recip:0", NUMBERS, WEIGHTS),
    "TensorFlow Lite: a fused logarithm": (SCALED, "net/log/truediv;net/log/Log_1", NUMBERS, WEIGHTS),
    "PyTorch: a number of a decomposed operator": (SHIFTED, "scalar_tensor_default_3", NUMBERS, WEIGHTS),
    "PyTorch: a basis of a transform": (
        SPECTRUM, "stft.forward_basis_buffer", KERNEL["k"], {"q": np.full((10, 4), 0.2, np.float32), "v": WEIGHTS["v"]}
    ),
}  # fmt: skip
PARAMETERS = {
    "PaddlePaddle: a scale that is learned": (SCALED, "mobile_one_block_0.w_0", NUMBERS.reshape(1), WEIGHTS),
    "PaddlePaddle: a shift that is learned": (SHIFTED, "mobile_one_block_0.w_1", NUMBERS.reshape(1), WEIGHTS),
    "PaddlePaddle: an array under the name of a cast": (SHIFTED, "auto.cast.9", CHANNELS, WEIGHTS),
    "PyTorch: a number of a module": (SCALED, "logit_scale", NUMBERS, WEIGHTS),
    "TensorFlow: a variable": (SCALED, "net/temperature/Mul/ReadVariableOp:0", NUMBERS, WEIGHTS),
    "tf2onnx: a bias after a slice": (
        CROPPED, "const_fold_opt__209", np.zeros((1, 5, 1), np.float32), KERNEL
    ),
}  # fmt: skip


def model(body: str, name: str, array: np.ndarray, others: dict[str, np.ndarray], *, in_nodes: bool) -> onnx.ModelProto:
    """A graph with a constant of this name, which the parser of texts could not read, as a node or an initializer."""
    sizes = "int64[1] one = {1}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] last = {2}"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] y) <{sizes}>'
        f"{{ {body.format('place')} }}"
    )
    for node in proto.graph.node:
        node.input[:] = [name if x == "place" else x for x in node.input]
    tensors = [numpy_helper.from_array(np.asarray(a), key) for key, a in {name: array, **others}.items()]
    if in_nodes:
        nodes = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in tensors]
        nodes += proto.graph.node
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
    else:
        proto.graph.initializer.extend(tensors)
    return proto


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("in_nodes", [False, True], ids=["initializers", "nodes"])
@pytest.mark.parametrize("case", CONSTANTS)
def test_constants_computed_by_an_exporter_are_not_trained(case, in_nodes):
    body, name, array, others = CONSTANTS[case]
    net = OrtGradientRegressor(model(body, name, array, others, in_nodes=in_nodes), max_iter=3)
    net.fit(rows(), rows(8, 1, seed=1).ravel())
    assert set(net.weights_) == set(others)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_under_odd_names_are_trained(case, engine):
    body, name, array, others = PARAMETERS[case]
    net = OrtGradientRegressor(model(body, name, array, others, in_nodes=False), max_iter=3, engine=engine)
    net.fit(rows(), rows(8, 1, seed=1).ravel())
    assert set(net.weights_) == {name, *others}
    assert np.abs(net.weights_[name] - array).max() > 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_paddle_parameters_in_constant_nodes_are_trained():
    body, name, array, others = PARAMETERS["PaddlePaddle: a scale that is learned"]
    net = OrtGradientRegressor(model(body, name, array, others, in_nodes=True), max_iter=3)
    net.fit(rows(), rows(8, 1, seed=1).ravel())
    assert set(net.weights_) == {name, *others}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_program_numbers_beside_folded_parameters_are_not_trained():
    """What was computed of ``tau`` is no node of the file, so that other unknown names may stand for it."""
    proto = model(SHIFTED, "scalar_tensor_default", NUMBERS, WEIGHTS, in_nodes=False)
    lines = ["# inputs", *(f"p_{name}: PARAMETER target='{name}'" for name in ("w", "v", "tau"))]
    signature = "\n".join([*lines, "x: USER_INPUT", "# outputs", "y: USER_OUTPUT"])
    proto.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    reads = {"MatMul": "%x, %p_w", "Relu": "%mm", "Add": "%relu, %scalar_tensor_default"}
    for node, (name, call) in zip(
        proto.graph.node, zip(("mm", "relu", "add"), reads.items(), strict=True), strict=False
    ):
        target = f"call_function[target=torch.ops.aten.{name}.default]"
        line = f"%{name} : [num_users=1] = {target}(args = ({call[1]}), kwargs = {{}})"
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=line)
    net = OrtGradientRegressor(proto, max_iter=3).fit(rows(), rows(8, 1, seed=1).ravel())
    assert set(net.weights_) == {"w", "v"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("body", "trained"), [("u = Unsqueeze(X, two) s = Sub(u, centers)", True), ("s = Sub(X, mean)", False)]
)
def test_distance_centers_train_and_data_mean_does_not(body, trained):
    text = f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] y)
        <int64[1] two = {{2}}, int64[2] flat = {{0, -1}}, float[4] centers = {{-1, -0.3, 0.4, 1}},
         float[3] mean = {{0.1, 0.2, 0.3}}>
        {{ {body} q = Mul(s, s) n = Neg(q) e = Exp(n) f = Reshape(e, flat) y = MatMul(f, w) }}"""
    proto = onnx.parser.parse_model(text)
    w = np.linspace(-1, 1, 12 if trained else 3, dtype=np.float32)[:, None]
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    net = OrtGradientRegressor(proto, max_iter=3).fit(rows(), rows(8, 1, seed=1).ravel())
    assert set(net.weights_) == ({"w", "centers"} if trained else {"w"})


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_transposed_weight_that_the_body_of_a_scan_reads_is_trained():
    """The exporter computes it in advance, and names the body as the module of its nodes."""
    text = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] y)
        <float[3, 3] permute = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3, 1] v = {1, -1, 2}, int64[2] steps = {0, 1}>
        { h = Scan <num_scan_inputs = 1, body = b (float[N, 3] s, int64 i) => (float[N, 3] t)
            { m = MatMul(s, permute) t = Tanh(m) }> (X, steps)
          y = MatMul(h, v) }"""
    proto = onnx.parser.parse_model(text)
    lines = ["# inputs", "p_a_weight: PARAMETER target='a.weight'", "p_v: PARAMETER target='v'", "x: USER_INPUT"]
    signature = "\n".join([*lines, "# outputs", "y: USER_OUTPUT"])
    proto.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    scan, product = proto.graph.node
    inner = next(a.g for a in scan.attribute if a.name == "body").node[0]
    calls = ((inner, "matmul", "%s, %permute"), (scan, "scan", "%x, %p_a_weight"), (product, "matmul_1", "%h, %p_v"))
    for node, name, reads in calls:
        target = "call_function[target=torch.ops.aten.matmul.default]"
        call = f"%{name} : [num_users=1] = {target}(args = ({reads}), kwargs = {{}})"
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=call)
    net = OrtGradientRegressor(proto, max_iter=3, engine="portable").fit(rows(), rows(8, 1, seed=1).ravel())
    assert {name.rpartition("/")[2] for name in net.weights_} == {"permute", "v"}
