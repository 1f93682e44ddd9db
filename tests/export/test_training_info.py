"""A model with ``training_info`` predicts as before, and ``load_training`` goes on training it and folders."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain_sklearn import MLP, SGD, AdamW, LoRA, OrtGradientClassifier, OrtGradientRegressor, RMSprop, load_training
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.step_options import configured
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS

DATA = Path(__file__).parents[1] / "files"


def columns(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    return X, np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


def goes_on(model, X, y, path, tolerance=1e-6) -> None:
    """Both forms train as the estimator does: two passes in the order of the rows."""
    saved = model.to_training_onnx()
    onnx.checker.check_model(saved, full_check=True)
    onnx.save(saved, path / "model.onnx")
    model.export_training(path / "folder", form="step")
    predicted = onnxruntime.InferenceSession(saved.SerializeToString()).run(None, {saved.graph.input[0].name: X})
    np.testing.assert_array_equal(np.ravel(predicted[0]), np.ravel(model.predict(X)))
    trainings = [load_training(path / name, shuffle=False) for name in ("model.onnx", "folder")]
    for _ in range(2):
        model.partial_fit(X, y)
    for training in trainings:
        training.partial_fit(X, y).partial_fit(X, y)
        assert training.loss_curve_[-1] == pytest.approx(model.loss_, rel=1e-5)
        np.testing.assert_array_equal(np.ravel(training.predict(X)).astype(str), np.ravel(model.predict(X)).astype(str))
    weights = trainings[0].state
    for name, array in model.weights_.items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("optimizer", [SGD(), AdamW(), RMSprop(centered=True)], ids=repr)
def test_optimizers_go_on(optimizer, tmp_path):
    model = configured(
        OrtGradientClassifier(MLP((4,))), **SETTINGS | {"optimizer": optimizer, "learning_rate_init": 0.003}
    )
    X, y = columns()
    goes_on(quietly(model.fit, X, y), X, y, tmp_path)


@pytest.mark.parametrize(
    "parameters",
    [
        {"optimizer": SGD()},
        {},
        {"optimizer__ema_decay": 0.5},
        {"model": MLP((4,), normalization="batch"), "batch_size": 20},
    ],
    ids=str,
)
def test_the_state_goes_back_into_the_estimator(parameters, tmp_path):
    """By ``state`` and by the file of ``save_state``; the next pass is that of an estimator which took all of them."""
    X, y = columns()
    model = configured(
        OrtGradientClassifier(), **SETTINGS | {"model": MLP((4,)), "optimizer__ema_decay": None} | parameters
    )
    quietly(model.fit, X, y)
    onnx.save(model.to_training_onnx(), tmp_path / "model.onnx")
    training = load_training(tmp_path / "model.onnx", shuffle=False).partial_fit(X, y)
    training.save_state(tmp_path / "state.safetensors")
    twins = [copy.deepcopy(model).load_state(state) for state in (training.state, tmp_path / "state.safetensors")]
    expected = model.partial_fit(X, y).partial_fit(X, y).weights_
    for twin in twins:
        for name, array in twin.partial_fit(X, y).weights_.items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)
    wrong = {**training.state, "layers.0.bias": np.zeros(9)}
    with pytest.raises(ModelError, match=r"'layers\.0\.bias' of shape \[9\]"):
        model.load_state(wrong)


@pytest.mark.parametrize(
    "parameters",
    [{"model": MLP((4,), dropout=0.5)}, {"optimizer__ema_decay": 0.5}, {"alpha": 0.1, "optimizer__max_grad_norm": 0.1}],
    ids=str,
)
def test_settings_go_on(parameters, tmp_path):
    X, y = columns()
    goes_on(
        quietly(configured(OrtGradientClassifier(), **SETTINGS | {"model": MLP((4,))} | parameters).fit, X, y),
        X,
        y,
        tmp_path,
    )


def test_numbers_go_on(tmp_path):
    X, _ = columns()
    model, y = configured(OrtGradientRegressor(MLP((4,))), **SETTINGS), 1000 + 50 * X[:, :2]
    quietly(model.fit, X, y)
    saved = model.to_training_onnx()
    onnx.save(saved, tmp_path / "model.onnx")
    training = load_training(tmp_path / "model.onnx", shuffle=False).partial_fit(X, y)
    np.testing.assert_allclose(training.predict(X), model.partial_fit(X, y).predict(X), rtol=1e-5)
    single = configured(OrtGradientRegressor(MLP((4,))), **SETTINGS).partial_fit(X, y[:, 0])
    onnx.save(single.to_training_onnx(), tmp_path / "single.onnx")
    np.testing.assert_allclose(load_training(tmp_path / "single.onnx").predict(X), single.predict(X), rtol=1e-5)


def test_labels_at_positions_go_on(tmp_path):
    X, given = (
        np.random.default_rng(0).normal(size=(40, 7, 4)).astype(np.float32),
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 18]> g (float[N, 7, 4] X) => (float[N, 7, 3] Y)
        <float[4, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> { Y = MatMul(X, W) }"""
        ),
    )
    y = np.argmax(X[..., :3], axis=-1) * 2 + 1
    y[:, 0] = -100
    model = quietly(configured(OrtGradientClassifier(given), **SETTINGS).fit, X, y)
    goes_on(model, X, y, tmp_path)
    with pytest.raises(ValueError, match=r"not among the classes: \[2\]"):
        load_training(tmp_path / "folder").partial_fit(X, np.full_like(y, 2))


