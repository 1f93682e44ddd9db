"""Convolutional networks of PyTorch by their published definitions, with random weights, for ``convolutions.py``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    padding = (kernel - 1) // 2
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)


def activated(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [convolution(inputs, outputs, kernel, stride), nn.BatchNorm2d(outputs), nn.ReLU()]


class Residual(nn.Module):
    """Two convolutions of 3x3 beside a shortcut, which has a convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Callable[[int, int, int], nn.Module]) -> None:
        super().__init__()
        second = [convolution(outputs, outputs, 3), nn.BatchNorm2d(outputs)]
        self.body = nn.Sequential(*activated(inputs, outputs, 3, stride), *second)
        self.shortcut = nn.Identity() if (inputs, stride) == (outputs, 1) else shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def strided_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def averaged_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False) if stride > 1 else nn.Identity()
    return nn.Sequential(pool, convolution(inputs, outputs, 1), nn.BatchNorm2d(outputs))


def residual_network(stem: list[nn.Module], depth: int, shortcut: Callable[[int, int, int], nn.Module]) -> nn.Module:
    blocks, inputs = [], 64
    for i, outputs in enumerate((64, 128, 256, 512)):
        for j in range(depth):
            blocks.append(Residual(inputs, outputs, 2 if i and not j else 1, shortcut))
            inputs = outputs
    pool = nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, pool, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def resnet18() -> nn.Module:
    return residual_network(activated(3, 64, 7, 2), 2, strided_shortcut)


def resnet10t() -> nn.Module:
    stem = [*activated(3, 24, 3, 2), *activated(24, 32, 3), *activated(32, 64, 3)]
    return residual_network(stem, 1, averaged_shortcut)


class DenseLayer(nn.Module):
    """Appends 32 channels to its input."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        before = [nn.BatchNorm2d(inputs), nn.ReLU(), convolution(inputs, 128, 1)]
        self.body = nn.Sequential(*before, nn.BatchNorm2d(128), nn.ReLU(), convolution(128, 32, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121() -> nn.Module:
    layers, width = [*activated(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for i, depth in enumerate((6, 12, 24, 16)):
        layers += [DenseLayer(width + 32 * j) for j in range(depth)]
        width += 32 * depth
        if i < 3:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), convolution(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]
    return nn.Sequential(*layers)


class Squeeze(nn.Module):
    """Scales each channel by a gate of all channels' means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(8, (width // 4 + 4) // 8 * 8)
        gate = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inner, 1), nn.ReLU(), nn.Conv2d(inner, width, 1)]
        self.gate = nn.Sequential(*gate, nn.Hardsigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Inverted(nn.Module):
    """Widens, convolves each channel, narrows; beside a shortcut where the shape is kept."""

    def __init__(
        self, inputs: int, kernel: int, wide: int, outputs: int, gated: bool, activation: type[nn.Module], stride: int
    ) -> None:
        super().__init__()
        widen = [convolution(inputs, wide, 1), nn.BatchNorm2d(wide), activation()] if wide != inputs else []
        each = [convolution(wide, wide, kernel, stride, groups=wide), nn.BatchNorm2d(wide), activation()]
        narrow = [convolution(wide, outputs, 1), nn.BatchNorm2d(outputs)]
        self.body = nn.Sequential(*widen, *each, *([Squeeze(wide)] if gated else []), *narrow)
        self.kept = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.kept else self.body(x)


SMALL = """3 16 16 1 R 2, 3 72 24 0 R 2, 3 88 24 0 R 1, 5 96 40 1 H 2, 5 240 40 1 H 1, 5 240 40 1 H 1,
    5 120 48 1 H 1, 5 144 48 1 H 1, 5 288 96 1 H 2, 5 576 96 1 H 1, 5 576 96 1 H 1"""


def mobilenet_v3_small() -> nn.Module:
    layers, inputs = [convolution(3, 16, 3, 2), nn.BatchNorm2d(16), nn.Hardswish()], 16
    for row in SMALL.split(","):
        kernel, wide, outputs, gated, activation, stride = row.split()
        kind = nn.ReLU if activation == "R" else nn.Hardswish
        layers.append(Inverted(inputs, int(kernel), int(wide), int(outputs), gated == "1", kind, int(stride)))
        inputs = int(outputs)
    layers += [convolution(96, 576, 1), nn.BatchNorm2d(576), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000))


class ChannelNorm(nn.LayerNorm):
    """Normalizes the channels of each pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    """A convolution of 7x7 of each channel, then two layers over the channels of each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width, 1, 1), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.layers(self.each(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext_atto() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 40, 4, 4), ChannelNorm(40)]
    for i, depth in enumerate((2, 2, 6, 2)):
        width = 40 * 2**i
        if i:
            layers += [ChannelNorm(width // 2), nn.Conv2d(width // 2, width, 2, 2)]
        layers += [NextBlock(width) for _ in range(depth)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(320), nn.Linear(320, 1000)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": resnet18,
    "resnet10t": resnet10t,
    "densenet121": densenet121,
    "mobilenet_v3_small": mobilenet_v3_small,
    "convnext_atto": convnext_atto,
}
