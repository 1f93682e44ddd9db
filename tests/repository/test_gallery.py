"""The examples of the gallery are articles with a picture that use public names alone; `make docs` runs them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
EXAMPLES = sorted(GALLERY.glob("*/plot_*.py"))
DOWNLOADS = re.compile(r"\bfetch_\w+|urllib|requests\.|urlretrieve|openml")

each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def imported_modules(tree: ast.Module) -> list[str]:
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return names + [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def test_each_section_has_examples():
    sections = {path.parent for path in EXAMPLES}
    assert len(EXAMPLES) >= 12
    assert sections == {path.parent for path in GALLERY.glob("*/GALLERY_HEADER.rst")}


def test_the_site_shows_all_sections():
    settings = (GALLERY.parents[1] / "docs" / "conf.py").read_text(encoding="utf-8")
    order = re.search(r'"subsection_order": \[.*?\],\n', settings, flags=re.DOTALL)
    assert order is not None
    assert all(f'"{path.parent.name}"' in order.group() for path in EXAMPLES)


@each_example
def test_example_has_a_title_and_an_introduction(path):
    title, underline, *text = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    assert underline == "=" * len(underline)
    assert len(underline) >= len(title)
    assert len(" ".join(text)) > 100


@each_example
def test_example_uses_public_names_alone(path):
    names = [name for name in imported_modules(ast.parse(path.read_text(encoding="utf-8"))) if "onnxtrain" in name]
    assert names
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]


@each_example
def test_example_asserts_and_ends_in_a_picture(path):
    code = path.read_text(encoding="utf-8")
    assert re.search(r"^\s*assert ", code, flags=re.MULTILINE)
    assert code.count("plt.show()") == 1
    assert code.endswith("plt.show()\n")


@each_example
def test_example_downloads_nothing(path):
    assert not DOWNLOADS.findall(path.read_text(encoding="utf-8"))
