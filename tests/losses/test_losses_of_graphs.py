"""Graphs that compute their loss themselves: the loss is an output, its targets are inputs, ``output`` is predicted."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from onnxtrain_sklearn import (
    FineTuner,
    GraphModel,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RowBlocks,
)
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError
from tests.helpers.environment import each_engine
from tests.helpers.selection import one_case

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(50, 3)).astype(np.float32)
Y = {"target": rng.normal(size=(50, 2)), "importance": rng.uniform(0.5, 2, 50)}
WEIGHTS = {"W1": rng.normal(0, 0.5, (3, 8)), "W2": rng.normal(0, 0.5, (8, 2)), "temperature": np.array([0.7])}
WEIGHTS = {name: array.astype(np.float32) for name, array in WEIGHTS.items()}
ENDS = {
    "rows": ("float[N] loss", "loss = Mul(r, importance)"),
    "minibatch": ("float loss", "m = Mul(r, importance) loss = ReduceMean <keepdims = 0> (m)"),
}
SETTINGS = {
    "optimizer": "sgd",
    "batch_size": 16,
    "max_iter": 4,
    "tol": 0,
    "random_state": 0,
    "shuffle": False,
    "trainable": "*",
}


def graph(end="rows", outputs=("float[N, 2] prediction",)):
    """A network with two layers, and the mean squared error of its prediction times a weight of the loss alone."""
    declared, last = ENDS[end]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
    net (float[N, 3] x, float[N, 2] target, float[N] importance) => ({", ".join([*outputs, declared])}) {{
      h = MatMul(x, W1)  hidden = Tanh(h)  prediction = MatMul(hidden, W2)
      d = Sub(prediction, target)  s = Mul(d, d)  axes = Constant <value_ints = [1]> ()
      t = Mul(s, temperature)  r = ReduceSum <keepdims = 0> (t, axes)  {last} }}""")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in WEIGHTS.items())
    return model


def reference(rate, epochs, weights=None):
    """Return the weights and the mean losses of epochs by gradient descent in float64, and how it predicts."""
    w = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    x, target = X.astype(np.float64), Y["target"]
    by_row = np.ones(50) if weights is None else weights
    curve = []
    for _ in range(epochs):
        total = 0.0
        for start in range(0, 50, 16):
            rows = slice(start, start + 16)
            share = by_row[rows] / by_row[rows].sum()
            hidden = np.tanh(x[rows] @ w["W1"])
            error = hidden @ w["W2"] - target[rows]
            importance = Y["importance"][rows]
            losses = w["temperature"] * (error**2).sum(axis=1) * importance
            total += by_row[rows].sum() * (share @ losses)
            of_error = (share * importance)[:, None] * 2 * w["temperature"] * error
            of_hidden = (of_error @ w["W2"].T) * (1 - hidden**2)
            found = {
                "W1": x[rows].T @ of_hidden,
                "W2": hidden.T @ of_error,
                "temperature": np.array([share @ ((error**2).sum(axis=1) * importance)]),
            }
            w = {name: w[name] - rate * found[name] for name in w}
        curve.append(total / by_row.sum())
    return w, curve, lambda x: np.tanh(x @ w["W1"]) @ w["W2"]


def estimator(model, **settings):
    return OrtGradientRegressor(model, **{"loss": "output", "learning_rate_init": 0.05} | SETTINGS | settings)


@each_engine
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("loss", ["output", "loss"])
def test_training_is_that_of_the_formula(end, loss, engine):
    """The last minibatch has two rows; the weights of the loss alone are trained too."""
    net = estimator(graph(end), loss=loss, engine=engine).fit(X, Y)
    weights, curve, predict = reference(0.05, 4)
    assert_allclose(net.loss_curve_, curve, rtol=2e-5)
    for name, expected in weights.items():
        assert_allclose(net.weights_[name], expected, rtol=2e-4, atol=2e-5)
    assert_allclose(net.predict(X), predict(X.astype(np.float64)), rtol=2e-4, atol=2e-5)
    error = predict(X.astype(np.float64)) - Y["target"]
    losses = weights["temperature"] * (error**2).sum(axis=1) * Y["importance"]
    assert_allclose(net.score(X, Y), -losses.mean(), rtol=1e-4)
    assert "'loss' of the graph" in net.describe().loss


