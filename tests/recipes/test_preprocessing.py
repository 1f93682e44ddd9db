"""Preprocessing of raw tables: scalings and codes beside scikit-learn's and beside formulas in numpy."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.preprocessing import OrdinalEncoder, QuantileTransformer

from onnxtrain_sklearn import clear_cache
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ort import devices
from onnxtrain_sklearn._recipes.preprocessing import QuantileScaling, RobustScaling, _open_graphs, fit_preprocessing
from onnxtrain_sklearn._recipes.raw_table import categorical_columns, read_table

CPU = devices.resolve_device()


def fitted(X, scaling=RobustScaling, **settings):
    table = read_table(BaseEstimator(), X, reset=True)
    categorical = categorical_columns(table, settings.pop("categorical", "from_dtype"))
    return fit_preprocessing(table, categorical, scaling, np.random.RandomState(0), **settings), table


def applied(preprocessing, X):
    return preprocessing.transform(read_table(BaseEstimator(), X, reset=True), CPU)


def uneven_data():
    """Return real data with a constant column, a column of counts and two of very large and very small numbers."""
    X = load_breast_cancer().data
    rng = np.random.default_rng(0)
    extra = [np.ones(len(X)), rng.poisson(0.2, len(X)), X[:, 0] * 1e8, X[:, 1] * 1e-8]
    return np.column_stack([X, *extra]).astype(np.float32).astype(np.float64)


def robust_by_formula(X):
    """RealMLP's scaling as its paper states it."""
    low, middle, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    width = high - low
    whole = X.max(axis=0) - X.min(axis=0)
    factor = np.zeros_like(width)
    factor[whole > 0] = 2 / whole[whole > 0]
    factor[width > 0] = 1 / width[width > 0]
    z = (X - middle) * factor
    return z / np.sqrt(1 + (z / 3) ** 2)


def test_robust_scaling_is_that_of_the_paper():
    X = uneven_data()
    result = applied(fitted(X)[0], X)
    assert result.dtype == np.float32
    assert not result[:, -4].any()  # the constant column
    assert len(np.unique(result[:, -3])) > 1  # of counts, of which most are equal
    np.testing.assert_allclose(result, robust_by_formula(X), atol=2e-5)


def test_numbers_far_away_are_clipped_and_stay_finite():
    X = load_diabetes().data
    far = np.array([X[0] * 0 + 1e30, X[0] * 0 - 3e38])
    np.testing.assert_allclose(applied(fitted(X)[0], far), [[3.0] * 10, [-3.0] * 10], rtol=1e-4)


@pytest.mark.parametrize("n_quantiles", [10, 64, 65, 300])
def test_quantiles_are_those_of_scikit_learn(n_quantiles):
    X = uneven_data()
    reference = QuantileTransformer(n_quantiles=n_quantiles, output_distribution="normal").fit(X)
    preprocessing, _ = fitted(X)
    preprocessing.scaling = QuantileScaling.of(reference.quantiles_, reference.references_)
    rng = np.random.default_rng(1)
    other = (X[rng.permutation(len(X))] * rng.uniform(0.5, 1.5, X.shape)).astype(np.float32).astype(float)
    usual = [i for i in range(X.shape[1]) if X[:, i].std() > 1e-4]  # smaller ones are within scikit-learn's tolerance
    for data in (X, other):
        expected = reference.transform(data)
        np.testing.assert_allclose(applied(preprocessing, data)[:, usual], expected[:, usual], atol=1e-5)


def test_noise_of_the_quantiles_does_not_depend_on_the_unit():
    X = load_wine().data
    results = [applied(fitted(X * unit, QuantileScaling)[0], X * unit) for unit in (1.0, 2.0**-20, 2.0**20)]
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)
    np.testing.assert_allclose(results[0], results[2], atol=1e-6)
    reference = QuantileTransformer(n_quantiles=10, output_distribution="normal").fit_transform(X)
    inside = np.abs(reference) < 2
    assert np.abs(results[0] - reference)[inside].max() < 0.05  # the noise is small


def test_missing_numbers_become_median_and_indicator():
    X = load_wine().data[:, :3].copy()
    X[::4, 1] = np.nan
    preprocessing, _ = fitted(X)
    result = applied(preprocessing, X)
    assert preprocessing.code_columns == {3: 3}
    known = X[~np.isnan(X[:, 1]), 1]
    filled = np.where(np.isnan(X), np.median(known).astype(np.float32), X)
    np.testing.assert_allclose(result[:, :3], robust_by_formula(filled), atol=2e-5)
    np.testing.assert_array_equal(result[:, 3], np.where(np.isnan(X[:, 1]), 2, 1))
    later = applied(preprocessing, np.full((1, 3), np.nan))  # also in columns that had none
    assert np.isfinite(later).all()


def mixed_frame():
    return pd.DataFrame(
        {
            "size": [1.0, 2.0, np.nan, 4.0, 5.0],
            "color": ["red", "blue", None, "red", "green"],
            "shape": pd.Categorical(["round", None, "flat", "flat", "round"]),
            "grade": pd.Categorical([30, 10, 20, None, 10]),
            "new": [True, False, True, True, False],
        }
    )


def test_codes_are_those_of_an_ordinal_encoder():
    X = mixed_frame()
    preprocessing, _ = fitted(X)
    result = applied(preprocessing, X)
    encoder = OrdinalEncoder(encoded_missing_value=-1, handle_unknown="use_encoded_value", unknown_value=-1)
    values = X.drop(columns="size").astype(object)
    expected = encoder.fit_transform(values.where(values.notna(), np.nan)) + 1
    np.testing.assert_array_equal(result[:, 1:5], expected)
    assert preprocessing.code_columns == {1: 4, 2: 3, 3: 4, 4: 3, 5: 3}