@pytest.mark.long
def test_batch_statistics_go_on(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype(np.float32), np.arange(40) % 10
    settings = SETTINGS | {"batch_size": 20, "optimizer": SGD()}
    model = quietly(configured(OrtGradientClassifier(DATA / "learns_digits_training.onnx"), **settings).fit, X, y)
    goes_on(model, X, y, tmp_path)
    training = load_training(tmp_path / "folder")
    with pytest.raises(ValueError, match="give a multiple of 20 rows whose weight is not zero, got 39"):
        training.partial_fit(X[:39], y[:39])


def test_step_has_only_onnx_operators_and_initial_state():
    X, y = columns()
    model = quietly(configured(OrtGradientClassifier(MLP((4,))), **SETTINGS).fit, X, y)
    saved = model.to_training_onnx(batch_size=8)
    info = saved.training_info[0]
    assert {node.domain for node in info.algorithm.node} == {""}
    own = {tensor.name for tensor in info.algorithm.initializer}
    bound = {binding.key for binding in info.initialization_binding}
    assert bound == {"first_moment", "second_moment", "step"} <= own
    wrapped = onnx.helper.make_model(info.initialization, opset_imports=saved.opset_import, ir_version=8)
    values = onnxruntime.InferenceSession(wrapped.SerializeToString()).run(None, {})
    assert [value.shape for value in values] == [(29,), (29,), ()]
    assert not any(value.any() for value in values)
    assert model._state.optimizer_state.t > 0  # the state in the file is the current one
    assert (
        onnx.numpy_helper.to_array(next(t for t in info.algorithm.initializer if t.name == "step"))
        == model._state.optimizer_state.t
    )


def test_refused(tmp_path):
    X, y = columns()
    given = MLP((4,)).build(n_features=5, n_outputs=1, random_state=0)
    model = quietly(configured(OrtGradientClassifier(given, adapters=LoRA(2)), **SETTINGS).fit, X, y)
    with pytest.raises(ModelError, match=r"does not hold 'layers.0.weight.lora_A' as it is trained"):
        model.to_training_onnx()
    onnx.save(model.to_onnx(), tmp_path / "plain.onnx")
    with pytest.raises(ModelError, match="holds no training step of this package"):
        load_training(tmp_path / "plain.onnx")
    (tmp_path / "notes.txt").write_text("no graph")
    with pytest.raises(ModelError, match="is no ONNX model"):
        load_training(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError, match="There is no file or folder"):
        load_training(tmp_path / "nowhere")
    model.export_training(tmp_path / "folder", form="epoch")
    training = load_training(tmp_path / "folder")
    with pytest.raises(ModelError, match=r"There is no step.onnx: export with form='both'"):
        training.partial_fit(X, y)


def test_data_that_do_not_fit(tmp_path):
    X, y = columns()
    quietly(configured(OrtGradientClassifier(MLP((4,))), **SETTINGS).fit, X, y).export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder")
    with pytest.raises(ValueError, match="labels that are not among the classes"):
        training.partial_fit(X, np.where(y == "yes", "maybe", "no"))
    with pytest.raises(ValueError, match="different numbers of rows"):
        training.partial_fit(X[:30], y)
    with pytest.raises(ValueError, match=r"The graph has the inputs \['X'\]"):
        training.predict({"Z": X})
    with pytest.raises(ValueError, match=r"sample_weight.shape == \(3,\), expected \(40,\)"):
        training.partial_fit(X, y, np.ones(3))
