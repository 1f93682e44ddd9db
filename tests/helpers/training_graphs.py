"""Loops over exported training graphs in plain onnxruntime, as any language would write them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx_ir as ir
import onnxruntime
from sklearn.base import clone

from onnxtrain_sklearn._export.state_files import tensors_of
from onnxtrain_sklearn._export.training import loop_targets
from onnxtrain_sklearn._training.randomness import UniformNumbers
from tests.helpers.training import NEVER, quietly

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "training_manifest.schema.json").read_text())
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)  # jsonschema.validate checks the schema each time
SETTINGS = {
    "batch_size": 16,
    "max_iter": 2,
    "tol": NEVER,
    "shuffle": False,
    "random_state": 0,
    "learning_rate_init": 0.01,
}


class Folder:
    """A folder of training graphs, its sessions and its state."""

    def __init__(self, path: Path) -> None:
        self.path, self.manifest = path, json.loads((path / "manifest.json").read_text())
        VALIDATOR.validate(self.manifest)
        self.state = tensors_of((path / "state.safetensors").read_bytes(), "state")
        self.rate = self.manifest["hyperparameters"]["learning_rate_init"]
        self._sessions = {}

    def random(self, steps: int) -> list[dict]:
        """Return the random numbers of the next steps, which are those of the estimator."""
        known, facts = self.manifest["random"], self.manifest["graphs"]["step"]["inputs"]
        shapes, count = {fact["name"]: fact["shape"] for fact in facts}, known.get("minibatches", 1)
        own = {name: shapes[name][1:] if count > 1 else shapes[name] for name in known["inputs"]}
        numbers = UniformNumbers([ir.val(name, ir.DataType.FLOAT, shape) for name, shape in own.items()], known["seed"])
        found = []
        for i in range(steps * count):
            numbers.draw(known["draws"] + i)
            found.append({name: array.copy() for name, array in numbers.buffers.items()})
        groups = [found[start : start + count] for start in range(0, len(found), count)]
        return [{name: np.stack([one[name] for one in g]).reshape(shapes[name]) for name in own} for g in groups]

    def session(self, graph: str) -> onnxruntime.InferenceSession:
        if graph not in self._sessions:
            file = self.path / self.manifest["graphs"][graph]["file"]
            self._sessions[graph] = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return self._sessions[graph]

    def run(self, graph: str, feeds: dict) -> dict:
        session = self.session(graph)
        names = [value.name for value in session.get_outputs()]
        found = dict(zip(names, session.run(names, {**feeds, **self.state}), strict=True))
        self.state = {one["name"]: found[one["output"]] for one in self.manifest["state"]["tensors"]}
        return found

    def steps(self, data: dict, weights: np.ndarray | None = None, random: tuple = ()) -> list[float]:
        """Train for one pass, a step at a time; ``data`` holds the rows of inputs and target."""
        n, batch, losses = len(next(iter(data.values()))), self.manifest["batch_size"], []
        whole = np.ones(n, np.float32) if weights is None else weights.astype(np.float32)
        for i, start in enumerate(range(0, n, batch)):
            rows = np.arange(start, min(n, start + batch))
            padded = np.r_[rows, np.full(batch - len(rows), rows[0])]
            feeds = {name: array[padded] for name, array in data.items()}
            feeds["sample_weight"] = np.r_[whole[rows], np.zeros(batch - len(rows), np.float32)].astype(np.float32)
            feeds["learning_rate"] = np.array(self.rate, np.float32)
            feeds |= random[i] if random else {}
            losses.append(float(self.run("step", feeds)["loss"]))
        return losses

    def epoch(self, data: dict, weights: np.ndarray | None = None, random: tuple = ()) -> list[float]:
        """Train for one pass by a single run."""
        n, batch = len(next(iter(data.values()))), self.manifest["batch_size"]
        steps = -(-n // batch)
        order = np.full(steps * batch, -1, np.int64)
        order[:n] = np.arange(n)
        feeds = dict(data)
        feeds["sample_weight"] = np.ones(n, np.float32) if weights is None else weights.astype(np.float32)
        feeds["learning_rate"] = np.full(steps, self.rate, np.float32)
        feeds["order"] = order.reshape(steps, batch)
        feeds |= {name: np.stack([one[name] for one in random]) for name in (random[0] if random else ())}
        return self.run("epoch", feeds)["losses"].tolist()

    def predict(self, data: dict) -> list:
        inputs = self.manifest["graphs"]["predict"]["inputs"]
        state = {one["name"]: self.state[one["name"]] for one in inputs if one["role"] == "state"}
        return self.session("predict").run(None, {**data, **state})


def as_target(estimator, y: np.ndarray) -> np.ndarray:
    """Return y as the training graphs take it."""
    decoding = estimator._state.decoding
    if decoding.task == "multiclass":
        return np.searchsorted(decoding.classes, y)
    if decoding.task == "binary":
        return (y == decoding.classes[1]).astype(np.float32)[:, None]
    return y.reshape(len(y), -1).astype(np.float32 if decoding.target_scale is None else np.float64)


def loop_arrays(training, targets: dict, n_rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the targets of several outputs as the training graphs take them, and the weights of the rows."""
    inputs = {one["name"]: (one["type"], one["shape"]) for one in training.manifest["graphs"]["step"]["inputs"]}
    arrays, weights, _ = loop_targets(training.manifest, inputs, targets, None, n_rows)
    return arrays, weights


def goes_on(estimator, X, y, tmp_path, weights=None, tolerance=1e-6) -> Folder:
    """Fit, export, train two passes in onnxruntime and in the estimator, and compare; return the folder."""
    quietly(estimator.fit, X, y, weights)
    estimator.export_training(tmp_path / "folder")
    folder = Folder(tmp_path / "folder")
    steps = -(-len(X) // folder.manifest["batch_size"])
    random = folder.random(2 * steps) if folder.manifest["random"]["inputs"] else []
    name = folder.manifest["graphs"]["step"]["inputs"][0]["name"]
    data = {name: X, folder.manifest["target"]["input"]: as_target(estimator, y)}
    folder.steps(data, weights, random[:steps])
    losses = folder.epoch(data, weights, random[steps:])
    for _ in range(2):
        estimator.partial_fit(X, y, sample_weight=weights)
    twin = clone(estimator)
    twin.__setstate__(estimator.__getstate__())
    twin.load_state(folder.state)
    assert twin.weights_.keys() == estimator.weights_.keys()
    for key, array in estimator.weights_.items():
        np.testing.assert_allclose(twin.weights_[key], array, rtol=0, atol=tolerance, err_msg=key)
    batch = folder.manifest["batch_size"]
    shares = [len(X[start : start + batch]) for start in range(0, len(X), batch)]
    if weights is None:
        np.testing.assert_allclose(np.average(losses, weights=shares), estimator.loss_, rtol=1e-5)
    method = next(m for m in ("predict_proba", "decision_function", "predict") if hasattr(estimator, m))
    expected = getattr(estimator, method)(X)
    np.testing.assert_allclose(np.ravel(folder.predict({name: X})[-1]), np.ravel(expected), rtol=1e-4, atol=1e-5)
    return folder
