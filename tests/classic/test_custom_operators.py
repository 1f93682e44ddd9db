"""Networks with custom operators, from a library that is compiled here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn.classic import onnxblock
from onnxtrain_sklearn.classic.artifacts import LossType, OptimType, generate_artifacts
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.classic.test_artifacts import FILES, load
from tests.helpers import official
from tests.helpers.environment import available_engines
from tests.helpers.official import needs_training

SOURCE = Path(__file__).parent / "custom_operator.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="needs a C compiler on Linux"
)
BEFORE = "D = test.doubles.Double(X) Z = MatMul(D, W) H = Tanh(Z) Y = MatMul(H, V)"
BETWEEN = "Z = MatMul(X, W) D = test.doubles.Double(Z) Y = MatMul(D, V)"
WEIGHTS = {"W": np.array([[1, 2], [3, 4]], np.float32) / 4, "V": np.array([[1, 0], [-1, 2]], np.float32) / 4}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "doubles.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True)
    return path


def net(body=BEFORE, *, declared=True):
    head = '<ir_version: 8, opset_import: ["": 18, "test.doubles": 1]>'
    model = onnx.parser.parse_model(f"{head} net (float[N, 2] X) => (float[N, 2] Y) {{ {body} }}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in WEIGHTS.items())
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
    if declared:
        model.graph.value_info.append(onnx.helper.make_tensor_value_info("D", onnx.TensorProto.FLOAT, ["N", 2]))
    return model


def options_with(library):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    return options


@needs_compiler
@pytest.mark.parametrize("engine", available_engines())
def test_evaluation_models_run(tmp_path, library, engine):
    generate_artifacts(
        net(), ["W", "V"], [], LossType.MSELoss, OptimType.SGD, tmp_path, custom_op_library=library, engine=engine
    )
    model = load(tmp_path)["eval_model"].SerializeToString()
    session = onnxruntime.InferenceSession(model, options_with(library), providers=["CPUExecutionProvider"])
    x = np.arange(6, dtype=np.float32).reshape(3, 2) / 6
    (loss,) = session.run(None, {"X": x, "target": np.zeros((3, 2), np.float32), **WEIGHTS})
    np.testing.assert_allclose(loss, ((np.tanh(2 * x @ WEIGHTS["W"]) @ WEIGHTS["V"]) ** 2).mean(), rtol=1e-5)


@needs_compiler
@needs_training
@pytest.mark.parametrize("engine", available_engines())
def test_a_device_trains(tmp_path, library, engine):
    generate_artifacts(
        net(), ["W", "V"], [], LossType.MSELoss, OptimType.SGD, tmp_path, custom_op_library=library, engine=engine
    )
    api = official.api()
    state = api.CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
    training, evaluation, update = (str(tmp_path / f"{name}.onnx") for name in FILES)
    module = api.Module(training, state, evaluation, "cpu", options_with(library))
    optimizer = api.Optimizer(update, module)
    optimizer.set_learning_rate(0.5)
    module.train()
    x = np.arange(6, dtype=np.float32).reshape(3, 2) / 6
    module(x, np.ones((3, 2), np.float32))
    optimizer.step()
    hidden = np.tanh(2 * x @ WEIGHTS["W"])
    gradient = hidden.T @ (hidden @ WEIGHTS["V"] - 1) * 2 / 6
    np.testing.assert_allclose(state.parameters["V"].data, WEIGHTS["V"] - 0.5 * gradient, rtol=1e-4)


@needs_compiler
@needs_training
def test_equal_to_the_official_ones(tmp_path, library):
    theirs, folders = official.artifacts(), [tmp_path / "ours", tmp_path / "theirs"]
    folders[1].mkdir()
    generate_artifacts(
        net(), ["W"], ["V"], LossType.MSELoss, OptimType.SGD, folders[0], custom_op_library=library, ort_format=True
    )
    kinds = theirs.LossType.MSELoss, theirs.OptimType.SGD
    theirs.generate_artifacts(net(), ["W"], ["V"], *kinds, str(folders[1]), custom_op_library=str(library))
    for ours, expected in zip(*(load(folder).values() for folder in folders), strict=True):
        official.assert_equal_graphs(ours, expected)
    assert all((folders[0] / f"{name}.ort").exists() for name in FILES)


@needs_compiler
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("given", [True, False])
def test_custom_operators_have_no_gradient(tmp_path, library, engine, given):
    path = library if given else None
    with pytest.raises(UnsupportedOperatorError, match=r"test\.doubles\.Double"):
        generate_artifacts(net(BETWEEN), ["W"], None, LossType.MSELoss, None, tmp_path, custom_op_library=path,
                           engine=engine)  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match="declare its shape in the value_info"):
        generate_artifacts(net(declared=False), ["W"], None, LossType.MSELoss, None, tmp_path, custom_op_library=path)


def test_a_file_that_is_no_library(tmp_path):
    (tmp_path / "library.so").write_text("no library")
    for engine in available_engines():
        with pytest.raises(ValueError, match=r"library\.so' cannot be loaded"):
            generate_artifacts(
                net(), ["W"], None, LossType.MSELoss, None, tmp_path, custom_op_library=tmp_path / "library.so",
                engine=engine,
            )  # fmt: skip
    with (
        pytest.raises(RuntimeError, match="does not exist"),
        onnxblock.custom_op_library(tmp_path / "none.so"),
    ):
        pass
