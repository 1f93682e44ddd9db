"""Files that were trained, changed at random, and what reads them: manifests, states, checkpoints, adapters, commands.

A case is made from its number alone. It is right where the file is read, or refused by an error of this package that is
raised on purpose. What is read must be what a change can lead to: finite numbers, as many bytes as the file has.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import traceback
import tracemalloc
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onnxtrain_sklearn import MLP, AdamW, LoRA, OrtGradientClassifier, load_training
from onnxtrain_sklearn._export.state_files import tensors_of
from onnxtrain_sklearn.callbacks import Checkpoint
from onnxtrain_sklearn.callbacks.checkpoint import TEXT, _checksum, read_state
from onnxtrain_sklearn.classic.artifacts import read_checkpoint
from tests.fuzz import case, messages, mutations, terminal

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = np.arange(24) % 2
LARGEST_GROWTH = 32
"""Bytes of memory for each byte of a file, beside :data:`FREE`."""

FREE = 2**23

WILD: list[Any] = [
    None, True, False, -1, 0, 1, 2.5, 2**31, 2**63, 2**70, -(2**63), 1e308, "", "x", "../x", "/etc/passwd", "a\0b",
    "\x1b[2J", "F32", "F64", "é", "n" * 5000, [], {}, [None], [0, 0], [2**62, 2**62], {"a": 1}, [[1]], [0, 10**9],
]  # fmt: skip


@cache
def home() -> Path:
    """Return a folder with one file of each kind, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-stored"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = estimator()
        plain.fit(X, Y)
        plain.export_training(folder / "graphs")
        (folder / "training.onnx").write_bytes(plain.to_training_onnx().SerializeToString())
        load_training(folder / "graphs").save_state(folder / "state.safetensors")
        net = estimator(callbacks=[Checkpoint(folder / "checkpoints", keep=1)])
        net.fit(X, Y)
        plain.export_artifacts(folder / "artifacts")
    return folder


def estimator(**settings: Any) -> OrtGradientClassifier:
    known = {"batch_size": 8, "max_iter": 2, "random_state": 0, "optimizer": AdamW(), "engine": "portable"}
    return OrtGradientClassifier(MLP((4,), dropout=0.2), **{**known, **settings})


@cache
def fitted() -> OrtGradientClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator().fit(X, Y)


# changes.


def changed_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return a content with some bytes changed, cut off, repeated or put in."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        kind = rng.choice(["flip", "flip", "set", "cut", "drop", "repeat", "zeros", "head"])
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "set" and at < len(data):
            data[at] = rng.choice([0, 1, 127, 128, 255])
        elif kind == "head" and data:
            data[rng.randrange(min(64, len(data)))] = rng.randrange(256)
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + rng.choice([1, 4, 100])]
        elif kind == "repeat":
            data[at:at] = data[max(0, at - 64) : at]
        else:
            data[at:at] = bytes(rng.choice([1, 8, 1000]))
    return bytes(data)