@each_engine
def test_rows_are_weighted(engine):
    row_weights = np.random.default_rng(1).uniform(0.2, 3, 50)
    net = estimator(graph(), engine=engine).fit(X, Y, sample_weight=row_weights)
    weights, curve, predict = reference(0.05, 4, row_weights)
    assert_allclose(net.loss_curve_, curve, rtol=2e-5)
    for name, expected in weights.items():
        assert_allclose(net.weights_[name], expected, rtol=2e-4, atol=2e-5)
    error = predict(X.astype(np.float64)) - Y["target"]
    losses = weights["temperature"] * (error**2).sum(axis=1) * Y["importance"]
    assert_allclose(net.score(X, Y, row_weights), -np.average(losses, weights=row_weights), rtol=1e-4)


@each_engine
@pytest.mark.parametrize("end", ENDS)
def test_files_pickles_and_clones(end, engine):
    net = estimator(graph(end), engine=engine).fit(X, Y)
    written = net.to_onnx()
    assert [value.name for value in written.graph.input] == ["x"]
    assert [value.name for value in written.graph.output] == ["prediction"]
    assert {one.name for one in written.graph.initializer} == {"W1", "W2"}
    session = onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_array_equal(session.run(None, {"x": X})[0], net.predict(X))
    again, anew = pickle.loads(pickle.dumps(net)), clone(net).fit(X, Y)
    assert_array_equal(again.predict(X), net.predict(X))
    assert_array_equal(anew.predict(X), net.predict(X))
    assert again.partial_fit(X, Y).loss_ == net.partial_fit(X, Y).loss_
    assert_array_equal(again.predict(X), net.predict(X))
    assert np.abs(net.predict(X) - anew.predict(X)).max() > 1e-4


@each_engine
@pytest.mark.parametrize("end", ENDS)
def test_early_stopping_watches_the_loss(end, engine):
    held = np.arange(40, 50)
    net = estimator(graph(end), engine=engine, early_stopping=True, validation_split=held).fit(X, Y)
    part = {name: array[held] for name, array in Y.items()}
    last = estimator(graph(end), engine=engine, early_stopping=True, validation_split=held, max_iter=1).fit(X, Y)
    assert_allclose(last.validation_scores_[0], last.score(X[held], part), rtol=1e-5)
    given = estimator(graph(end), engine=engine, early_stopping=True)
    first = {name: array[:40] for name, array in Y.items()}
    given.fit(X[:40], first, X_val=X[held], y_val=part)
    assert_allclose(given.validation_scores_, net.validation_scores_, rtol=1e-6)
    scored = estimator(graph(end), engine=engine, early_stopping=True, validation_split=held)
    scored.set_params(scoring=lambda net, X, y: -float(np.abs(net.predict(X) - y["target"]).mean())).fit(X, Y)
    assert len(scored.validation_scores_) == 4
    with pytest.raises(ValueError, match="scoring='r2'"):
        clone(scored).set_params(scoring="r2").fit(X, Y)


@each_engine
@pytest.mark.parametrize("output", ["hidden", "prediction"])
def test_values_inside_the_graph_are_predicted(output, engine):
    """The file has one output, its loss."""
    for outputs in ((), ("float[N, 2] prediction",)):
        net = estimator(GraphModel(graph("minibatch", outputs), output=output), engine=engine).fit(X, Y)
        weights, curve, predict = reference(0.05, 4)
        expected = predict(X) if output == "prediction" else np.tanh(X @ weights["W1"])
        assert_allclose(net.loss_curve_, curve, rtol=2e-5)
        assert_allclose(net.predict(X), expected, rtol=2e-4, atol=2e-5)
        assert net.n_outputs_ == expected.shape[1]


