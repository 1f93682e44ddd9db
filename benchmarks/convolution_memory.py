"""Peak memory of three steps of a convolutional network, beside PyTorch eager: a new process each.

The peak is counted above the imports, those of PyTorch included, and above the exported file. So the weights, the
building of the graphs and the optimizer count on both sides. Needs what ``convolutions.py`` needs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
from convolution_networks import NETWORKS
from convolutions import CLASSES, exported, our_step, their_step
from engine_step import Net
from fit_step import RATE

from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn._training.step_parts import Rates

STEPS = 3
SIDES = ("ours", "torch")


def steps_of_torch(name: str, batch: int, size: int, training: bool) -> None:
    run = their_step(NETWORKS[name]().train(training), batch, size)
    for _ in range(STEPS):
        run()


def steps_of_ours(name: str, batch: int, content: bytes) -> None:
    step = our_step(Net(name, trainable_model(load(content)), batch, CLASSES, 1))
    for _ in range(STEPS):
        step.compute_gradients(float(batch))
        step.update(Rates(RATE))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def raised_by(run: Callable[..., None], arguments: tuple[object, ...], sender: Connection) -> None:
    warnings.simplefilter("ignore")
    before = peak()
    run(*arguments)
    sender.send(peak() - before)


def write_file(name: str, size: int, training: bool, sender: Connection) -> None:
    torch.manual_seed(0)
    sender.send(exported(NETWORKS[name]().train(training), size, training=training))


def answer(target: Callable[..., None], *arguments: object) -> object:
    """Return what a new process sends."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*arguments, sender))
    process.start()
    sender.close()
    found = receiver.recv()
    process.join()
    return found


def compare(name: str, batch: int, size: int, repeat: int, *, training: bool) -> None:
    content = answer(write_file, name, size, training)
    runs = {"ours": (steps_of_ours, (name, batch, content)), "torch": (steps_of_torch, (name, batch, size, training))}
    found = {side: [answer(raised_by, *runs[side]) for _ in range(repeat)] for side in SIDES}
    ours, theirs = (np.median(found[side]) for side in SIDES)
    mode, images = "training" if training else "evaluation", f"{batch} of {size}x{size}"
    print(f"{name:<20} {mode:<11} {images:<14} {ours:>7.0f} {theirs:>7.0f} {ours / theirs:>6.2f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["resnet18"], choices=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3, help="processes a side; their median counts")
    options = parser.parse_args(arguments)
    print(f"{'MiB above imports':<47} {'ours':>7} {'torch':>7} {'ratio':>6}")
    for name in options.networks:
        for training in (True, False):
            compare(name, options.batch, options.size, options.repeat, training=training)


if __name__ == "__main__":
    main()
