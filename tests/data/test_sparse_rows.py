"""Wide sparse rows are trained on and predicted without being made dense, to the weights of dense rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx.parser
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

from onnxtrain_sklearn import LBFGS, MLP, SGD, AdamW, Inputs, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._data import columns
from onnxtrain_sklearn._data.columns import InputData
from onnxtrain_sklearn._pretrained.comparison import COMPARED_ROWS
from tests.helpers.environment import available_engines
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N, WIDTH = 70, 400
SPARSE = sp.random(N, WIDTH, 0.04, format="csr", dtype=np.float32, random_state=0)
DENSE = SPARSE.toarray()
LABELS = np.random.default_rng(0).integers(3, size=N)
TARGETS = np.asarray(SPARSE @ np.random.default_rng(1).normal(size=(WIDTH, 2)))
WEIGHTS = np.random.default_rng(2).integers(3, size=N).astype(float)

GRAPH = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 400] X) => (float[N, 3] Y) { NODES }"""
GRAPHS = {
    "product": "Y = MatMul (X, W)",
    "transposed": "Y = Gemm <transB = 1> (X, V, b)",
    "scaled": "Y = Gemm <alpha = 0.5, beta = -2.0> (X, W, b)",
    "scaled and transposed": "Y = Gemm <alpha = 2.0, transB = 1> (X, V)",
    "two products": "p = MatMul (X, W)  q = Gemm <transB = 1> (X, V, b)  t = Tanh (p)  Y = Add (t, q)",
}
OTHER_GRAPHS = {
    "read otherwise": "r = Relu (X)  p = MatMul (X, W)  q = Gemm <transB = 1> (r, V, b)  Y = Add (p, q)",
    "shared matrix": "p = MatMul (X, W)  t = Tanh (W)  q = MatMul (X, t)  Y = Add (p, q)",
    "columns": "t = Transpose (X)  p = Gemm <transA = 1> (t, W, b)  Y = Tanh (p)",
}


