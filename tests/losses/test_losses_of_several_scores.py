"""Losses that take another number of scores than of targets: what they learn, on every engine, and what they refuse."""

from __future__ import annotations

import pickle

import numpy as np
import onnx_ir as ir
import onnxruntime
import pandas as pd
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from onnxtrain_sklearn import (
    MLP,
    ConvNet,
    FineTuner,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPRegressor,
    RowBlocks,
    TabM,
)
from onnxtrain_sklearn.graph import GraphBuilder
from onnxtrain_sklearn.losses import LOSSES, GaussianNLL, LaplaceNLL, LogLoss, Quantiles
from tests.helpers.environment import each_engine
from tests.helpers.selection import one_case
from tests.helpers.training_graphs import SETTINGS, goes_on

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
GROUP = np.repeat(np.arange(3), 41)
GROUPS = np.eye(3, dtype=np.float32)[GROUP]
Y = RNG.gamma(2.0, size=123) * np.array([1.0, 2.0, 5.0])[GROUP]
EXACT = {"optimizer": "lbfgs", "max_iter": 500, "tol": 1e-10, "alpha": 0.0, "random_state": 0}
X = RNG.normal(size=(90, 3)).astype(np.float32)
STARS = np.clip(np.round(X @ [1.0, -0.5, 0.3] + RNG.normal(0, 0.7, 90)), -1, 2).astype(int)


def by_group(function, y=Y):
    """The values of a function of the targets of each group, in the rows of the group."""
    return np.array([function(y[g == GROUP]) for g in range(3)])[GROUP]


def regressor(loss, **parameters):
    return OrtGradientRegressor(**{"model": Linear(fit_intercept=False), "loss": loss, **EXACT, **parameters})


@each_engine
@pytest.mark.parametrize(("center", "unit"), [(0.0, 1.0), (5e3, 1e3), (-1e-3, 1e-4)])
def test_gaussian_nll_learns_mean_and_deviation_of_each_group(engine, center, unit):
    y = unit * Y + center
    model = Linear(fit_intercept=True)
    net = regressor("gaussian_nll", engine=engine, model=model).fit(GROUPS, y)
    scale = np.std(y)  # of the targets that are trained on
    assert_allclose(net.predict(GROUPS), by_group(np.mean, y), atol=2e-3 * scale)
    deviation = by_group(np.std, y) / scale
    assert_allclose(net.loss_, np.mean(np.log(deviation) + 0.5), atol=1e-4)


@each_engine
def test_laplace_nll_learns_median_and_mean_deviation_of_each_group(engine):
    net = OrtGradientRegressor(
        Linear(), loss="laplace_nll", learning_rate_init=0.05, max_iter=800, tol=0, n_iter_no_change=800, alpha=0.0,
        learning_rate="cosine", engine=engine, random_state=0,
    ).fit(GROUPS, Y)  # fmt: skip
    medians = by_group(np.median)
    assert_allclose(net.predict(GROUPS), medians, atol=0.02 * Y.std())
    spread = by_group(lambda own: np.abs(own - np.median(own)).mean()) / Y.std()
    assert_allclose(net.loss_, np.mean(np.log(spread) + 1), atol=2e-3)


@each_engine
def test_quantiles_are_those_of_each_group_and_do_not_cross(engine):
    levels = [0.1, 0.25, 0.5, 0.9]
    net = OrtGradientRegressor(
        Linear(), loss=Quantiles(levels), learning_rate_init=0.05, max_iter=800, tol=0, n_iter_no_change=800, alpha=0.0,
        learning_rate="cosine", engine=engine, random_state=0,
    ).fit(GROUPS, Y)  # fmt: skip
    assert_allclose(net.predict(GROUPS), by_group(np.median), atol=0.03 * Y.std())

    def least(own):
        values = [np.quantile(own, q, method="inverted_cdf") for q in levels]
        return np.mean(
            [np.maximum(q * (own - v), (q - 1) * (own - v)).mean() for q, v in zip(levels, values, strict=True)]
        )

    assert_allclose(net.loss_, by_group(least).mean() / Y.std(), rtol=1e-3)


@each_engine
def test_negative_binomial_learns_mean_and_dispersion_of_each_group(engine):
    counts = np.round(4 * Y)
    net = regressor("negative_binomial", engine=engine).fit(GROUPS, counts)
    least = []
    for own in (counts[g == GROUP] for g in range(3)):

        def loss(p, own=own):
            r, mean = np.exp(p)
            return -scipy.stats.nbinom.logpmf(own, r, r / (r + mean)).mean()

        found = scipy.optimize.minimize(loss, np.log([1.0, own.mean()]), method="Nelder-Mead", tol=1e-10)
        assert_allclose(np.exp(found.x[1]), own.mean(), rtol=1e-4)
        left_out = scipy.special.gammaln(own + 1) - scipy.special.xlogy(own, own) + own  # by the loss: of y alone
        least.append(found.fun - left_out.mean())
    assert_allclose(net.loss_, np.mean(least), rtol=1e-4)
    assert_allclose(net.predict(GROUPS), by_group(np.mean, counts), rtol=2e-3)


