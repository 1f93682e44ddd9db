"""How threads wait between the parts of a step: CPU and wall time of convolutional networks on several threads.

Needs PyTorch and onnxscript beside the package, and onnxruntime 1.26 or newer. A thread without work looks for some a
while before it sleeps: for as long as the package lets it, longer, as long as onnxruntime does by default, or not at
all. With ``--busy N`` other processes keep N cores busy meanwhile. The steps alternate and the median and the least of
the repetitions count, with PyTorch's step among them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import Process

import numpy as np
import torch
from convolution_networks import NETWORKS
from convolutions import CLASSES, Run, exported, our_step, their_step
from engine_step import Net
from fit_step import RATE

from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._ort import devices
from onnxtrain_sklearn._ort.sessions import SPIN, SPIN_MICROSECONDS
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn._training.step_parts import Rates

WAITS: Mapping[str, Mapping[str, object]] = {
    f"{SPIN_MICROSECONDS} us": {},
    "20 us": {SPIN: 20},
    "300 us": {SPIN: 300},
    "16 ms": {SPIN: 16000},
    "asleep": {"session.intra_op.allow_spinning": 0},
}
"""16 ms is what onnxruntime's million of pauses take on the processors of AMD."""

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "CPU": time.process_time}


def keep_busy() -> None:
    while True:
        pass


def take_step(step: HostStep, batch: int) -> None:
    step.compute_gradients(float(batch))
    step.update(Rates(RATE))


def milliseconds(runs: Mapping[str, Run], repeat: int) -> dict[str, dict[str, list[float]]]:
    """Return the times of the runs by clock and name."""
    times: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in runs} for clock in CLOCKS}
    for i in range(repeat + 1):
        for name, run in runs.items():
            start = {clock: now() for clock, now in CLOCKS.items()}
            run()
            for clock, now in CLOCKS.items():
                times[clock][name] += [(now() - start[clock]) * 1e3] if i else []
    return times


def compare(name: str, batch: int, size: int, repeat: int, *, training: bool) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]().train(training)
    content = exported(network, size, training=training)
    runs: dict[str, Run] = {"PyTorch": their_step(network.train(training), batch, size)}
    for wait, options in WAITS.items():
        net = Net(name, trainable_model(load(content)), batch, CLASSES, 1)
        runs[wait] = partial(take_step, our_step(net, options), batch)
    for clock, times in milliseconds(runs, repeat).items():
        cells = "".join(f"{np.median(found):>9.1f} {min(found):>8.1f}" for found in times.values())
        print(f"{name:<20} {'training' if training else 'evaluation':<11} {clock:<5}{cells}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Steps of convolutional networks by how threads wait.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=9, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=0, help="cores that others keep busy (default: %(default)s)")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(devices.available_threads())
    others = [Process(target=keep_busy, daemon=True) for _ in range(options.busy)]
    for other in others:
        other.start()
    print(f"{'milliseconds, median and least':<38}" + "".join(f"{name:>18}" for name in ("PyTorch", *WAITS)))
    for name in options.networks:
        for training in (True, False):
            compare(name, options.batch, options.size, options.repeat, training=training)


if __name__ == "__main__":
    main()
