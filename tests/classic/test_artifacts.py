"""generate_artifacts: equal to the official ones, trained by onnxruntime-training itself and by our estimators."""

from __future__ import annotations

import tracemalloc

import flatbuffers
import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn.classic import artifacts, onnxblock
from onnxtrain_sklearn.classic.artifacts import LossType, OptimType, generate_artifacts, read_checkpoint
from tests.helpers import official
from tests.helpers.environment import available_engines
from tests.helpers.official import needs_training

RNG = np.random.default_rng(7)
WEIGHTS = {
    "W": RNG.normal(size=(3, 4)).astype(np.float32) / 2,
    "b": RNG.normal(size=4).astype(np.float32) / 2,
    "V": RNG.normal(size=(4, 2)).astype(np.float32) / 2,
}
FILES = ("training_model", "eval_model", "optimizer_model")


def net(body="Z = MatMul(X, W) H = Add(Z, b) R = Relu(H) Y = MatMul(R, V)", outputs="float[N, 2] Y", opset=18):
    text = f'<ir_version: 8, opset_import: ["": {opset}]> net (float[N, 3] X) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in WEIGHTS.items())
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
    return model


def load(folder, prefix=""):
    return {name: onnx.load(folder / f"{prefix}{name}.onnx") for name in FILES}


def labeled_batches(labels, n=100):
    for _ in range(n):
        x = RNG.normal(size=(20, 3)).astype(np.float32)
        y = np.maximum(x @ WEIGHTS["W"] * 0.8, 0) @ WEIGHTS["V"] * 1.1
        yield x, labels(y)


LABELS = {
    LossType.MSELoss: lambda y: y.astype(np.float32),
    LossType.L1Loss: lambda y: (y + 10).astype(np.float32),  # no residual changes its sign, where the gradient jumps
    LossType.CrossEntropyLoss: lambda y: y.argmax(axis=1).astype(np.int64),
    LossType.BCEWithLogitsLoss: lambda y: (y > 0).astype(np.float32),
}


class OnDevice:
    """The artifacts of a folder in onnxruntime-training's Module and Optimizer."""

    def __init__(self, folder, rate, prefix=""):
        api = official.api()
        self.state = api.CheckpointState.load_checkpoint(str(folder / f"{prefix}checkpoint"))
        models = (str(folder / f"{prefix}{name}.onnx") for name in ("training_model", "eval_model"))
        training, evaluation = models
        self.module = api.Module(training, self.state, evaluation)
        self.optimizer = api.Optimizer(str(folder / f"{prefix}optimizer_model.onnx"), self.module)
        self.optimizer.set_learning_rate(rate)

    def step(self, *inputs):
        self.module.train()
        outputs = self.module(*inputs)
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return outputs

    def save(self, path, *, optimizer=False):
        official.api().CheckpointState.save_checkpoint(self.state, str(path), optimizer)


@needs_training
@pytest.mark.parametrize("optimizer", list(OptimType))
@pytest.mark.parametrize("loss", list(LossType))
@pytest.mark.parametrize("opset", [13, 18])
def test_equal_to_the_official_ones(tmp_path, loss, optimizer, opset):
    theirs, names = official.artifacts(), (["W", "b"], ["V"])
    folders = [tmp_path / "ours", tmp_path / "theirs"]
    folders[1].mkdir()
    generate_artifacts(net(opset=opset), *names, loss, optimizer, folders[0])
    kinds = theirs.LossType[loss.name], theirs.OptimType[optimizer.name]
    theirs.generate_artifacts(net(opset=opset), *names, *kinds, str(folders[1]))
    ours, expected = map(load, folders)
    for name in FILES:
        official.assert_equal_graphs(ours[name], expected[name])
        assert [v.name for v in ours[name].graph.input] == [v.name for v in expected[name].graph.input]
    checkpoints = [read_checkpoint(folder / "checkpoint") for folder in folders]
    assert [c.trained for c in checkpoints] == [("W", "b")] * 2
    assert [c.frozen for c in checkpoints] == [("V",)] * 2
    for name in WEIGHTS:
        np.testing.assert_array_equal(checkpoints[0][name], checkpoints[1][name])


