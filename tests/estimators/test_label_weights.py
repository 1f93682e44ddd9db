"""Two-axis ``sample_weight``: a weight for each number or label of a row, in losses, scales and scores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss, r2_score

from onnxtrain_sklearn import (
    MLP,
    SGD,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPRegressor,
    RowBlocks,
    TabM,
)
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import Loss
from tests.helpers import several_outputs as heads
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(1)
N, K = 40, 3
X = RNG.normal(size=(N, 4)).astype(np.float32)
WIDE = X.astype(np.float64)
NUMBERS = np.abs(X @ RNG.normal(size=(4, K)) + 0.3 * RNG.normal(size=(N, K))) + 0.2
LABELS = (X @ RNG.normal(size=(4, K)) + RNG.normal(size=(N, K)) > 0).astype(int)
NAMES = np.stack([np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.4, 0.4])], np.where(LABELS[:, 0], "x", "y")], 1)
MISSING = RNG.random((N, K)) < 0.2
MISSING[:, 0] = False
WEIGHTS = RNG.uniform(0.2, 3.0, (N, K)) * (RNG.random((N, K)) < 0.8)
WEIGHTS[5] = 0.0
ROWS = RNG.uniform(0.5, 2.0, N)
RATE = 0.01

# dl/ds of the loss l of a score s and a target y, in float64
SLOPES = {
    "squared_error": lambda s, y: 2 * (s - y),
    "huber": lambda s, y: np.clip(s - y, -1.0, 1.0),
    "poisson": lambda s, y: np.exp(s) - y,
    "log_loss": lambda s, y: 1 / (1 + np.exp(-s)) - y,
}


def estimator(loss, engine="auto", **parameters):
    kind = OrtGradientClassifier if loss == "log_loss" else OrtGradientRegressor
    scaling = {} if loss == "log_loss" else {"target_scaling": None}
    return kind(
        Linear(), loss=loss, optimizer=SGD(), learning_rate_init=RATE, batch_size=N, max_iter=1, alpha=0.0,
        shuffle=False, random_state=0, engine=engine, **scaling, **parameters,
    )  # fmt: skip


def parts(weights):
    """The matrix and the vector of a linear graph, in float64."""
    matrix = next(array for array in weights.values() if array.ndim == 2)
    bias = next(array for array in weights.values() if array.ndim == 1)
    return matrix.astype(np.float64), bias.astype(np.float64)


@pytest.mark.parametrize("engine", [*available_engines(), "compiled"])
@pytest.mark.parametrize("loss", SLOPES)
@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
def test_gradient_is_that_of_the_weighted_mean_over_elements(loss, engine, missing):
    y = LABELS if loss == "log_loss" else NUMBERS
    given, own = y, WEIGHTS
    if missing:
        given, own = np.where(MISSING, np.nan, y), np.where(MISSING, 0.0, WEIGHTS)
    net = estimator(loss, engine).initialize(X, given, WEIGHTS)
    matrix, bias = parts(net.weights_)
    slopes = own / own.sum() * SLOPES[loss](WIDE @ matrix + bias, y)
    ends = parts(net.partial_fit(X, given, sample_weight=WEIGHTS).weights_)
    for start, end, expected in zip((matrix, bias), ends, (WIDE.T @ slopes, slopes.sum(axis=0)), strict=True):
        assert_allclose((start - end) / RATE, expected, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("engine", available_engines())
def test_gradient_of_labels_of_several_classes(engine):
    weights = WEIGHTS[:, :2]
    net = estimator("log_loss", engine).initialize(X, NAMES, weights)
    matrix, bias = parts(net.weights_)
    scores, slopes, begin = WIDE @ matrix + bias, [], 0
    for j, classes in enumerate(net.classes_):
        own = scores[:, begin : begin + len(classes)]
        shares = np.exp(own) / np.exp(own).sum(axis=1, keepdims=True)
        slopes.append((shares - (NAMES[:, [j]] == classes)) * weights[:, [j]] / weights.sum())
        begin += len(classes)
    slopes = np.hstack(slopes)
    ends = parts(net.partial_fit(X, NAMES, sample_weight=weights).weights_)
    for start, end, expected in zip((matrix, bias), ends, (WIDE.T @ slopes, slopes.sum(axis=0)), strict=True):
        assert_allclose((start - end) / RATE, expected, rtol=2e-3, atol=2e-5)


KINDS = {
    "numbers": (OrtGradientRegressor, NUMBERS, {"target_scaling": "auto"}),
    "distributions": (OrtGradientRegressor, NUMBERS, {"loss": "gaussian_nll"}),
    "quantiles": (OrtGradientRegressor, NUMBERS, {"loss": "quantiles"}),
    "labels": (OrtGradientClassifier, LABELS, {}),
    "balanced": (OrtGradientClassifier, LABELS, {"class_weight": "balanced"}),
    "names": (OrtGradientClassifier, NAMES, {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [MLP((6,)), TabM(n_members=2, hidden_layer_sizes=(8,))], ids=["net", "members"])
def test_weights_of_zero_and_one_are_missing_elements(kind, model):
    cls, y, more = KINDS[kind]
    mask = ~MISSING[:, : y.shape[1]]
    net = cls(model, max_iter=6, batch_size=16, random_state=0, **more)
    found = net.fit(X, y, mask.astype(float)).loss_curve_
    y_missing = np.where(mask, y, np.nan if y.dtype.kind != "U" else None)
    expected = net.fit(X, y_missing.astype(object) if y.dtype.kind == "U" else y_missing)
    assert_allclose(found, expected.loss_curve_, rtol=1e-6)
    assert net.score(X, y, mask.astype(float)) == pytest.approx(net.score(X, y_missing), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_alike_in_a_row_are_the_weight_of_the_row(kind):
    cls, y, more = KINDS[kind]
    net = cls(MLP((6,)), max_iter=6, batch_size=16, random_state=0, early_stopping=True, **more)
    wide = np.repeat(ROWS[:, None], y.shape[1], axis=1)
    found = net.fit(X, y, wide).history_
    expected = net.fit(X, y, ROWS).history_
    for name in ("loss", "validation_score"):
        assert_allclose([row[name] for row in found], [row[name] for row in expected], rtol=1e-5, err_msg=name)
    assert net.score(X, y, wide) == pytest.approx(net.score(X, y, ROWS), rel=1e-6)


@pytest.mark.parametrize("engine", available_engines())
def test_each_output_is_fitted_by_its_own_weights(engine):
    net = OrtGradientRegressor(Linear(), optimizer="lbfgs", alpha=0.0, max_iter=500, tol=1e-9, engine=engine)
    predicted = net.fit(X, pd.DataFrame(NUMBERS), pd.DataFrame(WEIGHTS)).predict(X)
    for j in range(K):
        expected = LinearRegression().fit(X, NUMBERS[:, j], WEIGHTS[:, j]).predict(X)
        assert_allclose(predicted[:, j], expected, rtol=2e-3, atol=2e-3)
        scale = net._state.decoding.target_scale
        mean = np.average(NUMBERS[:, j], weights=WEIGHTS[:, j])
        assert scale.center[j] == pytest.approx(mean)
        assert scale.scale[j] == pytest.approx(np.average((NUMBERS[:, j] - mean) ** 2, weights=WEIGHTS[:, j]) ** 0.5)


def test_scores_and_early_stopping_weigh_numbers():
    net = OrtGradientRegressor(
        MLP((6,)), early_stopping="best_epoch", learning_rate_init=0.05, max_iter=20, random_state=0
    )
    held = slice(25, None)
    net.fit(X[:25], NUMBERS[:25], WEIGHTS[:25], X_val=X[held], y_val=NUMBERS[held], sample_weight_val=WEIGHTS[held])
    predicted = net.predict(X[held])
    expected = np.mean([r2_score(NUMBERS[held, j], predicted[:, j], sample_weight=WEIGHTS[held, j]) for j in range(K)])
    assert net.best_validation_score_ == pytest.approx(expected, rel=1e-4)
    assert net.score(X[held], NUMBERS[held], WEIGHTS[held]) == pytest.approx(expected, rel=1e-4)


def test_validation_loss_and_scorers_weigh_labels():
    settings = {"max_iter": 3, "random_state": 0, "learning_rate_init": 0.05}
    data = {"X_val": X, "y_val": LABELS, "sample_weight_val": WEIGHTS}
    net = OrtGradientClassifier(MLP((6,)), scoring="neg_log_loss", early_stopping="best_epoch", **settings)
    found = net.fit(X, LABELS, **data).predict_proba(X)
    expected = -log_loss(LABELS.ravel(), found.ravel(), sample_weight=WEIGHTS.ravel())
    assert net.best_validation_score_ == pytest.approx(expected, rel=1e-4)
    net = OrtGradientClassifier(MLP((6,)), early_stopping="best_epoch", **settings).fit(X, LABELS, **data)
    right = ((net.predict(X) == LABELS) | (WEIGHTS == 0)).all(axis=1)
    rows = WEIGHTS.sum(axis=1) / np.maximum((WEIGHTS > 0).sum(axis=1), 1)
    assert net.best_validation_score_ == pytest.approx(np.average(right, weights=rows))
    assert net.score(X, LABELS, WEIGHTS) == pytest.approx(np.average(right, weights=rows))

    def last(estimator, X, y, sample_weight):
        seen.append(sample_weight)
        return 0.0

    seen = []
    OrtGradientClassifier(MLP((6,)), scoring=last, early_stopping="best_epoch", **settings).fit(X, LABELS, **data)
    kept = WEIGHTS.any(axis=1)
    assert_allclose(seen[0], WEIGHTS[kept], rtol=1e-12)


def test_calls_of_partial_fit_may_weigh_rows_or_elements():
    net = estimator("squared_error").initialize(X, NUMBERS)
    for weights in (None, WEIGHTS, ROWS, WEIGHTS):
        matrix, bias = parts(net.weights_)
        own = np.ones((N, K)) if weights is None else np.broadcast_to(weights.reshape(N, -1), (N, K))
        slopes = own / own.sum() * 2 * (WIDE @ matrix + bias - NUMBERS)
        end = parts(net.partial_fit(X, NUMBERS, weights).weights_)
        assert_allclose((matrix - end[0]) / RATE, WIDE.T @ slopes, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("other", [False, True], ids=["alone", "with labels"])
def test_outputs_of_a_graph_have_weights_by_element(engine, other):
    rows, targets = heads.data(N)
    names = ["numbers", "class"] if other else ["numbers"]
    losses = {"numbers": "squared_error", "class": "log_loss"}
    net = OrtGradientMultiOutput(
        heads.graph(names), loss={name: losses[name] for name in names}, optimizer=SGD(), learning_rate_init=0.0,
        max_iter=1, alpha=0.0, random_state=0, engine=engine,
    )  # fmt: skip
    y = {name: targets[name] for name in names}
    weights = WEIGHTS[:, : targets["numbers"].shape[1]]
    numbers = np.where(MISSING[:, 1:3], np.nan, y["numbers"])
    own = np.where(MISSING[:, 1:3], 0.0, weights)
    net.fit(rows, y | {"numbers": numbers}, {"numbers": weights})
    predicted = net.predict(rows)["numbers"]
    expected = np.sum(own * (predicted - y["numbers"]) ** 2) / own.sum()
    if other:
        shares = net.predict_proba(rows)["class"]
        expected += log_loss(y["class"], shares, labels=net.classes_["class"])
    assert net.loss_ == pytest.approx(expected, rel=1e-4)
    scores = [r2_score(y["numbers"][:, j], predicted[:, j], sample_weight=own[:, j]) for j in range(2)]
    found = net.output_scores(rows, y | {"numbers": numbers}, {"numbers": weights})
    assert found["numbers"] == pytest.approx(np.mean(scores), rel=1e-5)


class RowSum(Loss):
    """One loss for all numbers of a row."""

    tasks = frozenset({"regression"})

    def __call__(self, op, scores, y, link):
        return op.ReduceSum(op.Abs(op.Sub(scores, y)), axes=[1], keepdims=True)


@pytest.mark.parametrize(
    ("net", "y", "weights", "error", "match"),
    [
        (OrtGradientRegressor(Linear()), NUMBERS, WEIGHTS[:, :2], ValueError, r"expected \(40,\) or \(40, 3\)!"),
        (OrtGradientRegressor(Linear()), NUMBERS[:, 0], WEIGHTS, ValueError, r"\(40, 3\), expected \(40,\)!"),
        (OrtGradientRegressor(Linear()), NUMBERS[:, 0], WEIGHTS[:, :1], ValueError, r"\(40, 1\), expected \(40,\)!"),
        (OrtGradientRegressor(Linear()), NUMBERS, -WEIGHTS, ValueError, "Negative values"),
        (OrtGradientRegressor(Linear()), NUMBERS, WEIGHTS * [1, 0, 1], ValueError, "column 1 of y has no number"),
        (OrtGradientRegressor(Linear()), NUMBERS, WEIGHTS * 0, ValueError, "no number|sum of sample_weight is zero"),
        (OrtGradientRegressor(Linear(), loss=RowSum()), NUMBERS, WEIGHTS, ModelError, "one loss for all 3"),
        (OrtGradientRegressor(scoring="r2", early_stopping=True), NUMBERS, WEIGHTS, ValueError, "single labels"),
        (OrtGradientClassifier(Linear()), LABELS[:, 0], WEIGHTS, ValueError, r"expected \(40,\)!.*Only arrays y"),
        (RealMLPRegressor("td-s"), NUMBERS, WEIGHTS, ValueError, r"expected \(40,\)!.*Only arrays y"),
    ],
)  # fmt: skip
def test_other_weights_are_refused(net, y, weights, error, match):
    with pytest.raises(error, match=match):
        net.fit(X, y, sample_weight=weights)
    assert not hasattr(net, "n_iter_")


def test_tables_in_blocks_take_one_weight_a_row():
    pa = pytest.importorskip("pyarrow")
    columns = {f"x{i}": X[:, i] for i in range(4)} | {f"y{j}": NUMBERS[:, j] for j in range(K)} | {"w": ROWS, "v": ROWS}
    with pytest.raises((TypeError, ValueError), match="sample_weight"):
        OrtGradientRegressor(Linear()).fit(
            RowBlocks(pa.table(columns).to_reader, ["y0", "y1", "y2"], sample_weight=["w", "v", "w"], buffer_rows=16)
        )


class Source:
    """A source of a user's own, of two blocks."""

    def __init__(self, y, weights=None):
        self.y, self.weights, self.buffer_rows = y, weights, 10

    def __len__(self):
        return 2

    def block(self, i):
        rows = slice(20 * i, 20 * i + 20)
        return (X[rows], self.y[rows]) if self.weights is None else (X[rows], self.y[rows], self.weights[rows])


