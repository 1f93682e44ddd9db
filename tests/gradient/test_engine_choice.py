"""``engine="auto"``: of the engines that are proven right for a graph the faster one, by the measured table."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn._gradient import engine as gradient_engine
from onnxtrain_sklearn._gradient.engine import CLEARLY_FASTER, differentiate
from onnxtrain_sklearn._gradient.ort_training import PROVEN
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.helpers.environment import available_engines

BOTH = pytest.mark.skipif(len(available_engines()) < 2, reason="needs onnxruntime-training")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEAD = '<ir_version: 8, opset_import: ["": 18]>'


def nodes(*operators: str) -> list[ir.Node]:
    return [ir.Node("", operator, inputs=[]) for operator in operators]


def network(activation: str) -> onnx.ModelProto:
    """A network with one hidden layer, from ``X`` (N, 4) to three scores."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"{HEAD} net (float[N, 4] X) => (float[N, 3] scores) {{ h = MatMul(X, V) a = {activation}(h)"
        f" scores = MatMul(a, W) }}"
    )
    for name, shape in (("V", (4, 8)), ("W", (8, 3))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


def chosen(operator: str) -> str:
    """Return the engine that differentiates a graph of an operator and a sum."""
    text = f"{HEAD} g (float[3] x) => (float y) {{ z = {operator}(x) y = ReduceSum <keepdims = 0> (z) }}"
    return differentiate(ir.from_proto(onnx.parser.parse_model(text)), ["x"], "y", "auto").engine


def in_table(ratio: float, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_engine, "FAMILIES", {"one": (ratio, operator)})


def test_the_first_family_that_occurs_decides(monkeypatch):
    monkeypatch.setattr(gradient_engine, "FAMILIES", {"heavy": (1.2, "Conv Gemm"), "light": (0.5, "Relu")})
    assert gradient_engine.portable_is_faster(nodes("Relu", "Cos"))
    assert not gradient_engine.portable_is_faster(nodes("Relu", "Relu", "Gemm"))
    assert not gradient_engine.portable_is_faster(nodes("Cos"))
    assert not gradient_engine.portable_is_faster([ir.Node("another.domain", "Relu", inputs=[])])


def test_a_difference_within_the_noise_decides_nothing(monkeypatch):
    in_table((CLEARLY_FASTER + 1) / 2, "Relu", monkeypatch)
    assert not gradient_engine.portable_is_faster(nodes("Relu"))


@BOTH
@pytest.mark.parametrize("operator", ["Relu", "Tanh", "LeakyRelu", "Sigmoid"])
def test_auto_follows_the_table(operator, monkeypatch):
    in_table(0.5, operator, monkeypatch)
    assert chosen(operator) == "portable"
    in_table(1.5, operator, monkeypatch)
    assert chosen(operator) == "ort-training"


@BOTH
def test_the_other_engine_is_taken_where_the_faster_one_refuses(monkeypatch):
    in_table(1.5, "Mish", monkeypatch)
    assert chosen("Mish") == "portable"


def test_unsupported_graph_is_refused_alike_by_either_choice(monkeypatch):
    refusals = []
    for ratio in (1.5, 0.5):
        in_table(ratio, "Hardmax", monkeypatch)
        with pytest.raises(UnsupportedOperatorError) as caught:
            chosen("Multinomial")
        refusals.append(str(caught.value))
        in_table(ratio, "ReduceSum", monkeypatch)
        with pytest.raises(UnsupportedOperatorError) as caught:
            chosen("Multinomial")
        refusals.append(str(caught.value))
    assert len(set(refusals)) == 1


@BOTH
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("activation", ["LeakyRelu", "Tanh", "Relu"])
def test_engine_follows_the_speed_table(activation):
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    classifier = OrtGradientClassifier(network(activation), max_iter=2).fit(X, X[:, :3].argmax(axis=1))
    assert classifier.engine_ == (
        "portable" if gradient_engine.portable_is_faster(nodes(activation)) else "ort-training"
    )


@BOTH
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_named_engine_is_not_replaced():
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    for engine in available_engines():
        classifier = OrtGradientClassifier(network("LeakyRelu"), max_iter=2, engine=engine)
        assert classifier.fit(X, X[:, :3].argmax(axis=1)).engine_ == engine


@pytest.mark.long
def test_the_table_holds_the_families_that_are_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import engine_families

    measured = engine_families.families()
    assert list(gradient_engine.FAMILIES) == list(measured)
    used = {node.op_type for networks in measured.values() for net in networks for node in net.model.model.graph}
    every = [one for _, operators in gradient_engine.FAMILIES.values() for one in operators.split()]
    assert len(every) == len(set(every))
    assert set(every) <= used & set(PROVEN)
    assert all(0.1 < ratio < 10 for ratio, _ in gradient_engine.FAMILIES.values())
    for name in ("engine_families", "engine_step", "fit_step"):
        sys.modules.pop(name, None)


def test_a_default_network_has_an_engine_of_the_table():
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    classifier = OrtGradientClassifier(MLP((4,)), max_iter=500, tol=10).fit(X, X[:, 0] > 0)
    assert classifier.engine_ in available_engines()