def given(nodes: str) -> onnx.ModelProto:
    model, rng = onnx.parser.parse_model(GRAPH.replace("NODES", nodes)), np.random.default_rng(3)
    for name, shape in {"W": (WIDTH, 3), "V": (3, WIDTH), "b": (3,)}.items():
        if any(name in node.input for node in model.graph.node):
            array = rng.normal(size=shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def new(model=None, **settings):
    settings = {"optimizer": SGD(momentum=0.9), "learning_rate_init": 0.05, "max_iter": 3, "tol": 0.0} | settings
    return configured(OrtGradientClassifier(model, batch_size=20, random_state=0), **settings)


def assert_equal_fits(sparse, dense, tolerance=2e-5):
    assert set(sparse.weights_) == set(dense.weights_)
    for name, array in dense.weights_.items():
        assert_allclose(sparse.weights_[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
    assert_allclose(sparse.loss_curve_, dense.loss_curve_, rtol=1e-5)


@pytest.fixture
def no_dense_rows(monkeypatch):
    """Let conversions of wide sparse rows to dense ones fail, but for those on which a given graph is run as it is."""

    plain_rows, plain_into = InputData.rows, InputData.into

    def require_few(column, rows):
        assert not column.stays_sparse or len(np.arange(len(column))[rows]) <= COMPARED_ROWS, "rows were made dense"
        return rows

    def into(column, out):
        write = plain_into(column, out)
        return lambda rows: write(require_few(column, rows))

    monkeypatch.setattr(InputData, "rows", lambda column, rows: plain_rows(column, require_few(column, rows)))
    monkeypatch.setattr(InputData, "into", into)


@pytest.mark.usefixtures("no_dense_rows")
class TestFit:
    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("model", [Linear(), MLP((7,)), MLP((5, 4), residual=True)], ids=repr)
    @pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), AdamW(weight_decay=0.1)], ids=repr)
    def test_networks(self, model, optimizer, engine):
        found = [new(model, optimizer=optimizer, engine=engine).fit(X, LABELS) for X in (SPARSE, DENSE)]
        assert_equal_fits(*found)

    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("nodes", GRAPHS.values(), ids=GRAPHS)
    def test_given_graphs(self, nodes, engine):
        found = [new(given(nodes), engine=engine).fit(X, LABELS) for X in (SPARSE, DENSE)]
        assert_equal_fits(*found)

    @pytest.mark.parametrize(
        "settings",
        [
            {"alpha": 1.0, "l1_ratio": 0.3},
            {"optimizer__max_grad_norm": 0.01},
            {"optimizer__accumulate": 2},
            {"optimizer__ema_decay": 0.9},
            {"optimizer__learning_rate_factors": {"layers.0.weight": 0.1}},
            {"trainable": ["layers.1.*"]},
            {"trainable": ["layers.0.weight"]},
            {"optimizer": LBFGS()},
            {"class_weight": "balanced"},
            {"early_stopping": True, "scoring": "neg_log_loss"},
            {"model": MLP((7,), normalization="batch", dropout=0.3), "engine": "portable"},
        ],
        ids=str,
    )
    def test_settings(self, settings):
        found = [new(**{"model": MLP((7,))} | settings).fit(X, LABELS) for X in (SPARSE, DENSE)]
        assert_equal_fits(*found, tolerance=2e-4)

    def test_weights_of_rows_and_validation_data(self):
        held = SPARSE[:30], LABELS[:30]
        found = [
            new(MLP((7,))).fit(X, LABELS, WEIGHTS, X_val=held[0], y_val=held[1], sample_weight_val=WEIGHTS[:30])
            for X in (SPARSE, DENSE)
        ]
        assert_equal_fits(*found)
        assert_allclose(found[0].validation_scores_, found[1].validation_scores_, rtol=1e-6)

    def test_several_targets(self):
        found = [OrtGradientRegressor(MLP((7,)), max_iter=3, random_state=0).fit(X, TARGETS) for X in (SPARSE, DENSE)]
        assert_equal_fits(*found)
        assert_allclose(found[0].predict(SPARSE), found[1].predict(DENSE), rtol=0, atol=1e-5)

    def test_partial_fit(self):
        found = [new(MLP((7,)), optimizer=AdamW()), new(MLP((7,)), optimizer=AdamW())]
        for rows in np.split(np.arange(N), [30, 33, 50]):
            for estimator, X in zip(found, (SPARSE, DENSE), strict=True):
                estimator.partial_fit(X[rows], LABELS[rows], classes=[0, 1, 2])
        assert_equal_fits(*found)

    def test_two_inputs_of_which_one_is_sparse(self):
        nodes = "p = MatMul (X, W)  q = MatMul (A, B)  Y = Add (p, q)"
        model = onnx.parser.parse_model(GRAPH.replace("X)", "X, float[N, 2] A)", 1).replace("NODES", nodes))
        for name, shape in {"W": (WIDTH, 3), "B": (2, 3)}.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
        found = [new(model).fit(Inputs({"X": X, "A": TARGETS}), LABELS) for X in (SPARSE, DENSE)]
        assert_equal_fits(*found)
        parts = [Inputs({"X": X[:9], "A": TARGETS[:9]}) for X in (SPARSE, DENSE)]
        assert_allclose(*(e.predict_proba(X) for e, X in zip(found, parts, strict=True)), rtol=0, atol=1e-6)

    @pytest.mark.parametrize(
        "fitted", [LogisticRegression(), MLPClassifier((5,), max_iter=20, random_state=0)], ids=repr
    )
    def test_fitted_models(self, fitted):
        fitted.fit(SPARSE, LABELS)
        found = [new(fitted).fit(X, LABELS) for X in (SPARSE, DENSE)]
        assert_equal_fits(*found)
        trained = found[0].to_sklearn(SPARSE)
        assert_allclose(trained.predict_proba(SPARSE), found[1].predict_proba(DENSE), rtol=0, atol=1e-5)

    @pytest.mark.slow
    def test_fine_tuning(self):
        fitted = Ridge().fit(SPARSE, TARGETS[:, 0])
        found = [OrtGradientRegressor(fitted, random_state=0).fit(X, TARGETS[:, 1]) for X in (SPARSE, DENSE)]
        assert_allclose(found[0].predict(SPARSE), found[1].predict(DENSE), rtol=0, atol=1e-3)

    def test_text(self):
        words = [f"word{i}" for i in range(300)]
        rng = np.random.default_rng(0)
        texts = [" ".join(rng.choice(words, 12)) for _ in range(N)]
        pipeline = make_pipeline(TfidfVectorizer(), new(Linear())).fit(texts, LABELS)
        rows = pipeline[0].transform(texts)
        assert rows.dtype == np.float64
        assert_equal_fits(pipeline[1], new(Linear()).fit(rows.toarray(), LABELS))
        assert_array_equal(pipeline.predict(texts), pipeline[1].predict(rows.toarray()))

    def test_a_row_of_weight_two_is_the_row_given_twice(self):
        rows = np.repeat(np.arange(N), WEIGHTS.astype(int))
        settings = {"model": Linear(), "max_iter": 4, "batch_size": 200, "random_state": 0}
        weighted = OrtGradientClassifier(**settings).fit(SPARSE, LABELS, WEIGHTS)
        repeated = OrtGradientClassifier(**settings).fit(SPARSE[rows], LABELS[rows])
        for name, array in repeated.weights_.items():
            assert_array_equal(weighted.weights_[name], array)

    def test_equal_for_a_seed(self):
        first, second = (new(MLP((7,)), optimizer=AdamW()).fit(SPARSE, LABELS) for _ in range(2))
        for name, array in first.weights_.items():
            assert_array_equal(second.weights_[name], array)