@pytest.mark.parametrize("late", [np.nan, -100])
def test_sources_refuse_weights_of_elements_and_missing_elements(late):
    net = OrtGradientClassifier(Linear(), max_iter=1, batch_size=8)
    labels = LABELS.astype(float)
    labels[39, 1] = late
    with pytest.raises(ValueError, match="Block 1: y lacks one of several labels"):
        net.fit(Source(labels))
    with pytest.raises(ValueError, match=r"Block 0: sample_weight.shape == \(20, 3\), expected \(20,\)!"):
        net.fit(Source(LABELS, WEIGHTS))
    assert not hasattr(net, "n_iter_")
    with pytest.raises(ValueError, match=r"sample_weight\.shape"):
        net.fit(X, LABELS).score(Source(LABELS, WEIGHTS))


@pytest.mark.parametrize("old", [False, True])
def test_fine_tuning_weighs_elements(old):
    rng = np.random.default_rng(3)
    rows, slopes = rng.normal(size=(300, 3)), rng.normal(size=(3, 2))
    model = LinearRegression().fit(rows, rows @ (slopes + 1))
    y, weights = rows @ slopes, np.ones((300, 2))
    wrong = rng.random((300, 2)) < 0.3
    y_wrong, weights[wrong] = np.where(wrong, 50.0, y), 0.0
    net = OrtGradientRegressor(model, random_state=0)
    if old:
        net.fit(rows[:40], y[:40], X_old=rows[40:], y_old=y_wrong[40:], sample_weight_old=weights[40:])
    else:
        net.fit(rows, y_wrong, weights)
    assert_allclose(net.predict(rows), y, atol=0.1)
