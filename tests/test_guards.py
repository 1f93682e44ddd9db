"""Guards of the architecture: who may import whom, what is public, and what the import says without a runtime."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxtrain_sklearn

PACKAGE = "onnxtrain_sklearn"
FOLDER = Path(onnxtrain_sklearn.__file__).parent
ROOT = Path(__file__).parents[1]

# A module imports only from rows above its own, and from its own package's rows above.
LAYERS = (
    "exceptions",
    "_content",
    "_refusal",
    "_runtime",
    "_graph.builder",
    "_graph.folding",
    "_graph.limits",
    "_graph.files",
    "_graph.survival",
    "_gradient.known",
    "_graph.contrib.source",
    "_graph.contrib.activations",
    "_graph.contrib.attention",
    "_graph.contrib.normalization",
    "_graph.contrib.products",
    "_graph.lowering",
    "_graph.versions",
    "_graph.border",
    "_graph.final_activation",
    "_graph.ranges",
    "_graph.weights",
    "_graph.roles",
    "_graph.constants",
    "_graph.model",
    "_graph.columns",
    "_graph.rewrites.source",
    "_graph.rewrites.scores",
    "_graph.rewrites.distances",
    "_graph.rewrites.features",
    "_graph.rewrites.forest",
    "_graph.rewrites.linear",
    "_graph.rewrites.plain",
    "_graph.rewrites.probabilities",
    "_graph.rewrites.svm",
    "_graph.rewrites.trees",
    "_graph.rewrite",
    "models",
    "losses",
    "schedules",
    "optimizers",
    "_gradient.nodes",
    "_gradient.forms",
    "_gradient.faster",
    "_gradient.ort",
    "_gradient.reverse",
    "_gradient.control",
    "_gradient.attention",
    "_gradient.recurrent",
    "_gradient.sequences",
    "_gradient.expand",
    "_gradient.rules.convolution",
    "_gradient.rules.elementwise",
    "_gradient.rules.indexing",
    "_gradient.rules.likelihood",
    "_gradient.rules.normalization",
    "_gradient.rules.products",
    "_gradient.rules.reductions",
    "_gradient.rules.resampling",
    "_gradient.rules.sampling",
    "_gradient.rules.shapes",
    "_gradient.rules.sources",
    "_gradient.rules.spectra",
    "_gradient.tidy",
    "_gradient.portable",
    "_gradient.engine",
    "_walk",
    "_converters.source",
    "_converters.trees",
    "_converters.neighbours",
    "_converters.calibration",
    "_converters.detectors",
    "_converters.outputs",
    "_converters.ensembles",
    "_converters.expansions",
    "_converters.features",
    "_converters.linear",
    "_converters.nearest",
    "_converters.processes",
    "_converters.targets",
    "_converters.registry",
    "_embedding",
    "_repairs",
    "_boosters",
    "_conversion",
    "_tables",
    "_tracers",
    "_origins",
    "_votes",
    "_scores",
    "_labels",
    "_fitted",
    "_write_back",
    "_proof",
    "_rounding",
    "_data",
    "_inputs",
    "_encoding",
    "_targets",
    "_parameters",
    "_selection",
    "_dropout",
    "_training_graph",
    "_step",
    "_device_step",
    "_inference",
    "_given",
    "_history",
    "_interrupts",
    "_trainer",
    "_components",
    "_validation",
    "_settings",
    "_start",
    "_ml_files",
    "_run",
    "_linear",
    "_description",
    "_record",
    "_attempt",
    "_base",
    "_availability",
    "_estimators",
    "export",
    "__main__",
)

# What modules may use of the package `onnx`. Graphs are `onnx_ir` models inside; protobuf is for the border.
PROTOBUF = {
    "_graph.builder": {"defs"},  # operator schemas
    "_graph.folding": {"defs", "helper", "shape_inference"},  # inference of single nodes
    "_graph.versions": {"ModelProto", "checker", "version_converter"},  # of what comes over the border
    "_graph.model": {"load_model_from_string"},  # of pickles
    "_gradient.known": {"defs"},  # the defaults of attributes
    "_graph.files": {"GraphProto", "ModelProto", "external_data_helper", "load", "load_model_from_string"},
    "_graph.survival": {"shape_inference"},  # a strict one
    "_graph.border": {"ModelProto", "TensorProto", "checker", "helper", "inliner", "shape_inference"},
    "_gradient.ort": {"load_model_from_string"},  # the builder takes and returns bytes
    "_gradient.engine": {"ModelProto"},  # gradient_graph takes and returns one
    "models": {"ModelProto"},  # builders return one
    "export": {"checker", "version_converter"},  # to the opset that skl2onnx asks for
    "_conversion": {"checker"},  # of what skl2onnx gives
    "_run": {"ModelProto"},  # takes what users give
    "_description": {"ModelProto"},  # tells what users give
    "_base": {"ModelProto"},  # to_onnx returns one
    "_estimators": {"ModelProto"},
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
    "Inputs",
    "losses",
    "schedules",
    "gradient_graph",
    "ModelLimits",
    "model_limits",
}

PARAMETERS = (
    "model loss optimizer learning_rate_init learning_rate batch_size max_iter shuffle alpha l1_ratio max_grad_norm "
    "trainable output output_kind class_weight tol n_iter_no_change early_stopping validation_fraction warm_start "
    "random_state verbose engine device providers provider_options session_options"
).split()


def modules() -> list[str]:
    """Return the names of the package's modules, without those of the packages (``__init__``)."""
    files = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py"))
    return sorted(".".join(file.parts) for file in files if file.name != "__init__")


