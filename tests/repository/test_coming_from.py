"""The pages for those who come from other libraries: both sides of the code run where the other library is installed.

``tests/repository/test_readme.py`` runs this package's side, and scikit-learn's, everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "coming_from"
NEEDS = {
    "skorch": ("torch", "onnxscript", "skorch"),
    "pytorch_loop": ("torch", "onnxscript"),
}


def blocks(page: Path) -> list[tuple[str, int, str]]:
    """Return the blocks of Python: the name of the language, the number of the line before, the code."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(python|py)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [(match[1], text.count("\n", 0, match.start(2)), match[2]) for match in found]


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.filterwarnings("ignore")  # of the other library
def test_both_sides_run(name, tmp_path, monkeypatch):
    for package in NEEDS[name]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    page, namespace = PAGES / f"{name}.md", {"__name__": name}
    for _, line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_each_pair_shows_two_libraries(page):
    pairs = re.findall(r'<div class="beside">(.*?)</div>', page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert pairs
    for pair in pairs:
        captions = re.findall(r"^\*\*(.+)\*\*$", pair, flags=re.MULTILINE)
        assert len(captions) == len(re.findall(r"^```py", pair, flags=re.MULTILINE)) == 2
        assert captions[1] == "onnxtrain-sklearn"


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_code_of_the_other_side_is_python(page):
    for language, line, code in blocks(page):
        compile("\n" * line + code, f"{page.name}, {language}", "exec")
