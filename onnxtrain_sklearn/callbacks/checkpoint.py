"""Checkpoints of a training: the callback :class:`Checkpoint`, and the format of its files.

:func:`write_state` and :func:`read_state` write and read a file. :func:`as_text` and :func:`from_text` separate a
state into JSON and arrays; the training state of the estimators uses them too.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from .._ir.files import content_of
from .._utils.atomic_files import remove_unfinished, whole_file
from .._utils.params import COUNT, Rules
from ..exceptions import ModelError, warn
from .base import CALLBACKS_MODULE, Callback, State, TrainingInProgress


class Checkpoint(Callback):
    """Store the state of training, from which the same call of ``fit`` resumes after a crash, to the same bits.

    The state is complete: weights, optimizer, random state, epoch, history, the best weights so far, and the memories
    of other callbacks. A file is named after a digest of settings, data and initial state. A call for which these are
    the same finds its file and resumes from there; any other call finds no file. So one folder serves all fits of a
    search, and a program that runs again skips the training that is done, including fits that had ended.

    Parameters
    ----------
    path : str or path-like
        Folder of the files, which is created if necessary.
    every : int, default=1
        Epochs between two files. The last epoch is always stored.
    every_steps : int or None, default=None
        Steps between two files within an epoch. Training that resumes within an epoch reads its first rows again, but
        does not train on them again. Meant for epochs that take long, such as those of tables that do not fit into
        memory. None: no files within epochs.
    keep : int, default=1
        Number of the latest files of a fit to keep. Consecutive calls of ``partial_fit`` count as one fit.
    resume : bool, default=True
        If True, resume from the latest file of the call. If False, start from the beginning, and replace the files.

    Notes
    -----
    A file appears under its name only when it is complete. It holds plain arrays, a text and a checksum: reading it
    runs no code. If a file is damaged, or holds weights that are not finite, the file before it (``keep``) is used,
    with a warning; without one, that is an error. Threads and processes may share a folder. With another version of
    onnxruntime, a call starts from the beginning.

    With ``random_state=None``, the first call draws a seed, and the folder keeps it for calls with the same settings
    and data: they are one training, even after it has ended. ``resume=False`` draws another seed.

    L-BFGS and fine-tuning are searches on all rows, whose state within SciPy cannot be stored. After a crash they start
    again, and find the same weights to the bit. Their file is written when they end, whatever ``every`` and
    ``every_steps``, so that they are not repeated.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import Checkpoint
    >>> X, y = load_iris(return_X_y=True)
    >>> folder = tempfile.TemporaryDirectory()
    >>> net = OrtGradientClassifier(callbacks=[Checkpoint(folder.name)], random_state=0, max_iter=500, tol=1e-2)
    >>> losses = net.fit(X, y).loss_curve_
    >>> net.fit(X, y).loss_curve_ == losses  # from the file of the last epoch, without a training step
    True
    >>> folder.cleanup()
    """

    __module__ = CALLBACKS_MODULE
    name = "checkpoint"
    steers = False
    valid: ClassVar[Rules] = {"every": (COUNT,), "keep": (COUNT,), "resume": (bool,), "every_steps": (COUNT, None)}

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: int = 1,
        keep: int = 1,
        *,
        resume: bool = True,
        every_steps: int | None = None,
    ) -> None:
        self.path = path
        self.every = every
        self.keep = keep
        self.resume = resume
        self.every_steps = every_steps

    @property
    def follows_steps(self) -> bool:
        return self.every_steps is not None

    def begin(self, training: TrainingInProgress) -> None:
        # Resume after all callbacks have begun, because a restored state replaces their memories.
        training.defer(lambda: self._find(training))

    def after_step(self, training: TrainingInProgress, loss: float) -> None:
        if training.is_resumable and self.every_steps is not None and training.step % self.every_steps == 0:
            training.defer(lambda: self._write(training))

    def after_epoch(self, training: TrainingInProgress) -> None:
        if training.is_resumable or training.epochs_done == 1:  # L-BFGS and fine-tuning store once, when they end
            # Store when all callbacks have added their entries and it is decided whether training ends.
            training.defer(lambda: self._store(training))

    def seed(self, key: str, drawn: int) -> int:
        """Return the seed of a training without ``random_state``: that of an earlier call, or ``drawn``.

        Parameters
        ----------
        key : str
            A text that is the same for calls with equal settings and data.
        drawn : int
            The seed of the first such call, which is stored.
        """
        folder = Path(self.path)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"seed-{key}.npz"
        stored = read_state(file) if self.resume else None
        if stored is None:
            write_state(file, {"seed": drawn})
            return drawn
        seed = stored.get("seed")
        if not isinstance(seed, int):
            raise damaged(file, "it holds no seed")
        return seed

    def _find(self, training: TrainingInProgress) -> None:
        """Resume from the latest file of this call, if there is one."""
        # The names of the files of this call begin with its key.
        folder = Path(self.path)
        memory = training.memory(self)
        key = training.identity()
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder, key)
        earlier = [name for name in memory.get("files", []) if not name.startswith(key)]
        own = sorted(path.name for path in folder.glob(f"{key}-*.npz"))
        if self.resume:
            _restore_latest(training, [folder / name for name in reversed(own)])
        training.memory(self).update(key=key, files=self._kept(folder, [*earlier, *own]))

    def _store(self, training: TrainingInProgress) -> None:
        """Write a file for the last epoch, if it is due."""
        epoch = training.row["epoch"]
        last = training.ended or training.epochs_done == training.max_iter
        # The last epoch is always written: a repeated call then trains nothing.
        if last or not epoch % self.every:
            self._write(training)

    def _write(self, training: TrainingInProgress) -> None:
        """Write a file of the present state, and remove old ones."""
        folder, memory = Path(self.path), training.memory(self)
        # The names sort in the order of time.
        file = f"{memory['key']}-{training.row.get('epoch', 0):08d}-{training.step:012d}.npz"
        files = [*(name for name in memory["files"] if name != file), file]
        memory["files"] = files[-self.keep :]  # update this memory before it is stored with the state
        write_state(folder / file, training.state())
        self._kept(folder, files)

    def _kept(self, folder: Path, files: list[str]) -> list[str]:
        """Remove all files but the latest ``keep`` ones; return the names of the files that are left."""
        for name in files[: -self.keep]:
            (folder / name).unlink(missing_ok=True)
        return files[-self.keep :]


def _restore_latest(training: TrainingInProgress, files: list[Path]) -> None:
    """Resume from the first file that is intact; if all are damaged, raise the error of the first one."""
    error: ModelError | None = None
    for file in files:
        try:
            state = read_state(file)
            if state is None:  # another thread that runs the same fit has removed the file
                continue
            _require_finite(state, file)
            try:
                training.restore(state)
            except ModelError as unfit:
                raise damaged(file, str(unfit)) from unfit
        except ModelError as found:
            error = error or found
            continue
        if error is not None:
            warn(f"{error} Training goes on from the one before it, {file}.")
        return
    if error is not None:
        raise error


def _require_finite(state: State, file: Path) -> None:
    """Raise ModelError if weights are not finite, or the optimizer's state is NaN; its squares may be infinite."""
    weights = {name: state.get(name) for name in ("parameters", "statistics", "average", "last_finite", "best")}
    slots = state.get("slots")
    for name, array in {**weights, **(slots if isinstance(slots, dict) else {})}.items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            right = np.isfinite(array) if name in weights else ~np.isnan(array)
            if not right.all():
                raise damaged(file, f"{name!r} holds values that are NaN or infinite")


