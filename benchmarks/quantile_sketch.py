"""Error of the sketch of quantiles of a stream, beside its bound.

The numbers are 0 to n - 1 in several orders, so that each is its own rank: the error of a quantile is its distance from
the share that was asked for, of 2001 shares.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from onnxtrain_sklearn._data.statistics import ColumnQuantiles

# A multiplier without a common factor with n = 10**k permutes the numbers.
ORDERS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "ascending": lambda place, n: place,
    "permuted": lambda place, n: place * 61_803_399 % n,
    "from both ends": lambda place, n: np.where(place % 2 == 0, place // 2, n - 1 - place // 2),
}


def main() -> None:
    """Print the bound and the largest error for each order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=float, default=1e8, help="how many, a power of 10")
    parser.add_argument("--block", type=int, default=10_000, help="how many in a block")
    options = parser.parse_args()
    n, shares = int(options.numbers), np.linspace(0, 1, 2001)
    for name, order in ORDERS.items():
        found = ColumnQuantiles()
        for start in range(0, n, options.block):
            found.update(order(np.arange(start, min(start + options.block, n)), n).astype(float)[:, np.newaxis])
        error = np.abs(found.at(shares)[:, 0] / (n - 1) - shares).max()
        print(f"{name}: at most {found.rank_error[0]:.4%} by the bound, {error:.4%} seen")


if __name__ == "__main__":
    main()
