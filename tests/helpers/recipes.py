"""Networks of the estimators for raw tables by themselves: untrained, trained alone, and assembled to one graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import clone

from onnxtrain_sklearn._data.held_out import RowsToSplit
from onnxtrain_sklearn._export.folder import training_folder, write_folder
from onnxtrain_sklearn._recipes.ensemble import (
    Member,
    assembled,
    exported_networks,
    untrained_networks,
    validation_folds,
)
from onnxtrain_sklearn._recipes.raw_table import read_table
from tests.helpers.sessions import evaluate


def untrained(recipe: Any, X: Any, y: Any) -> list[Any]:
    """Return the networks that a fit would train, each with its matrix and values."""
    return list(untrained_networks(clone(recipe), RowsToSplit(X, y)))


def export_network(network: Any, folder: Path) -> None:
    """Write the training graphs of one of these networks, with its preprocessing in front."""
    write_folder(training_folder(exported_networks("", [network], "any"), "both"), folder)


def folds(rows: np.ndarray, labels: Any, count: int, fraction: float | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows to train and to validate on of so many networks, as random_state=0 draws them."""
    return list(validation_folds(rows, labels, count, fraction, np.random.RandomState(0)))


def held_out(rows: np.ndarray, labels: Any = None) -> np.ndarray:
    """Return the rows that a recipe of one network validates on by default."""
    ((_, held),) = folds(rows, labels, 1, 0.2)
    return held


def member(recipe: Any, X: Any, y: Any, seed: int) -> Member:
    """Return a network trained on all rows, with its preprocessing."""
    fitted = clone(recipe).set_params(random_state=seed, validation_split=None).fit(X, y)
    matrix = fitted._inputs.transform(read_table(fitted, X, reset=False), fitted._device)
    network = fitted._for_rows(len(X))._network(fitted._inputs, len(X)).set_params(random_state=seed).fit(matrix, y)
    return Member(fitted._inputs, network.to_onnx().SerializeToString())


def outputs_of(members: Sequence[Member], task: Any, **feeds: np.ndarray) -> list[np.ndarray]:
    """Return labels of three classes, and probabilities, by the graph of some networks."""
    return evaluate(ir.to_proto(assembled(members, task, np.arange(3))[0]), **feeds)
