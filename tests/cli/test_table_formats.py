"""How tables are written: CSV files of many kinds, Excel, JSON lines. Right values are those that were written."""

from __future__ import annotations

import tarfile
import zipfile

import joblib
import numpy as np
import pandas as pd
import pytest

from tests.cli.tables import program_json
from tests.helpers.command import main

ROWS = 80


def flowers() -> pd.DataFrame:
    """Return numbers with few and many decimals, text with letters of Latin-1, and a target that follows them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "Länge": rng.normal(size=ROWS).round(3),
            "Höhe": rng.integers(0, 3000, ROWS) / 2,
            "n": rng.integers(0, 9, ROWS),
        }
    )
    frame["Straße"] = rng.choice(["Ähre", "Öl, Fett", 'ein "Zitat"'], ROWS)
    return frame.assign(y=frame["Länge"] * 2 + frame["n"])


def train(capsys, path, folder, *options):
    """Train a linear model; return the status, the record, and the columns as the estimator was given them."""
    files = ["--target", "y", "--output", folder / "m.onnx", "--save", folder / "m.joblib", "--holdout", "0"]
    fast = ["--model", "linear", "--set", "max_iter=2"]
    return program_json(capsys, "train", path, *files, *fast, *options)


def values_read(folder) -> dict[str, float]:
    """Return the means of the numbers that the trained pipeline was fitted to."""
    preprocessing = joblib.load(folder / "m.joblib")[0]
    numbers = preprocessing.named_transformers_["numbers"] if hasattr(preprocessing, "transformers_") else preprocessing
    return dict(zip(numbers.feature_names_in_, numbers[-1].mean_, strict=True))


FORMATS = {
    "German Excel": {"sep": ";", "decimal": ",", "encoding": "cp1252"},
    "Latin-1": {"sep": ";", "decimal": ",", "encoding": "latin-1"},
    "comma decimals in quotes": {"sep": ",", "decimal": ",", "encoding": "utf-8"},
    "tabs": {"sep": "\t", "decimal": ",", "encoding": "utf-16"},
    "bars": {"sep": "|", "decimal": ".", "encoding": "utf-8-sig"},
    "points with semicolons": {"sep": ";", "decimal": ".", "encoding": "utf-8"},
    "plain": {"sep": ",", "decimal": ".", "encoding": "utf-8"},
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_csv_files_are_found_and_told(name, tmp_path, capsys):
    written = FORMATS[name]
    flowers().to_csv(tmp_path / "t.csv", index=False, **written)
    status, told = train(capsys, tmp_path / "t.csv", tmp_path)
    assert status == 0, told
    (found,) = told["read_as"]
    assert (found["separator"], found["decimal"]) == (written["sep"], written["decimal"])
    assert "".encode(found["encoding"]) in ("".encode(written["encoding"]), b"\xef\xbb\xbf")
    assert found["encoding"] == {"latin-1": "cp1252", "utf-8": "utf-8-sig"}.get(
        written["encoding"], written["encoding"]
    )
    right = flowers().drop(columns="y").mean(numeric_only=True)
    for column, mean in values_read(tmp_path).items():
        assert mean == pytest.approx(right[column], rel=1e-5), column
    assert main(["train", str(tmp_path / "t.csv"), "--target", "y", "--output", str(tmp_path / "m.onnx"),
                 "--model", "linear", "--set", "max_iter=1"]) == 0  # fmt: skip
    assert f"decimal {written['decimal']!r}, encoding" in capsys.readouterr().err
    # Another program writes the rows to predict in another way: they are the same rows.
    flowers().to_csv(tmp_path / "plain.csv", index=False)
    predictions = [
        program_json(capsys, "predict", tmp_path / "m.onnx", tmp_path / one)[1]["predictions"]["variable"]
        for one in ("t.csv", "plain.csv")
    ]
    np.testing.assert_array_equal(*predictions)


@pytest.mark.parametrize("packed", [".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".csv.tar"])
def test_compressed_files_are_looked_into(packed, tmp_path, capsys):
    flowers().to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    path = tmp_path / f"t{packed}"
    if packed == ".csv.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "t.csv", "t.csv")
    elif packed == ".csv.tar":
        with tarfile.open(path, "w") as archive:
            archive.add(tmp_path / "t.csv", "t.csv")
    else:
        flowers().to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252")
    status, told = train(capsys, path, tmp_path)
    assert status == 0, told
    assert values_read(tmp_path)["Höhe"] == pytest.approx(flowers()["Höhe"].mean(), rel=1e-5)


# Marks that may be decimal or stand between thousands.


UNKNOWN = "nothing says whether its {!r} is a decimal mark"
READINGS = {
    # text, options, the mean of column a (None: read as text), or the error
    "a point that may be of thousands": ("a;y\n1.234;1\n2.345;2\n", [], UNKNOWN.format(".")),
    "a comma that may be of thousands": ("a;y\n1,234;1\n2,345;2\n", [], UNKNOWN.format(",")),
    "the same, a point given": ("a;y\n1.234;1\n2.345;2\n", ["--decimal", "."], 1.7895),
    "the same, a comma given": ("a;y\n1.234;1\n2.345;2\n", ["--decimal", ","], None),
    "a comma between columns": ("a,y\n1.234,1\n2.345,2\n", [], 1.7895),
    "another number of decimals": ("a;y\n1.234;1\n2.34;2\n", [], 1.787),
    "a leading zero": ("a;y\n0.123;1\n2.345;2\n", [], 1.234),
    "commas tell in another column": ("a;b;y\n1.234;1,5;1\n2.345;2,5;2\n", [], None),
    "points tell in another column": ("a;b;y\n1.234;1.5;1\n2.345;2.5;2\n", [], 1.7895),
    "both marks in a number": ("a;b;y\n1.234,5;1,5;1\n2.345,5;2,5;2\n", [], None),
    "both marks in a table": ("a;b;y\n1.5;1,5;1\n2.5;2,5;2\n", [], "name the decimal mark by --decimal"),
    "texts with marks": ("a;b;y\n1,5;1.2.2024;1\n2,5;1,x;2\n", [], 2.0),
    "whole numbers": ("a;y\n1;1\n2;2\n", [], 1.5),
    "exponents": ("a;y\n1e-3;1\n2,5e3;2\n", [], 1250.0005),
    "two separators": ("a,b;c\n1,2;3\n", [], "may be separated by ',' (2 columns) and ';' (2 columns)"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", READINGS)
def test_a_number_is_right_or_refused(case, tmp_path, capsys):
    text, options, right = READINGS[case]
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    status = main(["train", str(tmp_path / "t.csv"), "--target", "y", "--output", str(tmp_path / "m.onnx"), "--save",
                   str(tmp_path / "m.joblib"), "--holdout", "0", "--model", "linear", "--set", "max_iter=1",
                   "--task", "regression", *options])  # fmt: skip
    told = capsys.readouterr().err
    if isinstance(right, str):
        assert status == 2
        assert right in told
    elif right is None:
        assert status == 0
        assert "Column 'a' of" in told
        assert "has marks between thousands" in told
        assert "a" not in values_read(tmp_path) if "b" in text else True
    else:
        assert status == 0
        assert values_read(tmp_path)["a"] == pytest.approx(right, rel=1e-6)


def test_the_trained_file_remembers_the_decimal_mark(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a;y\n1,5;1\n2,25;2\n3,75;3,5\n", encoding="utf-8")
    assert train(capsys, tmp_path / "t.csv", tmp_path)[0] == 0
    (tmp_path / "new.csv").write_text("a;b\n1,250;x\n", encoding="utf-8")  # by itself, it may be 1250
    (tmp_path / "same.csv").write_text("a,b\n1.25,x\n", encoding="utf-8")
    read = [program_json(capsys, "predict", tmp_path / "m.onnx", tmp_path / f"{one}.csv") for one in ("new", "same")]
    assert [status for status, _ in read] == [0, 0], read
    assert read[0][1]["predictions"] == read[1][1]["predictions"]


# Words for missing values.


def test_words_for_missing_values_are_found_and_remembered(tmp_path, capsys):
    frame = flowers().astype({"n": object})
    frame.loc[::4, "n"] = "?"
    frame["Straße"] = frame["Straße"].where(np.arange(ROWS) % 5 > 0, "?")  # among texts, a category
    frame["y"] = flowers()["y"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    status, told = train(capsys, tmp_path / "t.csv", tmp_path)
    assert status == 0, told
    assert told["read_as"][0]["missing"] == {"n": ["?"]}
    # -999 is named for all columns; ? stays missing in n, as in training, where nothing else says so
    frame.loc[::7, "Länge"] = -999
    frame.to_csv(tmp_path / "t.csv", index=False)
    status, told = train(capsys, tmp_path / "t.csv", tmp_path, "--na", "-999", "unbekannt")
    assert status == 0, told
    right = frame["Länge"].replace(-999, np.nan)
    assert joblib.load(tmp_path / "m.joblib")[0].named_transformers_["numbers"][0].statistics_[0] == pytest.approx(
        right.median(), rel=1e-5
    )
    new = flowers().iloc[:3].astype({"n": object}).assign(n="?", Länge=-999.0)
    gaps = new.assign(n=np.nan, Länge=np.nan)
    predicted = {}
    for name, table in {"words": new, "gaps": gaps}.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        table.assign(n=table["n"].astype(str)).to_json(tmp_path / f"{name}.jsonl", orient="records", lines=True)
        if name == "gaps":
            gaps.to_parquet(tmp_path / "gaps.parquet")
        for file in tmp_path.glob(f"{name}.*"):
            status, told = program_json(capsys, "predict", tmp_path / "m.onnx", file)
            if file.suffix == ".jsonl" and name == "gaps":
                continue  # "nan" as text
            assert status == 0, (file, told)
            predicted[file.name] = told["predictions"]["variable"]
    assert len(predicted) == 4
    for one in predicted.values():
        np.testing.assert_array_equal(one, predicted["gaps.parquet"])


# Other kinds of files.


def test_json_lines_have_the_types_that_they_have_there(tmp_path, capsys):
    frame = flowers().assign(code=[f"{i % 3:03}" for i in range(ROWS)], flag=[None, True, False, True] * 20)
    for name, options in {"t.jsonl": {}, "t.ndjson": {}}.items():
        frame.to_json(tmp_path / name, orient="records", lines=True, force_ascii=False, **options)
        status, told = train(capsys, tmp_path / name, tmp_path)
        assert status == 0, told
        texts = joblib.load(tmp_path / "m.joblib")[0].named_transformers_["texts"]
        assert sorted(texts.feature_names_in_) == ["Straße", "code"]
        assert sorted(texts.categories_[1]) == ["000", "001", "002"]
        assert told["onnx"]["difference"] < 1e-4
    frame.to_parquet(tmp_path / "t.parquet")
    same = [
        program_json(capsys, "predict", tmp_path / "m.onnx", tmp_path / one)[1]["predictions"]
        for one in ("t.jsonl", "t.parquet")
    ]
    assert same[0] == same[1]


def test_excel_is_read_from_its_first_sheet(tmp_path, capsys):
    frame = flowers()
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        frame.to_excel(book, sheet_name="Daten", index=False)
        pd.DataFrame({"z": [1]}).to_excel(book, sheet_name="notes", index=False)
    options = ["--target", "y", "--output", str(tmp_path / "m.onnx"), "--model", "linear", "--set", "max_iter=2"]
    assert main(["train", str(tmp_path / "t.xlsx"), *options]) == 0
    assert "has 2 sheets: the first, 'Daten', is read" in capsys.readouterr().err
    frame.to_csv(tmp_path / "t.csv", index=False)
    same = [
        program_json(capsys, "predict", tmp_path / "m.onnx", tmp_path / one, "--keep", "Straße")[1]["predictions"]
        for one in ("t.xlsx", "t.csv")
    ]
    assert same[0] == same[1]
    (tmp_path / "broken.xlsx").write_bytes(b"PK")
    status, told = program_json(capsys, "predict", tmp_path / "m.onnx", tmp_path / "broken.xlsx")
    assert status == 1
    assert "cannot be read as an Excel file" in told["error"]["message"]


def test_options_of_csv_files_are_refused_for_others(tmp_path, capsys):
    flowers().to_parquet(tmp_path / "t.parquet")
    for option, value in {"--sep": ";", "--decimal": ",", "--encoding": "latin-1"}.items():
        status, told = train(capsys, tmp_path / "t.parquet", tmp_path, option, value)
        assert status == 2
        assert f"{option} is for CSV files" in told["error"]["message"]
    flowers().to_csv(tmp_path / "t.csv", index=False)
    status, told = train(capsys, tmp_path / "t.csv", tmp_path, "--encoding", "latin-99")
    assert status == 2
    assert "is no encoding that Python knows" in told["error"]["message"]
    status, told = train(capsys, tmp_path / "t.csv", tmp_path, "--encoding", "ascii")
    assert status == 1
    assert "is not written in ascii: name its --encoding" in told["error"]["message"]
