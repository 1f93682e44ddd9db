"""Commands and their results, their output, and the options that they share."""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np

from .._training.history import Epoch
from .._utils.typing import Estimator
from .._utils.untrusted_text import json_escaped, printable
from ..exceptions import nearest
from ..losses import LOSSES
from ..optimizers import OPTIMIZERS
from ..schedules import SCHEDULES

# Settings of estimators from the command line: ``--set max_iter=50``.


_COMPONENTS: dict[str, Mapping[str, type]] = {"optimizer": OPTIMIZERS, "loss": LOSSES, "learning_rate": SCHEDULES}


def parsed_settings(given: Sequence[str]) -> dict[str, object]:
    """Return the values of ``NAME=VALUE``: literals of Python, else text."""
    pairs = [text.partition("=") for text in given]
    if wrong := [name for name, sign, _ in pairs if not sign or not name.strip()]:
        raise UsageError(f"--set takes NAME=VALUE, such as max_iter=50, got {wrong[0]!r}.")
    return {name.strip(): _setting_value(text.strip()) for name, _, text in pairs}


def _setting_value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def apply_settings(estimator: Estimator, settings: dict[str, object]) -> None:
    """Set parameters of an estimator, in place; a name that it lacks raises UsageError."""
    settings = _with_objects(estimator, settings)
    known = estimator.get_params()
    for name in settings:
        if name not in known and name.partition("__")[0] not in known:
            raise UsageError(f"--set {name!r} is no parameter of {type(estimator).__name__}.{nearest(name, known)}")
    try:
        estimator.set_params(**settings)
    except (ValueError, AttributeError) as error:
        raise UsageError(f"--set: {error}") from error


def _with_objects(estimator: Estimator, settings: dict[str, object]) -> dict[str, object]:
    """Return the settings with objects for names whose own parameters are set, such as ``optimizer__momentum``."""
    result = dict(settings)
    for name, components in _COMPONENTS.items():
        chosen = settings.get(name, getattr(estimator, name, None))
        if any(key.startswith(f"{name}__") for key in settings) and isinstance(chosen, str) and chosen in components:
            result[name] = components[chosen]()
    return result


# Files that a command is to write: what keeps it from that is told before the work begins.


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


# Progress of a training on stderr.


@dataclass
class EpochProgress:
    """Prints epochs on stderr, at most one a second, later one for each tenth of the time so far."""

    console: Console
    total: int
    begun: float = field(default_factory=time.monotonic)
    printed: float = field(default=-np.inf)

    def __call__(self, epoch: Epoch) -> None:
        now = time.monotonic()
        if epoch.number < self.total and now - self.printed < max(1.0, (now - self.begun) / 10):
            return
        self.printed = now
        score = "" if epoch.validation_score is None else f", validation score {epoch.validation_score:.4f}"
        self.console.progress(f"epoch {epoch.number} of at most {self.total}: loss {epoch.loss:.5g}{score}")


@contextmanager
def epochs_shown(estimator: Estimator, console: Console, earlier: int = 0) -> Iterator[None]:
    """Print epochs while ``estimator`` is fitted; ``earlier`` ones are those that it goes on from.

    The callback is taken away afterwards: a stored estimator has its own alone.
    """
    own = estimator.callbacks
    estimator.callbacks = [*(own or ()), EpochProgress(console, earlier + int(estimator.max_iter))]
    try:
        yield
    finally:
        estimator.callbacks = own


# Output of commands: results on stdout, as text or as JSON; progress, warnings and errors on stderr.


@dataclass(frozen=True)
class Console:
    """Output of the commands.

    Attributes
    ----------
    as_json : bool
        Whether results are JSON; stdout then holds one object and nothing else.
    quiet : bool
        Whether progress is left out. Warnings and errors are not.
    """

    as_json: bool = False
    quiet: bool = False

    def progress(self, text: str) -> None:
        """Print a line of progress on stderr."""
        if not self.quiet:
            print(printable(text), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print text that is a part of the result: on stdout, beside JSON on stderr."""
        print(printable(text), file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def error(self, text: str) -> None:
        """Print a line about an error on stderr, whatever the options are."""
        print(printable(text), file=sys.stderr, flush=True)

    def show(self, record: Mapping[str, object], lines: Sequence[str]) -> None:
        """Print a result: a record as JSON, or lines of text.

        What is in a line comes from graphs and tables too, and stays in its line.
        """
        if self.as_json:
            print(json_escaped(json.dumps(as_json_value(record), indent=2, allow_nan=False, ensure_ascii=False)))
        elif lines:
            print("\n".join(map(printable, lines)))

    @contextmanager
    def warnings_in_a_line(self) -> Iterator[None]:
        """Print each different warning once, as a line on stderr without the place in the code."""
        shown: set[str] = set()

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            text = sentence(message)
            if text not in shown and not issubclass(category, DeprecationWarning | PendingDeprecationWarning):
                shown.add(text)
                self.error(f"warning: {text}")

        with warnings.catch_warnings():
            if not sys.warnoptions:  # python -W decides otherwise
                warnings.simplefilter("always")
            warnings.showwarning = show
            yield


def sentence(error: object) -> str:
    """Return the message of an error or a warning on one line."""
    text = " ".join(str(error).split())
    known = (OSError, ValueError, TypeError, ArithmeticError, RuntimeError, ImportError, Warning)
    if isinstance(error, BaseException) and not (text and isinstance(error, known)):
        return f"{type(error).__name__}{': ' if text else ''}{text}"
    return text


def as_json_value(value: object) -> object:
    """Return ``value`` as JSON has it: numbers that are not finite, and NaN, are null."""
    if isinstance(value, np.ndarray | np.generic):
        return as_json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): as_json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


# Commands, their outcomes, and the errors of their arguments.


class UsageError(ValueError):
    """The arguments cannot be meant so: a file, a column or a setting that is not there. The exit status is 2."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command.

    Attributes
    ----------
    record : mapping of str
        What ``--json`` prints: strings, numbers, lists and mappings of them; NumPy's numbers and arrays too.
    lines : sequence of str
        What is printed otherwise.
    succeeded : bool
        False: the exit status is 1.
    """

    record: Record
    lines: Sequence[str]
    succeeded: bool = True


Record: TypeAlias = "Mapping[str, Any]"
"""What a command found, as JSON has it."""

RunCommand: TypeAlias = Callable[[argparse.Namespace, Console], Outcome]


@dataclass(frozen=True)
class Command:
    """A command: the function that adds its arguments, and the one that runs it.

    ``notes`` are shown below the arguments in its help.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: RunCommand
    notes: str = ""
