"""Networks that learn a label for each word or pixel: a recurrent one, attention, and one of two resolutions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn import OrtGradientClassifier
from tests.helpers.selection import one_case
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def network(signature, body, **arrays):
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> net {signature} {{ {body} }}')
    stored = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in stored.items())
    return proto


def classifier(net, **parameters):
    defaults = {"learning_rate_init": 0.01, "batch_size": 64, "tol": NEVER, "random_state": 0}
    return OrtGradientClassifier(net, **defaults | parameters)


@pytest.mark.slow
def test_lstm_remembers_its_inputs():
    """The tag of a word says whether the words 1 up to it are odd in number; rows end at different words."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, (1200, 12))
    y = 2 * (np.cumsum(X == 1, axis=1) % 2) + (X > 2)
    y[np.arange(12) >= rng.integers(5, 13, 1200)[:, None]] = -100
    net = network(
        "(int64[N, 12] X) => (float[N, 12, 4] Y)",
        """words = Gather (table, X) steps = Transpose <perm = [1, 0, 2]> (words)
        h, last, cell = LSTM <hidden_size = 24> (steps, w, r, b)
        one = Constant <value_ints = [1]> () states = Squeeze (h, one) rows = Transpose <perm = [1, 0, 2]> (states)
        scores = MatMul (rows, out) Y = Add (scores, bias)""",
        table=rng.normal(size=(6, 8)), w=rng.normal(size=(1, 96, 8)) / 3, r=rng.normal(size=(1, 96, 24)) / 5,
        b=np.zeros((1, 192)), out=rng.normal(size=(24, 4)) / 5, bias=np.zeros(4),
    )  # fmt: skip
    fitted = classifier(net, max_iter=40).fit(X[:1000], y[:1000])
    assert fitted.score(X[1000:], y[1000:]) > 0.95


@pytest.mark.slow
def test_attention_finds_words_that_occur_again():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 20, (4000, 8))
    y = ((X[:, :, None] == X[:, None, :]).sum(axis=2) > 1).astype(int)
    y[rng.random(y.shape) < 0.1] = -100
    net = network(
        "(int64[N, 8] X) => (float[N, 8, 2] Y)",
        """e = Gather (table, X) q = MatMul (e, wq) k = MatMul (e, wk) v = MatMul (e, wv)
        t = Transpose <perm = [0, 2, 1]> (k) products = MatMul (q, t) scaled = Mul (products, scale)
        p = Softmax <axis = -1> (scaled) a = MatMul (p, v) sum = Add (e, a)
        n = LayerNormalization <axis = -1> (sum, gain, shift) f = MatMul (n, w1) g = Add (f, b1) r = Relu (g)
        z = MatMul (r, w2) last = Add (n, z) scores = MatMul (last, out) Y = Add (scores, bias)""",
        table=rng.normal(size=(20, 32)), **{f"w{i}": rng.normal(size=(32, 32)) / 32**0.5 for i in "qkv"},
        scale=32**-0.5, gain=np.ones(32), shift=np.zeros(32), w1=rng.normal(size=(32, 64)) / 8, b1=np.zeros(64),
        w2=rng.normal(size=(64, 32)) / 8, out=rng.normal(size=(32, 2)) / 6, bias=np.zeros(2),
    )  # fmt: skip
    fitted = classifier(net, learning_rate_init=0.003, max_iter=30).fit(X[:3000], y[:3000])
    assert fitted.score(X[3000:], y[3000:]) > 0.95


def shapes(n, seed=0):
    """Images of a dark disc and a light square in noise, and the class of each pixel."""
    rng, (rows, columns) = np.random.default_rng(seed), np.mgrid[:16, :16]
    images, labels = rng.normal(0, 0.3, (n, 1, 16, 16)), np.full((n, 16, 16), "ground")
    for image, label in zip(images[:, 0], labels, strict=True):
        for name, value in (("disc", -1), ("square", 1)):
            (y, x), size = rng.integers(3, 13, 2), rng.integers(2, 5)
            squares = (rows - y) ** 2, (columns - x) ** 2
            inside = (sum(squares) if name == "disc" else np.maximum(*squares)) <= size**2
            image[inside] = value + rng.normal(0, 0.3, inside.sum())
            label[inside] = name
    return images.astype(np.float32), labels


@one_case
@pytest.mark.parametrize("classes", [3, 1])
@pytest.mark.long
def test_a_network_of_two_resolutions_finds_shapes(classes):
    images, labels = shapes(300)
    labels = labels if classes == 3 else np.where(labels == "ground", "ground", "shape")
    rng = np.random.default_rng(0)
    net = network(
        f"(float[N, 1, 16, 16] X) => (float[N, {classes}, 16, 16] Y)",
        """a = Conv <pads = [1, 1, 1, 1]> (X, k1, b1) fine = Relu (a)
        half = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (fine)
        c = Conv <pads = [1, 1, 1, 1]> (half, k2, b2) coarse = Relu (c)
        up = ConvTranspose <strides = [2, 2]> (coarse, k3) both = Concat <axis = 1> (fine, up)
        Y = Conv <pads = [1, 1, 1, 1]> (both, k4, b4)""",
        k1=rng.normal(size=(8, 1, 3, 3)) / 2, b1=np.zeros(8), k2=rng.normal(size=(16, 8, 3, 3)) / 6, b2=np.zeros(16),
        k3=rng.normal(size=(16, 8, 2, 2)) / 6, k4=rng.normal(size=(classes, 16, 3, 3)) / 9, b4=np.zeros(classes),
    )  # fmt: skip
    fitted = classifier(net, batch_size=32, max_iter=15).fit(images[:225], labels[:225])
    assert fitted.score(images[225:], labels[225:]) > 0.95 > np.mean(labels == "ground") + 0.1
