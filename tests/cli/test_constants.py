"""``--constant``: inputs of an ONNX file that are the same in every call."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import GraphModel, OrtGradientRegressor
from tests.cli.tables import program_json
from tests.helpers.command import main
from tests.model.test_constant_inputs import parsed

RNG = np.random.default_rng(0)
MIX = RNG.normal(size=(3, 3))
STEPS = ["--holdout", "0", "--quiet", "--set", "max_iter=2", "shuffle=False", "batch_size=40", "engine=portable"]


@pytest.fixture
def files(tmp_path):
    """Write a table, a matrix, and a graph that takes the matrix and a number besides the rows."""
    rows = RNG.normal(size=(40, 3)).astype(np.float32)
    table, matrix, graph = tmp_path / "rows.csv", tmp_path / "mix.npy", tmp_path / "net.onnx"
    pd.DataFrame({"a": rows[:, 0], "b": rows[:, 1], "c": rows[:, 2], "t": rows.sum(axis=1)}).to_csv(table, index=False)
    np.save(matrix, MIX)
    model = parsed(
        "m = MatMul(X, mix) s = Mul(m, gain) out = MatMul(s, W)",
        "float[N, 3] X, float[3, 3] mix, float gain",
        W=RNG.normal(size=(3, 1)).astype(np.float32),
    )
    onnx.save(model, graph)
    return table, matrix, graph


def test_train_binds_numbers_and_arrays(files, tmp_path, capsys):
    table, matrix, graph = files
    made = tmp_path / "made.onnx"
    arguments = ["train", table, "--target", "t", "--model", graph, *STEPS, "--output", made]
    status, told = program_json(capsys, *arguments, "--constant", f"mix={matrix}", "gain=0.5")
    assert (status, told["columns"]) == (0, ["a", "b", "c"])
    frame = pd.read_csv(table)
    rows = frame[["a", "b", "c"]].to_numpy(np.float32)
    model = GraphModel(str(graph), constant_inputs={"mix": MIX, "gain": 0.5})
    settings = {"max_iter": 2, "shuffle": False, "batch_size": 40, "engine": "portable", "random_state": 0}
    with pytest.warns(match="not converged|Maximum number"):
        expected = OrtGradientRegressor(model, **settings).fit(rows, frame["t"]).predict(rows)
    session = onnxruntime.InferenceSession(made.read_bytes())
    (name,) = (value.name for value in session.get_inputs())
    assert_allclose(np.ravel(session.run(None, {name: rows})[0]), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected, OrtGradientRegressor(model, **settings).initialize(rows, frame["t"]).predict(rows))


def test_inspect_takes_constants(files, capsys):
    _, matrix, graph = files
    status, told = program_json(capsys, "inspect", graph, "--constant", f"mix={matrix}", "gain=0.5")
    assert status == 0
    assert [entry["name"] for entry in told["parameters"] if entry["status"] == "trained"] == ["W"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["mix"], "--constant takes NAME=VALUE, such as sr=16000"),
        (["mix=missing.npy"], "'missing.npy' is no file of an array"),
        (["mix=ring"], "takes a number, a list or a .npy file of an array, got 'ring'"),
        (["gian=1"], "is no input of the graph.* 'gain'"),
        (["mix=[1, 2]", "gain=1"], "has the shape"),
    ],
)
def test_errors_say_what_a_constant_is(files, given, message, capsys):
    table, _, graph = files
    assert main(["train", str(table), "--target", "t", "--model", str(graph), *STEPS, "--constant", *given]) != 0
    found = capsys.readouterr().err
    assert re.search(message, found), found


def test_other_models_have_no_constants(files, capsys):
    table, _, _ = files
    assert main(["train", str(table), "--target", "t", "--model", "mlp", "--constant", "sr=1"]) != 0
    assert "--constant is for the inputs of an ONNX file" in capsys.readouterr().err