@needs_training
def test_equal_to_the_official_ones_with_every_option(tmp_path):
    theirs, model = official.artifacts(), net(outputs="float[N, 2] Y, float[N, 4] H")
    options = {
        "prefix": "p_",
        "additional_output_names": ["R"],
        "loss_input_names": ["Y"],
        "nominal_checkpoint": True,
    }
    folders = [tmp_path / "ours", tmp_path / "theirs"]
    for folder, one in zip(folders, (artifacts, theirs), strict=True):
        folder.mkdir()
        kinds = one.LossType.MSELoss, one.OptimType.SGD
        one.generate_artifacts(model, ["W"], ["b", "V"], *kinds, str(folder), **options)
    assert sorted(p.name for p in folders[0].iterdir()) == sorted(p.name for p in folders[1].iterdir())
    ours, expected = (load(folder, "p_") for folder in folders)
    for name in FILES:
        official.assert_equal_graphs(ours[name], expected[name])
    api = official.api()
    state = api.CheckpointState.load_checkpoint(str(folders[0] / "p_nominal_checkpoint"))
    assert api.Module(str(folders[0] / "p_training_model.onnx"), state).get_parameters_size(trainable_only=True) == 12
    with pytest.raises(ValueError, match="nominal"):
        read_checkpoint(folders[0] / "p_nominal_checkpoint")


@pytest.mark.parametrize("engine", available_engines())
def test_files_for_devices(tmp_path, engine):
    generate_artifacts(net(), ["W"], ["b"], LossType.MSELoss, OptimType.AdamW, tmp_path / "new", engine=engine)
    models = load(tmp_path / "new")
    buffer = ["W_grad.accumulation.buffer", "lazy_reset_grad"]
    inputs = {name: [v.name for v in model.graph.input] for name, model in models.items()}
    assert inputs["training_model"] == ["X", "target", "W", "b", *buffer]
    assert inputs["eval_model"] == ["X", "target", "W", "b"]
    moments = ["first_order_moments", "second_order_moments"]
    assert inputs["optimizer_model"] == ["learning_rate", "step", "params", "gradients", *moments]
    assert models["training_model"].graph.output[-1].name == "W_grad.accumulation.out"
    assert all(model.ir_version <= 10 for model in models.values())
    onnx.checker.check_model(models["eval_model"], full_check=True)
    session = onnxruntime.InferenceSession(models["eval_model"].SerializeToString(), providers=["CPUExecutionProvider"])
    x, y = next(labeled_batches(LABELS[LossType.MSELoss]))
    (value,) = session.run(None, {"X": x, "target": y, "W": WEIGHTS["W"], "b": WEIGHTS["b"]})
    scores = np.maximum(x @ WEIGHTS["W"] + WEIGHTS["b"], 0) @ WEIGHTS["V"]
    np.testing.assert_allclose(value, ((scores - y) ** 2).mean(), rtol=1e-5)


