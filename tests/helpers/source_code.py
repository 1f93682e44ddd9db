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
    """Return the names of the package's modules, with those packages that hold more than a docstring."""
    files = (path.relative_to(FOLDER) for path in FOLDER.rglob("*.py"))
    plain = [file.with_suffix("") for file in files if file.name != "__init__.py"]
    packages = [path.parent.relative_to(FOLDER) for path in FOLDER.glob("*/**/__init__.py")]
    full = [folder for folder in packages if len(tree_of_file(FOLDER / folder / "__init__.py").body) > 1]
    return sorted(".".join(file.parts) for file in [*plain, *full])


@cache
def tree_of_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of_file(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of_file(path)))


def file_of(module: str) -> Path:
    path = FOLDER / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def syntax_tree(module: str) -> ast.Module:
    return tree_of_file(file_of(module))


def nodes_of(module: str) -> list[ast.AST]:
    return nodes_of_file(file_of(module))


@cache
def imports(module: str) -> list[str]:
    return list(_imports(module))


def _imports(module: str) -> Iterator[str]:
    """Yield the full names of what ``module`` imports, wherever in it: ``from a import b`` gives ``a.b``."""
    parent = [PACKAGE, *file_of(module).parent.relative_to(FOLDER).parts]
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


@cache
def own_imports(module: str) -> list[str]:
    """Return the modules of the package that ``module`` imports; "" stands for the package root."""
    names = (name.split(".") for name in imports(module))
    known = set(modules())
    paths = [name[1:] for name in names if name[0] == PACKAGE]
    prefixes = ([".".join(path[:n]) for n in range(len(path), 0, -1)] for path in paths)
    return [next((name for name in found if name in known), "") for found in prefixes]


def imports_package(module: str, package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in imports(module))


def uses_of_onnx(module: str) -> set[str]:
    """Return what ``module`` takes from the package ``onnx``, by ``onnx.load`` or by an import."""
    attributes = (node for node in nodes_of(module) if isinstance(node, ast.Attribute))
    used = {a.attr for a in attributes if isinstance(a.value, ast.Name) and a.value.id == "onnx"}
    return used | {name.split(".")[1] for name in imports(module) if name.startswith("onnx.")}


def room(module: str) -> str:
    return module.partition(".")[0]
