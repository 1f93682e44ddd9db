"""Tables whose rows are not in this process, and sources where rows are needed: a TypeError that names a remedy."""

import inspect
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxtrain_sklearn
from onnxtrain_sklearn import (
    MLP,
    Inputs,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLP,
    RealMLPClassifier,
    RealMLPRegressor,
    RowBlocks,
    TabM,
    TabMClassifier,
    TabMRegressor,
    load_training,
)
from onnxtrain_sklearn.classic.optimizers import TrainingParameters
from onnxtrain_sklearn.classic.ortgradient import OrtGradientForwardBackward
from onnxtrain_sklearn.classic.training_session import TrainingSession
from onnxtrain_sklearn.models import Embedded
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


def test_estimator_of_several_outputs_refuses_tables_elsewhere():
    rows, targets = data(20)
    names = ("class", "number")
    estimator = OrtGradientMultiOutput(graph(list(names)), loss={one: KINDS[one].loss for one in names}, max_iter=1)
    targets, dask = {one: targets[one] for one in names}, ELSEWHERE["dask array"][0]
    assert_refused(lambda: estimator.fit(dask, targets), "X is a dask.array.core.Array", "X.compute()")
    assert_refused(lambda: estimator.fit(rows, {**targets, "class": dask}), "y is a dask", "y.compute()")
    assert_refused(lambda: estimator.fit(rows, targets, {"class": dask}), "sample_weight is a dask")
    fitted = estimator.fit(rows, targets)
    assert_refused(lambda: fitted.predict(dask), "X is a dask.array.core.Array", "X.compute()")


ROWS = [f"{name}{of}" for of in ("", "_val", "_old") for name in ("X", "y", "sample_weight")]
"""The parameters that take rows in all public methods."""

TARGETS = {"class": y.to_numpy(), "number": np.arange(40.0)}


def fitted_owners(folder):
    """Return an object of each public class whose methods take rows, and the targets that it takes."""
    rows = X.to_numpy()
    for estimator in ESTIMATORS.values():
        yield clone(estimator).fit(rows, y), y
    given = LogisticRegression().fit(rows, y)
    yield OrtGradientClassifier(given, finetune=None, **SHORT).fit(rows, y), y
    names = list(TARGETS)
    several = OrtGradientMultiOutput(graph_of_several(), loss={one: KINDS[one].loss for one in names}, **SHORT)
    yield several.fit(rows, TARGETS), TARGETS
    for estimator, targets in ((ESTIMATORS["classifier"], y), (several, TARGETS)):
        path = folder / type(estimator).__name__
        estimator.export_training(path, rows, targets)
        yield load_training(path), targets
    for builder in (RealMLP(), TabM(), Embedded("piecewise_linear", MLP())):
        yield builder, y.to_numpy()
    yield onnxtrain_sklearn, y  # its functions


def graph_of_several():
    """Return a graph of two features with the outputs "class" and "number"."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 2] X) => (float[N, 2] class, float[N, 1] number)
        <float[2, 2] A = {1, 0, 0, 1}, float[2, 1] B = {0, 0}> { class = MatMul(X, A)  number = MatMul(X, B) }"""
    )


@pytest.mark.long
def test_all_public_functions_refuse_tables_elsewhere(tmp_path):
    dask, found = ELSEWHERE["dask array"][0], set()
    required = {"folder": tmp_path / "refused", "n_features": 2, "n_outputs": 2, "random_state": 0, "model": MLP()}
    for owner, targets in fitted_owners(tmp_path):
        for name in dir(owner):
            method = None if name.startswith(("_", "set_")) else getattr(owner, name, None)
            if not callable(method) or isinstance(method, type):
                continue
            if name == "to_sklearn" and not isinstance(owner.model, LogisticRegression):
                continue  # of other models, no rows make a scikit-learn model
            if name == "export_training" and hasattr(owner, "fit"):
                method = clone(owner).export_training  # the export of a fitted estimator reads no rows
            parameters = inspect.signature(method).parameters
            for lazy in (one for one in ROWS if one in parameters):
                group = lazy.removeprefix("sample_weight").removeprefix("X").removeprefix("y")
                own = {"X": X.to_numpy(), "y": targets, f"X{group}": X.to_numpy(), f"y{group}": targets, **required}
                given = {one: value for one, value in own.items() if one in parameters} | {lazy: dask}
                with pytest.raises(TypeError, match=rf"^{lazy} is a dask\.array\.core\.Array.*{lazy}\.compute\(\)"):
                    method(**given)
                if isinstance(targets, dict) and lazy.startswith(("y", "sample_weight")):
                    given[lazy] = {**targets, "class": dask}
                    with pytest.raises(TypeError, match=rf"{lazy} is a dask\.array\.core\.Array"):
                        method(**given)
                found.add(f"{type(owner).__name__}.{name}({lazy})")
    assert len(found) > 100
    assert {"OrtGradientClassifier.score(y)", "Training.partial_fit(X)", "RealMLP.build(y)"} < found


def test_classic_interfaces_refuse_tables_elsewhere():
    dask = ELSEWHERE["dask array"][0]
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 14]> net (float[N, 2] X, float[N, 1] y) => (float loss)
        <float[2, 1] W = {1, 0}>
        { p = MatMul(X, W)  d = Sub(p, y)  s = Mul(d, d)  loss = ReduceMean <keepdims = 0> (s) }"""
    ).SerializeToString()
    parameters = TrainingParameters()
    parameters.loss_output_name, parameters.weights_to_train = "loss", {"W"}
    session = TrainingSession(model, parameters)
    feed = {"X": np.ones((3, 2), np.float32), "y": np.ones((3, 1), np.float32)}
    forward = OrtGradientForwardBackward(model, weights_to_train=["W"]).new_instance()
    W = np.ones((2, 1), np.float32)
    forward.forward([*feed.values(), W], training=True)
    for call in (
        lambda: session.run(None, {**feed, "X": dask}),
        lambda: session.run(None, {**feed, "Learning_Rate": dask}),
        lambda: session.run_with_ort_values(None, {**feed, "X": dask}),
        lambda: session.io_binding().bind_cpu_input("X", dask),
        lambda: session.io_binding()._iobinding.bind_input("X", dask),
        lambda: forward.forward([dask, feed["y"], W]),
        lambda: forward.forward(dask),
        lambda: forward.backward([dask]),
        lambda: forward.backward(dask),
    ):
        assert_refused(call, "is a dask.array.core.Array", ".compute()")
    assert len(forward.backward([np.ones((), np.float32)])) == 3


def test_parts_of_a_table_train_several_outputs(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    X.assign(**TARGETS).to_parquet(path, index=False, row_group_size=15)
    several = {"loss": {"class": "log_loss", "number": "squared_error"}, "shuffle": False, "random_state": 0}
    found, expected = (OrtGradientMultiOutput(graph_of_several(), **several) for _ in range(2))
    file = pq.ParquetFile(path)
    for i in range(file.num_row_groups):
        part = file.read_row_group(i).to_pandas()
        found.partial_fit(part[["a", "b"]], part[list(TARGETS)], classes={"class": [0, 1]})
    for rows in (slice(0, 15), slice(15, 30), slice(30, 40)):
        expected.partial_fit(X[rows], {n: t[rows] for n, t in TARGETS.items()}, classes={"class": [0, 1]})
    assert file.num_row_groups == 3
    assert all(np.array_equal(found.weights_[name], array) for name, array in expected.weights_.items())


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
    assert_refused(lambda: fitted.score(X, labels), "y is a dask", "y.compute()")
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