def changed_json(rng: random.Random, value: Any) -> Any:
    """Return a value of JSON with some of its parts replaced, removed, repeated or nested."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        value = _changed_part(rng, value)
    return value


def _changed_part(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
        kind = rng.choice(["in"] * 6 + ["remove", "other", "name"])
        if kind == "in":
            copy[key] = _changed_part(rng, copy[key])
        elif kind == "remove":
            del copy[key]
        elif kind == "other":
            copy[key] = copy[rng.choice(list(copy))] if isinstance(copy, dict) else rng.choice(copy)
        elif isinstance(copy, dict):
            copy[rng.choice(["x", "../x", "step", "__metadata__", ""])] = copy.pop(key)
        else:
            copy.append(copy[key])
        return copy
    if type(value) in (int, float) and rng.random() < 0.5:
        return rng.choice([-value, value + 1, value * 2, value / 2, -1])
    found = rng.choice(WILD)
    for _ in range(rng.choice([0] * 20 + [3, 2000])):
        found = [found]
    return found


def changed_text(rng: random.Random, content: bytes) -> bytes:
    """Return JSON that was changed as a value, or as bytes."""
    if rng.random() < 0.2:
        return changed_bytes(rng, content)
    try:
        return json.dumps(changed_json(rng, json.loads(content))).encode()
    except RecursionError:
        return b"[" * 100_000


# targets: each makes a file, and returns what is to be read and how.


def manifest(rng: random.Random, folder: Path) -> Callable[[], object]:
    path = folder / "graphs"
    shutil.copytree(home() / "graphs", path)
    file = path / rng.choice(["manifest.json"] * 8 + ["state.safetensors", "step.onnx", "predict.onnx"])
    content = file.read_bytes()
    file.write_bytes(changed_text(rng, content) if file.suffix == ".json" else changed_bytes(rng, content))
    if file.suffix != ".json" and rng.random() < 0.9:  # by somebody who writes the digest, too
        if file.suffix == ".onnx":
            file.write_bytes(_changed_model(rng, content))
        found = json.loads((path / "manifest.json").read_text())
        found["files"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        (path / "manifest.json").write_text(json.dumps(found))
    return lambda: _trained(path) if rng.random() < 0.8 else _loaded(path)


def _changed_model(rng: random.Random, content: bytes) -> bytes:
    model = onnx.load_model_from_string(content)
    mutations.mutate(rng, model, rng.choice([1, 1, 2]))
    try:
        found = model.SerializeToString()
    except (ValueError, RecursionError):
        return content
    return messages.bytes_of(rng, found) if rng.random() < 0.2 else found


def _trained(path: Path) -> object:
    training = load_training(path, random_state=0).partial_fit(X, Y)
    return training.predict(X)


def _loaded(path: Path) -> object:
    net = fitted()
    before = net.weights_
    try:
        net.load_state(path)
    except Exception:
        for name, array in before.items():
            np.testing.assert_array_equal(net.weights_[name], array)
        raise
    assert all(np.isfinite(array).all() for array in net.weights_.values())
    return net.load_state(before)


def tensors(rng: random.Random, folder: Path) -> Callable[[], object]:
    """A file of a state: its header as JSON, or all of its bytes."""
    content = (home() / "state.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    if rng.random() < 0.7:
        text = changed_text(rng, content[8 : 8 + size])
        content = len(text).to_bytes(8, "little") + text + content[8 + size :]
    else:
        content = changed_bytes(rng, content)
    path = folder / "state.safetensors"
    path.write_bytes(content)
    return lambda: _loaded(path) if rng.random() < 0.5 else tensors_of(content, "state")


def checkpoint(rng: random.Random, folder: Path) -> Callable[[], object]:
    """The file of a fit, which goes on from it."""
    path = folder / "checkpoints"
    shutil.copytree(home() / "checkpoints", path)
    (file,) = path.iterdir()
    if rng.random() < 0.4:
        file.write_bytes(changed_bytes(rng, file.read_bytes()))
    else:  # by somebody who writes the checksum, too
        with np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files if name != "sha256"}
        if rng.random() < 0.7:
            text = changed_text(rng, arrays[TEXT].tobytes())
            arrays[TEXT] = np.frombuffer(text, np.uint8)
        else:
            name = rng.choice([one for one in arrays if one != TEXT])
            arrays[name] = _changed_array(rng, arrays[name])
        np.savez(file, **arrays, sha256=np.frombuffer(_checksum(arrays), np.uint8))

    def resume() -> object:
        if rng.random() < 0.3:
            return read_state(file)
        found = estimator(callbacks=[Checkpoint(path)]).fit(X, Y)
        assert all(np.isfinite(array).all() for array in found.weights_.values())
        return found

    return resume


def _changed_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    kind = rng.choice(["nan", "inf", "shape", "type", "short", "text"])
    if kind in ("nan", "inf") and array.dtype.kind == "f" and array.size:
        array = array.copy()
        array.flat[rng.randrange(array.size)] = float(kind)
        return array
    changes: dict[str, Callable[[], np.ndarray]] = {
        "shape": lambda: array[None], "type": lambda: array.astype(rng.choice([np.float64, np.int8, bool, "S3"])),
        "text": lambda: np.array(["x"]),
    }  # fmt: skip
    return changes.get(kind, lambda: array.ravel()[:-1])()


def training_file(rng: random.Random, folder: Path) -> Callable[[], object]:
    """A model with training_info: its graphs, its manifest, its bytes."""
    content = (home() / "training.onnx").read_bytes()
    kind = rng.choice(["manifest", "model", "bytes", "algorithm"])
    model = onnx.load_model_from_string(content)
    if kind == "manifest":
        for entry in model.metadata_props:
            entry.value = changed_text(rng, entry.value.encode()).decode("utf-8", "replace")
        content = model.SerializeToString()
    elif kind == "algorithm":
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
        whole.graph.CopyFrom(model.training_info[0].algorithm)
        mutations.mutate(rng, whole, 1)
        model.training_info[0].algorithm.CopyFrom(whole.graph)
        content = model.SerializeToString()
    else:
        content = _changed_model(rng, content) if kind == "model" else messages.bytes_of(rng, content)
    (folder / "x.onnx").write_bytes(content)
    return lambda: _trained(folder / "x.onnx")


def device_checkpoint(rng: random.Random, folder: Path) -> Callable[[], object]:
    """A checkpoint of onnxruntime-training."""
    source = next(path for path in (home() / "artifacts").iterdir() if path.name.endswith("checkpoint"))
    path = folder / "checkpoint"
    path.write_bytes(changed_bytes(rng, source.read_bytes()))
    return lambda: read_checkpoint(path)


SCALE = 4.0
"""alpha / rank of the adapters, which their files hold multiplied into the second factor."""


@cache
def adapted() -> OrtGradientClassifier:
    settings: dict[str, Any] = {"max_iter": 2, "random_state": 0, "engine": "portable"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = MLP((4,)).build(n_features=3, n_outputs=2, random_state=0)
        return OrtGradientClassifier(given, adapters=LoRA(2), **settings).fit(X, Y)


def adapter(rng: random.Random, folder: Path) -> Callable[[], object]:
    """A file of low-rank factors: its bytes, or other arrays and names; before onnxruntime 1.20 none is read."""
    path, net = folder / "x.onnx_adapter", adapted()
    before = net.adapters_
    if not hasattr(onnxruntime, "AdapterFormat"):
        path.write_bytes(rng.randbytes(100))
    else:
        net.save_adapter(path)
        if rng.random() < 0.6:
            path.write_bytes(changed_bytes(rng, path.read_bytes()))
        else:
            _write_adapter(rng, path)

    def load() -> object:
        try:
            net.load_state(path)
        except Exception:
            for name, array in before.items():
                np.testing.assert_array_equal(net.adapters_[name], array)
            raise
        found = net.adapters_
        held = onnxruntime.AdapterFormat.read_adapter(str(path))
        for name, value in held.get_parameters().items():
            array = np.array(value.numpy())
            assert np.isfinite(array).all()
            np.testing.assert_allclose(found[name], array / (SCALE if name.endswith("lora_B") else 1.0), rtol=1e-6)
        assert np.isfinite(net.predict_proba(X)).all()
        return net.load_state(before)

    return load


def _write_adapter(rng: random.Random, path: Path) -> None:
    """Write another adapter file with onnxruntime: arrays of other shapes, types and names, in other versions."""
    held = onnxruntime.AdapterFormat.read_adapter(str(path))
    arrays = {name: np.array(value.numpy()) for name, value in held.get_parameters().items()}
    for name in rng.sample(sorted(arrays), rng.choice([1, 1, 2])):
        kind = rng.choice(["drop", "name", "array", "array", "array", "turn", "empty"])
        array = arrays.pop(name)
        if kind == "drop":
            continue
        changed = _changed_array(rng, array) if kind == "array" else array.T if kind == "turn" else array
        changed = array[:0] if kind == "empty" else changed
        arrays[rng.choice(["x", "", "../x", "\x1b[2J", name + "x"]) if kind == "name" else name] = changed
    written = onnxruntime.AdapterFormat()
    written.set_adapter_version(rng.choice([1, 1, 0, 2, -1]))
    written.set_model_version(rng.choice([1, 1, 0, 2**31 - 1]))
    numbers = {name: array for name, array in arrays.items() if array.dtype.kind in "fiub"}
    make = onnxruntime.OrtValue.ortvalue_from_numpy
    written.set_parameters({name: make(np.asarray(array, order="C")) for name, array in numbers.items()})
    written.export_adapter(str(path))


TARGETS = {
    "manifest": manifest,
    "tensors": tensors,
    "checkpoint": checkpoint,
    "training file": training_file,
    "device checkpoint": device_checkpoint,
    "adapter": adapter,
    "terminal": terminal.case,
}


def run(number: int, folder: Path) -> tuple[str, str]:
    """Run a case; return what came of it, as :func:`tests.fuzz.case.run_case` does, and the target."""
    name = list(TARGETS)[number % len(TARGETS)]
    return _outcome(name, random.Random(f"{name} {number}"), folder), name


def _outcome(name: str, rng: random.Random, folder: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        home(), fitted()
        read = TARGETS[name](rng, folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        try:
            tracemalloc.start()
            read()
            peak = tracemalloc.get_traced_memory()[1]
        except AssertionError:
            return f"wrong {traceback.format_exc()[-3000:]}"
        except Exception as error:
            if case.allowed(error):
                return f"refused {type(error).__name__}: {str(error)[:300]}"
            return f"foreign {''.join(traceback.format_exception(error, limit=-12))[-4500:]}"
        finally:
            tracemalloc.stop()
    return (
        f"wrong {peak:,} bytes of memory for a file of {size:,}"
        if peak > FREE + LARGEST_GROWTH * size and name != "terminal"
        else "trained"
    )
