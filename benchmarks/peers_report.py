"""The table of the peers in benchmarks/performance.md, and docs/peers.png, from the results of ``peers.py``.

python benchmarks/peers_report.py [--results FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from fit_step import CASES
from peers import AIMS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).parents[1] / "build" / "peers_1.json"
BEGIN, END = "<!-- results: written by benchmarks/peers_report.py -->", "<!-- end of results -->"
NAMES = {"sklearn": "scikit-learn MLP", "torch": "PyTorch eager", "skorch": "skorch"}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}

Row = Mapping[str, object]


def ratio(one: Row, name: str, own: str = "ours") -> float:
    """Return the competitor's CPU time by ours; NaN where it has none."""
    times = one["microseconds"]
    return times[name][1] / times[own][1] if name in times else float("nan")


def title(one: Row) -> str:
    case = CASES[one["case"]]
    return f"[{','.join(map(str, case.layers))}], batch {case.batch_size}"


def table(rows: Sequence[Row]) -> list[str]:
    """Return a line for each row: our CPU times, and the ratios of each competitor with its aim."""
    names = " | ".join(NAMES.values())
    lines = [f"| case | optimizer | our step, µs | by default | {names} |", "|---|---|---|---|---|---|---|"]
    for one in rows:
        cells = [f"{_ratios(one, name)} ({AIMS[name][one['case']]:g})" for name in NAMES]
        steps = [one["microseconds"][name][1] for name in ("ours", "plain")]
        own = " | ".join(f"{step:,.1f}" if step < 100 else f"{step:,.0f}" for step in steps)
        lines.append(f"| {title(one)} | {OPTIMIZERS[one['optimizer']]} | {own} | {' | '.join(cells)} |")
    return lines


def _ratios(one: Row, name: str) -> str:
    found = [f"{ratio(one, name, own):.3g}" for own in ("ours", "plain") if name in one["microseconds"]]
    return ", ".join(found) or "–"


def met(rows: Sequence[Row], own: str) -> list[str]:
    """Return how many rows meet the aim beside each competitor."""
    return [
        f"{sum(ratio(one, name, own) >= AIMS[name][one['case']] for one in rows)} of {len(rows)} beside {NAMES[name]}"
        for name in NAMES
    ]


def text(results: Mapping[str, object]) -> str:
    rows = results["rows"]
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    said = [
        f"Rows that meet the aim {by}: {', '.join(met(rows, own))}."
        for by, own in (('with `engine="compiled"`', "ours"), ("by default", "plain"))
    ]
    return "\n".join([*table(rows), "", *said, f"Versions: {versions}."])


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the speed-up over each competitor as a bar, and its aim as a line across the bar."""
    figure, axes = plt.subplots(figsize=(7, 5.5))
    places, height = np.arange(len(rows), dtype=float), 0.27
    for i, (name, shown) in enumerate(NAMES.items()):
        at = places + (i - 1) * height
        axes.barh(at, [ratio(one, name) for one in rows], height, label=shown, color=f"C{i}")
        aims = [AIMS[name][one["case"]] for one in rows]
        axes.vlines(
            aims, at - height / 2, at + height / 2, color="black", linewidth=1.5, label="aim" if i == 2 else None
        )
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.set_yticks(places, [f"{title(one)}, {OPTIMIZERS[one['optimizer']]}" for one in rows])
    axes.set(xscale="log", xlabel="CPU time of the peer by ours (above 1: ours is faster)")
    axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    results = json.loads(parser.parse_args().results.read_text(encoding="utf-8"))
    page = Path(__file__).parent / "performance.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text(results)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    draw(results["rows"], DOCS / "peers.png")


if __name__ == "__main__":
    main()
