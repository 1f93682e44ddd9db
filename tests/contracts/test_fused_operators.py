"""Operators that onnxruntime's optimizers write: in ONNX's own they compute the same, and have the right gradient.

Values are compared with onnxruntime's kernel of the fused operator, or with numpy where the installed one has none. The
gradients are compared with central differences in float64 of what the operator was put into.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import helper, numpy_helper

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._importers.ort_fusions import FIRST_OPSETS, LOWERINGS, lower
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._model.precision import in_dtype
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.contracts.fused_cases import CASES, CONTRIB
from tests.helpers.environment import available_engines

NO_KERNEL = "NOT_IMPLEMENTED|is not a registered function/op|Could not find an implementation|No Op registered"


def fused_model(one, opset, *, dynamic=False):
    """Return a model of the node; its float outputs, weighted, sum up to the first output."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(one.inputs)]
    outputs = [f"y{i}" if i in one.outputs else "" for i in range(max(one.outputs) + 1)]
    node = helper.make_node(
        one.operator.rpartition(".")[2], names, outputs, name="node", domain=one.domain, **one.attributes
    )
    given, constants = [], []
    for i, x in ((i, x) for i, x in enumerate(one.inputs) if x is not None):
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        if i in one.constants:
            constants.append(helper.make_tensor(f"x{i}", kind, x.shape, x.ravel().tolist()))
            continue
        shape = ["N", *x.shape[1:]] if dynamic and rows_of_fused(one, i) else x.shape
        given.append(helper.make_tensor_value_info(f"x{i}", kind, shape))
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in one.outputs]
    for value in results:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32 if counts(one, value.name) else onnx.TensorProto.FLOAT
    graph = helper.make_graph([node], "net", given, results, constants)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def rows_of_fused(one, index):
    """Whether the first axis of an input is that of the rows."""
    x, first = one.inputs[index], one.inputs[0]
    weights = {"Gemm": (), "FusedGemm": (), "FusedMatMul": (), "TransposeMatMul": (), "GemmFastGelu": ()}
    if one.operator.rpartition(".")[2] in weights or x.ndim < 2 or x.shape[0] != first.shape[0]:
        return index == 0 and one.operator.rpartition(".")[2] == "GemmFastGelu"
    return "Conv" not in one.operator or index in (0, 3)


def counts(one, name):
    return one.operator.endswith("EmbedLayerNormalization") and name == "y1"


def feeds(one, kind=np.float32):
    known = {f"x{i}": x for i, x in enumerate(one.inputs) if x is not None and i not in one.constants}
    return {name: x.astype(kind) if x.dtype == np.float32 else x for name, x in known.items()}


def session_of(proto):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_fused(proto, given, names=None):
    return session_of(proto).run(names, given)


def expected_of_fused(one, proto):
    """Return what onnxruntime's kernel computes, or numpy where there is none."""
    if one.broken and onnxruntime.__version__.startswith(one.broken):
        found = one.reference(*one.inputs)
        return found if isinstance(found, list) else [found]
    try:
        return run_fused(proto, feeds(one))
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)) or one.reference is None:
            raise
        return [one.reference(*one.inputs)]


def lowered(one, proto):
    result = lower(ir.from_proto(proto))
    left = [node for node in result.graph.all_nodes() if node.domain or node.op_type in FIRST_OPSETS]
    assert not [node for node in left if node.domain == CONTRIB]
    return to_proto(result)


def variants_of_fused(*, right, newest=False):
    for index, one in enumerate(CASES):
        if bool(one.refused) != right:
            for opset in one.opsets[-1:] if newest else one.opsets:
                yield pytest.param(one, opset, id=f"{one.operator.rpartition('.')[2]}-{index}-opset{opset}")


def covered_by_fused(one, opset, engine=None):
    """Return the operator with its attributes, with each input that is there, and with the engine."""
    given = [i for i, x in enumerate(one.inputs) if x is not None]
    return {(one.operator, subject) for subject in (*one.attributes, *given, engine)}


@pytest.mark.thinned(by=covered_by_fused)
@pytest.mark.parametrize(("one", "opset"), variants_of_fused(right=True))
def test_values_are_those_of_the_kernel(one, opset):
    """The number of rows is fixed in the oldest opset, and not in the others."""
    proto = fused_model(one, opset, dynamic=opset != one.opsets[0])
    for found, wanted in zip(run_fused(lowered(one, proto), feeds(one)), expected_of_fused(one, proto), strict=True):
        assert found.shape == wanted.shape
        assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def with_fused_loss(one, opset, dynamic):
    """Return the model with a weighted sum of its float outputs as the output that is differentiated."""
    proto = fused_model(one, opset, dynamic=dynamic)
    values = run_fused(lowered(one, proto), feeds(one))
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


