"""Exported training graphs of several outputs go on as the estimator does, in plain onnxruntime."""

from __future__ import annotations

import json
import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, Inputs, LoRA, OrtGradientMultiOutput, export_training, load_training, schedules
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.several_outputs import KINDS, data, graph
from tests.helpers.step_options import configured
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS, Folder, loop_arrays

X, Y = data(40)  # the last of three minibatches is padded
SOME = ("class", "number", "words")


def net(names=SOME, **parameters) -> OrtGradientMultiOutput:
    losses = {name: KINDS[name].loss for name in names}
    return configured(OrtGradientMultiOutput(graph(list(names)), loss=losses), **SETTINGS | parameters)


def targets(names=SOME) -> dict:
    return {name: Y[name] for name in names}


def close(state, estimator, tolerance=1e-6) -> None:
    assert_allclose(state["parameters"], estimator._state.parameters.vector, rtol=0, atol=tolerance)


@pytest.mark.parametrize("names", [["class"], ["words"], ["number", "map"], list(KINDS)], ids="-".join)
def test_each_kind_of_output_goes_on(names, tmp_path):
    """In steps and in an epoch, from plain arrays, and back by load_state."""
    model = net(names, learning_rate_init=0.003)
    quietly(model.fit, X, targets(names)).export_training(tmp_path / "folder")
    folder = Folder(tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False)
    arrays, weights = loop_arrays(training, targets(names), len(X))
    folder.steps({"X": X, **arrays}, weights)
    losses = folder.epoch({"X": X, **arrays}, weights)
    before = model.predict(X)
    for _ in range(2):
        training.partial_fit(X, targets(names))
        model.partial_fit(X, targets(names))
    close(folder.state, model)
    assert_array_equal(folder.state["parameters"], training.state["parameters"])
    shares = [weights[start : start + 16].sum() for start in (0, 16, 32)]
    assert_allclose(np.average(losses, weights=shares), model.loss_, rtol=1e-5)
    assert_allclose(training.loss_curve_[-1], model.loss_, rtol=1e-5)
    for name, found in training.predict(X).items():
        assert_array_equal(found.shape, before[name].shape)
        assert_prediction(found, model.predict(X)[name])


def assert_prediction(found, expected) -> None:
    if np.asarray(found).dtype.kind == "f":
        assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    else:
        assert_array_equal(found, expected)


@pytest.mark.long
def test_each_target_is_an_input(tmp_path):
    """A program that knows the manifest alone trains: indices of classes, numbers, indices at positions."""
    names = ["class", "yes", "numbers", "words"]
    model = net(names, loss_weights={"numbers": 0.3}).partial_fit(X, targets(names), classes=known(names))
    model.export_training(tmp_path / "folder")
    manifest = json.loads((tmp_path / "folder" / "manifest.json").read_text())
    kinds = ["class index", "class index as a number", "number", "class index at each position, -1: ignored"]
    assert [one["kind"] for one in manifest["targets"]] == kinds
    assert [one["loss_weight"] for one in manifest["targets"]] == [1.0, 1.0, 0.3, 1.0]
    assert [one["loss"]["name"] for one in manifest["targets"]] == ["log_loss", "log_loss", "huber", "log_loss"]
    assert manifest["targets"][0]["classes"] == ["a", "b", "c"]
    predicted = [one["name"] for one in manifest["graphs"]["predict"]["outputs"]]
    assert predicted == [name for one in manifest["targets"] for name in one["predictions"]]
    words = np.where(Y["words"] < 0, -1, Y["words"])
    share = (words >= 0).mean(axis=1)
    rows = {
        "X": X,
        "y/class": np.searchsorted(["a", "b", "c"], Y["class"]),
        "y/yes": (Y["yes"] > 0).astype(np.float32)[:, None],
        "y/numbers": Y["numbers"].astype(np.float32),
        "y/words": words,
        **{f"target_weight/{name}": np.ones(len(X), np.float32) for name in names[:3]},
        "target_weight/words": (share / share.mean()).astype(np.float32),  # rows weigh as their labels that count
    }
    folder = Folder(tmp_path / "folder")
    folder.steps(rows)
    model.partial_fit(X, targets(names))
    close(folder.state, model)


def known(names) -> dict:
    return {name: labels_of(name) for name in names if KINDS[name].task != "regression"}


def labels_of(name):
    found = np.unique(Y[name])
    return found[found != -100]


WAVES = 1.5 + np.sin(np.arange(len(X)))
WEIGHTS = {
    "alike": np.linspace(0.5, 2, len(X)),
    "by output": {"class": np.linspace(0, 2, len(X)), "number": None, "words": np.linspace(3, 1, len(X))},
    "missing": {"class": (np.arange(len(X)) % 4 > 0) * 1.0, "number": np.arange(len(X)) % 2 * 1.0},
    "no label": {
        name: (np.arange(len(X)) % 4 > 0) * weight for name, weight in zip(SOME, (1.0, WAVES, 3.0), strict=True)
    },
}


@pytest.mark.parametrize("class_weight", [None, {"class": {"a": 0.2, "b": 5.0, "c": 1.0}, "words": {0: 1, 1: 2, 2: 7}}])
@pytest.mark.parametrize("weights", [None, *WEIGHTS])
def test_weights_of_rows_and_classes_go_on(weights, class_weight, tmp_path):
    """By output; of rows of weight zero the target is not read."""
    given, y = WEIGHTS.get(weights), targets()
    if weights in ("missing", "no label"):
        y["number"] = np.where(given["number"] > 0, y["number"], np.nan)
    model = net(class_weight=class_weight, alpha=0.1, loss_weights={"class": 2.0})
    quietly(model.fit, X, y, given).export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(X, Inputs(y), given)
    model.partial_fit(X, y, sample_weight=given)
    close(training.state, model)
    assert_allclose(training.loss_curve_[-1], model.loss_, rtol=1e-5)


