"""The page of the benchmark of networks: its arithmetic, and that the stored page shows the stored results."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

TRAINED = {
    "source": "own", "network": "GRU", "exporter": "dynamo", "mode": "evaluation", "parameters": 1234, "gradient": 4e-6,
    "gradient_torch": 1e-6, "weights": 2e-8, "weights_torch": 1e-8, "step": 0.5, "step_torch": 2.0, "build": 1.25,
    "nodes": 83, "measured": "2026-11-22",
}  # fmt: skip
REFUSED = {
    "source": "own",
    "network": "GRU",
    "exporter": "classic",
    "mode": "evaluation",
    "failure": "ValueError: no\nmore",
}
NOT_EXPORTED = {
    "source": "own",
    "network": "net",
    "exporter": "dynamo",
    "mode": "evaluation",
    "not_exported": "TypeError",
}


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("networks_report")
    sys.modules.pop("networks_report", None)


def test_row_shows_errors_beside_pytorch_without_rounding(report):
    assert report.row(TRAINED) == ("| GRU | dynamo, evaluation | 1,234 | 4e-06 | 4.0 | 2e-08 | 1.0 | 0.25 | 1.2 | 83 |")


def test_rows_of_other_days_are_marked_in_each_table(report):
    earlier = {key: value for key, value in TRAINED.items() if key != "measured"}
    assert report.row(earlier).startswith("| GRU* | dynamo")
    default = {"compared": 617, "gradient": 2e-6, "gradient_torch": 1e-6, "loss": 3e-6, "loss_torch": 1e-6}
    row = TRAINED | {"default": default, "starts": [1e-6, 3e-6, 2e-6]}
    batches = TRAINED | {"mode": "training", "statistics": 2e-6, "statistics_torch": 4e-6}
    text = report.report([row, batches], {"own": ["GRU"]})
    assert "| GRU | 50% | 2e-06 | 2.0 | 3e-06 | 3.0 |" in text
    assert "| GRU | dynamo, evaluation | 2e-08 | 1e-08 | 1e-06 | 2e-06 | 3e-06 |" in text
    assert "| GRU | dynamo, training | 4e-06 | 4.0 | 2e-08 | 1.0 | 2e-06 | 0.5 | 0.25 |" in text
    assert text.count("| GRU | dynamo, training") == 1


def test_untrained_files_count_and_unexported_do_not(report):
    text = report.report([TRAINED, REFUSED, NOT_EXPORTED], {"own": ["GRU", "net"]})
    assert text.startswith("1 of 2 files of 1 networks are trained. The error of the gradient is at\nmost 4.0 times")
    assert "- GRU (classic, evaluation): ValueError: no\n" in text
    assert text.endswith("PyTorch does not export: net (dynamo, evaluation).")


def test_networks_diverging_in_pytorch_are_named_not_counted(report):
    diverging = {key: REFUSED[key] for key in ("source", "exporter", "mode")} | {"network": "wild", "diverges": 3}
    text = report.report([TRAINED, diverging], {"own": ["GRU", "wild"]})
    assert text.startswith("1 of 1 files of 1 networks are trained.")
    assert text.endswith("Not compared, for the loss becomes NaN or infinite in PyTorch: wild after 3 steps.")


def test_networks_far_from_pytorch_are_named(report):
    far = TRAINED | {"network": "far", "gradient": 1e-3}
    text = report.report([TRAINED, far], {"own": ["GRU", "far"]})
    assert "most 4.0 times PyTorch's (GRU), but for far, whose float64 parts from float32 at a kink (Branches)." in text


def test_the_last_result_of_a_file_counts(report):
    lines = [json.dumps(REFUSED), json.dumps(NOT_EXPORTED), json.dumps(REFUSED | {"failure": "later"})]
    assert [r.get("failure") for r in report.last_results(lines)] == ["later", None]


def test_the_page_shows_the_stored_results(report, tmp_path):
    page = tmp_path / "networks.md"
    page.write_text(report.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    report.main(["--page", str(page)])
    assert page.read_text(encoding="utf-8") == report.PAGE.read_text(encoding="utf-8")


def test_earlier_timings_are_marked_and_left_out(report):
    before = TRAINED | {"network": "net", "step": 1.9, "winograd": False}
    assert "| 0.95† |" in report.row(before)
    text = report.report([TRAINED, before], {"own": ["GRU", "net"]})
    assert "between 0.25 and 0.25 of PyTorch's CPU time, in the median\n0.25, in the 1 files without a mark." in text
