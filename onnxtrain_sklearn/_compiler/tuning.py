"""Numbers by which the compiler chooses between equivalent forms.

``python benchmarks/products.py`` times matrix products of compiled code beside those of libraries: run it after a
change of a bound on products. A form decides the order in which numbers are added, and so the last bits of a result.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Bounds between forms."""

    few_columns: int = 3
    """Up to this many columns of a result, the lanes of a register are for the inner dimension."""

    worth_transposing: float = 0.2
    """The transposed product is computed if it leaves this share fewer lanes idle."""

    far: int = 512
    """The right matrix is copied if its rows are this far apart, as they are then slow to read,"""

    far_rows: int = 128
    """and it has this many rows,"""

    many_rows: int = 48
    """and the left matrix has this many rows, which all read the copy."""

    most_runs: int = 6
    """Up to this many runs of consecutive constant indices are copied one by one. No benchmark sets this number: each
    run is a loop of its own, so it bounds the text that is compiled."""


TUNING = Tuning()
