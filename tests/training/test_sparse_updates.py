"""Updates of the rows of embeddings that occur: against float64 references, and against updates of all rows."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import LBFGS, SGD, AdamW, OrtGradientRegressor, Runtime
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.optimizers import Adagrad, Adam, Lion, Optimizer, RMSprop
from tests.helpers.environment import OWN_MEMORY, available_engines
from tests.helpers.observed import adds_by_rows, forbid_row_gradients, updates_by_rows
from tests.helpers.step_options import configured, with_options

WORDS, WIDTH, LENGTH, BATCH = 1500, 4, 3, 8
RNG = np.random.default_rng(0)
T = RNG.normal(size=(WORDS, WIDTH))
W = RNG.normal(size=(WIDTH, 1))
X = RNG.integers(0, 60, (43, LENGTH)) * 23 % WORDS  # batches of 8 and one of 3
Y = RNG.normal(size=43)
ABSENT = np.setdiff1d(np.arange(WORDS), X)
PLAIN = "E = Gather(T, X) M = ReduceMean <axes = [1], keepdims = 0> (E) Y = MatMul(M, W)"
TWICE = "E = Gather(T, X) F = Gather(T, X) G = Mul(E, F) M = ReduceMean <axes = [1], keepdims = 0> (G) Y = MatMul(M, W)"
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
engines = pytest.mark.parametrize("engine", available_engines())


def graph(nodes: str = PLAIN, dtype: type = np.float32) -> onnx.ModelProto:
    kind = "float" if dtype is np.float32 else "double"
    text = f'<ir_version: 8, opset_import: ["": 17]> net (int64[N, {LENGTH}] X) => ({kind}[N, 1] Y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    weights = {"T": T, "W": W}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a.astype(dtype), n) for n, a in weights.items())
    return model


def new(model: onnx.ModelProto | None = None, **settings: object) -> OrtGradientRegressor:
    common = {"learning_rate_init": 0.05, "batch_size": BATCH, "max_iter": 4, "shuffle": False, "tol": -np.inf}
    return configured(
        OrtGradientRegressor(graph() if model is None else model), **{**common, "random_state": 0, **settings}
    )


def gradients(w: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the gradients of the mean squared error of some rows."""
    mean = w["T"][X[rows]].mean(axis=1)
    slope = 2 * ((mean @ w["W"])[:, 0] - Y[rows]) / len(rows)
    of_table = np.zeros_like(T)
    np.add.at(of_table, X[rows], (slope[:, None, None] * w["W"][:, 0] / LENGTH).repeat(LENGTH, axis=1))
    return {"T": of_table, "W": (mean * slope[:, None]).sum(axis=0)[:, None]}


def adam(p, g, m, v, t, rate, decay, *, decoupled):
    g = g if decoupled else g + decay * p
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p - step - rate * decay * p * decoupled, m, v


def momentum(p, g, m, v, t, rate, decay):
    m = 0.9 * m + g + decay * p
    return p - rate * m, m, v


REFERENCES = {
    "SGD": (SGD(), lambda p, g, m, v, t, rate: (p - rate * g, m, v)),
    "SGD with momentum": (SGD(0.9, weight_decay=0.1), lambda *a: momentum(*a, 0.1)),
    "Adam": (Adam(), lambda *a: adam(*a, 0.0, decoupled=True)),
    "Adam with decay": (Adam(weight_decay=0.1), lambda *a: adam(*a, 0.1, decoupled=False)),
    "AdamW": (AdamW(weight_decay=0.1), lambda *a: adam(*a, 0.1, decoupled=True)),
}


