"""Models as files: in every format, broken or with a strange name, and with weights in strange files beside them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import onnx
import onnx.external_data_helper

from tests.fuzz.messages import bytes_of, messages
from tests.fuzz.values import NUMBERS

FORMATS = ("onnx", "json", "textproto", "onnxtxt", "pb", "onnxjson", "prototxt")


def file_of_model(rng: random.Random, model: onnx.ModelProto, folder: Path) -> Path | str:
    """Write a model as a file of any format, changed perhaps, and return its path."""
    path = folder / f"net.{rng.choice(FORMATS)}"
    try:
        onnx.save(model, path)
    except Exception:  # not every mutant can be written as text
        path.write_bytes(model.SerializeToString())
    if rng.random() < 0.5:
        path.write_bytes(bytes_of(rng, path.read_bytes()))
    kind = rng.choice(["as it is"] * 8 + ["long", "nul", "folder", "fifo", "other ending", "missing", "closed"])
    if kind == "other ending":
        path = path.rename(folder / f"net.{rng.choice([*FORMATS, 'txt', 'bin'])}")
    elif kind == "fifo":
        os.mkfifo(folder / "net.fifo")
    elif kind == "closed":
        path.chmod(0)
    strange = {
        "long": "n" * 5000,
        "nul": "net\0.onnx",
        "folder": str(folder),
        "missing": "missing.onnx",
        "fifo": str(folder / "net.fifo"),
    }
    return strange.get(kind, rng.choice([path, str(path)]))


def external(rng: random.Random, model: onnx.ModelProto, folder: Path) -> Path:
    """Write a model with weights in files beside it, say strange things about them, and return its path."""
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    path = folder / "net.onnx"
    try:
        onnx.save(model, path)
    except Exception:
        path.write_bytes(model.SerializeToString())
    _strange_files(folder)
    tensors = [m for m in messages(model) if isinstance(m, onnx.TensorProto) and m.external_data]
    for tensor in tensors if rng.random() < 0.1 else rng.sample(tensors, min(len(tensors), rng.choice([0, 1, 1, 2]))):
        for entry in tensor.external_data:
            if entry.key == "location" and rng.random() < 0.5:
                entry.value = rng.choice([*LOCATIONS, str(folder.parent / "outside.bin")])
            elif entry.key != "location" and rng.random() < 0.5:
                entry.value = rng.choice(
                    [*(str(n) for n in NUMBERS), str(2**64), str(2**100), "abc", "", "1.5", "-0", "4096"]
                )
            elif rng.random() < 0.1:
                entry.key = rng.choice(["", "location", "offset", "checksum"])
        if rng.random() < 0.2:
            tensor.dims[:] = [rng.choice([2**40, 2**20, 3, 0, -1])]
    path.write_bytes(model.SerializeToString())
    return path


LOCATIONS = [
    "",
    ".",
    "..",
    "/etc/passwd",
    "../outside.bin",
    "sub/../../outside.bin",
    "link.bin",
    "hard.bin",
    "fifo",
    "folder",
    "/dev/zero",
    "device.bin",
    "n" * 5000,
    "a\0b",
    "huge.bin",
    "missing.bin",
    "net.onnx",
    "é",
    "self.bin",
    "weights.bin",
]


def _strange_files(folder: Path) -> None:
    outside = folder.parent / "outside.bin"
    outside.write_bytes(b"\1" * 4096)
    (folder / "link.bin").symlink_to(outside)
    os.link(outside, folder / "hard.bin")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "device.bin").symlink_to("/dev/zero")
    (folder / "self.bin").symlink_to("self.bin")
    with open(folder / "huge.bin", "wb") as file:
        file.truncate(2**40)
