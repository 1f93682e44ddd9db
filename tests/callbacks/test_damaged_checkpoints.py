"""Checkpoints that are cut off, changed, of something else, or shared by threads and by processes that died."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from onnxtrain_sklearn.callbacks import Checkpoint, checkpoint
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from tests.helpers.callbacks import net
from tests.helpers.checkpoints import same
from tests.helpers.data import blobs

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()


def edited_state(change):
    """Return what writes a file again with another state, and with the right checksum."""

    def rewrite(file: Path) -> bytes:
        state = checkpoint.read_state(file)
        assert state is not None
        change(state)
        checkpoint.write_state(file, state)
        return file.read_bytes()

    return rewrite


def repacked(change):
    """Return what writes the archive again with other parts."""

    def rewrite(file: Path) -> bytes:
        with zipfile.ZipFile(file) as old:
            parts = {name: old.read(name) for name in old.namelist()}
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", compression=change(parts) or zipfile.ZIP_STORED) as new:
            for name, part in parts.items():
                new.writestr(name, part)
        return content.getvalue()

    return rewrite


def header(shape: str, kind: str = "<f4") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def flip(content: bytes, place: float) -> bytes:
    at = int(len(content) * place)
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def nan(name):
    return edited_state(lambda state: state[name].__setitem__(3, np.nan))


DAMAGES = {
    "empty": lambda file: b"",
    "no archive": lambda file: b"\x08\x01" * 50,
    "cut off": lambda file: file.read_bytes()[:-200],
    "a bit": lambda file: flip(file.read_bytes(), 0.3),
    "other numbers": repacked(lambda parts: parts.update({"a0.npy": parts["a0.npy"][:-1] + b"\x3f"})),
    "no checksum": repacked(lambda parts: parts.pop("sha256.npy") and None),
    "compressed": repacked(lambda parts: zipfile.ZIP_DEFLATED),
    "lzma": repacked(lambda parts: zipfile.ZIP_LZMA),
    "a huge array": repacked(lambda parts: parts.update({"a0.npy": header("(4611686018427387904,)")})),
    "a negative size": repacked(lambda parts: parts.update({"a0.npy": header("(-1,)")})),
    "objects": repacked(lambda parts: parts.update({"a0.npy": header("(1,)", "|O")})),
    "a deep header": repacked(lambda parts: parts.update({"a0.npy": header("(" * 9000)})),
    "NaN in the weights": nan("parameters"),
    "NaN in the optimizer": edited_state(lambda state: next(iter(state["slots"].values())).fill(np.nan)),
    "weights of another shape": edited_state(lambda state: state.update(parameters=np.zeros(3, np.float32))),
    "weights of another type": edited_state(lambda state: state.update(parameters=[1.0])),
    "no random state": edited_state(lambda state: state.pop("rng")),
    "a history of texts": edited_state(lambda state: state.update(history={})),
    "progress of no number": edited_state(lambda state: state.update(progress={"a": 1})),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_an_error_or_the_one_before_it_is_taken(kind, tmp_path):
    whole, steps = net(Checkpoint(tmp_path, keep=2)).fit(X, Y), []
    last = sorted(tmp_path.iterdir())[-1]
    last.write_bytes(DAMAGES[kind](last))
    with pytest.warns(OnnxTrainWarning, match=rf"{last.name} is damaged.*the one before it, .*-00000005-\d+\.npz"):
        again = net(Checkpoint(tmp_path, keep=2), lambda seen: steps.append(seen.number)).fit(X, Y)
    assert same(again, whole)
    assert steps == [6]
    for file in tmp_path.iterdir():
        file.write_bytes(DAMAGES[kind](file))
    with pytest.raises(ModelError, match=r"is damaged.*Remove it, or set resume=False"):
        net(Checkpoint(tmp_path, keep=2)).fit(X, Y)
    assert same(net(Checkpoint(tmp_path, resume=False)).fit(X, Y), whole)


def test_a_text_that_is_nested_too_deeply(tmp_path):
    text = np.frombuffer(b"[" * 100_000, np.uint8)
    arrays = {checkpoint.TEXT: text}
    np.savez(tmp_path / "a.npz", **arrays, sha256=np.frombuffer(checkpoint._checksum(arrays), np.uint8))
    with pytest.raises(ModelError, match="its text cannot be read"):
        checkpoint.read_state(tmp_path / "a.npz")


@pytest.mark.long
def test_parts_that_overlap_do_not_multiply_memory(tmp_path):
    """A thousand names for the same megabyte."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as new:
        new.writestr("a0.npy", header("(262144,)") + bytes(2**20))
        (entry,) = new.infolist()
        for i in range(1, 1000):
            twin = zipfile.ZipInfo(f"a{i}.npy")
            twin.header_offset, twin.CRC, twin.compress_size, twin.file_size = 0, entry.CRC, 2**20, entry.file_size
            new.filelist.append(twin)
    (tmp_path / "a.npz").write_bytes(content.getvalue())
    with pytest.raises(ModelError, match="overlap"):
        checkpoint.read_state(tmp_path / "a.npz")


