"""Train so many random combinations of settings; compare each with the reference, and with other runs.

    python -m tests.combinations --cases 1000                 each engine that is installed
    python -m tests.combinations --first 5000 --engine portable
    python -m tests.combinations --case 4711 --engine portable

A case is made from its number alone; a failure is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter

from tests.combinations import features
from tests.combinations.draws import Draw, drawn
from tests.combinations.run_case import outcome_of
from tests.helpers.environment import available_engines


def main() -> int:
    """Run what the command line asks for; 1: something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.combinations", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300, help="how many cases for each engine")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="this one case alone")
    parser.add_argument("--engine", choices=available_engines(), help="differentiate with this engine")
    parser.add_argument("--relations", type=int, default=2, help="how many relations are tried for each case and kind")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.cases) if given.case is None else [given.case]
    engines = [given.engine] if given.engine else available_engines()
    counts, compared = Counter[str](), list[Draw]()
    for number, engine in ((n, e) for n in numbers for e in engines):
        try:
            found = outcome_of(number, engine, given.relations)
        except Exception:
            print(f"FAILED python -m tests.combinations --case {number} --engine {engine}\n{traceback.format_exc(-4)}")
            found = Counter({"failed": 1})
        counts += found
        if found["equal to the reference"]:
            compared.append(drawn(number, engine))
    report(counts, compared)
    return int(counts["failed"] > 0)


def report(counts: Counter[str], compared: list[Draw]) -> None:
    """Print the outcomes, and which pairs of features the reference has seen together."""
    print("\n".join(f"{count:6} {name}" for name, count in counts.most_common()))
    pairs = features.pairs(compared)
    names = sorted({name for pair in pairs for name in pair})
    possible = len(names) * (len(names) - 1) // 2
    print(f"{len(pairs)} of {possible} pairs of {len(names)} features were compared with the reference.")


if __name__ == "__main__":
    sys.exit(main())
