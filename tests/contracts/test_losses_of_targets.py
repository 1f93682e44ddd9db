"""Losses that declare their targets: value and gradient on every engine, against references in float64.

The references follow the definitions, row by row; that of CTC enumerates all alignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import groupby, product

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import gradient_graph, losses
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import NEWEST_OPSET, each_engine


def cox(s, y, w, ties="efron"):
    """Minus the contribution of each row; w has the mean one."""
    s, time, event = s[:, 0], y["time"], y["event"]
    hazard, rows = w * np.exp(s), np.zeros(len(s))
    for i in np.flatnonzero(event):
        tied = np.flatnonzero(event & (time == time[i]))
        risk, own = hazard[time >= time[i]].sum(), hazard[tied].sum()
        shares = np.arange(len(tied)) / len(tied) if ties == "efron" else [0.0]
        rows[i] = np.mean([np.log(risk - share * own) for share in shares]) - s[i]
    return rows


def info_nce(s, y, w, temperature=0.1, symmetric=True, dimension=32):
    both = s.reshape(len(s), 2, -1)
    both = both / np.sqrt((both**2).sum(axis=2, keepdims=True) + 1e-12)
    cosines = both[:, 0] @ both[:, 1].T / temperature
    rows = [np.logaddexp.reduce(cosines[i]) - cosines[i, i] for i in range(len(s))]
    others = [np.logaddexp.reduce(cosines[:, i]) - cosines[i, i] for i in range(len(s))]
    return (np.array(rows) + others) / 2 if symmetric else np.array(rows)


def triplet(s, y, w, margin=0.2, dimension=32):
    label, rows = y["label"], np.zeros(len(s))
    for i in range(len(s)):
        distance = np.sqrt(((s - s[i]) ** 2).sum(axis=1) + 1e-12)
        same = (label == label[i]) & (np.arange(len(s)) != i)
        if same.any() and (label != label[i]).any():
            gap = distance[same].max() - distance[label != label[i]].min()
            rows[i] = np.logaddexp(0, gap) if margin == "soft" else max(0.0, gap + margin)
    return rows


def ctc(s, y, w, blank=0, lengths=False):
    log_p, rows = s - np.logaddexp.reduce(s, axis=2, keepdims=True), []
    for i, labels in enumerate(y["labels"]):
        steps, total = y["lengths"][i] if lengths else s.shape[1], -np.inf
        for path in product(range(s.shape[2]), repeat=int(steps)):
            if [c for c, _ in groupby(path) if c != blank] == [c for c in labels if c >= 0]:
                total = np.logaddexp(total, log_p[i, np.arange(len(path)), path].sum())
        rows.append(-total)
    return np.array(rows)


REFERENCES = {"cox": cox, "info_nce": info_nce, "triplet": triplet, "ctc": ctc}
VARIANTS = {
    "cox": [{}, {"ties": "breslow"}],
    "info_nce": [{}, {"temperature": 0.5, "symmetric": False}],
    "triplet": [{}, {"margin": 1.5}, {"margin": "soft"}],
    "ctc": [{}, {"blank": 2, "lengths": True}],
}
CASES = [(name, parameters) for name, every in VARIANTS.items() for parameters in every]
each_case = pytest.mark.parametrize(("name", "parameters"), CASES, ids=[f"{n}-{p}" for n, p in CASES])


def sample(name, parameters, seed=0):
    """Scores, targets and weights of mean one."""
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.5, 2, size=9)
    scores = {"cox": (9, 1), "info_nce": (9, 6), "triplet": (9, 3), "ctc": (9, 5, 3)}[name]
    y = {}
    if name == "cox":
        y = {"time": rng.integers(1, 5, 9).astype(float), "event": rng.random(9) < 0.7}
    if name == "triplet":
        y = {"label": np.array([4, 4, 4, 7, 7, 7, 1, 0, 0])}
    if name == "ctc":
        one, two = (0, 1) if parameters.get("blank") == 2 else (1, 2)
        rows = [
            (one,),
            (two, two),
            (one, two),
            (),
            (one, one, two),
            (two, one, two),
            (two,),
            (one, two, one),
            (one, one),
        ]
        y = {"labels": np.array([[*row, *[-1] * (3 - len(row))] for row in rows])}
        if parameters.get("lengths"):
            y["lengths"] = np.array([1, 3, 5, 2, 5, 4, 5, 3, 4])
    return 1.5 * rng.normal(size=scores), y, w / w.mean()


KINDS = {"f": ir.DataType.FLOAT, "i": ir.DataType.INT64, "b": ir.DataType.BOOL}


@cache
def session(name, parameters, shapes, engine, opset):
    inputs = {key: ir.val(key, KINDS[kind], shape) for key, kind, shape in shapes}
    op = GraphBuilder(ir.Graph(list(inputs.values()), [], nodes=[], opset_imports={"": opset}, name="loss"))
    loss = losses.LOSSES[name](**dict(parameters))
    y = {key: value for key, value in inputs.items() if key in loss.targets}
    if loss.mixes_rows:
        y["sample_weight"] = inputs["weight"]
    parts = {"scores": inputs["scores"], "y": y, "sample_weight": inputs["weight"]}
    value = losses.append_loss(op, loss, link="identity", **parts)
    value.name, value.dtype, value.shape = "loss", ir.DataType.FLOAT, ir.Shape([])
    op.graph.outputs.append(value)
    model = gradient_graph(ir.to_proto(ir.Model(op.graph, ir_version=8)), wrt=["scores"], of="loss", engine=engine)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(name, parameters, scores, y: Mapping[str, np.ndarray], w, engine="portable", opset=18):
    """The loss and its gradient with respect to the scores."""
    feeds = {"scores": scores.astype(np.float32), "weight": w.astype(np.float32)}
    feeds |= {key: a.astype(np.float32) if a.dtype.kind == "f" else a for key, a in y.items()}
    shapes = tuple((key, a.dtype.kind, a.shape) for key, a in feeds.items())
    found = session(name, tuple(parameters.items()), shapes, engine, opset)
    known = {value.name for value in found.get_inputs()}
    return found.run(["loss", "scores_grad"], {key: a for key, a in feeds.items() if key in known})


def value(name, parameters, scores, y, w):
    return w @ REFERENCES[name](scores, y, w, **parameters) / w.sum()


def differences(name, parameters, scores, y, w, step=1e-6):
    slopes = np.zeros(scores.size)
    for j in range(scores.size):
        ends = [value(name, parameters, (scores.ravel() + d * np.eye(scores.size)[j]).reshape(scores.shape), y, w)
                for d in (step, -step)]  # fmt: skip
        slopes[j] = (ends[0] - ends[1]) / (2 * step)
    return slopes.reshape(scores.shape)


def test_every_loss_of_targets_has_a_reference():
    of_targets = {name for name, loss in losses.LOSSES.items() if isinstance(loss().targets, Mapping)}
    assert of_targets == set(REFERENCES)


@each_engine
@each_case
@pytest.mark.parametrize("opset", [11, 13, 18, NEWEST_OPSET])
def test_value_and_gradient(name, parameters, engine, opset):
    scores, y, w = sample(name, parameters)
    scores = scores.astype(np.float32).astype(float)
    w = w.astype(np.float32).astype(float)
    found, gradient = run(name, parameters, scores, y, w, engine, opset)
    assert_allclose(found, value(name, parameters, scores, y, w), rtol=1e-5)
    expected = differences(name, parameters, scores, y, w)
    assert_allclose(gradient, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert np.abs(expected).max() > 1e-3


@each_engine
@each_case
@pytest.mark.parametrize("size", [0.0, 90.0, 1e4])
def test_value_and_gradient_of_extreme_scores_are_finite(name, parameters, engine, size):
    scores, y, w = sample(name, parameters)
    found, gradient = run(name, parameters, size * np.sign(scores), y, w, engine)
    with np.errstate(all="ignore"):
        expected = value(name, parameters, size * np.sign(scores), y, w)
    if np.isfinite(expected):
        assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(found)
    assert np.isfinite(gradient).all()


@each_case
def test_order_of_the_rows_does_not_matter(name, parameters):
    scores, y, w = sample(name, parameters)
    order = np.random.default_rng(1).permutation(9)
    found, gradient = run(name, parameters, scores, y, w)
    other, moved = run(name, parameters, scores[order], {key: a[order] for key, a in y.items()}, w[order])
    assert_allclose(other, found, rtol=1e-6)
    assert_allclose(moved, gradient[order], atol=1e-6 * np.abs(gradient).max())


def test_breslow_weights_repeat_rows():
    scores, y, _ = sample("cox", {})
    times = np.array([1, 2, 1, 3, 1, 1, 1, 2, 1])
    rows = np.repeat(np.arange(9), times)
    _, gradient = run("cox", {"ties": "breslow"}, scores, y, times / times.mean())
    _, every = run("cox", {"ties": "breslow"}, scores[rows], {k: a[rows] for k, a in y.items()}, np.ones(len(rows)))
    sums = np.array([every[rows == i].sum(axis=0) for i in range(9)])
    assert_allclose(gradient, sums, atol=1e-6)


def test_triplet_rows_without_partners_have_the_loss_zero():
    scores, y, w = sample("triplet", {"margin": 1.5})
    assert triplet(scores, y, w, margin=1.5)[6] == 0
    for label in (np.zeros(9, int), np.arange(9)):
        found, gradient = run("triplet", {"margin": 1.5}, scores, {"label": label}, w)
        assert found == 0
        assert_array_equal(gradient, 0)


def test_ctc_equals_that_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    scores, lengths = rng.normal(size=(6, 40, 11)).astype(np.float32), np.array([40, 33, 40, 25, 40, 38])
    sizes = np.array([12, 9, 1, 10, 0, 12])
    labels = np.where(np.arange(12) < sizes[:, None], rng.integers(1, 11, (6, 12)), -1)
    given = torch.tensor(scores, requires_grad=True)
    losses_of_torch = torch.nn.functional.ctc_loss(
        given.transpose(0, 1).log_softmax(-1), torch.tensor(np.maximum(labels, 0)), torch.tensor(lengths),
        torch.tensor(sizes), reduction="none",
    )  # fmt: skip
    losses_of_torch.mean().backward()
    found, gradient = run("ctc", {"lengths": True}, scores, {"labels": labels, "lengths": lengths}, np.ones(6))
    assert_allclose(found, losses_of_torch.mean().item(), rtol=1e-5)
    assert_allclose(gradient, given.grad.numpy(), atol=1e-5)
