"""Lazy updates of the columns of sparse data that occur: against float64 references, dense rows and training graphs."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import onnx.parser
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import MLP, SGD, AdamW, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.optimizers import Adagrad, Adam, RMSprop
from tests.helpers.environment import available_engines
from tests.helpers.observed import updates_by_rows
from tests.helpers.step_options import configured, with_options
from tests.helpers.training import NEVER, quietly
from tests.helpers.training_graphs import Folder
from tests.helpers.tuning import tune

N, WIDTH, BATCH, RATE = 43, 400, 8, 0.05  # minibatches of 8 rows and one of 3
RNG = np.random.default_rng(0)
X = sp.random(N, WIDTH, 0.02, format="csr", dtype=np.float32, random_state=0)
ABSENT = np.setdiff1d(np.arange(WIDTH), X.indices)
FORMS = {"product": "Y = MatMul (X, W)", "transposed": "Y = Gemm <transB = 1> (X, V)"}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
engines = pytest.mark.parametrize("engine", available_engines())


def start(width: int, outputs: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(width, outputs))


def targets(rows: object, outputs: int) -> np.ndarray:
    return np.asarray(rows @ np.random.default_rng(2).normal(size=(rows.shape[1], outputs)), np.float64)


def graph(form: str, width: int = WIDTH, outputs: int = 2, dtype: type = np.float32) -> onnx.ModelProto:
    kind = "float" if dtype is np.float32 else "double"
    text = f'<ir_version: 8, opset_import: ["": 18]> net ({kind}[N, {width}] X) => ({kind}[N, {outputs}] Y)'
    model, matrix = onnx.parser.parse_model(f"{text} {{ {FORMS[form]} }}"), start(width, outputs).astype(dtype)
    name, array = ("W", matrix) if form == "product" else ("V", matrix.T.copy())
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def squeezed(y: np.ndarray) -> np.ndarray:
    return y[:, 0] if y.shape[1] == 1 else y


def new(
    model: object, *, optimizer: object = "adamw", lazy_rows: bool = True, **settings: object
) -> OrtGradientRegressor:
    common = {"learning_rate_init": RATE, "batch_size": BATCH, "max_iter": 4, "shuffle": False, "tol": NEVER}
    estimator = OrtGradientRegressor(model, optimizer=with_options(optimizer, lazy_rows=lazy_rows), random_state=0)
    return estimator.set_params(**common | settings)


def matrix_of(estimator: OrtGradientRegressor) -> np.ndarray:
    """Return the trained matrix, a row for each column of the data."""
    weights = estimator.weights_
    return weights["W"] if "W" in weights else weights["V"].T


def adam(p, g, m, v, t, decay, *, decoupled):
    g = g if decoupled else g + decay * p
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = RATE * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p - step - RATE * decay * p * decoupled, m, v


def momentum(p, g, m, v, t):
    m = 0.9 * m + g + 0.1 * p
    return p - RATE * m, m, v


REFERENCES = {
    "SGD": (SGD(), lambda p, g, m, v, t: (p - RATE * g, m, v)),
    "SGD with momentum": (SGD(0.9, weight_decay=0.1), momentum),
    "Adam with decay": (Adam(weight_decay=0.1), lambda *a: adam(*a, 0.1, decoupled=False)),
    "AdamW": (AdamW(weight_decay=0.1), lambda *a: adam(*a, 0.1, decoupled=True)),
}


def reference(rows, y, update, *, lazy=True, accumulate=1, alpha=0.0, epochs=4, dtype=np.float32) -> np.ndarray:
    """Return the matrix after training in float64 from weights of ``dtype``; columns of zeros do not change it."""
    X, w, t = rows.toarray().astype(np.float64), start(rows.shape[1], y.shape[1]).astype(dtype).astype(np.float64), 0
    m, v, size = np.zeros_like(w), np.zeros_like(w), BATCH * accumulate
    for first in list(range(0, len(y), size)) * epochs:
        part, t = X[first : first + size], t + 1
        g = 2 * part.T @ (part @ w - y[first : first + size]) / y[first : first + size].size + alpha * w / len(part)
        moved = (part != 0).any(axis=0) if lazy else slice(None)
        w[moved], m[moved], v[moved] = update(w[moved], g[moved], m[moved], v[moved], t)
    return w


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_any_size_lead_to_the_same_bits(form, outputs, monkeypatch):
    """In one block columns repeat, as they do in the minibatch; in several they do not."""
    y, settings = targets(X, outputs), {"optimizer": RMSprop()}  # the training build has no kernel of its own for it
    fits = []
    for elements in (65536, 64, 4):
        tune(monkeypatch, block=elements)
        fits.append(new(graph(form, outputs=outputs), **settings).fit(X, squeezed(y)))
    for one in fits[1:]:
        assert_array_equal(matrix_of(one), matrix_of(fits[0]))
    assert len(X[:BATCH].indices) > len(np.unique(X[:BATCH].indices)) > 64 // 2


@engines
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REFERENCES)
def test_lazy_updates_are_those_of_a_reference_in_float64(name, form, outputs, engine):
    (optimizer, update), y = REFERENCES[name], targets(X, outputs)
    fitted = new(graph(form, outputs=outputs), optimizer=optimizer, engine=engine).fit(X, squeezed(y))
    assert_allclose(matrix_of(fitted), reference(X, y, update), rtol=0, atol=3e-5)
    assert updates_by_rows(fitted)
    assert len(ABSENT) > 100
    assert_array_equal(matrix_of(fitted)[ABSENT], start(WIDTH, outputs).astype(np.float32)[ABSENT])
    elsewhere = reference(X, y, update, lazy=False)
    assert name == "SGD" or np.abs(elsewhere - matrix_of(fitted)).max() > 1e-2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", [{"optimizer__accumulate": 3}, {"alpha": 2.0}], ids=str)
def test_groups_of_minibatches_and_penalties(settings, form):
    (optimizer, update), y = REFERENCES["AdamW"], targets(X, 2)
    fitted = new(graph(form), optimizer=optimizer, **settings).fit(X, y)
    assert_allclose(
        matrix_of(fitted),
        reference(X, y, update, **{name.rpartition("__")[2]: value for name, value in settings.items()}),
        rtol=0,
        atol=3e-5,
    )


def test_float64():
    (optimizer, update), y = REFERENCES["AdamW"], targets(X, 2)
    fitted = new(graph("product", dtype=np.float64), optimizer=optimizer, engine="portable").fit(X, y)
    assert_allclose(matrix_of(fitted), reference(X, y, update, dtype=np.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [30, 300])
def test_narrow_and_dense_data_update_lazily(width):
    rows = sp.random(N, width, 0.15, format="csr", dtype=np.float32, random_state=0)
    (optimizer, update), y = REFERENCES["AdamW"], targets(rows, 2)
    fitted = new(graph("product", width), optimizer=optimizer).fit(rows, y)
    assert_allclose(matrix_of(fitted), reference(rows, y, update), rtol=0, atol=3e-5)
    assert np.abs(matrix_of(fitted) - reference(rows, y, update, lazy=False)).max() > 1e-3


def test_columns_of_stored_zeros_do_not_occur():
    rows = X.copy()
    rows.data[rows.indices == rows.indices[0]] = 0
    (optimizer, update), y = REFERENCES["AdamW"], targets(rows, 2)
    assert rows.nnz == X.nnz
    fitted = new(graph("product"), optimizer=optimizer).fit(rows, y)
    assert_allclose(matrix_of(fitted), reference(rows, y, update), rtol=0, atol=3e-5)
    assert_array_equal(matrix_of(fitted)[X.indices[0]], start(WIDTH, 2).astype(np.float32)[X.indices[0]])


@pytest.mark.parametrize("numbers", [(1, -1), (0.25, -0.75, 0.5)], ids=str)
def test_columns_of_numbers_that_add_up_to_zero_do_not_occur(numbers):
    """SciPy keeps several numbers of one place apart until it is asked for their sum."""
    column, (optimizer, update), y = ABSENT[0], REFERENCES["AdamW"], targets(X, 2)
    places = np.insert(X.indices, X.indptr[1:-1].repeat(len(numbers)), column)
    ends = X.indptr + len(numbers) * np.minimum(np.arange(N + 1), N - 1)
    data = np.insert(X.data, X.indptr[1:-1].repeat(len(numbers)), np.tile(numbers, N - 1))
    rows = sp.csr_matrix((data, places, ends), shape=X.shape)
    assert_array_equal(rows.toarray(), X.toarray())
    fitted = new(graph("product"), optimizer=optimizer).fit(rows, y)
    assert_allclose(matrix_of(fitted), reference(X, y, update), rtol=0, atol=3e-5)
    assert_array_equal(matrix_of(fitted)[column], start(WIDTH, 2).astype(np.float32)[column])
    assert rows.nnz == len(data)


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer__max_grad_norm": 0.1}, {"optimizer__ema_decay": 0.9}, {"alpha": 1.0}], ids=str
)
def test_lazy_is_exact_where_every_column_occurs(settings):
    rows = sp.eye(300, format="csr", dtype=np.float32)
    y, settings = np.sin(np.arange(600.0)).reshape(300, 2), {"optimizer": AdamW(), "batch_size": 300} | settings
    exact, lazy = (new(MLP((5,)), lazy_rows=how == "lazy", **settings).fit(rows, y) for how in ("exact", "lazy"))
    assert updates_by_rows(lazy)
    assert not updates_by_rows(exact)
    for name, weight in exact.weights_.items():
        assert_allclose(lazy.weights_[name], weight, rtol=0, atol=2e-5)


def test_training_goes_on_from_a_pickle_and_the_setting_may_change():
    y, model = targets(X, 1)[:, 0], Linear(initialization="glorot_uniform")  # decay moves every weight that is not 0
    whole, parts = (new(model, optimizer=AdamW(), warm_start=True) for _ in range(2))
    for first in range(0, N, BATCH):
        rows = slice(first, first + BATCH)
        whole.partial_fit(X[rows], y[rows])
        parts = pickle.loads(pickle.dumps(parts.partial_fit(X[rows], y[rows])))
    before = whole.weights_["weight"]
    assert_array_equal(parts.weights_["weight"], before)
    for how, moved in (("lazy", np.unique(X[:BATCH].indices)), ("exact", np.arange(WIDTH))):
        whole.set_params(optimizer__lazy_rows=how == "lazy", max_iter=1).fit(X[:BATCH], y[:BATCH])
        assert_array_equal(np.flatnonzero((whole.weights_["weight"] != before).any(axis=1)), moved)


def test_dense_rows_update_every_column():
    y, lazy = targets(X, 1)[:, 0], new(Linear(), optimizer=AdamW(), max_iter=1)
    with pytest.warns(UserWarning, match="lazy_rows=True has no effect.*sparse data are multiplied by"):
        lazy.partial_fit(X.toarray(), y)
    exact = new(Linear(), optimizer=AdamW(), lazy_rows=False, max_iter=1).partial_fit(X.toarray(), y)
    assert_array_equal(lazy.weights_["weight"], exact.weights_["weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazy.partial_fit(X, y)
    moved = (lazy.weights_["weight"] != exact.weights_["weight"]).any(axis=1)
    assert_array_equal(np.flatnonzero(moved), np.unique(X.indices))


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer__accumulate": 3, "alpha": 1.0}, {"optimizer__ema_decay": 0.8}], ids=str
)
@pytest.mark.parametrize("form", FORMS)
def test_training_graphs_go_on_as_the_estimator(form, settings, tmp_path):
    """Their rows are dense: columns that are zero throughout a minibatch keep their weights and their state."""
    y, model = targets(X, 2), new(graph(form), optimizer=AdamW(weight_decay=0.1), **settings)
    quietly(model.fit, X, y)
    model = pickle.loads(pickle.dumps(model))
    model.export_training(tmp_path)
    folder, feeds = Folder(tmp_path), {"X": X.toarray(), "y": y.astype(np.float32)}
    folder.steps(feeds)
    folder.epoch(feeds)
    for _ in range(2):
        quietly(model.partial_fit, X, y)
    assert_allclose(folder.state["parameters"], model._state.parameters.vector, rtol=1e-5, atol=1e-5)
    for name, vector in model._state.optimizer_state.slots.items():
        assert_allclose(folder.state[name], vector, rtol=1e-5, atol=1e-6, err_msg=name)
    moved = folder.state["second_moment"].reshape((2, WIDTH) if form == "transposed" else (WIDTH, 2)) != 0
    assert_array_equal(np.flatnonzero(moved.any(axis=0 if form == "transposed" else 1)), np.unique(X.indices))


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad()], ids=repr)
@pytest.mark.parametrize("outputs", [1, 20])
def test_exact_updates_of_few_columns_are_those_of_all(optimizer, outputs):
    """Of some minibatches the columns that occur are updated, of one all, as it has more numbers."""
    width = BATCH * 3 * max(128 // outputs, 16)  # between the numbers of both kinds of minibatches
    counts = np.where((np.arange(N) >= BATCH) & (np.arange(N) < 2 * BATCH), 5, 2)
    ends, places = np.concatenate([[0], np.cumsum(counts)]), RNG.integers(width, size=counts.sum())
    rows = sp.csr_matrix((RNG.random(len(places)).astype(np.float32), places, ends), shape=(N, width))
    y, settings = targets(rows, outputs), {"optimizer": optimizer, "lazy_rows": False}
    parts = rows, rows.toarray()
    sparse, dense = (new(graph("product", width, outputs), **settings).fit(part, squeezed(y)) for part in parts)
    assert updates_by_rows(sparse)
    assert_allclose(matrix_of(sparse), matrix_of(dense), rtol=0, atol=1e-5)
    assert_allclose(sparse.loss_curve_, dense.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize(("optimizer", "alpha"), [(SGD(0.9), 0.0), (AdamW(), 0.0), (SGD(), 1.0)], ids=str)
@pytest.mark.each(by=lambda optimizer, alpha: (repr(optimizer), alpha))
def test_exact_updates_that_move_every_weight_are_of_the_whole_matrix(optimizer, alpha):
    y, settings = (np.arange(N) % 2), {"batch_size": BATCH, "max_iter": 2, "random_state": 0, "alpha": alpha}
    fitted = configured(OrtGradientClassifier(Linear(), optimizer=optimizer), **settings).fit(X, y)
    assert not updates_by_rows(fitted)
    assert not fitted._state.live.step.passes.row_sparse
