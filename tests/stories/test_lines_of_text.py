"""A convolutional recurrent network (CRNN) reads images of different widths, trained by CTC in groups of one width."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import AdamW, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.model.test_constant_inputs import parsed

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

HEIGHT, GLYPH, CLASSES, LONGEST = 6, 4, 4, 8
GLYPHS = np.random.default_rng(0).normal(size=(CLASSES, HEIGHT, GLYPH))
"""The images of the classes, of which class 0 is the blank, an empty column between glyphs."""
GLYPHS[0] = 0


def normal(*shape, seed):
    return np.random.default_rng(seed).normal(scale=0.4, size=shape).astype(np.float32)


def crnn():
    """Return a network with two columns of the image for each step, and a free width."""
    body = """c = Conv<kernel_shape = [6, 3], pads = [0, 1, 0, 1]>(image, K, B) r = Relu(c)
    p = MaxPool<kernel_shape = [1, 2], strides = [1, 2]>(r) s = Squeeze(p, two) t = Transpose<perm = [2, 0, 1]>(s)
    h, last = GRU<hidden_size = 8, direction = "bidirectional">(t, GK, GR) u = Transpose<perm = [2, 0, 1, 3]>(h)
    f = Reshape(u, flat) scores = MatMul(f, V)"""
    return parsed(
        body,
        "float[N, 1, 6, width] image",
        "float[N, steps, 4] scores",
        K=normal(8, 1, 6, 3, seed=1),
        B=normal(8, seed=2),
        GK=normal(2, 24, 8, seed=3),
        GR=normal(2, 24, 8, seed=4),
        V=normal(16, 4, seed=5),
        two=np.array([2]),
        flat=np.array([0, 0, -1]),
    )


def lines(n, length, seed):
    """Return images of ``length`` glyphs with noise, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, CLASSES, (n, length))
    images = np.concatenate([GLYPHS[labels[:, i]] for i in range(length)], axis=2)[:, None]
    padded = np.pad(labels, [(0, 0), (0, LONGEST - length)], constant_values=-1)
    return images + rng.normal(scale=0.1, size=images.shape), {"labels": padded}


def ctc(scores, y):
    """Return the mean CTC loss by the forward algorithm, in float64."""
    log_p, losses = scores - np.logaddexp.reduce(scores.astype(float), axis=2, keepdims=True), []
    for steps, labels in zip(log_p, y["labels"], strict=True):
        states = [0, *(k for label in labels[labels >= 0] for k in (label, 0))]
        alpha = np.full(len(states), -np.inf)
        alpha[:2] = steps[0, states[:2]]
        for step in steps[1:]:
            before = alpha.copy()
            for s, state in enumerate(states):
                ways = [before[s], *before[max(s - 1, 0) : s]]
                if s > 1 and state not in (0, states[s - 2]):
                    ways.append(before[s - 2])
                alpha[s] = np.logaddexp.reduce(ways) + step[state]
        losses.append(-np.logaddexp.reduce(alpha[-2:]))
    return np.mean(losses)


def read(scores):
    """Return the labels of the best alignment of each row: repeats are merged, then blanks removed."""
    best = scores.argmax(axis=2)
    return [[k for k, before in zip(row, [0, *row[:-1]], strict=True) if k not in (0, before)] for row in best.tolist()]


GROUPS = {length: lines(60, length, length) for length in (3, 5)}


@pytest.mark.long
def test_lines_of_two_widths_are_learned_and_scored():
    net = OrtGradientRegressor(
        crnn(), loss="ctc", optimizer=AdamW(), learning_rate_init=0.02, batch_size=20, random_state=0
    )
    for _ in range(25):
        for X, y in GROUPS.values():
            net.partial_fit(X, y)
    for length in (3, 4, 5, 8):  # also lines longer than any it was trained on
        X, y = lines(40, length, 100 + length)
        scores = net.predict(X)
        assert scores.shape == (40, 2 * length, CLASSES)
        right = np.mean(
            [one == labels[labels > 0].tolist() for one, labels in zip(read(scores), y["labels"], strict=True)]
        )
        assert right > 0.8
        assert_allclose(-net.score(X, y), ctc(scores, y), rtol=1e-4)


def test_step_on_another_width_is_that_of_a_new_estimator():
    settings = {"loss": "ctc", "batch_size": 60, "shuffle": False, "alpha": 0.0}
    first = OrtGradientRegressor(crnn(), **settings).partial_fit(*GROUPS[3])
    later = OrtGradientRegressor(first.to_onnx(), **settings).partial_fit(*GROUPS[5])
    first.partial_fit(*GROUPS[5])
    assert_allclose(first.loss_curve_[-1], later.loss_curve_[-1], rtol=1e-5)
    scores = OrtGradientRegressor(crnn(), **settings).initialize(*GROUPS[5]).predict(GROUPS[5][0])
    assert abs(ctc(scores, GROUPS[5][1]) - first.loss_curve_[-1]) > 1e-3


def test_lists_of_images_whose_steps_differ_say_what_to_do():
    images = [*GROUPS[3][0][:2], *GROUPS[5][0][:2]]
    labels = {"labels": np.ones((4, LONGEST), int)}
    with pytest.raises(ModelError, match=r"output of the same shape.*groups of one size.*partial_fit"):
        OrtGradientRegressor(crnn(), loss="ctc").fit(images, labels)
    alike = [{"image": one} for one in GROUPS[3][0]]
    settings = {"loss": "ctc", "batch_size": 20, "max_iter": 2, "random_state": 0}
    listed = OrtGradientRegressor(crnn(), **settings).fit(alike, GROUPS[3][1])
    rows = OrtGradientRegressor(crnn(), **settings).fit(*GROUPS[3])
    assert_allclose(listed.loss_curve_, rows.loss_curve_, rtol=1e-4)
    assert_allclose(listed.score(alike, GROUPS[3][1]), rows.score(*GROUPS[3]), rtol=1e-4)
