"""Files that a command is to write: what keeps it from that is told before the work begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .command import UsageError


def require_writable(files: Sequence[Path | None], tables: Sequence[Path | None]) -> None:
    """Raise UsageError if one of the files cannot be written, or is one of the tables that are read."""
    for path in files:
        if path is not None:
            _require_place(path)
            _require_other(path, tables)


def _require_place(path: Path) -> None:
    """Raise if ``path`` is a folder, or lies where no file can be made."""
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a folder: name a file to write.")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir():
        raise UsageError(f"{str(path)!r} cannot be written: {str(folder)!r} is no folder.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{str(path)!r} cannot be written: there is no permission to write there.")


def _require_other(path: Path, tables: Sequence[Path | None]) -> None:
    for table in tables:
        if table is not None and path.exists() and table.exists() and path.samefile(table):
            raise UsageError(f"{str(path)!r} is a table that is read: name another file to write.")
