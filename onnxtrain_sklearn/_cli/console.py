"""Commands and the parts that they share: outcomes, output, ``--set NAME=VALUE``, files to write, progress.

A module of this room defines a ``Command``: a function that adds its arguments, and one that runs it and returns an
``Outcome``. ``program`` prints the outcome by the ``Console``, as text or as JSON: results on stdout, progress,
warnings and errors on stderr. A wrong argument raises ``UsageError``, before the work begins if possible, so that no
training is lost to a misspelled name or a folder without permission.
"""

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
from inspect import signature
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
import onnx

from .._recipes.base import BaseRecipe
from .._training.history import Epoch
from .._utils.typing import Estimator
from .._utils.untrusted_text import json_escaped, printable
from ..callbacks.monitoring import TimeLimit
from ..exceptions import nearest
from ..losses import LOSSES
from ..optimizers import OPTIMIZERS
from ..runtime import Runtime
from ..schedules import SCHEDULES

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
            # Deprecations are for the authors of the libraries; a user of the command line cannot act on them.
            if text not in shown and not issubclass(category, DeprecationWarning | PendingDeprecationWarning):
                shown.add(text)
                self.error(f"warning: {text}")

        with warnings.catch_warnings():
            if not sys.warnoptions:  # python -W takes precedence
                warnings.simplefilter("always")
            warnings.showwarning = show
            yield