def reference(update, *, lazy: bool, accumulate: int = 1) -> dict[str, np.ndarray]:
    """Return the weights after four epochs in float64; ``lazy``: rows that do not occur, and their state, stay."""
    w = {"T": T.copy(), "W": W.copy()}
    state, t = {n: (np.zeros_like(a), np.zeros_like(a)) for n, a in w.items()}, 0
    size = BATCH * accumulate
    for start in list(range(0, len(X), size)) * 4:
        rows, t = np.arange(len(X))[start : start + size], t + 1
        for name, g in gradients(w, rows).items():
            moved = np.unique(X[rows]) if lazy and name == "T" else slice(None)
            m, v = state[name]
            w[name][moved], m[moved], v[moved] = update(w[name][moved], g[moved], m[moved], v[moved], t, 0.05)
    return w


@engines
@pytest.mark.parametrize("name", REFERENCES)
def test_lazy_updates_are_those_of_a_reference_in_float64(engine, name):
    optimizer, update = REFERENCES[name]
    fitted = new(optimizer=with_options(optimizer, lazy_rows=True), engine=engine).fit(X, Y)
    expected = reference(update, lazy=True)
    for weight, array in expected.items():
        assert_allclose(fitted.weights_[weight], array, rtol=0, atol=3e-5)
    assert updates_by_rows(fitted)
    assert_array_equal(fitted.weights_["T"][ABSENT], T.astype(np.float32)[ABSENT])
    for slot in fitted._state.optimizer_state.slots.values():
        assert not slot[fitted._state.parameters.span("T")].reshape(T.shape)[ABSENT].any()
    moved = np.abs(fitted.weights_["T"] - new(optimizer=optimizer, engine=engine).fit(X, Y).weights_["T"]).max()
    assert name == "SGD" or moved > 1e-3


@pytest.mark.parametrize("name", REFERENCES)
def test_float64(name):
    optimizer, update = REFERENCES[name]
    model = graph(dtype=np.float64)
    fitted = new(model, optimizer=with_options(optimizer, lazy_rows=True), engine="portable").fit(X, Y)
    for weight, array in reference(update, lazy=True).items():
        assert_allclose(fitted.weights_[weight], array, rtol=0, atol=1e-12)
    fitted = new(model, optimizer=optimizer, engine="portable").fit(X, Y)
    for weight, array in reference(update, lazy=False).items():
        assert_allclose(fitted.weights_[weight], array, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["Adam with decay", "SGD"])
def test_accumulated_minibatches_update_union_of_rows(name):
    optimizer, update = REFERENCES[name]
    fitted = new(
        optimizer=with_options(optimizer, lazy_rows=True, accumulate=3),
    ).fit(X, Y)
    for weight, array in reference(update, lazy=True, accumulate=3).items():
        assert_allclose(fitted.weights_[weight], array, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("optimizer", "settings", "by_rows"),
    [
        (SGD(), {}, True),
        (Adagrad(), {}, True),
        (SGD(), {"optimizer__max_grad_norm": 0.1, "optimizer__ema_decay": 0.9}, True),
        (SGD(), {"optimizer__accumulate": 2}, True),
        (SGD(weight_decay=0.1), {"optimizer__weight_decay_factors": {"T": 0.0}}, True),
        (SGD(), {"alpha": 1.0}, False),
        (SGD(), {"model": graph(TWICE)}, True),
        (SGD(), {"batch_size": 300}, True),
        (SGD(weight_decay=0.1), {}, False),
        (SGD(weight_decay=0.1), {"optimizer__weight_decay_schedule": "linear"}, False),
        (Adagrad(epsilon=0.0, initial_accumulator_value=1.0), {}, False),
        (RMSprop(), {"optimizer__max_grad_norm": 0.1}, False),
        (Lion(), {"alpha": 0.1}, False),
        (AdamW(), {"optimizer__accumulate": 2, "optimizer__learning_rate_factors": {"T": 0.5}}, False),
        (LBFGS(), {"alpha": 0.1}, False),
    ],
    ids=str,
)
@engines
def test_exact_updates_are_those_of_all_rows(monkeypatch, optimizer, settings, by_rows, engine):
    sparse = new(**{"optimizer": optimizer, "engine": engine} | settings).fit(X, Y)
    assert updates_by_rows(sparse) == by_rows
    assert adds_by_rows(sparse)
    forbid_row_gradients(monkeypatch)
    dense = new(**{"optimizer": optimizer, "engine": engine} | settings).fit(X, Y)
    assert not adds_by_rows(dense)
    for name, weight in dense.weights_.items():
        assert_allclose(sparse.weights_[name], weight, rtol=0, atol=1e-5)
    assert_allclose(sparse.loss_curve_, dense.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 1.0}, {"optimizer__max_grad_norm": 0.1}, {"optimizer__ema_decay": 0.9}, {"model": graph(TWICE)}],
)
@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), RMSprop(momentum=0.9), SGD(0.9)])
def test_lazy_is_exact_where_every_row_occurs(optimizer, settings):
    every = np.arange(WORDS).reshape(-1, LENGTH)
    targets = np.sin(np.arange(len(every)))
    exact, lazy = (
        new(**{"optimizer": with_options(optimizer, lazy_rows=one == "lazy"), "batch_size": len(every)} | settings).fit(
            every, targets
        )
        for one in ("exact", "lazy")
    )
    assert updates_by_rows(lazy)
    for name, weight in exact.weights_.items():
        assert_allclose(lazy.weights_[name], weight, rtol=0, atol=2e-5)


