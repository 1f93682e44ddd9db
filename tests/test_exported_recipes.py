"""Training graphs of recipes for raw tables: the loop of the recipe, with the preprocessing in the graphs."""

from __future__ import annotations

import json
import warnings

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
from onnxtrain_sklearn._recipes.training_files import untrained_network
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.training_graphs import SCHEMA

jsonschema = pytest.importorskip("jsonschema")


def table(n: int = 96) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.normal(40, 10, n), "city": rng.choice(["rome", "oslo", "bern"], n)})
    X["pay"], X["open"] = np.where(rng.random(n) < 0.1, np.nan, rng.exponential(3, n)), rng.random(n) < 0.5
    return X


SMALL = {"max_iter": 4, "random_state": 0, "validation_fraction": None, "batch_size": 32}
RECIPES = {
    "RealMLP": (RealMLPClassifier(hidden_layer_sizes=(8, 8), **SMALL), "labels"),
    "RealMLP, simple": (RealMLPRegressor("td-s", hidden_layer_sizes=(8,), **SMALL), "numbers"),
    "RealMLP, bins": (RealMLPRegressor(hidden_layer_sizes=(8,), embedding="piecewise_linear", **SMALL), "numbers"),
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
    jsonschema.validate(json.loads((tmp_path / "folder" / "manifest.json").read_text()), SCHEMA)
    given = X.fillna({"city": ""})
    for _ in range(4):
        training.partial_fit(given, y)
    network, _, matrix, values = untrained_network(clone(recipe), X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.set_params(shuffle=False).fit(matrix, values)
    expected = network._run.parameters.vector
    np.testing.assert_allclose(training.state["parameters"], expected, rtol=0, atol=5e-6 * max(1, abs(expected).max()))
    if kind == "labels":
        np.testing.assert_array_equal(training.predict(given), network.predict(matrix))
    else:
        # Narrow bins have large weights, so the rounding of an engine shows more in predictions than in parameters.
        np.testing.assert_allclose(training.predict(given), network.predict(matrix), rtol=1e-4, atol=5e-5 * y.max())


def test_what_is_refused(tmp_path):
    X = table()
    y = target(X, "labels")
    with pytest.raises(ModelError, match="hold one network, and n_ensembles=2: set n_ensembles=1, and export each"):
        RealMLPClassifier(n_ensembles=2).export_training(tmp_path / "folder", X, y)
    with pytest.raises(ModelError, match="has an input, a column or a weight 'step'"):
        RealMLPClassifier().export_training(tmp_path / "folder", X.rename(columns={"age": "step"}), y)
    with pytest.raises(ValueError, match="form must be one of"):
        RealMLPClassifier().export_training(tmp_path / "folder", X, y, form="one")
    assert not list(tmp_path.iterdir())