def test_other_reads_of_rows_take_dense_rows():
    for nodes in OTHER_GRAPHS.values():
        found = [new(given(nodes)).fit(X, LABELS) for X in (SPARSE, DENSE)]
        assert_equal_fits(*found)
        assert_allclose(found[0].predict_proba(SPARSE), found[1].predict_proba(DENSE), rtol=0, atol=1e-5)


def test_narrow_and_filled_rows_become_dense(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("rows stayed sparse")

    monkeypatch.setattr(columns, "product", refuse)
    for X in (SPARSE[:, :200], sp.csr_matrix(DENSE + 1)):
        found = [new(MLP((7,))).fit(part, LABELS) for part in (X, X.toarray())]
        for name, array in found[0].weights_.items():
            assert_array_equal(found[1].weights_[name], array)


def test_sparse_and_dense_rows_in_turn():
    found = [new(MLP((7,)), optimizer=AdamW()), new(MLP((7,)), optimizer=AdamW())]
    for X in (SPARSE, DENSE, SPARSE):
        found[0].partial_fit(X, LABELS, classes=[0, 1, 2])
        found[1].partial_fit(DENSE, LABELS, classes=[0, 1, 2])
        assert_allclose(found[0].predict_proba(SPARSE), found[1].predict_proba(DENSE), rtol=0, atol=1e-5)
    assert_equal_fits(*found)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, sp.coo_array, sp.lil_matrix])
@pytest.mark.usefixtures("no_dense_rows")
def test_formats(kind):
    assert_equal_fits(new(Linear()).fit(kind(SPARSE), LABELS), new(Linear()).fit(DENSE, LABELS))


@pytest.mark.usefixtures("no_dense_rows")
def test_rows_with_zeros_repeated_and_unsorted_entries():
    order = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(SPARSE.indptr, SPARSE.indptr[1:], strict=False)])
    half = np.repeat(SPARSE.data[order] / 2, 2)
    rows = sp.csr_matrix((half, np.repeat(SPARSE.indices[order], 2), 2 * SPARSE.indptr), shape=SPARSE.shape)
    rows.data[:2] = 0.0
    assert not rows.has_canonical_format
    dense = rows.toarray()
    for settings in ({}, {"batch_size": 200, "shuffle": False}):
        sparse = new(Linear()).set_params(**settings).fit(rows, LABELS)
        assert_equal_fits(sparse, new(Linear()).set_params(**settings).fit(dense, LABELS))


@pytest.mark.parametrize("shape", [(WIDTH, 3), (3, WIDTH), (WIDTH, 1)])
@pytest.mark.parametrize("in_place", [True, False])
def test_products_and_gradients(shape, in_place, monkeypatch):
    if not in_place:  # of a release of SciPy without the kernel
        monkeypatch.setattr(columns, "csc_matvecs", None)
    transposed, rng = shape == (3, WIDTH), np.random.default_rng(4)
    matrix = rng.normal(size=shape).astype(np.float32)
    slope = rng.normal(size=(N, 3 if 3 in shape else 1)).astype(np.float32)
    product = columns.product(SPARSE, matrix, transposed=transposed)
    assert_allclose(product, DENSE @ (matrix.T if transposed else matrix), rtol=0, atol=1e-5)
    found = np.full(shape, 7, np.float32)
    columns.add_gradient(SPARSE, slope, found, transposed=transposed)
    expected = DENSE.T @ slope + 7
    assert_allclose(found, expected.T if transposed else expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", ["none", "no kernels", "wide indices"])
def test_gathered_rows(changes, monkeypatch):
    matrix, rows = SPARSE.copy(), np.array([5, 0, N - 1, 5])
    if changes == "no kernels":
        monkeypatch.setattr(columns, "csc_matvecs", None)
    elif changes == "wide indices":
        matrix.indptr, matrix.indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
    found, expected = columns.gathered(matrix, rows), SPARSE[rows]
    assert isinstance(found, columns.CompressedRows) == (changes != "no kernels")
    assert found.shape == expected.shape
    for name in ("indptr", "indices", "data"):
        assert_array_equal(getattr(found, name), getattr(expected, name))


def test_scipy_release_has_the_kernel():
    assert columns.csc_matvecs is not None


@pytest.mark.usefixtures("no_dense_rows")
def test_memory_does_not_grow_with_the_width():
    rng, width = np.random.default_rng(0), 50_000
    X = sp.csr_matrix((np.ones(4000), rng.integers(width, size=4000), np.arange(0, 4001, 10)), shape=(400, width))
    y, estimator = rng.integers(2, size=400), OrtGradientClassifier(Linear(), max_iter=2, tol=0.0, random_state=0)
    tracemalloc.start()
    estimator.set_params(batch_size=200).fit(X, y).predict_proba(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * width * 4 / 4  # a quarter of a dense minibatch