@pytest.mark.parametrize("class_weight", ["balanced", {"class": "balanced"}], ids=str)
@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("weights", [None, "by output", "missing"])
def test_balanced_classes_go_on(weights, fitted, class_weight, tmp_path):
    """With the weights that the rows of the fit, or of the export, came to: for each output those of its own rows."""
    given, y = WEIGHTS.get(weights), targets()
    model = net(class_weight=class_weight, alpha=0.1, max_iter=1)
    if fitted:
        quietly(model.fit, X, y, given).export_training(tmp_path / "folder")
    else:
        model.export_training(tmp_path / "folder", X, y)
        given = None
    training = load_training(tmp_path / "folder", shuffle=False)
    own = np.ones(len(X)) if given is None else given["class"]
    totals = np.array([own[Y["class"] == label].sum() for label in "abc"])
    assert_allclose(training.manifest["targets"][0]["label_weights"], totals.sum() / 3 / totals, rtol=1e-12)
    training.partial_fit(X, y, given)
    quietly(model.set_params(warm_start=fitted).fit, X, y, given)
    close(training.state, model)
    assert_allclose(training.loss_curve_[-1], model.loss_, rtol=1e-5)


def test_balanced_weights_come_back_from_pickles(tmp_path):
    names = ["class", "number"]
    model = quietly(net(names, class_weight="balanced").fit, X, targets(names))
    for i, one in enumerate((model, pickle.loads(pickle.dumps(model)))):
        one.export_training(tmp_path / str(i))
    first, second = (load_training(tmp_path / name).manifest["targets"][0]["label_weights"] for name in "01")
    assert first == second
    assert len(set(first)) > 1


@pytest.mark.long
@pytest.mark.parametrize(
    "parameters",
    [
        {
            "optimizer": SGD(momentum=0.9, max_grad_norm=0.1, ema_decay=0.8),
        },
        {"learning_rate": schedules.Cosine(total_steps=40), "optimizer__learning_rate_factors": {"*.weight": 0.1}},
        {"adapters": LoRA(2, targets=["trunk"])},
    ],
    ids=str,
)
def test_settings_go_on_and_come_back(parameters, tmp_path):
    model = quietly(net(**parameters).fit, X, targets())
    model.export_training(tmp_path / "folder", target="web")
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(X, targets())
    twin = quietly(net(**parameters).fit, X, targets()).load_state(training.state)
    for one in (model.partial_fit(X, targets()), twin):
        close(training.state, one)
    for one in (model.partial_fit(X, targets()), twin.partial_fit(X, targets())):
        assert_allclose(one._state.parameters.vector, model._state.parameters.vector, rtol=0, atol=1e-6)


def test_one_file_with_the_step_goes_on(tmp_path):
    model = quietly(net(optimizer="adam").fit, X, targets())
    written = model.to_training_onnx()
    onnx.checker.check_model(written, full_check=True)
    onnx.save(written, tmp_path / "net.onnx")
    training = load_training(tmp_path / "net.onnx", shuffle=False).partial_fit(X, targets())
    model.partial_fit(X, targets())
    for name, array in model.weights_.items():
        assert_allclose(training.state[name], array, rtol=0, atol=1e-6, err_msg=name)
    assert_allclose(training.predict_proba(X)["class"], model.predict_proba(X)["class"], atol=1e-5)


def test_unfitted_estimator_is_exported_untrained(tmp_path):
    model = net()
    model.export_training(tmp_path / "folder", X, targets())
    assert not hasattr(model, "_state")
    training = load_training(tmp_path / "folder", shuffle=False)
    for _ in range(2):
        training.partial_fit(X, targets())
    close(training.state, quietly(net().fit, X, targets()))


def test_the_function_takes_a_loss_for_each_output(tmp_path):
    losses = {name: KINDS[name].loss for name in SOME}
    export_training(graph(list(SOME)), tmp_path / "one", X, targets(), loss=losses, **SETTINGS)
    training = load_training(tmp_path / "one", shuffle=False).partial_fit(X, targets())
    model = net().partial_fit(X, targets(), classes=known(SOME))
    assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)
    with pytest.raises(TypeError, match="loss is a parameter of the estimator: set it there, by set_params"):
        export_training(net(), tmp_path / "two", X, targets(), loss=losses)


def test_mismatched_targets_are_refused(tmp_path):
    model = quietly(net().fit, X, targets()).set_params(class_weight={"class": "balanced"})
    with pytest.raises(
        ModelError, match=r"Output 'class': .* which this estimator was not fitted with: call fit again"
    ):
        model.export_training(tmp_path / "folder")
    model.set_params(class_weight=None).export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"y lacks the output\(s\) \['number'\]"):
        training.partial_fit(X, {name: Y[name] for name in ("class", "words")})
    with pytest.raises(ValueError, match=r"sample_weight names 'clas', an output without a loss. Did you mean 'class'"):
        training.partial_fit(X, targets(), {"clas": None})
    with pytest.raises(TypeError, match="y must be a dict of arrays by output"):
        training.partial_fit(X, Y["class"])
    with pytest.raises(ValueError, match="Output 'number': X has 40 rows and y has 39"):
        training.partial_fit(X, {**targets(), "number": Y["number"][1:]})


def test_numbers_alone_have_no_probabilities(tmp_path):
    names = ["number", "numbers"]
    quietly(net(names).fit, X, targets(names)).export_training(tmp_path / "folder")
    with pytest.raises(AttributeError, match="these graphs predict numbers"):
        load_training(tmp_path / "folder").predict_proba(X)
