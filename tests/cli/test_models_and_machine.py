"""``inspect``, ``gradient``, ``doctor`` and ``bench``: what they find, and in which words they refuse."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import joblib
import numpy as np
import onnx
import onnx.parser
import pytest
from sklearn import datasets
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression

from onnxtrain_sklearn._cli import doctor
from onnxtrain_sklearn._ort import wrong_kernels
from tests.cli.tables import program_json
from tests.helpers.command import main
from tests.helpers.environment import ENGINES, auto_compiles, available_engines

HEAD = '<ir_version: 8, opset_import: ["": 18]>'
NET = f"""{HEAD} net (float[N, 3] X) => (float[N, 1] Y)
    <float[3, 2] A = {{1, 2, 3, 4, 5, 6}}, float[2] b = {{1, 2}}, float[2, 1] C = {{1, 2}}>
    {{ H = Gemm(X, A, b) R = Tanh(H) Y = MatMul(R, C) }}"""
OBSTACLE = """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
    net (float[N, 3] X) => (float[N, 1] Y)
    <float[3, 4] A = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 7}, float[4, 1] C = {1, 2, 3, 4}>
    { H = MatMul(X, A) [echo] R = com.microsoft.SampleOp(H) Y = Gemm(R, C) }"""


def written(folder, text):
    path = folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_inspect_lists_graph_contents(tmp_path, capsys):
    path = written(tmp_path, NET)
    status, told = program_json(capsys, "inspect", path)
    assert status == 0
    assert told["inputs"] == [{"name": "X", "type": "float", "shape": ["N", 3]}]
    assert told["outputs"] == [{"name": "Y", "type": "float", "shape": ["N", 1]}]
    assert (told["nodes"], told["operators"]) == (3, {"Gemm": 1, "Tanh": 1, "MatMul": 1})
    assert (told["opsets"], told["ir_version"], told["n_trained"]) == ({"ai.onnx": 18}, 8, 10)
    assert {p["name"]: (p["shape"], p["status"]) for p in told["parameters"]} == {
        "A": ([3, 2], "trained"), "b": ([2], "trained"), "C": ([2, 1], "trained"),
    }  # fmt: skip
    assert told["engines"].keys() == ENGINES.keys()
    for engine, verdict in told["engines"].items():
        assert verdict["available"] is (engine in available_engines())
        assert verdict["differentiable"] is (True if verdict["available"] else None)
    assert main(["inspect", str(path), "--trainable", "C"]) == 0
    text = capsys.readouterr().out
    assert "input  X: float [N, 3]" in text
    assert "trained   C 2x1" in text
    assert "frozen    A 3x2" in text


@pytest.mark.parametrize("engine", available_engines())
def test_inspect_names_the_node_in_the_way(tmp_path, capsys, engine):
    path = written(tmp_path, OBSTACLE)
    status, told = program_json(capsys, "inspect", path)
    assert status == 0
    verdict = told["engines"][engine]
    assert verdict["differentiable"] is False
    (obstacle,) = verdict["obstacles"]
    assert obstacle["parameters"] == ["A"]  # C is behind the node
    assert "echo" in obstacle["reason"]
    _, told = program_json(capsys, "inspect", path, "--trainable", "C")
    assert told["engines"][engine]["differentiable"] is True


def test_inspect_of_an_untrainable_graph_says_why(tmp_path, capsys):
    path = written(tmp_path, f"{HEAD} net (float[N, 3] X) => (float[N, 3] Y) {{ Y = Relu(X) }}")
    status, told = program_json(capsys, "inspect", path)
    assert status == 0
    assert told["trainable"] is False
    assert told["operators"] == {"Relu": 1}
    assert "no parameter to train" in told["reason"]
    assert main(["inspect", str(path)]) == 0
    assert "not trainable: No float output" in capsys.readouterr().out


def test_inspect_of_a_fitted_model(tmp_path, capsys):
    joblib.dump(LogisticRegression(max_iter=1000).fit(*load_iris(return_X_y=True)), tmp_path / "m.joblib")
    status, told = program_json(capsys, "inspect", tmp_path / "m.joblib")
    assert status == 0
    names = {one["name"] for one in told["parameters"]}
    assert names == {"logisticregression.coef", "logisticregression.intercept"}
    assert all(verdict["differentiable"] in (True, None) for verdict in told["engines"].values())


@pytest.mark.parametrize("engine", available_engines())
def test_gradient_of_a_sum(tmp_path, capsys, engine):
    path = written(tmp_path, NET)
    status, told = program_json(capsys, "gradient", path, "--sum", "--engine", engine)
    assert status == 0
    assert told["outputs"] == ["Y", "Y_sum", "A_grad", "b_grad", "C_grad"]
    import onnxruntime

    session = onnxruntime.InferenceSession(told["output"], providers=["CPUExecutionProvider"])
    X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    outputs = dict(zip(told["outputs"], session.run(None, {"X": X}), strict=True))
    hidden = np.tanh(X @ np.array([[1, 2], [3, 4], [5, 6]], np.float32) + np.array([1, 2], np.float32))
    np.testing.assert_allclose(outputs["C_grad"], hidden.sum(axis=0)[:, None], rtol=1e-4)
    np.testing.assert_allclose(outputs["b_grad"], ((1 - hidden**2) * [1, 2]).sum(axis=0), rtol=1e-2, atol=1e-5)
    np.testing.assert_allclose(outputs["Y_sum"], outputs["Y"].sum(), rtol=1e-5)


def test_gradient_refuses_in_a_sentence(tmp_path, capsys):
    path = written(tmp_path, NET)
    for options, status, words in (
        (["--wrt", "A"], 1, "taken of a scalar"),
        (["--wrt", "a", "--sum"], 1, "wrt names 'a'"),
        (["--of", "Z", "--sum"], 2, "no output of the graph"),
    ):
        found, told = program_json(capsys, "gradient", path, "--output", tmp_path / "g.onnx", *options)
        assert (found, words in told["error"]["message"]) == (status, True), told
    assert not (tmp_path / "g.onnx").exists()


def test_doctor_tests_every_engine(capsys):
    status, told = program_json(capsys, "doctor")
    assert status == 0
    assert told["engines"] == list(available_engines())
    assert told["integer_products"] == ("saturating" if wrong_kernels.saturate() else "exact")
    assert told["auto_compiles"] is (find_spec("llvmlite") is not None and auto_compiles())
    assert {f"{what} by {e}" for what in ("gradient", "training") for e in available_engines()} <= {
        check["name"] for check in told["self_test"] if check["passed"]
    }
    assert told["onnxruntime"].keys() == {
        "version", "distributions", "mixed", "providers", "opset", "ml_opset", "ir_version",
    }  # fmt: skip
    assert told["versions"]["numpy"] == np.__version__
    assert told["onnxruntime"]["mixed"] is False


def test_doctor_fails_and_advises(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "gradient_graph", lambda model, **options: model)
    two = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(doctor.packages, "installed_distributions", lambda: two)
    monkeypatch.setattr(doctor, "_check_training", lambda engine, device: "")
    assert main(["doctor", "-q"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED gradient by portable" in printed
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in printed
    assert main(["doctor", "--no-self-test"]) == 0
    assert "gradient by" not in capsys.readouterr().out


def test_doctor_compares_compiled_updates(capsys, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(doctor, "available_engines", list)
    status, told = program_json(capsys, "doctor")
    assert status == 0
    assert [check["name"] for check in told["self_test"]] == ["updates by llvmlite", "training by compiled"]
    monkeypatch.setattr(doctor, "CompiledUpdate", lambda formula, vectors, *_: SimpleNamespace(run=lambda: None))
    assert main(["doctor", "-q"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED updates by llvmlite" in printed
    assert "advice: pip install -U llvmlite" in printed
    monkeypatch.setattr(doctor.llvm, "is_installed", lambda: False)
    assert program_json(capsys, "doctor")[1]["self_test"] == []


@pytest.mark.parametrize("model", ["linear", "graph"])
def test_bench_times_every_engine(tmp_path, capsys, model):
    given = written(tmp_path, NET) if model == "graph" else model
    status, told = program_json(capsys, "bench", given, "--seconds", "0.01", "--batch", "4")
    assert status == 0
    assert told["engines"].keys() == set(available_engines())
    for one in told["engines"].values():
        step = one["microseconds_per_step"]
        assert 0 < step["least"] <= step["median"]
        assert one["steps"] >= 32
    status, told = program_json(capsys, "bench", given, "--seconds", "0.01", "--set", "engine=portable")
    assert list(told["engines"]) == ["portable"]


def test_bench_of_an_unsupported_graph_fails(tmp_path, capsys):
    status, told = program_json(capsys, "bench", written(tmp_path, OBSTACLE), "--seconds", "0.01")
    assert status == 1
    assert all("echo" in one["error"] for one in told["engines"].values())
    status, told = program_json(capsys, "bench", "mlp", "--classes", "1")
    assert status == 2
    status, told = program_json(capsys, "bench", "mlp", "--set", "max_iter=3")
    assert status == 2
    assert "set by bench itself" in told["error"]["message"]


def test_linear_model_equals_scikit_learn(tmp_path, capsys):
    """Those who set how far a step goes set it all."""
    table, progression = datasets.load_diabetes(return_X_y=True, as_frame=True)
    table.assign(target=progression).to_csv(tmp_path / "diabetes.csv", index=False)
    options = ["--target", "target", "--model", "linear", "--output", tmp_path / "m.onnx", "--holdout", "0"]
    _, told = program_json(capsys, "train", tmp_path / "diabetes.csv", *options)
    best = LinearRegression().fit(table, progression).score(table, progression)
    assert told["scores"]["train"]["r2"] > best - 0.002
    own = ["--set", "learning_rate_init=0.002"]
    _, told = program_json(capsys, "train", tmp_path / "diabetes.csv", *options, *own)
    assert told["epochs"] < 200  # a constant rate, until nothing improves
