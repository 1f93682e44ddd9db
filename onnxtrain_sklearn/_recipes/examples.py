"""The rows to fit, with their targets and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .._data.targets import Targets
from .._estimators.drawn_seed import Seeded, bytes_of_targets, generator_of
from .._runtime.devices import Device
from .._support.digest import digest
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

    def generator(self, estimator: Seeded) -> np.random.RandomState:
        """Return the random numbers of a training on these rows."""
        return generator_of(estimator, self.parts)

    def parts(self) -> Iterator[bytes]:
        """Yield a digest of each column, and of targets and weights."""
        for name, column in zip(self.table.names, self.table.columns, strict=True):
            yield name.encode()
            yield digest(column.tolist() if column.dtype == object else column)
        yield digest(list(self.categorical)) + bytes_of_targets(self.targets, self.weights)

    def prepared(
        self, preprocessing: Preprocessing, rows: np.ndarray, device: Device
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return some of the rows as a network takes them: matrix, targets, weights."""
        matrix = preprocessing.transform(self.table.rows(rows), device)
        return (
            matrix,
            self._given_targets(self.targets.values[rows]),
            None if self.weights is None else self.weights[rows],
        )

    def _given_targets(self, values: np.ndarray) -> np.ndarray:
        """Return encoded targets as labels or numbers."""
        if self.targets.task == "multilabel":
            return values.astype(np.int64)
        y = values if self.classes is None else self.classes[values]
        return y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
