"""``training_mode=True``: a graph exported in evaluation mode is trained with batch statistics and Dropout."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import MLP, SGD, FineTuner, GraphModel, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from tests.helpers.data import DATA
from tests.training.test_batch_statistics import X, normalizing_graph, plain_sgd, y

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PLAIN = "B = BN (X, s, b, m, v) Y = MatMul(B, W)"


def evaluating(body=PLAIN, **settings):
    return normalizing_graph(body, mode=0, **settings)


def regressor(model, **settings):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.05, "batch_size": 10, "shuffle": False, "max_iter": 1}
    given = model if isinstance(model, GraphModel) else GraphModel(model, training_mode=True)
    return OrtGradientRegressor(given, **defaults | settings)


@pytest.mark.parametrize("opset", [14, 18, 21])
@pytest.mark.parametrize(("batch", "sizes"), [(10, [10, 10, 3]), (23, [23])])
def test_batch_normalization_is_trained_by_the_formulas(batch, sizes, opset):
    fitted = regressor(evaluating(opset=opset), batch_size=batch).fit(X, y)
    expected = plain_sgd(sizes, 0.05)
    assert len(fitted.weights_) == len(expected)
    for name, array in expected.items():
        assert_allclose(fitted.weights_[name], array, rtol=2e-5, atol=2e-6, err_msg=name)


def test_the_graph_stays_in_evaluation_mode_unless_it_is_asked_for():
    fitted = regressor(GraphModel(evaluating(), training_mode=False), max_iter=3).fit(X, y)
    assert_array_equal(fitted.weights_["m"], np.zeros(3))
    assert_array_equal(fitted.weights_["v"], np.ones(3))


def test_predictions_and_the_export_are_in_evaluation_mode():
    fitted = regressor(evaluating(), max_iter=4).fit(X, y)
    w = fitted.weights_
    expected = ((X - w["m"]) / np.sqrt(w["v"] + 1e-5) * w["s"] + w["b"]) @ w["W"]
    assert_allclose(fitted.predict(X), expected.ravel(), rtol=1e-4, atol=1e-5)
    assert_allclose(fitted.predict(X[:1]), fitted.predict(X)[:1], rtol=1e-6)
    (node,) = (n for n in fitted.to_onnx().graph.node if n.op_type == "BatchNormalization")
    assert len(node.output) == 1


def old_graph(body, weights=""):
    """A graph of opset 11, whose BatchNormalization and Dropout have no training mode of their own."""
    return onnx.parser.parse_model(
        f"""<ir_version: 6, opset_import: ["": 11]> net (float[N, 3] X) => (float[N, 1] Y)
        <float[3] s = {{1.5, 1, 0.5}}, float[3] b = {{0, 0.1, 0.2}}, float[3] m = {{0, 0, 0}},
        float[3] v = {{1, 1, 1}}, float[3, 1] W = {{0.3, -0.2, 0.1}} {weights}> {{ {body} }}"""
    )


def test_graphs_of_older_opsets_are_converted():
    body = "B = BatchNormalization <momentum = 0.8> (X, s, b, m, v) Y = MatMul(B, W)"
    fitted = regressor(old_graph(body)).fit(X, y)
    for name, array in plain_sgd([10, 10, 3], 0.05).items():
        assert_allclose(fitted.weights_[name], array, rtol=2e-5, atol=2e-6, err_msg=name)


def dropped(how):
    if how == "opset 11":
        return old_graph("D = Dropout <ratio = 0.5> (X) Y = MatMul(D, W)")
    node = {"default": "D = Dropout (X)", "ratio": "D = Dropout (X, r)", "off": "D, k = Dropout (X, r, no)"}[how]
    return evaluating(f"{node} Y = MatMul(D, W)", weights=", float r = {0.5}, bool no = {0}")


@pytest.mark.parametrize("how", ["opset 11", "default", "ratio", "off"])
def test_dropout_is_switched_on(how):
    whole = regressor(GraphModel(dropped(how), training_mode=False)).fit(X, y)
    first, again, other = (regressor(dropped(how), random_state=seed).fit(X, y) for seed in (0, 0, 1))
    assert_array_equal(first.weights_["W"], again.weights_["W"])
    assert np.abs(first.weights_["W"] - other.weights_["W"]).max() > 1e-3
    assert np.abs(first.weights_["W"] - whole.weights_["W"]).max() > 1e-3
    assert_allclose(first.predict(X), (X @ first.weights_["W"]).ravel(), rtol=1e-5, atol=1e-6)


def test_dropout_of_a_computed_ratio_is_refused():
    body = "z = ReduceMax <keepdims = 0> (X) q = Sigmoid(z) D = Dropout (X, q) Y = MatMul(D, W)"
    with pytest.raises(ModelError, match=r"\(Dropout\).*its ratio is not a constant"):
        regressor(evaluating(body)).fit(X, y)


def test_nodes_of_a_subgraph_are_refused():
    body = """B = If (yes) <then_branch = t () => (float[N, 3] p) { p = BN (X, s, b, m, v) },
                            else_branch = u () => (float[N, 3] q) { q = Identity(X) }> Y = MatMul(B, W)"""
    with pytest.raises(ModelError, match=r"\(BatchNormalization\).*in a subgraph"):
        regressor(evaluating(body, weights=", bool yes = {1}")).fit(X, y)


def test_a_graph_with_nothing_to_switch_over_is_refused():
    with pytest.raises(ModelError, match=r"no BatchNormalization and no Dropout.*optimize=False.*training_mode=False"):
        regressor(evaluating("Y = MatMul(X, W)")).fit(X, y)


@pytest.mark.parametrize("model", [None, MLP((3,), dropout=0.5), "mlp"])
def test_builders_refuse_training_mode(model):
    with pytest.raises(ValueError, match=r"training_mode=True is for given ONNX graphs"):
        regressor(model).fit(X, y)


def test_graph_in_training_mode_is_unchanged():
    twice, once = (regressor(GraphModel(normalizing_graph(), training_mode=mode)).fit(X, y) for mode in (True, False))
    for name, array in once.weights_.items():
        assert_array_equal(twice.weights_[name], array)


def test_statistics_that_are_parameters_are_separated():
    """PyTorch's exporter merges them in a fresh network: zeros are bias and mean, ones are scale and variance."""
    fitted = regressor(evaluating("B = BN (X, v, m, m, v) Y = MatMul(B, W)"), batch_size=23).fit(X, y)
    statistics = [array for name, array in fitted.weights_.items() if name.startswith(("m/", "v/"))]
    assert len(statistics) == 2
    assert_allclose(statistics[0], 0.2 * X.mean(0), rtol=1e-4)
    assert np.abs(fitted.weights_["m"] - statistics[0]).max() > 0.01