@pytest.mark.parametrize("mean", [0.02, 3.0, 1e3, 1e5])
def test_negative_binomial_is_right_for_counts_of_any_size(mean):
    counts = scipy.stats.nbinom.rvs(2, 2 / (2 + mean), size=50, random_state=0).astype(float)
    scores = np.column_stack([np.full(50, np.log(mean)), np.linspace(-8, 8, 50)]).astype(np.float32)
    r = 1 / (np.logaddexp(0, scores[:, 1].astype(float)) + 1e-3)
    share = r / (r + np.exp(scores[:, 0].astype(float)))
    left_out = scipy.special.gammaln(counts + 1) - scipy.special.xlogy(counts, counts) + counts
    expected = -scipy.stats.nbinom.logpmf(counts, r, share) - left_out
    shapes = {"scores": (50, 2), "y": (50, 1)}
    inputs = {name: ir.val(name, ir.DataType.FLOAT, shape) for name, shape in shapes.items()}
    op = GraphBuilder(ir.Graph(list(inputs.values()), [], nodes=[], opset_imports={"": 18}, name="loss"))
    rows = LOSSES["negative_binomial"]()(op, inputs["scores"], inputs["y"], "exp")
    rows.name, rows.dtype, rows.shape = "rows", ir.DataType.FLOAT, ir.Shape([50, 1])
    op.graph.outputs.append(rows)
    graph = ir.to_proto(ir.Model(op.graph, ir_version=8)).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"scores": scores, "y": counts[:, None].astype(np.float32)})
    assert (np.abs(found[:, 0] - expected) <= 1e-5 + 1e-6 * (counts + r + np.abs(expected))).all()


def test_several_targets_have_scores_in_blocks():
    both = np.column_stack([Y, -3 * Y + RNG.normal(size=123)])
    net = regressor("gaussian_nll", model=Linear()).fit(GROUPS, both)
    assert net.predict(GROUPS).shape == (123, 2)
    assert net.n_outputs_ == 2
    assert sorted(w.shape for w in net.weights_.values()) == [(3, 4), (4,)]
    for j in range(2):
        assert_allclose(net.predict(GROUPS)[:, j], by_group(np.mean, both[:, j]), atol=5e-3 * both[:, j].std())
    assert_allclose(net.coef_ @ GROUPS.T.astype(float) + net.intercept_[:, None], net.predict(GROUPS).T, rtol=1e-4)


def test_weights_and_constant_targets():
    weights = RNG.integers(0, 4, 123)
    rows = np.repeat(np.arange(123), weights)
    weighted = regressor("gaussian_nll", model=Linear()).fit(GROUPS, Y, sample_weight=weights)
    repeated = regressor("gaussian_nll", model=Linear()).fit(GROUPS[rows], Y[rows])
    assert_allclose(weighted.predict(GROUPS), repeated.predict(GROUPS), rtol=1e-3)
    assert_array_equal(regressor("gaussian_nll", model=Linear()).fit(GROUPS, np.full(123, 7.5)).predict(GROUPS), 7.5)


