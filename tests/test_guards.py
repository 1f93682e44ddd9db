"""Guards of the architecture: who may import whom, what is public, and what the import says without a runtime."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxtrain_sklearn

PACKAGE = "onnxtrain_sklearn"
FOLDER = Path(onnxtrain_sklearn.__file__).parent

# A module imports only from rows above its own, and from its own package's rows above.
LAYERS = (
    "exceptions",
    "_runtime",
    "_graph.builder",
    "_graph.model",
    "_graph.rewrite",
    "models",
    "losses",
    "schedules",
    "optimizers",
    "_gradient.ort",
    "_gradient.engine",
    "_data",
    "_parameters",
    "_step",
    "_inference",
    "_trainer",
    "_estimators",
    "export",
    "__main__",
)

# The modules that may import the package `onnx`, and what of it. Graphs are `onnx_ir` models everywhere else.
PROTOBUF = {
    "_graph.builder": "operator schemas",
    "_graph.model": "the border: what users give and get",
    "_gradient.ort": "the builder takes and returns bytes",
    "_gradient.engine": "gradient_graph takes and returns a ModelProto",
    "models": "the type that builders return",
    "_estimators": "the type that to_onnx returns",
}

PUBLIC = {
    "OrtGradientClassifier",
    "OrtGradientRegressor",
    "MLP",
    "Linear",
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "LBFGS",
    "losses",
    "schedules",
    "gradient_graph",
    "__version__",
}

PARAMETERS = (
    "model loss optimizer learning_rate_init learning_rate batch_size max_iter shuffle alpha l1_ratio max_grad_norm "
    "trainable output class_weight tol n_iter_no_change early_stopping validation_fraction warm_start random_state "
    "verbose engine device providers provider_options session_options"
).split()


def modules() -> list[str]:
    """Return the names of the package's modules, without those of the packages (``__init__``)."""
    files = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py"))
    return sorted(".".join(file.parts) for file in files if file.name != "__init__")


def imports(module: str) -> Iterator[str]:
    """Yield the full names of what ``module`` imports, wherever in it: ``from a import b`` gives ``a.b``."""
    parent = [PACKAGE, *module.split(".")[:-1]]
    tree = ast.parse((FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def own_imports(module: str) -> Iterator[str]:
    """Yield the modules of the package that ``module`` imports; "" stands for the package root."""
    known = modules()
    for name in imports(module):
        top, _, rest = name.partition(".")
        if top == PACKAGE:
            yield next((m for m in known if rest == m or rest.startswith(f"{m}.")), "")


def imports_package(module: str, package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in imports(module))


def test_every_module_has_a_row():
    assert set(modules()) <= set(LAYERS), "give the new module its row in LAYERS, and in the table of docs/index.md"


@pytest.mark.parametrize("module", modules())
def test_imports_point_upwards(module):
    above = LAYERS[: LAYERS.index(module)]
    wrong = sorted(name or f"the package root {PACKAGE}" for name in own_imports(module) if name not in above)
    assert not wrong, f"{module} may not import {wrong}"


def test_only_one_module_imports_onnxruntime():
    assert [m for m in modules() if imports_package(m, "onnxruntime")] == ["_runtime"]


def test_protobuf_stays_at_the_border():
    assert {m for m in modules() if imports_package(m, "onnx")} <= set(PROTOBUF)
    assert {name for name in imports("_graph.builder") if name.split(".")[0] == "onnx"} == {"onnx.defs"}


def test_packages_hold_no_code():
    for path in FOLDER.rglob("__init__.py"):
        if path.parent != FOLDER:
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert all(isinstance(node, ast.Expr) for node in body), path


def test_public_names():
    assert set(onnxtrain_sklearn.__all__) == PUBLIC
    assert all(hasattr(onnxtrain_sklearn, name) for name in PUBLIC)


@pytest.mark.parametrize("name", ["OrtGradientClassifier", "OrtGradientRegressor"])
def test_parameters_of_the_estimators(name):
    parameters = inspect.signature(getattr(onnxtrain_sklearn, name)).parameters
    expected = [p for p in PARAMETERS if name == "OrtGradientClassifier" or p != "class_weight"]
    assert list(parameters) == expected
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values() if p.name != "model")


def test_import_without_onnxruntime_names_the_extras():
    program = f"import sys; sys.modules['onnxruntime'] = None; import {PACKAGE}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    message = result.stderr.splitlines()
    assert any(line.startswith(f"{PACKAGE}.exceptions.RuntimeNotFoundError") for line in message)
    assert "onnxtrain-sklearn[ort-training]" in result.stderr
    assert "onnxtrain-sklearn[portable]" in result.stderr


def test_import_of_the_package_needs_no_optional_package():
    blocked = ["matplotlib", "pandas", "skl2onnx", "torch", "onnxscript"]
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); import {PACKAGE}"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
