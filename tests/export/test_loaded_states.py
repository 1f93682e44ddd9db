"""What a state that was trained elsewhere brings besides weights: the place in schedules, merged adapters, labels."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn import MLP, AdamW, LoRA, OrtGradientClassifier, OrtGradientRegressor, load_training, schedules
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS


def rows(n: int = 48) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    return X, np.digitize(X[:, 0], [-0.5, 0.5])


@pytest.mark.parametrize("schedule", [schedules.Cosine(), schedules.InverseScaling(), schedules.StepDecay(4)], ids=repr)
def test_schedules_go_on_after_the_steps_of_the_state(schedule, tmp_path):
    """Two passes elsewhere and one at home are three at home."""
    X, y = rows()
    model = OrtGradientClassifier(MLP((8,)), learning_rate=schedule, **SETTINGS | {"max_iter": 6})
    model.partial_fit(X, y, classes=[0, 1, 2]).export_training(tmp_path / "folder")
    twin = copy.deepcopy(model)
    training = load_training(tmp_path / "folder", shuffle=False)
    for _ in range(2):
        training.partial_fit(X, y)
        model.partial_fit(X, y)
    twin.load_state(training.state).partial_fit(X, y)
    model.partial_fit(X, y)
    for name, array in model.weights_.items():
        np.testing.assert_allclose(twin.weights_[name], array, rtol=0, atol=1e-6)
    twin.load_state(tmp_path / "folder")  # an earlier state: back to where the export was made
    assert (twin._state.history.progress.step, twin.t_) == (3, 48)


def test_state_without_steps_keeps_schedule_position():
    X, y = rows()
    model = OrtGradientClassifier(MLP((8,)), learning_rate="cosine", **SETTINGS).partial_fit(X, y, classes=[0, 1, 2])
    model.load_state(model.weights_)
    assert (model._state.history.progress.step, model._state.optimizer_state.t) == (3, 0)


def adapted(**parameters) -> OrtGradientRegressor:
    given = MLP((8,)).build(n_features=5, n_outputs=1, random_state=0)
    return OrtGradientRegressor(given, adapters=LoRA(2), **SETTINGS | parameters)


def test_merged_weights_go_into_a_network_with_adapters():
    X, y = rows()
    one = quietly(adapted(max_iter=3).fit, X, y)
    plain = OrtGradientRegressor(one.to_onnx(), **SETTINGS).partial_fit(X, y)
    other = adapted(random_state=7).partial_fit(X, y)
    other.load_state(one.weights_)
    np.testing.assert_array_equal(other.predict(X), one.predict(X))
    other.load_state(dict(zip(one.weights_, plain.weights_.values(), strict=True)))
    np.testing.assert_allclose(other.predict(X), plain.predict(X), rtol=1e-6)
    before = other.weights_
    other.partial_fit(X, y)  # the adapters go on learning
    assert np.abs(other.weights_["layers.0.weight"] - before["layers.0.weight"]).max() > 0
    with pytest.raises(ModelError, match=r"lacks 'layers.1.weight', which low-rank factors change"):
        other.load_state({"layers.0.weight": before["layers.0.weight"]})


GRAPH = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4, 5] X) => (float[N, 4, 3] Y)
    <float[5, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> { Y = MatMul(X, W) }"""


@pytest.mark.parametrize(
    ("ignored", "labels"),
    [
        (99, np.array([0, 1, 2, 99])),
        (0, np.array([1, 2, 3, 0])),
        (-100, np.array([0, 1, 2, -100])),
        ("", np.array(["a", "b", "c", ""])),
        (np.nan, np.array([0.0, 1.0, 2.0, np.nan])),
        (None, np.array([-100, 0, 1, 1])),
    ],
    ids=repr,
)
def test_labels_that_do_not_count(ignored, labels, tmp_path):
    X = np.random.default_rng(0).normal(size=(32, 4, 5)).astype(np.float32)
    y = labels[np.digitize(X.sum(axis=2), [-2, 0, 2])]
    model = OrtGradientClassifier(onnx.parser.parse_model(GRAPH), ignore_label=ignored, **SETTINGS)
    quietly(model.fit, X, y).export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(X, y)
    model.partial_fit(X, y)
    np.testing.assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)
    if ignored is not None:
        with pytest.raises(ValueError, match=r"not in|not among|unknown"):
            training.partial_fit(
                X, np.where(y == labels[0], 55, 0) if labels.dtype.kind in "if" else np.char.add(y, "z")
            )


def test_the_optimizer_goes_on(tmp_path):
    """Merged weights start it anew; vectors do not."""
    X, y = rows()
    model = adapted(optimizer=AdamW()).partial_fit(X, y)
    assert model._state.optimizer_state.t == 3
    model.load_state(model.weights_)
    assert model._state.optimizer_state.t == 0
