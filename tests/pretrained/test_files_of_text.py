"""Files that take sentences or words: the part behind what depends on text alone is trained."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.base import is_classifier
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.faults import change_text_networks

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

WORDS = "good bad film day very so was this".split()
RNG = np.random.RandomState(0)
TEXTS = np.array([" ".join(RNG.choice(WORDS, 5)) for _ in range(60)])
MOODS = np.array(["no" if text.count("bad") > text.count("good") else "yes" for text in TEXTS])
STARS = np.array([3.0 + text.count("good") - text.count("bad") for text in TEXTS])
AT_REST = {"max_iter": 1, "optimizer": "sgd", "learning_rate_init": 1e-30}


def file_of(model, types):
    """Return the file of a fitted model."""
    options = {id(model.steps[-1][1]): {"zipmap": False}} if is_classifier(model) else None
    return to_onnx(model, initial_types=types, options=options, target_opset={"": 18, "ai.onnx.ml": 3})


def results(proto, **feeds):
    """Return the last output of a file, computed by onnxruntime alone."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[-1]


@pytest.mark.long
@pytest.mark.parametrize("shape", [[None], [None, 1]], ids=["vector", "column"])
@pytest.mark.parametrize("last", [LogisticRegression(), Ridge()], ids=["classifier", "regressor"])
def test_a_vectorizer_stays_and_the_rest_is_trained(last, shape):
    y = MOODS if is_classifier(last) else STARS
    kind, method = (
        (OrtGradientClassifier, "predict_proba") if is_classifier(last) else (OrtGradientRegressor, "predict")
    )
    model = make_pipeline(TfidfVectorizer(), last).fit(TEXTS, y)
    proto = file_of(model, [("text", StringTensorType(shape))])
    start = kind(proto, **AT_REST).fit(TEXTS, y)
    others = ["good day, very good", "Bad film", "nothing known"]
    for texts in (TEXTS, others):
        assert_allclose(getattr(start, method)(texts), getattr(model, method)(texts), rtol=1e-5, atol=1e-5)
        assert_allclose(getattr(start, method)(np.reshape(texts, (-1, 1))), getattr(start, method)(texts))
    longer = kind(proto, learning_rate_init=0.01, max_iter=20, random_state=0, finetune=None).fit(list(TEXTS), y)
    assert longer.loss_curve_[-1] < longer.loss_curve_[0]
    given = np.array(others, object)
    found = results(longer.to_onnx(), text=given if len(shape) == 1 else given.reshape(-1, 1))
    assert_allclose(found.reshape(getattr(longer, method)(others).shape), getattr(longer, method)(others), rtol=1e-5)
    again = kind(longer.to_onnx(), **AT_REST).fit(TEXTS, y)
    assert_allclose(getattr(again, method)(others), getattr(longer, method)(others), rtol=1e-5)
    assert_array_equal(getattr(pickle.loads(pickle.dumps(longer)), method)(others), getattr(longer, method)(others))


def test_sentences_beside_numbers():
    frame = pd.DataFrame({"text": TEXTS, "width": RNG.standard_normal(60).astype(np.float32)})
    columns = make_column_transformer((TfidfVectorizer(), "text"), (StandardScaler(), ["width"]))
    model = make_pipeline(columns, LogisticRegression()).fit(frame, MOODS)
    proto = file_of(model, [("text", StringTensorType([None, 1])), ("width", FloatTensorType([None, 1]))])
    start = OrtGradientClassifier(proto, **AT_REST).fit(frame, MOODS)
    assert_allclose(start.predict_proba(frame), model.predict_proba(frame), atol=1e-5)
    feeds = {"text": TEXTS.astype(object).reshape(-1, 1), "width": frame[["width"]].to_numpy()}
    assert_allclose(results(start.to_onnx(), **feeds), model.predict_proba(frame), atol=1e-5)


def counting(end="Y = MatMul(h, V)", width="[N, 1] Y", **weights):
    """Return a network behind the numbers of two words in rows of three."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        net (string[N, 3] X) => (float{width}) {{
        h = TfIdfVectorizer <max_gram_length = 1, max_skip_count = 0, min_gram_length = 1, mode = "TF",
            ngram_counts = [0], ngram_indexes = [0, 1], pool_strings = ["a", "b"]> (X) {end} }}""")
    held = weights or {"V": np.array([[1.0], [-0.5]], np.float32)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in held.items())
    return proto


