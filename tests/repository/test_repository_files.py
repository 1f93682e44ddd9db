"""Files for contributors and for those who cite: they are valid, and say what the package says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onnxtrain_sklearn

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))

yaml = pytest.importorskip("yaml")


def test_the_citation_names_the_version_and_the_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what the format requires
    assert str(citation["version"]) == onnxtrain_sklearn.__version__
    assert (ROOT / "LICENSE").read_text().startswith(f"{citation['license']} License")


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_issue_forms_have_required_fields(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields) > 0
    assert all(part["attributes"]["label"] for part in fields)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "README.md"])
def test_links_and_targets_exist(name):
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / link).exists(), link
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
