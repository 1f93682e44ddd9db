"""Tables whose rows are not in this process, and sources where rows are needed: a TypeError that names a remedy."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    Inputs,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    RowBlocks,
    TabMClassifier,
    TabMRegressor,
)
from tests.helpers.several_outputs import KINDS, data, graph

pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), columns=["a", "b"])
y = (X["a"] > 0).astype(int)

SHORT = {"max_iter": 1, "random_state": 0}
ESTIMATORS = {
    "classifier": OrtGradientClassifier(MLP((2,)), tol=9, **SHORT),
    "regressor": OrtGradientRegressor(MLP((2,)), tol=9, **SHORT),
    "RealMLP classifier": RealMLPClassifier("td-s", hidden_layer_sizes=4, **SHORT),
    "RealMLP regressor": RealMLPRegressor("td-s", hidden_layer_sizes=4, **SHORT),
    "TabM classifier": TabMClassifier(2, hidden_layer_sizes=4, **SHORT),
    "TabM regressor": TabMRegressor(2, hidden_layer_sizes=4, **SHORT),
}
PARTIAL = ("classifier", "regressor")


def fake(module, name, *methods):
    """Return an object of a class that a package defines; reading its rows fails the test."""

    def read(self, *args, **kwargs):
        raise AssertionError(f"{module}.{name} was read")

    members = dict.fromkeys((*methods, "__array__", "__len__", "__iter__", "__getitem__"), read)
    return type(name, (), {**members, "__module__": module, "shape": (40, 2), "columns": ["a", "b"]})()


ELSEWHERE = {
    "dask frame": (fake("dask.dataframe.dask_expr._collection", "DataFrame", "compute"), "compute()"),
    "dask array": (fake("dask.array.core", "Array", "compute"), "compute()"),
    "spark": (fake("pyspark.sql.classic.dataframe", "DataFrame", "toPandas", "collect"), "toPandas()"),
    "spark connect": (fake("pyspark.sql.connect.dataframe", "DataFrame", "toPandas", "collect"), "toPandas()"),
    "pandas on spark": (fake("pyspark.pandas.frame", "DataFrame", "to_pandas"), "to_pandas()"),
    "ray": (fake("ray.data.dataset", "Dataset", "to_pandas"), "to_pandas()"),
    "modin": (fake("modin.pandas.dataframe", "DataFrame", "modin", "iloc"), "modin.to_pandas()"),
    "cudf": (fake("cudf.core.dataframe", "DataFrame", "to_pandas", "iloc"), "to_pandas()"),
}


def assert_refused(call, *texts):
    """Check that a call raises TypeError with these texts."""
    with pytest.raises(TypeError) as caught:
        call()
    message = str(caught.value)
    assert all(text in message for text in texts), message


@pytest.mark.parametrize("kind", ELSEWHERE)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_table_elsewhere_is_refused_with_a_remedy(name, kind):
    given, remedy = ELSEWHERE[kind]
    estimator, module = clone(ESTIMATORS[name]), type(given).__module__
    before, imported = dict(vars(estimator)), set(sys.modules)
    remedies = "Parquet", "fit('folder/', y='column')"
    assert_refused(lambda: estimator.fit(given, y), f"X is a {module}", f"Give X.{remedy}", *remedies)
    assert_refused(lambda: estimator.fit(given, "target"), f"X is a {module}", f"Give X.{remedy}", *remedies)
    assert_refused(lambda: estimator.fit(X, given), f"y is a {module}", f"Give y.{remedy}", *remedies)
    assert_refused(lambda: estimator.fit(X, y, given), f"sample_weight is a {module}")
    if name in PARTIAL:
        assert_refused(lambda: estimator.partial_fit(given, y), f"X is a {module}")
        assert_refused(lambda: estimator.initialize(given, y), f"X is a {module}")
        assert_refused(lambda: estimator.fit(X, y, X_val=given, y_val=y), f"X_val is a {module}")
        assert_refused(lambda: estimator.fit(X, y, X_val=X, y_val=given), f"y_val is a {module}")
    assert vars(estimator) == before
    assert module.partition(".")[0] not in {one.partition(".")[0] for one in set(sys.modules) - imported}


SOURCES = {
    "text": "table.parquet",
    "path": Path("table.parquet"),
    "list of texts": ["table.parquet"],
    "list of paths": [Path("table.csv")],
    "function": lambda: None,
    "partial": partial(print),
    "blocks": RowBlocks("table.parquet", "y"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_predict_refuses_tables_elsewhere(name):
    fitted = clone(ESTIMATORS[name]).fit(X, y)
    for given, remedy in ELSEWHERE.values():
        assert_refused(lambda given=given: fitted.predict(given), f"X is a {type(given).__module__}", remedy)


def test_estimator_of_several_outputs_refuses_sources_and_tables_elsewhere():
    rows, targets = data(20)
    names = ("class", "number")
    estimator = OrtGradientMultiOutput(graph(list(names)), loss={one: KINDS[one].loss for one in names}, max_iter=1)
    targets, dask = {one: targets[one] for one in names}, ELSEWHERE["dask array"][0]
    for given in SOURCES.values():
        assert_refused(lambda given=given: estimator.fit(given, targets), "X is a", "read in blocks", "read_parquet")
    assert_refused(lambda: estimator.fit("table.parquet", ["class", "number"]), "X is a str", "read_parquet")
    assert_refused(lambda: estimator.fit(dask, targets), "X is a dask.array.core.Array", "X.compute()")
    assert_refused(lambda: estimator.fit(rows, {**targets, "class": dask}), "y is a dask", "y.compute()")
    assert_refused(lambda: estimator.fit(rows, targets, {"class": dask}), "sample_weight is a dask")
    fitted = estimator.fit(rows, targets)
    assert_refused(lambda: fitted.predict(dask), "X is a dask.array.core.Array", "X.compute()")
    for given in SOURCES.values():
        assert_refused(lambda given=given: fitted.predict(given), "X is a", "read in blocks")


def test_inputs_refuse_tables_elsewhere():
    dask = ELSEWHERE["dask array"][0]
    assert_refused(lambda: Inputs({"a": dask}), "X is a dask.array.core.Array")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_name_of_a_column_beside_a_table_in_memory_is_refused(name):
    estimator = clone(ESTIMATORS[name])
    assert_refused(lambda: estimator.fit(X, "a"), "y is the text 'a'", "give the column itself")
    assert_refused(lambda: estimator.fit(X, y, "a"), "sample_weight is the text 'a'", "give the column itself")


def test_unread_tables_are_refused_where_rows_are_needed(tmp_path):
    pl, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    pa, ds = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.dataset")
    path = tmp_path / "table.parquet"
    X.to_parquet(path)
    fitted = clone(ESTIMATORS["RealMLP classifier"]).fit(X, y)
    frame = pl.from_pandas(X).lazy()
    table = pa.Table.from_pandas(X)
    for given, remedy in (
        (frame, "X_val.collect()"),
        (duckdb.sql(f"select * from '{path}'"), "X_val.df()"),
        (ds.dataset(path), "X_val.to_table()"),
        (table.to_reader(), "X_val.read_all()"),
    ):
        call = partial(ESTIMATORS["classifier"].fit, X, y, X_val=given, y_val=y)
        assert_refused(call, f"X_val is a {type(given).__name__}", remedy)
    for estimator in (ESTIMATORS["classifier"], fitted):
        assert_refused(lambda estimator=estimator: clone(estimator).fit(X, frame), "y is a LazyFrame", "y.collect()")
    # The remedies work.
    for rows in (frame.collect(), duckdb.sql(f"select * from '{path}'").df(), ds.dataset(path).to_table()):
        np.testing.assert_array_equal(fitted.predict(rows), fitted.predict(X))


@pytest.mark.parametrize("name", ["classifier", "RealMLP classifier"])
def test_collections_of_dask_are_refused(name):
    frames, arrays = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask.array")
    delayed = pytest.importorskip("dask").delayed
    fitted = clone(ESTIMATORS[name]).fit(X, y)
    for given in (frames.from_pandas(X, npartitions=2), arrays.from_array(X.to_numpy()), delayed(X)):
        assert_refused(lambda given=given: clone(fitted).fit(given, y), "X is a dask", "X.compute()")
        assert_refused(lambda given=given: fitted.predict(given), "X is a dask", "X.compute()")
    labels = frames.from_pandas(y, npartitions=2)
    assert_refused(lambda: clone(fitted).fit(X, labels), "y is a dask", "y.compute()")
    np.testing.assert_array_equal(fitted.predict(frames.from_pandas(X, npartitions=2).compute()), fitted.predict(X))


def test_searches_and_steps_of_a_pipeline_refuse_blocks():
    rows, estimator = SOURCES["blocks"], ESTIMATORS["classifier"]
    for call in (
        lambda: GridSearchCV(estimator, {"max_iter": [1]}, cv=2).fit(rows),
        lambda: cross_val_score(estimator, rows, cv=2),
        lambda: make_pipeline(StandardScaler(), estimator).fit(rows),
    ):
        assert_refused(call, "RowBlocks('table.parquet'", "cannot be converted to an array", "read_parquet")


def test_pipeline_of_an_estimator_alone_reads_blocks(tmp_path):
    pytest.importorskip("pyarrow")
    path, estimator = tmp_path / "table.parquet", ESTIMATORS["classifier"]
    X.assign(y=y).to_parquet(path)
    expected = clone(estimator).fit(X, y)
    for pipeline in (make_pipeline(clone(estimator)), make_pipeline("passthrough", clone(estimator))):
        found = pipeline.fit(path, "y")[-1]
        assert all(np.array_equal(found.weights_[name], array) for name, array in expected.weights_.items())
