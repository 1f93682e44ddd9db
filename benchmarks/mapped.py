"""Memory and time of an epoch over data that are mapped from a file, beside reading the file in order.

The file holds random float32 numbers, 1000 a row (``--gigabytes``); it is made where it is missing and stays. Each case
runs in a process of its own, after a small fit that loads and compiles what there is. Memory is the peak of what the
process holds beside mapped files. With ``--cold`` the system is asked to forget the file before each case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from onnxtrain_sklearn import MLP, OrtGradientClassifier

COLUMNS, PIECE = 1000, 10_000
CASES = {
    "read in order": {},
    "fit in order": {"shuffle": False},
    "fit shuffled": {},
    "fit with early_stopping": {"early_stopping": True},
    "partial_fit": {},
    "predict": {},
}


def make_file(path: Path, rows: int) -> None:
    if path.exists() and path.stat().st_size == rows * COLUMNS * 4:
        return
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, rows, PIECE):
            rng.standard_normal((min(PIECE, rows - start), COLUMNS), dtype=np.float32).tofile(file)


def forget(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def anonymous() -> float:
    """Return the megabytes of memory that belong to no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


def measured(call: Callable[[], object]) -> tuple[float, float, float]:
    """Call; return the wall time, the CPU time, and by how much memory rose at most."""
    base, peak, ended = anonymous(), [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    wall, own = time.perf_counter(), time.process_time()
    call()
    times = time.perf_counter() - wall, time.process_time() - own
    ended.set()
    thread.join()
    return *times, peak[0] - base


def run_case(name: str, path: Path, rows: int) -> tuple[float, float, float]:
    warnings.simplefilter("ignore")
    X, y = np.memmap(path, np.float32, "r", shape=(rows, COLUMNS)), np.arange(rows) % 2
    settings = {"batch_size": 200, "max_iter": 1, "random_state": 0, **CASES[name]}
    estimator = OrtGradientClassifier(MLP((16,)), **settings).fit(np.array(X[:1000]), y[:1000])
    estimator.predict(np.array(X[:10_000]))
    pieces = [slice(i, i + PIECE) for i in range(0, rows, PIECE)]
    calls: dict[str, Callable[[], object]] = {
        "read in order": lambda: [X[i : i + 200].sum() for i in range(0, rows, 200)],
        "partial_fit": lambda: [estimator.partial_fit(X[part], y[part]) for part in pieces],
        "predict": lambda: estimator.predict(X),
    }
    return measured(calls.get(name, lambda: estimator.fit(X, y)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Memory and time of an epoch over data mapped from a file.")
    parser.add_argument("path", type=Path, help="the file; it is made where it is missing")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the file (default: %(default)s)")
    parser.add_argument("--cold", action="store_true", help="let the system forget the file before each case")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="cases (default: all)")
    options = parser.parse_args(arguments)
    rows = int(options.gigabytes * 1e9) // (4 * COLUMNS)
    make_file(options.path, rows)
    for name in options.cases:
        if options.cold:
            forget(options.path)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            wall, own, memory = pool.submit(run_case, name, options.path, rows).result()
        print(f"{name:<24} wall {wall:6.1f} s  CPU {own:6.1f} s  memory {memory:6.1f} MB", flush=True)


if __name__ == "__main__":
    main()
