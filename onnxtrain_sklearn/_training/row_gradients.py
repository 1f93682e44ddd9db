"""Gradients of matrices of which a minibatch reads some rows: added up outside the session.

The rows are those that Gather reads, or those that columns of sparse data are multiplied by. The vector of gradients
stays what it is elsewhere, zero in the rows that do not occur. Only the rows that were written are set to zero before
the next pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._data.sparse_rows import add_rows
from .._graph.first_products import FirstProduct
from .._graph.lookups import Lookup
from .parameters import FlatParameters

FEW = 8
"""Rows for each one that was written from which on these are set to zero one by one, not all at once."""

SPARE = 128
"""Columns of the data for each number of a minibatch from which on the update of single numbers is faster."""

SPARE_ROWS = 16
"""The same for the update of rows of 8 numbers and more."""


class RowGradients:
    """The gradient of one matrix.

    Parameters
    ----------
    gradient : ndarray of shape (n_rows, n_columns)
        A view into the vector of gradients.
    count : int
        Indices of a full minibatch; 0 where minibatches differ.
    rewritten : bool
        Whether the vector of gradients is changed behind the pass, in any row.
    axis : int, default=0
        1: the rows are the columns of the matrix, which is stored transposed.
    most : int, default=None
        Indices of a step above which all rows are taken to occur; None: the others have to stay as they are.
    """

    def __init__(
        self, gradient: np.ndarray, count: int, *, rewritten: bool, axis: int = 0, most: int | None = None
    ) -> None:
        self.gradient, self.count, self._rewritten = gradient, count, rewritten
        self.axis, self.most = axis, most
        self._written: list[np.ndarray] = []
        self._named: list[np.ndarray] = []
        self._last = np.zeros(gradient.shape[axis], np.int32)
        gradient.fill(0)  # another step may have left numbers

    def begin(self) -> None:
        """Begin a step: no row has occurred."""
        self._named = []

    @property
    def n_rows(self) -> int:
        """Rows of the matrix."""
        return len(self._last)

    @property
    def everywhere(self) -> bool:
        """Whether all rows are taken to occur."""
        return self.most is not None and sum(map(len, self._named)) > self.most

    def rows(self, repeated: int) -> np.ndarray:
        """Return the rows that an index named since :meth:`begin`; the row that stands for padding is none.

        Up to ``repeated`` indices are returned as they are: rows may occur several times in them.
        """
        named = self._named
        places = named[0] if len(named) == 1 else np.concatenate([np.empty(0, np.intp), *named])
        if len(places) <= repeated:
            return places
        numbers = np.arange(len(places), dtype=np.int32)
        self._last[places] = numbers  # takes a third of the time of sorting them, or of looking at all rows
        found: np.ndarray = places[self._last[places] == numbers]
        return found

    def clear(self) -> None:
        """Set the gradient to zero."""
        if self._rewritten or FEW * sum(map(len, self._written)) > self.n_rows:
            self.gradient.fill(0)
        else:
            for rows in self._written:
                self.gradient[rows if self.axis == 0 else (slice(None), rows)] = 0
        self._written = []

    def note(self, places: np.ndarray, occurring: np.ndarray) -> None:
        """Note that the gradients of the rows at ``places`` are added behind this call, and which of them occur."""
        named = occurring.astype(np.intp)  # other integers take twice as long
        self._written.append(named if occurring is places else places)
        self._named.append(named)

    def add(self, places: np.ndarray, shares: np.ndarray, rows: np.ndarray) -> None:
        """Add the gradients of the rows at ``places``, times their shares: 0 where a row stands for padding."""
        add_rows(places, shares, rows, self.gradient)
        self._written.append(places)
        self._named.append(places if shares.all() else places[shares > 0])


@dataclass(frozen=True, eq=False)
class HostLookup:
    """A read of rows, and the arrays that the session writes: the indices, and the gradient of each row."""

    lookup: Lookup
    indices: np.ndarray
    slope: np.ndarray

    def add_to(self, table: RowGradients) -> None:
        """Add the gradients of the rows to that of the matrix."""
        places = np.remainder(self.indices, self.lookup.shape[0])  # negative indices count from the end
        shares = np.ones(self.lookup.count, self.slope.dtype)
        if self.lookup.padding is not None:
            shares[self.indices == self.lookup.padding] = 0
        table.add(places, shares, self.slope)


@dataclass(frozen=True, eq=False)
class HostLookups:
    """All reads of a pass, and the gradients of the matrices by name."""

    reads: Sequence[HostLookup]
    tables: Mapping[str, RowGradients]

    def write_gradients(self) -> None:
        """Write the gradients of the matrices from what the session wrote."""
        for table in self.tables.values():
            table.clear()
        for read in self.reads:
            read.add_to(self.tables[read.lookup.weight])


def row_gradients(parameters: FlatParameters, lookups: Sequence[Lookup], *, rewritten: bool) -> dict[str, RowGradients]:
    """Return the gradients of the matrices that are read, by name."""
    found = {}
    for name in dict.fromkeys(lookup.weight for lookup in lookups):
        view, count = parameters.gradient_view(name), sum(one.count for one in lookups if one.weight == name)
        found[name] = RowGradients(view.reshape(len(view), -1), count, rewritten=rewritten)
    return found


def product_gradients(
    parameters: FlatParameters, products: Sequence[FirstProduct], *, rewritten: bool, lazy: bool
) -> dict[str, RowGradients]:
    """Return the gradients of the trained matrices that sparse rows are multiplied by, by name."""
    found = {}
    for product in products:
        if product.weight in parameters.names:
            view, axis = parameters.gradient_view(product.weight), int(product.transposed)
            least = max(SPARE_ROWS, SPARE // view.shape[1 - axis])
            most = None if lazy else view.shape[axis] // least
            found[product.weight] = RowGradients(view, 0, rewritten=rewritten, axis=axis, most=most)
    return found


def host_lookups(lookups: Sequence[Lookup], tables: Mapping[str, RowGradients]) -> HostLookups:
    """Return the reads of a pass, with arrays of their own."""
    tables, found = {lookup.weight: tables[lookup.weight] for lookup in lookups}, []
    for lookup in lookups:
        slope = np.zeros((lookup.count, lookup.width), tables[lookup.weight].gradient.dtype)
        found.append(HostLookup(lookup, np.zeros(lookup.count, np.int64), slope))
    return HostLookups(found, tables)
