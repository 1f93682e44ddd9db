"""``--group``, ``--time`` and ``--quantiles``; progress and Ctrl-C of the program as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest

from onnxtrain_sklearn._cli import rows
from tests.cli.tables import program_json, read_back, write_iris
from tests.helpers.selection import one_case

ROWS = 240


def visits() -> pd.DataFrame:
    """Return visits of 24 patients on 60 days, and a text."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS), "kind": rng.choice(["x", "z"], ROWS)})
    frame["patient"] = [f"p{i}" for i in rng.integers(0, 24, ROWS)]
    frame["day"] = (pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 60, ROWS), "D")).strftime("%Y-%m-%d")
    return frame.assign(y=frame["a"] * 2 + (frame["kind"] == "x") + rng.normal(size=ROWS))


def train(capsys, folder, *options, frame=None):
    (visits() if frame is None else frame).to_csv(folder / "t.csv", index=False)
    files = ["--target", "y", "--output", folder / "m.onnx", "--save", folder / "m.joblib"]
    return program_json(capsys, "train", folder / "t.csv", *files, *options)


@pytest.fixture
def parts(monkeypatch):
    """Return a list to which the splits of tables are added: (rows to train on, rows to test on)."""
    found, split = [], rows._split

    def keep(*arguments):
        found.append(split(*arguments))
        return found[-1]

    monkeypatch.setattr(rows, "_split", keep)
    return found


def test_groups_and_times_are_not_split(parts, tmp_path, capsys):
    frame, fast = visits(), ["--model", "mlp", "--set", "max_iter=2"]
    for option, name in {"--group": "patient", "--time": "day"}.items():
        status, told = train(capsys, tmp_path, option, name, *fast)
        assert status == 0, told
        assert name not in told["columns"]
        assert {"patient", "day"} - {name} < set(told["columns"])
        before, after = parts.pop()
        assert before.n_rows + after.n_rows == ROWS
        assert 0.1 * ROWS < after.n_rows < 0.35 * ROWS
        keys = [frame[name][one.frame.index] for one in (before, after)]
        if option == "--group":
            assert not set(keys[0]) & set(keys[1])
        else:
            assert keys[0].max() < keys[1].min()


@pytest.mark.parametrize(("model", "settings"), [
    ("mlp", ["max_iter=2", "early_stopping=True"]),
    ("realmlp", ["max_iter=2", "n_ensembles=2"]),
])  # fmt: skip
@pytest.mark.parametrize("option", ["--group", "--time"])
def test_rows_to_stop_on_are_whole_groups_and_the_last(option, model, settings, parts, tmp_path, capsys, monkeypatch):
    from onnxtrain_sklearn._cli import train as command

    splits = []
    set_for_now = command._set_for_now

    def keep(estimator, parameters):
        splits.append(parameters.get("validation_split"))
        return set_for_now(estimator, parameters)

    monkeypatch.setattr(command, "_set_for_now", keep)
    name = {"--group": "patient", "--time": "day"}[option]
    status, told = train(capsys, tmp_path, option, name, "--model", model, "--set", *settings)
    assert status == 0, told
    before, _ = parts[-1]
    keys = visits()[name][before.frame.index].to_numpy()
    (split,) = splits
    if option == "--group":
        for _, held in split.split(keys, groups=keys):
            assert not set(keys[held]) & set(np.delete(keys, held))
    else:
        assert np.delete(keys, split).max() < keys[split].min()
    saved = joblib.load(tmp_path / "m.joblib")
    net = saved[-1] if model == "mlp" else saved
    assert isinstance(net.validation_split, float)
    status, told = train(capsys, tmp_path, option, name, "--model", model, "--set", *settings, "validation_split=0.3")
    assert status == 2
    assert "leave out --set validation_split" in told["error"]["message"]


