"""``export-training``: write a stored estimator as a folder of graphs that any onnxruntime trains."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .._estimators.base import GraphEstimator
from .._export.graphs import TRAINING_FORMS
from .._export.source import TARGETS
from .._recipes.base import BaseRecipe
from .console import Command, Console, Outcome, UsageError
from .model_option import BUILDERS, SECURITY, model_named


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("estimator", metavar="ESTIMATOR", help="joblib, pickle or skops file with a fitted OrtGradient estimator")
    add("folder", type=Path, metavar="FOLDER", help="folder to write; an earlier export is replaced")
    add("--form", choices=list(TRAINING_FORMS), default="both", help="the training graphs to write (default: both)")
    add("--target", choices=list(TARGETS), default="any", help='"web": also for WebGPU in browsers (default: any)')
    add("--batch-size", type=int, metavar="ROWS", help="rows of a minibatch (default: those of the estimator)")
    add("--trust", nargs="+", default=[], metavar="TYPE", help="types in a skops file to load")


def _export(options: argparse.Namespace, console: Console) -> Outcome:
    found: Any = model_named(options.estimator, options.trust).model
    estimator = found.steps[-1][1] if hasattr(found, "steps") else found
    if not isinstance(estimator, GraphEstimator):
        raise UsageError(_why_not_exported(options.estimator, estimator))
    if estimator is not found:
        console.progress(f"exported: the last step, {type(estimator).__name__}; it takes what the steps before it give")
    estimator.export_training(options.folder, batch_size=options.batch_size, form=options.form, target=options.target)
    sizes = {file.name: file.stat().st_size for file in sorted(options.folder.iterdir())}
    lines = [f"{options.folder / name}: {size} bytes" for name, size in sizes.items()]
    return Outcome({"folder": str(options.folder), "files": sizes}, lines)


def _why_not_exported(name: str, found: object) -> str:
    """Return the reason why the named model has no training graphs, and the remedy."""
    if isinstance(found, BaseRecipe):
        return (
            f"{name!r} holds a {type(found).__name__}, whose training graphs begin with the network before "
            "training and need the rows that its preprocessing is fitted to: call "
            "export_training(folder, X, y) in Python."
        )
    held = "is no stored estimator" if isinstance(found, str) or name in BUILDERS else f"holds a {type(found).__name__}"
    return (
        f"{name!r} {held}, and training graphs are made of an OrtGradientClassifier, OrtGradientRegressor or "
        "OrtGradientMultiOutput. Fit one on this model, and name its joblib, pickle or skops file."
    )


EXPORT_TRAINING = Command(_export_arguments, _export, SECURITY)