def syntax_tree(module: str) -> ast.Module:
    return ast.parse((FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[str]:
    """Yield the full names of what ``module`` imports, wherever in it: ``from a import b`` gives ``a.b``."""
    parent = [PACKAGE, *module.split(".")[:-1]]
    for node in ast.walk(syntax_tree(module)):
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


def uses_of_onnx(module: str) -> set[str]:
    """Return what ``module`` takes from the package ``onnx``, by ``onnx.load`` or by an import."""
    attributes = (node for node in ast.walk(syntax_tree(module)) if isinstance(node, ast.Attribute))
    used = {a.attr for a in attributes if isinstance(a.value, ast.Name) and a.value.id == "onnx"}
    return used | {name.split(".")[1] for name in imports(module) if name.startswith("onnx.")}


def test_every_module_has_a_row():
    unknown = set(modules()) - set(LAYERS)
    assert not unknown, "give the new module its row in LAYERS and in the table of docs/index.md"


def test_table_of_the_documentation_is_complete():
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([\w.]+)` \|", page, flags=re.MULTILINE)
    assert table == [module for module in LAYERS if module in modules()]


@pytest.mark.parametrize("module", modules())
def test_imports_point_upwards(module):
    above = LAYERS[: LAYERS.index(module)]
    wrong = sorted(name or f"the package root {PACKAGE}" for name in own_imports(module) if name not in above)
    assert not wrong, f"{module} may not import {wrong}"


@pytest.mark.parametrize(
    ("package", "importers"),
    [("onnxruntime", ["_runtime"]), ("skl2onnx", ["_boosters", "_conversion", "_embedding", "export"])],
)
def test_borders_alone_import_it(package, importers):
    assert [m for m in modules() if imports_package(m, package)] == importers


@pytest.mark.parametrize("module", modules())
def test_protobuf_stays_at_the_border(module):
    assert uses_of_onnx(module) <= PROTOBUF.get(module, set())


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


def import_without(*blocked: str) -> subprocess.CompletedProcess[str]:
    """Import the package in a new process that cannot import the packages ``blocked``."""
    program = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
import {PACKAGE}"""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_import_without_onnxruntime_names_the_extras():
    result = import_without("onnxruntime")
    assert result.returncode == 1
    assert f"{PACKAGE}.exceptions.RuntimeNotFoundError" in result.stderr
    assert "onnxtrain-sklearn[ort-training]" in result.stderr
    assert "onnxtrain-sklearn[portable]" in result.stderr


def test_import_needs_no_optional_package():
    result = import_without("matplotlib", "pandas", "skl2onnx", "torch", "onnxscript")
    assert result.returncode == 0, result.stderr
