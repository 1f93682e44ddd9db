"""The workflows of GitHub call targets of the Makefile that exist, on every Python that the package admits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict]:
    """Return the steps of all jobs of a workflow."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    called = re.findall(r"\bmake ([a-z-]+)", "\n".join(step.get("run", "") for step in steps(path)))
    assert called
    assert set(called) <= targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_by_default(path):
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


def test_workflows_test_every_declared_python():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.findall(r"Programming Language :: Python :: (3\.\d+)", text)
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    assert declared
    assert set(declared) <= set(jobs["newest"]["strategy"]["matrix"]["python"])
