"""Write ``residual_bn_statistics.npz``: the running statistics with which PyTorch's runs of ``residual_bn`` end.

Run with PyTorch 2.13: ``python tests/files/make_batch_statistics.py``. Weights begin as in ``residual_bn.onnx``; the
minibatches are those of ``residual_bn.npz``, whose losses the two runs repeat.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

FOLDER = Path(__file__).parent
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.01),
}


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


class ResidualBN(nn.Module):
    """The network of the file, with its names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.b0 = convolution(3, 8), nn.BatchNorm2d(8)
        self.c1, self.b1 = convolution(8, 8), nn.BatchNorm2d(8)
        self.c2, self.b2 = convolution(8, 8), nn.BatchNorm2d(8)
        self.f = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.b0(self.stem(x)))
        x = torch.relu(x + self.b2(self.c2(torch.relu(self.b1(self.c1(x))))))
        return self.f(x.mean((2, 3)))


def trained(start: dict[str, torch.Tensor], optimizer: str, run: dict[str, np.ndarray]) -> nn.Module:
    """Return the network after a step with each minibatch, whose losses are those of ``run``."""
    network, losses = ResidualBN(), []
    network.load_state_dict(start, strict=False)
    updates = OPTIMIZERS[optimizer](network.parameters())
    for x, y in zip(run["x0"], run["y"], strict=True):
        updates.zero_grad()
        loss = nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        updates.step()
        losses.append(loss.item())
    np.testing.assert_allclose(losses, run[f"loss/{optimizer}"], rtol=1e-6)
    return network


def main() -> None:
    initializers = onnx.load(FOLDER / "residual_bn.onnx").graph.initializer
    start = {tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()) for tensor in initializers}
    with np.load(FOLDER / "residual_bn.npz") as archive:
        run = dict(archive)
    statistics = {}
    for optimizer in OPTIMIZERS:
        for name, array in trained(start, optimizer, run).named_buffers():
            if name.rpartition(".")[2] in ("running_mean", "running_var"):
                statistics[f"final/{optimizer}/{name}"] = array.numpy()
    np.savez_compressed(FOLDER / "residual_bn_statistics.npz", **statistics)


if __name__ == "__main__":
    main()