@pytest.mark.parametrize("name", ["gaussian_nll", "laplace_nll", "quantiles"])
def test_early_stopping_judges_by_the_loss_and_export_predicts_the_same(name):
    X, held = RNG.normal(size=(200, 4)), slice(150, None)
    y = 100 + 20 * X[:, 0] + 10 * np.exp(X[:, 1]) * RNG.normal(size=200)
    settings = {"model": Linear(), "optimizer": "adam", "max_iter": 40, "early_stopping": True, "tol": 0.0}
    net = regressor(name, **settings | {"learning_rate_init": 0.05, "n_iter_no_change": 40})
    net.fit(X[:150], y[:150], X_val=X[held], y_val=y[held])
    scores = X[held].astype(np.float32) @ net.weights_["weight"].astype(float) + net.weights_["bias"]
    rows = (y[held] - y[:150].mean()) / y[:150].std()
    first, second = scores[:, 0], np.logaddexp(0, scores[:, 1])
    if name == "quantiles":
        values = {0.1: first - second, 0.5: first, 0.9: first + np.logaddexp(0, scores[:, 2])}
        expected = np.mean([np.maximum(q * (rows - v), (q - 1) * (rows - v)) for q, v in values.items()])
    else:
        residual, scale = np.abs(rows - first), second + 1e-3
        power = {"gaussian_nll": 0.5 * (residual / scale) ** 2, "laplace_nll": residual / scale}[name]
        expected = np.mean(np.log(scale) + power)
    assert_allclose(min(row["validation_loss"] for row in net.history_), expected, rtol=1e-4)
    assert_allclose(net.predict(X), X @ (net.weights_["weight"][:, 0] * y[:150].std())
                    + net.weights_["bias"][0] * y[:150].std() + y[:150].mean(), rtol=1e-4)  # fmt: skip
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    exported, _ = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
    assert_allclose(exported.ravel(), net.predict(X.astype(np.float32)), rtol=1e-6)
    again = pickle.loads(pickle.dumps(net))
    assert_array_equal(again.predict(X), net.predict(X))
    more = [one.set_params(early_stopping=False).partial_fit(X, y).predict(X) for one in (again, net)]
    assert_allclose(*more, rtol=1e-5)


def ordinal_log_p(scores):
    """Log-probabilities by the chain rule, a class at a time."""
    stop, on = np.log(scipy.special.expit(-scores)), np.log(scipy.special.expit(scores))
    columns = [on[:, :c].sum(axis=1) + (stop[:, c] if c < scores.shape[1] else 0) for c in range(scores.shape[1] + 1)]
    return np.column_stack(columns)


