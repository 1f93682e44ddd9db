"""Several networks of a recipe in one graph, in Node: their predictions from the raw table, and their training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, TabMClassifier
from tests.helpers.training import quietly
from tests.helpers.training_graphs import Folder, tensors_of
from tests.helpers.web import in_node, module

SMALL = {"hidden_layer_sizes": (8, 8), "max_iter": 4, "batch_size": 32, "n_ensembles": 3, "random_state": 0}
RECIPES = {
    "RealMLP": RealMLPClassifier(**SMALL),
    "TabM": TabMClassifier(n_members=2, **SMALL),
    "RealMLP of numbers": RealMLPRegressor(embedding="piecewise_linear", **SMALL),
}
RUNS = [*((case, "onnxruntime-node") for case in RECIPES), ("RealMLP", "onnxruntime-web")]
ROWS = 96
TABLE = """
const count = 96, table = {};
for (const name of ["age", "pay"]) table[name] = await floats(name + ".float32");
table.city = JSON.parse(await file("city.json"));
"""


def raw_table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.normal(40, 10, ROWS), "city": rng.choice(["rome", "oslo", "bern"], ROWS)})
    return X.assign(pay=np.where(rng.random(ROWS) < 0.1, np.nan, rng.exponential(3, ROWS)))


def target_of(recipe: object, X: pd.DataFrame) -> np.ndarray:
    if isinstance(recipe, RealMLPRegressor):
        return np.array(X["age"] * (X["city"] == "oslo"))
    return np.where(X["age"] > 50, "old", np.where(X["city"] == "oslo", "north", "south"))


def write_table(folder: Path, X: pd.DataFrame) -> None:
    for name in ("age", "pay"):
        X[name].to_numpy(np.float32).tofile(folder / f"{name}.float32")
    (folder / "city.json").write_text(json.dumps(X["city"].tolist()))


@pytest.mark.parametrize(("case", "runtime"), RUNS)
def test_predictions_of_several_networks_in_node(case, runtime, tmp_path):
    """From numbers, missing ones too, and texts, one of which no network has seen."""
    module(runtime)  # skips where it is not there
    recipe, X = clone(RECIPES[case]), raw_table()
    quietly(recipe.fit, X, target_of(recipe, X))
    X.loc[::7, "city"] = "a city that is new"
    (tmp_path / "model.onnx").write_bytes(recipe.to_onnx().SerializeToString())
    write_table(tmp_path, X)
    lines = in_node(
        tmp_path,
        TABLE
        + """
const session = await ort.InferenceSession.create(new Uint8Array(await file("model.onnx")));
const feeds = {};
for (const [name, data] of Object.entries(table)) {
  feeds[name] = new ort.Tensor(name === "city" ? "string" : "float32", data, [count, 1]);
}
const results = await session.run(feeds);
console.log(JSON.stringify(session.outputNames.map((name) => Array.from(results[name].data))));
""",
        runtime,
    )
    found = json.loads(lines[0])
    if case == "RealMLP of numbers":
        np.testing.assert_allclose(found[-1], recipe.predict(X), rtol=1e-4, atol=1e-4)
    else:
        expected = recipe.predict_proba(X)
        np.testing.assert_allclose(np.reshape(found[-1], expected.shape), expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(found[0], recipe.predict(X))


def random_of(folder: Folder, steps: int) -> list[dict]:
    """Return random numbers for the dropout of each step."""
    rng, facts = np.random.default_rng(1), folder.manifest["graphs"]["step"]["inputs"]
    shapes = {fact["name"]: fact["shape"] for fact in facts if fact["role"] == "random"}
    return [{name: rng.random(shape, np.float32) for name, shape in shapes.items()} for _ in range(steps)]


@pytest.mark.parametrize(("case", "runtime"), RUNS)
def test_training_of_several_networks_in_node(case, runtime, tmp_path):
    """An epoch in one run, with the random numbers of the loop in Python, then predictions of all networks."""
    module(runtime)  # skips where it is not there
    recipe, X = clone(RECIPES[case]), raw_table()
    y = target_of(recipe, X)
    recipe.export_training(tmp_path / "graphs", X, y)
    folder = Folder(tmp_path / "graphs")
    own = folder.manifest["random"]["inputs"]
    steps = -(-ROWS // folder.manifest["batch_size"])
    draws = random_of(folder, steps)
    numbers = [draw[name].ravel() for name in own for draw in draws]
    np.concatenate([np.zeros(0, np.float32), *numbers]).tofile(tmp_path / "random.float32")
    write_table(tmp_path, X)
    (tmp_path / "y.json").write_text(json.dumps(y.tolist()))
    lines = in_node(
        tmp_path,
        TABLE
        + """
const drawn = await floats("random.float32");
let next = 0;
const rates = { learningRate: RATE, weightDecayFactor: 0.7, dropoutFactor: 0.7, random: () => drawn[next++] };
const rows = { ...table, [trainer.manifest.target.input]: trainer.encode(JSON.parse(await file("y.json"))) };
await trainer.epoch(rows, { ...rates, order: [...Array(count).keys()] });
const results = Object.values(await trainer.predict(table));
console.log(JSON.stringify([next, Array.from(results.at(-1).data)]));
""".replace("RATE", str(folder.rate)),
        runtime,
    )
    target = next(fact for fact in folder.manifest["graphs"]["step"]["inputs"] if fact["role"] == "target")
    values = np.searchsorted(np.unique(y), y) if target["type"] == "int64" else y.astype(target["type"])
    data = {column: X[[column]].to_numpy(object if column == "city" else np.float32) for column in X}
    data[target["name"]] = values.reshape(ROWS, *target["shape"][1:])
    factors = {n: np.array(0.7, np.float32) for n in folder.manifest["inputs"] if n.endswith("_factor")}
    before = {key: array.copy() for key, array in folder.state.items()}
    folder.epoch(data, None, [{**factors, **draw} for draw in draws])
    next_number, predicted = json.loads(lines[0])
    assert next_number == sum(len(one) for one in numbers)
    found = tensors_of((tmp_path / "trained.safetensors").read_bytes(), "state")
    assert found.keys() == folder.state.keys() >= {f"parameters/{i}" for i in range(3)}
    for key, array in folder.state.items():
        moved = np.abs(array - before[key]).max()
        assert np.abs(found[key] - array).max() < 1e-3 * moved, key
    expected = folder.predict({column: data[column] for column in X})[-1]
    np.testing.assert_allclose(predicted, np.ravel(expected), rtol=1e-4, atol=5e-5 * np.abs(expected).max())