@each_engine
def test_a_loss_of_x_alone_takes_no_targets(engine):
    """An autoencoder, whose loss has an axis after the rows; a target is given as it is."""
    text = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] x{more}) => (float[N, 3] z, float[N, 3] own) {{
    h = MatMul(x, down)  z = MatMul(h, up)  d = Sub(z, {target})  own = Mul(d, d) }}"""
    start = {"down": rng.normal(size=(3, 2)), "up": rng.normal(size=(2, 3))}
    found = []
    for more, target, y in (("", "x", None), (", float[N, 3] copy", "copy", X)):
        model = onnx.parser.parse_model(text.format(more=more, target=target))
        for name, array in start.items():
            model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        net = OrtGradientRegressor(model, loss="own", engine=engine, optimizer="lbfgs", tol=1e-7, max_iter=300)
        found.append(net.fit(X, y))
    left = np.linalg.svd(X.astype(np.float64), compute_uv=False)[2:] ** 2
    assert_allclose(found[0].loss_, left.sum() / X.size, rtol=1e-3)  # the error of the best matrix of rank two
    assert_allclose(found[1].predict(X), found[0].predict(X), atol=1e-5)
    with pytest.raises(ValueError, match="takes no targets"):
        found[0].fit(X, X)


@each_engine
def test_integers_beyond_those_of_float32_are_exact(engine):
    """Labels are indices of a table of the loss alone."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
    net (float[N, 3] x, int64[N] label, bool[N] counts) => (float[N, 4] scores, float[N] loss) {
      scores = MatMul(x, W)  large = Constant <value = int64 {100000000}> ()  index = Sub(label, large)
      log = LogSoftmax <axis = 1> (scores)  axes = Constant <value_ints = [1]> ()  column = Unsqueeze(index, axes)
      own = GatherElements <axis = 1> (log, column)  flat = Squeeze(own, axes)  minus = Neg(flat)
      zero = Constant <value = float {0.0}> ()  loss = Where(counts, minus, zero) }""")
    start = rng.normal(size=(3, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(start, "W"))
    label, counts = rng.integers(0, 4, 50), rng.random(50) < 0.8
    net = estimator(model, engine=engine, max_iter=1, learning_rate_init=1e-9)
    net.fit(X, {"label": label + 100_000_000, "counts": counts})
    scores = X.astype(np.float64) @ start
    log = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    assert_allclose(net.loss_, -(log[np.arange(50), label] * counts).mean(), rtol=1e-5)


def test_frames_and_axes_of_rows():
    frame = pd.DataFrame({"importance": Y["importance"], "target": Y["importance"] ** 2})
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
    net (float[3, N] x, float[N, 1] target, float[1, N] importance) => (float[1, N] y, float[1, N] loss) {
      y = MatMul(W, x)  turned = Transpose <perm = [1, 0]> (target)  d = Sub(y, turned)  s = Mul(d, d)
      loss = Mul(s, importance) }""")
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS["W1"][:, :1].T.copy(), "W"))
    given = GraphModel(model, batch_axis={"x": 1, "importance": 1, "y": 1, "loss": 1})
    net = estimator(given, max_iter=1, learning_rate_init=1e-9).fit(X, frame)
    found = X.astype(np.float64) @ WEIGHTS["W1"][:, 0].astype(np.float64)
    losses = (found - frame["target"]) ** 2 * frame["importance"]
    assert_allclose(net.loss_, losses.mean(), rtol=1e-5)
    assert_allclose(net.predict(X)[:, 0] if net.predict(X).ndim == 2 else net.predict(X), found, rtol=1e-4, atol=1e-5)
    assert [value.name for value in net.to_onnx().graph.input] == ["x"]
    plain = estimator(given, max_iter=2)
    assert np.isfinite(cross_val_score(plain, X, frame, cv=3, error_score="raise")).all()


@pytest.mark.long
@one_case
@each_engine
@pytest.mark.parametrize("end", ENDS)
def test_tables_in_blocks_train_as_arrays(end, engine, tmp_path):
    first, second = Y["target"].T
    table = pd.DataFrame(X, columns=list("abc")).assign(first=first, second=second, importance=Y["importance"])
    table.to_parquet(tmp_path / "table.parquet", row_group_size=10)
    columns = {"target": ["first", "second"], "importance": "importance"}
    arrays = estimator(graph(end), engine=engine).fit(table[list("abc")], Y)
    for rows in (20, 100):
        blocks = RowBlocks(tmp_path / "table.parquet", columns, buffer_rows=rows)
        found = estimator(graph(end), engine=engine).fit(blocks)
        assert_array_equal(found.loss_curve_, arrays.loss_curve_)
        assert_array_equal(found.predict(table[list("abc")]), arrays.predict(table[list("abc")]))
    blocks = RowBlocks(tmp_path / "table.parquet", columns, buffer_rows=20)
    stopped = estimator(graph(end), engine=engine, early_stopping=True, shuffle=True).fit(blocks)
    assert len(stopped.validation_scores_) == 4
    with pytest.raises(ValueError, match=r"Scores of a table .* not on a loss that the graph computes"):
        stopped.score(blocks)
    for named, weight, message in (
        ({"taret": ["first", "second"]}, None, "Did you mean 'target'"),
        ({"target": ["first", "second"]}, None, "y lacks the target 'importance'"),
        (columns, "importance_2", "rows have no weights" if end == "minibatch" else None),
    ):
        copied = table.assign(importance_2=table["importance"])
        copied.to_parquet(tmp_path / "other.parquet", row_group_size=10)
        blocks = RowBlocks(tmp_path / "other.parquet", named, sample_weight=weight, columns=list("abc"), buffer_rows=20)
        net = estimator(graph(end), engine=engine)
        if message is None:
            expected = estimator(graph(end), engine=engine).fit(table[list("abc")], Y, sample_weight=Y["importance"])
            assert_array_equal(net.fit(blocks).predict(table[list("abc")]), expected.predict(table[list("abc")]))
            continue
        with pytest.raises(ValueError, match=message):
            net.fit(blocks)