@each_engine
def test_ordinal_minimum_is_that_of_scipy(engine):
    classes, y = np.unique(STARS, return_inverse=True)
    rows = np.hstack([X, np.ones((90, 1))]).astype(float)

    def loss(flat):
        return -ordinal_log_p(rows @ flat.reshape(4, 3))[np.arange(90), y].mean()

    found = scipy.optimize.minimize(loss, np.zeros(12), tol=1e-10)
    net = OrtGradientClassifier(Linear(), loss="ordinal", engine=engine, **EXACT).fit(X, STARS)
    assert_allclose(net.loss_, found.fun, rtol=1e-5)
    expected = ordinal_log_p(rows @ found.x.reshape(4, 3))
    assert_allclose(net.predict_proba(X), np.exp(expected), atol=2e-3)
    assert_array_equal(net.classes_, classes)
    assert_array_equal(net.predict(X), classes[net.predict_proba(X).argmax(axis=1)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ordinal_probabilities_scores_and_export_agree(dtype):
    rows = X.astype(dtype)
    net = OrtGradientClassifier(Linear(), loss="ordinal", max_iter=30, learning_rate_init=0.1, random_state=0)
    net.fit(rows, STARS)
    p, decision = net.predict_proba(rows), net.decision_function(rows)
    assert p.shape == decision.shape == (90, 4)
    assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
    assert_allclose(np.exp(decision), p, atol=1e-6)
    scores = rows @ net.weights_["weight"].astype(float) + net.weights_["bias"]
    assert_allclose(decision, ordinal_log_p(scores), rtol=1e-4, atol=1e-5)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    label, exported = session.run(None, {session.get_inputs()[0].name: rows.astype(np.float32)})
    assert_array_equal(label, net.predict(rows))
    assert_allclose(exported, p, atol=1e-6)
    raw = net.to_onnx(raw_scores=True)
    session = onnxruntime.InferenceSession(raw.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(None, {session.get_inputs()[0].name: rows.astype(np.float32)})[1], decision, rtol=1e-4)


def test_ordinal_of_two_classes_is_log_loss():
    two = (STARS > 0).astype(int)
    ordinal, log_loss = (
        OrtGradientClassifier(Linear(), loss=name, **EXACT).fit(X, two) for name in ("ordinal", "log_loss")
    )
    assert_allclose(ordinal.predict_proba(X), log_loss.predict_proba(X), atol=1e-6)


def test_ordinal_early_stopping_watches_its_loss():
    net = OrtGradientClassifier(Linear(), loss="ordinal", early_stopping=True, max_iter=20, random_state=0)
    net.fit(X[:60], STARS[:60], X_val=X[60:], y_val=STARS[60:], classes=np.unique(STARS))
    p = net.predict_proba(X[60:])[np.arange(30), STARS[60:] + 1]
    assert_allclose(min(row["validation_loss"] for row in net.history_), -np.log(p).mean(), rtol=1e-5)


def test_given_graphs_must_have_as_many_scores_as_the_loss_takes():
    graph = Linear().build(n_features=3, n_outputs=3, random_state=0)
    net = OrtGradientClassifier(graph, loss="ordinal", max_iter=50, learning_rate_init=0.1).fit(X, STARS)
    assert net.predict_proba(X).shape == (90, 4)
    assert net.score(X, STARS) > 0.4
    with pytest.raises(ValueError, match="takes 3 scores for y with 4 classes, but the graph's output has 4"):
        OrtGradientClassifier(Linear().build(3, 4, random_state=0), loss="ordinal").fit(X, STARS)
    with pytest.raises(ValueError, match=r"takes 1 score\(s\) for these labels, but the graph's output has 2"):
        OrtGradientClassifier(Linear().build(3, 2, random_state=0), loss="ordinal").fit(X, STARS > 0)
    two = Linear().build(n_features=3, n_outputs=2, random_state=0)
    net = OrtGradientRegressor(two, loss="gaussian_nll", max_iter=50, learning_rate_init=0.1).fit(X, X[:, 0])
    assert net.score(X, X[:, 0]) > 0.5
    with pytest.raises(ValueError, match="takes 2 scores for y with 1 column"):
        OrtGradientRegressor(Linear().build(3, 1, random_state=0), loss="gaussian_nll").fit(X, X[:, 0])


@pytest.mark.long
def test_new_head_has_as_many_scores_as_the_loss_takes():
    body = MLP((8,)).build(n_features=3, n_outputs=1, random_state=0)
    settings = {"finetune": FineTuner(new_head=True), "random_state": 0}
    net = OrtGradientClassifier(body, loss="ordinal", **settings).fit(X, STARS)
    assert net.predict_proba(X).shape == (90, 4)


def test_ensembles_average_what_the_members_predict():
    from onnxtrain_sklearn import TabM

    net = OrtGradientClassifier(TabM(n_members=3, hidden_layer_sizes=(8,)), loss="ordinal", max_iter=5, random_state=0)
    net.fit(X, STARS)
    p = net.predict_proba(X)
    assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    assert_allclose(np.exp(net.decision_function(X)), p, atol=1e-5)
    assert net.score(X, STARS) > 0.3
    y = 1e3 * X[:, 0] + 7e4
    both = OrtGradientRegressor(TabM(n_members=3, hidden_layer_sizes=(8,)), loss="gaussian_nll", max_iter=60,
                                learning_rate_init=0.02, random_state=0).fit(X, y)  # fmt: skip
    assert both.score(X, y) > 0.7


@pytest.mark.parametrize("name", ["gaussian_nll", "quantiles", "ordinal"])
def test_training_graphs_go_on_as_the_estimator(name, tmp_path):
    classifies = name == "ordinal"
    kind = OrtGradientClassifier if classifies else OrtGradientRegressor
    goes_on(kind(MLP((4,)), loss=name, **SETTINGS), X, STARS if classifies else 5e3 + 1e2 * X[:, 0], tmp_path)


@one_case
@pytest.mark.long
@pytest.mark.parametrize("name", ["gaussian_nll", "ordinal"])
def test_tables_read_in_blocks_train_as_rows_in_memory(name, tmp_path):
    pytest.importorskip("pyarrow")
    rows = RNG.normal(size=(2000, 2))
    table = pd.DataFrame(rows, columns=["a", "b"])
    numbers = 5e3 + 1e2 * rows[:, 0] + 10 * RNG.normal(size=2000)
    table["y"] = np.clip(np.round(rows[:, 0]), -1, 2).astype(int) if name == "ordinal" else numbers
    table.to_parquet(tmp_path / "table.parquet", row_group_size=250)
    kind = OrtGradientClassifier if name == "ordinal" else OrtGradientRegressor
    net = kind(Linear(), loss=name, max_iter=20, learning_rate_init=0.05, batch_size=50, random_state=0)
    whole = clone(net).fit(table[["a", "b"]], table["y"])
    blocks = clone(net).fit(RowBlocks(tmp_path / "table.parquet", "y", buffer_rows=600))
    assert_allclose(blocks.loss_, whole.loss_, atol=0.03)
    assert blocks.score(table[["a", "b"]], table["y"]) > 0.95
    if name == "ordinal":
        soft = clone(net).set_params(loss=LogLoss(targets="counts"))
        with pytest.raises(ValueError, match="not on soft labels"):
            soft.fit(RowBlocks(tmp_path / "table.parquet", ["a", "b"], buffer_rows=600))


def test_dice_loss_is_that_of_the_probabilities():
    labels = (X @ RNG.normal(size=(3, 4)) + 3 * RNG.normal(size=(90, 4)) > 3).astype(int)  # few, hard to predict
    settings = {"batch_size": 90, "max_iter": 200, "learning_rate_init": 0.1, "alpha": 0.0, "random_state": 0}
    net = OrtGradientClassifier(Linear(), loss="dice", **settings).fit(X, labels)

    def dice(p):
        return np.mean(1 - (2 * (p * labels).sum(1) + 1) / ((p**2).sum(1) + labels.sum(1) + 1))

    assert_allclose(net.loss_, dice(net.predict_proba(X)), rtol=5e-3)
    log_loss = OrtGradientClassifier(Linear(), **settings).fit(X, labels)
    assert dice(net.predict_proba(X)) < dice(log_loss.predict_proba(X)) - 0.001


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="alphabetical order"):
        OrtGradientClassifier(loss="ordinal").fit(X, np.array(["low", "mid", "top", "no"])[STARS + 1])
    with pytest.raises(ValueError, match="not for multilabel targets"):
        OrtGradientClassifier(loss="ordinal").fit(X, np.eye(2, dtype=int)[RNG.integers(2, size=90)] * 1)
    with pytest.raises(ValueError, match="several columns of labels"):
        OrtGradientClassifier(loss="ordinal").fit(X, np.column_stack([STARS, STARS + 5]))
    with pytest.raises(ValueError, match=r"takes y of shape .*, not rows of shape \(2, 2\)"):
        OrtGradientRegressor(loss="gaussian_nll").fit(X, np.zeros((90, 2, 2)))
    graph = Linear().build(n_features=3, n_outputs=2, random_state=0)
    name = graph.graph.output[0].name
    with pytest.raises(ValueError, match="takes another number of scores"):
        OrtGradientMultiOutput(graph, loss={name: "gaussian_nll"}).fit(X, {name: X[:, 0]})
    with pytest.raises(ValueError, match="takes 2 scores"):
        OrtGradientRegressor(LinearRegression().fit(X, X[:, 0]), loss="gaussian_nll").fit(X, X[:, 0])
    net = OrtGradientRegressor(max_iter=1).partial_fit(X, X[:, 0])
    with pytest.raises(ValueError, match="takes 2 scores"):
        net.set_params(loss="gaussian_nll").partial_fit(X, X[:, 0])
    for wrong in ([0.1, 0.9], [0.5, 0.1], [0.0, 0.5], 0.5, "0.5", [0.5, 0.5]):
        with pytest.raises(ValueError, match="increasing floats"):
            OrtGradientRegressor(loss=Quantiles(wrong)).fit(X, X[:, 0])


def test_losses_of_location_and_scale_are_likelihoods():
    assert LOSSES["gaussian_nll"] is GaussianNLL
    assert GaussianNLL().n_scores("regression", 3) == LaplaceNLL().n_scores("regression", 3) == 6
    assert Quantiles([0.2, 0.5]).n_scores("regression", 3) == 6
    assert LOSSES["ordinal"]().n_scores("multiclass", 5) == 4


@pytest.mark.parametrize(
    "builder", [Linear(), MLP((8,), initialization="zeros"), ConvNet(initialization="zeros"), TabM()]
)
def test_networks_of_counts_start_at_the_weighted_mean(builder):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1, 8, 8) if isinstance(builder, ConvNet) else (60, 3)).astype(np.float32)
    counts, weights = rng.poisson((400, 3), (60, 2)), rng.uniform(0.5, 2, 60)
    net = regressor("negative_binomial", model=builder).initialize(X, counts, sample_weight=weights)
    mean = np.average(counts, axis=0, weights=weights)
    if isinstance(builder, TabM):  # its weights have no zeros to start from
        assert np.allclose(net.weights_["heads.bias"][..., :2].mean(axis=(0, 1)), np.log(mean), atol=0.1)
    else:
        assert np.allclose(net.predict(X), mean, rtol=1e-5)
    plain = regressor("negative_binomial", model=Linear(), target_scaling=None).initialize(GROUPS, GROUP + 5)
    assert np.array_equal(plain.predict(GROUPS), np.ones(len(GROUPS)))


@pytest.mark.parametrize("recipe", [None, RealMLPRegressor])
def test_large_counts_are_learned_by_default(recipe):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    mean = np.exp(6 + X[:, 0] / 2)
    counts = rng.negative_binomial(20, 20 / (20 + mean))
    kind = OrtGradientRegressor if recipe is None else recipe
    settings = {} if recipe is RealMLPRegressor else {"max_iter": 60}
    net = kind(loss="negative_binomial", random_state=0, **settings).fit(X, counts)
    assert np.abs(np.log(net.predict(X)) - np.log(mean)).mean() < 0.12