@contextmanager
def warnings_kept() -> Iterator[list[str]]:
    """Yield a list to which each different warning is added besides being shown."""
    told: list[str] = []
    show = warnings.showwarning

    def keep(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        is_of_library = issubclass(category, DeprecationWarning | PendingDeprecationWarning)
        if not is_of_library and sentence(message) not in told:
            told.append(sentence(message))
        show(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.showwarning = keep
        yield told


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
    """Wrong arguments: they name a file, column or setting that does not exist, or they exclude each other."""


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


# Parameters of estimators, --set NAME=VALUE.


def parsed_settings(given: Sequence[str], option: str = "--set", example: str = "max_iter=50") -> dict[str, object]:
    """Return the values of ``NAME=VALUE``: literals of Python, else text."""
    values: dict[str, object] = {}
    for one in given:
        name, sign, text = (part.strip() for part in one.partition("="))
        if not sign or not name:
            raise UsageError(f"{option} takes NAME=VALUE, such as {example}, got {one.partition('=')[0]!r}.")
        # Literals alone: an expression of Python could run anything. A name without quotes, such as sgd, is text.
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = {"true": True, "false": False, "none": None}.get(text.lower(), text)
    return values


_COMPONENTS: dict[str, Mapping[str, type]] = {
    "optimizer": OPTIMIZERS,
    "loss": LOSSES,
    "learning_rate": SCHEDULES,
    "runtime": {"None": Runtime},
}
"""The components of estimators by parameter and by name; ``runtime`` has no names, and None stands for the defaults."""


def apply_settings(estimator: Estimator, settings: Mapping[str, object]) -> None:
    """Set parameters of an estimator, in place; a name that it lacks raises UsageError."""
    known = estimator.get_params()
    for name in settings:
        if name not in known and name.partition("__")[0] not in known:
            hint = _place_of(name, known) or nearest(name, known)
            raise UsageError(f"--set {name!r} is no parameter of {type(estimator).__name__}.{hint}")
    try:
        estimator.set_params(**settings)
    except (ValueError, AttributeError) as error:
        raise UsageError(f"--set: {error}") from error


def _place_of(name: str, known: Mapping[str, object]) -> str | None:
    """Return the hint that a parameter is one of a component, such as ``max_grad_norm`` of the optimizer."""
    if inner := next((full for full in known if full.endswith(f"__{name}")), None):
        return f" Did you mean {inner!r}?"
    for role, components in _COMPONENTS.items():
        owners = [key for key, kind in components.items() if name in signature(kind).parameters]
        if role not in known or not owners:
            continue
        if str(known[role]) in owners:  # the present component has it
            return f" It is a parameter of {role}: --set {role}__{name}=VALUE."
        listed = " or ".join(map(repr, owners))
        return f" It is a parameter of {role} {listed}: --set {role}=NAME {role}__{name}=VALUE."
    return None


# Files to write.


def require_writable(files: Sequence[Path | None], tables: Sequence[Path | None]) -> None:
    """Raise UsageError if one of the files cannot be written, or is one of the tables that are read."""
    for path in files:
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{str(path)!r} is a folder: name a file to write.")
        folder = next(one for one in path.absolute().parents if one.exists())  # missing folders are made later
        if not folder.is_dir():
            raise UsageError(f"{str(path)!r} cannot be written: {str(folder)!r} is no folder.")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"{str(path)!r} cannot be written: there is no permission to write there.")
        for table in tables:
            if table is not None and path.exists() and table.exists() and path.samefile(table):
                raise UsageError(f"{str(path)!r} is a table that is read: name another file to write.")


def require_new_folder(path: Path) -> None:
    """Raise UsageError if files cannot be written into a folder, or it holds some."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file: name a folder to write.")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"The folder {str(path)!r} is not empty: name a new one.")
    require_writable([path / "part-00000.parquet"], [])


def write_model(model: onnx.ModelProto, path: Path) -> int:
    """Write a model, and return the size of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(model.SerializeToString())


# Progress of a training.


@contextmanager
def epochs_shown(
    estimator: Estimator, console: Console, n_rows: int, earlier: int = 0, *, limit: float | None = None
) -> Iterator[None]:
    """Print epochs while ``estimator`` is fitted to so many rows, counted from ``earlier`` ones that it goes on from.

    ``limit`` is the most seconds of the fit. The callbacks are removed afterwards: a stored estimator has only its own.
    """
    own = estimator.callbacks
    limits = list[Any]()
    networks = 1
    planned = estimator
    if isinstance(estimator, BaseRecipe):
        planned = estimator._for_rows(n_rows)
        networks = int(planned.n_ensembles)
        limit = estimator.time_limit
    elif limit is not None:
        limits = [TimeLimit(limit)]
    total = None if isinstance(planned.max_iter, str) else int(planned.max_iter)
    progress = EpochProgress(console, total, earlier, networks, limit)
    estimator.callbacks = [*(own or ()), progress, *limits]
    try:
        yield
    finally:
        estimator.callbacks = own


@dataclass
class EpochProgress:
    """Prints epochs on stderr: at most one a second, and in long trainings one for each tenth of the time so far.

    Attributes
    ----------
    console : Console
    planned : int or None
        The most epochs of a network.
    earlier : int
        Epochs of earlier trainings, which the numbers of epochs include.
    networks : int
        Networks that are trained one after the other.
    limit : float or None
        The most seconds of the training.
    """

    console: Console
    planned: int | None
    earlier: int = 0
    networks: int = 1
    limit: float | None = None
    network: int = 1
    last: int = 0
    begun: float = field(default_factory=time.monotonic)
    printed: float = field(default=-np.inf)

    def __call__(self, epoch: Epoch) -> None:
        now = time.monotonic()
        if epoch.number <= self.last:
            self.network += 1
        self.last = epoch.number
        total = None if self.planned is None else self.earlier + self.planned
        is_last = total is not None and epoch.number >= total and self.network >= self.networks
        if not is_last and now - self.printed < max(1.0, (now - self.begun) / 10):
            return
        self.printed = now
        score = "" if epoch.validation_score is None else f", validation score {epoch.validation_score:.4f}"
        most = "" if total is None else f" of at most {total}"
        of_network = f"network {self.network} of {self.networks}, " if self.networks > 1 else ""
        left = "" if is_last or (seconds := self.seconds_left(now)) is None else f", {_duration(seconds)} left at most"
        self.console.progress(f"{of_network}epoch {epoch.number}{most}: loss {epoch.loss:.5g}{score}{left}")

    def seconds_left(self, now: float) -> float | None:
        """Return the time that is left if all epochs take as long as the ones so far; None if it is not known."""
        elapsed = now - self.begun
        bounds = [] if self.limit is None else [max(0.0, self.limit - elapsed)]
        if self.planned is not None:
            done = (self.network - 1) * self.planned + self.last - self.earlier
            if 0 < done <= self.planned * self.networks:
                bounds.append(elapsed / done * (self.planned * self.networks - done))
        return min(bounds, default=None)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
