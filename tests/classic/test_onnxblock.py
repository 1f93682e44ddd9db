"""Blocks: what each adds to a model, models that blocks make, threads, and errors."""

from __future__ import annotations

import inspect
import threading

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn.classic import onnxblock
from onnxtrain_sklearn.classic.artifacts import OptimType, generate_artifacts
from onnxtrain_sklearn.classic.onnxblock import blocks, loss, optim
from tests.helpers import official
from tests.helpers.environment import available_engines
from tests.helpers.official import needs_training

X = np.array([[0.5, -1.0], [2.0, 0.25], [-1.5, 3.0]], np.float32)


def net(outputs="float[N, 2] Y"):
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]> net (float[N, 2] X) => ({outputs})
        <float[2, 2] W = {{1, 0, 0, 1}}, float[2] b = {{0, 0}}> {{ Z = MatMul(X, W) Y = Add(Z, b) }}""")


def built(block, *names, model=None, feeds=None, types=None):
    """Return what a block computes on the model."""
    with onnxblock.base(net() if model is None else model) as accessor:
        name = block(*names)
        found = onnx.ModelProto()
        found.CopyFrom(accessor.model)
    del found.graph.output[:]
    found.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": X, **(feeds or {})})[0]


@pytest.mark.parametrize(
    ("block", "names", "expected"),
    [
        (blocks.Add(), ("Y", "Z"), 2 * X),
        (blocks.Sub(), ("Y", "Z"), 0 * X),
        (blocks.Mul(), ("Y", "Z"), X * X),
        (blocks.Div(), ("Y", "Z"), np.ones_like(X)),
        (blocks.Pow(3.0), ("Y",), X**3),
        (blocks.ReduceMean(), ("Y",), X.mean(keepdims=True)),
        (blocks.ReduceMean(keepdims=False), ("Y",), X.mean()),
        (blocks.ReduceSum(), ("Y",), X.sum(keepdims=True)),
        (blocks.ReduceSum(keepdims=False), ("Y",), X.sum()),
        (blocks.Sigmoid(), ("Y",), 1 / (1 + np.exp(-X))),
        (blocks.Neg(), ("Y",), -X),
        (blocks.Abs(), ("Y",), np.abs(X)),
        (blocks.Constant(0.25), (), [0.25]),
        (blocks.Clip(-1.0, 1.0), ("Y",), np.clip(X, -1, 1)),
        (blocks.Clip(clip_max=1.0), ("Y",), np.minimum(X, 1)),
        (blocks.Cast(onnx.TensorProto.INT64), ("Y",), X.astype(np.int64)),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, onnxblock.Block) else "",
)
def test_operators(block, names, expected):
    np.testing.assert_allclose(built(block, *names), expected, rtol=1e-6)


def test_names_of_inputs_are_those_of_the_original():
    with onnxblock.empty_base() as accessor:
        accessor.model.graph.input.append(onnx.helper.make_tensor_value_info("A", onnx.TensorProto.FLOAT, [2]))
        total = onnxblock.blocks.Add()(input_name1="A", input_name2="A")
        onnxblock.blocks.ReduceSum(keepdims=False)(input_name=onnxblock.blocks.Neg()(input_name=total))
    assert [node.op_type for node in accessor.model.graph.node] == ["Add", "Neg", "ReduceSum"]


@needs_training
@pytest.mark.parametrize("module", ["blocks", "loss", "optim"])
def test_signatures_are_those_of_the_original(module):
    ours, theirs = getattr(onnxblock, module), getattr(official.onnxblock(), module)
    names = [n for n, one in vars(theirs).items() if isinstance(one, type) and hasattr(one, "build") and n[0] != "_"]
    assert names
    for name in names:
        expected, found = (inspect.signature(getattr(one, name).build) for one in (theirs, ours))
        assert list(found.parameters) == list(expected.parameters), name


def test_logarithm():
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(built(blocks.Log(), "Y"), np.log(X), rtol=1e-6)


def test_sequences_and_labels():
    sequence = built(blocks.SequenceConstruct(), "Y", "Z")
    np.testing.assert_array_equal(sequence, [X, X])
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        f (float[N, 2] X, int64[N] k) => (float[N, 2] Y) { Y = Relu(X) }""")
    encoder = blocks.LabelEncoder(keys_int64s=[1, 2], values_floats=[0.5, 0.25], default_float=9.0)
    np.testing.assert_array_equal(built(encoder, "k", model=model, feeds={"k": np.array([2, 1, 7])}), [0.25, 0.5, 9])


