"""Guards of the architecture: who may import whom, what is public, and what the import says without a runtime."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import onnxtrain_sklearn
from tests.helpers.source_code import (
    FOLDER,
    PACKAGE,
    imports,
    imports_package,
    modules,
    nodes_of,
    own_imports,
    room,
    uses_of_onnx,
)

ROOT = Path(__file__).parents[2]


def _layers() -> dict[str, int]:
    """Read the layer of each room from the table on design."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, flags=re.MULTILINE)
    return {name: int(layer) for layer, names in rows for name in re.findall(r"`(\w+)/?`", names)}


LAYERS = _layers()

# What modules may use of the package `onnx`. Graphs are `onnx_ir` models inside; protobuf is for the border.
PROTOBUF = {
    # a graph whose gradient is known
    "_cli.doctor": {"parser"},
    # reads and writes files
    "_cli.console": {"ModelProto"},
    "_cli.export": {"ModelProto", "helper"},
    "_cli.train": {"ModelProto", "compose"},
    "_estimators.classifier": {"ModelProto"},
    # tells what users give
    "_estimators.describe": {"ModelProto"},
    # to_training_onnx returns one
    "_estimators.files": {"ModelProto"},
    # to_onnx returns one
    "_estimators.base": {"ModelProto"},
    "_estimators.regressor": {"ModelProto"},
    # takes what users give
    "_estimators.graph_plan": {"ModelProto"},
    # to_onnx returns one
    "_estimators.fitted_state": {"ModelProto"},
    "_export.graphs": {"ModelProto"},
    "_export.manifest": {"ModelProto"},
    # training_info is not in onnx_ir
    "_export.training_info": {
        "GraphProto",
        "ModelProto",
        "TensorProto",
        "ValueInfoProto",
        "helper",
        "load_model_from_string",
        "numpy_helper",
    },
    # of what skl2onnx gives
    "_fitted.convert": {"checker"},
    # runs the file as given
    "_pretrained.comparison": {"ModelProto", "ValueInfoProto"},
    # gradient_graph takes and returns one
    "_gradient.derivatives": {"ModelProto"},
    # the builder takes and returns bytes
    "_gradient.ort_training": {"load_model_from_string"},
    # declared before they are checked
    "_importers.load": {"ModelProto", "TensorProto", "ValueInfoProto", "checker", "helper", "shape_inference"},
    # rewritten before they are checked
    "_importers.tf2onnx": {
        "GraphProto",
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "defs",
        "helper",
        "shape_inference",
    },
    # rewritten as they are read
    "_ir.edits": {"AttributeProto", "GraphProto", "ModelProto", "NodeProto"},
    "_ir.files": {"GraphProto", "ModelProto", "TensorProto", "external_data_helper", "load", "load_model_from_string"},
    # counted unread; a strict one
    "_ir.limits": {
        "AttributeProto",
        "FunctionProto",
        "GraphProto",
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "shape_inference",
    },
    # rewritten before ONNX's converter and inliner read them, and after; of what comes over the border
    "_ir.opsets": {
        "FunctionProto",
        "GraphProto",
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "TypeProto",
        "checker",
        "helper",
        "inliner",
        "numpy_helper",
        "shape_inference",
        "version_converter",
    },
    # the border itself
    "_ir.protobuf": {"ModelProto", "TensorProto", "helper", "load_model_from_string"},
    # inference of single nodes
    "_ir.shapes": {"ModelProto", "checker", "defs", "helper", "shape_inference"},
    # the defaults of attributes
    "_ir.supported": {"defs"},
    "_model.graph_comparison": {"ModelProto", "NodeProto", "TensorProto", "TypeProto", "ValueInfoProto", "helper"},
    # of pickles
    "_model.trainable": {"load_model_from_string"},
    "_multi_output.estimator": {"ModelProto"},
    # graphs that a session refused or that index a table; of wrong kernels, bytes for a session, and what is exported
    "_ort.sessions": {"GraphProto", "TensorProto", "load_model_from_string"},
    "_ort.wrong_kernels": {
        "FunctionProto",
        "GraphProto",
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "helper",
        "load_model_from_string",
        "numpy_helper",
    },
    # to_onnx returns one, pickles hold its bytes
    "_recipes.base": {"ModelProto", "load_model_from_string"},
    "classic.artifacts": {"ModelProto", "save"},
    # the classic interfaces give graphs as protobuf
    "classic.grad_helper": {"ModelProto", "ValueInfoProto", "save"},
    "classic.onnxblock.blocks": {
        "ModelProto",
        "TensorProto",
        "ValueInfoProto",
        "checker",
        "helper",
        "numpy_helper",
        "shape_inference",
    },
    "classic.onnxblock.checkpoint": {"ModelProto", "TensorProto", "ValueInfoProto", "helper", "numpy_helper"},
    "classic.onnxblock.loss": {"ModelProto", "TensorProto", "ValueInfoProto", "helper"},
    "classic.onnxblock.optim": {"ModelProto", "TensorProto", "ValueInfoProto", "helper"},
    "classic.onnxblock.training": {"ModelProto", "TensorProto", "ValueInfoProto", "helper", "load_model_from_string"},
    "classic.ortgradient": {"ModelProto"},
    "classic.training_session": {"ModelProto", "load_model_from_string", "save"},
    # draws what users give
    "displays.graph": {"ModelProto"},
    # operator schemas
    "graph": {"defs"},
    "models.base": {"ModelProto"},
    "models.embeddings": {"ModelProto"},
    "models.layers": {"ModelProto"},
    "models.tabular": {"ModelProto"},
}

