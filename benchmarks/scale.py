"""Rows a second and peak memory of fits to tables in files, by source and by size.

Each fit runs in a process of its own, on one thread, so that its peak memory is its own: three epochs of a small
network on a generated table of 30 columns of float32, with a buffer of 500,000 rows. Sources are compared on the
smallest table, memory on all of them. ``allowed`` is the memory of the imports, six times the buffer and 150 MiB.
``reading`` passes over the blocks without training, ``arrays`` trains on rows in memory: a stream should take at most
1.3 times the CPU time of both. ``--picture FILE`` draws memory and time over rows.

python benchmarks/scale.py [--rows 1 5 10] [--folder build/scale] [--results FILE] [--picture FILE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COLUMNS, GROUP, FILE_ROWS, BUFFER, EPOCHS = 30, 50_000, 1_000_000, 500_000, 3
MIB = 2**20
NAMES = [f"x{i}" for i in range(COLUMNS)]


def tables(count: int) -> Iterator[Any]:
    """Yield the table of ``count`` rows in parts of one row group."""
    import numpy as np
    import pyarrow as pa

    coefficients = np.random.default_rng(0).normal(size=COLUMNS)
    for start in range(0, count, GROUP):
        rng = np.random.default_rng(start + 1)
        X = rng.normal(size=(GROUP, COLUMNS)).astype(np.float32)
        y = (X @ coefficients + 2 * X[:, 0] * X[:, 1] + rng.normal(size=GROUP) > 0).astype(np.int32)
        yield pa.table({**{name: X[:, i] for i, name in enumerate(NAMES)}, "y": y})


def write(folder: Path, count: int) -> Path:
    """Write the table as Parquet files of a million rows, unless they are there."""
    import pyarrow.parquet as pq

    target = folder / f"{count}"
    if not target.exists():
        unfinished = folder / f"{count}.unfinished"
        unfinished.mkdir(parents=True, exist_ok=True)
        writer, written = None, 0
        for part in tables(count):
            if written % FILE_ROWS == 0:
                if writer is not None:
                    writer.close()
                writer = pq.ParquetWriter(unfinished / f"part-{written // FILE_ROWS:03d}.parquet", part.schema)
            writer.write_table(part, row_group_size=GROUP)
            written += GROUP
        writer.close()
        unfinished.rename(target)
    return target


def network(**options: Any) -> Any:
    from onnxtrain_sklearn import MLP, OrtGradientClassifier

    settings = {"batch_size": 500, "max_iter": EPOCHS, "tol": 0.0, "n_iter_no_change": EPOCHS, "random_state": 0}
    settings["alpha"] = 0
    return OrtGradientClassifier(MLP((32,)), **settings | options)


def _arrow(path: Path) -> Any:
    """Return the files as one Arrow file, which is written first."""
    import pyarrow.dataset as ds
    import pyarrow.ipc as ipc

    target = path.with_suffix(".arrow")
    if not target.exists():
        data = ds.dataset(path)
        with ipc.new_file(target, data.schema) as writer:
            for batch in data.to_batches():
                writer.write_batch(batch)
    return target


def _polars(path: Path) -> Any:
    import polars

    return polars.scan_parquet(path / "*.parquet")


def _duckdb(path: Path) -> Any:
    import duckdb

    return duckdb.read_parquet(str(path / "*.parquet"))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "Parquet": lambda path: path,
    "Arrow": _arrow,
    "polars": _polars,
    "DuckDB": _duckdb,
}


def measure(kind: str, path: Path, engine: str) -> dict[str, Any]:
    """Do one piece of work in this process; return its rows, seconds and memory."""
    from onnxtrain_sklearn import RowBlocks

    if kind != "arrays":
        for name in ("pandas", "pyarrow.dataset"):  # a fit to a stream imports them
            importlib.import_module(name)
    imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if kind == "arrays":
        import pyarrow.dataset as ds

        table = ds.dataset(path).to_table()
        X, y = table.select(NAMES).to_pandas().to_numpy("float32"), table["y"].to_numpy()
        del table
        rows = len(y)

        def work() -> Any:
            return network(engine=engine).fit(X, y)

    elif kind == "reading":
        source = RowBlocks(path, "y", buffer_rows=BUFFER)
        rows = sum(source.sizes)

        def work() -> None:
            for _ in range(EPOCHS):
                for i in range(len(source)):
                    source.block(i)
    else:
        source = SOURCES[kind](path)
        with RowBlocks(path, "y", buffer_rows=BUFFER) as counted:
            rows = sum(counted.sizes)

        def work() -> Any:
            return network(engine=engine).fit(RowBlocks(source, "y", buffer_rows=BUFFER))

    began, cpu = time.perf_counter(), time.process_time()
    fitted = work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "kind": kind,
        "engine": getattr(fitted, "engine_", engine),
        "rows": rows,
        "seconds": seconds,
        "cpu": cpu,
        "peak": peak,
        "allowed": imports + 6 * BUFFER * COLUMNS * 4 / MIB + 150,
        "loss": getattr(fitted, "loss_", None),
    }


def in_process(kind: str, path: Path, engine: str, repetitions: int) -> dict[str, Any]:
    """Return the measurement with the least CPU time of several processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, "--one", kind, "--folder", str(path), "--engine", engine]
    found = []
    for _ in range(repetitions):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"kind": kind, "engine": engine, "error": done.stderr.strip().splitlines()[-1]}
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return min(found, key=lambda one: one["cpu"])