def test_a_damaged_seed_is_not_drawn_again(tmp_path):
    net(Checkpoint(tmp_path), random_state=None).fit(X, Y)
    (seed,) = tmp_path.glob("seed-*.npz")
    seed.write_bytes(seed.read_bytes()[:50])
    with pytest.raises(ModelError, match=r"seed-.*is damaged"):
        net(Checkpoint(tmp_path), random_state=None).fit(X, Y)
    checkpoint.write_state(seed, {"seed": "7"})
    with pytest.raises(ModelError, match="it holds no seed"):
        net(Checkpoint(tmp_path), random_state=None).fit(X, Y)


def test_stored_state_is_restored_to_the_bit(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2], "b": np.asfortranarray(np.eye(3, 2)),
        "c": np.array(3, np.int8), "d": np.array(["é", "ab"]), "e": np.zeros((0, 4), bool),
        "f": np.array([np.nan, np.inf]),
    }  # fmt: skip
    checkpoint.write_state(tmp_path / "a.npz", {"arrays": arrays, "n": [1, None, "x", np.int64(3)]})
    found = checkpoint.read_state(tmp_path / "a.npz")
    assert found is not None
    assert found["n"] == [1, None, "x", 3]
    for name, array in arrays.items():
        assert found["arrays"][name].dtype == array.dtype
        np.testing.assert_array_equal(found["arrays"][name], array)
    assert json.loads(np.load(tmp_path / "a.npz")["state"].tobytes())["n"] == [1, None, "x", 3]
    with pytest.raises(TypeError, match="one of objects"):
        checkpoint.write_state(tmp_path / "b.npz", {"a": np.array([object()])})
    with pytest.raises(TypeError, match="Keys of dicts in a checkpoint are texts, and a callback remembers 1 as one"):
        checkpoint.write_state(tmp_path / "b.npz", {"a": {1: "x"}})


def test_threads_share_a_key(tmp_path):
    whole, found = net(max_iter=8).fit(X, Y), []

    def fit():
        try:
            found.append(same(net(Checkpoint(tmp_path), max_iter=8).fit(X, Y), whole))
        except BaseException as error:
            found.append(repr(error))

    threads = [threading.Thread(target=fit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert len(list(tmp_path.iterdir())) == 1


def test_unfinished_files_of_dead_processes_are_removed(tmp_path):
    net(Checkpoint(tmp_path), max_iter=2).fit(X, Y)
    (file,) = tmp_path.iterdir()
    old, new = (tmp_path / f".{file.name}.{token}.unfinished" for token in ("ab", "cd"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 3600,) * 2)
    net(Checkpoint(tmp_path), max_iter=2).fit(X, Y)
    assert not old.exists()
    assert new.exists()  # somebody may be writing it


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    checkpoint.write_state(tmp_path / "a.npz", {"n": 1})
    monkeypatch.setattr(np, "savez", lambda *args, **more: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        checkpoint.write_state(tmp_path / "a.npz", {"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert checkpoint.read_state(tmp_path / "a.npz") == {"n": 1}
