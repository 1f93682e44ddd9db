"""The Python blocks of README.md and docs/ run as they stand, those of one file one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnxtrain_sklearn.losses import LOSSES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page, each with the number of the line before it."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in found]


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": page.stem}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


def test_example_of_the_readme_is_short():
    _, code = blocks(PAGES[0])[0]
    assert len([line for line in code.splitlines() if line]) <= 15


def test_readme_counts_the_losses():
    assert f"[{len(LOSSES)}](docs/api/losses.md)" in PAGES[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing
