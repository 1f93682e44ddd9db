"""Exported training graphs in JavaScript: `make test-web` installs the runtimes from npm and runs these tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from tests.helpers.training_graphs import Folder
from tests.helpers.web import PACKAGES, ROOT, TYPESCRIPT, engine, module, required_node


def run(folder: Path, runtime: str, *arguments: str, by: str = "node") -> str:
    """Run the program of the example in a project as users have it: a folder with packages of npm beside the files."""
    module(runtime)
    project = folder.parent / "project"
    for name in ("js", "examples/node"):
        shutil.copytree(ROOT / name, project / name)
    (project / "node_modules").symlink_to(PACKAGES)
    shutil.copy(PACKAGES.parent / "package.json", project)
    command = [*engine(by), "examples/node/digits.mjs", str(folder), runtime, *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(folder: Path):
    """Run the Python half of the example; return its estimator, which is not fitted, and the rows."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    folder.mkdir()
    model = OrtGradientClassifier(MLP((32,)), batch_size=32, shuffle=False, random_state=0)
    model.export_training(folder / "digits", X, y)
    X.tofile(folder / "X.float32")
    y.astype(np.int32).tofile(folder / "y.int32")
    return model, X, y


RUNS = [
    ("onnxruntime-node", "epoch", "node"), ("onnxruntime-node", "step", "node"), ("onnxruntime-web", "epoch", "node"),
    ("onnxruntime-node", "epoch", "deno"), ("onnxruntime-web", "epoch", "deno"),
    ("onnxruntime-node", "epoch", "bun"), ("onnxruntime-web", "epoch", "bun"),
]  # fmt: skip


@pytest.mark.parametrize(("runtime", "form", "by"), RUNS)
def test_five_epochs_give_the_weights_of_python(runtime, form, by, tmp_path):
    model, X, y = exported(tmp_path / "example")
    said = run(tmp_path / "example", runtime, "in-order", form, by=by)
    twin = clone(model).partial_fit(X, y, classes=range(10))
    twin.load_state(tmp_path / "example" / "trained.safetensors")
    for _ in range(5):
        model.partial_fit(X, y, classes=range(10))
    for name, array in model.weights_.items():
        np.testing.assert_allclose(twin.weights_[name], array, rtol=0, atol=1e-5)
    assert twin._state.optimizer_state.t == model._state.optimizer_state.t == 5 * 57
    assert float(re.search(r"accuracy (\S+)", said)[1]) == pytest.approx(model.score(X, y), abs=1.5e-3)


def test_shuffled_rows_learn(tmp_path):
    exported(tmp_path / "example")
    said = run(tmp_path / "example", "onnxruntime-node")
    assert float(re.search(r"accuracy (\S+)", said)[1]) > 0.85


def test_errors_in_javascript(tmp_path):
    """A changed file, an unknown label and a state of another model are refused."""
    path = module("onnxruntime-node")
    exported(tmp_path / "example")
    folder = Folder(tmp_path / "example" / "digits")
    program = f"""
import * as ort from "{path}";
import {{ readFile }} from "node:fs/promises";
import {{ Trainer }} from "{ROOT / "js" / "onnxtrain.mjs"}";
const read = (name) => readFile("{folder.path}/" + name);
const trainer = await Trainer.load(ort, read);
const rows = {{ X: new Float32Array(64), y: trainer.encode([1]) }};
const before = String(trainer.saveState());
const tried = [() => trainer.encode([11]), () => trainer.step({{ X: new Float32Array(64) }}, {{}}),
  () => Trainer.load(ort, async (name) => name === "step.onnx" ? new Uint8Array(3) : read(name)),
  () => trainer.loadState(new Uint8Array([10, 0, 0, 0, 0, 0, 0, 0, ...new TextEncoder().encode('{{}}        ')])),
  () => trainer.step({{ X: [], y: [] }}, {{ learningRate: 0.1 }}),
  () => trainer.epoch(rows, {{ learningRate: 0.1, sampleWeight: [1, 1] }}),
  () => trainer.epoch(rows, {{ learningRate: () => NaN }}),
  () => trainer.epoch({{ ...rows, X: rows.X.fill(NaN) }}, {{ learningRate: 0.1 }}),
  () => console.log(String(trainer.saveState()) === before)];
for (const one of tried) {{
  try {{ await one(); console.log("none"); }} catch (error) {{ console.log(error.message); }}
}}
"""
    (tmp_path / "errors.mjs").write_text(program)
    found = subprocess.run(
        [required_node(), str(tmp_path / "errors.mjs")], capture_output=True, text=True, check=True
    ).stdout
    lines = found.splitlines()
    assert lines[0].startswith("The label 11 is not among the classes: 0,1,2")
    assert lines[1] == "Give the rows of y."
    assert lines[2] == "step.onnx has changed: its SHA-256 is not that of manifest.json."
    assert lines[3].startswith("The state has parameters of shape [none]")
    assert lines[4:7] == [
        "There are no rows.",
        "There are 1 rows and 2 numbers of sampleWeight.",
        "Give learningRate: a number, or a function of the number of the step.",
    ]
    assert lines[7].startswith("The loss became NaN or infinite; the state is as before.")
    assert lines[8] == "true"


def test_types_of_the_module(tmp_path):
    """TypeScript takes what users write, and finds what they should not."""
    if not TYPESCRIPT.exists():
        pytest.skip("needs the npm package typescript: make test-web")
    (tmp_path / "js").symlink_to(ROOT / "js")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    shutil.copy(ROOT / "tests" / "helpers" / "typed_use.mts", tmp_path)
    options = "--strict --checkJs --allowJs --noEmit --target es2024 --module nodenext --lib es2024,dom"
    command = [required_node(), str(TYPESCRIPT), *options.split(), "typed_use.mts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0
