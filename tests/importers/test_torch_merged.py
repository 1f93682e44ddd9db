"""Layers of PyTorch that begin equal and have one input, which its exporter merges, and layers that are called twice.

``data/make_torch_exports.py`` wrote the files and what PyTorch trains the modules to.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, GraphModel, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines
from tests.helpers.graphs import from_file
from tests.importers.test_torch_parameters import SETTINGS, archive_of, assert_as_in_pytorch

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def merged():
    return onnx.load(DATA / "torch_merged_dynamo.onnx")


@pytest.mark.parametrize("engine", available_engines())
def test_merged_layers_are_separated_and_shared_ones_kept(engine):
    X, y, losses, state = archive_of("merged")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        trained = OrtGradientRegressor(merged(), **SETTINGS, engine=engine).fit(X, y)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-5)
    assert set(trained.weights_) == set(state)
    assert_as_in_pytorch(trained, state)


@pytest.mark.parametrize("engine", available_engines())
def test_calls_that_are_made_twice_on_one_result_are_no_merged_layers(engine):
    """Behind a layer they explain what the file lacks; before two layers they lead to both."""
    X, y, losses, state = archive_of("twice")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        trained = OrtGradientRegressor(DATA / "torch_twice_dynamo.onnx", **SETTINGS, engine=engine).fit(X, y)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-4)
    apart = {name: array for name, array in state.items() if not name.startswith("behind.1")}
    assert apart.keys() <= trained.weights_.keys()
    assert "behind.1.weight" not in trained.weights_  # the factor that was computed from it is
    for name, array in apart.items():
        assert_allclose(trained.weights_[name], array, rtol=0, atol=1e-4)


def test_exported_files_keep_the_layers_apart():
    X, y, _, state = archive_of("merged")
    trained = OrtGradientRegressor(merged(), **SETTINGS).fit(X, y)
    again = OrtGradientRegressor(trained.to_onnx(), **SETTINGS | {"learning_rate_init": 1e-30}).fit(X, y)
    assert_as_in_pytorch(again, state)
    assert_allclose(again.predict(X), trained.predict(X), rtol=1e-6)


def test_ambiguous_merged_layers_are_named():
    """One call is missing where two layers could be read: neither is guessed."""
    proto = merged()
    for node in proto.graph.node:
        for entry in node.metadata_props:
            entry.value = entry.value.replace("%layer_norm_2,", "%layer_norm_1,")
    X, y, _, _ = archive_of("merged")
    with pytest.warns(
        OnnxTrainWarning, match=r"'norms.0', stands for 'layer_norm_1' too.*'norms.2.weight'.*optimize=F"
    ):
        trained = OrtGradientRegressor(proto, **SETTINGS).fit(X, y)
    assert "norms.1.weight" not in trained.weights_
    assert "late.weight" in trained.weights_


def test_layers_behind_removed_calls_are_named():
    """``norm(x) + 0``: no call names the result of the merged layer, and its parameters are in no call either."""
    proto = merged()
    for node in proto.graph.node:
        for entry in node.metadata_props:
            for i in (1, 2):
                entry.value = entry.value.replace(f"%layer_norm_{i},", f"%add_9{i},")
    X, y, _, _ = archive_of("merged")
    with pytest.warns(OnnxTrainWarning, match=r"stands for 'add_91', 'add_92' too.*'norms.1.weight'"):
        trained = OrtGradientRegressor(proto, **SETTINGS).fit(X, y)
    assert "norms.1.weight" not in trained.weights_


@pytest.mark.parametrize("engine", available_engines())
def test_shared_layer_stays_one_with_folded_parameters(engine):
    """The file names factors that were computed for each call, and lacks the zero bias that each call adds."""
    X, y, losses, state = archive_of("repeated")
    trained = OrtGradientRegressor(DATA / "torch_repeated_dynamo.onnx", **SETTINGS, engine=engine).fit(X, y)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-5)
    assert len(trained.weights_) == len({name.replace("blocks.0", "blocks.1") for name in state})
    for name in ("blocks.1.last.bias", "twice.last.bias", "once.last.bias"):
        assert_allclose(trained.weights_[name], state[name], rtol=0, atol=2e-5)
    factors = [w - 0.5 for name, w in trained.weights_.items() if name not in state and w.ndim == 1]
    for name in ("blocks.1.scale", "twice.scale", "once.scale"):
        assert min(abs(factor - state[f"{name}.weight"]).max() for factor in factors) < 2e-5


def test_merged_layer_with_several_results_is_separated():
    """PyTorch's normalization by stored statistics returns three results, and its readers name the first."""
    text = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 2] X) => (float[N, 1] Y)
        <float[2] one.weight = {1, 1}, float[2] one.bias = {0, 0}, float[2, 1] w = {1, 2}, float[2, 1] v = {3, 4}>
        { getitem_3 = BatchNormalization(X, one.weight, one.bias, one.bias, one.weight)
          mm = MatMul(getitem_3, w) mm_1 = MatMul(getitem_3, v) Y = Add(mm, mm_1) }"""
    text = text.replace("one.weight", '"one.weight"').replace("one.bias", '"one.bias"')
    model = onnx.parser.parse_model(text)
    targets = parameters_of("one", "two") | {"p_w": "PARAMETER target='w'", "p_v": "PARAMETER target='v'"}
    called = {
        "_native_batch_norm_legit_no_training": (1, "%x, %p_one_weight, %p_one_bias, %b_mean, %b_var, 0.1, 1e-05"),
        "mm": (1, "%getitem_3, %p_w"),
        "mm_1": (1, "%getitem_6, %p_v"),
        "add": (1, "%mm, %mm_1"),
    }
    source = from_file(recorded(model, targets, called))
    assert set(source.parameters) == {"one.weight", "one.bias", "two.weight", "two.bias", "w", "v"}


def parameters_of(*modules):
    """Return the lines of the signature of layers that normalize."""
    leaves = {"p": {"weight": "PARAMETER", "bias": "PARAMETER"}}
    leaves["b"] = {"running_mean": "BUFFER", "running_var": "BUFFER"}
    return {
        f"{prefix}_{module.replace('.', '_')}_{leaf}": f"{kind} target='{module}.{leaf}'"
        for module in modules
        for prefix, kinds in leaves.items()
        for leaf, kind in kinds.items()
    }


def recorded(model, signature, called):
    """Give a graph the record of PyTorch's exporter: of each call, how many read its result, and its arguments."""
    lines = ["# inputs", *(f"{name}: {said}" for name, said in signature.items()), "# outputs"]
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value="\n".join(lines))
    for node, (name, (users, arguments)) in zip(model.graph.node, called.items(), strict=True):
        call = f"%{name} : [num_users={users}] = call_function[target=torch.ops.aten.{FUNCTION.sub('', name)}.default]"
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"{call}(args = ({arguments}), kwargs = {{}})")
    return model


