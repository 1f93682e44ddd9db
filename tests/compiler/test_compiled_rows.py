"""A short minibatch has the bits of the whole one that it is padded to, though only its own rows are computed."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain_sklearn import (
    MLP,
    SGD,
    Linear,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLP,
    TabM,
    losses,
)
from onnxtrain_sklearn._compiler.code import BoundCode, graph_code
from onnxtrain_sklearn._compiler.kernels import tile_of
from onnxtrain_sklearn._compiler.rows import RowInputs
from onnxtrain_sklearn._compiler.views import LANES
from onnxtrain_sklearn._ort.llvm import features
from onnxtrain_sklearn._training.passes import HostPass
from tests.helpers.compiled_graphs import GUARD, KINDS, Drawn, guarded, inputs_of, model_of
from tests.helpers.data import blobs, line
from tests.helpers.step_options import configured

pytest.importorskip("llvmlite", reason="graphs are compiled by llvmlite")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

BATCH, ROWS = 37, 80
"""The last of three minibatches has six rows."""
TWO, THREE, NUMBER, NUMBERS = blobs(ROWS), blobs(ROWS, classes=3), line(ROWS), line(ROWS, outputs=3)
MANY = THREE[0], np.arange(ROWS) % 19
POSITIVE = NUMBERS[0], np.abs(NUMBERS[1]) + 0.1
LABELS = THREE[0], np.stack([THREE[1] == 0, THREE[1] > 0, THREE[1] == 1], 1).astype(int)
COLUMNS = THREE[0], np.stack([THREE[1], THREE[1] > 0], 1).astype(int)
SHARES = np.random.default_rng(0).uniform(0.2, 3.0, ROWS)
ACTIVATIONS = "identity relu tanh logistic leaky_relu softplus silu mish elu selu gelu".split()
SEVERAL = {"loss": losses.LogLoss(label_smoothing=0.1), "class_weight": "balanced", "alpha": 0.01, "l1_ratio": 0.5}

BOUNDED = {
    **{name: (THREE, {"model": MLP((20, 6), activation=name)}) for name in ACTIVATIONS},
    "linear": (TWO, {"model": Linear()}),
    "linear, numbers": (NUMBER, {"model": Linear()}),
    "wide": (THREE, {"model": MLP((70, 33))}),
    "layer normalization": (THREE, {"model": MLP((8, 6), normalization="layer")}),
    "dropout": (THREE, {"model": MLP((40, 6), dropout=0.3)}),
    "residual": (NUMBER, {"model": MLP((8, 8, 8), residual=True)}),
    "RealMLP": (THREE, {"model": RealMLP(embedding=None)}),
    "many classes": (MANY, {}),
    "two classes": (TWO, {}),
    "labels": (LABELS, {}),
    "several columns of classes": (COLUMNS, {"model": MLP((8,))}),
    "numbers": (NUMBERS, {}),
    "focal loss": (THREE, {"loss": losses.Focal()}),
    "hinge": (TWO, {"loss": losses.Hinge()}),
    "squared hinge": (THREE, {"loss": losses.SquaredHinge()}),
    "modified Huber loss": (LABELS, {"loss": losses.ModifiedHuber()}),
    "quantile": (NUMBERS, {"loss": losses.Quantile(0.3)}),
    "absolute error": (NUMBERS, {"loss": "absolute_error"}),
    "elastic": (NUMBERS, {"loss": "elastic"}),
    "Huber loss": (NUMBER, {"loss": "huber"}),
    "log cosh": (NUMBER, {"loss": "log_cosh"}),
    "sample weights": ((*THREE, SHARES), {}),
    "rows without weight": ((*NUMBER, np.arange(ROWS) % 3 > 0), {}),
    "settings of the loss": (THREE, SEVERAL),
    "settings of the step": (
        NUMBER,
        {
            "optimizer__max_grad_norm": 0.1,
            "optimizer__accumulate": 2,
            "optimizer__ema_decay": 0.9,
        },
    ),
    "penalty": (TWO, {"alpha": 0.1, "l1_ratio": 0.2, "optimizer": SGD(momentum=0.9)}),
    "early stopping": (THREE, {"early_stopping": True, "validation_split": 0.2}),
    "frozen": (THREE, {"trainable": ["layers.1.*"]}),
}
WHOLE = {
    "batch normalization": (THREE, {"model": MLP((8, 6), normalization="batch")}),
    "embedding": (THREE, {"model": RealMLP()}),
    "members": (THREE, {"model": TabM(3, (8, 8))}),
    "gamma": (POSITIVE, {"loss": "gamma"}),
    "Poisson": (POSITIVE, {"loss": "poisson"}),
}
"""Those of which it is not proven that rows can be computed by themselves, or whose rows are not padded."""


def trained(data, **settings):
    X, y, *shares = data
    kind = OrtGradientRegressor if y.dtype.kind == "f" else OrtGradientClassifier
    given = {"model": MLP((20, 6)), "batch_size": BATCH, "max_iter": 2, "random_state": 0, **settings}
    return configured(kind(engine="compiled"), **given).fit(X, y, *shares)


def bits(estimator):
    return {name: array.tobytes() for name, array in estimator.weights_.items()}, list(estimator.loss_curve_)


def poison(array):
    """Fill an array with numbers that show wherever they are read."""
    array[...] = np.nan


@pytest.fixture
def computed(monkeypatch):
    """Let everything that a pass writes, and the rows of its input that it does not compute, be NaN before each run.

    Returns the rows of each run, and how many it computed.
    """
    found, run = [], HostPass.run

    def poisoned(one, state, dropout):
        code = one.gradient_graph
        code.compute_rows(one.buffers.count)
        rows = int(code._arrays[1][-1])
        poison(code._arrays[0][-2])
        for array in one.buffers.columns.values():
            if array.dtype.kind == "f" and rows:
                poison(array[rows:])
        found.append((one.buffers.count, rows))
        return run(one, state, dropout)

    monkeypatch.setattr(HostPass, "run", poisoned)
    return found


@pytest.mark.parametrize("name", BOUNDED)
def test_bits_of_a_fit_are_those_of_whole_minibatches(name, computed, monkeypatch):
    """Nothing that is not computed is read: it is NaN."""
    data, settings = BOUNDED[name]
    ours = bits(trained(data, **settings))
    assert all(count < rows <= count + LANES or rows == BATCH for count, rows in computed)
    assert min(rows for _, rows in computed) < BATCH
    monkeypatch.undo()
    monkeypatch.setattr(BoundCode, "compute_rows", lambda self, rows: None)
    assert bits(trained(data, **settings)) == ours


@pytest.mark.each(by=lambda name: name)
@pytest.mark.parametrize("name", WHOLE)
def test_rows_that_may_meet_are_computed_whole(name, computed):
    data, settings = WHOLE[name]
    trained(data, **settings)
    assert {rows for _, rows in computed} == {0}


@pytest.mark.parametrize("case", [(THREE, {}), (NUMBER, {}), (LABELS, {}), (THREE, {"model": MLP((8,), dropout=0.2)})])
@pytest.mark.parametrize("batch", [18, 32, 41])
def test_every_number_of_rows(case, batch, monkeypatch):
    (X, y), settings = case
    for rows in range(batch + 1, 2 * batch):
        few = np.resize(X, (rows, X.shape[1])), np.resize(y, (rows, *y.shape[1:]))
        ours = bits(trained(few, batch_size=batch, **settings, max_iter=1))
        with monkeypatch.context() as patch:
            patch.setattr(BoundCode, "compute_rows", lambda self, rows: None)
            assert bits(trained(few, batch_size=batch, **settings, max_iter=1)) == ours, rows


@pytest.mark.parametrize(("batch", "is_bounded"), [(16, False), (17, True), (200, True), (256, True), (257, False)])
def test_sums_over_rows_are_one_block(batch, is_bounded, computed):
    data = line(batch + 20)
    trained(data, batch_size=batch)
    assert {(batch, batch * is_bounded), (20, 32 * is_bounded)} >= set(computed[:2])


B = 33
"""Rows of the graphs below; the first input has data, the second weights."""


class Bounded:
    """A graph with arrays of its own for each number of rows."""

    def __init__(self, text, constants, inputs, machine=None):
        rows = RowInputs(B, ["x"], ["w"], [name for name in inputs if name not in ("x", "w")])
        self._inputs, proto = inputs, model_of(text, constants)
        self.code = graph_code(ir.from_proto(proto).graph, tile_of(machine or features()), rows)

    def __call__(self, rows, computed):
        """Return the bits of the outputs for so many rows, where so many are computed; the others are not read."""
        given = {name: guarded(array.size, np.float32) for name, array in self._inputs.items()}
        inputs = {name: array[GUARD:-GUARD] for name, array in given.items()}
        for name, array in self._inputs.items():
            inputs[name][...] = array.ravel()
        for name in {"x", "w"} & inputs.keys():
            whole = inputs[name].reshape(B, -1)
            whole[rows:] = whole[0] if name == "x" else 0.0
            whole[computed:] = np.nan
        around = {name: guarded(size, np.float32) for name, size in self.code.outputs.items()}
        code = BoundCode(self.code, inputs, {name: array[GUARD:-GUARD] for name, array in around.items()})
        poison(code._arrays[0][-2])
        code.compute_rows(rows if computed < B else B)
        code.run()
        assert all(np.isnan([*array[:GUARD], *array[-GUARD:]]).all() for array in [*around.values(), *given.values()])
        return {name: array.tobytes() for name, array in around.items()}

    def check(self):
        for rows in range(1, B):
            whole, ours = self(rows, B), self(rows, min(B, (rows // LANES + 1) * LANES))
            assert ours == whole, rows


def inputs_for(text, constants, seed=0):
    return inputs_of(model_of(text, constants), np.random.default_rng(seed))


TURNED = "Transpose<perm = [1, 0]>"
SUMS = {
    "of products with weights": "m = Mul(x, w) r = ReduceSum<keepdims = 0>(m)",
    "over rows": "m = Mul(w, x) r = ReduceSum<keepdims = 0>(m, first)",
    "of products of matrices": "h = MatMul(x, p) m = Mul(h, w) t = Transpose<perm = [1, 0]>(x) r = MatMul(t, m)",
    "of quotients": "h = Exp(x) m = Div(w, h) n = Neg(m) r = ReduceMean<keepdims = 0>(n, first)",
    "of rows side by side": "m = Mul(x, w) n = Neg(m) c = Concat<axis = 1>(m, n) r = ReduceSum<keepdims = 0>(c, first)",
    "of parts": "m = Mul(x, w) a, b = Split<axis = 1, num_outputs = 2>(m) t = Sub(a, b) r = ReduceSum(t, first)",
    "of rows between zeros": "m = Mul(x, w) q = Pad(m, pads) r = ReduceSum(q, first)",
    "of chosen rows": "c = Less(x, half) m = Mul(x, w) k = Mul(w, half) n = Where(c, m, k) r = ReduceSum(n, first)",
    "of norms": "q = Mul(x, x) s = ReduceSum(q, last) h = Sqrt(s) g = Div(x, h) m = Mul(g, w) r = ReduceSum(m)",
    "of shares of classes": "s = Softmax<axis = -1>(x) m = Mul(s, w) r = ReduceSum(m, first)",
    "of flat rows": "m = Mul(x, w) f = Reshape(m, flat) r = ReduceSum(f, first)",
    "of parameters": "m = Mul(x, w) s = ReduceSum(m) t = ReduceSum(p) r = Add(s, t)",
}
SUM = " m = Mul(u, w) r = ReduceSum(m)"
MEETING = {
    "a sum without weights": "r = ReduceSum(x)",
    "a mean of rows": "s = ReduceMean(x, first) u = Sub(x, s)" + SUM,
    "a maximum": "m = Mul(x, w) r = ReduceMax(m)",
    "softmax over rows": f"t = {TURNED}(x) s = Softmax<axis = -1>(t) u = {TURNED}(s)" + SUM,
    "similarities of rows": f"t = {TURNED}(x) u = MatMul(x, t)" + SUM,
    "a function of weights": "u = Exp(w)" + SUM,
    "an infinite function of weights": "u = Log(w)" + SUM,
    "weights over weights": "m = Div(w, w) r = ReduceSum(m)",
    "a choice by weights": "c = Less(half, w) u = Mul(x, w) n = Where(c, w, u) r = ReduceSum(n)",
    "weights and data": "m = Add(x, w) r = ReduceSum(m)",
    "an output of rows": "r = Mul(x, w)",
    "turned rows": f"t = {TURNED}(x) u = Reshape(t, shape)" + SUM,
    "a chosen row": "m = Mul(x, w) r = Slice(m, first, last)",
    "a row that all read": "s = Slice(x, first, last) u = Sub(x, s)" + SUM,
    "rows below each other": "m = Mul(x, w) c = Concat<axis = 0>(m, m) r = ReduceSum(c)",
    "products without weights": f"t = {TURNED}(x) h = MatMul(x, p) r = MatMul(t, h)",
}
CONSTANTS = {
    **{"first": np.array([0]), "last": np.array([1]), "pads": np.array([0, 1, 0, 2]), "flat": np.array([-1])},
    **{"half": np.float32(0.5), "shape": np.array([B, 6])},
}


def graph_of(nodes):
    """Return the text of a graph, and the constants that it reads."""
    text = f"g (float[{B},6] x, float[{B},1] w, float[6,5] p) => (float r) {{ {nodes} }}"
    return text, {name: array for name, array in CONSTANTS.items() if re.search(rf"\b{name}\b", nodes)}


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_rows_that_occur(name):
    text, constants = graph_of(SUMS[name])
    graph = Bounded(text, constants, inputs_for(text, constants))
    assert graph.code.batch_size == B
    graph.check()


@pytest.mark.parametrize("machine", ["+avx512vl", "+avx2", "+neon", "+other"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 20), (5, 2), (17, 33), (70, 3), (3, 70)])
def test_products(k, n, machine):
    nodes = SUMS["of products of matrices"]
    text = f"g (float[{B},{k}] x, float[{B},1] w, float[{k},{n}] p) => (float r) {{ {nodes} }}"
    graph = Bounded(text, {}, inputs_for(text, {}), machine)
    assert graph.code.batch_size == B
    graph.check()


@pytest.mark.parametrize("nodes", ["r = ReduceSum(m)", "f = Reshape(m, shape) r = ReduceSum(f, first)"])
def test_sums_of_several_blocks(nodes):
    text = f"g (float[{B},500] x, float[{B},1] w) => (float r) {{ m = Mul(x, w) {nodes} }}"
    constants = {"shape": np.array([-1, 5]), "first": np.array([0])} if "shape" in nodes else {}
    graph = Bounded(text, constants, inputs_for(text, constants))
    assert graph.code.batch_size == B
    graph.check()


@pytest.mark.parametrize("name", MEETING)
def test_rows_that_meet_are_not_bounded(name):
    text, constants = graph_of(MEETING[name])
    assert Bounded(text, constants, inputs_for(text, constants)).code.batch_size == 0


def test_a_sum_that_underflows_has_the_same_sign():
    """The products of 16 rows underflow to -0, to which a row of weight zero adds 0."""
    text, constants = graph_of(SUMS["of products of matrices"])
    x = np.full((B, 6), 1e-30)
    x[0] = 0.0
    graph = Bounded(text, constants, {"x": x, "w": np.ones((B, 1)), "p": -np.ones((6, 5))})
    zeros = np.zeros(30, np.float32).tobytes()
    assert zeros in graph(16, B)["r"]
    assert graph(16, 32) == graph(16, B)
    np.copyto(x, 1e-30)
    assert zeros not in graph(16, B)["r"]
    assert graph(16, 32) == graph(16, B)


def random_sums(rng):
    """Return the text and constants of a random graph whose outputs are sums over rows of products with weights."""
    drawn = Drawn(rng)
    drawn.inputs = {"x": (B, int(rng.integers(1, 9))), "w": (B, 1), "p": (int(rng.integers(1, 9)), 3)}
    drawn.shapes = {"p": drawn.inputs["p"], "x": drawn.inputs["x"]}
    for _ in range(rng.integers(1, 9)):
        getattr(drawn, str(rng.choice(KINDS)))()
    sums = [name for name, shape in drawn.shapes.items() if shape[:1] == (B,)][-3:]
    for i, name in enumerate(sums):
        ones = drawn.list([B, *[1] * (len(drawn.shapes[name]) - 1)])
        drawn.nodes.append(f"w{i} = Reshape(w, {ones}) m{i} = Mul({name}, w{i})")
        drawn.nodes.append(
            f"r{i} = ReduceSum(m{i}, {drawn.list([0])})" if rng.random() < 0.5 else f"r{i} = ReduceSum(m{i})"
        )
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in drawn.inputs.items())
    outputs = ", ".join(f"float r{i}" for i in range(len(sums)))
    return f"g ({inputs}) => ({outputs}) {{ {' '.join(drawn.nodes)} }}", drawn.constants


@pytest.mark.long
@pytest.mark.thinned(by=lambda seed: str(seed % 2))
@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_of_padded_rows_have_the_bits_of_whole_ones(seed):
    rng, bounded = np.random.default_rng(seed), 0
    for _ in range(15):
        text, constants = random_sums(rng)
        machine = str(rng.choice(["+avx512vl", "+avx2", "+neon", "+other"]))
        graph = Bounded(text, constants, inputs_for(text, constants), machine)
        if graph.code.batch_size:
            bounded += 1
            graph.check()
    assert 3 < bounded < 15
