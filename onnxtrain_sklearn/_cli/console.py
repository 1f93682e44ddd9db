"""Commands, their outcomes and their output: results on stdout, progress, warnings and errors on stderr.

A module of this room defines a ``Command``: a function that adds its arguments, and one that runs it and returns an
``Outcome``. ``program`` prints the outcome by the ``Console``, as text or as JSON. Arguments that cannot be meant raise
``UsageError``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeAlias

import numpy as np

from .._training.history import Epoch
from .._utils.typing import Estimator
from .._utils.untrusted_text import json_escaped, printable

Record: TypeAlias = "Mapping[str, Any]"
"""The findings of a command, as JSON has them."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command.

    Attributes
    ----------
    record : mapping of str
        Printed with ``--json``: strings, numbers, lists and mappings of them; NumPy's numbers and arrays too.
    lines : sequence of str
        Printed otherwise.
    succeeded : bool
        False: the exit status is 1.
    """

    record: Record
    lines: Sequence[str]
    succeeded: bool = True


@dataclass(frozen=True)
class Console:
    """Output of the commands.

    Attributes
    ----------
    as_json : bool
        Whether results are JSON; stdout then holds one object and nothing else.
    quiet : bool
        Whether to print no progress. Warnings and errors are printed all the same.
    """

    as_json: bool = False
    quiet: bool = False

    def progress(self, text: str) -> None:
        """Print a line of progress on stderr."""
        if not self.quiet:
            print(printable(text), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print text that is part of the result: on stdout, or on stderr where stdout is for JSON."""
        print(printable(text), file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def error(self, text: str) -> None:
        """Print a line about an error on stderr, whatever the options are."""
        print(printable(text), file=sys.stderr, flush=True)

    def show(self, record: Mapping[str, object], lines: Sequence[str]) -> None:
        """Print a result: a record as JSON, or lines of text.

        Names in graphs and tables may hold control characters or line breaks: each line is printed as one line, with
        them escaped.
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
            if not sys.warnoptions:  # python -W takes precedence
                warnings.simplefilter("always")
            warnings.showwarning = show
            yield


RunCommand: TypeAlias = Callable[[argparse.Namespace, Console], Outcome]


@dataclass(frozen=True)
class Command:
    """A command: the function that adds its arguments, and the one that runs it.

    ``notes`` are shown below the arguments in its help.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: RunCommand
    notes: str = ""


class UsageError(ValueError):
    """Wrong arguments: they name a file, a column or a setting that does not exist, or exclude each other."""


def sentence(error: object) -> str:
    """Return the message of an error or a warning on one line."""
    text = " ".join(str(error).split())
    known = (OSError, ValueError, TypeError, ArithmeticError, RuntimeError, ImportError, Warning)
    if isinstance(error, BaseException) and not (text and isinstance(error, known)):
        return f"{type(error).__name__}{': ' if text else ''}{text}"
    return text


def as_json_value(value: object) -> object:
    """Return ``value`` in the types of JSON; infinite numbers and NaN, which it lacks, become null."""
    if isinstance(value, np.ndarray | np.generic):
        return as_json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): as_json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


@contextmanager
def epochs_shown(estimator: Estimator, console: Console, earlier: int = 0) -> Iterator[None]:
    """Print epochs while ``estimator`` is fitted, counted from the ``earlier`` ones that it goes on from.

    The callback is removed afterwards, so that an estimator that is then stored has only its own.
    """
    own = estimator.callbacks
    estimator.callbacks = [*(own or ()), EpochProgress(console, earlier + int(estimator.max_iter))]
    try:
        yield
    finally:
        estimator.callbacks = own


@dataclass
class EpochProgress:
    """Prints epochs on stderr: at most one a second, and in long trainings one for each tenth of the time so far."""

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
