"""How far any choice by few rows comes in the stories of old_rows.py.

A chooser gets as many further rows as there are new ones, only to choose by, and takes the method with the best score
on them: the old model, one of the two refits, or the fine-tuned model. Printed is the mean number of stories in which
it is level with the best of the first three on the other rows, over random draws of the further rows.

    OMP_NUM_THREADS=1 python benchmarks/drift_choice.py [--times 3] [--draws 40]
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from old_rows import MODELS, NEAR, OURS, RIVALS, TABLES, Story, story

LEAST_ROWS = 30
"""Rows that are left to judge; stories with fewer are left out."""


def level(found: Story, method: str, further: int, draws: int, rng: np.random.Generator) -> float | None:
    """Return the share of draws in which the chosen method is level with the best rival; None with too few rows."""
    methods, count = (*RIVALS, method), len(found.y)
    if count < further + LEAST_ROWS:
        return None
    wins = 0
    for _ in range(draws):
        order = rng.permutation(count)
        chosen = max(methods, key=lambda one: found.score(found.predicted[one], order[:further]))
        judged = {one: found.score(found.predicted[one], order[further:]) for one in methods}
        wins += judged[chosen] >= max(judged[one] for one in RIVALS) - NEAR
    return wins / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="further rows, as a multiple of the new ones")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rng, shares = np.random.default_rng(0), list[float]()
    for n in (40, 120):
        for kind in MODELS:
            for name in options.tables:
                found = story(name, kind, n, 0)
                for method in OURS if found is not None else ():
                    share = level(found, method, options.times * n, options.draws, rng)
                    shares += [] if share is None else [share]
    print(f"level in {sum(shares):.1f} of {len(shares)} cells")


if __name__ == "__main__":
    main()
