"""Networks whose training graphs run elsewhere, and what comes back: folders, states, adapter files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import skl2onnx
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    SGD,
    ConvNet,
    LoRA,
    OrtGradientClassifier,
    OrtGradientRegressor,
    TabM,
    load_training,
)
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.selection import one_case
from tests.helpers.step_options import configured
from tests.helpers.tensors import safetensors
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS, Folder, goes_on

DATA = Path(__file__).parents[1] / "files"


def images(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 1, 8, 8)).astype(np.float32)
    return X, np.digitize(X[:, 0, :4].mean(axis=(1, 2)) * 4, [-0.3, 0.3])


def columns(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


def test_dropout_goes_on(tmp_path):
    folder = goes_on(configured(OrtGradientClassifier(MLP((8, 8), dropout=0.3)), **SETTINGS), *columns(), tmp_path)
    assert len(folder.manifest["random"]["inputs"]) == 2


def test_members_go_on(tmp_path):
    goes_on(
        configured(OrtGradientClassifier(TabM(n_members=3, hidden_layer_sizes=(6,))), **SETTINGS), *columns(), tmp_path
    )


def test_convolutions_go_on(tmp_path):
    goes_on(configured(OrtGradientClassifier(ConvNet(channels=(4,))), **SETTINGS), *images(), tmp_path)


@pytest.mark.long
def test_statistics_of_minibatches_and_dropout_go_on(tmp_path):
    """A minibatch whose rows meet is never padded: the batch size divides the rows."""
    X, _y = images()
    settings = SETTINGS | {"batch_size": 20, "optimizer": SGD(momentum=0.9)}  # whose steps are no larger than gradients
    model = configured(OrtGradientClassifier(DATA / "learns_digits_training.onnx"), **settings)
    folder = goes_on(model, X, np.arange(40) % 10, tmp_path)
    assert "statistics" in folder.state
    assert folder.manifest["random"]["inputs"]
    assert not folder.manifest["padding"]


@one_case
@pytest.mark.parametrize(("count", "weighted"), [(2, False), (3, True)])
@pytest.mark.long
def test_accumulated_minibatches_have_own_statistics(count, weighted, tmp_path):
    """They move the running statistics one after the other, and weigh in the step as their rows do."""
    X = np.random.default_rng(0).normal(size=(16 * count, 1, 8, 8)).astype(np.float32)
    y, weights = np.arange(len(X)) % 10, np.linspace(0.2, 3, len(X)).astype(np.float32) if weighted else None
    settings = SETTINGS | {"batch_size": 8, "optimizer": SGD(momentum=0.9, max_grad_norm=1.0), "alpha": 0.1}
    model = configured(OrtGradientClassifier(DATA / "learns_digits_training.onnx"), **settings).set_params(
        optimizer__accumulate=count
    )
    folder = goes_on(model, X, y, tmp_path, weights)
    assert (folder.manifest["batch_size"], folder.manifest["padding"]) == (8 * count, False)
    quietly(model.partial_fit, X, y, sample_weight=weights).export_training(tmp_path / "later")
    training = load_training(tmp_path / "later", shuffle=False).partial_fit(X, y, weights)
    model.partial_fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)
    np.testing.assert_allclose(training.state["statistics"], model._state.parameters.statistics, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(training.loss_curve_[-1], model.loss_, rtol=1e-6)


@pytest.mark.parametrize("rows", [40, 36, 33])
def test_accumulated_minibatches_have_own_masks(rows, tmp_path):
    """The last step may have fewer minibatches, for which nothing is drawn."""
    settings = SETTINGS | {"batch_size": 8, "optimizer": SGD(momentum=0.9, accumulate=2)}
    X, y = columns(rows)
    model = quietly(configured(OrtGradientClassifier(MLP((8, 8), dropout=0.3)), **settings).fit, X, y)
    model.export_training(tmp_path / "folder")
    model.export_training(tmp_path / "odd", batch_size=9)  # whose minibatches are not the estimator's
    training = load_training(tmp_path / "folder", shuffle=False)
    assert (training.manifest["random"]["minibatches"], training.manifest["padding"]) == (2, True)
    for _ in range(2):
        training.partial_fit(X, y)
        model.partial_fit(X, y)
    np.testing.assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)
    np.testing.assert_allclose(training.loss_curve_, model.loss_curve_[-2:], rtol=1e-6)
    assert "minibatches" not in load_training(tmp_path / "odd").partial_fit(X, y).manifest["random"]


@pytest.mark.long
def test_accumulated_statistics_need_whole_minibatches(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(48, 1, 8, 8)).astype(np.float32), np.arange(48) % 10
    settings = SETTINGS | {"batch_size": 8, "optimizer": SGD(accumulate=3)}
    model = quietly(configured(OrtGradientClassifier(DATA / "learns_digits_training.onnx"), **settings).fit, X, y)
    with pytest.raises(ValueError, match="batch_size must be a multiple of 3, got 16: a step takes the rows of all"):
        model.export_training(tmp_path / "folder", batch_size=16)
    model.export_training(tmp_path / "folder", batch_size=12)
    with pytest.raises(ValueError, match="give a multiple of 12 rows whose weight is not zero, got 40"):
        load_training(tmp_path / "folder").partial_fit(X[:40], y[:40])


@pytest.mark.long
def test_lstm_goes_on(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 10, 6)).astype(np.float32)
    goes_on(configured(OrtGradientClassifier(DATA / "lstm.onnx"), **SETTINGS), X, np.arange(40) % 3, tmp_path)


def test_scaled_targets_go_on(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    X = X[:40].astype(np.float32) * 20
    folder = goes_on(configured(OrtGradientRegressor(MLP((8,))), **SETTINGS), X, y[:40] + 2000, tmp_path)
    assert (
        next(one for one in folder.manifest["graphs"]["step"]["inputs"] if one["role"] == "target")["type"] == "float64"
    )


def test_adapters_of_low_rank_go_on(tmp_path):
    given = MLP((8,)).build(n_features=5, n_outputs=1, random_state=0)
    goes_on(configured(OrtGradientClassifier(given, adapters=LoRA(2)), **SETTINGS), *columns(), tmp_path)


def test_pipeline_trained_by_onnxruntime_is_written_back(tmp_path):
    X, y = columns(200)
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:100], y[:100])
    tuner = OrtGradientClassifier(fitted, optimizer=SGD(), learning_rate_init=0.5, random_state=0)
    turned = 1 - y  # other labels: nothing else would learn them
    tuner.export_training(tmp_path / "folder", X, turned, batch_size=20)
    folder = Folder(tmp_path / "folder")
    for _ in range(15):
        folder.epoch({"X": X, "y": turned[:, None].astype(np.float32)})
    tuner.set_params(max_iter=1, learning_rate_init=1e-9)
    back = quietly(tuner.fit, X, turned).load_state(folder.state).to_sklearn()
    assert type(back) is type(fitted)
    assert back.score(X, turned) > 0.95 > fitted.score(X, turned)
    exported = onnxruntime.InferenceSession(
        skl2onnx.to_onnx(back, X[:1], target_opset=18, options={"zipmap": False}).SerializeToString()
    )
    assert (exported.run(None, {"X": X})[0] == tuner.predict(X)).all()


def trained(**parameters) -> OrtGradientClassifier:
    return quietly(configured(OrtGradientClassifier(MLP((4,))), **SETTINGS | parameters).fit, *columns())


def unchanged(model, call, message) -> None:
    before, t = model.weights_, model._state.optimizer_state.t
    with pytest.raises(ModelError, match=message):
        call()
    assert all((model.weights_[name] == before[name]).all() for name in before)
    assert model._state.optimizer_state.t == t


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.0.weight": None}, "The state lacks 'layers.0.weight', which is trained"),
        ({"layers.0.weight": np.zeros((4, 5))}, r"of shape \[4, 5\], and the estimator has \[5, 4\]"),
        ({"layers.9.weight": np.zeros(3)}, "The state holds 'layers.9.weight', which the graph lacks.*Did you mean"),
        ({"layers.0.bias": np.full(4, np.nan)}, "'layers.0.bias' with values that are NaN or infinite"),
        ({"layers.0.bias": np.array(["a"] * 4)}, "weights are numbers"),
        ({"layers.0.bias": np.full(4, 1e300)}, "'layers.0.bias' with values that are too large for float32"),
    ],
    ids=str,
)
def test_states_by_name_that_do_not_fit(change, message):
    model = trained()
    state = {name: array for name, array in {**model.weights_, **change}.items() if array is not None}
    unchanged(model, lambda: model.load_state(state), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": np.zeros(7, np.float32)}, r"'parameters' of shape \[7\], and the estimator has \[29\]"),
        ({"second_moment": None}, r"the vectors \['first_moment'\] of an optimizer"),
        ({"second_moment": np.full(29, 1e300)}, "'second_moment' with values that are too large for float32"),
        ({"step": np.array(-3)}, r"'step' = -3, which must be a number of steps"),
        ({"step": np.array(2.5)}, r"'step' = 2.5, which must be a number of steps"),
    ],
    ids=str,
)
def test_vectors_that_do_not_fit(change, message, tmp_path):
    model = trained()
    model.export_training(tmp_path / "folder")
    state = {**Folder(tmp_path / "folder").state, **change}
    content = safetensors({name: array for name, array in state.items() if array is not None})
    (tmp_path / "other.safetensors").write_bytes(content)
    unchanged(model, lambda: model.load_state(tmp_path / "other.safetensors"), message)


def test_state_files(tmp_path):
    """A loop elsewhere writes a file of its own; training goes on from it exactly."""
    model, (X, y) = trained(), columns()
    model.export_training(tmp_path / "folder")
    folder = Folder(tmp_path / "folder")
    folder.steps({"X": X, "y": y[:, None].astype(np.float32)})
    (tmp_path / "state.safetensors").write_bytes(safetensors(folder.state))
    twin = trained().load_state(tmp_path / "state.safetensors").partial_fit(X, y)
    model.partial_fit(X, y).partial_fit(X, y)
    for name, array in model.weights_.items():
        np.testing.assert_allclose(twin.weights_[name], array, rtol=0, atol=1e-6)
    assert twin._state.optimizer_state.t == model._state.optimizer_state.t
    (tmp_path / "notes.txt").write_text("no tensors")
    with pytest.raises(ModelError, match=r"notes.txt holds no tensors in the format of safetensors"):
        model.load_state(tmp_path / "notes.txt")


def test_export_replaces_only_an_earlier_export(tmp_path):
    model = trained()
    model.export_training(tmp_path / "folder")
    model.export_training(tmp_path / "folder", form="step")
    assert not (tmp_path / "folder" / "epoch.onnx").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    (tmp_path / "folder" / "mine.txt").write_text("notes")
    with pytest.raises(FileExistsError, match="not a folder of training graphs alone"):
        model.export_training(tmp_path / "folder")
    assert (tmp_path / "folder" / "mine.txt").exists()
    assert (tmp_path / "folder" / "step.onnx").exists()


def edited(folder: Path, change) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "step.onnx").unlink(), "lacks step.onnx, which its manifest.json names"),
        (lambda f: (f / "step.onnx").write_bytes(b"x"), "step.onnx has changed: its SHA-256 is"),
        (lambda f: (f / "manifest.json").unlink(), "holds no manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "is not valid JSON"),
        (lambda f: edited(f, lambda m: m.update(version=2)), "is of version 2, but this package reads version 1"),
        (lambda f: edited(f, lambda m: m.update(format="other")), "is not the manifest of training graphs"),
        (lambda f: edited(f, lambda m: m.pop("state")), "lacks 'state'"),
        (
            lambda f: edited(f, lambda m: m["state"]["tensors"][0].update(shape=[3])),
            r"holds 'parameters' of shape \[29\], and the training graphs have \[3\]",
        ),
    ],
)
def test_folders_that_are_not_whole(spoil, message, tmp_path):
    model = trained()
    model.export_training(tmp_path / "folder")
    spoil(tmp_path / "folder")
    with pytest.raises(ModelError, match=message):
        load_training(tmp_path / "folder")
    unchanged(model, lambda: model.load_state(tmp_path / "folder"), message)


def test_folder_of_another_model(tmp_path):
    quietly(configured(OrtGradientClassifier(MLP((6,))), **SETTINGS).fit, *columns()).export_training(
        tmp_path / "folder"
    )
    model = trained()
    unchanged(model, lambda: model.load_state(tmp_path / "folder"), "it belongs to another model")
    with pytest.raises(FileNotFoundError, match="There is no file or folder"):
        model.load_state(tmp_path / "nowhere")
