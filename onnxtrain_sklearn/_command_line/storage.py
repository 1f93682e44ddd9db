"""``train --save``: the trained estimator as a joblib file, for Python, ``export-training`` and a later ``train``."""

from __future__ import annotations

from pathlib import Path

from .command import UsageError
from .sources import PICKLES
from .trained import Trained


def require_joblib_name(path: Path | None) -> None:
    """Raise UsageError where the name of the file has not the ending by which it is read again."""
    if path is not None and path.suffix not in PICKLES:
        raise UsageError(f"--save writes {', '.join(PICKLES[:-1])} or {PICKLES[-1]}, got {path.name!r}.")


def save_estimator(trained: Trained, path: Path) -> int:
    """Write the whole estimator, its preprocessing included, and return the size of the file."""
    import joblib

    path.parent.mkdir(parents=True, exist_ok=True)
    joblib.dump(trained.predictor, path)
    return path.stat().st_size
