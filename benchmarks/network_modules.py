"""Small networks of PyTorch by their published definitions, for ``networks.py``: each gives scores, one row per row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 5


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.SELU(), nn.Linear(16, 5)
    )


class Recurrent(nn.Module):
    """The last state of a recurrent network."""

    def __init__(self, cell: type[nn.RNNBase], **settings: object) -> None:
        super().__init__()
        self.cell = cell(6, 16, batch_first=True, **settings)
        self.head = nn.Linear(32 if self.cell.bidirectional else 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Encoder(nn.Module):
    """Token ids, a table and positions, layers of ``nn.TransformerEncoderLayer``."""

    def __init__(self, *, norm_first: bool = False, activation: str = "relu") -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            16, 4, 32, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
        )
        self.table, self.place = nn.Embedding(50, 16), nn.Parameter(torch.randn(8, 16) * 0.1)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.table(x) + self.place).mean(1))


class Seq2Seq(nn.Module):
    """``nn.Transformer``: a source and a target sequence, the second with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.source, self.target, self.head = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, CLASSES)

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x1.shape[1], dtype=x1.dtype)
        hidden = self.body(self.source(x0), self.target(x1), tgt_mask=mask, tgt_is_causal=True)
        return self.head(hidden[:, -1])


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Two levels down and up, by transposed convolutions; the map of each class is averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (double_convolution(i, o) for i, o in ((1, 8), (8, 16), (16, 32)))
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.back2, self.back1 = double_convolution(32, 16), double_convolution(16, 8)
        self.maps = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(nn.functional.max_pool2d(first, 2))
        third = self.third(nn.functional.max_pool2d(second, 2))
        second = self.back2(torch.cat([self.up2(third), second], 1))
        return self.maps(self.back1(torch.cat([self.up1(second), first], 1))).mean((2, 3))


class Pyramid(nn.Module):
    """Feature maps of three sizes, interpolated to one and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(i, 8, 3, 2, 1) for i in (3, 8, 8))
        self.sides = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for stage in self.stages:
            x = torch.relu(stage(x))
            maps.append(x)
        total = self.sides[2](maps[2])
        for i, mode in ((1, "bilinear"), (0, "nearest")):
            corners = {"align_corners": False} if mode == "bilinear" else {}
            total = self.sides[i](maps[i]) + nn.functional.interpolate(total, scale_factor=2.0, mode=mode, **corners)
        return self.head(torch.relu(total).mean((2, 3)))


class NBeats(nn.Module):
    """Doubly residual blocks: each explains a part of the past, and adds its forecast."""

    def __init__(self, past: int = 12, future: int = CLASSES) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(
            nn.Sequential(nn.Linear(past, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU()) for _ in range(3)
        )
        self.backcasts = nn.ModuleList(nn.Linear(24, past, bias=False) for _ in range(3))
        self.forecasts = nn.ModuleList(nn.Linear(24, future, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], CLASSES, dtype=x.dtype)
        for body, back, forward in zip(self.bodies, self.backcasts, self.forecasts, strict=True):
            hidden = body(x)
            x, total = x - back(hidden), total + forward(hidden)
        return total


class Siamese(nn.Module):
    """One encoder for both inputs; scores of their distance and product."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 16))
        self.head = nn.Linear(18, CLASSES)

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        a, b = self.body(x0), self.body(x1)
        near = nn.functional.cosine_similarity(a, b)[:, None]
        far = torch.linalg.vector_norm(a - b + 1e-3, dim=1, keepdim=True)
        return self.head(torch.cat([torch.abs(a - b), near, far], 1))


class DeepSets(nn.Module):
    """Sums and maxima over the elements of a set, whose padding is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = nn.Sequential(nn.Linear(4, 16), nn.ELU()), nn.Linear(32, CLASSES)

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        mask = (torch.arange(7) <= x1).unsqueeze(-1)
        each = self.each(x0)
        total = each.masked_fill(~mask, 0.0).sum(1)
        largest = each.masked_fill(~mask, -1e9).max(1).values
        return self.all(torch.cat([total, largest], 1))


class GraphConvolution(nn.Module):
    """Two layers over graphs that come as adjacency matrices, normalized by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        adjacency = (x1 + x1.transpose(1, 2) > 0.8).to(x0.dtype) + torch.eye(6, dtype=x0.dtype)
        scale = adjacency.sum(-1, keepdim=True).rsqrt()
        mixing = scale * adjacency * scale.transpose(1, 2)
        hidden = torch.relu(mixing @ self.first(x0))
        return self.head(torch.relu(mixing @ self.second(hidden)).mean(1))


