"""Every public name is in the API reference: docs/api/ lists it, and the site has a page for each."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name

import pytest

PACKAGE = "onnxtrain_sklearn"
API = Path(__file__).parents[2] / "docs" / "api"
MODULES = (
    "",
    *(
        "adapters",
        "callbacks",
        "dask",
        "displays",
        "exceptions",
        "finetuning",
        "graph",
        "losses",
        "models",
        "optimizers",
    ),
    *(
        "skops_types",
        "runtime",
        "schedules",
        "classic.artifacts",
        "classic.grad_helper",
        "classic.onnxblock",
        "classic.onnxblock.blocks",
    ),
    *("classic.onnxblock.loss", "classic.onnxblock.optim", "classic.optimizers", "classic.ortgradient"),
    "classic.training_session",
)


def full_name(*parts: str) -> str:
    return ".".join(filter(None, (PACKAGE, *parts)))


def names_of(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines, or imports to be imported from here (``import A as A``)."""
    match statement:
        case ast.ImportFrom(names=names):
            return [alias.name for alias in names if alias.asname == alias.name]
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
    return []


def public_names(module: str) -> list[str]:
    loaded = importlib.import_module(full_name(module))
    if hasattr(loaded, "__all__"):
        return list(loaded.__all__)
    tree = ast.parse(Path(loaded.__file__).read_text(encoding="utf-8"))
    names = [name for statement in tree.body for name in names_of(statement)]
    return [name for name in names if not name.startswith("_")]


def listed() -> list[str]:
    """Return the full names that the pages of the reference list, modules included."""
    found = []
    for page in sorted(API.glob("*.md")):
        for block in re.findall(r"```\{eval-rst\}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            module = re.search(r"\.\. (?:current)?module:: (\S+)", block)[1]
            found += [module, *(f"{module}.{name}" for name in re.findall(r"^   (\w+)$", block, flags=re.MULTILINE))]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_page(module):
    documented = {id(resolve_name(name)) for name in listed()}
    missing = [name for name in public_names(module) if id(resolve_name(full_name(module, name))) not in documented]
    assert not missing


REGISTRIES = [("losses", "LOSSES"), ("schedules", "SCHEDULES"), ("optimizers", "OPTIMIZERS")]


@pytest.mark.parametrize(("module", "registry"), REGISTRIES)
def test_every_component_is_public(module, registry):
    loaded = importlib.import_module(full_name(module))
    assert {kind.__name__ for kind in getattr(loaded, registry).values()} <= set(public_names(module))


def test_modules_that_list_their_names_list_those_with_pages():
    for name in listed():
        module, _, own = name.rpartition(".")
        if module not in ("", PACKAGE):
            assert own in getattr(resolve_name(module), "__all__", [own]), name


def test_no_name_has_two_pages():
    classes = [resolve_name(name) for name in dict.fromkeys(listed()) if isinstance(resolve_name(name), type)]
    assert not [found for found, count in Counter(classes).items() if count > 1]


def test_modules_that_are_searched_are_those_that_are_public():
    package = Path(importlib.import_module(PACKAGE).__file__).parent
    files = {p.stem for p in package.glob("[!_]*.py")} | {p.parent.name for p in package.glob("[!_]*/__init__.py")}
    assert files - {"classic"} == {m for m in MODULES if m and "." not in m}
