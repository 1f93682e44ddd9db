"""Names and labels that a terminal or a spreadsheet would run."""

from __future__ import annotations

import csv
import json
from contextlib import suppress

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pandas as pd
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from onnxtrain_sklearn._utils.untrusted_text import cell, json_escaped, printable
from tests.helpers.command import main

EVIL = "W\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\nerror: all is lost\x7f"
HARMLESS = r"W\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x0d\x0aerror: all is lost\x7f"
BAD = set("\x1b\x07\x9b\u202e\r\x7f")


def evil_graph(operator: str = "MatMul") -> onnx.ModelProto:
    nodes = [
        onnx.helper.make_node(operator, ["X", EVIL], ["H"], name=EVIL),
        onnx.helper.make_node("ReduceSum", ["H"], [EVIL + "Y"], keepdims=0),
    ]
    inputs = [onnx.helper.make_tensor_value_info("X", 1, ["N", 3])]
    outputs = [onnx.helper.make_tensor_value_info(EVIL + "Y", 1, [])]
    weight = onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), EVIL)
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    model.producer_name = EVIL
    return model


COMMANDS = {
    "inspect": ["inspect", "x.onnx"],
    "gradient": ["gradient", "x.onnx"],
    "an unknown name": ["gradient", "x.onnx", "--wrt", EVIL + "x"],
    "an unknown output": ["gradient", "x.onnx", "--of", EVIL],
    "bench": ["bench", "x.onnx", "--seconds", "0.01"],
    "train": [
        "train",
        "x.csv",
        "--target",
        EVIL + "t",
        "--set",
        "max_iter=1",
        "--output",
        "o.onnx",
        "--report",
        "r.md",
    ],
    "an unknown column": ["train", "x.csv", "--target", EVIL + "u"],
    "predict": ["predict", "x.onnx", "x.csv"],
    "an unknown argument": ["inspect", "x.onnx", f"--{EVIL}"],
    "an unknown file": ["inspect", EVIL],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("case", COMMANDS)
def test_no_escape_sequence_reaches_the_terminal(case, as_json, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.onnx").write_bytes(evil_graph("Foo" if case == "bench" else "MatMul").SerializeToString())
    rows = np.random.default_rng(0).normal(size=(60, 3))
    table = pd.DataFrame(rows, columns=["a", "b", EVIL + "c"])
    table[EVIL + "t"] = np.where(rows[:, 0] > 0, EVIL, "fine")
    table.to_csv(tmp_path / "x.csv", index=False)
    with suppress(SystemExit):  # of argparse
        main([*COMMANDS[case], *(["--json"] if as_json else [])])
    out, err = capfd.readouterr()
    assert not BAD & set(out + err)
    lines = (out + err).splitlines()
    assert not any(line.startswith("error: all is lost") for line in lines)
    assert "all is lost" in out + err or case in ("bench", "predict")
    if as_json and "argument" not in case:
        json.loads(out)
    elif case == "inspect":
        assert any(HARMLESS in line for line in lines)
    for file in tmp_path.glob("r.md"):
        assert not BAD & set(file.read_text())


def test_json_escapes_round_trip():
    record = {EVIL: ["é", "\U000e0001", "\x7f\x85"]}
    text = json_escaped(json.dumps(record, ensure_ascii=False, indent=2))
    assert json.loads(text) == record
    assert not BAD & set(text)


@pytest.mark.parametrize("text", ["plain", "é ü", "日本語", "a\u200db", "🙂", "C:\\x"])
def test_texts_without_controls_stay(text):
    assert printable(text) == text


NUMBERS = ["-1", "+1", "-1.5", "-.5", "-1e-05", "+3E8", "-inf", "1", "", "a=b", "x-1", "-2."]
FORMULAS = ["=1+1", "=cmd|' /C calc'!A0", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "-1+1", "-1 ", "--1", "-", "+"]
FORMULAS += ["-1e", "-0x1"]


def test_spreadsheet_formulas_are_escaped():
    assert [cell(text) for text in NUMBERS] == NUMBERS
    assert [cell(text) for text in FORMULAS] == [f"'{text}" for text in FORMULAS]
    assert [cell(value) for value in (-1, -1.5, None, True)] == [-1, -1.5, None, True]


def test_labels_in_csv_files(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    labels = np.array(["=1+1", "-1", "fine"])[np.arange(60) % 3]
    fitted = LogisticRegression().fit(X, labels)
    options = {id(fitted): {"zipmap": False}}
    model = to_onnx(fitted, X[:1].astype(np.float32), options=options, target_opset=18)
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    kept = np.where(X[:, 0] > 0, "@SUM(A1)", "-7")
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "=k": kept}).to_csv(tmp_path / "x.csv", index=False)
    arguments = [
        "predict",
        str(tmp_path / "x.onnx"),
        str(tmp_path / "x.csv"),
        "--columns",
        "a",
        "b",
        "--keep",
        "=k",
        "a",
    ]
    assert main([*arguments, "--output", str(tmp_path / "p.csv")]) == 0
    with open(tmp_path / "p.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head[:3] == ["'=k", "a", "label"]
    expected = fitted.predict(X)
    assert [row[2] for row in rows] == [f"'{label}" if label == "=1+1" else label for label in expected]
    assert [row[0] for row in rows] == [f"'{text}" if text != "-7" else text for text in kept]
    np.testing.assert_allclose([float(row[1]) for row in rows], X[:, 0], rtol=1e-12)  # negative numbers stay numbers
