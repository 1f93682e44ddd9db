"""Bounds of clamps that are parameters of PyTorch's modules: trained as there, or named in a warning.

``data/make_torch_exports.py`` wrote the file and what PyTorch trains the module to.
"""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines
from tests.helpers.graphs import from_file

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SETTINGS = {
    "optimizer": SGD(momentum=0.0), "learning_rate_init": 0.05, "batch_size": 12, "max_iter": 5, "tol": 0,
    "shuffle": False,
}  # fmt: skip


@pytest.mark.parametrize("engine", available_engines())
def test_bounds_are_trained_as_in_pytorch(engine):
    with np.load(DATA / "torch_bounded.npz") as archive:
        known = dict(archive)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        trained = OrtGradientRegressor(DATA / "torch_bounded_dynamo.onnx", **SETTINGS, engine=engine)
        trained.fit(known["X"], known["y"].ravel())
    assert_allclose(trained.loss_curve_, known["losses"], rtol=1e-5)
    assert {f"state/{name}" for name in trained.weights_} == {name for name in known if name.startswith("state/")}
    for name, array in trained.weights_.items():
        assert_allclose(array, known[f"state/{name}"], rtol=0, atol=1e-5, err_msg=name)


def graph_of(bounded, *parameters, call=None, initializers="float b = {0.5}", buffers=()):
    """Return a graph of one matrix and a bounded result; the program has ``parameters`` beside the matrix."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18], producer_name: "pytorch">
        g (float[n, 2] x) => (float[n, 1] y) <float[2, 1] w = {{1, 2}}, {initializers}>
        {{ h = MatMul(x, w) c = {bounded} y = Identity(c) }}"""
    )
    if call is not None:
        lines = ["# inputs", "p_w: PARAMETER target='w'", *(f"p_{one}: PARAMETER target='{one}'" for one in parameters)]
        lines += [*(f"b_{one}: BUFFER target='{one}'" for one in buffers), "x: USER_INPUT", "# outputs"]
        model.graph.metadata_props.add(
            key="pkg.torch.export.ExportedProgram.graph_signature", value="\n".join([*lines, "c: USER_OUTPUT"])
        )
        for node, text in ((0, "%h : [num_users=1] = call_function[target=torch.ops.aten.matmul.default]"
                               "(args = (%x, %p_w), kwargs = {})"), (1, call)):  # fmt: skip
            model.graph.node[node].metadata_props.add(key="pkg.torch.onnx.fx_node", value=text)
    return model


def call(function, arguments):
    return f"%c : [num_users=1] = call_function[target=torch.ops.aten.{function}](args = ({arguments}), kwargs = {{}})"


@pytest.mark.parametrize(
    ("bounded", "initializers", "made"),
    [
        ("Clip(h, a, b)", "float a = {-1}, float b = {0.5}", call("minimum.default", "%maximum, %p_high")),
        ("Clip(h, a, b)", "float a = {-1}, float b = {0.5}", call("clamp.Tensor", "%h, %neg, %p_high")),
        ("Max(h, a)", "float a = {-1}", call("maximum.default", "%h, %exp")),
    ],
)
def test_bounds_that_the_record_does_not_tell_are_named_and_kept(bounded, initializers, made):
    with pytest.warns(OnnxTrainWarning, match=r"may be parameters.*: 'a'\. They stay.*, optimize=False\)\."):
        source = from_file(graph_of(bounded, "low", "high", call=made, initializers=initializers))
    assert source.parameters == (("w", "high") if "%p_high" in made else ("w",))


@pytest.mark.parametrize("bounded", ["Clip(h, , {})", "Clip(h, {})", "Min(h, {})", "Max(h, {})"])
@pytest.mark.parametrize("name", ["onnx::Clip_12", "limit"])
def test_ambiguous_bounds_of_older_exporter_are_named(bounded, name):
    model = graph_of(bounded.format("b"))
    next(one for one in model.graph.initializer if one.name == "b").name = name
    for node in model.graph.node:
        node.input[:] = [name if read == "b" else read for read in node.input]
    with pytest.warns(OnnxTrainWarning, match=rf"may be parameters.*: '{name}'\. .*dynamo=True, optimize=False"):
        assert from_file(model).parameters == ("w",)


@pytest.mark.parametrize(
    "model",
    [
        graph_of("Clip(h, a, b)", initializers="float a = {0}, float b = {6}"),
        graph_of("Clip(h, b)", call=call("clamp.default", "%h, 0.5")),
        graph_of("Min(h, b)", "unread", call=call("clamp.Tensor", "%h, None, %b_limit"), buffers=["limit"]),
        graph_of("Clip(h, b, b)", call=call("clamp_max.default", "%clamp, 0.5")),
    ],
    ids=["relu6", "number", "buffer", "fused numbers"],
)  # fmt: skip
def test_other_bounds_are_constants_without_a_warning(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        assert from_file(model).parameters == ("w",)
