"""The benchmark of tables: what it runs, what it runs again, and the arithmetic of its page."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

# the oldest matplotlib calls pyparsing by old names
pytestmark = pytest.mark.filterwarnings("ignore:.* deprecated:DeprecationWarning")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def report(monkeypatch):
    """Return the module that writes the page."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("tabular", "tabular_data", "tabular_models"):
        importlib.import_module(name)
    yield importlib.import_module("tabular_report")
    for name in ("tabular", "tabular_data", "tabular_models", "tabular_report"):
        sys.modules.pop(name, None)


def run(table, model, score, split=0, seconds=1.0):
    return {"table": table, "split": split, "model": model, "score": score, "fit_seconds": seconds}


RUNS = [
    run("vehicle", "linear", 0.8),
    run("vehicle", "RealMLP", 0.9, seconds=2.0),
    run("vehicle", "RealMLP (pytabkit)", 0.88, seconds=6.0),
    run("wage", "linear", 40.0),
    run("wage", "RealMLP", 44.0, seconds=2.0),
    run("wage", "RealMLP (pytabkit)", 40.0, seconds=8.0),
    run("wage", "linear", 30.0, split=1),
    {"table": "wage", "split": 1, "model": "RealMLP", "failure": "ValueError: no"},
]


def test_ranks_use_common_splits_and_metric_direction(report):
    assert report.ranks(report.gathered(RUNS), ["linear", "RealMLP"]) == {"linear": 1.5, "RealMLP": 1.5}
    assert report.ranks(report.gathered(RUNS[:3]), ["linear", "RealMLP"]) == {"linear": 2.0, "RealMLP": 1.0}
    tied = [run("vehicle", model, 0.5) for model in ("linear", "LightGBM", "RealMLP")]
    assert set(report.ranks(report.gathered(tied), ["linear", "LightGBM", "RealMLP"]).values()) == {2.0}


def test_gains_are_accuracy_points_or_error_percent(report):
    tables, gain, error, ratio = report.paired(report.gathered(RUNS), "RealMLP", "RealMLP (pytabkit)")
    assert tables == 2
    assert gain == pytest.approx((2.0 - 10.0) / 2)
    assert error == pytest.approx(6.0)  # deviations of 6 from the mean: sqrt(72 / 1) / sqrt(2)
    assert ratio == pytest.approx(3.5)


def test_seconds_are_compared_of_fits_of_one_day(report):
    later = [{**one, "date": "2026-11-23"} if one["table"] == "vehicle" else one for one in RUNS]
    later[5] = {**later[5], "date": "2026-11-23"}  # the original on wage, not ours
    *_, ratio = report.paired(report.gathered(later), "RealMLP", "RealMLP (pytabkit)")
    assert ratio == pytest.approx(3.0)
    apart = [{**one, "date": f"2026-11-{i + 10}"} for i, one in enumerate(RUNS)]
    assert report.table_of_originals(report.gathered(apart))[2].endswith(" | – |")


def test_user_results_have_own_page(report, tmp_path, monkeypatch):
    before = {path: path.read_bytes() for path in report.DOCS.glob("tabular.*")}
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, RUNS)), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["tabular_report.py", "--results", str(tmp_path / "mine.jsonl")])
    report.main()
    page = (tmp_path / "mine.md").read_text(encoding="utf-8")
    assert "| vehicle | 1 | 0.8000 | **0.9000** |\n" in page
    assert "| vehicle | 1 | **0.9000** | 0.8800 |\n" in page
    assert "- RealMLP on wage: ValueError: no" in page
    assert (tmp_path / "mine.png").stat().st_size > 1000
    assert before == {path: path.read_bytes() for path in report.DOCS.glob("tabular.*")}


def test_models_on_fewer_tables_do_not_narrow_others(report):
    more = [run(table, "LightGBM", 0.7) for table in ("vehicle", "wage")]
    more += [run("vehicle", "TabM", 0.85), run("vehicle", "RealMLP PWL", 0.95)]
    found = report.gathered([*RUNS, *more])
    models = ["linear", "LightGBM", "RealMLP", "RealMLP PWL", "TabM", "RealMLP (pytabkit)"]
    lines = report.report(found, models, [*RUNS, *more]).splitlines()
    assert "| wage (RMSE) | 1 | 40.00 | **0.70** | 44.00 |" in lines
    assert "| vehicle | 1 | 0.7000 | 0.9000 | **0.9500** | 0.8500 |" in lines
    assert report.ranked_with_tabm(found, models) == ["linear", "LightGBM", "RealMLP", "RealMLP PWL", "TabM"]


def test_perceptrons_are_ranked_beside_the_others_on_their_tables(report):
    runs = [*RUNS, run("vehicle", "MLP", 0.85, seconds=0.5)]
    found = report.gathered(runs)
    assert report.ranked(["linear", "MLP", "RealMLP", "TabM"]) == ["linear", "RealMLP"]
    lines = report.report(found, ["linear", "MLP", "RealMLP"], runs).splitlines()
    assert "| model | mean rank on 2 tables | median CPU seconds of a fit |" in lines
    start = lines.index("| model | mean rank on 1 tables | median CPU seconds of a fit |")
    assert [line.split(" |")[0] for line in lines[start + 2 : start + 5]] == ["| RealMLP", "| MLP", "| linear"]


@pytest.mark.slow
def test_command_runs_only_missing_cases(tmp_path):
    results = tmp_path / "mine.jsonl"
    command = [sys.executable, str(BENCHMARKS / "tabular.py"), "--tables", "diabetes", "--splits", "1"]
    command += ["--results", str(results), "--models", "linear"]
    subprocess.run(command, check=True)
    (first,) = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    assert first["model"] == "linear"
    assert 50 < first["score"] < 65
    subprocess.run([*command, "HistGradientBoosting"], check=True)
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert [line["model"] for line in lines] == ["linear", "HistGradientBoosting"]


def test_names_of_close_points_do_not_overlap(report):
    figure, axes = report.plt.subplots(figsize=(6.4, 4))
    points = {"LightGBM": (0.1, 3.95), "HistGradientBoosting": (0.11, 3.9), "linear": (0.12, 3.93)}
    for point in points.values():
        axes.scatter(*point)
    axes.set(xscale="log", xlim=(0.02, 10), ylim=(4.3, 2.4))
    boxes = report.label(axes, points)
    report.plt.close(figure)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert [text.get_text() for text in axes.texts] == list(points)
