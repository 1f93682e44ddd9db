"""Opsets and IR versions of a model: what is taken, converted and refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import rows
from tests.helpers.graphs import W, from_file, model, operator_types, trainable
from tests.helpers.runtimes import INSTALLED, NEWER, NEWEST, OLDER, each_runtime
from tests.helpers.training import one_step


def read(proto, limits=None):
    """Return the graph as it is trained, for a runtime of these limits."""
    return from_file(proto, limits).model


def squeezing_net(opset):
    squeeze = "Squeeze(R, axes)" if opset >= 13 else "Squeeze <axes = [1]> (R)"
    weights = "float[3, 2] A = {0.1, 0.2, -0.3, 0.4, 0.5, -0.6}, float[2] b = {0.1, -0.2}, float[2, 1] W = {0.7, -0.8}"
    weights += ", int64[1] axes = {1}" if opset >= 13 else ""
    body = f"H = Gemm(X, A, b) T = Tanh(H) R = MatMul(T, W) Y = {squeeze}"
    return model(body, y="float[N] Y", weights=weights, opset=opset)


@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_every_opset_takes_the_right_step(opset):
    X, y = rows(), rows(8, 1, seed=1).ravel()
    A, b, w = np.array([[0.1, 0.2], [-0.3, 0.4], [0.5, -0.6]]), np.array([0.1, -0.2]), np.array([[0.7], [-0.8]])
    trained = one_step(squeezing_net(opset), X, y)
    hidden = np.tanh(X @ A + b)
    slope = 2 * (hidden @ w - y[:, None]) / len(y)
    back = (slope @ w.T) * (1 - hidden**2)
    expected = {"A": A - 0.1 * X.T @ back, "b": b - 0.1 * back.sum(axis=0), "W": w - 0.1 * hidden.T @ slope}
    for name, array in expected.items():
        np.testing.assert_allclose(trained.weights_[name], array, rtol=0, atol=1e-6, err_msg=name)
    versions = {entry.domain: entry.version for entry in trained.to_onnx().opset_import}
    assert versions == {"": min(max(opset, 11), INSTALLED.opset, 26)}


@each_runtime
@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_supported_opset_is_kept(opset, limits):
    assert read(squeezing_net(opset), limits).opset_imports == {"": min(max(opset, 11), limits.opset)}


ONLY_NEWER = [
    (23, "H = MatMul(X, W) Y = RMSNormalization(H, one)", "No Previous Version of RMSNormalization exists"),
    (24, "H = MatMul(X, W) Y = Swish(H)", "No Previous Version of Swish exists"),
    (24, 'H = Cast <to = 11, round_mode = "down"> (X) I = Cast <to = 1> (H) Y = MatMul(I, W)', "round_mode"),
]


@pytest.mark.parametrize(("opset", "body", "reason"), ONLY_NEWER)
def test_operator_that_the_runtime_is_too_old_for(opset, body, reason):
    proto = model(body, opset=opset, ir_version=10, weights=f"{W}, float[1] one = {{1}}")
    text = rf"of opset {opset}; onnxruntime 1\.19\.2 can train opsets 11 to 21, .* to 21: .*{reason}.*\. Export"
    with pytest.raises(ModelError, match=rf"{text} .* in that range .* or use a newer onnxruntime\.") as error:
        read(proto, OLDER)
    assert "/project/" not in str(error.value)
    assert read(proto, NEWER).opset_imports == {"": opset}


@pytest.mark.skipif(NEWEST < 28, reason="this version of onnx has no opset 28")
def test_setting_that_no_opset_in_the_range_has():
    body = 'H = SpaceToDepth <blocksize = 2, mode = "CRD"> (X) F = Flatten(H) Y = MatMul(F, W)'
    proto = model(body, opset=28, x="float[N, 1, 2, 2] X", weights="float[4, 1] W = {1, 2, 3, 4}")
    for limits, newest in ((OLDER, 21), (NEWER, 26), (replace(NEWER, opset=28), 26)):
        with pytest.raises(ModelError, match=rf"opset 28; .* 11 to {newest}, .* to {newest}: .*mode.* good choice\)\."):
            read(proto, limits)


def test_newer_opset_of_the_other_domain():
    body = "H = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (X) Y = MatMul(H, W)"
    proto = model(body, more=(', "ai.onnx.ml": 3', ""))
    assert read(proto, replace(OLDER, ml_opset=3)).opset_imports["ai.onnx.ml"] == 3
    with pytest.raises(ModelError, match=r"opset 3 of ai\.onnx\.ml; onnxruntime 1\.19\.2 reads .* up to 2\. Export"):
        read(proto, replace(OLDER, ml_opset=2))
    assert read(model(more=(', "ai.onnx.ml": 3', "")), replace(OLDER, ml_opset=2)).graph


@each_runtime
@pytest.mark.parametrize("ir_version", [4, 8, 10, 11, 13, onnx.IR_VERSION])
def test_supported_ir_version_is_kept(ir_version, limits):
    assert read(model(ir_version=ir_version), limits).ir_version == min(ir_version, limits.ir_version)


@pytest.mark.parametrize("ir_version", [4, 8, 10, 11, 13, onnx.IR_VERSION])
def test_ir_version_of_the_trained_graph(ir_version):
    trained = one_step(model(ir_version=ir_version), rows(), rows(8, 1).ravel())
    assert trained.to_onnx().ir_version == min(ir_version, INSTALLED.ir_version)


def test_newest_ir_version_with_an_old_opset():
    assert trainable(opset=18, ir_version=onnx.IR_VERSION).parameters == ("W",)


@pytest.mark.parametrize(
    ("kind", "opset", "since"),
    [(16, 18, 4), (17, 19, 9), (22, 21, 10), (23, 23, 11), (24, 24, 12), (25, 25, 13), (26, 25, 13)],
)
def test_types_that_older_ir_versions_lack(kind, opset, since):
    body = f"H = MatMul(X, W) Q = Cast <to = {kind}> (H) R = Cast <to = 1> (Q) Y = Add(H, R)"
    proto = model(body, opset=opset, ir_version=onnx.IR_VERSION)
    for ir_version in (10, 11, 12, 13):
        limits = replace(NEWER, ir_version=ir_version)
        if since <= ir_version:
            assert read(proto, limits).ir_version == ir_version
        else:
            text = (
                rf"version {onnx.IR_VERSION} and uses \w+ in 'Q', .* {ir_version}, .* onnxruntime 1\.31\.1 reads, lacks"
            )
            with pytest.raises(ModelError, match=text):
                read(proto, limits)


def test_default_domain_listed_twice_counts_the_last():
    proto = model("Y = ReduceMean <axes = [1]> (H) H = Mul(X, W)", weights="float[1, 3] W = {1, 2, 3}", opset=NEWEST)
    proto.graph.node.reverse()
    proto.opset_import.add(domain="", version=13)
    assert read(proto).opset_imports == {"": 13}
    proto.opset_import.add(domain="ai.onnx", version=17)
    assert read(proto).opset_imports == {"": 17}
    assert one_step(proto, rows(), rows(8, 1).ravel()).to_onnx().opset_import[0].version == 17


def test_default_domain_by_its_long_name():
    graph = "g () => (float[N, 1] Z) { Z = ai.onnx.MatMul(X, W) }"
    proto = model(
        f"H = ai.onnx.If (yes) <then_branch = {graph}, else_branch = {graph.replace('Z', 'V')}> Y = ai.onnx.Sigmoid(H)",
        weights=f"{W}, bool yes = {{1}}",
    )
    proto.opset_import[0].domain = "ai.onnx"
    found = from_file(proto)
    assert found.model.opset_imports == {"": 18}
    assert {node.domain for node in found.model.graph.all_nodes()} == {""}
    assert (found.scores, found.link) == ("H", "sigmoid")


def test_no_opset():
    proto = model()
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="imports no opset"):
        read(proto)


@pytest.mark.parametrize(("opset", "inner"), [(18, 18), (22, 22), (10, 10), (18, 13), (12, 9), (NEWEST, 18)])
def test_local_functions_are_inlined(opset, inner):
    mean = "ReduceMean <axes = [1], keepdims = 1> (c)" if inner < 18 else "ReduceMean <keepdims = 1> (c, axes)"
    constant = "" if inner < 18 else "axes = Constant <value = int64[1] {1}> ()"
    function = f"""<domain: "own", opset_import: ["": {inner}]>
        center (c) => (r) {{ {constant} m = {mean} r = Sub(c, m) }}"""
    twice = "A = own.center(X) B = own.center(A)" if inner == opset else "B = own.center(X)"
    proto = model(f"{twice} Y = MatMul(B, W)", opset=opset, more=(', "own": 1', function))
    found = from_file(proto)
    assert not found.model.functions
    assert "center" not in operator_types(found.model.graph)
    X = rows()
    expected = (X - X.mean(axis=1, keepdims=True)) @ [[1.0], [-2], [3]]
    fitted = one_step(proto, X, np.zeros(len(X)), 0.0)
    np.testing.assert_allclose(fitted.predict(X)[:, np.newaxis], expected, rtol=0, atol=1e-5)
    assert {entry.domain for entry in fitted.to_onnx().opset_import} == {""}


def test_recursive_function():
    function = '<domain: "own", opset_import: ["": 18, "own": 1]> f (c) => (r) { m = Relu(c) r = own.f(m) }'
    with pytest.raises(ModelError, match=r"functions cannot be inlined: .*own::f"):
        read(model("H = own.f(X) Y = MatMul(H, W)", more=(', "own": 1', function)))