@engines
def test_indices_may_be_negative_or_computed(engine):
    nodes = PLAIN.replace("Gather(T, X)", "Gather(T, I)").replace(
        "E =", "one = Constant <value_int = 1> () I = Sub(X, one) E ="
    )
    plain = new(optimizer=SGD(), engine=engine).fit(X - WORDS, Y)
    shifted = new(graph(nodes), optimizer=SGD(), engine=engine).fit(X + 1, Y)
    usual = new(optimizer=SGD(), engine=engine).fit(X, Y)
    for one in (plain, shifted):
        assert updates_by_rows(one)
        assert_array_equal(one.weights_["T"], usual.weights_["T"])


def test_the_row_of_padding_stays():
    model = graph()
    target = "torch.ops.aten.embedding.default"
    call = f"%embedding : [num_users=1] = call_function[target={target}](args = (%t, %x, 23), kwargs = {{}})"
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.fx_node", value=call)
    assert (X == 23).any()
    for optimizer, updates in ((SGD(), "exact"), (AdamW(), "lazy")):
        fitted = new(model, optimizer=with_options(optimizer, lazy_rows=updates == "lazy")).fit(X, Y)
        moved = (fitted.weights_["T"] != T.astype(np.float32)).any(axis=1)
        assert_array_equal(np.flatnonzero(moved), np.setdiff1d(X, [23]))


def test_gradients_are_the_central_differences():
    fitted = new(graph(dtype=np.float64), optimizer=LBFGS(), max_iter=1).fit(X[:8], Y[:8])
    step = fitted._state.live.step
    table = step.parameters.view("T")
    assert step.passes.row_sparse
    step.compute_gradients(8.0)
    gradient = step.parameters.gradient_view("T").copy()
    assert_array_equal(np.flatnonzero(gradient.any(axis=1)), np.unique(X[:8]))
    for place in ((X[0, 0], 1), (X[7, 2], 3), (ABSENT[0], 0)):
        losses = []
        for shift in (1e-6, -2e-6):
            table[place] += shift
            losses.append(step.compute_gradients(8.0))
        table[place] += 1e-6
        assert_allclose(gradient[place], (losses[0] - losses[1]) / 2e-6, atol=1e-7)


