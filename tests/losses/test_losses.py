"""Losses one by one: numbers worked out by hand, scikit-learn's definitions, links, messages, a loss of one's own."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from sklearn import metrics
from sklearn._loss import loss as sklearn_loss
from sklearn.linear_model import SGDClassifier

from onnxtrain_sklearn import Linear, OrtGradientClassifier, gradient_graph, losses
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import available_engines

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((20, 3)).astype(np.float32)
LABELS = RNG.integers(3, size=20)
ONE_HOT = np.eye(3, dtype=np.float32)[LABELS]
SIGNS = (RNG.integers(2, size=(20, 1))).astype(np.float32)
AMOUNTS = RNG.gamma(2.0, size=(20, 1)).astype(np.float32) + 0.01
WEIGHTS = RNG.uniform(0.5, 2.0, size=20).astype(np.float32)


def run_expression(model: Any, **feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(x, np.float32) for name, x in feeds.items()})


def begin(opset: int = 18, **shapes: tuple[int, ...]) -> tuple[GraphBuilder, dict[str, ir.Value]]:
    inputs = {name: ir.val(name, dtype=ir.DataType.FLOAT, shape=shape) for name, shape in shapes.items()}
    graph = ir.Graph(list(inputs.values()), [], nodes=[], opset_imports={"": opset}, name="test")
    return GraphBuilder(graph), inputs


def finish(op: GraphBuilder, output: ir.Value, name: str, *shape: int) -> Any:
    output.name, output.dtype, output.shape = name, ir.DataType.FLOAT, ir.Shape(shape)
    op.graph.outputs.append(output)
    return ir.to_proto(ir.Model(op.graph, ir_version=8))


def loss_model(loss: losses.Loss, n: int, k: int, task: Any):
    op, inputs = begin(scores=(n, k), y=(n, k), sample_weight=(n,))
    return finish(op, losses.append_loss(op, loss, link=loss.link(task), **inputs), "loss")


def value(loss, scores, y, task="regression", sample_weight=None) -> float:
    w = np.ones(len(scores)) if sample_weight is None else sample_weight
    n, k = np.shape(scores)
    return run_expression(loss_model(loss, n, k, task), scores=scores, y=y, sample_weight=w)[0].item()


@pytest.mark.parametrize(
    ("loss", "score", "y", "expected"),
    [
        (losses.SquaredError(), 3, 1, 4),
        (losses.AbsoluteError(), 1, 3, 2),
        (losses.Huber(), 1.5, 1, 0.125),
        (losses.Huber(), 4, 1, 2.5),
        (losses.Huber(delta=2), -4, 1, 8),
        (losses.Quantile(), 1, 3, 1),
        (losses.Quantile(0.9), 1, 3, 1.8),
        (losses.Quantile(0.9), 3, 1, 0.2),
        (losses.Poisson(), 0, 2, 1),
        (losses.Poisson(), 1, 2, np.e - 2),
        (losses.Gamma(), 0, 2, 2),
        (losses.Gamma(), np.log(2), 2, np.log(2) + 1),
        (losses.LogCosh(), 1, 1, 0),
        (losses.LogCosh(), 2, 1, 0.4337808304830271),
        (losses.Elastic(), 3, 1, 3),
        (losses.Elastic(l1_ratio=0.25), 1, 3, 3.5),
    ],
    ids=repr,
)
def test_hand_computed_regression(loss, score, y, expected):
    assert value(loss, [[score]], [[y]]) == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize(
    ("loss", "score", "y", "expected"),
    [
        (losses.LogLoss(), 0, 1, np.log(2)),
        (losses.LogLoss(), np.log(3), 1, np.log(4 / 3)),
        (losses.LogLoss(), np.log(3), 0, np.log(4)),
        (losses.LogLoss(label_smoothing=0.2), np.log(3), 1, 0.9 * np.log(4 / 3) + 0.1 * np.log(4)),
        (losses.Hinge(), 0.25, 1, 0.75),
        (losses.Hinge(), 0.25, 0, 1.25),
        (losses.Hinge(), -2, 0, 0),
        (losses.SquaredHinge(), 0.5, 0, 2.25),
        (losses.ModifiedHuber(), 2, 1, 0),
        (losses.ModifiedHuber(), 0.5, 1, 0.25),
        (losses.ModifiedHuber(), 3, 0, 12),
        (losses.Focal(), np.log(3), 1, np.log(4 / 3) / 16),
        (losses.Focal(gamma=1), np.log(3), 0, np.log(4) * 3 / 4),
    ],
    ids=repr,
)
def test_hand_computed_binary(loss, score, y, expected):
    assert value(loss, [[score]], [[y]], "binary") == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.LogLoss(), np.log(2)),
        (losses.LogLoss(label_smoothing=0.3), 0.8 * np.log(2) + 0.2 * np.log(4)),
        (losses.Focal(), np.log(2) / 4),
        (losses.Hinge(), (1 - np.log(2) + 1 + 1) / 3),
        (losses.SquaredHinge(), ((1 - np.log(2)) ** 2 + 1 + 1) / 3),
    ],
    ids=repr,
)
def test_hand_computed_multiclass(loss, expected):
    assert value(loss, [[np.log(2), 0, 0]], [[1, 0, 0]], "multiclass") == pytest.approx(expected, rel=1e-6)


def test_smoothed_labels_are_those_of_pytorch():
    scores, loss = [[1.0, -0.5, 2.0], [0.25, 3.0, -1.0]], losses.LogLoss(label_smoothing=0.2)
    expected = 1.1129269772587107  # of torch.nn.functional.cross_entropy, weighted by 2 and 1
    assert value(loss, scores, [[1, 0, 0], [0, 1, 0]], "multiclass", [2.0, 1.0]) == pytest.approx(expected, rel=1e-6)


def test_smoothed_labels_of_a_sigmoid_are_those_of_two_classes():
    loss, y = losses.LogLoss(label_smoothing=0.2), SIGNS
    two = np.c_[np.zeros(len(SCORES), np.float32), SCORES[:, 0]]
    by_softmax = value(loss, two, np.c_[1 - y, y], "multiclass", WEIGHTS)
    assert value(loss, SCORES[:, :1], y, "binary", WEIGHTS) == pytest.approx(by_softmax, rel=1e-6)


def test_label_smoothing_uses_own_classes():
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.c_[X[:, 0] > 0, np.digitize(X[:, 1], [-0.5, 0.5])].astype(int)
    loss = losses.LogLoss(label_smoothing=0.2)
    net = OrtGradientClassifier(
        Linear(initialization="zeros"), loss=loss, optimizer="lbfgs", max_iter=500, tol=1e-12
    ).fit(X, y)
    with np.errstate(all="raise"):
        shares = [p.mean(axis=0) for p in net.predict_proba(X)]  # what the biases of a minimum equal, whatever X is
    for j, share in enumerate(shares):
        counts = np.bincount(y[:, j]) / len(y)
        np.testing.assert_allclose(share, 0.8 * counts + 0.2 / len(counts), atol=2e-4)


def test_weighted_mean_over_rows_of_mean_over_columns():
    scores, y, w = [[1, 3], [2, 0]], np.zeros((2, 2)), [3, 1]
    assert value(losses.SquaredError(), scores, y, sample_weight=w) == pytest.approx((3 * 5 + 1 * 2) / 4)


@pytest.mark.parametrize(
    ("loss", "theirs", "y"),
    [
        (losses.AbsoluteError(), sklearn_loss.AbsoluteError(), SCORES[:, 1]),
        (losses.Huber(0.7), sklearn_loss.HuberLoss(delta=0.7), SCORES[:, 1]),
        (losses.Quantile(0.8), sklearn_loss.PinballLoss(quantile=0.8), SCORES[:, 1]),
        (losses.Poisson(), sklearn_loss.HalfPoissonLoss(), np.round(AMOUNTS[:, 0])),
        (losses.Gamma(), sklearn_loss.HalfGammaLoss(), AMOUNTS[:, 0]),
        (losses.LogLoss(), sklearn_loss.HalfBinomialLoss(), SIGNS[:, 0]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_scikit_learn_losses(loss, theirs, y):
    s = SCORES[:, 0]
    expected = np.average(theirs.loss(y.astype(np.float64), s.astype(np.float64)), weights=WEIGHTS)
    task = "binary" if isinstance(loss, losses.LogLoss) else "regression"
    assert value(loss, s[:, None], y[:, None], task, WEIGHTS) == pytest.approx(expected, rel=1e-5)


def probabilities(scores):
    e = np.exp(scores.astype(np.float64))
    return e / e.sum(axis=1, keepdims=True)


def test_scikit_learn_metrics():
    s, y, w = SCORES[:, :1], SIGNS, WEIGHTS
    p = 1 / (1 + np.exp(-s.astype(np.float64)))
    one, several = losses.LogLoss(), metrics.log_loss(LABELS, probabilities(SCORES), sample_weight=w)
    assert value(one, s, y, "binary", w) == pytest.approx(metrics.log_loss(y, p, sample_weight=w), rel=1e-5)
    assert value(one, SCORES, ONE_HOT, "multiclass", w) == pytest.approx(several, rel=1e-5)
    hinge = metrics.hinge_loss(y[:, 0], s[:, 0], sample_weight=w)
    assert value(losses.Hinge(), s, y, "binary", w) == pytest.approx(hinge, rel=1e-5)


def test_relations_between_losses():
    s, y = SCORES, SCORES[::-1].copy()
    assert value(losses.Quantile(0.5), s, y) == pytest.approx(value(losses.AbsoluteError(), s, y) / 2, rel=1e-6)
    assert value(losses.Huber(1e3), s, y) == pytest.approx(value(losses.SquaredError(), s, y) / 2, rel=1e-6)
    for task in ("multiclass", "multilabel"):
        log_loss = value(losses.LogLoss(), s, ONE_HOT, task)
        assert value(losses.Focal(gamma=0.0), s, ONE_HOT, task) == pytest.approx(log_loss, rel=1e-6)


def test_penalty():
    op, inputs = begin(w=(3,))
    w = [1.0, -2.0, 0.0]
    both = losses.append_penalty(op, inputs["w"], alpha=0.1, l1_ratio=0.25)
    assert run_expression(finish(op, both, "penalty"), w=w)[0] == pytest.approx(0.1 * (0.25 * 3 + 0.75 / 2 * 5))
    op, inputs = begin(w=(3,))
    squares = losses.append_penalty(op, inputs["w"], alpha=0.1, l1_ratio=0.0)
    assert run_expression(finish(op, squares, "penalty"), w=w)[0] == pytest.approx(0.1 / 2 * 5)


class FourthPower(losses.Loss):
    def __call__(self, op, scores, y, link):
        squared = op.Mul(op.Sub(scores, y), op.Sub(scores, y))
        return op.Mul(squared, squared)


class LargestError(losses.Loss):
    """One loss a row, (N, 1), through a selection: the error of the column that the target marks."""

    def __call__(self, op, scores, y, link):
        marked = op.Where(op.Greater(y, 0.5), op.Exp(scores), 0.0)
        return op.ReduceSum(marked, axes=[-1], keepdims=True)


def linear_model(loss, n=20, features=4, k=3):
    op, inputs = begin(x=(n, features), y=(n, k), sample_weight=(n,), coef=(features, k))
    scores = op.MatMul(inputs["x"], inputs["coef"])
    total = losses.append_loss(
        op, loss, scores=scores, y=inputs["y"], sample_weight=inputs["sample_weight"], link="identity"
    )
    return finish(op, total, "loss")


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (FourthPower(), lambda s: ((s - ONE_HOT) ** 4).mean(axis=1)),
        (LargestError(), lambda s: (np.exp(s) * ONE_HOT).sum(axis=1)),
    ],
    ids=["FourthPower", "LargestError"],
)
def test_own_loss_is_differentiated_through_a_model(loss, rows, engine):
    x, coef = RNG.standard_normal((20, 4)), RNG.standard_normal((4, 3)).astype(np.float32).astype(np.float64) / 2
    x = x.astype(np.float32).astype(np.float64)
    model = gradient_graph(linear_model(loss), wrt=["coef"], of="loss", engine=engine)
    total, gradient = run_expression(model, x=x, y=ONE_HOT, sample_weight=WEIGHTS, coef=coef)

    def mean(c):
        return np.average(rows(x @ c), weights=WEIGHTS)

    steps = 1e-6 * np.eye(12).reshape(12, 4, 3)
    expected = np.reshape([(mean(coef + h) - mean(coef - h)) / 2e-6 for h in steps], (4, 3))
    assert total == pytest.approx(mean(coef), rel=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "reduce",
    [
        lambda op, x: op.ReduceSum(x, axes=[-1], keepdims=False),
        lambda op, x: op.ReduceSum(x, keepdims=False),
        lambda op, x: op.Concat(x, x, axis=1),
        lambda op, x: op.ReduceSum(x, axes=[0], keepdims=True),
    ],
    ids=["one axis", "no axis", "too many columns", "rows reduced"],
)
def test_wrong_shape_from_an_own_loss(reduce):
    class Careless(losses.Loss):
        def __call__(self, op, scores, y, link):
            return reduce(op, op.Sub(scores, y))

    with pytest.raises(
        ModelError, match=r"Careless must return .*\(N, k\) or \(N, 1\) .* \(5, 2\), got .*keepdims=True"
    ):
        loss_model(Careless(), 5, 2, "regression")


def test_resolve_loss():
    assert isinstance(losses.resolve_loss("huber"), losses.Huber)
    own = FourthPower()
    assert losses.resolve_loss(own) is own


def test_misspelt_loss_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"Unknown loss 'squared_eror'. Did you mean 'squared_error'.*Valid names: 'abs"
    ):
        losses.resolve_loss("squared_eror")


@pytest.mark.parametrize("loss", [None, losses.Huber, 3])
def test_loss_of_another_type(loss):
    with pytest.raises(TypeError, match="loss must be a name or a Loss object, got "):
        losses.resolve_loss(loss)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (losses.Quantile(0.0), r"'quantile' parameter of Quantile must be .* \(0.0, 1.0\). Got 0.0 "),
        (losses.Quantile(1), r"'quantile' parameter of Quantile must be .* \(0.0, 1.0\). Got 1 "),
        (losses.Quantile(np.nan), r"'quantile' parameter of Quantile must be .* \(0.0, 1.0\). Got nan "),
        (
            losses.Quantile().set_params(quantile="0.5"),
            r"'quantile' parameter .* \(0.0, 1.0\). Got '0.5' ",
        ),
        (losses.Huber(0), r"'delta' parameter of Huber must be a float in the range \(0.0, inf\). Got 0 "),
        (losses.Huber(np.inf), r"'delta' parameter of Huber must be a float in the range \(0.0, inf\). Got inf "),
        (losses.Elastic(-0.1), r"'l1_ratio' parameter of Elastic must be .* \[0.0, 1.0\]. Got -0.1 "),
        (losses.Elastic(1.1), r"'l1_ratio' parameter of Elastic must be .* \[0.0, 1.0\]. Got 1.1 "),
        (losses.Focal(-1), r"'gamma' parameter of Focal must be .* \[0.0, inf\). Got -1 "),
    ],
    ids=lambda x: repr(x) if isinstance(x, losses.Loss) else "",
)
def test_parameter_out_of_range(loss, message):
    with pytest.raises(ValueError, match=message):
        losses.resolve_loss(loss)


@pytest.mark.parametrize(
    "loss",
    [losses.Quantile().set_params(quantile=np.float32(0.3)), losses.Huber(2), losses.Elastic(1), losses.Focal(0)],
)
def test_numbers_of_any_type_are_valid(loss):
    assert losses.resolve_loss(loss) is loss


def test_targets_that_a_loss_refuses():
    with pytest.raises(
        ValueError, match=r"Poisson needs targets that are not negative, got 1 of 3 .* smallest -2.*Check y"
    ):
        losses.Poisson().check_targets(np.array([0.0, 3.0, -2.0]))
    with pytest.raises(ValueError, match=r"Gamma needs targets that are positive, got 2 of 4 .* smallest -1.*Check y"):
        losses.Gamma().check_targets(np.array([[0.0, 3.0], [1.0, -1.0]]))


def test_targets_that_a_loss_takes():
    losses.Poisson().check_targets(np.array([0.0, 1.0]))
    losses.Gamma().check_targets(np.array([0.5, 1.0]))
    losses.SquaredError().check_targets(np.array([-1.0, 1.0]))


def predictions(link, scores, opset=18):
    scores = np.asarray(scores, np.float32)
    op, inputs = begin(opset, scores=scores.shape)
    return run_expression(
        finish(op, op.Identity(losses.apply_link(op, link, inputs["scores"])), "p", *scores.shape), scores=scores
    )[0]


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
@pytest.mark.parametrize(
    ("link", "formula"),
    [
        ("identity", lambda s: s),
        ("exp", np.exp),
        ("sigmoid", lambda s: 1 / (1 + np.exp(-s))),
        ("softmax", probabilities),
        ("hard_sigmoid", lambda s: (np.clip(s, -1, 1) + 1) / 2),
        ("clipped_margin", lambda s: (np.clip(s, -1, 1) + 1) / (np.clip(s, -1, 1) + 1).sum(axis=1, keepdims=True)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_links(link, formula, opset):
    np.testing.assert_allclose(predictions(link, SCORES, opset), formula(SCORES), rtol=1e-5, atol=1e-7)


def test_every_link_has_a_name_and_an_entry():
    assert set(losses.LINKS) == set(get_args(losses.Link))


def test_unknown_link():
    with pytest.raises(ValueError, match=r"Unknown link 'softmx'\. Did you mean 'softmax'"):
        predictions("softmx", SCORES)


def margins_as_classifier(scores):
    """An SGDClassifier whose decision function is its input."""
    k = scores.shape[1]
    classifier = SGDClassifier(loss="modified_huber").fit(np.eye(max(k, 2), k), np.arange(max(k, 2)))
    classifier.coef_, classifier.intercept_ = np.eye(k), np.zeros(k)
    return classifier


@pytest.mark.parametrize("opset", [11, 18])
def test_clipped_margins_of_classes_equal_sgd_classifier(opset):
    scores = np.vstack([SCORES, [[-1, -2, -3], [-5, -1, 0.5], [2, 2, -2]]]).astype(np.float32)
    expected = margins_as_classifier(scores).predict_proba(scores)
    np.testing.assert_allclose(predictions("clipped_margin", scores, opset), expected, rtol=1e-6)
    np.testing.assert_allclose(expected[20], 1 / 3)


def test_clipped_margin_of_one_column_is_that_of_sgd_classifier():
    scores = np.array([[-2], [-1], [-0.5], [0], [0.5], [1], [2]], np.float32)
    expected = margins_as_classifier(scores).predict_proba(scores)[:, 1:]
    np.testing.assert_allclose(predictions("clipped_margin", scores), expected, rtol=1e-6)


def test_modified_huber_labels_have_own_probabilities():
    loss = losses.ModifiedHuber()
    assert [loss.link(task) for task in ("binary", "multiclass")] == ["clipped_margin"] * 2
    np.testing.assert_allclose(predictions(loss.link("multilabel"), [[2, 2, -2]]), [[1, 1, 0]])
