"""The program: the table of commands, the parser made of it, and the exit status.

The exit status is 0 if all went well, 1 if the work failed, and 2 if the arguments are wrong. An error is one sentence
on stderr. argparse of the standard library parses the arguments: the program is there wherever the package is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from .._runtime import distributions
from .bench import BENCH
from .command import Command, UsageError
from .console import Console, sentence
from .demo import DEMO
from .doctor import DOCTOR
from .export_training import EXPORT_TRAINING
from .gradient import GRADIENT
from .inspection import INSPECT
from .predict import PREDICT
from .train import TRAIN

COMMANDS: tuple[Command, ...] = (DOCTOR, INSPECT, TRAIN, PREDICT, GRADIENT, EXPORT_TRAINING, BENCH, DEMO)
"""Every command, in the order of the help."""

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """RunCommand the command line with ``arguments``, by default the process's own, and return its exit status."""
    options = build_parser().parse_args(arguments)
    command, console = options.command, Console(options.json, options.quiet)
    try:
        with console.warnings_in_a_line():
            outcome = command.run(options, console)
        console.show({"command": command.name, "succeeded": outcome.succeeded, **outcome.record}, outcome.text)
        sys.stdout.flush()
        return 0 if outcome.succeeded else FAILED
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if options.traceback:
            raise
        return _report(error, command, console)


def _report(error: Exception, command: Command, console: Console) -> int:
    """Print an error in a sentence, and return the exit status."""
    status, text = WRONG_USAGE if isinstance(error, UsageError) else FAILED, sentence(error)
    print(f"error: {text}", file=sys.stderr)
    if status == WRONG_USAGE:
        print(f"See onnxtrain-sklearn {command.name} --help.", file=sys.stderr)
    told = {"type": type(error).__name__, "message": text}
    console.show({"command": command.name, "succeeded": False, "error": told}, "")
    return status


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the program, with a subparser for each command."""
    parser = argparse.ArgumentParser(
        "onnxtrain-sklearn",
        description="Train ONNX graphs on tables, run and inspect them.",
        epilog="Exit status: 0 if all went well, 1 if the work failed, 2 if the arguments are wrong.",
    )
    parser.add_argument("--version", action="version", version=versions())
    commands = parser.add_subparsers(title="commands", required=True)
    for command in COMMANDS:
        _add_command(commands, command)
    return parser


def _add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], command: Command) -> None:
    form = argparse.RawDescriptionHelpFormatter
    described = f"{command.summary[0].upper()}{command.summary[1:]}."
    one = commands.add_parser(
        command.name, help=command.summary, description=described, epilog=command.notes, formatter_class=form
    )
    command.add_arguments(one)
    common = one.add_argument_group("output")
    common.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    common.add_argument("--quiet", "-q", action="store_true", help="print no progress on stderr")
    common.add_argument("--traceback", action="store_true", help="raise errors with their traceback")
    one.set_defaults(command=command)


def versions() -> str:
    """Return the versions of the package and of onnxruntime."""
    try:
        own = metadata.version("onnxtrain-sklearn")
    except metadata.PackageNotFoundError:
        own = "(a checkout that is not installed)"
    return f"onnxtrain-sklearn {own} on onnxruntime {distributions.version()}"