def test_linear():
    np.random.seed(1)  # noqa: NPY002
    found = built(blocks.Linear(2, 3, alpha=2.0, beta=0.5), "Y")
    np.random.seed(1)  # noqa: NPY002
    weight, bias = np.random.randn(2, 3), np.random.randn(3)  # noqa: NPY002
    np.testing.assert_allclose(found, 2 * X @ weight + 0.5 * bias, rtol=1e-4)
    assert built(blocks.Linear(2, 3, bias=False), "Y").shape == (3, 3)


@needs_training
def test_norm_of_several_values():
    np.testing.assert_allclose(built(blocks.ReduceAllL2(), "Y", "Z"), np.sqrt(2 * (X**2).sum()), rtol=1e-5)


TARGET = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
SOFTMAX = X - np.log(np.exp(X).sum(axis=1, keepdims=True))
LABELS = np.array([1, 0, 1])
NEGATIVE = -SOFTMAX[[0, 1, 2], LABELS]
SIGMOID = 1 / (1 + np.exp(-X))
BINARY = -(TARGET * np.log(SIGMOID) + (1 - TARGET) * np.log(1 - SIGMOID))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (loss.MSELoss(), ((X - TARGET) ** 2).mean()),
        (loss.MSELoss("sum"), ((X - TARGET) ** 2).sum()),
        (loss.MSELoss("none"), (X - TARGET) ** 2),
        (loss.L1Loss(), np.abs(X - TARGET).mean()),
        (loss.L1Loss(reduction="sum"), np.abs(X - TARGET).sum()),
        (loss.L1Loss(reduction="none"), np.abs(X - TARGET)),
        (loss.BCEWithLogitsLoss(), BINARY.mean()),
        (loss.BCEWithLogitsLoss(reduction="none"), BINARY),
        (loss.BCEWithLogitsLoss(weight=np.array([2, 3], np.float32), reduction="sum"), (BINARY * [2, 3]).sum()),
        (
            loss.BCEWithLogitsLoss(pos_weight=np.array([2, 3], np.float32)),
            -(TARGET * [2, 3] * np.log(SIGMOID) + (1 - TARGET) * np.log(1 - SIGMOID)).mean(),
        ),
        (loss.CrossEntropyLoss(), NEGATIVE.mean()),
        (loss.CrossEntropyLoss(reduction="sum"), NEGATIVE.sum()),
        (loss.CrossEntropyLoss(reduction="none"), NEGATIVE),
        (loss.CrossEntropyLoss(weight=np.array([1, 3], np.float32)), (NEGATIVE * [3, 1, 3]).sum() / 7),
        (loss.CrossEntropyLoss(ignore_index=0), NEGATIVE[[0, 2]].mean()),
    ],
)
def test_losses(block, expected):
    target = {"labels": LABELS} if isinstance(block, loss.CrossEntropyLoss) else {"target": TARGET}
    np.testing.assert_allclose(built(block, "Y", feeds=target), expected, rtol=1e-4)


@pytest.mark.parametrize("name", loss.__all__)
def test_unknown_reductions(name):
    with pytest.raises(RuntimeError, match="Unknown reduction 'avg'"):
        getattr(loss, name)(reduction="avg")


class WeightedAverageLoss(onnxblock.Block):
    """The example of onnxruntime's documents."""

    def __init__(self):
        self._loss1 = onnxblock.loss.MSELoss()
        self._loss2 = onnxblock.loss.MSELoss()
        self._w1 = onnxblock.blocks.Constant(0.4)
        self._w2 = onnxblock.blocks.Constant(0.6)
        self._add = onnxblock.blocks.Add()
        self._mul = onnxblock.blocks.Mul()

    def build(self, loss_input_name1, loss_input_name2):
        return self._add(
            self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
            self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")),
        )


