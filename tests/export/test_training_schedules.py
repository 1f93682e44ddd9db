"""Training graphs of estimators whose loop has more than one rate: schedules, recipes, accumulated minibatches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn import (
    MLP,
    SGD,
    AdamW,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLP,
    TabM,
    load_training,
    schedules,
)
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer
from onnxtrain_sklearn.schedules import SCHEDULES, Schedule
from tests.helpers.step_options import configured, with_options
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS, Folder

DATA = Path(__file__).parents[1] / "files"
DECAYING = [
    kind for kind in OPTIMIZERS.values() if issubclass(kind, Optimizer) and "weight_decay" in kind().get_params()
]


def rows(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    return X, np.digitize(X[:, 0], [-0.5, 0.5])


def goes_on(model, X, y, folder: Path, passes: int = 3) -> None:
    """Train one pass, export, train more in the estimator and by the graphs, with the rates of the schedules."""
    classes = {} if isinstance(model, OrtGradientRegressor) else {"classes": np.unique(y)}
    quietly(model.partial_fit, X, y, **classes).export_training(folder)
    training = load_training(folder, shuffle=False)
    for _ in range(passes):
        quietly(model.partial_fit, X, y)
        training.partial_fit(X, y)
    found, expected = training.state["parameters"], model._state.parameters.vector
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))
    assert training.state["step"] == model._state.optimizer_state.t
    np.testing.assert_allclose(training.loss_curve_, model.loss_curve_[1:], rtol=1e-5)


@pytest.mark.parametrize("kind", DECAYING, ids=lambda kind: kind.__name__)
def test_scheduled_weight_decay_goes_on(kind, tmp_path):
    optimizer = kind(weight_decay=0.3)
    model = configured(
        OrtGradientClassifier(MLP((8,)), optimizer=with_options(optimizer, weight_decay_schedule="cosine")),
        **SETTINGS | {"learning_rate_init": 0.003},
    )
    goes_on(model.set_params(max_iter=5), *rows(), tmp_path / "folder")
    constant = load_training(tmp_path / "folder", shuffle=False)
    constant._rates._schedules["weight_decay_factor"] = schedules.Constant()
    for _ in range(3):
        constant.partial_fit(*rows())
    assert np.abs(constant.state["parameters"] - model._state.parameters.vector).max() > 1e-5


def test_failed_pass_leaves_training_unchanged(tmp_path, monkeypatch):
    X, y = rows()
    model = OrtGradientClassifier(MLP((8, 8), dropout=0.4), dropout_schedule="linear", learning_rate="cosine")
    quietly(configured(model, **SETTINGS | {"max_iter": 5}).partial_fit, X, y, classes=np.unique(y))
    model.export_training(tmp_path / "folder")
    interrupted, expected = (load_training(tmp_path / "folder", random_state=0) for _ in range(2))
    losses, step = [], interrupted._step

    def failing(*given):
        losses.append(step(*given))
        return losses[-1] / (3 - len(losses))

    with monkeypatch.context() as patch:
        patch.setattr(interrupted, "_step", failing)
        with pytest.raises(ZeroDivisionError):
            interrupted.partial_fit(X, y)
    assert len(losses) == 3
    for _ in range(2):
        interrupted.partial_fit(X, y)
        expected.partial_fit(X, y)
    assert interrupted.loss_curve_ == expected.loss_curve_
    for name, array in expected.state.items():
        np.testing.assert_array_equal(interrupted.state[name], array)


def test_scheduled_dropout_goes_on(tmp_path):
    model = configured(
        OrtGradientClassifier(MLP((8, 8), dropout=0.4), dropout_schedule="linear"), **SETTINGS | {"max_iter": 5}
    )
    goes_on(model, *rows(), tmp_path / "folder")
    manifest = json.loads((tmp_path / "folder" / "manifest.json").read_text())
    assert manifest["inputs"]["dropout_factor"] == "dropout_factor"
    assert "dropout_factor" not in manifest["random"]["inputs"]


@pytest.mark.parametrize(
    "schedule", [kind() for kind in SCHEDULES.values()] + [schedules.Warmup(3, schedules.Cosine(50))], ids=repr
)
def test_learning_rates_follow_the_schedule(schedule, tmp_path):
    model = configured(OrtGradientClassifier(MLP((8,)), learning_rate=schedule), **SETTINGS | {"max_iter": 5})
    goes_on(model, *rows(), tmp_path / "folder")


RECIPES = [
    (RealMLP("td", (8, 8)), "coslog4", "flat_cos", None),
    (RealMLP("td-s", (8, 8)), "coslog4", "constant", None),
    (TabM(n_members=3, hidden_layer_sizes=(6,)), "constant", "constant", None),
    (TabM(n_members=3, hidden_layer_sizes=(6,), dropout=0.2), "constant", "flat_cos", 0.9),
]


@pytest.mark.parametrize(("builder", "rate", "others", "ema"), RECIPES, ids=["RealMLP", "simple", "TabM", "average"])
@pytest.mark.parametrize("kind", [OrtGradientClassifier, OrtGradientRegressor], ids=["classifier", "regressor"])
def test_networks_of_recipes_go_on(kind, builder, rate, others, ema, tmp_path):
    """With the schedules of the recipes and the factors of their parameters, and with an average of the weights."""
    settings = SETTINGS | {"max_iter": 5, "learning_rate_init": 0.002}
    model = configured(
        kind(builder, optimizer=AdamW(0.9, 0.95, weight_decay=0.02, ema_decay=ema), learning_rate=rate), **settings
    )
    drops = others if "dropout=0.2" in repr(builder) or "td'" in repr(builder) else "constant"
    X, y = rows()
    target = y if kind is OrtGradientClassifier else X[:, 0] ** 2 + 5
    goes_on(
        model.set_params(optimizer__weight_decay_schedule=others, dropout_schedule=drops),
        X,
        target,
        tmp_path / "folder",
    )


@pytest.mark.parametrize("count", [2, 3])
def test_accumulated_minibatches_go_on(count, tmp_path):
    """A step takes the rows of all minibatches of a group, also of the short last one."""
    X, y = rows()
    model = configured(OrtGradientClassifier(
        MLP((8,)), optimizer=SGD(momentum=0.9, accumulate=count, max_grad_norm=0.5), alpha=0.1, learning_rate="cosine"
    ), **SETTINGS | {"max_iter": 5, "batch_size": 8})  # fmt: skip
    goes_on(model, X, y, tmp_path / "folder")
    assert Folder(tmp_path / "folder").manifest["batch_size"] == 8 * count


def test_an_epoch_takes_factors_for_its_steps(tmp_path):
    X, y = rows()
    model = configured(
        OrtGradientClassifier(MLP((8,)), optimizer=AdamW(weight_decay=0.5, weight_decay_schedule="linear")),
        **SETTINGS | {"max_iter": 4},
    )
    quietly(model.partial_fit, X, y, classes=[0, 1, 2]).export_training(tmp_path / "folder")
    folder = Folder(tmp_path / "folder")
    factors = [schedules.Linear().factor(schedules.Progress(step=3 + i, total_steps=12)) for i in range(3)]
    assert factors[0] != factors[2]
    feeds = {"X": X, "y": y, "order": np.r_[np.arange(40), np.full(8, -1)].reshape(3, 16)}
    feeds |= {"sample_weight": np.ones(40, np.float32), "learning_rate": np.full(3, folder.rate, np.float32)}
    folder.run("epoch", feeds | {"weight_decay_factor": np.array(factors, np.float32)})
    model.partial_fit(X, y)
    np.testing.assert_allclose(folder.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)


def test_one_file_holds_the_factors(tmp_path):
    X, y = rows()
    settings = SETTINGS | {"max_iter": 5}
    model = configured(OrtGradientClassifier(MLP((8, 8), dropout=0.3), optimizer=AdamW(weight_decay=0.2)), **settings)
    model.set_params(optimizer__weight_decay_schedule="cosine", dropout_schedule="cosine").partial_fit(
        X, y, classes=[0, 1, 2]
    )
    onnx.save(model.to_training_onnx(), tmp_path / "one.onnx")
    training = load_training(tmp_path / "one.onnx", shuffle=False).partial_fit(X, y)
    model.partial_fit(X, y)
    for name, array in model.weights_.items():
        np.testing.assert_allclose(training.state[name], array, rtol=0, atol=1e-6)


class Halving(Schedule):
    def factor(self, progress):
        return 0.5**progress.epoch


class SteeperCosine(schedules.Cosine):
    def factor(self, progress):
        return super().factor(progress) ** 2


@pytest.mark.parametrize("own", [Halving(), SteeperCosine(), schedules.Warmup(2, Halving())], ids=repr)
def test_a_schedule_of_a_user_is_not_taken_for_another(own, tmp_path):
    X, y = rows()
    model = configured(OrtGradientClassifier(MLP((8,)), learning_rate=own), **SETTINGS).partial_fit(
        X, y, classes=[0, 1, 2]
    )
    model.export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder")
    with pytest.raises(ModelError, match=r"\(learning_rate\) is not defined by this package.*: give learning_rate"):
        training.partial_fit(X, y)
    training.partial_fit(X, y, learning_rate=0.1)


class RoundedDecay(AdamW):
    def scalars(self, learning_rate, t):
        return {**super().scalars(learning_rate, t), "decay": learning_rate * float(self.weight_decay)}


def test_export_of_scalars_that_are_not_arithmetic_is_refused(tmp_path):
    X, y = rows()
    model = configured(
        OrtGradientClassifier(MLP((8,)), optimizer=with_options(RoundedDecay(), weight_decay_schedule="cosine")),
        **SETTINGS,
    )
    model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(
        ModelError, match=r"RoundedDecay.scalars computes scalars that cannot be exported: .* leave out float\(\)"
    ):
        model.export_training(tmp_path / "folder")