FUNCTION = re.compile(r"_\d+$")
NORM = "_native_batch_norm_legit_no_training"
BLOCK = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] Y)
    <float[3, 2] first = {1, -2, 0.5, 1, 2, 1}, float[2, 2] inner = {1, 0.5, -1, 2}, float[2, 1] final = {1, 2},
     float[2] w = {1, 1}, float[2] b = {0, 0}, float[2] w2 = {1, 1}, float[2] b2 = {0, 0}, float[2] mean = {0, 0},
     float[2] var = {1, 1}, float[2] w3 = {2, 2}, float[2] b3 = {1, 1}>
    { mm = MatMul(X, first) relu = Relu(mm) getitem = BatchNormalization(relu, w, b, mean, var)
      mm_1 = MatMul(relu, inner) add = Add(mm_1, getitem) NORM sub = Sub(add, SUBTRACTED)
      getitem_6 = BatchNormalization(sub, w3, b3, mean, var) add_2 = Add(relu, getitem_6) Y = MatMul(add_2, final) }"""


def block(*, users=4, last=2, added="%mm_1, %getitem", subtracted="%add, %add_9", source="relu"):
    """Return FastViT's block, ``mixer(x) - (0 + norm(x))``, in which both normalizations are one, without ``0 +``.

    The file lacks the second of three normalizations, one of four readers of ``relu``, and the sum ``add_9``.
    """

    def norm(module):
        module = module.replace(".", "_")
        return f"%p_{module}_weight, %p_{module}_bias, %b_{module}_running_mean, %b_{module}_running_var, 0.1, 1e-05"

    matrices = {f"p_{name}": f"PARAMETER target='{name}'" for name in ("first", "inner", "final")}
    signature = matrices | parameters_of("norm.identity", "mixer.identity", "last.bn")
    called = {
        "mm": (1, "%x, %p_first"), source: (users, "%mm"), NORM: (1, f"%{source}, {norm('mixer.identity')}"),
        "mm_1": (1, f"%{source}, %p_inner"), "add": (1, added), "sub": (1, subtracted),
        f"{NORM}_{last}": (1, f"%sub, {norm('last.bn')}"), "add_2": (1, f"%{source}, %getitem_6"),
        "mm_2": (1, "%add_2, %p_final"),
    }  # fmt: skip
    model = onnx.parser.parse_model(BLOCK.replace("NORM", "").replace("SUBTRACTED", "getitem"))
    kept = {"w": "norm.identity.weight", "b": "norm.identity.bias"}  # the first of those that are equal
    kept |= {"mean": kept["b"], "var": kept["w"], "w3": "last.bn.weight", "b3": "last.bn.bias"}
    for node in model.graph.node:
        node.input[:] = [kept.get(name, name) for name in node.input]
    stored = {array.name: array for array in model.graph.initializer}
    del model.graph.initializer[:]
    for old in ("first", "inner", "final", "w", "b", "w3", "b3"):
        stored[old].name = kept.get(old, old)
        model.graph.initializer.append(stored[old])
    return recorded(model, signature, called)


def separate_block():
    """Return the graph with two normalizations."""
    norm = "getitem_3 = BatchNormalization(relu, w2, b2, mean, var)"
    return onnx.parser.parse_model(BLOCK.replace("NORM", norm).replace("SUBTRACTED", "getitem_3"))


DATA_OF_BLOCK = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
STEPS = {"optimizer": SGD(momentum=0.5), "learning_rate_init": 0.001, "batch_size": 12, "shuffle": False}


def trained_block(proto, **settings):
    y = np.sin(DATA_OF_BLOCK).sum(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        return OrtGradientRegressor(proto, **STEPS, max_iter=5, tol=0, **settings).fit(DATA_OF_BLOCK, y)


@pytest.mark.parametrize("training_mode", [False, True])
def test_merged_layers_behind_removed_call_are_separated(training_mode):
    trained, expected = (trained_block(GraphModel(p, training_mode=training_mode)) for p in (block(), separate_block()))
    assert_allclose(trained.loss_curve_, expected.loss_curve_, rtol=1e-6)
    names = {"mixer.identity.weight": "w", "mixer.identity.bias": "b", "last.bn.weight": "w3", "last.bn.bias": "b3"}
    names |= {"norm.identity.weight": "w2", "norm.identity.bias": "b2", "first": "first", "inner": "inner"}
    for name, plain in names.items():
        assert_allclose(trained.weights_[name], expected.weights_[plain], rtol=0, atol=1e-6)
    moved = [trained.weights_[f"{name}.identity.weight"] - 1 for name in ("mixer", "norm")]
    assert abs(moved[0]).max() > 1e-3
    assert_allclose(moved[0], -moved[1], rtol=0, atol=1e-6)  # one is added, the other subtracted


@pytest.mark.parametrize(
    "said",
    [
        {"users": 5},  # two readers of what the layers read are lost
        {"last": 1},  # no normalization is lost, by their numbers
        {"source": "getitem_1"},  # the file does not tell how many read one of several results
        {"added": "%mm_1, %add_8"},  # both results are read behind removed calls: which is whose?
    ],
    ids=["two lost", "no number", "no count", "two removed"],
)
def test_ambiguous_layer_behind_removed_call_is_named(said):
    with pytest.warns(OnnxTrainWarning, match=r"'mixer.identity', stands for .*'norm.identity.weight', 'norm.ident"):
        source = from_file(block(**said))
    assert len(source.parameters) == 7


def test_layer_read_twice_behind_removed_call_stays_one():
    """Nothing is lost: the parameters that no call reads were computed with in advance, or belong to nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        source = from_file(block(users=3, last=1))
    assert len(source.parameters) == 7