def test_the_weighted_loss_of_the_documents():
    model = net("float[N, 2] Y, float[N, 2] Z")
    feeds = {"target1": TARGET, "target2": 2 * TARGET}
    expected = 0.4 * ((X - TARGET) ** 2).mean() + 0.6 * ((X - 2 * TARGET) ** 2).mean()
    found = built(WeightedAverageLoss(), "Y", "Z", model=model, feeds=feeds)
    np.testing.assert_allclose(found, [expected], rtol=1e-6)


@pytest.mark.parametrize("engine", available_engines())
def test_artifacts_of_the_weighted_loss_of_the_documents(tmp_path, engine):
    model, names = net("float[N, 2] Y, float[N, 2] Z"), (["W"], ["b"])
    generate_artifacts(model, *names, WeightedAverageLoss(), OptimType.AdamW, tmp_path, engine=engine)
    assert len(list(tmp_path.iterdir())) == 4
    training = onnx.load(tmp_path / "training_model.onnx")
    assert [v.name for v in training.graph.input][:5] == ["X", "target1", "target2", "W", "b"]
    if "ort-training" not in available_engines():
        return
    api = official.api()
    state = api.CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
    module = api.Module(str(tmp_path / "training_model.onnx"), state, str(tmp_path / "eval_model.onnx"))
    expected = 0.4 * ((X - TARGET) ** 2).mean() + 0.6 * ((X - 2 * TARGET) ** 2).mean()
    np.testing.assert_allclose(module(X, TARGET, 2 * TARGET), [expected], rtol=1e-6)
    gradient = (0.8 * X.T @ (X - TARGET) + 1.2 * X.T @ (X - 2 * TARGET)) / X.size
    optimizer = api.Optimizer(str(tmp_path / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(0.1)
    optimizer.step()  # AdamW's first step is one rate long in the direction of the gradient's sign
    step = np.array(state.parameters["W"].data) - np.eye(2)
    np.testing.assert_allclose(step, -0.1 * np.sign(gradient), rtol=1e-2)


@needs_training
def test_the_weighted_loss_gives_the_official_graph(tmp_path):
    model, theirs, folders = net("float[N, 2] Y, float[N, 2] Z"), official.artifacts(), [tmp_path / "a", tmp_path / "b"]
    one = official.onnxblock()

    class Theirs(one.Block):
        def __init__(self):
            super().__init__()
            self._losses = [one.loss.MSELoss(), one.loss.MSELoss()]
            self._factors = [one.blocks.Constant(0.4), one.blocks.Constant(0.6)]
            self._add, self._mul = one.blocks.Add(), one.blocks.Mul()

        def build(self, first, second):
            (f, g), (a, b) = self._factors, self._losses
            return self._add(
                self._mul(f(), a(first, target_name="target1")), self._mul(g(), b(second, target_name="target2"))
            )

    folders[1].mkdir()
    generate_artifacts(model, ["W"], ["b"], WeightedAverageLoss(), OptimType.AdamW, folders[0])
    theirs.generate_artifacts(model, ["W"], ["b"], Theirs(), theirs.OptimType.AdamW, str(folders[1]))
    for name in ("training_model", "eval_model", "optimizer_model"):
        official.assert_equal_graphs(*(onnx.load(folder / f"{name}.onnx") for folder in folders))


class Layer(onnxblock.ForwardBlock):
    def build(self, name):
        return blocks.Sigmoid()(blocks.Linear(2, 3)(name))


def test_forward_blocks():
    block = Layer()
    with pytest.raises(RuntimeError, match="has not been built"):
        block.to_model_proto()
    with onnxblock.base(net()) as accessor:
        name = block("Y")
        assert [o.name for o in accessor.model.graph.output] == [name]
    model = block.to_model_proto()
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"X": X})[0].shape == (3, 3)


