"""Training starts only from a graph that computes what onnxruntime computes of the file as given."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from onnxtrain_sklearn import GraphModel, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.classic.test_onnxblock import WeightedAverageLoss
from tests.helpers.faults import change_compared_files, keep_operators_of_old_opsets
from tests.helpers.graphs import model

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.RandomState(0).normal(size=(20, 3)).astype(np.float32)
Y = X.sum(axis=1)
HARD = "R = Reshape (X, s) H = Hardmax (R) F = Flatten (H) Y = MatMul (F, W)"
SHAPES = "float[3, 1] W = {1, -2, 3}, int64[3] s = {-1, 3, 1}"


def test_graph_that_was_misread_is_refused_by_node(monkeypatch):
    proto = model(HARD, weights=SHAPES, opset=10)
    OrtGradientRegressor(proto, max_iter=1, random_state=0).fit(X, Y)
    keep_operators_of_old_opsets(monkeypatch, 13)  # as ONNX's converter does with Hardmax
    with pytest.raises(ModelError, match=r"file as given: output 'Y' .* first node that differs is 'H' \(Hardmax\)"):
        OrtGradientRegressor(proto, max_iter=1).fit(X, Y)


def test_random_numbers_are_not_compared():
    noisy = "N = RandomNormalLike <scale = 9.0> (X) H = Add (X, N) Y = MatMul (H, W)"
    OrtGradientRegressor(model(noisy), max_iter=1, random_state=0).fit(X, Y)


DROPS = "c = Constant <value_float = 0.5> () t = Constant <value = bool {1}> () D = Dropout (X, c, t) "
NORMAL = "D, m, v = BatchNormalization <training_mode = 1> (X, S, B, M, V) "
STORED = "float[3] S = {1, 2, 3}, float[3] B = {0, 1, 2}, float[3] M = {1, 1, 2}, float[3] V = {2, 3, 4}"
KINDS = {
    "fixed batch": ({"x": "float[4, 3] X", "y": "float[4, 1] Y"}, ""),
    "batch of one": ({"x": "float[1, 3] X", "y": "float[1, 1] Y"}, ""),
    "large batch": ({"x": "float[64, 3] X", "y": "float[64, 1] Y"}, ""),
    "bfloat16": (
        {"x": "bfloat16[N, 3] X", "body": f"D = Cast <to = 1> (X) {HARD.replace('(X,', '(D,')}", "opset": 13},
        "",
    ),
    "dropout": ({"body": DROPS + HARD.replace("(X,", "(D,"), "opset": 12}, " without Dropout"),
    "statistics": (
        {"body": NORMAL + HARD.replace("(X,", "(D,"), "weights": f"{SHAPES}, {STORED}", "opset": 14},
        " without statistics of minibatches",
    ),
    "other inputs": ({"x": "float[N, 3] X, string[N, K] Z", "y": "float[N, 1] Y, string[N, K] U"}, ""),
}


@pytest.mark.parametrize(("given", "without"), KINDS.values(), ids=KINDS)
def test_files_of_many_kinds_are_compared(given, without, monkeypatch):
    body = given.get("body", HARD) + (" U = Identity (Z)" if "Z" in given.get("x", "") else "")
    settings = {"weights": SHAPES, "opset": 12, **given, "body": body.replace("Hardmax", "Softmax")}
    file = GraphModel(model(**settings), "Y" if "Z" in given.get("x", "") else None)
    right = OrtGradientRegressor(file, max_iter=1, random_state=0).fit(X, Y)
    assert right.describe().compared.startswith(f"file as given compared{without};")
    change_compared_files(monkeypatch, turn_softmax)
    with pytest.raises(ModelError, match=r"file as given: output 'Y' .* first node that differs"):
        OrtGradientRegressor(file, max_iter=1).fit(X, Y)


def turn_softmax(proto):
    """Give Softmax another axis."""
    for node in proto.graph.node:
        if node.op_type == "Softmax":
            node.attribute.append(onnx.helper.make_attribute("axis", 2 if proto.opset_import[0].version < 13 else 1))


def test_each_of_joined_outputs_is_compared(monkeypatch):
    body = f"P = MatMul (X, U) {HARD.replace('Hardmax', 'Softmax').replace('Y =', 'Q =')}"
    weights = f"{SHAPES}, float[3, 2] U = {{1, 2, 3, 4, 5, 6}}"
    proto = model(body, y="float[N, 2] P, float[N, 1] Q", weights=weights, opset=12)
    settings = {"loss": WeightedAverageLoss(), "max_iter": 1, "learning_rate_init": 0.001}
    right = OrtGradientRegressor(proto, **settings).fit(X, X)
    assert right.describe().compared.startswith("file as given compared; training graph compared")
    change_compared_files(monkeypatch, turn_softmax)
    with pytest.raises(ModelError, match="file as given: output 'Q'"):
        OrtGradientRegressor(proto, **settings).fit(X, X)


@pytest.mark.parametrize("zipmap", [False, True])
def test_files_of_fitted_models_are_compared(zipmap, monkeypatch):
    labels = np.digitize(Y, [-1, 1])
    fitted = LogisticRegression().fit(X, labels)
    proto = to_onnx(fitted, X[:1], options={"zipmap": zipmap}, target_opset={"": 18, "ai.onnx.ml": 3})

    def shift_first_class(proto):
        for attribute in (a for node in proto.graph.node for a in node.attribute if a.name == "intercepts"):
            attribute.floats[0] += 1

    right = OrtGradientClassifier(proto, max_iter=1).fit(X, labels)
    assert right.describe().compared.startswith("file as given compared; training graph not compared: it is that of a")
    change_compared_files(monkeypatch, shift_first_class)
    with pytest.raises(ModelError, match=r"file as given: output '.*probabilit.*' differs"):
        OrtGradientClassifier(proto, max_iter=1).fit(X, labels)