PUBLIC = {
    "OrtGradientClassifier",
    "OrtGradientMultiOutput",
    "OrtGradientRegressor",
    "RealMLPClassifier",
    "RealMLPRegressor",
    "TabMClassifier",
    "TabMRegressor",
    "MLP",
    "Linear",
    "ConvNet",
    "RealMLP",
    "TabM",
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "LBFGS",
    "FineTuner",
    "GraphModel",
    "LoRA",
    "RowBlocks",
    "Runtime",
    "Inputs",
    "PaddedRows",
    "callbacks",
    "losses",
    "schedules",
    "gradient_graph",
    "hvp_graph",
    "jacobian_graph",
    "jvp_graph",
    "vjp_graph",
    "graph",
    "export_training",
    "load_training",
    "ModelLimits",
    "model_limits",
    "clear_cache",
    "register_converters",
}

PARAMETERS = (
    "model loss loss_weights optimizer learning_rate_init learning_rate batch_size max_iter shuffle drop_last alpha "
    "l1_ratio dropout_schedule "
    "trainable adapters finetune ignore_label class_weight "
    "target_scaling clip_predictions tol "
    "n_iter_no_change early_stopping scoring validation_split callbacks warm_start random_state verbose engine "
    "device runtime"
).split()


def test_table_on_design_lists_every_room():
    assert {room(module) for module in modules()} == {*LAYERS}


def test_imports_point_to_the_same_or_a_lower_layer():
    wrong = [
        f"{module} may not import {name or f'the package root {PACKAGE}'}"
        for module in modules()
        for name in own_imports(module)
        if not name or LAYERS[room(name)] > LAYERS[room(module)]
    ]
    assert not wrong


def test_imports_form_no_cycle():
    assert list(TopologicalSorter({m: own_imports(m) for m in modules()}).static_order())  # raises CycleError


def test_private_names_stay_in_their_module():
    known = {*modules(), *map(room, modules())}
    taken = {
        (m, name.removeprefix(f"{PACKAGE}.")) for m in modules() for name in imports(m) if name.startswith(PACKAGE)
    }
    assert not [
        (m, name) for m, name in taken if name.rpartition(".")[2].startswith("_") and name not in {*known, PACKAGE}
    ]


@pytest.mark.parametrize(
    ("package", "importers"),
    [
        ("llvmlite", ["_ort.llvm"]),
        ("onnxruntime", ["_ort.packages"]),
        ("skl2onnx", ["_fitted.skl2onnx_bridge"]),
    ],
)
def test_only_borders_import_the_library(package, importers):
    assert [m for m in modules() if imports_package(m, package)] == importers


def test_protobuf_stays_at_the_border():
    beyond = {module: uses_of_onnx(module) - PROTOBUF.get(module, set()) for module in modules()}
    assert not {module: names for module, names in beyond.items() if names}


def test_values_are_replaced_by_the_functions_of_edits():
    calls = {m: {n.attr for n in nodes_of(m) if isinstance(n, ast.Attribute)} for m in modules()}
    assert [m for m, names in calls.items() if "replace_all_uses_with" in names] == ["_ir.edits"]


def test_packages_hold_no_code():
    for path in FOLDER.rglob("__init__.py"):
        if path.parent not in (
            FOLDER,
            FOLDER / "callbacks",
            FOLDER / "classic" / "onnxblock",
            FOLDER / "dask",
            FOLDER / "displays",
            FOLDER / "losses",
            FOLDER / "models",
            FOLDER / "optimizers",
        ):  # public: they hold imports
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert all(isinstance(node, ast.Expr) for node in body), path


def test_public_names():
    assert set(onnxtrain_sklearn.__all__) == PUBLIC
    assert all(hasattr(onnxtrain_sklearn, name) for name in PUBLIC)


@pytest.mark.parametrize("name", ["OrtGradientClassifier", "OrtGradientRegressor", "OrtGradientMultiOutput"])
def test_parameters_of_the_estimators(name):
    parameters = inspect.signature(getattr(onnxtrain_sklearn, name)).parameters
    others = {
        "OrtGradientClassifier": {"target_scaling", "clip_predictions", "loss_weights"},
        "OrtGradientRegressor": {"ignore_label", "class_weight", "loss_weights"},
        "OrtGradientMultiOutput": {"target_scaling", "clip_predictions", "finetune"},
    }[name]
    assert next(iter(parameters)) == "model"
    assert set(parameters) == set(PARAMETERS) - others
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values() if p.name != "model")


def import_without(*blocked: str, then: str = "") -> subprocess.CompletedProcess[str]:
    """Import the package in a new process that cannot import the packages ``blocked``, and run ``then``."""
    program = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
import {PACKAGE}
{then}"""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


OPTIONAL = ("skl2onnx", "matplotlib", "torch", "onnxscript", "IPython")


@pytest.mark.slow
def test_fit_without_onnxruntime_names_the_extras():
    fit = f"{PACKAGE}.OrtGradientRegressor().fit([[0.0], [1.0]], [0.0, 1.0])"
    result = import_without("onnxruntime", "pandas", *OPTIONAL, then=fit)  # the import needs none of these
    assert result.returncode == 1
    assert f"{PACKAGE}.exceptions.RuntimeNotFoundError" in result.stderr
    assert "onnxtrain-sklearn[ort-training]" in result.stderr
    assert "onnxtrain-sklearn[portable]" in result.stderr


@pytest.mark.slow
def test_import_loads_nothing_that_a_first_fit_does_not_need():
    heavy = (*OPTIONAL, "onnx.reference", "sklearn.compose", "sklearn.ensemble", "sklearn.metrics", "sympy")
    program = f"import sys, {PACKAGE}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
