"""What else is made from quantized graphs: conversions, adapters and new heads keep the pairs and names of the file."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_array_equal
from onnx import TensorProto
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from onnxtrain_sklearn import FineTuner, GraphModel, LoRA, OrtGradientClassifier
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import DATA
from tests.helpers.faults import shift_compared_outputs
from tests.helpers.quantized import BYTES, run_exactly

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
DIGITS, LABELS = load_digits(return_X_y=True)
DIGITS = (DIGITS / 16).astype(np.float32)
FILES = {"quantized_mlp": (64,), "quantized_cnn": (1, 8, 8)}
PAIR = ("QuantizeLinear", "DequantizeLinear")
files = pytest.mark.parametrize("name", FILES)


def read(name):
    return onnx.load(DATA / f"{name}.onnx"), DIGITS.reshape(-1, *FILES[name])


def trained(model, rows, **settings):
    common = {"max_iter": 3, "learning_rate_init": 0.01, "random_state": 0}
    given = GraphModel(model, output_kind="scores")
    return OrtGradientClassifier(given, **common | settings).fit(rows[:300], LABELS[:300])


def counts(model):
    kinds = [node.op_type for node in model.graph.node]
    return [kinds.count(kind) for kind in (*PAIR, "Round")]


def run(model, rows, options=None):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: rows}, options)


@pytest.mark.parametrize("opset", [15, 18])
def test_skl2onnx_writes_integers_and_pairs(opset):
    skl2onnx = pytest.importorskip("skl2onnx")
    model, rows = read("quantized_mlp")
    pipeline = make_pipeline(MinMaxScaler((0, 1)), trained(model, rows)).fit(rows[:300], LABELS[:300])
    options = {id(pipeline[-1]): {"zipmap": False}}
    converted = skl2onnx.to_onnx(pipeline, rows[:1], options=options, target_opset=opset)
    assert counts(converted) == [*counts(model)[:2], 0]
    kinds = {tensor.data_type for tensor in converted.graph.initializer}
    assert {BYTES, TensorProto.INT32} <= kinds
    assert equal_rows(run(converted, rows)[1], pipeline.predict_proba(rows)) > 0.99


@files
def test_a_graph_for_adapters_rounds_by_pairs(name, tmp_path):
    model, rows = read(name)
    fitted = trained(model, rows)
    open_graph = fitted.to_onnx(adapter=True)
    pairs, biases = counts(model)[0] + 2, 2
    assert counts(open_graph) == [pairs, pairs, biases]
    assert {value.name for value in open_graph.graph.input} == {"X", *fitted.weights_}
    assert equal_rows(run(open_graph, rows)[1], run_scores(model, rows)) > 0.99
    if not hasattr(onnxruntime, "LoraAdapter"):
        return
    fitted.save_adapter(tmp_path / "own.onnx_adapter")
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(tmp_path / "own.onnx_adapter"))
    options.add_active_adapter(adapter)
    assert equal_rows(run(open_graph, rows, options)[1], fitted.predict_proba(rows)) > 0.99


def equal_rows(found, wanted):
    """Return the share of equal rows: a tie may be rounded the other way where a runtime joins other nodes."""
    return (np.abs(found - wanted).max(axis=1) < 1e-5).mean()


def run_scores(model, rows):
    scores = run_exactly(model, {model.graph.input[0].name: rows})[0].astype(np.float64)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@files
@pytest.mark.long
def test_a_new_head_reads_quantized_features(name):
    model, rows = read(name)
    y = LABELS % 3
    fitted = OrtGradientClassifier(model, finetune=FineTuner(new_head=True), random_state=0).fit(rows[:200], y[:200])
    exported = fitted.to_onnx()
    last = [node for node in model.graph.node if node.op_type == "Gemm"][-1]
    head = next(node for node in exported.graph.node if "head.weight" in node.input)
    assert head.input[0] == last.input[0]
    assert counts(exported) == [counts(model)[0] - 1, counts(model)[1] - 3, 0]
    assert_array_equal(run(exported, rows)[0], fitted.predict(rows))
    assert fitted.score(rows[200:], y[200:]) > 0.7


@pytest.mark.long
def test_tensors_are_named_as_in_the_file():
    model, rows = read("quantized_mlp")
    features = "/1/Relu_output_0_DequantizeLinear_Output"
    settings = {"finetune": FineTuner(new_head=True, tune_body=False, cv=2, max_iter=5), "random_state": 0}
    named = OrtGradientClassifier(GraphModel(model, output=features), **settings).fit(rows[:200], LABELS[:200] % 3)
    found = OrtGradientClassifier(model, **settings).fit(rows[:200], LABELS[:200] % 3)
    assert_array_equal(named.predict_proba(rows), found.predict_proba(rows))
    with pytest.raises(ModelError, match="is no float tensor inside the graph") as error:
        OrtGradientClassifier(GraphModel(model, output="nothing"), **settings).fit(rows[:200], LABELS[:200])
    assert features in str(error.value)
    assert "fake" not in str(error.value)


def test_low_rank_factors_are_refused():
    model, rows = read("quantized_mlp")
    with pytest.raises(ValueError, match=r"holds.* as integers: .* Leave adapters=None"):
        trained(model, rows, adapters=LoRA(2, ["0.weight"]))
    with pytest.raises(ModelError, match=r"integers among them.* Take export_training"):
        trained(model, rows).to_training_onnx()


@pytest.mark.parametrize(("shift", "starts"), [(0.02, True), (5.0, False)])
def test_scores_may_differ_by_quantization_steps(shift, starts, monkeypatch):
    """One session computes products of integers, another one of floats: a tie is rounded otherwise."""
    shift_compared_outputs(monkeypatch, shift)
    if starts:
        assert trained(*read("quantized_mlp")).t_ == 900
        return
    with pytest.raises(ModelError, match=r"Training would not start from the given graph: .* differ by up to 5 "):
        trained(*read("quantized_mlp"))
