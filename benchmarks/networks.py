"""Networks of PyTorch, torchvision, timm and transformers, trained here and by PyTorch: errors, times, sizes.

    python benchmarks/networks.py [--only NAME ...] [--results FILE] [--again]

Each network begins at random, is exported by PyTorch, and takes ten steps of SGD here and in PyTorch, in float32 and in
float64. A line of JSON is appended for each file; what is in the results is not run again, unless named by ``--only``
together with ``--again``. ``networks_report.py`` writes the page.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import logging
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network_branches import branches
from network_errors import errors, errors_of_statistics, weight_error
from network_memory import memory_of_step, memory_of_torch
from network_runs import RATE, Batch, File, NotExportedError, OurRun, TorchRun, export, prepared, trained_on
from network_zoo import BATCH, NETWORKS, SOURCES
from torch import nn

from onnxtrain_sklearn._training.step_parts import Rates
from onnxtrain_sklearn.exceptions import DivergenceError

RESULTS = Path(__file__).parent / "networks_results.jsonl"
LIMIT = 600
"""Seconds after which a network is given up."""

FAR = 5.0
"""How many times PyTorch's error of the first gradient ours is where the branches of both are compared."""

STARTS = 8
"""Starts, each number moved by one bit, that tell how far PyTorch's float32 comes from its float64."""


def seconds_of_steps(runs: Mapping[str, Callable[[], object]], repeat: int = 7) -> dict[str, float]:
    """Return the CPU seconds of each: the least of alternating repetitions."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeat):
        for name, run in runs.items():
            began = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - began)
    return best


def measure(file: File) -> dict[str, Any]:
    """Return errors and times; where the file holds fewer parameters than the module, also those of its full form.

    Where PyTorch's float32 diverges too, return after how many steps.
    """
    memory = {}
    if NETWORKS[file.network].real:  # before PyTorch starts threads, which a fork does not have
        memory = {"memory": memory_of_step(file), "memory_torch": memory_of_torch(file)}
    module, data = prepared(file)
    start = {n: p.detach().double().numpy() for n, p in module.named_parameters()}
    exact, theirs = (TorchRun(module, dtype).run(data) for dtype in (torch.float64, torch.float32))
    if not np.isfinite(theirs.losses).all():
        return {"diverges": int(np.isfinite(theirs.losses).argmin())}
    ours, diverged = trained(module, data, file)
    found = errors(ours, theirs, exact, start)
    if diverged:
        found["default"] = {"diverged": True}
    if file.exporter != "classic":  # its export in training mode moves the statistics that the file begins with
        found |= errors_of_statistics(ours, theirs, exact)
    if file.exporter == "dynamo" and found["compared"] < found["parameters"] and not NETWORKS[file.network].real:
        whole = errors(trained_on(module, data, file, plain=True), theirs, exact, start)
        found = {**found, **whole, "default": {key: found[key] for key in DEFAULT}}
    if file.mode == "training" and found["gradient"] > FAR * found["gradient_torch"]:
        found["branches"] = branches(file)
    if found["weights"] > 2 * max(found["weights_torch"], 1e-7) and not NETWORKS[file.network].real:
        found["starts"] = errors_of_starts(module, data)
    step, rows = ours.step, float(len(data[0][1]))
    assert step is not None
    best = seconds_of_steps(
        {
            "ours": lambda: (step.compute_gradients(rows), step.update(Rates(RATE))),
            "torch": lambda: theirs.step(data[0]),
        },
        2 if NETWORKS[file.network].real else 7,
    )
    found |= memory
    sizes = {"nodes": ours.nodes, "build": ours.seconds - best["ours"], "export": ours.export_seconds}
    return {**found, **sizes, "step": best["ours"], "step_torch": best["torch"]}


def trained(module: nn.Module, data: Sequence[Batch], file: File) -> tuple[OurRun, bool]:
    """Train the default file of evaluation mode, or the one without optimizations where its training diverges.

    A network that normalizes its weights is another parametrization in the default file.
    """
    plain = file.mode == "training" or NETWORKS[file.network].real
    try:
        return trained_on(module, data, file, plain=plain), False
    except DivergenceError:
        if plain or file.exporter == "classic":
            raise
        return trained_on(module, data, file, plain=True), True


DEFAULT = ("compared", "gradient", "gradient_torch", "weights", "weights_torch", "loss", "loss_torch")
"""What is kept of a default file that does not hold all parameters of the module."""


def errors_of_starts(module: nn.Module, data: Sequence[Batch]) -> list[float]:
    """Return the error of the weights of PyTorch's float32 from starts that rounding cannot tell apart."""
    return [error_of_start(moved_by_a_bit(module, seed), data) for seed in range(STARTS)]


