"""Products with Jacobians and Hessians of networks of PyTorch: errors beside torch.func, times beside the forward pass.

    python benchmarks/derivatives.py [--only NAME ...]

The error is that of float32 against torch.func in float64, relative to the largest number; ``torch`` is the error of
torch.func in float32. Times are minima of alternating runs on one thread, divided by that of the forward pass in
onnxruntime.
"""

from __future__ import annotations

import argparse
import copy
import io
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp

from onnxtrain_sklearn import gradient_graph, hvp_graph, jvp_graph, vjp_graph

REPEAT = 30


class Scored(nn.Module):
    """A network, and the mean of the cross entropy of its scores with the first class."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.network(x)
        return y, -torch.log_softmax(y, dim=-1)[:, 0].mean()


class Residual(nn.Module):
    """A layer whose input is added to its output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Recurrent(nn.Module):
    """The last step of a recurrence."""

    def __init__(self, kind: type[nn.RNNBase], inputs: int, hidden: int) -> None:
        super().__init__()
        self.inner, self.head = kind(inputs, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


class Attention(nn.Module):
    """Self-attention of several heads, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part.reshape(n, length, self.heads, -1).transpose(1, 2) for part in self.project(x).split(width, dim=-1)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / (width // self.heads) ** 0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, length, width))


def convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(10))


def block(width: int) -> nn.Module:
    return nn.Sequential(
        Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, 4))),
        Residual(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        ),
    )


IMAGE = (16, 3, 24, 24)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP, tanh": (lambda: nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)), (256, 64)),
    "MLP, SiLU": (
        lambda: nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 10)),
        (256, 64),
    ),
    "MLP, layer normalization": (
        lambda: nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10)),
        (256, 64),
    ),
    "residual MLP": (
        lambda: nn.Sequential(
            *(Residual(nn.Sequential(nn.Linear(64, 64), nn.Softplus())) for _ in range(4)), nn.Linear(64, 10)
        ),
        (256, 64),
    ),
    "convolutions": (
        lambda: convolutions(
            nn.Conv2d(3, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Tanh()
        ),
        IMAGE,
    ),
    "convolutions, max pooling": (
        lambda: convolutions(nn.Conv2d(3, 16, 3), nn.ELU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ELU()),
        IMAGE,
    ),
    "convolutions, batch normalization": (
        lambda: convolutions(
            nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 32, 3), nn.SiLU()
        ),
        IMAGE,
    ),
    "depthwise convolutions": (
        lambda: convolutions(
            nn.Conv2d(3, 24, 1), nn.SiLU(), nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.GroupNorm(4, 24), nn.SiLU()
        ),
        IMAGE,
    ),
    "transposed convolutions": (
        lambda: convolutions(
            nn.Conv2d(3, 16, 3, stride=2), nn.Tanh(), nn.ConvTranspose2d(16, 8, 3, stride=2), nn.Tanh()
        ),
        IMAGE,
    ),
    "LSTM": (lambda: Recurrent(nn.LSTM, 8, 32), (32, 20, 8)),
    "GRU": (lambda: Recurrent(nn.GRU, 8, 32), (32, 20, 8)),
    "transformer": (
        lambda: nn.Sequential(nn.Linear(16, 64), block(64), block(64), nn.Flatten(), nn.LazyLinear(10)),
        (16, 24, 16),
    ),
}  # fmt: skip


def exported(network: nn.Module, x: Tensor) -> onnx.ModelProto:
    file = io.BytesIO()
    torch.onnx.export(
        network, (x,), file, input_names=["x"], output_names=["y", "loss"], opset_version=18, dynamo=False,
        dynamic_axes={"x": {0: "N"}, "y": {0: "N"}}, do_constant_folding=False,
    )  # fmt: skip
    return onnx.load_model_from_string(file.getvalue())


def references(network: nn.Module, x: Tensor, tangent: Tensor, cotangent: Tensor) -> dict[str, np.ndarray]:
    """Return the derivatives by torch.func, in the type of ``x``."""
    network = copy.deepcopy(network).to(x.dtype)
    values = dict(network.named_parameters()) | dict(network.named_buffers())

    def of(index: int) -> Callable[[Tensor], Tensor]:
        return lambda inputs: functional_call(network, values, (inputs,))[index]

    found = {
        "gradient": grad(of(1))(x),
        "vjp": vjp(of(0), x)[1](cotangent)[0],
        "jvp": jvp(of(0), (x,), (tangent,))[1],
        "hvp": vjp(grad(of(1)), x)[1](tangent)[0],
    }
    return {name: value.detach().double().numpy() for name, value in found.items()}


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def measure(name: str) -> None:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = nn.Sequential(build())
    module(torch.randn(shape))  # lazy layers learn their sizes
    network = Scored(module).eval()
    x, tangent, cotangent = torch.randn(shape), torch.randn(shape), torch.randn(shape[0], 10)
    model = exported(network, x)
    theirs = references(network, x, tangent, cotangent)
    exact = references(network, *(value.double() for value in (x, tangent, cotangent)))

    graphs = {
        "forward": model,
        "gradient": gradient_graph(model, "x", "loss"),
        "vjp": vjp_graph(model, "x", "y"),
        "jvp": jvp_graph(model, "x", "y"),
        "hvp": hvp_graph(model, "x", "loss"),
    }
    further = {"vjp": {"y_cotangent": cotangent}, "jvp": {"x_tangent": tangent}, "hvp": {"x_vector": tangent}}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    runs: dict[str, Callable[[], list[np.ndarray]]] = {}
    for kind, graph in graphs.items():
        session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {n: value.numpy() for n, value in {"x": x, **further.get(kind, {})}.items()}
        output = graph.graph.output[0 if kind == "forward" else -1].name
        runs[kind] = partial(session.run, [output], feeds)
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(REPEAT):
        for kind, run in runs.items():
            began = time.perf_counter()
            run()
            least[kind] = min(least[kind], time.perf_counter() - began)
    found = {kind: run()[0] for kind, run in runs.items()}
    cells = [
        f"{kind} {error(found[kind], value):.0e} (torch {error(theirs[kind], value):.0e}) "
        f"x{least[kind] / least['forward']:.1f}"
        for kind, value in exact.items()
    ]
    print(f"{name:36}", *(f"{cell:36}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # its recurrences have no forward mode
    for name in parser.parse_args().only:
        measure(name)


if __name__ == "__main__":
    main()
