"""Write files and folders that appear under their names only when they are complete.

:func:`whole_file`, :func:`whole_folder` and :func:`whole_files` give a temporary place to write to, and move it to the
name at the end of a ``with`` block. So readers never see half a file, an error leaves the earlier one, and threads or
machines that share a folder do not write into each other's files.
"""

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
    """Open a file that replaces ``path`` at the end of the block; an error leaves the earlier file.

    It has a unique name until then: threads and machines that share a folder do not write into each other's files.
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
    if os.name == "posix":  # write the new name to the disk, too
        number = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that replaces ``path`` at the end of the block; an error leaves the earlier folder.

    Unfinished folders that processes left behind when they ended are removed.
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
    """Yield a new folder whose files move into ``folder`` at the end of the block.

    An error in the block changes nothing. The files move one by one: an error meanwhile, such as of a file in use on
    Windows, leaves some old and some new.

    ``folder`` and its parents are made if they are missing.
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
    """Remove unfinished files and folders whose names begin with ``start`` and whose processes have ended."""
    for path in folder.glob(f".{glob.escape(start)}*{ENDING}"):
        with suppress(FileNotFoundError):  # another thread was faster
            is_folder = path.is_dir() and not path.is_symlink()
            found = [path, *path.rglob("*")] if is_folder else [path]
            if time.time() - max(one.lstat().st_mtime for one in found) <= ABANDONED:
                continue
            if is_folder:
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _unfinished(target: Path) -> Path:
    """Return a name beside ``target`` that nobody else uses."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}{ENDING}")
