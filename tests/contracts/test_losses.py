"""What every loss in the registry must satisfy, on every engine: value, gradient, weights, extremes, conventions.

The references are written from the formulas in float64; gradients are compared with their central differences.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import scipy.special
import scipy.stats
from sklearn.base import clone
from sklearn.metrics import r2_score

from onnxtrain_sklearn import gradient_graph, losses
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import NEWEST_OPSET, each_engine

OPSETS = (11, 12, 13, 17, 18, 19, 20, *range(21, NEWEST_OPSET + 1))
COLUMNS = {"regression": (1, 3), "binary": (1,), "multiclass": (2, 4), "multilabel": (3,)}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "huber": [{"delta": 0.25}],
    "quantile": [{"quantile": 0.9}, {"quantile": 0.02}],
    "elastic": [{"l1_ratio": 0.0}, {"l1_ratio": 1.0}],
    "epsilon_insensitive": [{"epsilon": 0.0}, {"epsilon": 0.5, "squared": True}],
    "log_loss": [{"label_smoothing": 0.1}, {"label_smoothing": 0.75}],
    "focal": [{"gamma": 0.0}, {"gamma": 0.5}],
    "gaussian_nll": [{"min_scale": 0.5}],
    "laplace_nll": [{"min_scale": 0.5}],
    "negative_binomial": [{"min_dispersion": 0.5}],
    "gamma_nll": [{"min_dispersion": 0.5}],
    "quantiles": [{"quantiles": [0.5]}, {"quantiles": [0.02, 0.3, 0.5, 0.6]}],
    "tweedie": [{"power": 1.0}, {"power": 1.1}, {"power": 2}, {"power": 2.5}],
}


def margin(s, y):
    return np.where(y == 1, s, -s)


def log_softmax(s):
    return s - np.logaddexp.reduce(s, axis=1, keepdims=True)


def true_log_p(s, y, task):
    """The log probability of the true class, (N, 1), or of each true label, (N, k); and that of its complement."""
    if task != "multiclass":
        return -np.logaddexp(0, -margin(s, y)), -np.logaddexp(0, margin(s, y))
    log_p, true = log_softmax(s), np.argmax(y, axis=1)
    right = [row[t] for row, t in zip(log_p, true, strict=True)]
    wrong = [np.logaddexp.reduce(np.delete(row, t)) for row, t in zip(log_p, true, strict=True)]
    return np.array(right)[:, None], np.array(wrong)[:, None]


def log_loss(s, y, task, label_smoothing=0.0, targets="labels"):
    """The cross-entropy to targets that are spread over the classes, of which a sigmoid has two."""
    log_p = [log_softmax(s)] if task == "multiclass" else [-np.logaddexp(0, -s), -np.logaddexp(0, s)]
    true = [y] if task == "multiclass" else [y, 1 - y]
    k = s.shape[1] if task == "multiclass" else 2
    rows = -sum(((1 - label_smoothing) * t + label_smoothing / k) * p for t, p in zip(true, log_p, strict=True))
    return rows.sum(axis=1, keepdims=True) if task == "multiclass" else rows


def focal(s, y, task, gamma=2.0):
    right, wrong = true_log_p(s, y, task)
    return -np.exp(gamma * wrong) * right


def huber(s, y, task, delta=1.0):
    r = np.abs(s - y)
    return np.where(r <= delta, 0.5 * r * r, delta * (r - 0.5 * delta))


def epsilon_insensitive(s, y, task, epsilon=0.1, squared=False):
    beyond = np.maximum(np.abs(s - y) - epsilon, 0)
    return beyond**2 if squared else beyond


def modified_huber(s, y, task):
    z = margin(s, y)
    return np.select([z >= 1, z >= -1], [0.0, (1 - z) ** 2], -4 * z)


def log_cosh(s, y, task):
    return np.logaddexp(s - y, y - s) - np.log(2)


def tweedie(s, y, task, power=1.5):
    if power in (1, 2):
        return REFERENCES["poisson" if power == 1 else "gamma"](s, y, task)
    return np.exp((2 - power) * s) / (2 - power) - np.where(y == 0, 0.0, y * np.exp((1 - power) * s)) / (1 - power)


def gaussian_nll(s, y, task, min_scale=1e-3):
    k = y.shape[1]
    scale = np.logaddexp(0, s[:, k:]) + min_scale
    return -scipy.stats.norm.logpdf(y, s[:, :k], scale) - 0.5 * np.log(2 * np.pi)


def laplace_nll(s, y, task, min_scale=1e-3):
    k = y.shape[1]
    scale = np.logaddexp(0, s[:, k:]) + min_scale
    return np.log(scale) + np.abs(y - s[:, :k]) / scale


def negative_binomial(s, y, task, min_dispersion=1e-3):
    k = y.shape[1]
    log_mean, r = s[:, :k], 1 / (np.logaddexp(0, s[:, k:]) + min_dispersion)
    rows = scipy.special.gammaln(r) - scipy.special.gammaln(y + r) - r * np.log(r) - y * log_mean
    return rows + (y + r) * np.logaddexp(log_mean, np.log(r)) + scipy.special.xlogy(y, y) - y


def gamma_nll(s, y, task, min_dispersion=1e-3):
    columns = y.shape[1]
    log_mean, k = s[:, :columns], 1 / (np.logaddexp(0, s[:, columns:]) + min_dispersion)
    return k * (log_mean + y * np.exp(-log_mean) - np.log(y)) - k * np.log(k) + scipy.special.gammaln(k)


def values_of_quantiles(s, k, levels):
    """The quantiles of each target, (n, k, number of levels), from the median and the steps between neighbors."""
    middle, steps = levels.index(0.5), np.logaddexp(0, s[:, k:]).reshape(len(s), len(levels) - 1, k)
    values = np.zeros((len(levels), len(s), k))
    values[middle] = s[:, :k]
    for i in range(middle - 1, -1, -1):
        values[i] = values[i + 1] - steps[:, i]
    for i in range(middle + 1, len(levels)):
        values[i] = values[i - 1] + steps[:, i - 1]
    return values


def quantiles(s, y, task, quantiles=(0.1, 0.5, 0.9)):
    levels = list(quantiles)
    values = values_of_quantiles(s, y.shape[1], levels)
    pinball = [np.where(y > v, q * (y - v), (1 - q) * (v - y)) for q, v in zip(levels, values, strict=True)]
    return np.mean(pinball, axis=0)


def ordinal(s, y, task):
    """The negative logarithm of the product of the conditional probabilities up to the class."""
    if task == "binary":
        return np.logaddexp(0, -margin(s, y))
    log_beyond, log_stop = -np.logaddexp(0, -s), -np.logaddexp(0, s)
    rows = [row[:c].sum() + (stop[c] if c < len(stop) else 0.0)
            for row, stop, c in zip(log_beyond, log_stop, y.argmax(axis=1), strict=True)]  # fmt: skip
    return -np.array(rows)[:, None]


def dice(s, y, task):
    p = np.exp(log_softmax(s)) if task == "multiclass" else scipy.special.expit(s)
    overlap, total = (p * y).sum(axis=1), (p**2).sum(axis=1) + (y**2).sum(axis=1)
    return (1 - (2 * overlap + 1) / (total + 1))[:, None]


REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "gaussian_nll": gaussian_nll,
    "laplace_nll": laplace_nll,
    "negative_binomial": negative_binomial,
    "gamma_nll": gamma_nll,
    "quantiles": quantiles,
    "ordinal": ordinal,
    "dice": dice,
    "squared_error": lambda s, y, task: (s - y) ** 2,
    "reconstruction": lambda s, y, task: (s - y) ** 2,
    "absolute_error": lambda s, y, task: np.where(s > y, s - y, y - s),
    "huber": huber,
    "quantile": lambda s, y, task, quantile=0.5: np.where(y > s, quantile * (y - s), (1 - quantile) * (s - y)),
    "poisson": lambda s, y, task: np.exp(s) - y * s,
    "gamma": lambda s, y, task: s + y * np.exp(-s),
    "log_cosh": log_cosh,
    "elastic": lambda s, y, task, l1_ratio=0.5: l1_ratio * np.abs(s - y) + (1 - l1_ratio) * (s - y) ** 2,
    "epsilon_insensitive": epsilon_insensitive,
    "log_loss": log_loss,
    "hinge": lambda s, y, task: np.maximum(1 - margin(s, y), 0),
    "squared_hinge": lambda s, y, task: np.maximum(1 - margin(s, y), 0) ** 2,
    "modified_huber": modified_huber,
    "focal": focal,
    "tweedie": tweedie,
}


class LossCase:
    """One loss with its parameters on one task; ``id`` names it in the test report."""

    def __init__(self, name: str, parameters: dict[str, Any], task: Any) -> None:
        self.name, self.parameters, self.task = name, parameters, task
        self.loss = losses.LOSSES[name](**parameters)
        self.id = f"{self.loss!r}-{task}"

    def rows(self, s, y):
        return np.broadcast_to(REFERENCES[self.name](s, y, self.task, **self.parameters), y.shape)

    def n_scores(self, k):
        return self.loss.n_scores(self.task, k)

    def wide(self, locations):
        """Scores with these locations; further parameters, of losses that have some, are 0."""
        k = locations.shape[1]
        return np.hstack([locations, np.zeros((len(locations), max(0, self.n_scores(k) - k)))])[:, : self.n_scores(k)]

    def value(self, s, y, w):
        return w @ self.rows(s, y).mean(axis=1) / w.sum()

    def differences(self, s, y, w, *, left, right):
        """The slope from ``s - left`` to ``s + right``, a score at a time; rows do not meet, so all rows at once."""
        slopes = np.zeros_like(s)
        for j in range(s.shape[1]):
            step = np.eye(s.shape[1])[j]
            slopes[:, j] = (self.rows(s + right * step, y) - self.rows(s - left * step, y)).mean(axis=1)
        return slopes * w[:, None] / (w.sum() * (left + right))

    def sample(self, k, n=8, seed=0):
        rng = np.random.default_rng(seed)
        scores = 1.5 * rng.standard_normal((n, self.n_scores(k)))
        if self.task == "regression":
            y = rng.exponential(size=(n, k)) - (0.0 if self.loss.link("regression") == "exp" else 1.0)
        elif self.task == "multiclass":
            y = np.eye(k)[rng.integers(k, size=n)]
        else:
            y = rng.integers(2, size=(n, k))
        return single_row(scores), single_row(y), single_row(rng.uniform(0.5, 2, size=n))


def single_row(x):
    """Numbers of float32 as float64: the reference and the graph start from the same."""
    return np.asarray(x, np.float32).astype(np.float64)


OF_LABELS_OR_NUMBERS = {name: loss for name, loss in losses.LOSSES.items() if isinstance(loss().targets, str)}
"""Losses that declare no targets; test_losses_of_targets.py has the others."""

CASES = [
    LossCase(name, parameters, task)
    for name, loss in OF_LABELS_OR_NUMBERS.items()
    for task in sorted(loss.tasks)
    for parameters in [{}, *VARIANTS.get(name, [])]
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@cache
def loss_session(
    case: LossCase, n: int, n_scores: int, k: int, engine: str, opset: int
) -> onnxruntime.InferenceSession:
    shapes = {"scores": (n, n_scores), "y": (n, k), "sample_weight": (n,)}
    inputs = {name: ir.val(name, dtype=ir.DataType.FLOAT, shape=shape) for name, shape in shapes.items()}
    graph = ir.Graph(list(inputs.values()), [], nodes=[], opset_imports={"": opset}, name="loss")
    loss = losses.append_loss(GraphBuilder(graph), case.loss, link=case.loss.link(case.task), **inputs)
    loss.name, loss.dtype, loss.shape = "loss", ir.DataType.FLOAT, ir.Shape([])
    graph.outputs.append(loss)
    model = gradient_graph(ir.to_proto(ir.Model(graph, ir_version=8)), wrt=["scores"], of="loss", engine=engine)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_loss(case, scores, y, sample_weight, *, engine, opset=18):
    """The loss and its gradient with respect to the scores, from the gradient graph."""
    feeds = {"scores": scores, "y": y, "sample_weight": sample_weight}
    return loss_session(case, *scores.shape, np.shape(y)[1], engine, opset).run(
        ["loss", "scores_grad"], {name: np.asarray(x, np.float32) for name, x in feeds.items()}
    )


def assert_right(case, scores, y, sample_weight, *, step, tolerance=2e-5, **where):
    value, gradient = run_loss(case, scores, y, sample_weight, **where)
    expected = case.differences(scores, y, sample_weight, left=step, right=step)
    scale = np.abs(case.rows(scores, y)).max()
    np.testing.assert_allclose(value, case.value(scores, y, sample_weight), rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_every_loss_has_a_reference():
    assert set(REFERENCES) == set(OF_LABELS_OR_NUMBERS)


@each_engine
@each_case
@pytest.mark.each(by=lambda case, engine: (type(case.loss), case.task))
def test_value_and_gradient(case, engine):
    for k in COLUMNS[case.task]:
        assert_right(case, *case.sample(k), step=1e-6, engine=engine)


def cases_and_opsets():
    """Yield every loss in the oldest opset, in the newest one, and in a third of those between, which change."""
    oldest, *between, newest = (opset for opset in OPSETS if opset != 18)
    for i, case in enumerate(case for case in CASES if not case.parameters):
        for opset in (oldest, *between[i % 3 :: 3], newest):
            yield pytest.param(case, opset, id=f"{case.id}-{opset}")


@pytest.mark.thinned(by=lambda case, engine, opset: {(type(case.loss), engine), opset})
@each_engine
@pytest.mark.parametrize(("case", "opset"), cases_and_opsets())
def test_value_and_gradient_at_every_opset(case, engine, opset):
    assert_right(case, *case.sample(COLUMNS[case.task][-1]), step=1e-6, engine=engine, opset=opset)


def kinks(case, k):
    """Rows whose residuals, or scores, lie on and around the points where some loss has a kink."""
    offsets = np.array([-2, -1, -0.25, 0, 0.25, 1, 2, 0])
    if case.task == "regression":
        y = np.tile([[0.5], [2.0]], (4, k))
        return case.wide(y + offsets[:, None]), y
    y = np.eye(k)[np.arange(8) % k] if case.task == "multiclass" else np.tile([[0.0], [1.0]], (4, k))
    return np.repeat(offsets[:, None], case.n_scores(k), axis=1), y


@each_engine
@each_case
def test_subgradient_at_kinks_and_at_zero(case, engine):
    for k in COLUMNS[case.task]:
        scores, y = kinks(case, k)
        w, h = np.ones(len(y)), 1e-6
        gradient = run_loss(case, scores, y, w, engine=engine)[1]
        left, right = (case.differences(scores, y, w, left=a, right=b) for a, b in ((h, 0), (0, h)))
        tolerance = 2e-5 * max(np.abs(left).max(), np.abs(right).max())
        assert np.all(gradient >= np.minimum(left, right) - tolerance)
        assert np.all(gradient <= np.maximum(left, right) + tolerance)


@each_engine
@each_case
def test_extreme_scores(case, engine):
    k = 2 if case.task == "multiclass" else 1
    targets = {"regression": [[1.0], [3.0]], "multiclass": np.eye(2)}.get(case.task, [[0.0], [1.0]])
    scores = np.array(list(product((-1e4, -90, 0.5, 90, 1e4), repeat=case.n_scores(k))))
    scores, y = np.tile(scores, (2, 1)), np.repeat(targets, len(scores), axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(case.rows(scores, y).astype(np.float32)).all(axis=1)
    assert finite.mean() >= 0.5
    assert_right(case, scores[finite], y[finite], np.ones(finite.sum()), step=1e-3, engine=engine)


def takes_zero(case):
    try:
        case.loss.check_targets(np.zeros((1, 1)))
    except ValueError:
        return False
    return case.task == "regression"


@each_engine
@pytest.mark.parametrize("case", filter(takes_zero, CASES), ids=lambda case: case.id)
def test_targets_of_zero(case, engine):
    scores = np.array([[-1e4], [-200.0], [-0.6], [0.4], [30.0]])
    with np.errstate(over="ignore", invalid="ignore"):
        assert_right(case, case.wide(scores), 0 * scores, np.ones(len(scores)), step=1e-3, engine=engine)


@each_engine
@each_case
def test_weights_repeat_rows(case, engine):
    times = np.array([1, 2, 0, 3, 1, 0, 0, 1])
    scores, y, _ = case.sample(COLUMNS[case.task][-1])
    rows = np.repeat(np.arange(8), times)
    value, gradient = run_loss(case, scores, y, times, engine=engine)
    repeated, gradients = run_loss(case, scores[rows], y[rows], np.ones(8), engine=engine)
    np.testing.assert_allclose(value, repeated, rtol=1e-6, atol=1e-7)
    sums = np.array([gradients[rows == i].sum(axis=0) for i in range(8)])
    np.testing.assert_allclose(gradient, sums, rtol=1e-5, atol=1e-6 * np.abs(sums).max())


@each_engine
@each_case
def test_scale_of_the_weights_does_not_matter(case, engine):
    scores, y, w = case.sample(COLUMNS[case.task][-1])
    value, gradient = run_loss(case, scores, y, w, engine=engine)
    for scale in (1e-3, 1e3):
        scaled, gradients = run_loss(case, scores, y, w * scale, engine=engine)
        np.testing.assert_allclose(scaled, value, rtol=1e-5)
        np.testing.assert_allclose(gradients, gradient, rtol=1e-5, atol=1e-7)


@each_engine
@each_case
@pytest.mark.parametrize("sign", [-1, 1])
def test_rows_of_weight_zero_change_nothing(case, engine, sign):
    k, empty = COLUMNS[case.task][-1], [3, 6]
    scores, y, w = case.sample(k)
    w[empty] = 0
    expected = run_loss(case, scores, y, w, engine=engine)
    huge = 3e38 if case.loss.link(case.task) == "exp" else 1e15
    scores[empty] = sign * huge * np.resize([1, -1], scores.shape[1])
    y[empty] = [[0.0], [-huge if case.task == "regression" else 1.0]]
    value, gradient = run_loss(case, scores, y, w, engine=engine)
    assert value == expected[0]
    np.testing.assert_array_equal(gradient, expected[1])
    np.testing.assert_array_equal(gradient[empty], 0)


@each_engine
@each_case
def test_all_weights_zero(case, engine):
    scores, y, w = case.sample(COLUMNS[case.task][-1])
    value, gradient = run_loss(case, scores, y, 0 * w, engine=engine)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@each_case
def test_scikit_learn_conventions(case):
    loss = case.loss
    assert loss.get_params().items() >= case.parameters.items()
    for copy in (clone(loss), pickle.loads(pickle.dumps(loss)), eval(repr(loss), vars(losses))):
        assert type(copy) is type(loss)
        assert copy is not loss
        assert copy.get_params() == loss.get_params()
    assert type(loss)().set_params(**case.parameters).get_params() == loss.get_params()


@each_case
def test_default_and_variant_parameters_are_valid(case):
    case.loss.validate()
    assert losses.resolve_loss(case.loss) is case.loss


@each_case
def test_link_is_in_the_table(case):
    assert case.loss.link(case.task) in losses.LINKS


@pytest.mark.parametrize("loss", losses.LOSSES.values())
def test_class_is_public(loss):
    assert getattr(losses, loss.__name__) is loss


OF_NUMBERS = [case for case in CASES if case.task == "regression"]


@pytest.mark.parametrize("case", OF_NUMBERS, ids=lambda case: case.id)
def test_only_losses_that_order_predictions_as_r2_does_are_judged_by_it(case):
    """Of any two predictions the one of the lower loss has the higher R²: so it is for the squared error alone."""
    rng = np.random.default_rng(0)
    y = rng.exponential(size=(50, 1)) + 0.1
    scores = [y + size * rng.standard_t(2, size=(50, 1)) for size in np.linspace(0.1, 2, 40)]
    wide = [case.wide(s) for s in scores]
    for s in wide:
        s[:, 1:] = rng.normal()
    errors = [case.rows(s, y).mean() for s in wide]
    predictions = [np.exp(s) if case.loss.link("regression") == "exp" else s for s in scores]
    order = np.argsort([r2_score(y, p) for p in predictions])[::-1]
    agrees = np.array_equal(np.argsort(errors), order)
    assert agrees == (case.loss.judged_by == "score" or case.loss.get_params() == {"l1_ratio": 0.0})