CALL = (
    "%bn : [num_users=1] = call_function[target=torch.ops.aten._native_batch_norm_legit_no_training.default]"
    "(args = (%x, %p_w, %p_b, %b_mean, %b_var, 0.2, 1e-05), kwargs = {})"
)
SIGNED = "\n".join(
    ["# inputs", "x: USER_INPUT", *(f"{name}: {kind} target='{target}'" for name, kind, target in [
        ("p_w", "PARAMETER", "bn.weight"), ("p_b", "PARAMETER", "bn.bias"),
        ("b_mean", "BUFFER", "bn.running_mean"), ("b_var", "BUFFER", "bn.running_var")])]
)  # fmt: skip


def test_statistics_of_pytorch_keep_their_names():
    model = evaluating("B = BN (X, s, b, b, v) Y = MatMul(B, W)")
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=SIGNED)
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.fx_node", value=CALL)
    fitted = regressor(model).fit(X, y)
    assert "bn.running_mean" in fitted.weights_
    assert (fitted.weights_["bn.running_mean"] != 0).all()


def test_statistics_behind_trained_layers_are_updated():
    """As PyTorch exports ``BatchNorm1d(3, affine=False)``: scale and bias are constants."""
    weights = ", float[3, 3] A = {1, 0, 0, 0, 1, 0, 0, 0, 1}, float[3] one = {1, 1, 1}, float[3] zero = {0, 0, 0}"
    model = evaluating("H = MatMul(X, A) B = BN (H, one, zero, m, v) Y = MatMul(B, W)", weights=weights)
    signed = SIGNED.replace("bn.weight", "A").replace("bn.bias", "W")
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signed)
    call = CALL.replace("%p_w, %p_b", "None, None")
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.fx_node", value=call)
    frozen = regressor(model, trainable=["W"]).fit(X, y)
    assert "one" not in frozen.weights_
    assert_array_equal(frozen.weights_["m"], np.zeros(3))
    for names in (["A", "W"], "all"):
        moved = regressor(model, trainable=names).fit(X, y)
        assert (moved.weights_["m"] != 0).all()


