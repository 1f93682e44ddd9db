"""The page of the benchmark of the peers: its ratios, the aims that it counts as met, and its picture."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

# the oldest matplotlib calls pyparsing by old names
pytestmark = pytest.mark.filterwarnings("ignore:.* deprecated:DeprecationWarning")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("fit_step", "peers", "peers_report")


@pytest.fixture
def report(monkeypatch):
    """Return the module that writes the page."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        importlib.import_module(name)
    yield sys.modules["peers_report"]
    for name in MODULES:
        sys.modules.pop(name, None)


def row(case, optimizer, **cpu):
    """A row of the results, whose wall times are not the CPU times."""
    return {"case": case, "optimizer": optimizer, "microseconds": {name: [9.0, t] for name, t in cpu.items()}}


ROWS = [
    row(0, "sgd", ours=20.0, plain=21.0, sklearn=120.0, torch=170.0),
    row(3, "adamw", ours=1500.0, plain=1800.0, sklearn=2250.0, torch=2250.0),
]
RESULTS = {"rows": ROWS, "versions": {"torch": "2.13.0"}}


def test_the_page_has_the_ratios_of_cpu_times_and_counts_the_aims_met(report):
    lines = report.text(RESULTS).splitlines()
    assert lines[2] == "| [20,100,2], batch 32 | SGD | 20.0 | 21.0 | 6, 5.71 (6) | 8.5, 8.1 (9) | – (17) |"
    assert (
        lines[3]
        == "| [784,256,128,10], batch 128 | AdamW | 1,500 | 1,800 | 1.5, 1.25 (1.8) | 1.5, 1.25 (1.4) | – (2.1) |"
    )
    compiled, default, versions = lines[5:]
    assert "1 of 2 beside scikit-learn MLP, 1 of 2 beside PyTorch eager, 0 of 2 beside skorch" in compiled
    assert "0 of 2 beside scikit-learn MLP, 0 of 2 beside PyTorch eager, 0 of 2 beside skorch" in default
    assert versions == "Versions: torch 2.13.0."


def test_packages_that_are_not_installed_have_no_version(report, monkeypatch, tmp_path):
    peers = sys.modules["peers"]
    monkeypatch.setattr(peers, "PACKAGES", ("numpy", "no_such_package"))
    peers.write_results(tmp_path / "results.json", 1, ROWS)
    assert list(json.loads((tmp_path / "results.json").read_text())["versions"]) == ["numpy"]


def test_the_picture_is_drawn(report, tmp_path):
    report.draw(ROWS, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
