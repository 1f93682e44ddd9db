"""The source code of the package as syntax trees: its modules, what they import, define and use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnxtrain_sklearn

PACKAGE = "onnxtrain_sklearn"
FOLDER = Path(onnxtrain_sklearn.__file__).parent


@cache
def modules() -> list[str]:
    """Return the names of the package's modules, without those of the packages (``__init__``)."""
    files = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py"))
    return sorted(".".join(file.parts) for file in files if file.name != "__init__")


@cache
def tree_of_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of_file(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of_file(path)))


def file_of(module: str) -> Path:
    return FOLDER / f"{module.replace('.', '/')}.py"


def syntax_tree(module: str) -> ast.Module:
    return tree_of_file(file_of(module))


def nodes_of(module: str) -> list[ast.AST]:
    return nodes_of_file(file_of(module))


@cache
def imports(module: str) -> list[str]:
    return list(_imports(module))


def _imports(module: str) -> Iterator[str]:
    """Yield the full names of what ``module`` imports, wherever in it: ``from a import b`` gives ``a.b``."""
    parent = [PACKAGE, *module.split(".")[:-1]]
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


@cache
def own_imports(module: str) -> list[str]:
    """Return the modules of the package that ``module`` imports; "" stands for the package root."""
    names = [name.removeprefix(f"{PACKAGE}.") for name in imports(module) if name.partition(".")[0] == PACKAGE]
    return [next((m for m in modules() if name == m or name.startswith(f"{m}.")), "") for name in names]


def imports_package(module: str, package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in imports(module))


def uses_of_onnx(module: str) -> set[str]:
    """Return what ``module`` takes from the package ``onnx``, by ``onnx.load`` or by an import."""
    attributes = (node for node in nodes_of(module) if isinstance(node, ast.Attribute))
    used = {a.attr for a in attributes if isinstance(a.value, ast.Name) and a.value.id == "onnx"}
    return used | {name.split(".")[1] for name in imports(module) if name.startswith("onnx.")}


def room(module: str) -> str:
    return module.partition(".")[0]
