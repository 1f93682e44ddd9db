"""The program ``onnxtrain-sklearn``: its commands, the parser, and the exit status.

``main`` imports the module of the given command alone, and runs it. An error is one sentence on stderr. Arguments are
parsed by the standard library's argparse, so that the program needs no further package.

The exit status is 0 on success and 2 if an argument is wrong, whatever the data hold: it names a file, a column or a
parameter that does not exist, or gives a parameter a value that it cannot have (``UsageError``,
``InvalidParameterError``). It is 1 if the work failed: the data cannot be used, training diverged, a check failed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import NoReturn

from .._ort import packages
from .._utils.untrusted_text import printable
from ..exceptions import InvalidParameterError, RuntimeNotFoundError
from .console import Command, Console, UsageError, sentence


@dataclass(frozen=True)
class ListedCommand:
    """A command in the table: its name, its module, and a line of help."""

    name: str
    module: str
    summary: str

    def load(self) -> Command:
        """Import the module, and return the command, which has its name in capitals."""
        module = importlib.import_module(f".{self.module}", __package__)
        found: Command = getattr(module, self.name.upper().replace("-", "_"))
        return found


COMMANDS = (
    ListedCommand("doctor", "doctor", "show what is installed and what it can do, and test it"),
    ListedCommand("inspect", "inspect", "show inputs, outputs and parameters, and what each engine differentiates"),
    ListedCommand("train", "train", "train a network on a table and write it as ONNX"),
    ListedCommand("predict", "predict", "run an ONNX file on a table and write its outputs as CSV or Parquet"),
    ListedCommand("compare", "compare", "run two ONNX files on a table and compare their predictions and scores"),
    ListedCommand("gradient", "export", "write the graph that computes the gradient of an output"),
    ListedCommand("export-training", "export", "write graphs that train a model in any onnxruntime"),
    ListedCommand("bench", "doctor", "time a training step of a network with each engine"),
    ListedCommand("demo", "demo", "train on digits, breast_cancer and diabetes beside scikit-learn's MLP"),
)
"""Every command, in the order of the help."""

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with ``arguments``, by default the process's own, and return its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = build_parser(given).parse_args(given)
    options.command_line = shlex.join(["onnxtrain-sklearn", *given])
    name = options.command_name
    console = Console(options.json, options.quiet)
    try:
        with console.warnings_in_a_line():
            outcome = options.run(options, console)
        console.show({"command": name, "succeeded": outcome.succeeded, **outcome.record}, outcome.lines)
        sys.stdout.flush()  # a pipe that was closed raises here, and not at exit
        return 0 if outcome.succeeded else FAILED
    except BrokenPipeError:  # the reader of a pipe, such as head, has enough; Python flushes stdout again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if options.traceback:
            raise
        is_usage = isinstance(error, UsageError | InvalidParameterError)
        status = WRONG_USAGE if is_usage else FAILED
        text = sentence(error)
        console.error(f"error: {text}")
        if status == WRONG_USAGE:
            console.error(f"See onnxtrain-sklearn {name} --help.")
        told = {"type": type(error).__name__, "message": text}
        console.show({"command": name, "succeeded": False, "error": told}, [])
        return status


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show arguments without control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the program, with a subparser for each command.

    Only the command that ``arguments`` name is imported and gets its arguments: importing all of them would delay
    ``--help`` and errors.
    """
    # The options before a command take no values, so that the first other word is the command.
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = _Parser(
        "onnxtrain-sklearn",
        description="Train ONNX graphs on tables, run and inspect them.",
        epilog="Exit status: 0 if all went well, 1 if the work failed, 2 if the arguments are wrong.",
    )
    parser.add_argument("--version", action="version", version=versions())
    commands = parser.add_subparsers(title="commands", required=True)
    for listed in COMMANDS:
        one = commands.add_parser(listed.name, help=listed.summary)
        if listed.name != chosen:
            continue
        command = listed.load()
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        one.description = f"{listed.summary[0].upper()}{listed.summary[1:]}."
        one.epilog = command.notes
        command.add_arguments(one)
        common = one.add_argument_group("output")
        common.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
        common.add_argument("--quiet", "-q", action="store_true", help="print no progress on stderr")
        common.add_argument("--traceback", action="store_true", help="raise errors with their traceback")
        one.set_defaults(command_name=listed.name, run=command.run)
    return parser


def versions() -> str:
    """Return the versions of the package and of onnxruntime."""
    try:
        own = metadata.version("onnxtrain-sklearn")
    except metadata.PackageNotFoundError:
        own = "(a checkout that is not installed)"
    try:
        return f"onnxtrain-sklearn {own} on onnxruntime {packages.version()}"
    except RuntimeNotFoundError:  # `doctor` says why
        return f"onnxtrain-sklearn {own} without onnxruntime"