class Training(onnxblock.TrainingBlock):
    def build(self, name):
        return loss.MSELoss()(name), name


@pytest.mark.parametrize("engine", available_engines())
def test_training_blocks(engine):
    block = Training()
    block.engine = engine
    for method in (block.parameters, block.to_model_proto):
        with pytest.raises(RuntimeError, match="call the block"):
            method()
    block.requires_grad("W")
    block.requires_grad("b")
    block.requires_grad("b", value=False)
    with onnxblock.base(net()):
        name, _ = block("Y")
    training, evaluation = block.to_model_proto()
    assert [[tensor.name for tensor in group] for group in block.parameters()] == [["W"], ["b"]]
    assert [v.name for v in training.graph.output] == [name, "Y", "W_grad.accumulation.out"]
    assert [v.name for v in evaluation.graph.output] == [name, "Y"]
    assert [v.name for v in evaluation.graph.input] == ["X", "target", "W", "b"]


def test_training_mode_stops_in_evaluation():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]> f (float[N, 2] X) => (float[N, 2] Y)
        <float[2, 2] W = {1, 0, 0, 1}, float r = {0.5}, bool t = {1}> { Z = MatMul(X, W) Y = Dropout(Z, r, t) }""")
    block = Training()
    block.requires_grad("W")
    with onnxblock.base(model):
        block("Y")
    training, evaluation = block.to_model_proto()
    modes = [[list(n.input)[2:] for n in m.graph.node if n.op_type == "Dropout"] for m in (training, evaluation)]
    assert modes == [[["t"]], [[""]]]


@pytest.mark.parametrize("frozen", [[], ["W"], ["W", "b"]])
def test_a_block_that_trains_nothing(frozen):
    block = Training()
    for name in frozen:
        block.requires_grad(name, value=False)
    with onnxblock.base(net()):
        name, _ = block("Y")
    training, evaluation = block.to_model_proto()
    assert [[tensor.name for tensor in group] for group in block.parameters()] == [[], frozen]
    for model, more in ((training, ["lazy_reset_grad"]), (evaluation, [])):
        onnx.checker.check_model(model, full_check=True)
        assert [v.name for v in model.graph.input] == ["X", "target", *frozen, *more]
        assert [v.name for v in model.graph.output] == [name, "Y"]
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        weights = {t.name: onnx.numpy_helper.to_array(t) for t in net().graph.initializer if t.name in frozen}
        reset = {"lazy_reset_grad": np.array([True])} if more else {}
        found = session.run(None, {"X": X, "target": TARGET, **weights, **reset})[0]
        np.testing.assert_allclose(found, ((X - TARGET) ** 2).mean(), rtol=1e-6)


@pytest.mark.parametrize("engine", available_engines())
def test_the_gradient_of_an_input(engine):
    block = Training()
    block.engine = engine
    for name in ("W", "X"):
        block.requires_grad(name)
    with onnxblock.base(net()):
        block("Y")
    training, evaluation = block.to_model_proto()
    assert [[tensor.name for tensor in group] for group in block.parameters()] == [["W"], []]
    gradients = ["X_grad", "W_grad"]
    buffers = [f"{name}.accumulation.buffer" for name in gradients]
    assert [v.name for v in training.graph.input] == ["X", "target", "W", *buffers, "lazy_reset_grad"]
    assert [v.name for v in training.graph.output][2:] == [f"{name}.accumulation.out" for name in gradients]
    assert [v.name for v in evaluation.graph.input] == ["X", "target", "W"]
    del training.graph.output[:]  # the gradients themselves, of the mean of the squares of XW + b - target
    kinds = {"X_grad": ["N", 2], "W_grad": [2, 2]}
    training.graph.output.extend(onnx.helper.make_tensor_value_info(n, 1, shape) for n, shape in kinds.items())
    kept = [node for node in training.graph.node if node.op_type != "InPlaceAccumulatorV2"]
    del training.graph.node[:], training.graph.input[3:]
    training.graph.node.extend(kept)
    session = onnxruntime.InferenceSession(training.SerializeToString(), providers=["CPUExecutionProvider"])
    W = np.array([[2, -1], [0.5, 3]])
    found = session.run(gradients, {"X": X, "target": TARGET, "W": W.astype(np.float32)})
    b = onnx.numpy_helper.to_array(next(t for t in net().graph.initializer if t.name == "b"))
    error = 2 * (X.astype(float) @ W + b - TARGET) / X.size
    for value, expected in zip(found, (error @ W.T, X.T @ error), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [("w", True, "no initializer or input 'w'"), ("q", False, "no initializer or input 'q'")],
)
def test_wrong_parameters(name, value, match):
    block = Training()
    block.requires_grad(name, value)
    with onnxblock.base(net()), pytest.raises(ValueError, match=match):
        block("Y")


def test_names_that_are_not_there():
    with onnxblock.base(net()):
        with pytest.raises(LookupError, match="no input or output 'Q'"):
            loss.MSELoss()("Q")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'input_name2'"):
            blocks.Add()("Y")
    with onnxblock.base(net()), pytest.raises(onnx.checker.ValidationError):
        blocks.Neg()("Q")


def test_without_a_model():
    with pytest.raises(RuntimeError, match="There is no model to extend"):
        blocks.Constant(1.0)()
    with pytest.raises(ValueError, match=r"needs an onnx\.ModelProto"), onnxblock.base(None):
        pass


def test_given_model_is_unchanged():
    model = net()
    with onnxblock.base(model):
        loss.MSELoss()("Y")
    assert model == net()


def test_names_of_the_graph_are_not_taken_again():
    model = net()
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "onnx::sub_output::1"
    found = built(loss.MSELoss(), "Y", model=model, feeds={"target": TARGET})
    np.testing.assert_allclose(found, ((X - TARGET) ** 2).mean(), rtol=1e-6)


def test_models_within_each_other():
    with onnxblock.base(net()) as outer:
        blocks.Neg()("Y")
        with onnxblock.empty_base(17) as inner:
            blocks.Constant(1.0)()
        blocks.Abs()("Y")
    assert [n.op_type for n in outer.model.graph.node] == ["MatMul", "Add", "Neg", "Abs"]
    assert len(inner.model.graph.initializer) == 1
    assert {o.domain: o.version for o in inner.model.opset_import} == {"com.microsoft": 1, "": 17}


def test_threads_build_at_once():
    shared, barrier, found = loss.MSELoss(), threading.Barrier(8), {}

    def build(i):
        model = net()
        model.graph.name = f"net{i}"
        with onnxblock.base(model) as accessor:
            for _ in range(10):
                barrier.wait()
                blocks.Neg()("Y")
            shared("Y")
            found[i] = accessor.model

    threads = [threading.Thread(target=build, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(8):
        assert found[i].graph.name == f"net{i}"
        assert found[i].graph == found[0].graph or i
        kinds = [n.op_type for n in found[i].graph.node]
        assert kinds == ["MatMul", "Add", *["Neg"] * 10, "Sub", "Pow", "ReduceMean"]


@needs_training
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", optim.__all__[:2])
def test_optimizers_equal_the_official_ones(name, clip):
    theirs, graphs = official.onnxblock(), []
    block = Training()
    block.requires_grad("W")
    with onnxblock.base(net()):
        block("Y")
    for one in (onnxblock, theirs):
        settings = {} if name == "SGD" else {"betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": 0.1}
        clipping = None if clip is None else one.optim.ClipGradNorm(clip)
        optimizer = getattr(one.optim, name)(clip_grad=clipping, **settings)
        with one.empty_base(18):
            optimizer(block.parameters())
        graphs.append(optimizer.to_model_proto())
    ours, expected = graphs
    if name == "SGD":
        assert [v.name for v in ours.graph.input][-1] == "first_order_moments"
    official.assert_equal_graphs(ours, expected)


def test_an_optimizer_of_nothing():
    with onnxblock.empty_base(), pytest.raises(ValueError, match="no parameter to update"):
        optim.SGD()(([], []))
