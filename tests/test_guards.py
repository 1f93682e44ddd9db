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

ROOT = Path(__file__).parents[1]

# A module imports from its own room and from rooms of the rows above; rooms of one row do not see each other.
# Every room may import the errors, and the program imports the last one.
ERRORS, PROGRAM = "exceptions", "__main__"
ROOMS = (
    {"_support"},
    {"_runtime"},
    {"_graph"},
    {
        "adapters",
        "finetuning",
        "graph",
        "_callbacks",
        "_compiler",
        "_data",
        "_gradient",
        "_losses",
        "_ml_operators",
        "_models",
        "_optimizers",
        "_schedules",
    },
    {"callbacks", "losses", "models", "optimizers", "schedules", "_inference"},
    {"_training", "_fitted", "classic"},
    {"_given", "_export"},
    {"_estimators"},
    {"_recipes", "_multi_output", "displays", "persistence"},
    {"_command_line"},
)

# What modules may use of the package `onnx`. Graphs are `onnx_ir` models inside; protobuf is for the border.
PROTOBUF = {
    "_graph.old_forms": {"GraphProto", "ModelProto", "NodeProto", "helper", "shape_inference", "version_converter"},
    "_graph.builder": {"defs"},  # operator schemas
    "_graph.inferred_types": {"ModelProto", "shape_inference"},
    "_graph.node_shapes": {"checker", "defs", "helper", "shape_inference"},  # inference of single nodes
    "_graph.own_tensors": {"ModelProto"},
    "_graph.meanings": {  # rewritten before ONNX's converter and inliner read them, and after
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
    "_graph.versions": {"ModelProto"},  # of what comes over the border
    "_graph.tensorflow_operators": {  # rewritten before they are checked
        "GraphProto",
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "defs",
        "helper",
        "shape_inference",
    },
    "_graph.trainable": {"load_model_from_string"},  # of pickles
    "_runtime.device_graphs": {  # bytes for a session on a device
        "FunctionProto",
        "GraphProto",
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "helper",
        "load_model_from_string",
    },
    "_runtime.integer_products": {  # bytes for a session, and what is exported
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "helper",
        "load_model_from_string",
        "numpy_helper",
    },
    "_graph.supported": {"defs"},  # the defaults of attributes
    "_graph.files": {
        "GraphProto",
        "ModelProto",
        "TensorProto",
        "external_data_helper",
        "load",
        "load_model_from_string",
    },
    "_graph.limits": {"AttributeProto", "GraphProto", "ModelProto", "NodeProto", "TensorProto"},  # counted unread
    "_graph.reductions": {"AttributeProto", "GraphProto", "ModelProto", "NodeProto"},  # rewritten as they are read
    "_graph.survival": {"FunctionProto", "GraphProto", "ModelProto", "NodeProto", "shape_inference"},  # a strict one
    "_graph.protobuf": {
        "ModelProto",
        "TensorProto",
        "checker",
        "helper",
        "load_model_from_string",
        "shape_inference",
    },
    "_runtime.errors": {"load_model_from_string"},  # the types in a graph that a session refused
    "_gradient.ort_training.engine": {"load_model_from_string"},  # the builder takes and returns bytes
    "_gradient.engine": {"ModelProto"},  # gradient_graph takes and returns one
    **{f"_models.{path.stem}": {"ModelProto"} for path in (FOLDER / "_models").glob("*.py")},  # they return one
    "_export.compact": {"ModelProto"},
    "_export.manifest": {"ModelProto"},
    "_export.training_info": {  # training_info is not in onnx_ir
        "GraphProto",
        "ModelProto",
        "TensorProto",
        "ValueInfoProto",
        "helper",
        "load_model_from_string",
        "numpy_helper",
    },
    "_given.as_given": {"ModelProto", "ValueInfoProto"},  # runs the file as given
    "_graph.custom_shapes": {"ModelProto", "NodeProto", "TensorProto", "ValueInfoProto", "helper"},
    "_graph.as_given": {
        "ModelProto",
        "NodeProto",
        "TensorProto",
        "TypeProto",
        "ValueInfoProto",
        "helper",
    },  # runs files
    "_estimators.training_files": {"ModelProto"},  # to_training_onnx returns one
    "_fitted.conversion": {"checker"},  # of what skl2onnx gives
    "_estimators.run": {"ModelProto"},  # to_onnx returns one
    "_estimators.model_source": {"ModelProto"},  # takes what users give
    "_estimators.description": {"ModelProto"},  # tells what users give
    "_estimators.results": {"ModelProto"},  # to_onnx returns one
    "_multi_output.results": {"ModelProto"},
    "_estimators.classifier": {"ModelProto"},
    "_estimators.regressor": {"ModelProto"},
    "displays.graph": {"ModelProto"},  # draws what users give
    "_command_line.deployed": {"ModelProto"},  # writes files
    "_command_line.doctor": {"parser"},  # a graph whose gradient is known
    "_command_line.gradient": {"ModelProto", "helper"},  # reads and writes files
    "_recipes.fitted_graph": {"ModelProto", "load_model_from_string"},  # to_onnx returns one, pickles hold its bytes
    "classic.forward_backward": {"ModelProto"},  # the classic interfaces give graphs as protobuf
    "classic.ortgradient": {"ModelProto"},
    "classic.artifacts": {"ModelProto", "save"},
    "classic.training_session": {"ModelProto", "load_model_from_string"},
    "classic.training_graphs": {"ModelProto", "save"},
    **{  # users' blocks add nodes of protobuf to a ModelProto
        f"classic.onnxblock.{name}": {"ModelProto", "TensorProto", "ValueInfoProto", "helper", *more}
        for name, more in {
            "accessor": (),
            "block_loss": (),
            "blocks": ("checker", "numpy_helper", "shape_inference"),
            "checkpoint": ("numpy_helper",),
            "forward": (),
            "loss": (),
            "optim": (),
            "training": ("load_model_from_string",),
        }.items()
    },
    "classic.grad_helper": {"ModelProto", "ValueInfoProto", "save"},
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
    "LoRA",
    "Inputs",
    "callbacks",
    "losses",
    "schedules",
    "gradient_graph",
    "graph",
    "export_training",
    "load_training",
    "ModelLimits",
    "model_limits",
    "clear_cache",
}

PARAMETERS = (
    "model loss loss_weights optimizer learning_rate_init learning_rate batch_size max_iter shuffle drop_last alpha "
    "l1_ratio max_grad_norm "
    "learning_rate_factors weight_decay_factors weight_decay_schedule dropout_schedule "
    "ema_decay accumulate "
    "trainable adapters finetune output output_kind training_mode class_axis ignore_label class_weight "
    "target_scaling clip_predictions checkpoint_activations sparse_updates tol "
    "n_iter_no_change early_stopping scoring validation_fraction callbacks warm_start random_state verbose engine "
    "device providers provider_options session_options"
).split()


def row_of_rooms(module: str) -> int:
    rows = ({ERRORS}, *ROOMS, {PROGRAM})
    return next(i for i, rooms in enumerate(rows) if room(module) in rooms)


def test_every_module_is_in_a_room():
    assert {room(module) for module in modules()} == {ERRORS, PROGRAM}.union(*ROOMS)


def test_page_on_design_lists_the_rooms():
    text = (FOLDER.parent / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, flags=re.MULTILINE)
    listed = [(int(layer), name) for layer, names in rows for name in re.findall(r"`(\w+)/?`", names)]
    assert sorted(listed) == sorted((i, name) for i, names in enumerate(ROOMS, 1) for name in names)


def test_imports_point_upwards():
    wrong = [
        f"{module} may not import {name or f'the package root {PACKAGE}'}"
        for module in modules()
        for name in own_imports(module)
        if room(name) != room(module) and (not name or row_of_rooms(name) >= row_of_rooms(module))
    ]
    assert not wrong


def test_no_cycle_within_a_room():
    for one in sorted(set().union(*ROOMS)):
        inside = {m: {name for name in own_imports(m) if room(name) == one} for m in modules() if room(m) == one}
        assert list(TopologicalSorter(inside).static_order())  # raises CycleError


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
        ("llvmlite", ["_runtime.machine_code"]),
        ("onnxruntime", ["_runtime.distributions"]),
        ("skl2onnx", ["_estimators.skl2onnx_plugin", "_fitted.skl2onnx_bridge"]),
    ],
)
def test_borders_alone_import_it(package, importers):
    assert [m for m in modules() if imports_package(m, package)] == importers


