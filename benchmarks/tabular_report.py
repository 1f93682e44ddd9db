"""The page and the picture of the tabular benchmark, from its results: docs/tabular.md and docs/tabular.png.

python benchmarks/tabular_report.py [--results FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from tabular import RESULTS, results
from tabular_data import TABLES
from tabular_models import MODELS, ORIGINALS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- results: written by benchmarks/tabular_report.py -->", "<!-- end of results -->"

SPLITS = 3

Scores = Mapping[str, Mapping[str, Mapping[int, dict]]]
"""Runs by table, model and split."""


def gathered(runs: list[dict]) -> dict[str, dict[str, dict[int, dict]]]:
    found: dict[str, dict[str, dict[int, dict]]] = {}
    for run in runs:
        if "score" in run:
            found.setdefault(run["table"], {}).setdefault(run["model"], {})[run["split"]] = run
    return {name: found[name] for name in TABLES if name in found}


def mean(runs: Mapping[int, dict], key: str = "score") -> float:
    return float(np.mean([run[key] for run in runs.values()]))


def is_error(table: str) -> bool:
    """Whether scores of a table are errors: less is better."""
    return not TABLES[table].keywords.get("classifies", True)


def ranks(found: Scores, models: list[str]) -> dict[str, float]:
    """Return the mean rank of each model over the tables and splits that all of them ran."""
    collected: dict[str, list[float]] = {model: [] for model in models}
    for table, by_model in found.items():
        if not set(models) <= set(by_model):
            continue
        splits = set.intersection(*(set(by_model[model]) for model in models))
        for split in splits:
            scores = np.array([by_model[model][split]["score"] for model in models])
            scores = scores if is_error(table) else -scores
            for model, score in zip(models, scores, strict=True):
                collected[model].append(1 + float(np.sum(scores < score)) + (np.sum(scores == score) - 1) / 2)
    return {model: float(np.mean(values)) for model, values in collected.items() if values}


def paired(found: Scores, model: str, original: str) -> tuple[int, float, float, float] | None:
    """Return tables, mean relative gain over the original, its standard error, and the ratio of CPU seconds."""
    gains, ratios = [], []
    for table, by_model in found.items():
        both = set(by_model.get(model, ())) & set(by_model.get(original, ()))
        if not both:
            continue
        ours, theirs = ([by_model[name][split] for split in sorted(both)] for name in (model, original))
        a, b = (np.mean([run["score"] for run in runs]) for runs in (ours, theirs))
        gains.append(100 * ((b - a) / b if is_error(table) else a - b))
        ratios.append(sum(run["fit_seconds"] for run in theirs) / sum(run["fit_seconds"] for run in ours))
    if len(gains) < 2:
        return None
    return len(gains), float(np.mean(gains)), float(np.std(gains, ddof=1) / len(gains) ** 0.5), float(np.median(ratios))


def table_of_scores(found: Scores, models: list[str]) -> list[str]:
    lines = [f"| table | {' | '.join(models)} |", f"|---|{'---|' * len(models)}"]
    for table, by_model in found.items():
        digits = 4 if not is_error(table) or table == "california" else 2
        means = {model: mean(by_model[model]) for model in models if model in by_model}
        best = min(means.values()) if is_error(table) else max(means.values())
        cells = []
        for model in models:
            if model not in means:
                cells.append("–")
                continue
            shown = f"{means[model]:.{digits}f}"
            shown += "" if len(by_model[model]) == SPLITS else f" ({len(by_model[model])})"
            cells.append(f"**{shown}**" if means[model] == best else shown)
        lines.append(f"| {table}{' (RMSE)' if is_error(table) else ''} | {' | '.join(cells)} |")
    return lines


def table_of_models(found: Scores, models: list[str]) -> list[str]:
    rivals = [model for model in models if model not in ORIGINALS]
    rivals = [m for m in rivals if sum(m in by_model for by_model in found.values()) >= len(found) / 2]
    by_rank, lines = ranks(found, rivals), ["| model | mean rank | median CPU seconds of a fit |", "|---|---|---|"]
    for model in sorted(by_rank, key=by_rank.__getitem__):
        seconds = np.median([mean(by_model[model], "fit_seconds") for by_model in found.values() if model in by_model])
        lines.append(f"| {model} | {by_rank[model]:.2f} | {seconds:.1f} |")
    return lines


def table_of_originals(found: Scores) -> list[str]:
    lines = [
        "| original | tables | gain in points of accuracy, or in % of the RMSE | CPU seconds of the original by ours |"
    ]
    lines.append("|---|---|---|---|")
    for original in ORIGINALS:
        result = paired(found, original.removesuffix(" (pytabkit)"), original)
        if result is not None:
            lines.append(f"| {original} | {result[0]} | {result[1]:+.2f} ± {result[2]:.2f} | {result[3]:.1f} |")
    return lines if len(lines) > 2 else []


def draw(found: Scores, models: list[str], path: Path) -> None:
    """Draw mean rank against CPU seconds."""
    rivals = [m for m in models if m not in ORIGINALS and sum(m in b for b in found.values()) >= len(found) / 2]
    by_rank = ranks(found, rivals)
    figure, axes = plt.subplots(figsize=(6.4, 4))
    for model, rank in by_rank.items():
        seconds = np.median([mean(b[model], "fit_seconds") for b in found.values() if model in b])
        mine = model.startswith(("RealMLP", "TabM"))
        axes.scatter(seconds, rank, color="C1" if mine else "C0")
        axes.annotate(model, (seconds, rank), textcoords="offset points", xytext=(6, 4))
    axes.set(xscale="log", xlabel="CPU seconds of a fit (median over the tables)", ylabel="mean rank (1: best)")
    axes.margins(x=0.25)
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    runs = results(parser.parse_args().results)
    found = gathered(runs)
    models = [model for model in MODELS if any(model in by_model for by_model in found.values())]
    failures = sorted({f"{run['model']} on {run['table']}: {run['failure']}" for run in runs if "failure" in run})
    parts = [
        table_of_models(found, models),
        table_of_originals(found),
        table_of_scores(found, models),
        [f"- {line}" for line in failures],
    ]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    page = DOCS / "tabular.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    draw(found, models, DOCS / "tabular.png")


if __name__ == "__main__":
    main()