def fused_differences(proto, one, names):
    """Return random directions by input, and the slopes along them: central differences in float64."""
    double = to_proto(in_dtype(lower(ir.from_proto(proto)), ir.DataType.DOUBLE))
    session = session_of(double)
    given, rng = feeds(one, np.float64), np.random.default_rng(11)
    for name in names * DIRECTIONS:
        direction = rng.normal(size=given[name].shape)
        ends = [session.run(["loss"], {**given, name: given[name] + step * direction})[0] for step in (1e-5, -1e-5)]
        yield name, direction, (ends[0] - ends[1]) / 2e-5


@pytest.mark.proof(operators=lambda one, opset, engine: one.operator.rpartition(".")[2])
@pytest.mark.thinned(by=covered_by_fused)
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("one", "opset"), variants_of_fused(right=True, newest=True))
def test_gradients_are_right(one, opset, engine):
    """The engine for training may lack the gradient of what an operator consists of; the portable one may not."""
    names = [name for name, x in feeds(one).items() if x.dtype == np.float32 and x.ndim]
    proto = with_fused_loss(one, opset, dynamic=False)
    try:
        slopes = list(fused_differences(proto, one, names))
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)):
            raise
        pytest.skip(f"no differences in float64: {error}")
    for dynamic in (False, True):
        try:
            graph = gradient_graph(with_fused_loss(one, opset, dynamic), wrt=names, engine=engine)
        except UnsupportedOperatorError:
            if engine == "portable":
                raise
            continue
        found = dict(zip(names, run_fused(graph, feeds(one), [f"{name}_grad" for name in names]), strict=True))
        for name, direction, wanted in slopes:
            scale = max(1.0, np.abs(found[name]).sum())
            assert found[name].shape == direction.shape
            assert_allclose((found[name] * direction).sum(), wanted, rtol=1e-4, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize(("one", "opset"), variants_of_fused(right=False, newest=True))
@pytest.mark.parametrize("engine", available_engines())
def test_fused_operators_without_a_standard_form_are_refused(one, opset, engine):
    proto = fused_model(one, opset)
    proto.graph.node.append(helper.make_node("ReduceSum", ["y0"], ["loss"], "sum", keepdims=0))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    for name in [name for name in proto.graph.node[0].output if name != "y0"]:  # a node whose outputs are read
        proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["a", "b", "c"]))
    with pytest.raises(UnsupportedOperatorError, match=re.escape(one.refused)):
        gradient_graph(proto, wrt="x0", of="loss", engine=engine)


def right_cases(operator):
    return [one for one in CASES if one.operator == operator and not one.refused]


@pytest.mark.parametrize("operator", LOWERINGS)
def test_everything_honored_has_a_case(operator):
    """Attributes of every form are set in a case, inputs given and outputs read."""
    form, cases = LOWERINGS[operator], right_cases(operator)
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


@pytest.mark.parametrize("operator", LOWERINGS)
def test_each_attribute_matters(operator):
    """Without it, some case gives other values, or none at all."""
    for name in set(LOWERINGS[operator].values) - NOTHING:
        assert any(changes(one, name) for one in right_cases(operator) if name in one.attributes), name


def changes(one, name):
    opset = min(one.opsets)
    proto = fused_model(one, opset)
    with_it = run_fused(lowered(one, proto), feeds(one))
    del proto.graph.node[0].attribute[[a.name for a in proto.graph.node[0].attribute].index(name)]
    try:
        without = run_fused(lowered(one, proto), feeds(one))
    except Exception:
        return True
    return any(a.shape != b.shape or not np.allclose(a, b, 1e-4, 1e-5) for a, b in zip(with_it, without, strict=True))


@pytest.mark.parametrize("operator", [name for name in LOWERINGS if name.startswith(CONTRIB)])
def test_an_attribute_or_input_that_is_new_is_refused(operator):
    """As a newer onnxruntime may bring one."""
    one = right_cases(operator)[0]
    proto = fused_model(one, 18)
    proto.graph.node[0].attribute.append(helper.make_attribute("brought_later", 1))
    with pytest.raises(AssertionError):
        lowered(one, proto)
    more = fused_model(one, 18)
    inputs = more.graph.node[0].input
    inputs.extend([""] * (LOWERINGS[operator].inputs - len(inputs)))
    inputs.append("x0")
    with pytest.raises(AssertionError):
        lowered(one, more)


def test_names_of_outputs_and_initializers_stay():
    one = next(c for c in CASES if c.operator.endswith("BiasGelu"))
    proto = fused_model(one, 18)
    bias = proto.graph.input.pop()
    proto.graph.initializer.append(numpy_helper.from_array(one.inputs[1], bias.name))
    result = load(proto)
    assert [v.name for v in result.graph.outputs] == ["y0"]
    assert list(result.graph.initializers) == ["x1"]
    onnx.checker.check_model(to_proto(result), full_check=True)
