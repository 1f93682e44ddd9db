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


def defined_names(module: str) -> set[str]:
    """Return the names of the functions, classes and constants at the top level of ``module``."""
    names = set()
    for node in syntax_tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def functions(module: str) -> Iterator[ast.FunctionDef]:
    return (node for node in nodes_of(module) if isinstance(node, ast.FunctionDef))


def lines_of_code(function: ast.FunctionDef) -> int:
    """Return the lines of the body, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    return ((m, node) for m in modules() for node in nodes_of(m) if isinstance(node, ast.ClassDef))


@cache
def sources(module: str) -> dict[str, str]:
    """Return the modules of the package from which ``module`` imports names, by the names in its code."""
    found = {}
    for node in nodes_of(module):
        if isinstance(node, ast.ImportFrom) and node.level:
            parent = module.split(".")[: -node.level]
            base = ".".join([*parent, *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{base}.{alias.name}".lstrip(".")
                found[alias.asname or alias.name] = whole if whole in modules() else base
    return found


def used_names(node: ast.AST) -> Iterator[str]:
    """Yield the names in the code of a class, without those in annotations."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in ("annotation", "returns"):
                yield from used_names(child)
    if isinstance(node, ast.Name):
        yield node.id