@pytest.mark.parametrize(
    "nodes",
    [
        "E = Gather(T, X) R = Transpose <perm = [1, 0]> (T) H = MatMul(E, R) Y = ReduceMean <axes = [1]> (H)",
        "H = Gather <axis = 1> (T, X) Y = ReduceMean <axes = [0], keepdims = 0> (H)",
    ],
    ids=["tied", "columns"],
)
def test_matrix_with_other_reads_gets_dense_updates(nodes):
    text = f'<ir_version: 8, opset_import: ["": 17]> net (int64[N] X) => (float[N, 1] Y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text.replace("[N, 1] Y", "[N] Y") if "axis = 1" in nodes else text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(T[:50].astype(np.float32), "T"))
    x, settings = np.arange(16) % 4, {"optimizer": AdamW(), "batch_size": 16, "max_iter": 2}
    with pytest.warns(UserWarning, match="lazy_rows=True has no effect"):
        lazy = new(model, **settings | {"optimizer": AdamW(lazy_rows=True)}).fit(x, Y[:16])
    assert_array_equal(lazy.weights_["T"], new(model, **settings).fit(x, Y[:16]).weights_["T"])


@pytest.mark.parametrize("updates", ["exact", "lazy"])
def test_training_goes_on_from_a_pickle(updates):
    settings = {"optimizer": with_options(SGD() if updates == "exact" else AdamW(), lazy_rows=updates == "lazy")}
    whole, parts = new(**settings), new(**settings)
    for start in range(0, 40, 8):
        rows = slice(start, start + 8)
        whole.partial_fit(X[rows], Y[rows])
        parts = pickle.loads(pickle.dumps(parts.partial_fit(X[rows], Y[rows])))
    assert_array_equal(parts.weights_["T"], whole.weights_["T"])


def test_the_setting_may_change_between_calls():
    warm = new(optimizer=AdamW(), warm_start=True, max_iter=1).fit(X, Y)
    before = warm.weights_["T"].copy()
    warm.set_params(optimizer__lazy_rows=True).fit(X[:8], Y[:8])
    moved = (warm.weights_["T"] != before).any(axis=1)
    assert_array_equal(np.flatnonzero(moved), np.unique(X[:8]))
    warm.set_params(optimizer__lazy_rows=False).fit(X[:8], Y[:8])
    assert (warm.weights_["T"] != before).any(axis=1).all()


class Drift(SGD):
    """Moves elements without a gradient."""

    def update(self, op, p, g, state, k):
        return op.Sub(p, op.Mul(op.Add(g, 1.0), k["learning_rate"])), {}


class Centered(Optimizer):
    """Subtracts the mean of the gradients."""

    elementwise = False

    def update(self, op, p, g, state, k):
        own = op.Sub(g, op.ReduceMean(g, keepdims=True))
        return op.Sub(p, op.Mul(own, k["learning_rate"])), {}


def test_optimizers_of_a_user_update_all_rows():
    fitted = new(optimizer=Drift(), max_iter=1).fit(X[:8], Y[:8])
    assert not updates_by_rows(fitted)
    assert_allclose(fitted.weights_["T"][ABSENT], T[ABSENT] - 0.05, atol=1e-6)
    with pytest.raises(ModelError, match=r"Centered.update combines elements of a parameter, so single rows"):
        new(optimizer=with_options(Centered(), lazy_rows=True)).fit(X, Y)


def test_unsupported_lazy_updates_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="Invalid parameter 'lazy_rows' for estimator LBFGS"):
        new(optimizer=LBFGS(), optimizer__lazy_rows=True)
    with pytest.raises(ValueError, match="The 'lazy_rows' parameter of AdamW must be a bool"):
        new(optimizer__lazy_rows="lazy").fit(X, Y)
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    with pytest.raises(ValueError, match="in the host's memory, but training runs on 'cpu'"):
        new(optimizer__lazy_rows=True).fit(X, Y)


def test_activations_are_computed_again_beside_embeddings():
    nodes = PLAIN.replace("M =", "A = Tanh(E) B = Sin(A) C = Tanh(B) D = Mul(C, B) M =").replace("(E) Y", "(D) Y")
    found = [
        new(graph(nodes), optimizer=SGD(), runtime=Runtime(checkpoint_activations=c)).fit(X, Y) for c in (False, True)
    ]
    assert_allclose(found[1].weights_["T"], found[0].weights_["T"], rtol=0, atol=2e-5)
