"""Gradients of matrices that a graph reads row by row: added up outside its session, one read row after the other.

The vector of gradients stays what it is elsewhere, zero in the rows that no index names. Only the rows that were
written are set to zero before the next pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._data.sparse_rows import add_rows
from .._graph.lookups import Lookup
from .parameters import FlatParameters


class RowGradients:
    """The gradient of one matrix.

    Parameters
    ----------
    gradient : ndarray of shape (n_rows, n_columns)
        A view into the vector of gradients.
    count : int
        Indices of a full minibatch.
    rewritten : bool
        Whether the vector of gradients is changed behind the pass, in any row.

    Attributes
    ----------
    occurs : ndarray of bool of shape (n_rows,)
        Whether an index named the row since :meth:`begin`; the row that stands for padding never occurs.
    """

    def __init__(self, gradient: np.ndarray, count: int, *, rewritten: bool) -> None:
        self.gradient, self.count, self._rewritten = gradient, count, rewritten
        self.occurs = np.zeros(len(gradient), bool)
        self._written: list[np.ndarray] = []
        gradient.fill(0)  # another step may have left numbers

    def begin(self) -> None:
        """Begin a step: no row has occurred."""
        self.occurs.fill(False)

    def clear(self) -> None:
        """Set the gradient to zero."""
        if self._rewritten:
            self.gradient.fill(0)
        else:
            for rows in self._written:
                self.gradient[rows] = 0
        self._written = []

    def add(self, places: np.ndarray, shares: np.ndarray, rows: np.ndarray) -> None:
        """Add the gradients of the rows at ``places``, times their shares: 0 where a row stands for padding."""
        add_rows(places, shares, rows, self.gradient)
        self._written.append(places)
        self.occurs[places if shares.all() else places[shares > 0]] = True


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


def host_lookups(lookups: Sequence[Lookup], tables: Mapping[str, RowGradients]) -> HostLookups:
    """Return the reads of a pass, with arrays of their own."""
    found = []
    for lookup in lookups:
        slope = np.zeros((lookup.count, lookup.width), tables[lookup.weight].gradient.dtype)
        found.append(HostLookup(lookup, np.zeros(lookup.count, np.int64), slope))
    return HostLookups(found, tables)
