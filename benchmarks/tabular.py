"""Scores and CPU seconds of the tabular estimators beside others, on tables that ship in packages.

    python benchmarks/tabular.py [--tables ...] [--models ...] [--splits 3] [--originals PYTHON]

Each table runs in a process of its own, on one thread. Results are appended to a file as they come; what is in it is
not run again, so a run that was interrupted goes on. ``--originals`` names the interpreter that has pytabkit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tabular_data import TABLES
from tabular_models import MODELS, ORIGINALS, prepared

RESULTS = Path(__file__).resolve().with_name("tabular_results.jsonl")


def results(path: Path) -> list[dict]:
    """Return the results so far, the last one of each run."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(one["table"], one["split"], one["model"]): one for one in lines}.values())


def run_once(table: str, split: int, model: str) -> dict:
    """Fit a model on four fifths of a table, and return its score on the rest: accuracy, or RMSE."""
    from sklearn.model_selection import train_test_split

    data = TABLES[table]()
    rows = np.arange(len(data.y))
    train, test = train_test_split(
        rows, test_size=0.2, random_state=split, stratify=data.y if data.classifies else None
    )
    X, y = prepared(model, data.X), data.y
    estimator = MODELS[model](data.classifies, split)
    started = time.process_time()
    estimator.fit(X.iloc[train], y[train])
    fitted = time.process_time()
    predicted = np.asarray(estimator.predict(X.iloc[test])).ravel()
    done = time.process_time()
    right = np.mean(predicted == y[test]) if data.classifies else np.sqrt(np.mean((predicted - y[test]) ** 2))
    seconds = {"fit_seconds": round(fitted - started, 3), "predict_seconds": round(done - fitted, 3)}
    found = {"table": table, "split": split, "model": model, "score": round(float(right), 6), **seconds}
    return {**found, "date": time.strftime("%Y-%m-%d")}


def run_apart(python: str, table: str, split: int, models: list[str]) -> Iterator[dict]:
    """Run fits in one process of their own; a model that fails says why."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [python, __file__, "--once", table, str(split), *models]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads}) as process:
        assert process.stdout is not None
        yield from (json.loads(line) for line in process.stdout if line.startswith('{"table"'))


def run_here(table: str, split: int, models: list[str]) -> None:
    """Fit some models in this process, and print each result."""
    warnings.simplefilter("ignore")
    for model in models:
        try:
            one = run_once(table, split, model)
        except Exception as error:  # the others are of interest all the same
            one = {"table": table, "split": split, "model": model, "failure": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(one), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--originals", help="interpreter with pytabkit; without it those models are left out")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--once", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        table, split, *models = options.once
        run_here(table, int(split), models)
        return
    for split in range(options.splits):
        for table in options.tables:
            for python, names in ((sys.executable, set(MODELS) - set(ORIGINALS)), (options.originals, ORIGINALS)):
                done = {
                    one["model"] for one in results(options.results) if (one["table"], one["split"]) == (table, split)
                }
                models = [model for model in options.models if model in names and model not in done]
                for one in run_apart(python, table, split, models) if python and models else ():
                    with options.results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(one) + "\n")
                    print(*(f"{key}={value}" for key, value in one.items()), flush=True)


if __name__ == "__main__":
    main()
