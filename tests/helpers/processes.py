"""Programs in new processes, forked from one that has only imported the package: importing takes seconds."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else None)
CONTEXT.set_forkserver_preload(["onnxtrain_sklearn", "onnxtrain_sklearn.classic.training_session", "joblib"])


def run_in_new_process(program: str, *arguments: str, seconds: int = 300) -> None:
    """Run ``program`` as the main module of a process that has no session yet; raise AssertionError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        errors.touch()
        process = CONTEXT.Process(
            target=exec, args=(HEAD.format(errors=str(errors), arguments=arguments) + program, {})
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode == 0, (process.exitcode, errors.read_text(encoding="utf-8"))


HEAD = """
import os, sys
os.dup2(os.open({errors!r}, os.O_WRONLY), 2)
sys.argv, __name__ = ["-c", *{arguments!r}], "__main__"
"""
"""What runs before a program. No function of this module: the child may find other modules of this name."""
