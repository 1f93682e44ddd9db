"""The page and the picture of the tabular benchmark, from its results: benchmarks/tabular.md and docs/tabular.png.

    python benchmarks/tabular_report.py [--results FILE]

Of a file of results of your own, FILE.jsonl, a page of the tables alone and a picture are written beside it: FILE.md
and FILE.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib
import numpy as np
from tabular import RESULTS, results
from tabular_data import TABLES
from tabular_models import MODELS, ORIGINALS

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- results: written by benchmarks/tabular_report.py -->", "<!-- end of results -->"

SPLITS = 3

APART = ("RealMLP PWL", "TabM", "TabM-mini", "TabM-mini PWL", "TabM (pytabkit)")
"""The models that ran on fewer tables and have tables of their own, so that the others show all splits."""

PERCEPTRONS = ("MLP", "MLP early stopping", "MLP best epoch")
"""Perceptrons of ours without a recipe, which are ranked apart: they ran on the small tables alone."""

BESIDE_THEM = ("LightGBM", "RealMLP")
"""The models that are shown beside them."""

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
    """Return tables, mean relative gain over the original, its standard error, and the ratio of CPU seconds.

    The ratio is of fits of one day: a processor does not give the same on all of them.
    """
    gains, ratios = [], []
    for table, by_model in found.items():
        both = set(by_model.get(model, ())) & set(by_model.get(original, ()))
        if not both:
            continue
        ours, theirs = ([by_model[name][split] for split in sorted(both)] for name in (model, original))
        a, b = (np.mean([run["score"] for run in runs]) for runs in (ours, theirs))
        gains.append(100 * ((b - a) / b if is_error(table) else a - b))
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.get("date") == b.get("date")]
        if pairs:
            ratios.append(sum(b["fit_seconds"] for _, b in pairs) / sum(a["fit_seconds"] for a, _ in pairs))
    if len(gains) < 2:
        return None
    ratio = float(np.median(ratios)) if ratios else float("nan")
    return len(gains), float(np.mean(gains)), float(np.std(gains, ddof=1) / len(gains) ** 0.5), ratio


def table_of_scores(found: Scores, models: list[str]) -> list[str]:
    """Return the mean scores of each table over the splits that all models shown in its row have run."""
    lines = [f"| table | splits | {' | '.join(models)} |", f"|---|---|{'---|' * len(models)}"]
    for table, runs_of in found.items():
        by_model = {model: runs for model, runs in runs_of.items() if model in models}
        splits = set.intersection(*map(set, by_model.values()))
        means = {model: mean({split: runs[split] for split in splits}) for model, runs in by_model.items()}
        digits = 2 if is_error(table) and table != "california" else 4
        best = min(means.values()) if is_error(table) else max(means.values())
        shown = {model: f"{score:.{digits}f}" for model, score in means.items()}
        cells = [f"**{shown[m]}**" if shown.get(m) == f"{best:.{digits}f}" else shown.get(m, "–") for m in models]
        lines.append(f"| {table}{' (RMSE)' if is_error(table) else ''} | {len(splits)} | {' | '.join(cells)} |")
    return lines


def table_of_models(found: Scores, rivals: list[str]) -> list[str]:
    """Return mean ranks and CPU seconds over the tables that all rivals ran."""
    by_rank, tables = ranks(found, rivals), sum(set(rivals) <= set(by_model) for by_model in found.values())
    lines = [f"| model | mean rank on {tables} tables | median CPU seconds of a fit |", "|---|---|---|"]
    for model in sorted(by_rank, key=by_rank.__getitem__):
        lines.append(f"| {model} | {by_rank[model]:.2f} | {seconds_of(found, model, rivals):.1f} |")
    return lines if by_rank else []


def ranked(models: list[str]) -> list[str]:
    """Return the models that are ranked on all tables: neither the originals, nor those that ran on fewer."""
    return [model for model in models if model not in (*ORIGINALS, *APART, *PERCEPTRONS)]


def ranked_with_tabm(found: Scores, models: list[str]) -> list[str]:
    """Return those that ran on each table and split that TabM ran on with the models that are ranked on all tables."""
    cells = [(by_model, split) for by_model in found.values() for split in by_model.get("TabM", ())]
    cells = [
        (by_model, split) for by_model, split in cells if all(split in by_model.get(m, ()) for m in ranked(models))
    ]
    own = [m for m in APART if m in models and m not in ORIGINALS]
    return ranked(models) + [m for m in own if cells and all(split in by_model.get(m, ()) for by_model, split in cells)]


def seconds_of(found: Scores, model: str, rivals: list[str]) -> float:
    """Return the median over the tables that all rivals ran of the CPU seconds of a fit."""
    tables = [by_model for by_model in found.values() if set(rivals) <= set(by_model)]
    return float(np.median([mean(by_model[model], "fit_seconds") for by_model in tables]))


def what_was_run(found: Scores) -> list[str]:
    counts = {m: sum(len(by_model.get(m, ())) for by_model in found.values()) for m in MODELS}
    listed = ", ".join(f"{model} {count}" for model, count in counts.items())
    return [f"Fits of each model in this run, of {SPLITS * len(TABLES)} in a full one: {listed}."]


def table_of_originals(found: Scores) -> list[str]:
    lines = [
        "| original | tables | gain in points of accuracy, or in % of the RMSE | CPU seconds of the original by ours |"
    ]
    lines.append("|---|---|---|---|")
    for original in ORIGINALS:
        result = paired(found, original.removesuffix(" (pytabkit)"), original)
        if result is not None:
            ratio = "–" if np.isnan(result[3]) else f"{result[3]:.1f}"
            lines.append(f"| {original} | {result[0]} | {result[1]:+.2f} ± {result[2]:.2f} | {ratio} |")
    return lines if len(lines) > 2 else []


def draw(found: Scores, models: list[str], path: Path) -> None:
    """Draw mean rank against CPU seconds."""
    rivals = ranked(models)
    points = {model: (seconds_of(found, model, rivals), rank) for model, rank in ranks(found, rivals).items()}
    figure, axes = plt.subplots(figsize=(6.4, 4))
    for model, point in points.items():
        axes.scatter(*point, color="C1" if model.startswith(("RealMLP", "TabM")) else "C0")
    axes.set(xscale="log", xlabel="CPU seconds of a fit (median over the tables)", ylabel="mean rank (1: best)")
    axes.margins(x=0.25, y=0.15)
    axes.invert_yaxis()
    figure.tight_layout()
    label(axes, points)
    figure.savefig(path, dpi=120)


PLACES = ((6, 4, "left"), (6, -12, "left"), (-6, 4, "right"), (-6, -12, "right"))
"""Where the name of a point may stand: points to its right and upwards, and the side of the text that is there."""


def label(axes: Axes, points: Mapping[str, tuple[float, float]]) -> list[Bbox]:
    """Name the points, each at the first place that no name has yet; return the boxes of the names."""
    taken: list[Bbox] = []
    for name, point in points.items():
        for right, up, side in PLACES:
            text = axes.annotate(name, point, textcoords="offset points", xytext=(right, up), ha=side)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken) or (right, up, side) == PLACES[-1]:
                taken.append(box)
                break
            text.remove()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args().results
    runs = results(chosen)
    found = gathered(runs)
    models = [model for model in MODELS if any(model in by_model for by_model in found.values())]
    text = report(found, models, runs)
    if chosen.resolve() != RESULTS:
        chosen.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
        draw(found, models, chosen.with_suffix(".png"))
        return
    page = Path(__file__).parent / "tabular.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    draw(found, models, DOCS / "tabular.png")


def with_any(found: Scores, models: Iterable[str]) -> dict[str, Mapping[str, Mapping[int, dict]]]:
    """Return the tables that at least one of some models ran on."""
    return {name: by_model for name, by_model in found.items() if set(models) & set(by_model)}


def report(found: Scores, models: list[str], runs: list[dict]) -> str:
    """Return all tables."""
    copied = {name.removesuffix(" (pytabkit)"): name for name in ORIGINALS if name in models and name not in APART}
    pairs = [model for model in models if model in (*copied, *copied.values())]
    apart = [model for model in models if model in APART]
    perceptrons = [model for model in models if model in PERCEPTRONS]
    beside = [model for model in models if model in (*APART, *BESIDE_THEM)]
    failures = sorted({f"{run['model']} on {run['table']}: {run['failure']}" for run in runs if "failure" in run})
    parts = [
        what_was_run(found),
        table_of_models(found, ranked(models)),
        table_of_models(found, ranked_with_tabm(found, models)) if "TabM" in models else [],
        table_of_models(found, [*ranked(models), *perceptrons]) if perceptrons else [],
        table_of_originals(found),
        table_of_scores(found, ranked(models)),
        table_of_scores(with_any(found, perceptrons), [*perceptrons, *BESIDE_THEM]) if perceptrons else [],
        table_of_scores(with_any(found, copied.values()), pairs) if copied else [],
        table_of_scores(with_any(found, apart), beside) if apart else [],
        [f"- {line}" for line in failures],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


if __name__ == "__main__":
    main()
