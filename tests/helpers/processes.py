"""Programs in new processes, forked from one that has only imported the package: importing takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else None)
CONTEXT.set_forkserver_preload(["onnxtrain_sklearn", "onnxtrain_sklearn.classic.training_session", "joblib"])


def run_in_new_process(program: str, *arguments: str, seconds: int = 300) -> None:
    """Run ``program`` as the main module of a process that has no session yet; raise AssertionError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        process = CONTEXT.Process(target=_execute, args=(program, arguments, errors))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode == 0, (process.exitcode, errors.read_text(encoding="utf-8"))


def _execute(program: str, arguments: tuple[str, ...], errors: Path) -> None:
    with open(errors, "w", encoding="utf-8") as stream:
        os.dup2(stream.fileno(), 2)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
