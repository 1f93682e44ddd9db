"""``compare``: two files on one table, against scikit-learn's scores of what ``predict`` writes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from tests.cli.tables import program_json, read_back, write_iris, write_patients
from tests.helpers.command import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two tables and two files for each: a linear model, and one that is hardly trained."""
    made = tmp_path_factory.mktemp("compared")
    write_iris(made)
    write_patients(made)
    for table, target in {"iris": "species", "patients": "target"}.items():
        for name, epochs in {"good": 60, "bad": 3}.items():
            options = ["--target", target, "--model", "linear", "--output", made / f"{table}-{name}.onnx", "-q"]
            more = ["--holdout", "0", "--set", f"max_iter={epochs}"]
            assert main([str(one) for one in ("train", made / f"{table}.csv", *options, *more)]) == 0
    return made


@pytest.mark.long
@pytest.mark.parametrize(("table", "target"), [("iris", "species"), ("patients", "target")])
def test_scores_are_those_of_the_predictions(table, target, folder, tmp_path, capsys):
    paths = [folder / f"{table}-{name}.onnx" for name in ("bad", "good")]
    status, told = program_json(capsys, "compare", *paths, folder / f"{table}.csv")
    assert status == 0, told
    y, predicted = read_back(folder / f"{table}.csv")[target], []
    for path in paths:
        assert main(["predict", str(path), str(folder / f"{table}.csv"), "--output", str(tmp_path / "p.csv")]) == 0
        own = read_back(tmp_path / "p.csv")
        predicted.append(own.iloc[:, 0])
        found = told["scores"][str(path)]
        if table == "iris":
            assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, own["label"]))
            shares = own.filter(like="probabilities_").to_numpy(np.float64)
            right = metrics.log_loss(y, shares / shares.sum(axis=1, keepdims=True))
            assert found["log_loss"] == pytest.approx(right, rel=1e-4)
        else:
            assert found["r2"] == pytest.approx(metrics.r2_score(y, own["variable"]), abs=1e-5)
    if table == "iris":
        assert told["different_labels"] == np.sum(predicted[0] != predicted[1]) > 0
    else:
        assert told["largest_difference"] == pytest.approx(np.max(np.abs(predicted[0] - predicted[1])), rel=1e-5)
    assert f"{paths[1]} (" in told["verdict"]
    assert f"is better than {paths[0]} (" in told["verdict"]


def test_a_table_without_the_target_shows_differences_alone(folder, tmp_path, capsys):
    read_back(folder / "iris.csv").drop(columns="species").to_csv(tmp_path / "new.csv", index=False)
    same = [folder / "iris-good.onnx"] * 2
    status, told = program_json(capsys, "compare", *same, tmp_path / "new.csv")
    assert (status, told["different_labels"], "scores" in told) == (0, 0, False)
    status, told = program_json(capsys, "compare", *same, tmp_path / "new.csv", "--target", "species")
    assert status == 2
    assert "--target 'species' is no column" in told["error"]["message"]


def test_files_for_different_columns_are_refused(folder, capsys):
    paths = [folder / "iris-good.onnx", folder / "patients-good.onnx"]
    status, told = program_json(capsys, "compare", *paths, folder / "iris.csv")
    assert status == 2
    assert "name the one to compare by --target" in told["error"]["message"]


def test_labels_that_look_like_numbers(tmp_path, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60)})
    frame = frame.assign(y=(frame["x"] > 0).astype(int) + 1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = ["--target", "y", "--model", "linear", "--output", tmp_path / "m.onnx", "--holdout", "0"]
    assert program_json(capsys, "train", tmp_path / "t.csv", *options)[0] == 0
    status, told = program_json(capsys, "compare", tmp_path / "m.onnx", tmp_path / "m.onnx", tmp_path / "t.csv")
    assert status == 0
    scores = next(iter(told["scores"].values()))
    assert scores["accuracy"] > 0.9
    assert "as good as" in told["verdict"]
