"""Write ``torch_*.onnx`` and ``torch_*.npz``: fresh modules as PyTorch exports them, and how PyTorch trains them.

Run with PyTorch 2.13 and onnxscript: ``python tests/files/make_torch_exports.py [name ...]``. The names of files end in
the exporter, dynamo or classic. An archive holds rows ``X``, targets ``y``, the losses of gradient descent over all
rows (rate 0.05, mean squared error) in float64, and under ``state/`` the parameters of the module after it, by
PyTorch's names.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

FOLDER = Path(__file__).parent
STEPS, RATE = 5, 0.05
KEPT = ("pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes")
"""Metadata of nodes that the files keep; the stack traces would be most of their size."""


class Fresh(nn.Module):
    """Two layers that begin equal, and scales and biases that begin as ones and zeros."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.body, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        nn.init.zeros_(self.last.bias)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(torch.tanh(self.last(self.body(x).mean(1))))


class Shared(nn.Module):
    """A layer that is called twice, and a table that is the last matrix too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        rows = torch.tanh(self.layer(torch.tanh(self.layer(self.table(x)))))
        return self.head(rows).mean(1)[:, :1]


class Constants(nn.Module):
    """Constants and buffers where weights could be, and parameters where constants could be."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.t, self.power = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(2.0))
        self.place = nn.Parameter(torch.randn(1, 8, 4))
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("mixing", torch.eye(4) + 0.1)

    def forward(self, x):
        rows = nn.functional.gelu(self.first(x), approximate="tanh")
        rows = 0.5 * rows * (1.0 + torch.tanh(0.8 * (rows + 0.0447 * rows**3)))
        rows = torch.tanh((rows * self.t + self.shift) @ self.mixing + self.place[:, 0])
        return self.head((rows**2 + 0.1) ** self.power)


class Padded(nn.Module):
    """A table whose row for padding is not trained by the first call, but by the second, which does not name it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4, padding_idx=2), nn.Linear(4, 1)

    def forward(self, x):
        again = nn.functional.embedding(x[:, 0], self.table.weight) * 0.5
        return self.head(torch.tanh(self.table(x) + 0.2).mean(1) + again)


class Crossed(nn.Module):
    """Attention to itself and to another sequence: biases that begin as zeros, the second of which is split."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(4, 2, batch_first=True) for _ in range(2))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        rows = x + self.own(x, x, x, need_weights=False)[0]
        last = torch.tanh(x[:, 1:])
        return self.head((rows + self.other(rows, last, last, need_weights=False)[0]).mean(1))


class Grouped(nn.Module):
    """Normalization by groups, which is written with ones and zeros, before one whose weights begin so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.groups = nn.Conv1d(3, 4, 1, bias=False), nn.GroupNorm(4, 4)
        self.last, self.head = nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.last(self.groups(self.first(x)).transpose(1, 2))).mean(1))


class Scaled(nn.Module):
    """A layer whose factor is computed from a parameter in advance: ``1 + weight``, or one that is reshaped."""

    def __init__(self, begin: float) -> None:
        super().__init__()
        self.weight, self.begin = nn.Parameter(torch.zeros(4)), begin

    def forward(self, x):
        return torch.tanh(x) * (self.begin + self.weight)


class Folded(nn.Module):
    """Factors that begin equal: of two layers, of one that is called twice, and two of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.one, self.twice, self.inner = Scaled(0.5), Scaled(0.5), nn.Linear(4, 4)
        self.left, self.right = (nn.Parameter(torch.full((4,), 0.25)) for _ in range(2))

    def forward(self, x):
        rows = self.twice(self.inner(self.twice(self.one(self.first(x)))))
        return self.head(torch.sin(rows * self.left.view(1, 4)) * self.right.view(1, 4))


class Merged(nn.Module):
    """Layers that begin equal and have one input: norms, two before an activation, and two parameters of one module.

    ``inner`` is called twice and is one layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norms, self.inner = nn.ModuleList([nn.LayerNorm(4) for _ in range(3)]), nn.Sequential(nn.LayerNorm(4))
        self.early, self.late = nn.LayerNorm(4), nn.LayerNorm(4)
        self.heads = nn.ModuleList([nn.Linear(4, 3) for _ in range(9)])
        self.left, self.right = (nn.Parameter(torch.full((4,), 0.25)) for _ in range(2))

    def forward(self, x):
        rows, low, high = [norm(x) for norm in self.norms], torch.cos(x), torch.sin(2 * x)
        rows += [self.inner(high), self.inner(high), torch.tanh(self.early(low)), torch.tanh(self.late(low))]
        rows += [torch.sin(high * self.left), torch.sin(high * self.right)]
        return sum(head(row) for head, row in zip(self.heads, rows, strict=True)).mean(1, keepdim=True)


class Twice(nn.Module):
    """An activation that is called twice: behind a normalization, and before two that begin equal.

    The parameters of ``behind.1`` are read by what is computed in advance.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.behind, self.before = (nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)]) for _ in range(2))
        self.heads = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def forward(self, x):
        x = self.first(x)
        one, other = self.behind[0](x), torch.cos(x)
        factor, shift = 0.5 + self.behind[1].weight, 0.25 + self.behind[1].bias
        rows = [torch.tanh(one), torch.tanh(one), *(norm(torch.sin(other)) for norm in self.before)]
        rows = [head(row) for head, row in zip(self.heads, rows, strict=True)]
        return (rows[0] + rows[1] * factor + shift + rows[2] + rows[3]).mean(1, keepdim=True)


