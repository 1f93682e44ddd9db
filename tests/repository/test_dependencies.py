"""Each distribution that the package imports is declared in pyproject.toml."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.helpers.source_code import FOLDER, tree_of_file

ROOT = Path(__file__).parents[2]
OTHERWISE = {"onnxruntime", "google"}
"""onnxruntime is installed by the extras; google.protobuf holds the base class of the messages of onnx."""


def imported():
    """Return the top-level packages that the modules of the package import, except optional and standard ones."""
    found = set()
    for path in FOLDER.rglob("*.py"):
        for node in tree_of_file(path).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level and node.module else []
            found |= {name.partition(".")[0] for name in names}
    return found - set(sys.stdlib_module_names) - {"onnxtrain_sklearn"}


def declared():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE).group(1)
    return {match.lower().replace("_", "-") for match in re.findall(r'^\s*"([\w-]+)', block, re.MULTILINE)}


def test_imported_distributions_are_declared():
    installed = [distribution(name).read_text("RECORD").splitlines() for name in declared()]
    provided = {file.partition("/")[0].removesuffix(".py") for files in installed for file in files}
    assert not imported() - OTHERWISE - provided, "no distribution that pyproject.toml declares has it"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no tomllib")
def test_no_dependency_has_an_upper_bound():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    others = [one.partition(";")[0] for one in listed if not one.startswith(project["name"])]
    assert [one for one in others if not re.search(r">=[\d.]+$|==[\d.]+$", one)] == []