class GraphAttention(nn.Module):
    """Attention over the neighbors of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.head = nn.Linear(5, 16, bias=False), nn.Linear(16, CLASSES)
        self.left, self.right = nn.Linear(16, 1, bias=False), nn.Linear(16, 1, bias=False)

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        values = self.values(x0)
        scores = nn.functional.leaky_relu(self.left(values) + self.right(values).transpose(1, 2), 0.2)
        near = (x1 > 0.5) | torch.eye(6, dtype=torch.bool)
        attention = torch.softmax(scores.masked_fill(~near, float("-inf")), -1)
        return self.head(nn.functional.elu(attention @ values).mean(1))


class WaveNet(nn.Module):
    """Gated, dilated causal convolutions with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = nn.Conv1d(1, 8, 1), nn.Conv1d(8, CLASSES, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.start(x), torch.zeros(1, dtype=x.dtype)
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            value, opening = gate(nn.functional.pad(x, (2**i, 0))).chunk(2, 1)
            hidden = skip(torch.tanh(value) * torch.sigmoid(opening))
            x, total = x + hidden, total + hidden
        return self.end(torch.relu(total))[:, :, -1]


class Temporal(nn.Module):
    """A temporal convolutional network with weight normalization."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.layers = nn.ModuleList(norm(nn.Conv1d(i, 8, 3, dilation=d, padding=2 * d)) for i, d in ((4, 1), (8, 2)))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)[:, :, : x.shape[2]])
        return self.head(x[:, :, -1])


class TabTransformer(nn.Module):
    """Attention over the tables' rows of several columns, beside numbers."""

    def __init__(self, sizes: tuple[int, ...] = (4, 7, 3)) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in sizes)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(4), nn.Sequential(nn.Linear(28, 16), nn.SELU(), nn.Linear(16, CLASSES))

    def forward(self, x0: Tensor, x1: Tensor) -> Tensor:
        columns = torch.stack([table(x0[:, i]) for i, table in enumerate(self.tables)], 1)
        return self.head(torch.cat([self.body(columns).flatten(1), self.norm(x1)], 1))


class DeepFM(nn.Module):
    """Factorization machine and layers over the same table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(60, 6), nn.Embedding(60, CLASSES)
        self.deep = nn.Sequential(nn.Linear(24, 16), nn.PReLU(), nn.Linear(16, CLASSES))
        self.scale = nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x)
        pairs = 0.5 * (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1, keepdim=True)
        return self.linear(x).sum(1) + pairs * self.scale + self.deep(rows.flatten(1))


class MixtureOfExperts(nn.Module):
    """The two best of four experts by a gate, weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(10, 4), nn.Linear(8, CLASSES)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(10, 8), nn.Mish()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, places = self.gate(x).topk(2, dim=1)
        all_of_them = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = all_of_them.gather(1, places[:, :, None].expand(-1, -1, 8))
        return self.head((torch.softmax(best, 1)[:, :, None] * chosen).sum(1))


class Autoencoder(nn.Module):
    """A code of two numbers, decoded by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(64, 2))
        self.widen = nn.Linear(2, 64)
        self.decode = nn.Sequential(nn.ConvTranspose2d(4, 4, 3, 2, 1, 1), nn.GELU(), nn.Conv2d(4, 1, 3, padding=1))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        picture = self.decode(self.widen(self.encode(x)).reshape(-1, 4, 4, 4))
        return self.head(nn.functional.pad(picture, (0, 0, 1, 1)).mean((1, 2)))


class Normalized(nn.Module):
    """Group, instance and local response normalization, and activations that few networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(),
            nn.Conv2d(8, 8, 3, groups=2, padding_mode="reflect", padding=1), nn.InstanceNorm2d(8, affine=True),
            nn.Hardswish(), nn.Conv2d(8, 8, 3), nn.LocalResponseNorm(3), nn.Softplus(),
            nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(8, 8, 1), nn.CELU(), nn.PixelShuffle(2), nn.Hardtanh(),
        )  # fmt: skip
        self.head = nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).amax((2, 3)))


class Volume(nn.Module):
    """Convolutions over three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, 2), nn.ReLU()
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3, 4)))


class Warped(nn.Module):
    """A spatial transformer: the network moves the picture before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.body = nn.Linear(64, 6), nn.Conv2d(1, 6, 3)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.place(x.flatten(1)).reshape(-1, 2, 3)
        grid = nn.functional.affine_grid(theta, [x.shape[0], 1, 8, 8], align_corners=False)
        moved = nn.functional.grid_sample(x, grid, align_corners=False)
        return self.head(torch.tanh(self.body(moved)).mean((2, 3)))


class StateSpace(nn.Module):
    """A diagonal linear recurrence, written as cumulative sums of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.gates, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.cumsum(nn.functional.logsigmoid(self.gates(x)), 1)
        states = torch.exp(decay) * torch.cumsum(self.inputs(x) * torch.exp(-decay), 1)
        return self.head(nn.functional.normalize(states[:, -1], dim=1))
