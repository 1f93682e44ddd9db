"""Write ``learns_*.onnx``: untrained networks as PyTorch exports them, for tests that train them to an accuracy.

Run with PyTorch 2.13 and onnxscript: ``python tests/files/make_learning_exports.py``. The convolutional network is
written three times: by the newer exporter, which leaves Dropout out and folds BatchNormalization; by the same exporter
with ``optimize=False``, which keeps BatchNormalization; by the older one in training mode, which keeps both.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import onnx
import torch
from make_torch_exports import KEPT
from torch import nn

FOLDER = Path(__file__).parent
ROWS = torch.export.Dim("rows", min=2)
NEWER = {"dynamo": True, "external_data": False, "dynamic_shapes": ({0: ROWS},)}
OLDER = {
    "dynamo": False, "opset_version": 17, "input_names": ["x"], "dynamic_axes": {"x": {0: "rows"}},
    "training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False,
}  # fmt: skip


class Digits(nn.Sequential):
    """Three convolutions for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__(
            *self.block(1, 16), *self.block(16, 32), nn.MaxPool2d(2), *self.block(32, 32), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 10),
        )  # fmt: skip

    @staticmethod
    def block(channels: int, filters: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]


class Transformer(nn.Module):
    """Two layers of attention over words and their positions; the first word is answered."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
        self.words, self.positions = nn.Embedding(8, 24), nn.Parameter(torch.randn(1, 9, 24) * 0.3)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 8)

    def forward(self, x):
        return self.head(self.body(self.words(x) + self.positions)[:, 0])


class LSTM(nn.Module):
    """A recurrent network whose last state is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(4, 8), nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.cell(self.words(x))[0][:, -1])


def export(name: str, module: nn.Module, X: torch.Tensor, settings: dict[str, Any]) -> None:
    """Write a file without the stack traces, which would be most of it."""
    path = FOLDER / f"learns_{name}.onnx"
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(module, (X,), str(path), **settings)
    proto = onnx.load(path)
    for node in proto.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key in KEPT]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.doc_string = ""
    onnx.save(proto, path)


def main() -> None:
    torch.manual_seed(0)
    digits, images = Digits(), torch.randn(4, 1, 8, 8)
    export("digits_training", digits.train(), images, OLDER)
    digits = digits.eval()
    export("digits", digits, images, NEWER)
    export("digits_kept", digits, images, NEWER | {"optimize": False})
    export("transformer", Transformer().eval(), torch.randint(0, 8, (4, 9)), NEWER)
    export("lstm", LSTM().eval(), torch.randint(0, 4, (4, 10)), NEWER)


if __name__ == "__main__":
    main()
