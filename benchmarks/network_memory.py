"""Peak memory of the first two steps of a network of real size, in a process each, for ``networks.py``."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from network_runs import File, OurRun, TorchRun, export, prepared


def memory_of_torch(file: File) -> float:
    """Return the MiB by which two steps of PyTorch raise the memory of a process that holds the module."""
    module, data = prepared(file)
    return _raised_by(lambda: TorchRun(module, torch.float32).run(data * 2))


def memory_of_step(file: File) -> float:
    """Return the MiB by which two steps here raise the memory of a process, reading the file included."""
    module, data = prepared(file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        export(module, data[0][0], path, file.exporter, plain=True)
        del module
        return _raised_by(lambda: OurRun(path, rows=len(data[0][1])).run(data * 2))


def _raised_by(run: Callable[[], object]) -> float:
    """Return by how many MiB the peak of a fork that runs this is above its start."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def measured(sender: Any) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run()
        sender.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)

    process = context.Process(target=measured, args=(sender,))
    process.start()
    sender.close()
    found = float(receiver.recv())
    process.join()
    return found
