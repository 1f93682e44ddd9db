"""Networks of PyTorch, torchvision, timm and transformers, trained here and by PyTorch: errors, times, sizes.

    python benchmarks/networks.py [--only NAME ...] [--results FILE] [--again]

Each network begins at random, is exported by PyTorch, and takes ten steps of SGD here and in PyTorch, in float32 and in
float64. A line of JSON is appended for each file; what is in the results is not run again, unless named by ``--only``
together with ``--again``. ``networks_report.py`` writes the page.
"""

from __future__ import annotations

import argparse
import copy
import functools
import io
import json
import logging
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from network_zoo import BATCH, CLASSES, NETWORKS, SOURCES, Network
from torch import Tensor, nn

from onnxtrain_sklearn import SGD, OrtGradientClassifier
from onnxtrain_sklearn._training import pass_graph
from onnxtrain_sklearn._training.host_step import HostStep
from onnxtrain_sklearn._training.step import Rates

RESULTS = Path(__file__).parent / "networks_results.jsonl"
STEPS, RATE, MOMENTUM = 10, 0.01, 0.9
LIMIT = 600
"""Seconds after which a network is given up."""

SMALL = 1e-3
"""Share of the whole gradient's norm below which a parameter's gradient is compared with that share."""

Arrays = dict[str, np.ndarray]
Batch = tuple[tuple[Tensor, ...], Tensor]


def export(network: nn.Module, arrays: tuple[Tensor, ...], path: Path, exporter: str, *, plain: bool = False) -> None:
    """Write the network; ``plain`` without the newer exporter's optimizations, which fold BatchNormalization."""
    names = [f"x{i}" for i in range(len(arrays))]
    settings: dict[str, Any] = {"input_names": names, "output_names": ["scores"], "opset_version": 18}
    if exporter == "classic":
        mode = torch.onnx.TrainingMode
        settings |= {"dynamo": False, "dynamic_axes": {name: {0: "N"} for name in (*names, "scores")}}
        settings |= {"training": mode.TRAINING if network.training else mode.PRESERVE, "do_constant_folding": False}
    else:
        settings |= {"dynamo": True, "dynamic_shapes": tuple({0: torch.export.Dim.DYNAMIC} for _ in arrays)}
        settings |= {"optimize": not plain, "external_data": False}
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        torch.onnx.export(network, arrays, str(path), **settings)


def batches(network: Network) -> list[Batch]:
    torch.manual_seed(1)
    return [(network.inputs(), torch.randint(0, CLASSES, (BATCH,))) for _ in range(STEPS)]


class File(NamedTuple):
    """A network as one exporter writes it."""

    network: str
    exporter: str
    mode: str


class NotExportedError(Exception):
    """PyTorch does not export the network."""


class TorchRun:
    """Steps of SGD by PyTorch: the gradients of the first, the losses before the updates, the weights after all."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        self.network, self.dtype = copy.deepcopy(network).to(dtype), dtype
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=RATE, momentum=MOMENTUM)
        self.losses: list[float] = []
        self.gradients: Arrays = {}

    def step(self, batch: Batch) -> float:
        arrays, y = batch
        self.optimizer.zero_grad()
        typed = [x.to(self.dtype) if x.is_floating_point() else x for x in arrays]
        loss = nn.functional.cross_entropy(self.network(*typed), y)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def run(self, data: Sequence[Batch]) -> TorchRun:
        torch.set_default_dtype(self.dtype)
        for batch in data:
            self.losses.append(self.step(batch))
            self.gradients = self.gradients or {n: p.grad.double().numpy().copy() for n, p in self.trained()}
        torch.set_default_dtype(torch.float32)
        return self

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.network.named_parameters() if p.grad is not None)

    def weights(self) -> Arrays:
        return {name: p.detach().double().numpy() for name, p in self.network.named_parameters()}


class OurRun:
    """The same steps by this package, on the exported file."""

    def __init__(self, path: Path) -> None:
        self.estimator = OrtGradientClassifier(
            str(path), optimizer=SGD(momentum=MOMENTUM), learning_rate_init=RATE, batch_size=BATCH, shuffle=False,
            engine="portable",
        )  # fmt: skip
        self.losses: list[float] = []
        self.gradients: Arrays = {}
        self.start: Arrays = {}
        self.step: HostStep | None = None
        self.nodes, self.seconds, self.export_seconds = 0, 0.0, 0.0

    def run(self, data: Sequence[Batch]) -> OurRun:
        with self._recording():
            for arrays, y in data:
                began = time.process_time()
                X: Any = {f"x{i}": x.numpy() for i, x in enumerate(arrays)}
                self.estimator.partial_fit(X if len(X) > 1 else X["x0"], y.numpy(), classes=np.arange(CLASSES))
                self.seconds = self.seconds or time.process_time() - began
                self.losses.append(float(self.estimator.loss_))
        return self

    @contextmanager
    def _recording(self) -> Iterator[None]:
        own, compiled = HostStep.gradients, pass_graph.pass_program

        def gradients(step: HostStep, *settings: Any) -> float:
            if self.step is None:
                self.start = {name: step.parameters.view(name).copy() for name in step.parameters.names}
            loss = own(step, *settings)
            if self.step is None:
                names = step.parameters.names
                self.gradients = {name: step.parameters.gradient_view(name).copy() for name in names}
            self.step = step
            return loss

        def program(source: Any) -> Any:
            found = compiled(source)
            self.nodes = len(onnx.load_model_from_string(found.graph).graph.node)
            return found

        HostStep.gradients, pass_graph.pass_program = gradients, program  # type: ignore[method-assign]
        try:
            yield
        finally:
            HostStep.gradients, pass_graph.pass_program = own, compiled  # type: ignore[method-assign]

    def weights(self) -> Arrays:
        return self.estimator.weights_


def of_torch(arrays: Mapping[str, np.ndarray], name: str, shape: Sequence[int]) -> np.ndarray | None:
    """Return the array of a parameter of the module, from arrays by our names; None where there is none."""
    found = arrays[name] if name in arrays else arrays[f"{name}.T"].T if f"{name}.T" in arrays else None
    return None if found is None or found.size != int(np.prod(shape)) else found.reshape(shape).astype(np.float64)


def matched(ours: OurRun, start: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """Return the trained parameters of the module that the file holds as they are."""
    found = []
    for name in names:
        array = of_torch(ours.start, name, start[name].shape)
        if array is not None and np.array_equal(array, start[name]):
            found.append(name)
    return found


def norm(arrays: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(float((array**2).sum()) for array in arrays)))


def gradient_error(found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> float:
    """Return the largest error of a parameter's gradient, by its norm."""
    least = SMALL * norm(list(exact.values()))
    return max(norm([found[n] - g]) / max(norm([g]), least) for n, g in exact.items()) if least else 0.0


