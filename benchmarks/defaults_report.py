"""Write benchmarks/defaults.md and its picture from the results of defaults.py.

python benchmarks/defaults_report.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from defaults_data import TABLES, TUNING, UNSEEN

RESULTS = Path(__file__).resolve().with_name("defaults_results.jsonl")
PAGE = Path(__file__).resolve().with_name("defaults.md")
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "defaults.png"

NAMES = {
    "linear": "linear",
    "HistGradientBoosting": "HGB",
    "LightGBM": "LightGBM",
    "sklearn MLP": "sklearn MLP",
    "OrtGradient alpha=0": "`alpha=0`",
    "OrtGradient": "`OrtGradient*()`",
    "RealMLP td": '`RealMLP*("td")`',
    "RealMLP": "`RealMLP*()`",
}
"""How the tables name the models; they have a column for each of these. CatBoost has a table of its own."""

PEERS, OURS = ("linear", "HistGradientBoosting", "LightGBM"), ("OrtGradient", "RealMLP")
HALVES = {"unseen": UNSEEN, "tuning": TUNING}
BEHIND = 0.03


def results() -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the results by table, split and model."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {(one["table"], one["split"], one["model"]): one for one in map(json.loads, lines)}


def means(key: str, tables: Iterable[str], models: Sequence[str]) -> pd.DataFrame:
    """Return the means over the splits: a row for each table on which all models ran."""
    found = [one for one in results().values() if one["model"] in models and key in one]
    frame = pd.DataFrame(found, columns=["table", "split", "model", key])
    by_model = frame.pivot_table(index=["table", "split"], columns="model", values=key)
    by_model = by_model.reindex(columns=list(models)).dropna().groupby("table").mean()
    return by_model.reindex([table for table in tables if table in by_model.index])


def ranks(key: str, scores: pd.DataFrame) -> pd.DataFrame:
    """Return the ranks of the models on each table; 1 is the best."""
    return scores.rank(axis=1, ascending=key != "score")


def scores_table(key: str, title: str, scores: pd.DataFrame, sizes: dict[str, str]) -> list[str]:
    """Return the scores as a table in Markdown, with their mean and the mean ranks."""
    best = scores.max(axis=1) if key == "score" else scores.min(axis=1)
    named = [NAMES.get(model, model) for model in scores]
    lines = [f"| {title} | rows, columns | {' | '.join(named)} |", f"|---|---|{'---|' * len(named)}"]
    for table, row in scores.iterrows():
        shown = [
            f"**{value:.3f}**" if key != "seconds" and round(value, 3) == round(best[table], 3) else f"{value:.3f}"
            for value in row
        ]
        lines.append(f"| {table} | {sizes[str(table)]} | {' | '.join(shown)} |")
    mean = scores.clip(lower=-1).mean()  # one R² far below 0 would hide all others
    lines.append(f"| mean | | {' | '.join(f'{value:.3f}' for value in mean)} |")
    if key != "seconds":
        lines.append(f"| mean rank | | {' | '.join(f'{value:.2f}' for value in ranks(key, scores).mean())} |")
    return lines


def behind(sizes: dict[str, str]) -> list[str]:
    """Return a table of those where a default of ours is more than BEHIND behind the best of linear and boosting."""
    models = [*PEERS, *OURS]
    named = " | ".join(NAMES[model] for model in models)
    lines = [f"| table | half | rows, columns | {named} |", f"|---|---|---|{'---|' * len(models)}"]
    for half, tables in HALVES.items():
        for table, row in means("score", tables, models).iterrows():
            if row[list(OURS)].min() < row[list(PEERS)].max() - BEHIND:
                shown = " | ".join(f"{value:.3f}" for value in row)
                lines.append(f"| {table} | {half} | {sizes[str(table)]} | {shown} |")
    return lines


def calibration() -> list[str]:
    """Return on how many tables each model has worse probabilities than logistic regression."""
    lines = ["| half | model | tables | higher log loss | higher Brier score |", "|---|---|---|---|---|"]
    for half, tables in HALVES.items():
        worse = {}
        for key in ("log_loss", "brier"):
            scores = means(key, tables, list(NAMES))
            worse[key] = scores.gt(scores["linear"] + 5e-4, axis=0).sum()  # by more than rounding shows
        for model in NAMES:
            if model != "linear":
                losses, briers = worse["log_loss"][model], worse["brier"][model]
                lines.append(f"| {half} | {NAMES[model]} | {len(scores)} | {losses} | {briers} |")
    return lines


def comparisons(scores: pd.DataFrame) -> list[str]:
    """Return the p-values of RealMLP beside each model: Wilcoxon's signed ranks of the tables, adjusted by Holm."""
    from scipy.stats import wilcoxon
    from statsmodels.stats.multitest import multipletests

    rivals = [model for model in scores if model != "RealMLP"]
    values = [wilcoxon(scores["RealMLP"], scores[model]).pvalue for model in rivals]
    adjusted = multipletests(values, method="holm")[1]
    wins = [int((scores["RealMLP"] > scores[model]).sum()) for model in rivals]
    lines = ["| `RealMLP*()` beside | better on | p |", "|---|---|---|"]
    rows = zip(rivals, wins, adjusted, strict=True)
    return lines + [f"| {NAMES[model]} | {won} of {len(scores)} | {p:.2g} |" for model, won, p in rows]


def draw(scores: pd.DataFrame) -> None:
    """Draw the mean ranks; a bar joins models that Nemenyi's test does not tell apart."""
    import matplotlib.pyplot as plt
    import scikit_posthocs

    named = scores.rename(columns={model: name.replace("`", "") for model, name in NAMES.items()})
    differ = scikit_posthocs.posthoc_nemenyi_friedman(named)
    figure, axes = plt.subplots(figsize=(8, 3))
    scikit_posthocs.critical_difference_diagram(ranks("score", named).mean(), differ, ax=axes)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def summary() -> list[str]:
    """Return the mean ranks of both halves."""
    lines = list[str]()
    for half, tables in HALVES.items():
        for key in ("score", "log_loss", "brier"):
            scores = means(key, tables, list(NAMES))
            found = ", ".join(f"{model} {rank:.2f}" for model, rank in ranks(key, scores).mean().items())
            lines.append(f"{half}, {key}, {len(scores)} tables: {found}")
    return lines


def write_section(name: str, lines: list[str]) -> None:
    """Replace the section of benchmarks/defaults.md between the comments of this name."""
    begin, end = f"<!-- {name}: written by benchmarks/ -->", f"<!-- end of {name} -->"
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    PAGE.write_text("\n".join([before + begin, "", *lines, "", end]) + rest.split(end)[1], encoding="utf-8")


def write_page() -> None:
    """Write all tables of the page, and the picture."""
    loaded = {name: load() for name, load in TABLES.items()}
    sizes = {name: f"{len(data.y):,} x {data.X.shape[1]:,}" for name, data in loaded.items()}
    for half, tables in HALVES.items():
        lines = list[str]()
        for key, title in (("score", "score"), ("log_loss", "log loss"), ("seconds", "CPU seconds")):
            lines += [*scores_table(key, title, means(key, tables, list(NAMES)), sizes), ""]
        write_section(half, lines[:-1])
    unseen = means("score", UNSEEN, list(NAMES))
    write_section("comparisons", comparisons(unseen))
    draw(unseen)
    with_catboost = [*PEERS, "CatBoost", *OURS]
    write_section("CatBoost", scores_table("score", "score", means("score", UNSEEN, with_catboost), sizes))
    write_section("calibration", calibration())
    write_section("behind", behind(sizes))


if __name__ == "__main__":
    write_page()
