"""Files that appear under their name when they are complete, whoever else writes them at the same time."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

ENDING = ".unfinished"
ABANDONED = 60.0
"""Seconds without a write after which an unfinished file is taken for one of a process that has ended."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` at the end of the block; an error leaves what was there.

    Its name is its own: threads and machines that share a folder do not write into each other's.
    """
    target = Path(os.path.realpath(path))  # a link goes on to lead to the file
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}{ENDING}")
    try:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        _sync_folder(target.parent)


def remove_unfinished(folder: Path, start: str) -> None:
    """Remove what processes that ended left of files whose names begin so."""
    for path in folder.glob(f".{start}*{ENDING}"):
        with suppress(FileNotFoundError):  # another thread was faster
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()


def _sync_folder(folder: Path) -> None:
    """Let the new name of a file last, too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
