"""CPU time and wall time of a whole ``fit`` beside scikit-learn's MLP, PyTorch and skorch.

Every competitor has a process of its own, in which it alone has threads. The processes take turns, one fit each, and
the least of the repetitions counts: a disturbance of the machine meets all of them. Settings are those of
``fit_step.py``. Ours is compiled, also the updates from the first step on; "plain" is ours without llvmlite, by the
default engine. A competitor that is not installed, or fails, is left out with the reason below the table. With
``--results FILE`` the times are written to a file as well, of which ``peers_report.py`` makes a page and a picture.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import Distribution, version
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from fit_step import CASES, RATE, Case, Fit, compile_at_once, data, sklearn_mlp

OPTIMIZERS = ("sgd", "adamw")
PACKAGES = ("onnxruntime", "llvmlite", "scikit-learn", "torch", "skorch", "numpy")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
AIMS = {
    "sklearn": (6, 4.5, 3.2, 1.8, 1.4),
    "torch": (9, 6.5, 2.7, 1.4, 1.0),
    "skorch": (17, 14, 8, 2.1, 1.1),
}
"""The speed-up that is aimed at, for each case."""


def ours(case: Case, optimizer: str, engine: str = "compiled") -> Fit:
    from onnxtrain_sklearn import MLP, SGD, AdamW, OrtGradientClassifier

    compile_at_once()
    return OrtGradientClassifier(
        MLP(case.layers[1:-1]),
        optimizer={"sgd": SGD(), "adamw": AdamW()}[optimizer],
        learning_rate_init=RATE,
        batch_size=case.batch_size,
        max_iter=case.epochs,
        tol=0.0,
        n_iter_no_change=case.epochs + 1,
        alpha=0,
        random_state=0,
        engine=engine,
    ).fit


def ours_without_compiler(case: Case, optimizer: str) -> Fit:
    """Return our fit without llvmlite, by the default engine."""
    sys.modules["llvmlite"] = None
    return ours(case, optimizer, "auto")


def scikit_learn(case: Case, optimizer: str) -> Fit:
    """scikit-learn has Adam without weight decay."""
    return sklearn_mlp(case, {"sgd": "sgd", "adamw": "adam"}[optimizer])


def torch_net(case: Case):
    import torch

    linear = [torch.nn.Linear(a, b) for a, b in zip(case.layers, case.layers[1:], strict=False)]
    return torch.nn.Sequential(*[part for layer in linear for part in (layer, torch.nn.ReLU())][:-1])


def torch_eager(case: Case, optimizer: str) -> Fit:
    """Return the plain loop that people write: shuffle, index, forward, backward, step, and the loss read back."""
    import torch

    net, loss_of = torch_net(case), torch.nn.CrossEntropyLoss()
    rule = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer](net.parameters(), lr=RATE)

    def fit(X: np.ndarray, y: np.ndarray) -> None:
        rows, labels = torch.from_numpy(X), torch.from_numpy(y)
        for _ in range(case.epochs):
            for batch in torch.randperm(len(rows)).split(case.batch_size):
                rule.zero_grad()
                loss = loss_of(net(rows[batch]), labels[batch])
                loss.backward()
                rule.step()
                loss.item()

    return fit


def skorch(case: Case, optimizer: str) -> Fit:
    import torch
    from skorch import NeuralNetClassifier

    rule = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    return NeuralNetClassifier(
        torch_net(case),
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=rule,
        lr=RATE,
        batch_size=case.batch_size,
        max_epochs=case.epochs,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    ).fit


COMPETITORS: dict[str, Callable[[Case, str], Fit]] = {
    "ours": ours,
    "plain": ours_without_compiler,
    "sklearn": scikit_learn,
    "torch": torch_eager,
    "skorch": skorch,
}


def serve(name: str, pipe: Connection) -> None:
    """Run one fit for each request; answer with its wall and CPU seconds, or with the reason why there are none."""
    while (request := pipe.recv()) is not None:
        number, optimizer = request
        X, y = data(CASES[number])
        try:
            fit = COMPETITORS[name](CASES[number], optimizer)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.perf_counter(), time.process_time()
                fit(X, y)
                pipe.send((time.perf_counter() - start[0], time.process_time() - start[1]))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")


def measure(pipes: dict[str, Connection], number: int, optimizer: str, repeat: int) -> dict[str, np.ndarray | str]:
    """Return the least wall and CPU microseconds of a step of each competitor, or the reason why it has none."""
    found: dict[str, list[object]] = {name: [] for name in pipes}
    for _ in range(repeat):
        for name, pipe in pipes.items():
            pipe.send((number, optimizer))
            found[name].append(pipe.recv())
    failed = {name: next((one for one in runs if isinstance(one, str)), None) for name, runs in found.items()}
    steps = CASES[number].steps / 1e6
    return {name: failed[name] or np.min(runs, axis=0) / steps for name, runs in found.items()}


def line(number: int, optimizer: str, found: dict[str, np.ndarray | str]) -> str:
    own = found["ours"]
    if isinstance(own, str):
        raise RuntimeError(own)
    cells = [f"{CASES[number]!s:<26} {optimizer:<6} {own[0]:>9,.0f} {own[1]:>9,.0f} {found['plain'][1]:>9,.0f}"]
    for name, times in found.items():
        if name in AIMS:
            ratio = "      –       –" if isinstance(times, str) else "  ".join(f"{r:>6.2f}" for r in times / own)
            cells.append(f"{ratio} ({AIMS[name][number]:>4})")
    return "  ".join(cells)


def row(number: int, optimizer: str, found: dict[str, np.ndarray | str]) -> dict[str, object]:
    """Return the least wall and CPU microseconds of a step of each competitor, as a row of the results."""
    times = {name: [round(float(t), 2) for t in pair] for name, pair in found.items() if not isinstance(pair, str)}
    return {"case": number, "optimizer": optimizer, "microseconds": times}


def write_results(path: Path, threads: int, rows: list[dict[str, object]]) -> None:
    versions = {name: version(name) for name in PACKAGES if list(Distribution.discover(name=name))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"threads": threads, "versions": versions, "rows": rows}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CPU and wall time of a whole fit beside its peers.")
    parser.add_argument("--repeat", type=int, default=5, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="numbers from 0 (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each library (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="file that the times are written to as well")
    options = parser.parse_args(arguments)
    os.environ.pop("OPENBLAS_CORETYPE", None)
    os.environ.update(dict.fromkeys(THREADS, str(options.threads)))  # read by the new processes
    context, pipes = multiprocessing.get_context("spawn"), {}
    for name in COMPETITORS:
        pipes[name], theirs = context.Pipe()
        context.Process(target=serve, args=(name, theirs), daemon=True).start()
    others = [f"{name + ' wall':>14}{'cpu':>5} (aim)" for name in AIMS]
    own = f"{'wall':>9} {'cpu':>9} {'plain':>9}"
    print(f"{f'{options.threads} thread(s), µs a step':<33} {own}  {' '.join(others)}", flush=True)
    reasons, rows = {}, []
    for number in options.cases:
        for optimizer in OPTIMIZERS:
            found = measure(pipes, number, optimizer, options.repeat)
            reasons |= {name: times for name, times in found.items() if isinstance(times, str)}
            print(line(number, optimizer, found), flush=True)
            rows.append(row(number, optimizer, found))
    for name, reason in reasons.items():
        print(f"{name}: {reason}")
    if options.results:
        write_results(options.results, options.threads, rows)
    for pipe in pipes.values():
        pipe.send(None)


if __name__ == "__main__":
    main()