def weight_error(
    found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], start: Mapping[str, np.ndarray]
) -> float:
    moved = norm([exact[n] - start[n] for n in exact])
    return norm([found[n] - exact[n] for n in exact]) / moved if moved else 0.0


def loss_error(found: Sequence[float], exact: Sequence[float]) -> float:
    return float(np.max(np.abs(np.subtract(found, exact)) / np.abs(exact)))


def errors(ours: OurRun, theirs: TorchRun, exact: TorchRun, start: Arrays) -> dict[str, Any]:
    names = matched(ours, start, list(exact.gradients))
    known, last = {n: exact.gradients[n] for n in names}, exact.weights()
    moved = {n: last[n] for n in names}

    def restored(arrays: Mapping[str, np.ndarray]) -> Arrays:
        return {n: of_torch(arrays, n, start[n].shape) for n in names}  # type: ignore[misc]

    return {
        "parameters": sum(start[n].size for n in exact.gradients),
        "compared": sum(start[n].size for n in names),
        "trained": sum(array.size for array in ours.start.values()),
        "gradient": gradient_error(restored(ours.gradients), known),
        "gradient_torch": gradient_error(theirs.gradients, known),
        "weights": weight_error(restored(ours.weights()), moved, start),
        "weights_torch": weight_error(theirs.weights(), moved, start),
        "loss": loss_error(ours.losses, exact.losses),
        "loss_torch": loss_error(theirs.losses, exact.losses),
    }


def seconds_of_steps(runs: Mapping[str, Callable[[], object]], repeat: int = 7) -> dict[str, float]:
    """Return the CPU seconds of each: the least of alternating repetitions."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeat):
        for name, run in runs.items():
            began = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - began)
    return best


def trained_on(network: nn.Module, data: Sequence[Batch], exporter: str, *, plain: bool) -> OurRun:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        began = time.process_time()
        try:
            export(copy.deepcopy(network), data[0][0], path, exporter, plain=plain)
        except Exception as error:
            raise NotExportedError(f"{type(error).__name__}: {error}") from error
        exported = time.process_time() - began
        run = OurRun(path).run(data)
        run.export_seconds = exported
        return run


def measure(file: File) -> dict[str, Any]:
    module, data = prepared(file)
    start = {n: p.detach().double().numpy() for n, p in module.named_parameters()}
    exact = TorchRun(module, torch.float64).run(data)
    theirs = TorchRun(module, torch.float32).run(data)
    folds = file.exporter == "dynamo" and any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()
    )
    ours = trained_on(module, data[: 1 if folds else STEPS], file.exporter, plain=False)
    whole = trained_on(module, data, file.exporter, plain=True) if folds else ours
    found = errors(whole, theirs, exact, start)
    assert ours.step is not None
    best = seconds_of_steps(
        {"ours": functools.partial(ours.step.run, Rates(RATE), float(BATCH)), "torch": lambda: theirs.step(data[0])},
        3 if NETWORKS[file.network].real else 7,
    )
    sizes = {"nodes": ours.nodes, "build": ours.seconds - best["ours"], "export": ours.export_seconds}
    return {**found, **sizes, "folded": folds, "step": best["ours"], "step_torch": best["torch"]}


def prepared(file: File) -> tuple[nn.Module, list[Batch]]:
    torch.manual_seed(0)
    network = NETWORKS[file.network]
    module = network.build().train(file.mode == "training")
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module, batches(network)


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
    return {"source": source, **file._asdict(), **result}


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
    found += [File(name, "classic", "training") for name, network in networks.items() if network.training]
    return found + [File(name, "classic", "evaluation") for name, network in networks.items() if network.classic]


def results(path: Path) -> dict[File, dict[str, Any]]:
    """Return the last result of each file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return {File(r["network"], r["exporter"], r["mode"]): r for r in found}


def summary(r: Mapping[str, Any]) -> str:
    head = f"{r['network']:<32} {r['exporter']:<8} {r['mode']:<11}"
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
