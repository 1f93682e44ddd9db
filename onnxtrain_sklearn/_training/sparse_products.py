"""The part of a pass that is computed outside its session: products of sparse rows with the first matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._data import sparse_rows
from .._data.batches import BatchBuffers
from .._data.sparse_rows import SparseRows
from .._graph.first_products import FirstProduct
from .._graph.reweighted import initial_value
from .._graph.trainable import TrainableModel
from .parameters import FlatParameters
from .row_gradients import RowGradients


@dataclass(frozen=True, eq=False)
class HostProduct:
    """A product of sparse rows with a matrix, and the arrays that the session reads and writes in its place.

    ``gradient`` is the array for the gradient of the matrix; None if it is not trained. ``table`` is the same gradient
    where only the columns of the data that occur are updated.
    """

    first: FirstProduct
    rows: SparseRows
    matrix: np.ndarray
    product: np.ndarray
    slope: np.ndarray
    gradient: np.ndarray | None
    table: RowGradients | None = None

    def forward(self) -> None:
        """Compute the product, which the session reads."""
        self.product[...] = sparse_rows.product(self.rows.rows, self.matrix, transposed=self.first.transposed)

    def backward(self) -> None:
        """Compute the gradient of the matrix from that of the product, which the session wrote."""
        rows = self.rows.rows
        if self.gradient is None:
            return
        if self.table is None:
            self.gradient.fill(0)
        else:
            self.table.clear()
            self.table.note(rows.indices, sparse_rows.occurring_columns(rows))
        sparse_rows.add_gradient(rows, self.slope, self.gradient, transposed=self.first.transposed)


def host_products(
    products: Sequence[FirstProduct],
    buffers: BatchBuffers,
    parameters: FlatParameters,
    model: TrainableModel,
    frozen: Mapping[str, np.ndarray],
    tables: Mapping[str, RowGradients],
) -> list[HostProduct]:
    """Return the products of a pass, with arrays of their own; ``tables`` are gradients of matrices by name."""
    found = []
    for first in products:
        name, trained = first.weight, first.weight in parameters.names
        if trained:
            matrix = parameters.view(name)
        else:
            matrix = np.ascontiguousarray(frozen[name] if name in frozen else initial_value(model.model, name))
        product, slope = (np.zeros((len(buffers.sample_weight), first.n_outputs), matrix.dtype) for _ in range(2))
        gradient = parameters.gradient_view(first.weight) if trained else None
        rows, table = buffers.sparse[first.input], tables.get(name)
        found.append(HostProduct(first, rows, matrix, product, slope, gradient, table))
    return found
