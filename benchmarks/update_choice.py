"""Time of an optimizer's update by NumPy, by machine code and by sessions of one and two threads, for sizes of vectors.

    python benchmarks/update_choice.py [--optimizers adamw,sgd] [--sizes 1000,10000]

The executors alternate, and the minimum of each counts; their results are compared, to the bit. ``UpdateTuning`` of
``_training/update_executors.py`` holds the constants that were read from this table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ort import devices, llvm, sessions
from onnxtrain_sklearn._training.update_executors import TUNING, CompiledUpdate, NumpyUpdate, formula_of
from onnxtrain_sklearn._training.updates import bind_update
from onnxtrain_sklearn.optimizers import OPTIMIZERS, update_graph

SIZES = (1_000, 10_000, 30_000, 100_000, 235_000, 1_000_000, 3_000_000, 10_000_000)
SECONDS = 0.6
"""Time that the repetitions of an executor take."""


def executors(name: str, size: int) -> dict[str, tuple[Callable[[], object], dict[str, np.ndarray]]]:
    """Return an update by each executor, and the arrays that it changes."""
    graph, rng, found = update_graph(OPTIMIZERS[name](), ir.DataType.FLOAT), np.random.default_rng(0), {}
    formula, start = formula_of(graph), rng.normal(size=size).astype(np.float32)
    gradients = rng.normal(size=size).astype(np.float32)
    scalars = {n: np.array(x, np.float32) for n, x in graph.scalars(0.001, 3).items()}

    def arrays() -> dict[str, np.ndarray]:
        return {"parameters": start.copy(), **{n: np.full_like(start, s.fill) for n, s in graph.slots.items()}}

    assert formula is not None
    makers: dict[str, Any] = {"numpy": NumpyUpdate}
    if llvm.is_installed():
        makers["machine code"] = CompiledUpdate
    for label, make in makers.items():
        own = arrays()
        found[label] = (make(formula, own, gradients, scalars).run, own)
    for threads in (1, 2):
        session = sessions.create_session(
            to_proto(graph.model).SerializeToString(), devices.resolve_device(), threads=threads
        )
        own, piece = arrays(), TUNING.piece if threads == 1 and size > 2 * TUNING.piece else size
        cuts = [slice(i, i + piece) for i in range(0, size, piece)]
        parts = [bind_update(session, {n: a[c] for n, a in own.items()}, gradients[c], scalars) for c in cuts]
        found[f"session, {threads} thread{'s' * (threads > 1)}"] = (lambda parts=parts: [p.run() for p in parts], own)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", default="sgd,adamw")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    given = parser.parse_args()
    for name in given.optimizers.split(","):
        for size in map(int, given.sizes.split(",")):
            made = executors(name, size)
            for run, _ in made.values():
                run()
            first = next(iter(made.values()))[1]
            bits = {n: all(a.tobytes() == first[k].tobytes() for k, a in own.items()) for n, (_, own) in made.items()}
            best = dict.fromkeys(made, float("inf"))
            end = time.perf_counter() + SECONDS * len(made)
            while time.perf_counter() < end:
                for n, (run, _) in made.items():
                    begun = time.perf_counter()
                    run()
                    best[n] = min(best[n], time.perf_counter() - begun)
            shown = ", ".join(f"{n} {1e6 * t:.1f} us{'' if bits[n] else ' (other bits)'}" for n, t in best.items())
            print(f"{name} {size:>9,}: {shown}", flush=True)


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
