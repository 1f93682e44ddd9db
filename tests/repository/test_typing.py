"""Types that hold: what is declared of other libraries is there."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
from skl2onnx.common._container import ModelComponentContainer
from skl2onnx.common._topology import Operator, Scope, Variable

from onnxtrain_sklearn._utils import typing as _typing

STUBS = Path(__file__).parents[2] / "typings"


def stubs():
    for path in sorted(STUBS.rglob("*.pyi")):
        module = ".".join(path.relative_to(STUBS).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name != "__getattr__":
                yield pytest.param(module, node, id=f"{module}.{node.name}")


@pytest.mark.parametrize(("module", "node"), stubs())
def test_stubs_match_the_libraries(module, node):
    if module == "sklearn.callback":
        pytest.importorskip(module, reason="of scikit-learn 1.9")
    owner = getattr(importlib.import_module(module), node.name)
    pairs = [(owner, node)]
    if isinstance(node, ast.ClassDef):
        pairs = [(getattr(owner, one.name), one) for one in node.body if isinstance(one, ast.FunctionDef)]
    for function, declared in pairs:
        names = {p.arg for p in (*declared.args.args, *declared.args.kwonlyargs)}
        assert names <= set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("protocol", "theirs"),
    [
        (_typing.Container, ModelComponentContainer),
        (_typing.Operator, Operator),
        (_typing.Scope, Scope),
        (_typing.Variable, Variable),
    ],
)
def test_protocols_have_the_methods_of_skl2onnx(protocol, theirs):
    declared = {n: m for base in protocol.__mro__ for n, m in vars(base).items() if inspect.isfunction(m)}
    for name, method in ((n, m) for n, m in declared.items() if n in ("_get_allowed_options",) or n[0] != "_"):
        own = inspect.signature(getattr(theirs, name)).parameters
        wanted = list(inspect.signature(method).parameters.values())
        positional = [p for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert len(positional) <= len(own)
        assert {p.name for p in wanted if p.kind is p.KEYWORD_ONLY} <= own.keys()
