"""Ten steps of a network by PyTorch and by this package, on the file that PyTorch exports, for ``networks.py``."""

from __future__ import annotations

import copy
import io
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import timm
import torch
import torchvision
from network_zoo import BATCH, CLASSES, NETWORKS, Network
from torch import Tensor, nn

from onnxtrain_sklearn import SGD, GraphModel, OrtGradientClassifier
from onnxtrain_sklearn._training import passes
from onnxtrain_sklearn._training.step import HostStep

STEPS, RATE, MOMENTUM = 10, 0.01, 0.9
PARTS = {"evaluation": 1, "training": 4}
"""Parts of a minibatch: statistics of very few numbers, as those of four rows with a pixel each, magnify rounding."""


Arrays = dict[str, np.ndarray]
Batch = tuple[tuple[Tensor, ...], Tensor]


class File(NamedTuple):
    """A network as one exporter writes it."""

    network: str
    exporter: str
    mode: str


class NotExportedError(Exception):
    """PyTorch does not export the network."""


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


def batches(network: Network, parts: int) -> list[Batch]:
    """Return minibatches of as many times ``BATCH`` rows as there are ``parts``."""
    torch.manual_seed(1)
    steps = 1 if network.real else STEPS
    return [(drawn(network, parts), torch.randint(0, CLASSES, (parts * BATCH,))) for _ in range(steps)]


def drawn(network: Network, parts: int) -> tuple[Tensor, ...]:
    return tuple(torch.cat(each) for each in zip(*(network.inputs() for _ in range(parts)), strict=True))


def prepared(file: File) -> tuple[nn.Module, list[Batch]]:
    torch.manual_seed(0)
    network = NETWORKS[file.network]
    module = network.build().train(file.mode == "training")
    for part in module.modules():
        if isinstance(part, (nn.Dropout, torchvision.ops.StochasticDepth)):
            part.p = 0.0
        if isinstance(part, timm.layers.DropPath):
            part.drop_prob = 0.0
    return module, batches(network, PARTS[file.mode])


class TorchRun:
    """Steps of SGD by PyTorch: the gradients of the first, the losses before the updates, the weights after all."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        self.network, self.dtype = copy.deepcopy(network).to(dtype), dtype
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=RATE, momentum=MOMENTUM)
        self.losses: list[float] = []
        self.gradients: Arrays = {}
        self.statistics_before = self.statistics()

    def step(self, batch: Batch) -> float:
        arrays, y = batch
        self.optimizer.zero_grad()
        self.network.train(self.network.training)  # LeViT keeps what it computed of parameters until then
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

    def statistics(self) -> Arrays:
        """Return copies of the running statistics."""
        buffers = self.network.named_buffers()
        return {n: b.double().numpy().copy() for n, b in buffers if n.endswith(("running_mean", "running_var"))}


class OurRun:
    """The same steps by this package, on the exported file."""

    def __init__(
        self, path: Path, *, rows: int = BATCH, training_mode: bool = False, frozen: frozenset[str] = frozenset()
    ) -> None:
        self.estimator = OrtGradientClassifier(
            GraphModel(str(path), training_mode=training_mode),
            optimizer=SGD(momentum=MOMENTUM), learning_rate_init=RATE, batch_size=rows, shuffle=False,
            engine="portable", trainable=(lambda name, _: name.removesuffix(".T") not in frozen) if frozen else "all",
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
        own, compiled = HostStep.compute_gradients, passes.pass_program

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

        HostStep.compute_gradients, passes.pass_program = gradients, program  # type: ignore[method-assign]
        try:
            yield
        finally:
            HostStep.compute_gradients, passes.pass_program = own, compiled  # type: ignore[method-assign]

    def weights(self) -> Arrays:
        return self.estimator.weights_


def trained_on(network: nn.Module, data: Sequence[Batch], file: File, *, plain: bool) -> OurRun:
    """Train the file; the newer exporter writes evaluation mode, which ``training_mode=True`` switches over."""
    switches = file == (file.network, "dynamo", "training")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        began = time.process_time()
        try:
            exported = copy.deepcopy(network).eval() if switches else copy.deepcopy(network)
            export(exported, data[0][0], path, file.exporter, plain=plain)
        except Exception as error:
            raise NotExportedError(f"{type(error).__name__}: {error}") from error
        seconds = time.process_time() - began
        frozen = frozenset(name for name, p in network.named_parameters() if not p.requires_grad)  # the file holds all
        run = OurRun(path, rows=len(data[0][1]), training_mode=switches, frozen=frozen).run(data)
        run.export_seconds = seconds
        return run