@pytest.mark.parametrize("made", ["dynamo", "classic"])
def test_folded_batch_normalization_is_reported(made):
    weights = ", float[3, 3, 1] onnx_c = {1, 0, 0, 0, 1, 0, 0, 0, 1}, int64[1] last = {2}"
    body = """U = Unsqueeze(X, last) C = Conv(U, onnx_c, b) Q = Squeeze(C, last)
    NORM Y = MatMul(B, W)"""
    folded = evaluating(body.replace("NORM", "B = Relu(Q)"), weights=weights)
    part = evaluating(body.replace("NORM", "B = BN (Q, s, z, m, v)"), weights=weights + ", float[3] z = {0, 0, 0}")
    for model in (folded, part):
        (conv,) = (n for n in model.graph.node if n.op_type == "Conv")
        if made == "dynamo":
            conv.metadata_props.add(key="pkg.torch.onnx.fx_node", value=CALL)
            conv.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'stem.bn', '_native_batch_norm']")
        else:
            model.producer_name = "pytorch"
            for old, new in (("onnx_c", "onnx::Conv_7"), ("b", "onnx::Conv_8")):
                next(t for t in model.graph.initializer if t.name == old).name = new
                conv.input[list(conv.input).index(old)] = new
    name = "'stem.bn'" if made == "dynamo" else "'Conv_0'"
    with pytest.raises(ModelError, match=rf"no BatchNormalization and no Dropout.*folded the .*{name}.*gone"):
        regressor(folded).fit(X, y)
    with pytest.warns(OnnxTrainWarning, match=rf"switches over 1 node.*folded the .*{name}.*it is gone"):
        regressor(part).fit(X, y)


def test_later_calls_go_on_with_the_same_mode():
    fitted = pickle.loads(pickle.dumps(regressor(evaluating()).partial_fit(X, y)))
    fitted.partial_fit(X, y)
    for name, array in plain_sgd([10, 10, 3], 0.05).items():
        if name in ("m", "v"):
            assert np.abs(fitted.weights_[name] - array).max() > 0
    with pytest.raises(ModelError, match="training_mode was changed from True to False"):
        fitted.set_params(model__training_mode=False).partial_fit(X, y)


def test_training_mode_is_described_before_the_fit():
    moved, fixed = (
        regressor(GraphModel(evaluating(), training_mode=mode)).describe().of("statistic") for mode in (True, False)
    )
    assert {entry.reason for entry in moved} == {"moved by training"}
    assert {entry.reason for entry in fixed} == {"stays as it is"}


@pytest.mark.long
def test_convnet_of_pytorch_trains_like_its_training_export():
    """The same network, exported in training mode: evaluation mode is what its inference form is."""
    run = np.load(DATA / "residual_bn.npz")
    images, labels = run["x0"].reshape(-1, *run["x0"].shape[2:]), run["y"].ravel()
    trained = onnx.load(DATA / "residual_bn.onnx")
    evaluated = onnx.load(DATA / "residual_bn.onnx")
    for node in (n for n in evaluated.graph.node if n.op_type == "BatchNormalization"):
        del node.output[1:]
        (mode,) = (a for a in node.attribute if a.name == "training_mode")
        node.attribute.remove(mode)
    settings = {"optimizer": SGD(), "learning_rate_init": 0.05, "batch_size": 8, "shuffle": False, "max_iter": 1}
    straight = OrtGradientClassifier(trained, **settings).fit(images, labels)
    switched = OrtGradientClassifier(GraphModel(evaluated, training_mode=True), **settings).fit(images, labels)
    assert straight.weights_.keys() == switched.weights_.keys()
    for name, array in straight.weights_.items():
        assert_allclose(switched.weights_[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_fine_tuning_takes_all_rows_at_once_and_has_no_batches():
    with pytest.raises(ValueError, match="training_mode=True has no effect on fine-tuning"):
        OrtGradientRegressor(GraphModel(evaluating(), training_mode=True), finetune=FineTuner()).fit(X, y)