def error_of_start(module: nn.Module, data: Sequence[Batch]) -> float:
    start = {n: p.detach().double().numpy() for n, p in module.named_parameters()}
    found, exact = (TorchRun(module, dtype).run(data) for dtype in (torch.float32, torch.float64))
    return weight_error(found.weights(), {n: exact.weights()[n] for n in exact.gradients}, start)


def moved_by_a_bit(module: nn.Module, seed: int) -> nn.Module:
    """Return a copy whose parameters are the next larger or smaller float32 number each."""
    moved, rng = copy.deepcopy(module), np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            array = parameter.numpy()
            towards = np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
            parameter.copy_(torch.from_numpy(np.nextafter(array, towards)))
    return moved


def attempt(file: File, sender: Any) -> None:
    """Send the result, or how it failed."""
    try:
        result = measure(file)
    except NotExportedError as error:
        result = {"not_exported": str(error)[:300]}
    except Exception as error:
        result = {"failure": f"{type(error).__name__}: {error}"[:600]}
    sender.send(result)


def in_process(file: File) -> dict[str, Any]:
    """Measure in a process of its own: memory is given back, and a crash is a result."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=attempt, args=(file, sender))
    process.start()
    sender.close()
    try:
        done = receiver.poll(LIMIT)
        result = receiver.recv() if done else None
    except EOFError:
        result = None
    if result is None:
        process.kill()
        result = {"failure": f"no result within {LIMIT} s" if not done else "the process ended"}
    process.join()
    source = next(key for key, networks in SOURCES.items() if file.network in networks)
    return {"source": source, **file._asdict(), "measured": datetime.date.today().isoformat(), **result}


def warm_up() -> None:
    """Export once, so that the processes of the networks find loaded what takes seconds to load."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        export(nn.Linear(2, 2), (torch.ones(BATCH, 2),), Path(folder) / "first.onnx", "dynamo")


def files_of(names: Sequence[str]) -> list[File]:
    """Return the files of networks: first all of the newer exporter."""
    networks = {name: NETWORKS[name] for name in names}
    found = [File(name, "dynamo", "evaluation") for name in networks]
    found += [File(name, "dynamo", "training") for name, network in networks.items() if network.training]
    both = {name: network for name, network in networks.items() if network.classic and network.training}
    found += [File(name, "classic", "training") for name in both]
    return found + [File(name, "classic", "evaluation") for name, network in networks.items() if network.classic]


def results(path: Path) -> dict[File, dict[str, Any]]:
    """Return the last result of each file; what was measured before the date was recorded is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [r for r in map(json.loads, lines) if "measured" in r]
    return {File(r["network"], r["exporter"], r["mode"]): r for r in found}


def summary(r: Mapping[str, Any]) -> str:
    head = f"{r['network']:<32} {r['exporter']:<8} {r['mode']:<11}"
    if "diverges" in r:
        return f"{head} diverges in PyTorch after {r['diverges']} steps"
    if "build" not in r:
        return f"{head} {r.get('failure', 'not exported')[:150]}"
    ratio = r["gradient"] / r["gradient_torch"] if r["gradient_torch"] else 0.0
    return (
        f"{head} gradient {r['gradient']:.1e} ({ratio:.1f}x) weights {r['weights']:.1e} ({r['weights_torch']:.1e}) "
        f"loss {r['loss']:.1e} compared {r['compared'] / r['parameters']:.2f} step {r['step'] / r['step_torch']:.2f} "
        f"build {r['build']:.1f} s nodes {r['nodes']}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Networks of PyTorch, trained here and by PyTorch.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of networks, or beginnings of them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="run what is in the results once more")
    options = parser.parse_args(arguments)
    warm_up()
    known = results(options.results)
    names = [name for name in NETWORKS if not options.only or name.startswith(tuple(options.only))]
    for file in files_of(names):
        if file not in known or options.again:
            result = in_process(file)
            with options.results.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(result) + "\n")
            print(summary(result), flush=True)


if __name__ == "__main__":
    main()