def test_unseen_categories_count_as_missing():
    X = mixed_frame()
    preprocessing, _ = fitted(X)
    unseen = X.assign(color="violet", shape="bent", grade=99)
    absent = X.assign(color=None, shape=None, grade=np.nan)
    np.testing.assert_array_equal(applied(preprocessing, unseen), applied(preprocessing, absent))
    assert not applied(preprocessing, unseen)[:, 1:4].any()


def test_graph_takes_a_column_for_each_of_a_table_with_text():
    onnxruntime = pytest.importorskip("onnxruntime")
    X = mixed_frame()
    preprocessing, _ = fitted(X)
    op = preprocessing.new_graph()
    op.graph.outputs.append(preprocessing.emit(op))
    proto = to_proto(ir.Model(op.graph, ir_version=8))
    onnx.checker.check_model(proto)
    assert [value.name for value in proto.graph.input] == list(X)
    text = {"color", "shape"}
    feeds = {
        name: (X[name].astype(object).fillna("") if name in text else X[name]).to_numpy(object if name in text else "f")
        for name in X
    }
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {name: column.reshape(-1, 1) for name, column in feeds.items()})
    np.testing.assert_array_equal(result, applied(preprocessing, X))


def test_tables_of_numbers_are_one_input():
    preprocessing, table = fitted(np.array([[1, 7, 2.5], [2, 7, 3.5], [1, 8, 0.5]]), categorical=[0])
    assert list(preprocessing.columns(table)) == ["X"]
    np.testing.assert_array_equal(preprocessing.transform(table, CPU)[:, 2], [1, 2, 1])


@pytest.mark.parametrize("words", [["", "a", None], ["nan", "nan_", None], ["", ""], [None, None, None]])
def test_empty_text_is_missing_text(words):
    X = pd.DataFrame({"t": words, "x": range(len(words))}).astype({"t": object})
    result = applied(fitted(X)[0], X)[:, 1]
    assert [code == 0 for code in result] == [not word for word in words]


def test_constant_columns_are_dropped_where_asked_unless_all_are():
    X = np.array([[1.0, 5.0], [1.0, 6.0], [1.0, 7.0]])
    assert fitted(X, drops_constants=True)[0].numbers == (1,)
    assert fitted(X)[0].numbers == (0, 1)
    assert fitted(X[:, :1], drops_constants=True)[0].numbers == (0,)


@pytest.mark.parametrize(
    ("values", "message"),
    [(["a", 1], "mixes categories of type int, str"), (pd.Categorical([1.0, 1 + 1e-12]), "equal numbers in float32")],
)
def test_refused_categories(values, message):
    with pytest.raises(ValueError, match=message):
        fitted(pd.DataFrame({"c": values}))


def test_columns_of_another_kind_are_refused_later():
    preprocessing, _ = fitted(pd.DataFrame({"n": [1.0, 2.0], "t": ["a", "b"]}))
    with pytest.raises(ValueError, match="could not convert string to float: 'x' in column 'n'"):
        applied(preprocessing, pd.DataFrame({"n": ["x", "y"], "t": ["a", "b"]}))
    with pytest.raises(ValueError, match="was text when the estimator was fitted, and holds 1"):
        applied(preprocessing, pd.DataFrame({"n": [1.0], "t": [1.0]}))


@pytest.mark.parametrize("scaling", [RobustScaling, QuantileScaling])
def test_pickles_transform_the_same(scaling):
    X = load_wine().data
    preprocessing, table = fitted(X, scaling)
    copy = pickle.loads(pickle.dumps(preprocessing))
    np.testing.assert_array_equal(copy.transform(table, CPU), preprocessing.transform(table, CPU))


def random_table(seed):
    rng = np.random.RandomState(seed)
    return pd.DataFrame(
        {"a": rng.normal(size=80) * (seed + 1), "b": rng.exponential(size=80), "c": rng.choice(list("xy"), 80)}
    )


@pytest.mark.parametrize("scaling", [RobustScaling, QuantileScaling])
def test_fits_of_equal_form_share_a_graph_without_their_numbers(scaling):
    """The session of a form takes the numbers as inputs; the graph that is given away holds them."""
    clear_cache()
    for seed in (0, 1, 0):
        frame = random_table(seed)
        frame.loc[seed::7, "b"] = np.nan
        preprocessing, table = fitted(frame, scaling)
        op = preprocessing.new_graph()
        op.graph.outputs.append(preprocessing.emit(op))
        session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(op.graph, ir_version=8)).SerializeToString())
        feeds = {name: column.rows(slice(0, 80)) for name, column in preprocessing.columns(table).items()}
        np.testing.assert_array_equal(preprocessing.transform(table, CPU), session.run(None, feeds)[0])
    assert len(_open_graphs) == 1
    ((graph, _),) = _open_graphs._held.values()
    held = onnx.load_model_from_string(graph.content).graph
    constants = [node.attribute[0].t for node in held.node if node.op_type == "Constant"]
    numbers = [array for array in map(onnx.numpy_helper.to_array, constants) if array.dtype.kind == "f"]
    assert all(array.ndim == 0 for array in numbers)  # of the formulas
    assert not held.initializer


def test_columns_may_be_named_as_the_numbers_are():
    frame = random_table(0).rename(columns={"a": "_.center", "b": "__.fill"})
    preprocessing, table = fitted(frame, RobustScaling)
    plain, same = fitted(random_table(0), RobustScaling)
    np.testing.assert_array_equal(preprocessing.transform(table, CPU), plain.transform(same, CPU))