def test_predictions_are_made_in_chunks_where_only_the_loss_mixes_rows():
    net = estimator(graph("minibatch")).fit(X, Y)
    assert net._state.rows_of_predictions_meet(with_scores=True)
    assert not net._state.rows_of_predictions_meet(with_scores=False)


BAD = {
    "a near name": ({"loss": "los"}, {}, ModelError, "neither the name of a loss nor an output .* Did you mean 'loss'"),
    "a near loss": ({"loss": "squared_eror"}, {}, ModelError, "Did you mean 'squared_error'"),
    "the loss as prediction": ({"output": "loss"}, {}, ModelError, "both the loss and the output to predict"),
    "no such value": ({"output": "hiden"}, {}, ModelError, "Did you mean 'hidden'"),
    "kind": ({"output_kind": "scores"}, {}, InvalidParameterError, "output_kind is not for a loss that the graph"),
    "all at once": ({"batch_size": None}, {}, InvalidParameterError, "batch_size=None is not for a loss"),
    "fine-tuning": ({"finetune": FineTuner()}, {}, InvalidParameterError, "finetune is not for a loss"),
    "clipping": ({"clip_predictions": True}, {}, ValueError, "clip_predictions=True needs numbers"),
    "no y": ({}, {"y": None}, ValueError, r"takes the targets 'target' \(N, 2\), 'importance' \(N,\)"),
    "an array": ({}, {"y": Y["target"]}, ValueError, "give y as a dict"),
    "a near target": ({}, {"y": {"taret": X, "importance": X}}, ValueError, "Did you mean 'target'"),
    "a target too few": ({}, {"y": {"target": Y["target"]}}, ValueError, "y lacks the target 'importance'"),
    "an axis": ({}, {"y": Y | {"target": X}}, ValueError, r"Axis 1 \(2\) of target 'target' has 3 entries, expected 2"),
    "rows": ({}, {"y": Y | {"importance": X[:9, 0]}}, ValueError, "has 9 entries, expected 50, as in X"),
    "a missing number": ({}, {"y": Y | {"importance": np.full(50, np.nan)}}, ValueError, "NaN or infinity in 50"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    settings, data, error, message = BAD[case]
    read = {name: value for name, value in settings.items() if name in ("output", "output_kind")}
    others = {name: value for name, value in settings.items() if name not in read}
    net = estimator(GraphModel(graph(), **read), **others)
    with pytest.raises(error, match=message):
        net.fit(**{"X": X, "y": Y} | data)
    assert not hasattr(net, "loss_")


def test_other_estimators_models_and_weights_are_refused():
    with pytest.raises(ValueError, match="is one loss for a minibatch, in which rows have no weights"):
        estimator(graph("minibatch")).fit(X, Y, sample_weight=np.ones(50))
    with pytest.raises(InvalidParameterError, match="is trained by OrtGradientRegressor"):
        OrtGradientClassifier(graph(), loss="output").fit(X, Y)
    with pytest.raises(InvalidParameterError, match="give one as model, or another loss"):
        OrtGradientRegressor(loss="output").fit(X, Y["target"])
    with pytest.raises(InvalidParameterError, match="Unknown loss 'outputs'"):
        OrtGradientRegressor(loss="outputs").fit(X, Y["target"])
    with pytest.raises(InvalidParameterError, match="Unknown loss 'output'"):
        OrtGradientMultiOutput(graph(), loss={"prediction": "output"}).fit(X, Y)
    renamed = graph()
    renamed.graph.output[-1].name = renamed.graph.node[-1].output[0] = "other"
    with pytest.raises(ModelError, match=r"outputs \['prediction', 'other'\], none .* 'loss'. .* loss='other'"):
        estimator(renamed).fit(X, Y)
    with pytest.raises(ModelError, match="no float output besides its loss 'loss'"):
        estimator(graph("rows", ())).fit(X, Y)


def test_later_calls_keep_the_loss():
    net = estimator(graph()).fit(X, Y)
    before = net.predict(X)
    for loss in ("squared_error", "prediction"):
        with pytest.raises(ValueError, match="Training began with the loss that the graph computes, loss='loss'"):
            net.set_params(loss=loss).partial_fit(X, Y)
    net.set_params(loss="loss").partial_fit(X, Y)
    assert np.abs(net.predict(X) - before).max() > 1e-5
    plain = estimator(graph(), loss="squared_error").fit(X, Y["target"])
    with pytest.raises(ValueError, match="Training began with another loss"):
        plain.set_params(loss="output").partial_fit(X, Y)