REFUSED = {
    "both": (["--group", "patient", "--time", "day"], None, "not allowed with argument"),
    "no column": (["--group", "person"], None, "--group 'person' is no column"),
    "the target": (["--group", "y"], None, "cannot say which rows belong together"),
    "one group": (["--group", "patient"], {"patient": "p"}, "there is one group"),
    "one time": (["--time", "day"], {"day": "2026-01-01"}, "have the same time"),
    "a missing time": (["--time", "day"], {"day": [None, *["2026-01-01"] * (ROWS - 1)]}, "is missing in 1 of 240 rows"),
    "German dates": (["--time", "day"], {"day": "01.02.2026"}, "write numbers, or dates as in 2026-01-31"),
    "quantiles of classes": (["--quantiles", "0.1,0.5", "--task", "classification"], None, "predicts classes"),
    "quantiles of RealMLP": (["--quantiles", "0.1,0.5", "--model", "realmlp"], None, "--quantiles is for --model"),
    "no median": (["--quantiles", "0.1,0.9"], None, "0.5 among them"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_splits_and_quantiles_are_refused(case, tmp_path, capsys):
    options, columns, words = REFUSED[case]
    frame = visits().assign(**columns or {})
    try:
        status, told = train(capsys, tmp_path, *options, "--set", "max_iter=1", frame=frame)
        message = told["error"]["message"]
    except SystemExit as error:  # of argparse
        status, message = error.code, capsys.readouterr().err
    assert status in (1, 2)
    assert words in message


def test_large_tables_refuse_groups(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rows, "MOST_ROWS", 100)
    status, told = train(capsys, tmp_path, "--group", "patient", "--model", "linear")
    assert status == 2
    assert "--group and --time are for smaller tables" in told["error"]["message"]


@pytest.mark.parametrize("model", [None, "linear"])
@pytest.mark.parametrize("texts", [True, False])
def test_quantiles_become_columns(model, texts, tmp_path, capsys):
    frame = visits().drop(columns=["patient", "day"] if texts else ["patient", "day", "kind"])
    options = ["--quantiles", "0.1,0.5,0.9", "--set", "max_iter=60", *(["--model", model] if model else [])]
    status, told = train(capsys, tmp_path, *options, frame=frame)
    assert status == 0, told
    assert (told["model"], told["task"]) == (model or "mlp", "regression")
    assert told["onnx"]["whole_pipeline"]
    assert told["onnx"]["difference"] < 1e-4
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"), full_check=True)
    out = tmp_path / "p.csv"
    status, _ = program_json(capsys, "predict", tmp_path / "m.onnx", tmp_path / "t.csv", "--output", out, "--keep", "y")
    assert status == 0
    found = read_back(out)
    assert list(found) == ["y", "variable", "quantiles_0.1", "quantiles_0.5", "quantiles_0.9"]
    saved = joblib.load(tmp_path / "m.joblib")
    X = saved[:-1].transform(frame.drop(columns="y").astype({"a": np.float32, "b": np.float32}))
    right = saved[-1].predict_quantiles(X)
    np.testing.assert_allclose(found.filter(like="quantiles_"), right, rtol=1e-4, atol=1e-5)
    assert (np.diff(right, axis=1) > 0).all()
    inside = ((found["y"] >= found["quantiles_0.1"]) & (found["y"] <= found["quantiles_0.9"])).mean()
    assert 0.6 < inside < 0.95


@pytest.mark.long
def test_a_file_with_texts_is_trained_further(tmp_path, capsys):
    frame = visits().drop(columns=["patient", "day"])
    status, first = train(capsys, tmp_path, "--model", "mlp", "--set", "max_iter=60", frame=frame)
    assert status == 0
    (tmp_path / "m.onnx").rename(tmp_path / "first.onnx")
    more = ["--model", tmp_path / "first.onnx", "--set", "max_iter=1"]
    status, told = train(capsys, tmp_path, *more, frame=frame[["y", "kind", "b", "a"]].assign(further="text"))
    assert status == 0, told
    assert told["columns"] == ["a", "b", "kind"]
    assert told["scores"]["train"]["r2"] == pytest.approx(first["scores"]["train"]["r2"], abs=0.1)
    assert told["onnx"]["difference"] < 1e-4
    status, told = program_json(capsys, "predict", tmp_path / "m.onnx", tmp_path / "t.csv")
    assert status == 0


# The program as a process.


@one_case
@pytest.mark.skipif(os.name != "posix", reason="SIGINT to another process")
@pytest.mark.parametrize("model", ["mlp", "realmlp"])
@pytest.mark.long
def test_ctrl_c_of_a_process_writes_file_and_report(model, tmp_path):
    write_iris(tmp_path)
    epochs = {"mlp": ["max_iter=1000000", "tol=-1"], "realmlp": ["max_iter=100000", "n_ensembles=1"]}[model]
    command = [sys.executable, "-m", "onnxtrain_sklearn", "train", str(tmp_path / "iris.csv"), "--target", "species",
               "--model", model, "--set", *epochs, "--output", str(tmp_path / "m.onnx"), "--report",
               str(tmp_path / "r.md"), "--json"]  # fmt: skip
    # a shell that starts tests in the background lets them ignore SIGINT, and processes inherit that
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    shown = []
    for line in process.stderr:
        shown.append(line)
        if re.match(r"(network \d+ of \d+, )?epoch \d+ of at most \d+: .* left at most$", line):
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, "".join(shown) + err
    told = json.loads(out)
    assert told["epochs"] >= 1
    assert told["onnx"]["difference"] < 1e-4
    assert any("interrupted" in one for one in told["warnings"])
    report = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "## Importances" in report
    assert "interrupted" in report.partition("## Warnings of the training")[2]
    assert onnx.load(tmp_path / "m.onnx").graph.node
