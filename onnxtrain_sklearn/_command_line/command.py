"""What a command is, what it returns, and the errors of its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .console import Console


class UsageError(ValueError):
    """The arguments cannot be meant so: a file, a column or a setting that is not there. The exit status is 2."""


@dataclass(frozen=True)
class Outcome:
    """What a command found or did.

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
