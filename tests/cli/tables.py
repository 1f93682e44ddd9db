"""Tables of scikit-learn's data as files, and the program as a function."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

from tests.helpers.command import main

FAST = ["--set", "max_iter=8", "learning_rate_init=0.01", "--quiet"]


def write_iris(folder: Path) -> Path:
    """Write flowers: four numbers and the species by name."""
    iris = datasets.load_iris(as_frame=True)
    frame = iris.data.assign(species=iris.target_names[iris.target])
    frame.to_csv(folder / "iris.csv", index=False)
    return folder / "iris.csv"


def write_patients(folder: Path) -> Path:
    """Write a table with text, missing numbers and missing text; the target is a number."""
    frame = datasets.load_diabetes(as_frame=True).frame
    frame["sex"] = np.where(frame["sex"] > 0, "female", "male")
    frame.loc[::17, "bmi"] = np.nan
    frame.loc[5, "sex"] = None
    frame.to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def program_json(capsys, *arguments: object) -> tuple[int, dict]:
    """Run the program with ``--json``; return the exit status and what it printed on stdout."""
    capsys.readouterr()
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def read_back(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)