class Block(nn.Module):
    """A normalization, a factor that the exporter computes in advance, and a layer whose bias is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale, self.last = nn.LayerNorm(4), Scaled(0.5), nn.Linear(4, 4)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        return torch.sin(x + self.last(self.scale(self.norm(x))))


class Repeated(nn.Module):
    """Blocks that begin equal: one under two paths, one that is called twice, one that is called once."""

    def __init__(self) -> None:
        super().__init__()
        block = Block()
        self.blocks, self.twice, self.once = nn.ModuleList([block, block]), Block(), Block()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        x = self.twice(torch.tanh(self.twice(self.blocks[1](torch.cos(self.blocks[0](x))))))
        return self.head(self.once(x))


class Computed(nn.Module):
    """Parameters that are read beside what is computed from them: a transposition, squares, exponentials, shares."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.factors, self.gate = nn.Linear(4, 3), nn.Parameter(torch.randn(4, 2)), nn.Linear(4, 4)
        self.rate, self.head = nn.Parameter(torch.tensor(0.3)), nn.Linear(4, 1)

    def forward(self, x):
        code = torch.tanh(self.body(x))
        decoded = nn.functional.linear(code, self.body.weight.t())
        pairs = ((x @ self.factors) ** 2 - x**2 @ self.factors**2).sum(-1, keepdim=True)
        mixed = torch.tanh(self.gate(x)) @ torch.softmax(self.gate.weight, -1) @ (0.5 - 2 * self.gate.weight)
        return self.head(decoded + mixed) * torch.exp(self.rate) + self.rate * pairs


class InPlaceOfParameters(nn.Module):
    """Results of which nothing else tells the parameters: a part is trained as it would be, a product is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(2, 4))
        self.both, self.head = nn.Parameter(torch.randn(8, 4)), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(x @ (self.first @ self.second)) + x @ self.both[:4] * torch.sin(x @ self.both[4:]))


class Bounded(nn.Module):
    """Bounds that are parameters: of clamps from below, above and both, by numbers and by columns, one read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.low, self.high = nn.Parameter(torch.tensor(-0.4)), nn.Parameter(torch.tensor(0.5))
        self.floor, self.ceiling = nn.Parameter(torch.tensor(-0.1)), nn.Parameter(torch.tensor([0.2, 0.3, 0.1, 0.4]))

    def forward(self, x):
        rows = self.second(torch.clamp(self.first(x), self.low, self.high))
        rows = torch.clamp(rows, max=self.high) + torch.clamp(rows, min=self.floor)
        return self.head(torch.clamp(torch.tanh(rows), max=self.ceiling))


def rows_of(name: str) -> torch.Tensor:
    if name in ("shared", "padded"):
        return torch.randint(0, 7, (12, 3))
    return (
        torch.randn(12, 3, 4)
        if name in ("fresh", "crossed", "grouped")
        else torch.randn(12, 4 if name in ("merged", "repeated", "twice", "computed", "replaced") else 3)
    )


def export(module: nn.Module, X: torch.Tensor, path: Path, *, dynamo: bool) -> None:
    axes = {"dynamic_shapes": ({0: torch.export.Dim("n", min=2)},)} if dynamo else {"dynamic_axes": {"x": {0: "n"}}}
    further = {"external_data": False} if dynamo else {"opset_version": 17, "input_names": ["x"]}
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(module, (X,), str(path), dynamo=dynamo, **axes, **further)
    proto = onnx.load(path)
    for node in proto.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key in KEPT]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.doc_string = ""
    onnx.save(proto, path)


def train(module: nn.Module, X: torch.Tensor, y: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the losses, and the parameters after the last step."""
    module, y, losses = module.double(), y.double(), []
    X = X.double() if X.is_floating_point() else X
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = ((module(X) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = {f"state/{name}": p.detach().numpy() for name, p in module.named_parameters(remove_duplicate=False)}
    return {"losses": np.array(losses), **state}


def main() -> None:
    modules = {
        "fresh": Fresh, "shared": Shared, "constants": Constants, "padded": Padded, "crossed": Crossed,
        "grouped": Grouped, "folded": Folded, "merged": Merged, "repeated": Repeated,
        "twice": Twice, "computed": Computed, "replaced": InPlaceOfParameters,
        "bounded": Bounded,
    }  # fmt: skip
    for name in sys.argv[1:] or modules:
        torch.manual_seed(3)
        network, X, y = modules[name]().eval(), rows_of(name), torch.randn(12, 1)
        for dynamo in (True, False)[: 2 if name in ("fresh", "shared") else 1]:
            export(network, X, FOLDER / f"torch_{name}_{'dynamo' if dynamo else 'classic'}.onnx", dynamo=dynamo)
        np.savez_compressed(FOLDER / f"torch_{name}.npz", X=X.numpy(), y=y.numpy(), **train(network, X, y))


if __name__ == "__main__":
    main()
