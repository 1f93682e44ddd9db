"""Files and folders that appear under their name when they are complete, whoever writes them at the same time."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
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
    unfinished = _unfinished(target)
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


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a new folder that takes the place of ``path`` at the end of the block; an error leaves what was there.

    What processes that ended left of earlier ones is removed.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    new, old = _unfinished(path), _unfinished(path)
    new.mkdir()
    try:
        yield new
        if path.exists():
            path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    remove_unfinished(path.parent, f"{path.name}.")


@contextmanager
def whole_files(folder: Path) -> Iterator[Path]:
    """Give a new folder whose files move into ``folder`` at the end of the block; an error leaves all as it was.

    ``folder`` and those around it are made if they are missing.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = _unfinished(folder / "files")
        new.mkdir()
        try:
            yield new
            targets = {file: Path(os.path.realpath(folder / file.name)) for file in sorted(new.iterdir())}
            for target in targets.values():
                if target.is_dir():
                    raise IsADirectoryError(f"{target} is a folder, so no file of this name is written.")
            for file, target in targets.items():
                os.replace(file, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except BaseException:
        for one in made:
            with suppress(OSError):  # another process has put something there
                one.rmdir()
        raise
    remove_unfinished(folder, "files.")


def remove_unfinished(folder: Path, start: str) -> None:
    """Remove what processes that ended left of files and folders whose names begin so."""
    for path in folder.glob(f".{glob.escape(start)}*{ENDING}"):
        with suppress(FileNotFoundError):  # another thread was faster
            if time.time() - _last_change(path) <= ABANDONED:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _unfinished(target: Path) -> Path:
    """Return a name beside ``target`` that nobody else uses."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}{ENDING}")


def _last_change(path: Path) -> float:
    """Return when a file, or something in a folder, was last written."""
    found = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
    return max(one.lstat().st_mtime for one in found)


def _sync_folder(folder: Path) -> None:
    """Let the new name of a file last, too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
