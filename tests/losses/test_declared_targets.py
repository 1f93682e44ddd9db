"""Losses that declare their targets by name: what they receive, that they train as other losses do, what is refused."""

from __future__ import annotations

import pickle
from typing import ClassVar

import numpy as np
import onnx.parser
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

from onnxtrain_sklearn import (
    MLP,
    FineTuner,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RowBlocks,
)
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import Loss, Target
from onnxtrain_sklearn.models import TabM
from onnxtrain_sklearn.optimizers import Adam
from tests.helpers.environment import each_engine
from tests.helpers.selection import one_case

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(53, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * RNG.normal(size=53)
WEIGHTS = RNG.integers(0, 3, 53).astype(float)


class Squared(Loss):
    """The squared error, with a target of its own."""

    tasks = frozenset({"regression"})
    targets: ClassVar = {"number": Target()}

    def __call__(self, op, scores, y, link):
        residual = op.Sub(scores, op.Unsqueeze(y["number"], axes=[1]))
        return op.Mul(residual, residual)


class SquaredOfNumbers(Loss):
    """The same for plain targets."""

    tasks = frozenset({"regression"})

    def __call__(self, op, scores, y, link):
        residual = op.Sub(scores, y)
        return op.Mul(residual, residual)


class Slots(Loss):
    """The squared error of the score in the slot of a row, where that is counted, plus that to a curve."""

    tasks = frozenset({"regression"})
    targets: ClassVar = {"slot": Target(dtype="int64"), "counts": Target(dtype="bool"), "curve": Target(("N", "slots"))}

    def n_scores(self, task, n_targets):
        return n_targets - 2

    def __call__(self, op, scores, y, link):
        slots = np.arange(op.shape(scores)[1])
        chosen = op.Cast(op.Equal(op.Unsqueeze(y["slot"], axes=[1]), slots), to=int(scores.dtype))
        own = op.ReduceSum(op.Mul(chosen, op.Mul(scores, scores)), axes=[1], keepdims=True)
        own = op.Where(op.Unsqueeze(y["counts"], axes=[1]), own, op.Mul(own, 0.0))
        residual = op.Sub(scores, y["curve"])
        return op.Add(own, op.ReduceSum(op.Mul(residual, residual), axes=[1], keepdims=True))


class ToTheMean(Loss):
    """The squared distance of the error of a row from the weighted mean error of the minibatch."""

    tasks = frozenset({"regression"})
    targets: ClassVar = {"number": Target()}
    mixes_rows = True

    def __call__(self, op, scores, y, link):
        error = op.Sub(scores, op.Unsqueeze(y["number"], axes=[1]))
        mean = op.ReduceMean(op.Mul(error, op.Unsqueeze(y["sample_weight"], axes=[1])), axes=[0], keepdims=True)
        return op.Mul(op.Sub(error, mean), op.Sub(error, mean))


class Undeclared(ToTheMean):
    """The same, unweighted, without a word on rows that meet."""

    mixes_rows = False

    def __call__(self, op, scores, y, link):
        error = op.Sub(scores, op.Unsqueeze(y["number"], axes=[1]))
        mean = op.ReduceMean(error, axes=[0], keepdims=True)
        return op.Mul(op.Sub(error, mean), op.Sub(error, mean))


class ToZero(Loss):
    """The square of the scores: it takes no targets."""

    tasks = frozenset({"regression"})
    targets: ClassVar = {}

    def __call__(self, op, scores, y, link):
        return op.Mul(scores, scores)


def regressor(loss, **parameters):
    parameters = {"batch_size": 16, "max_iter": 5, "learning_rate_init": 0.03, "random_state": 0} | parameters
    return OrtGradientRegressor(**{"model": MLP((4,)), "loss": loss, **parameters})


GRAPH = Linear().build(3, 1, 0)
SETTINGS = {
    "minibatches": {},
    "lbfgs": {"optimizer": "lbfgs", "max_iter": 20},
    "given graph": {"model": GRAPH},
    "accumulated": {"optimizer": Adam(accumulate=2)},
    "early stopping": {"early_stopping": True, "validation_split": 0.3},
    "members": {"model": TabM(n_members=3, hidden_layer_sizes=(4,))},
}


@each_engine
@pytest.mark.parametrize("name", SETTINGS)
def test_declared_target_trains_to_the_bits_of_a_plain_one(name, engine):
    declared, plain = (regressor(loss, engine=engine, **SETTINGS[name]) for loss in (Squared(), SquaredOfNumbers()))
    for one, y in ((declared, {"number": Y}), (plain, Y)):
        one.fit(X, y, sample_weight=WEIGHTS)
    assert declared.loss_curve_ == plain.loss_curve_
    assert_array_equal(declared.predict(X), plain.predict(X))
    if name == "early stopping":
        losses = [[row["validation_loss"] for row in one.history_] for one in (declared, plain)]
        assert losses[0] == losses[1] == [-score for score in declared.validation_scores_]
    if name not in ("lbfgs", "early stopping"):
        more = [one.partial_fit(X, y).loss_ for one, y in ((declared, {"number": Y}), (plain, Y))]
        assert more[0] == more[1]


@each_engine
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loss_receives_types_shapes_and_values(engine, dtype):
    slot, counts, curve = RNG.integers(0, 4, 53), RNG.integers(2, size=53) > 0, RNG.normal(size=(53, 4))
    net = regressor(Slots(), model=Linear(), engine=engine, batch_size=53, max_iter=1, learning_rate_init=1e-12)
    y = {"curve": curve.astype(dtype), "slot": slot, "counts": counts}
    s = net.fit(X.astype(dtype), y).predict(X.astype(dtype)).astype(float)
    assert s.shape == (53, 4)
    expected = counts * s[np.arange(53), slot] ** 2 + ((s - curve) ** 2).sum(axis=1)
    assert_allclose(net.loss_, expected.mean(), rtol=1e-5)
    weights = RNG.uniform(0.5, 2, 53)
    assert_allclose(net.score(X.astype(dtype), y, weights), -np.average(expected, weights=weights), rtol=1e-5)


@each_engine
@pytest.mark.parametrize("loss", [ToTheMean(), Undeclared()])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_that_meet_are_not_padded(engine, loss, weighted):
    w = WEIGHTS if weighted else np.ones(53)
    net = regressor(loss, model=GRAPH, engine=engine, shuffle=False, max_iter=1, learning_rate_init=1e-12, alpha=0.0)
    net.fit(X, {"number": Y}, sample_weight=w if weighted else None)
    kept = np.flatnonzero(w)
    error, w = (net.predict(X) - Y)[kept], w[kept]
    total = 0.0
    for start in range(0, len(kept), 16):
        own, weights = error[start : start + 16], w[start : start + 16]
        center = own.mean() if isinstance(loss, Undeclared) else np.average(own, weights=weights)
        total += (weights * (own - center) ** 2).sum()
    assert_allclose(net.loss_, total / w.sum(), rtol=1e-5)
    assert_allclose(net.score(X, {"number": Y}, WEIGHTS if weighted else None), -total / w.sum(), rtol=1e-5)


def test_targets_come_as_dict_frame_structured_array_or_alone():
    slot, counts, curve = RNG.integers(0, 4, 53), RNG.integers(2, size=53) > 0, RNG.normal(size=(53, 4))
    structured = np.zeros(53, [("slot", "i4"), ("counts", "?"), ("curve", "f8", (4,))])
    structured["slot"], structured["counts"], structured["curve"] = slot, counts, curve
    given = {"slot": slot, "counts": counts, "curve": curve}
    assert regressor(Slots()).fit(X, structured).loss_curve_ == regressor(Slots()).fit(X, given).loss_curve_
    frame, expected = pd.DataFrame({"number": Y}), regressor(Squared()).fit(X, {"number": Y}).loss_curve_
    for y in (frame, Y, Y.tolist(), frame.to_records(index=False)):
        assert regressor(Squared()).fit(X, y).loss_curve_ == expected


@pytest.mark.long
def test_scikit_learn_splits_frames_and_structured_arrays():
    frame = pd.DataFrame({"number": Y})
    net = regressor(Squared(), model=Linear(), max_iter=30)
    assert (cross_val_score(net, X, frame, cv=3, error_score="raise") > -2).all()
    search = GridSearchCV(net, {"learning_rate_init": [1e-9, 0.1]}, cv=3, error_score="raise").fit(X, frame)
    assert search.best_params_ == {"learning_rate_init": 0.1}


def test_validation_data_pickles_clones_and_export():
    net = regressor(Squared(), early_stopping=True, max_iter=20)
    net.fit(X[:40], {"number": Y[:40]}, X_val=X[40:], y_val={"number": Y[40:]})
    best = max(net.validation_scores_)
    assert_allclose(net.score(X[40:], {"number": Y[40:]}), best, rtol=1e-5)
    again = pickle.loads(pickle.dumps(net))
    assert_array_equal(again.predict(X), net.predict(X))
    assert again.score(X, {"number": Y}) == net.score(X, {"number": Y})
    more = [one.set_params(early_stopping=False).partial_fit(X, {"number": Y}).loss_ for one in (again, net)]
    assert more[0] == more[1]
    assert clone(net).fit(X, {"number": Y}).n_outputs_ == 1
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert len(session.get_inputs()) == 1
    (exported,) = session.run(None, {session.get_inputs()[0].name: X})
    assert_allclose(exported.ravel(), net.predict(X), rtol=1e-6)


def test_loss_without_targets_takes_no_y():
    net = regressor(ToZero(), model=Linear(), max_iter=200, learning_rate_init=0.1).fit(X + 3)
    assert np.abs(net.predict(X + 3)).max() < 0.3
    assert_allclose(net.score(X + 3), -np.mean(net.predict(X + 3) ** 2), rtol=1e-5)
    watched = regressor(ToZero(), early_stopping=True, max_iter=3).fit(X, X_val=X[:20] + 3)
    assert_allclose(max(watched.validation_scores_), watched.score(X[:20] + 3), rtol=1e-5)
    with pytest.raises(ValueError, match="X_val and y_val belong together"):
        regressor(Squared()).fit(X, Y, X_val=X)
    with pytest.raises(ValueError, match=r"loss=ToZero takes no targets: leave y=None, got ndarray"):
        regressor(ToZero()).fit(X, Y)


GOOD = {"slot": np.zeros(53, int), "counts": np.ones(53, bool), "curve": np.zeros((53, 4))}
BAD = {
    "missing": ({"slot": GOOD["slot"], "counts": GOOD["counts"]}, r"y lacks the target 'curve'.*'curve' \(N, slots\)"),
    "unknown": (GOOD | {"curves": GOOD["curve"]}, r"y has 'curves', which is no target.*Did you mean 'curve'"),
    "axis": (GOOD | {"curve": np.zeros((50, 4))}, r"Axis 0 \(N\) of target 'curve' has 50 entries, expected 53, as"),
    "axes": (GOOD | {"curve": np.zeros(53)}, r"Target 'curve' must have the axes \(N, slots\), got the shape \(53,\)"),
    "empty": (GOOD | {"curve": np.zeros((53, 0))}, r"Axis 1 \(slots\) of target 'curve' is empty"),
    "fractions": (GOOD | {"slot": np.full(53, 0.5)}, r"target 'slot' must hold whole numbers"),
    "large": (GOOD | {"slot": np.full(53, 2**24 + 1)}, r"target 'slot' holds whole numbers beyond 16777216"),
    "not bool": (GOOD | {"counts": np.full(53, -1)}, r"'counts' must be True or False .*, got values such as -1\."),
    "text": (GOOD | {"slot": np.full(53, "a")}, r"target 'slot' must hold numbers \(int64\), got <U1"),
    "infinite": (GOOD | {"curve": np.full((53, 4), np.inf)}, r"target 'curve' contains NaN or infinity in 212 of 212"),
    "array": (np.zeros((53, 4)), r"loss=Slots takes the targets 'slot' \(N,\), .* got ndarray of shape \(53, 4\)"),
    "ragged": (GOOD | {"curve": [[1.0], [1.0, 2.0]]}, r"rows of target 'curve' differ in shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_targets_are_named_and_leave_the_estimator_as_it_was(name):
    y, message = BAD[name]
    net = regressor(Slots()).fit(X, GOOD)
    before = net.predict(X)
    with pytest.raises(ValueError, match=message):
        net.fit(X, y)
    assert_array_equal(net.predict(X), before)


def test_later_calls_and_validation_data_have_the_first_shapes():
    net = regressor(Slots()).partial_fit(X, GOOD)
    with pytest.raises(ValueError, match=r"Axis 1 \(slots\) of target 'curve' has 5 .* expected 4, as in 'curve' when"):
        net.partial_fit(X, GOOD | {"curve": np.zeros((53, 5))})
    with pytest.raises(ValueError, match=r"Axis 1 \(slots\) of target 'curve' has 5 entries, expected 4"):
        net.fit(X, GOOD, X_val=X, y_val=GOOD | {"curve": np.zeros((53, 5))})
    with pytest.raises(ValueError, match="Training began with a loss that takes targets of its own"):
        net.set_params(loss="squared_error").partial_fit(X, Y)
    with pytest.raises(
        ValueError, match=r"other targets than those of loss=Squared: 'slot' with rows of shape \(\), 'counts'"
    ):
        net.set_params(loss=Squared()).partial_fit(X, Y)


@pytest.mark.parametrize("shape", [("rows",), ("N", "N"), ("N", 0), ["N"], ()])
def test_target_of_invalid_shape_is_refused(shape):
    with pytest.raises(ValueError, match="shape of a target must be a tuple that begins with 'N'"):
        Target(shape)


def test_what_takes_no_declared_targets_says_so(tmp_path):
    with pytest.raises(ValueError, match="takes targets of its own, not labels: train it by OrtGradientRegressor"):
        OrtGradientClassifier(loss=Squared()).fit(X, Y > 0)
    with pytest.raises(ValueError, match="takes targets of its own, which OrtGradientRegressor trains"):
        OrtGradientMultiOutput(GRAPH, loss={"scores": Squared()}).fit(X, {"scores": Y})
    net = regressor(Squared()).fit(X, Y)
    with pytest.raises(ModelError, match="Training graphs take labels or numbers"):
        net.export_training(tmp_path / "graphs")
    with pytest.raises(ValueError, match="scorers take numbers as y, and the loss takes targets"):
        regressor(Squared(), scoring="r2", early_stopping=True).fit(X, Y)
    with pytest.raises(ValueError, match="clip_predictions=True needs numbers as y"):
        regressor(Squared(), clip_predictions=True).fit(X, Y)
    with pytest.raises(ValueError, match="Fine-tuning takes labels or numbers"):
        OrtGradientRegressor(GRAPH, loss=Squared(), finetune=FineTuner()).fit(X, Y)
    pd.DataFrame(X, columns=list("abc")).assign(number=Y).to_parquet(tmp_path / "table.parquet", row_group_size=10)
    blocks = RowBlocks(tmp_path / "table.parquet", "number", buffer_rows=20)
    with pytest.raises(ValueError, match=r"Scores .* not on targets that a loss declares by name"):
        net.score(blocks)
    with pytest.raises(ValueError, match="not on a loss without y in the table"):
        OrtGradientRegressor(Linear(), loss="info_nce").fit(blocks)


@pytest.mark.long
@one_case
@each_engine
@pytest.mark.parametrize("loss", ["cox", "triplet"])
def test_tables_in_blocks_train_as_arrays(loss, engine, tmp_path):
    """Most blocks have few rows, some of them without an event."""
    draw = np.random.default_rng(0)
    rows, group = draw.normal(size=(90, 3)).astype(np.float32), np.repeat(np.arange(3), 30)
    y = {"time": draw.exponential(size=90), "event": draw.random(90) < 0.5} if loss == "cox" else {"label": group}
    table = pd.DataFrame(rows, columns=list("abc")).assign(**y)
    table.to_parquet(tmp_path / "table.parquet", row_group_size=15)
    settings = {"optimizer": "sgd", "batch_size": 16, "max_iter": 4, "shuffle": False, "tol": 0, "random_state": 0}
    settings |= {"loss": loss, "engine": engine, "learning_rate_init": 0.05}
    features = table[list("abc")]
    arrays = OrtGradientRegressor(Linear(), **settings).fit(features, y)
    columns = {name: name for name in y}
    for source in (
        RowBlocks(tmp_path / "table.parquet", columns, buffer_rows=30),
        RowBlocks(tmp_path / "table.parquet", columns),
    ):
        found = OrtGradientRegressor(Linear(), **settings).fit(source)
        assert found.loss_curve_ == arrays.loss_curve_
        assert_array_equal(found.predict(features), arrays.predict(features))
    assert_array_equal(
        OrtGradientRegressor(Linear(), **settings).fit(tmp_path / "table.parquet", columns).predict(features),
        arrays.predict(features),
    )
    settings |= {"early_stopping": True, "shuffle": True}
    stopped = OrtGradientRegressor(Linear(), **settings).fit(
        RowBlocks(tmp_path / "table.parquet", columns, buffer_rows=30)
    )
    assert len(stopped.validation_scores_) == 4


def test_faults_of_targets_in_blocks_are_placed(tmp_path):
    labels = np.full((40, 2), 1)
    labels[33] = 0  # the blank
    steps = np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32)
    table = pd.DataFrame(steps, columns=[f"s{i}" for i in range(12)]).assign(first=labels[:, 0], second=labels[:, 1])
    table.to_parquet(tmp_path / "table.parquet", row_group_size=10)
    reader = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
    net (float[N, 12] X) => (float[N, 4, 3] y)
    <int64[3] sizes = {0, 4, 3}, float[12] W = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}>
    { scaled = Mul(X, W)  y = Reshape(scaled, sizes) }""")
    net = OrtGradientRegressor(reader, loss="ctc", max_iter=1, batch_size=8)
    blocks = RowBlocks(tmp_path / "table.parquet", {"labels": ["first", "second"]}, buffer_rows=20)
    with pytest.raises(ValueError, match=r"classes other than the blank 0"):
        net.fit(blocks)
    assert not hasattr(net, "loss_")
    table[:30].to_parquet(tmp_path / "right.parquet", row_group_size=10)
    fitted = net.fit(RowBlocks(tmp_path / "right.parquet", {"labels": ["first", "second"]}, buffer_rows=20))
    assert np.isfinite(fitted.loss_)
    with pytest.raises(ValueError, match="Did you mean 'labels'"):
        net.fit(RowBlocks(tmp_path / "right.parquet", {"label": ["first", "second"]}, buffer_rows=20))


def test_scoring_function_receives_y_as_it_is():
    seen = []

    def scoring(net, X, y):
        seen.append(y)
        return -float(np.abs(net.predict(X) - y["number"]).mean())

    net = regressor(Squared(), scoring=scoring, early_stopping=True, max_iter=3).fit(X, {"number": Y})
    assert len(net.validation_scores_) == 3
    assert set(seen[0]) == {"number"}