def line(one: dict[str, Any]) -> str:
    if "error" in one:
        return f"| {one['kind']} | – | – | – | – | {one['error']} |"
    rate = one["rows"] * EPOCHS
    memory = f"{one['peak']:.0f} MiB" + (f" (allowed {one['allowed']:.0f})" if one["kind"] in SOURCES else "")
    return (
        f"| {one['kind']}, {one['engine']} | {one['rows'] / 1e6:g} M | {one['seconds']:.1f} s | "
        f"{rate / one['seconds'] / 1e6:.2f} M | {rate / one['cpu'] / 1e6:.2f} M | {memory} |"
    )


def draw(found: list[dict[str, Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    streams = sorted((one for one in found if one.get("series")), key=lambda one: one["rows"])
    rows = [one["rows"] / 1e6 for one in streams]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.plot(rows, [one["peak"] for one in streams], "o-", label="peak")
    left.plot(rows, [one["allowed"] for one in streams], "--", color="gray", label="allowed")
    left.plot(rows, [one["rows"] * COLUMNS * 4 / MIB for one in streams], ":", color="black", label="the table alone")
    left.set(xlabel="million rows", ylabel="MiB", ylim=(0, None), title="Memory of a fit")
    left.legend()
    right.plot(rows, [one["cpu"] for one in streams], "o-")
    right.set(xlabel="million rows", ylabel="CPU seconds", ylim=(0, None), title=f"Time of {EPOCHS} epochs")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1, 5, 10], help="millions of rows")
    parser.add_argument("--folder", type=Path, default=Path("build/scale"))
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--results")
    parser.add_argument("--picture")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.folder, given.engine)))
        return

    print(
        "| source, engine | rows | time | rows a second | rows a CPU second | peak memory |\n|---|---|---|---|---|---|"
    )
    found = []
    counts = sorted(int(count * 1e6) for count in given.rows)
    smallest = write(given.folder, counts[0])
    for kind in ("reading", "arrays", *SOURCES):
        found.append(in_process(kind, smallest, given.engine, given.repetitions))
        print(line(found[-1]), flush=True)
        found[-1]["series"] = kind == "Parquet"
    for count in counts[1:]:
        found.append({**in_process("Parquet", write(given.folder, count), given.engine, 1), "series": True})
        print(line(found[-1]), flush=True)
    known = {one["kind"]: one for one in found if "cpu" in one and one["rows"] == counts[0]}
    if {"reading", "arrays", "Parquet"} <= known.keys():
        least = known["reading"]["cpu"] + known["arrays"]["cpu"]
        print(f"\nCPU time of the stream by that of reading and training: {known['Parquet']['cpu'] / least:.2f}")
    if given.results:
        Path(given.results).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    main()
