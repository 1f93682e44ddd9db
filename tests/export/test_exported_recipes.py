"""Training graphs of recipes for raw tables: the loop of the recipe, with the preprocessing in the graphs."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from onnxtrain_sklearn import (
    RealMLPClassifier,
    RealMLPRegressor,
    TabMClassifier,
    TabMRegressor,
    load_training,
)
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.recipes import export_network, untrained
from tests.helpers.selection import one_case
from tests.helpers.training import quietly
from tests.helpers.training_graphs import VALIDATOR, Folder


def table(n: int = 96) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.normal(40, 10, n), "city": rng.choice(["rome", "oslo", "bern"], n)})
    X["pay"], X["open"] = np.where(rng.random(n) < 0.1, np.nan, rng.exponential(3, n)), rng.random(n) < 0.5
    return X


SMALL = {"max_iter": 4, "random_state": 0, "validation_split": None, "batch_size": 32}
RECIPES = {
    "RealMLP": (RealMLPClassifier("td", hidden_layer_sizes=(8, 8), **SMALL), "labels"),
    "RealMLP, simple": (RealMLPRegressor("td-s", hidden_layer_sizes=(8,), **SMALL), "numbers"),
    "RealMLP, bins": (
        RealMLPRegressor("td", hidden_layer_sizes=(8,), embedding="piecewise_linear", **SMALL),
        "numbers",
    ),
    "no smoothing": (RealMLPClassifier("td-s", hidden_layer_sizes=(8,), label_smoothing=0.0, **SMALL), "labels"),
    "balanced": (RealMLPClassifier("td-s", hidden_layer_sizes=(8,), class_weight="balanced", **SMALL), "labels"),
    "TabM": (TabMClassifier(n_members=3, hidden_layer_sizes=(8,), **SMALL), "labels"),
    "TabM, bins": (
        TabMRegressor(n_members=3, hidden_layer_sizes=(8,), embedding="piecewise_linear", **SMALL),
        "numbers",
    ),
}


def target(X: pd.DataFrame, kind: str) -> np.ndarray:
    if kind == "numbers":
        return (X["age"] * (X["city"] == "oslo")).to_numpy()
    return np.where(X["age"] > 50, "old", np.where(X["city"] == "oslo", "north", "south"))


@pytest.mark.parametrize("columns", ["texts", "numbers"])
@pytest.mark.parametrize("case", RECIPES)
def test_recipes_are_trained_as_their_networks_are(case, columns, tmp_path):
    """All epochs, with the schedules of the recipe and its dropout, from the rows of the table."""
    recipe, kind = RECIPES[case]
    X = table()
    y = target(X, kind)
    X = X if columns == "texts" else X[["age", "pay"]]
    recipe.export_training(tmp_path / "folder", X, y)
    assert not hasattr(recipe, "n_features_in_")
    training = load_training(tmp_path / "folder", shuffle=False)
    VALIDATOR.validate(json.loads((tmp_path / "folder" / "manifest.json").read_text()))
    given = X.fillna({"city": ""})
    for _ in range(4):
        training.partial_fit(given, y)
    (one,) = untrained(recipe, X, y)
    network, matrix = quietly(one.network.set_params(shuffle=False).fit, one.matrix, one.values), one.matrix
    expected = network._state.parameters.vector
    np.testing.assert_allclose(training.state["parameters"], expected, rtol=0, atol=5e-6 * max(1, abs(expected).max()))
    if kind == "labels":
        np.testing.assert_array_equal(training.predict(given), network.predict(matrix))
    else:
        # Narrow bins have large weights, so the rounding of an engine shows more in predictions than in parameters.
        np.testing.assert_allclose(training.predict(given), network.predict(matrix), rtol=1e-4, atol=5e-5 * y.max())


@pytest.mark.long
@one_case
@pytest.mark.parametrize(("case", "columns"), [("balanced", "texts"), ("RealMLP, simple", "numbers")])
def test_several_networks_are_trained_each_as_alone(case, columns, tmp_path):
    """Each from its own initial weights, by the schedules of the recipe; what they predict is averaged."""
    recipe, kind = clone(RECIPES[case][0]).set_params(n_ensembles=3), RECIPES[case][1]
    X = table()
    y = target(X, kind)
    X = X if columns == "texts" else X[["age", "pay"]]
    recipe.export_training(tmp_path / "folder", X, y)
    training = load_training(tmp_path / "folder", shuffle=False)
    VALIDATOR.validate(training.manifest)
    given = X.fillna({"city": ""})
    for _ in range(4):
        training.partial_fit(given, y)
    each = untrained(recipe, X, y)
    assert len(each) == 3
    for number, one in enumerate(each):
        quietly(one.network.set_params(shuffle=False).fit, one.matrix, one.values)
        found, expected = training.state[f"parameters/{number}"], one.network._state.parameters.vector
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * max(1, abs(expected).max()))
    np.testing.assert_allclose(training.loss_curve_[-1], np.mean([one.network.loss_ for one in each]), rtol=1e-4)
    if kind == "labels":
        mean = np.mean([one.network.predict_proba(one.matrix) for one in each], axis=0)
        np.testing.assert_allclose(training.predict_proba(given), mean, atol=1e-4)
        np.testing.assert_array_equal(training.predict(given), each[0].network.classes_[mean.argmax(axis=1)])
    else:
        mean = np.mean([one.network.predict(one.matrix) for one in each], axis=0)
        np.testing.assert_allclose(training.predict(given), mean, rtol=1e-4, atol=5e-5 * y.max())


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", ["RealMLP", "RealMLP, bins", "TabM"])
def test_the_networks_are_those_that_fit_trains(case, count, tmp_path):
    """A fit that learns nothing predicts as the graphs do before their training."""
    recipe, kind = RECIPES[case]
    recipe = clone(recipe).set_params(n_ensembles=count, validation_split=0.25, learning_rate_init=1e-15)
    X = table()
    y = target(X, kind)
    recipe.export_training(tmp_path / "folder", X, y)
    training, method = load_training(tmp_path / "folder"), "predict_proba" if kind == "labels" else "predict"
    found = getattr(training, method)(X.fillna({"city": ""}))
    np.testing.assert_allclose(found, getattr(quietly(recipe.fit, X, y), method)(X), rtol=1e-4, atol=1e-4)


def random_numbers(folder: Folder, seed: int) -> list[dict]:
    """Return random numbers for the steps of a pass."""
    rng, facts = np.random.default_rng(seed), folder.manifest["graphs"]["step"]["inputs"]
    shapes = {fact["name"]: fact["shape"] for fact in facts if fact["role"] == "random"}
    steps = -(-len(table()) // folder.manifest["batch_size"])
    return [{name: rng.random(shape, np.float32) for name, shape in shapes.items()} for _ in range(steps)]


@one_case
@pytest.mark.parametrize("form", ["step", "epoch"])
@pytest.mark.parametrize("case", ["RealMLP", "RealMLP, bins", "TabM"])
@pytest.mark.long
def test_joint_training_equals_separate_training(case, form, tmp_path):
    """Each behind the preprocessing of its own rows, and with random numbers of its own for dropout."""
    recipe = clone(RECIPES[case][0]).set_params(n_ensembles=2, validation_split=0.25)
    X = table()
    y, X = target(X, RECIPES[case][1]), X[["age", "pay"]]
    recipe.export_training(tmp_path / "both", X, y)
    alone = []
    for number, one in enumerate(untrained(recipe, X, y)):
        export_network(one, tmp_path / str(number))
        alone.append(Folder(tmp_path / str(number)))
    both, (first, second) = Folder(tmp_path / "both"), alone
    numbers = y[:, None] if RECIPES[case][1] == "numbers" else np.searchsorted(np.unique(y), y)
    data = {"X": X.to_numpy(np.float32), first.manifest["target"]["input"]: numbers}
    draws = [random_numbers(folder, seed) for seed, folder in enumerate(alone)]
    joined = [{f"{n}/{i}": own[n] for i, own in enumerate(step) for n in own} for step in zip(*draws, strict=True)]
    assert both.manifest["random"]["inputs"] == list(joined[0])
    factors = {name: np.array(0.7, np.float32) for name in both.manifest["inputs"] if name.endswith("_factor")}
    train = Folder.steps if form == "step" else Folder.epoch
    for folder, own in ((both, joined), *zip(alone, draws, strict=True)):
        train(folder, data, None, [{**factors, **step} for step in own])
    for number, folder in enumerate(alone):
        for name, array in folder.state.items():
            found = both.state[name if name == "step" else f"{name}/{number}"]
            np.testing.assert_allclose(found, array, rtol=0, atol=1e-6, err_msg=name)
    assert abs(first.state["parameters"] - second.state["parameters"]).max() > 0.01
    predicted, each = both.predict({"X": data["X"]})[-1], [one.predict({"X": data["X"]})[-1] for one in alone]
    np.testing.assert_allclose(predicted, np.mean(each, axis=0), rtol=1e-4, atol=1e-5)


def test_unsupported_recipe_exports_are_refused(tmp_path):
    X = table()
    y = target(X, "labels")
    for count, name in ((1, "step"), (2, "step"), (1, "parameters")):
        with pytest.raises(ModelError, match=f"has an input, a column or a weight '{name}'"):
            RealMLPClassifier(hidden_layer_sizes=(4,), n_ensembles=count).export_training(
                tmp_path / "folder", X.rename(columns={"age": name}), y
            )
    with pytest.raises(ModelError, match=r"The table has a column 'parameters/1', .* Rename the column"):
        RealMLPClassifier(hidden_layer_sizes=(4,), n_ensembles=2).export_training(
            tmp_path, X.rename(columns={"age": "parameters/1"}), y
        )
    with pytest.raises(ValueError, match="form must be one of"):
        RealMLPClassifier().export_training(tmp_path / "folder", X, y, form="one")
    assert not list(tmp_path.iterdir())