# Checkpoint files: an archive of arrays, a JSON text that says where they belong, and a checksum of all.
#
# A file may be truncated, changed, or written by somebody else. Everything is checked before it is used: reading takes
# a small multiple of the length of the file as memory, and runs no code.


ARRAY, TEXT, CHECKSUM = "array of the file", "state", "sha256"
"""The key of a dict that refers to an array in the text, and the archive's entries with text and checksum."""


def write_state(path: Path, state: State) -> None:
    """Write a state of dicts, lists, arrays, numbers and texts; after a crash, the file is complete or absent."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(as_text(state, arrays))
    arrays[TEXT] = np.frombuffer(text.encode(), np.uint8)
    arrays[CHECKSUM] = np.frombuffer(_checksum(arrays), np.uint8)
    with whole_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_state(path: Path) -> State | None:
    """Return the state in a file; None if there is no file.

    Raises
    ------
    ModelError
        The file is damaged, or was not written by :func:`write_state`.
    """

    def require_archive(file: BinaryIO, size: int) -> None:
        if not zipfile.is_zipfile(file):
            raise ModelError(f"{file.name} is no archive of arrays.")

    try:
        content = content_of(path, first=require_archive)
    except FileNotFoundError:
        return None
    except ModelError as error:
        raise damaged(path, str(error)) from error
    arrays = _arrays_of(content, path)
    stored = arrays.pop(CHECKSUM, np.empty(0))
    if TEXT not in arrays:
        raise damaged(path, "it holds no state")
    if stored.tobytes() != _checksum(arrays):
        raise damaged(path, "its checksum does not match its content")
    try:
        state = from_text(json.loads(arrays[TEXT].tobytes()), arrays)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, "its text cannot be read") from error
    if not isinstance(state, dict):
        raise damaged(path, "it holds no state")
    return state


def damaged(path: Path, why: str) -> ModelError:
    """Return the error to raise for a file from which training cannot resume."""
    return ModelError(
        f"The checkpoint {path} is damaged, or none of this training: {why.rstrip('.')}. Remove it, or set "
        f"resume=False, which replaces it."
    )


def _checksum(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the SHA-256 of the names, types, shapes and contents of arrays."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        # Include types and shapes, because the same bytes may stand for other numbers.
        hasher.update(f"{name}\n{array.dtype.str}\n{array.shape}\n".encode())
        hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.digest()


def _arrays_of(content: bytes, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an archive, after a check that their total size does not exceed the size of the archive."""
    found, left = dict[str, np.ndarray](), len(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                left -= entry.file_size
                if left < 0 or entry.compress_type != zipfile.ZIP_STORED:
                    raise damaged(path, "its parts are compressed, or overlap")
                found[entry.filename.removesuffix(".npy")] = _array_of(archive.read(entry))
    except ModelError:
        raise
    except MemoryError as error:
        raise MemoryError(f"There is not enough memory to read the checkpoint {path}.") from error
    except Exception as error:  # on damaged bytes, zipfile and NumPy raise errors of many types
        raise damaged(path, f"{type(error).__name__}: {error}"[:300]) from error
    return found


def _array_of(content: bytes) -> np.ndarray:
    """Return the array in a file in NumPy's format; check its header first, which may be malicious."""
    file = io.BytesIO(content)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, fortran, kind = read_header[np.lib.format.read_magic(file)](file)
    except (MemoryError, RecursionError) as error:  # raised by Python's parser for a deeply nested header
        raise ValueError("a header is nested too deeply") from error
    if kind.hasobject or any(size < 0 for size in shape):
        raise ValueError("a header names objects or negative sizes")
    array = np.frombuffer(content, kind, offset=file.tell())
    return np.array(array.reshape(shape, order="F" if fortran else "C"), order="C")


def as_text(value: object, arrays: dict[str, np.ndarray]) -> Any:
    """Return ``value`` in a form for JSON, with lists for tuples; add its arrays to ``arrays``, by name."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("A checkpoint takes arrays of numbers and texts, and a callback remembers one of objects.")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {ARRAY: name}
    if isinstance(value, dict):
        if others := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"Keys of dicts in a checkpoint are texts, and a callback remembers {others[0]!r} as one.")
        return {key: as_text(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(item, arrays) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def from_text(value: object, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the original value, given the result of :func:`as_text` and the arrays; tuples have become lists."""
    if isinstance(value, dict):
        if ARRAY in value:
            return arrays[value[ARRAY]]
        return {key: from_text(item, arrays) for key, item in value.items()}
    return [from_text(item, arrays) for item in value] if isinstance(value, list) else value