def test_protobuf_stays_at_the_border():
    beyond = {module: uses_of_onnx(module) - PROTOBUF.get(module, set()) for module in modules()}
    assert not {module: names for module, names in beyond.items() if names}


def test_values_are_replaced_by_the_functions_of_edits():
    calls = {m: {n.attr for n in nodes_of(m) if isinstance(n, ast.Attribute)} for m in modules()}
    assert [m for m, names in calls.items() if "replace_all_uses_with" in names] == ["_graph.edits"]


def test_packages_hold_no_code():
    for path in FOLDER.rglob("__init__.py"):
        if path.parent not in (
            FOLDER,
            FOLDER / "classic" / "onnxblock",
            FOLDER / "displays",
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
        "OrtGradientRegressor": {"class_axis", "ignore_label", "class_weight", "loss_weights"},
        "OrtGradientMultiOutput": {"target_scaling", "clip_predictions", "finetune", "output"},
    }[name]
    expected = [p for p in PARAMETERS if p not in others]
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


@pytest.mark.slow
def test_import_without_onnxruntime_names_the_extras():
    result = import_without("onnxruntime")
    assert result.returncode == 1
    assert f"{PACKAGE}.exceptions.RuntimeNotFoundError" in result.stderr
    assert "onnxtrain-sklearn[ort-training]" in result.stderr
    assert "onnxtrain-sklearn[portable]" in result.stderr


OPTIONAL = ("skl2onnx", "matplotlib", "torch", "onnxscript", "IPython")


@pytest.mark.slow
def test_import_loads_nothing_that_a_first_fit_does_not_need():
    heavy = (*OPTIONAL, "onnx.reference", "sklearn.compose", "sklearn.ensemble", "sklearn.metrics", "sympy")
    program = f"import sys, {PACKAGE}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.exhaustive
def test_import_needs_no_optional_package():
    result = import_without("matplotlib", "pandas", "skl2onnx", "torch", "onnxscript")
    assert result.returncode == 0, result.stderr
