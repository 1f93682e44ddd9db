"""What ``train`` takes a target of numbers for, and that its output says so and names the option that changes it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.cli.tables import program_json
from tests.helpers.command import main

LINEAR = ["--target", "t", "--model", "linear", "--set", "max_iter=3"]
NUMBERS = np.arange(80)


def written(folder, target):
    rows = np.random.default_rng(0).normal(size=(80, 2))
    file = folder / "rows.csv"
    pd.DataFrame({"a": rows[:, 0], "b": rows[:, 1], "t": target}).to_csv(file, index=False)
    return [str(file), *LINEAR, "--output", str(folder / "made.onnx")]


@pytest.mark.parametrize(
    ("target", "begins", "reason"),
    [
        (3 + NUMBERS % 6, "classification of 6 classes", "6 different whole numbers; --task regression predicts"),
        (1.0 + NUMBERS % 5, "classification of 5 classes", "5 different whole numbers; --task regression predicts"),
        (NUMBERS, "regression", "80 different whole numbers; --task classification predicts"),
        (NUMBERS % 9 / 2, "regression", "it holds fractions"),
    ],
    ids=["scores", "float", "many", "fractions"],
)
def test_task_and_reason_are_printed_even_quietly(target, begins, reason, tmp_path, capsys):
    assert main(["train", *written(tmp_path, target), "--quiet"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(begins)
    assert reason in first


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_option_decides_and_is_the_reason(task, tmp_path, capsys):
    status, told = program_json(capsys, "train", *written(tmp_path, NUMBERS % 6), "--task", task)
    assert (status, told["task"], told["task_reason"]) == (0, task, "--task or the model says")
    assert (told["classes"] is None) == (task == "regression")
