"""The form of a pass over a model that was read, and the record of the passes that found something to restore.

A pass edits an onnx-ir model in place and returns True if it changed it, like a pass of onnx-ir. The tuples in
``load.py`` list all of them in the order in which they run. :func:`run_importers` records the names of those that
changed a model, and ``describe()`` of an estimator prints them: the user sees what differs from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import onnx_ir as ir

_RESTORED = "onnxtrain/restored"
"""Key in the ``meta`` of a model. Clones do not inherit ``meta``: a pass that returns a clone has to copy it."""


class Importer(NamedTuple):
    """A pass over a model: its name, as ``describe()`` prints it, and its function: True if it changed the model."""

    name: str
    run: Callable[[ir.Model], bool]


def run_importers(model: ir.Model, importers: Sequence[Importer]) -> None:
    """Run passes in order, in place, and record those that changed the model."""
    for importer in importers:
        if importer.run(model):
            record(model, importer.name)


def record(model: ir.Model, *names: str) -> None:
    """Record the names of passes that changed a model."""
    model.meta[_RESTORED] = tuple(dict.fromkeys((*restored(model), *names)))


def restored(model: ir.Model) -> tuple[str, ...]:
    """Return the names of the passes that changed a model, in their order."""
    found: tuple[str, ...] = model.meta.get(_RESTORED, ())
    return found
