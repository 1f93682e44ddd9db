"""The built documentation site: its pages, their links, and what the first page shows.

``make docs`` runs these tests on the site that it has built; elsewhere they are skipped.
"""

from __future__ import annotations

import os
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(os.environ.get("ONNXTRAIN_SITE", ""))
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif("ONNXTRAIN_SITE" not in os.environ, reason="make docs runs them, on what it built")


class Page(HTMLParser):
    """What the tests ask of a page: anchors, links, files loaded from elsewhere, and texts by tag."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("img", "script"):
            self.loaded.append(found.get("src") or "")
        if tag == "link" and found.get("rel") == "stylesheet":
            self.loaded.append(found.get("href") or "")
        if tag in ("title", "h1", "h2", "h3", "pre", "dt"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag == self.open[-1]:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data


@cache
def page(name: str) -> Page:
    return Page(SITE / name)


def names() -> list[str]:
    return sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if "_static" not in path.parts)


def headings(name: str, tag: str) -> list[str]:
    return [text.strip().rstrip("#") for text in page(name).texts.get(tag, [])]


def target(name: str, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    file = (SITE / name).parent / unquote(parts.path) if parts.path else SITE / name
    return file.resolve(), unquote(parts.fragment)


def test_first_page():
    first = page("index.html")
    assert headings("index.html", "h1") == ["onnxtrain-sklearn"]
    assert headings("index.html", "h2") == ["What do you have?", "An example", "Where to go"]
    assert any(source.endswith("overview.svg") for source in first.loaded)
    code = first.texts["pre"][0]
    compile(code, "index.html", "exec")
    assert len([line for line in code.splitlines() if line]) <= 15
    for part in ("getting_started", "guide", "gallery/index", "api/index", "coming_from", "design", "benchmarks"):
        assert f"{part}.html" in first.links, part


def test_every_page_has_a_title_and_one_main_heading():
    pages = [name for name in names() if not name.startswith(("_modules/", "genindex", "py-modindex", "search"))]
    wrong = [name for name in pages if len(headings(name, "h1")) != 1 or not headings(name, "title")]
    assert len(pages) > 200
    assert not wrong


def leads_somewhere(name: str, link: str) -> bool:
    """Whether the page and the anchor exist that ``link`` on page ``name`` names."""
    file, anchor = target(name, link)
    if not file.exists() or file.suffix != ".html" or not anchor:
        return file.exists()
    return anchor in page(str(file.relative_to(SITE.resolve()))).anchors


def test_links_within_the_site_lead_somewhere():
    links = [
        (name, link)
        for name in names()
        for link in set(page(name).links)
        # Pages of source code name some classes by the module that defines them: they lead to the right page alone.
        if not urlsplit(link).scheme and not link.startswith("//") and not name.startswith("_modules/")
    ]
    assert not [(name, link) for name, link in links if not leads_somewhere(name, link)]


def test_nothing_is_loaded_from_elsewhere():
    assert not [(name, file) for name in names() for file in page(name).loaded if re.match(r"(https?:)?//", file)]


def test_pictures_exist():
    pictures = [(name, file) for name in names() for file in page(name).loaded if re.search(r"\.(png|svg|webp)$", file)]
    assert not [(name, file) for name, file in pictures if not target(name, file)[0].exists()]


def test_each_example_has_a_page_with_its_code():
    examples = ROOT / "examples" / "gallery"
    linked = {target("gallery/index.html", link)[0] for link in page("gallery/index.html").links}
    for script in sorted(examples.rglob("plot_*.py")):
        name = f"gallery/{script.relative_to(examples).with_suffix('.html')}"
        assert (SITE / name).exists(), script
        assert any("onnxtrain_sklearn" in text for text in page(name).texts["pre"]), script
        assert (SITE / name).resolve() in linked, script


def test_a_page_of_the_reference_shows_parameters_and_methods():
    name = "api/generated/onnxtrain_sklearn.OrtGradientClassifier.html"
    shown = " ".join(page(name).texts["dt"])
    for word in ("learning_rate_init", "classes_", "fit(", "predict_proba(", "to_onnx("):
        assert word in shown, word


def test_pages_by_line_name_every_page_of_the_documentation():
    lines = (SITE / "llms.txt").read_text(encoding="utf-8").splitlines()
    entries = [re.fullmatch(r"- \[(.+?)\]\((.+?)\)(: .+)?", line) for line in lines if line.startswith("- ")]
    listed = {entry[2] for entry in entries}
    assert all((SITE / file).exists() for file in listed)
    docs = ROOT / "docs"
    sources = [p.relative_to(docs).with_suffix(".html") for p in docs.rglob("*.md") if p.name != "index.md"]
    assert {str(p) for p in sources} <= listed
