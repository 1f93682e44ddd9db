"""The rows to fit, with their targets and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._data.targets import Targets
from .._runtime.devices import Device
from .preprocessing import Preprocessing
from .raw_table import RawTable


@dataclass(frozen=True, eq=False)
class TableExamples:
    """The rows to fit, with their targets and weights."""

    table: RawTable
    categorical: tuple[bool, ...]
    targets: Targets
    weights: np.ndarray | None

    @property
    def used(self) -> np.ndarray:
        """The rows of positive weight."""
        return np.arange(len(self.table)) if self.weights is None else np.flatnonzero(self.weights)

    @property
    def classes(self) -> np.ndarray | None:
        """The labels of a classifier."""
        return self.targets.classes if isinstance(self.targets.classes, np.ndarray) else None

    @property
    def labels(self) -> np.ndarray | None:
        """The class of each of these rows."""
        return None if self.targets.stratify is None else self.targets.stratify[self.used]

    def prepared(
        self, preprocessing: Preprocessing, rows: np.ndarray, device: Device
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return some of the rows as a network takes them: matrix, targets, weights."""
        matrix = preprocessing.transform(self.table.rows(rows), device)
        values = self.targets.values[rows]
        y = values if self.classes is None else self.classes[values]
        y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
        return matrix, y, None if self.weights is None else self.weights[rows]