def test_portable_training_model_gradients(tmp_path):
    generate_artifacts(net(), ["W", "b"], None, LossType.L1Loss, None, tmp_path, engine="portable")
    assert not (tmp_path / "optimizer_model.onnx").exists()
    model = onnx.load(tmp_path / "training_model.onnx")
    kept = [node for node in model.graph.node if node.op_type != "InPlaceAccumulatorV2"]
    del model.graph.node[:], model.graph.output[1:]
    model.graph.node.extend(kept)
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(f"{name}_grad") for name in ("W", "b"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x, y = next(labeled_batches(LABELS[LossType.L1Loss]))
    feeds = {"X": x, "target": y, "W": WEIGHTS["W"], "b": WEIGHTS["b"]}
    used = {v.name for v in session.get_inputs()}
    more = {f"{n}_grad.accumulation.buffer": np.zeros_like(WEIGHTS[n]) for n in ("W", "b")}
    feeds |= {n: a for n, a in {**more, "lazy_reset_grad": np.array([True])}.items() if n in used}
    _, w, b = session.run(None, feeds)
    hidden = x @ WEIGHTS["W"] + WEIGHTS["b"]
    slope = np.sign(np.maximum(hidden, 0) @ WEIGHTS["V"] - y) / y.size @ WEIGHTS["V"].T * (hidden > 0)
    np.testing.assert_allclose(w, x.T @ slope, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(b, slope.sum(axis=0), rtol=1e-4, atol=1e-6)


def test_all_weights_are_trained_where_none_are_named(tmp_path):
    generate_artifacts(net(), frozen_params=["b"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert set(checkpoint.trained) == {"W", "V"}
    assert checkpoint.frozen == ("b",)


def test_the_working_directory_and_a_model_file(tmp_path, monkeypatch):
    onnx.save(net(), tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    generate_artifacts("net.onnx", ["W"], loss=LossType.MSELoss)
    assert {p.name for p in tmp_path.iterdir()} == {"net.onnx", "training_model.onnx", "eval_model.onnx", "checkpoint"}


def test_newer_models_are_converted_for_devices(tmp_path):
    model = net(opset=23)
    model.ir_version = 12
    generate_artifacts(model, ["W"], loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    for one in load(tmp_path).values():
        assert one.ir_version <= 10
        assert next(o.version for o in one.opset_import if not o.domain) <= 21


def test_without_a_loss_the_first_output_is_differentiated(tmp_path):
    model = net("Z = MatMul(X, W) L = ReduceMean<keepdims = 0>(Z)", "float L, float[N, 4] Z")
    generate_artifacts(model, ["W"], optimizer=OptimType.SGD, artifact_directory=tmp_path)
    training = onnx.load(tmp_path / "training_model.onnx")
    assert [v.name for v in training.graph.output] == ["L", "Z", "W_grad.accumulation.out"]
    with pytest.raises(ValueError, match="The first output 'Y' is differentiated, so it must have one element"):
        generate_artifacts(net(), ["W"], artifact_directory=tmp_path)


@needs_training
def test_ort_format(tmp_path):
    generate_artifacts(net(), ["W"], None, LossType.MSELoss, OptimType.SGD, tmp_path, ort_format=True)
    names = {f"{name}.ort" for name in FILES}
    assert names <= {p.name for p in tmp_path.iterdir()}
    api = official.api()
    state = api.CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
    module = api.Module(*(str(tmp_path / f"{n}.ort") if n else state for n in ("training_model", "", "eval_model")))
    optimizer = api.Optimizer(str(tmp_path / "optimizer_model.ort"), module)
    optimizer.set_learning_rate(0.1)
    x, y = next(labeled_batches(LABELS[LossType.MSELoss]))
    first = module(x, y)
    optimizer.step()
    assert module(x, y) < first


@pytest.mark.skipif("ort-training" in available_engines(), reason="has the operators")
def test_ort_format_needs_the_training_runtime(tmp_path):
    with pytest.raises(ImportError, match="ort_format needs onnxruntime-training"):
        generate_artifacts(net(), ["W"], None, LossType.MSELoss, None, tmp_path / "new", ort_format=True)
    assert not list(tmp_path.iterdir())


def test_write_error_leaves_existing_files(tmp_path, monkeypatch):
    generate_artifacts(net(), ["W"], None, LossType.MSELoss, OptimType.SGD, tmp_path / "old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    full = OSError("disk full")
    monkeypatch.setattr(artifacts, "save_checkpoint", lambda *given: (_ for _ in ()).throw(full))
    for folder in ("old", "new/inner"):
        with pytest.raises(OSError, match="disk full"):
            generate_artifacts(net(), ["V"], None, LossType.L1Loss, OptimType.SGD, tmp_path / folder)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before


def test_a_folder_in_the_place_of_a_file(tmp_path):
    (tmp_path / "optimizer_model.onnx").mkdir()
    with pytest.raises(IsADirectoryError, match=r"optimizer_model\.onnx is a folder"):
        generate_artifacts(net(), ["W"], None, LossType.MSELoss, OptimType.SGD, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["optimizer_model.onnx"]


def test_a_prefix_with_a_folder(tmp_path):
    generate_artifacts(net(), ["W"], loss=LossType.MSELoss, artifact_directory=tmp_path, prefix="a/b_")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "b_training_model.onnx",
        "b_eval_model.onnx",
        "b_checkpoint",
    }


@pytest.mark.parametrize(
    "names", [{"requires_grad": []}, {"requires_grad": [], "frozen_params": ["W"]}, {"frozen_params": ["W", "b", "V"]}]
)
def test_nothing_to_train(names, tmp_path):
    generate_artifacts(net(), loss=LossType.MSELoss, artifact_directory=tmp_path, **names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "eval_model.onnx", "training_model.onnx"]
    frozen = tuple(names.get("frozen_params", ()))
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert (checkpoint.trained, set(checkpoint.frozen)) == ((), set(frozen))
    training = onnx.load(tmp_path / "training_model.onnx")
    onnx.checker.check_model(training)
    assert [v.name for v in training.graph.input][-1] == "lazy_reset_grad"
    assert len(training.graph.output) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"loss": "MSELoss"}, RuntimeError, "loss must be a LossType or an onnxblock.Block, got str"),
        ({"optimizer": "SGD"}, RuntimeError, "optimizer must be an OptimType"),
        ({"optimizer": LossType.MSELoss}, TypeError, "optimizer must be an OptimType"),
        ({"requires_grad": ["W"], "frozen_params": ["W"]}, RuntimeError, r"trained or frozen, not both: \['W'\]"),
        ({"requires_grad": ["w"]}, ValueError, "no parameter or input 'w'"),
        ({"requires_grad": [], "optimizer": OptimType.SGD}, ValueError, "There is no parameter to update"),
        ({"additional_output_names": "Y"}, RuntimeError, "must be a list of names, got str"),
        ({"additional_output_names": ["Q"]}, LookupError, "no value 'Q'"),
        ({"additional_output_names": ["Q"]}, ValueError, "no value 'Q'"),
        ({"loss_input_names": ["Q"]}, LookupError, "no input or output 'Q'"),
        ({"custom_op_library": "none.so"}, RuntimeError, "'none.so' does not exist"),
        ({"model": 3}, RuntimeError, "model must be an onnx.ModelProto"),
        ({"engine": "none"}, ValueError, "Unknown engine"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, error, match):
    given = {"model": net(), "requires_grad": ["W"], "loss": LossType.MSELoss, "artifact_directory": tmp_path}
    with pytest.raises(error, match=match):
        generate_artifacts(**{**given, **arguments})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", available_engines())
def test_parameters_that_no_device_trains_are_refused(tmp_path, engine):
    model = net()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(float), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(ValueError, match="train float32 parameters, but 'W' is float64"):
        generate_artifacts(model, ["W"], None, LossType.MSELoss, OptimType.SGD, tmp_path, engine=engine)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_checkpoint(tmp_path):
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        read_checkpoint(tmp_path / "other")
    generate_artifacts(net(), ["W"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    content = (tmp_path / "checkpoint").read_bytes()
    for length in range(8, len(content), 16):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"checkpoint .* cannot be read"):
            read_checkpoint(tmp_path / "cut")


def shared_checkpoint(path, names, array):
    """Write a checkpoint whose parameters all have the same bytes."""
    builder = flatbuffers.Builder(64)
    raw, tables = builder.CreateByteVector(array.tobytes()), []
    for name in names:
        text = builder.CreateString(name)
        builder.StartVector(8, 1, 8)
        builder.PrependInt64(array.size)
        dims = builder.EndVector()
        builder.StartObject(7)
        for slot, offset in ((0, text), (2, dims), (4, raw)):
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        builder.PrependInt32Slot(3, onnx.TensorProto.FLOAT, 0)
        tables.append(builder.EndObject())
    builder.StartVector(4, len(tables), 4)
    for table in tables:
        builder.PrependUOffsetTRelative(table)
    vector = builder.EndVector()
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    module = builder.EndObject()
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, module, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"ODTC")
    path.write_bytes(bytes(builder.Output()))


def test_checkpoint_parameters_own_bytes_and_names(tmp_path):
    array = np.arange(50_000, dtype=np.float32)
    shared_checkpoint(tmp_path / "one", ["a"], array)
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "one")["a"], array)
    for names in (["a", "b"], [f"n{i}" for i in range(1000)]):
        shared_checkpoint(tmp_path / "many", names, array)
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"cannot be read: its .* overlap"):
            read_checkpoint(tmp_path / "many")
        assert tracemalloc.get_traced_memory()[1] < 4 * (tmp_path / "many").stat().st_size + 2**20
        tracemalloc.stop()
    shared_checkpoint(tmp_path / "twice", ["a", "a"], array[:0])
    with pytest.raises(ValueError, match="'a' comes twice"):
        read_checkpoint(tmp_path / "twice")


def test_checkpoints_go_back_into_models(tmp_path):
    generate_artifacts(net(), ["W", "b"], ["V"], LossType.MSELoss, None, tmp_path)
    model = net()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(onnx.numpy_helper.to_array(tensor)), tensor.name))
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)
    assert model == net()
    evaluation = onnx.load(tmp_path / "eval_model.onnx")
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", evaluation)
    assert [v.name for v in evaluation.graph.input] == ["X", "target"]
    other = net("Z = MatMul(X, W) Y = Add(Z, b)", "float[N, 4] Y")
    other.graph.initializer.pop()
    with pytest.raises(ValueError, match="no parameter 'V'"):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", other)
