"""The Python blocks of README.md and docs/ run as they stand, those of one file one after the other.

A block of text right after one shows what it prints.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTES = sorted((ROOT / "benchmarks").glob("*.md"))
NEEDS = {"spark.md": "pyspark"}
"""The package without which a page is skipped."""


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page, each with the number of the line before it."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in found]


def printed(page: Path) -> dict[str, str]:
    """Return what the page says that blocks print, by their code."""
    text = page.read_text(encoding="utf-8")
    found = re.split(r"^```(\w*)\n(.*?)^```$\n?", text, flags=re.DOTALL | re.MULTILINE)
    kinds, codes, gaps = found[1::3], found[2::3], found[3::3]
    pairs = zip(kinds, codes, gaps, kinds[1:], codes[1:], strict=False)
    return {code: after for kind, code, gap, then, after in pairs if (kind, gap, then) == ("python", "\n", "text")}


def wording(text: str) -> tuple[list[str], list[float]]:
    """Return the text without its numbers, and the numbers."""
    number = r"\d+(?:\.\d+)?"
    return re.sub(number, "#", text).split(), [float(found) for found in re.findall(number, text)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_code_runs(page, tmp_path, monkeypatch, capsys):
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # Spark's workers run the python3 of the path
    if any("import dask" in code for _, code in blocks(page)):
        pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    namespace, shown = {"__name__": page.stem}, printed(page)
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
        (words, numbers), said = wording(shown.get(code, "")), wording(capsys.readouterr().out)
        assert code not in shown or said == (words, pytest.approx(numbers, rel=0.05, abs=0.02))


def test_first_pages_show_printed_output():
    assert len(printed(PAGES[0])) == 1
    assert len(printed(ROOT / "docs" / "getting_started.md")) == 4


def test_example_of_the_readme_is_short():
    _, code = blocks(PAGES[0])[0]
    assert len([line for line in code.splitlines() if line]) <= 15


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing
