"""What commands print: results on stdout, as text or as JSON; progress, warnings and errors on stderr."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

import numpy as np

from .._support.printable import json_escaped, printable


@dataclass(frozen=True)
class Console:
    """Where the output goes.

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