ROWS = RNG.choice(["a", "b", "c"], (40, 3)).astype(object)
COUNTS = np.stack([(word == ROWS).sum(axis=1) for word in ("a", "b")], axis=1).astype(float)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("in_dict", [False, True])
def test_a_step_behind_counted_words(engine, in_dict):
    y = COUNTS @ [2.0, 1.0]
    X = {"X": ROWS} if in_dict else ROWS
    options = {"optimizer": "sgd", "learning_rate_init": 0.1, "batch_size": 40, "target_scaling": None}
    fitted = OrtGradientRegressor(counting(), max_iter=1, engine=engine, **options).fit(X, y)
    start = np.array([1.0, -0.5])
    expected = start - 0.1 * 2 * COUNTS.T @ (COUNTS @ start - y) / 40
    assert_allclose(fitted.weights_["V"].ravel(), expected, rtol=1e-5)
    assert_allclose(fitted.predict(X), COUNTS @ expected, rtol=1e-5)
    assert_allclose(results(fitted.to_onnx(), X=ROWS).ravel(), COUNTS @ expected, rtol=1e-5)


@pytest.mark.parametrize("end", ["Y = MatMul(h, V)", "s = MatMul(h, V) Y = Softmax(s)"], ids=["scores", "softmax"])
def test_a_network_behind_text_needs_no_labels_to_classify(end):
    V = np.array([[1.0, 0.5, -1.0], [0.2, -0.5, 0.3]], np.float32)
    y = np.array(["x", "y", "z"])[COUNTS.argmax(axis=1) + (COUNTS.sum(axis=1) > 2)]
    start = OrtGradientClassifier(counting(end, "[N, 3] Y", V=V), **AT_REST).fit(ROWS, y)
    powers = np.exp(COUNTS @ V)
    assert_allclose(start.predict_proba(ROWS), powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    trained = OrtGradientClassifier(counting(end, "[N, 3] Y", V=V), max_iter=20, learning_rate_init=0.05, finetune=None)
    assert trained.fit(ROWS, y).loss_curve_[-1] < trained.loss_curve_[0]
    assert_array_equal(trained.classes_, ["x", "y", "z"])


def test_mismatched_texts_are_refused():
    with pytest.raises(ValueError, match=r"takes 3 texts a row, got ndarray of shape \(40, 2\)"):
        OrtGradientRegressor(counting()).fit(ROWS[:, :2], STARS[:40])
    gaps = ROWS.copy()
    gaps[3, 1] = None
    with pytest.raises(ValueError, match="Text is missing in column 'X'"):
        OrtGradientRegressor(counting()).fit(gaps, STARS[:40])
    with pytest.raises(ModelError, match="input 'X' takes text, and training takes numbers"):
        OrtGradientMultiOutput(counting(), loss={"Y": "squared_error"}).fit({"X": ROWS}, {"Y": STARS[:40]})
    shares = "e = MatMul(h, V) p = Mul(e, e) one = Constant<value_ints = [1]>() t = ReduceSum(p, one) Y = Div(p, t)"
    V = np.array([[1.0, 0.5, -1.0], [0.2, -0.5, 0.3]], np.float32)
    with pytest.raises(ModelError, match="its output holds probabilities"):
        OrtGradientClassifier(counting(shares, "[N, 3] Y", V=V)).fit(
            np.where(ROWS == "c", "a", ROWS), np.arange(40) % 3
        )


def test_the_network_is_compared_with_the_file_as_given(monkeypatch):
    """A reader that changed a weight would be found out."""

    def double(graph):
        graph.initializers["V"].const_value = ir.tensor(np.array([[2.0], [-1.0]], np.float32), name="V")

    change_text_networks(monkeypatch, double)
    with pytest.raises(ModelError, match="does not compute what onnxruntime computes of the file as given"):
        OrtGradientRegressor(counting()).fit(ROWS, STARS[:40])
