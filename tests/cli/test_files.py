"""Files of the command line: what would be another table than the user sees, and what cannot be written."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.cli.tables import FAST, program_json, read_back, write_iris
from tests.helpers.command import main

ROWS = 60


def frame_of_many_types() -> pd.DataFrame:
    """Return a table with each type of Parquet that is taken, missing values in most columns."""
    rng = np.random.default_rng(0)
    number = rng.normal(size=ROWS)
    frame = pd.DataFrame({"a number": number, 'it\'s "so"': pd.Categorical(rng.choice(["x", "y"], ROWS))})
    frame["größe"] = pd.array(rng.integers(0, 9, ROWS), dtype="Int64")
    frame["flag"] = pd.array(rng.choice([True, False], ROWS), dtype="boolean")
    frame.loc[::7, "größe"] = pd.NA
    frame.loc[1::7, "flag"] = pd.NA
    frame.loc[2::7, 'it\'s "so"'] = None
    frame.loc[3::7, "a number"] = np.nan
    return frame.assign(y=pd.array(number > 0, dtype="boolean"))


@pytest.mark.parametrize("model", ["mlp", "realmlp"])
def test_types_of_parquet(model, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    table, file, out = tmp_path / "tä ble.parquet", tmp_path / "mo del.onnx", tmp_path / "new" / "pred icted.csv"
    frame_of_many_types().to_parquet(table)
    options = ["--target", "y", "--model", model, "--output", file, "--set", "max_iter=2", "--quiet"]
    status, told = program_json(capsys, "train", table, *options)
    assert (status, told["task"], told["classes"]) == (0, "classification", ["False", "True"])
    frame_of_many_types().drop(columns="y").iloc[:, ::-1].to_parquet(tmp_path / "new.parquet")
    assert program_json(capsys, "predict", file, tmp_path / "new.parquet", "--output", out)[0] == 0
    assert len(read_back(out)) == ROWS


TEXTS = {
    "twice.csv": ("a,a,y\n1,2,3\n4,5,6\n", "has several columns named 'a'"),
    "more.csv": ("a,y\n1,2,3\n4,5,6\n", "has more fields in a row than names in its header"),
    "binary.csv": (b"a,y\n\x81,2\n", "is written neither in UTF-8 nor in Windows-1252: name its --encoding"),
    "wide.csv": (
        "a,y\n1,2\n".encode("utf-16-le"),
        "holds zero bytes, so it is no CSV file, or its --encoding is utf-16-le",
    ),
    "lines.jsonl": ("\n", "has no rows below its header"),
    "broken.jsonl": ('{"a": 1, "y"', "cannot be read as JSON lines"),
    "table.JSON": ("[]", "is no table that is read: save it as CSV, Parquet or JSON lines (.jsonl)"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_misread_files_are_refused(name, tmp_path, capsys):
    text, message = TEXTS[name]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    status, told = program_json(capsys, "train", tmp_path / name, "--target", "y", "--output", tmp_path / "x.onnx")
    assert status == (2 if name.startswith("table") else 1)
    assert message in told["error"]["message"]


def test_fields_behind_the_last_separator_are_empty(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i * 1.5},\n" for i in range(20)))
    options = ["--target", "y", "--output", tmp_path / "x.onnx", "--model", "linear", *FAST]
    status, told = program_json(capsys, "train", tmp_path / "t.csv", *options)
    assert (status, told["columns"]) == (0, ["a"])


def test_nested_cells_and_index_are_reported(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    frame = frame_of_many_types()
    frame.assign(lists=[[1, 2]] * ROWS).to_parquet(tmp_path / "lists.parquet")
    options = ["--target", "y", "--output", tmp_path / "x.onnx", "--model", "linear", *FAST]
    status, told = program_json(capsys, "train", tmp_path / "lists.parquet", *options)
    assert status == 1
    assert "Column 'lists' holds a " in told["error"]["message"]
    frame.set_index("a number").to_parquet(tmp_path / "index.parquet")
    assert main(["train", str(tmp_path / "index.parquet"), *map(str, options)]) == 0
    assert "has the index 'a number', which is left out" in capsys.readouterr().err


def test_unwritable_output_fails_before_training(tmp_path, capsys):
    table = write_iris(tmp_path)
    before, file = table.read_bytes(), tmp_path / "iris.onnx"
    train = ["train", table, "--target", "species", "--model", "linear", *FAST]
    wrong = {
        (*train, "--output", tmp_path): "is a folder",
        (*train, "--output", table / "x.onnx"): "is no folder",
        (*train, "--output", table): "is a table that is read",
        (*train, "--output", file, "--report", tmp_path / "x.html", "--test", tmp_path / "x.html"): "There is no file",
    }
    for arguments, message in wrong.items():
        status, told = program_json(capsys, *arguments)
        assert status == 2
        assert message in told["error"]["message"]
        assert not file.exists()
    assert program_json(capsys, *train, "--output", file)[0] == 0
    status, told = program_json(capsys, "predict", file, table, "--output", table)
    assert (status, told["error"]["type"]) == (2, "UsageError")
    assert table.read_bytes() == before
