"""Checkpoints, from which a later call of the same fit goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

from .._support.rules import COUNT, Rules
from .archive import read_state, write_state
from .base import CALLBACKS_MODULE, Callback, TrainingInProgress

ABANDONED = 60.0
"""Seconds after which an unfinished file is taken for one of a process that has ended."""


class Checkpoint(Callback):
    """Store the state of training, from which the same call of ``fit`` goes on after a crash, to the same bits.

    The state is complete: weights, optimizer, random state, epoch, history, the best weights so far, and what other
    callbacks remember. A file is named after a digest of settings, data and initial state. A call with the same ones
    finds its file and resumes from there; a call with other ones finds no file. So one folder serves all fits of a
    search, and running a program again skips what it has done, including fits that had ended.

    Parameters
    ----------
    path : str or path-like
        Folder of the files; it is made if need be.
    every : int, default=1
        Epochs from one file to the next. The last epoch is always stored.
    keep : int, default=1
        Files of a fit that are kept, the latest ones. Consecutive calls of ``partial_fit`` count as one fit.
    resume : bool, default=True
        Whether a call resumes from its latest file. False: it starts from the beginning, and replaces the files.

    Notes
    -----
    A file appears under its name when it is complete, and holds plain arrays and a text: reading one runs no code. With
    another version of onnxruntime a call starts from the beginning.

    With ``random_state=None`` the first call draws a seed, and the folder keeps it for calls with the same settings and
    data: they are one training, also after it has ended. ``resume=False`` draws another seed.

    L-BFGS and fine-tuning are searches on all rows, whose state within SciPy cannot be stored: after a crash they begin
    again, and find the same weights to the bit. Their file is written when they have ended; they are then not repeated.

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
    valid: ClassVar[Rules] = {"every": (COUNT,), "keep": (COUNT,), "resume": (bool,)}

    def __init__(self, path: str | os.PathLike[str], every: int = 1, keep: int = 1, *, resume: bool = True) -> None:
        self.path = path
        self.every = every
        self.keep = keep
        self.resume = resume

    def begin(self, training: TrainingInProgress) -> None:
        training.defer(lambda: self._find(training))

    def after_epoch(self, training: TrainingInProgress) -> None:
        if training.is_resumable or training.epochs_done == 1:  # a search decides once, when it has ended
            training.defer(lambda: self._store(training))

    def seed(self, key: str, drawn: int) -> int:
        """Return the seed of a training without ``random_state``: that of an earlier call, or ``drawn``.

        Parameters
        ----------
        key : str
            A text that calls with equal settings and data share.
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
        return int(stored["seed"])

    def _find(self, training: TrainingInProgress) -> None:
        """Go on from the latest file of this call, if there is one."""
        folder, memory, key = Path(self.path), training.memory(self), training.identity()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(folder, key)
        earlier = [name for name in memory.get("files", []) if not name.startswith(key)]
        own = sorted(path.name for path in folder.glob(f"{key}-*.npz"))
        for name in reversed(own) if self.resume else ():
            state = read_state(folder / name)
            if state is not None:
                training.restore(state)
                break
        training.memory(self).update(key=key, files=self._kept(folder, [*earlier, *own]))

    def _store(self, training: TrainingInProgress) -> None:
        epoch, last = training.row["epoch"], training.ended or training.epochs_done == training.max_iter
        if epoch % self.every and not last:
            return
        folder, memory = Path(self.path), training.memory(self)
        file = f"{memory['key']}-{epoch:08d}.npz"
        files = [*(name for name in memory["files"] if name != file), file]
        memory["files"] = files[-self.keep :]
        write_state(folder / file, training.state())
        self._kept(folder, files)

    def _kept(self, folder: Path, files: list[str]) -> list[str]:
        """Remove all files but the latest; return these."""
        for name in files[: -self.keep]:
            (folder / name).unlink(missing_ok=True)
        return files[-self.keep :]


def _remove_unfinished(folder: Path, key: str) -> None:
    for path in folder.glob(f".{key}-*"):
        if time.time() - path.stat().st_mtime > ABANDONED:
            path.unlink(missing_ok=True)
