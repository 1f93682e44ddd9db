"""Training graphs of models that encode columns of a table: a loop gives the rows as they are in the table."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from onnxtrain_sklearn import LoRA, OrtGradientClassifier, OrtGradientRegressor, load_training
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SCHEMA, SETTINGS
from tests.helpers.web import in_node

jsonschema = pytest.importorskip("jsonschema")


def table(n: int = 72) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.normal(40, 10, n).astype(np.float32),
            "city": rng.choice(["rome", "oslo", "bern"], n),
            "unused": rng.choice(["a", "b"], n),
            "pay": rng.normal(3, 1, n).astype(np.float32),
        }
    )


def labels(X: pd.DataFrame) -> np.ndarray:
    return np.where((X["age"] > 40) ^ (X["city"] == "oslo"), "yes", "no")


def pipeline(last, names=("age", "pay"), text=("city",), encoder=None) -> Pipeline:
    parts = [(StandardScaler(), list(names))] if names else []
    return make_pipeline(make_column_transformer(*parts, (encoder or OneHotEncoder(), list(text))), last)


def goes_on(model, X, y, folder) -> dict:
    """Train one pass, export, train more in the estimator and by the graphs; return the manifest."""
    model.partial_fit(X, y).export_training(folder)
    training = load_training(folder, shuffle=False)
    for _ in range(2):
        model.partial_fit(X, y)
        training.partial_fit(X, y)
    expected = model._state.parameters.vector
    np.testing.assert_allclose(training.state["parameters"], expected, rtol=0, atol=1e-6 * max(1, abs(expected).max()))
    np.testing.assert_allclose(training.loss_curve_, model.loss_curve_[-2:], rtol=1e-5)
    predicted = model.predict(X)
    if predicted.dtype.kind == "f":
        np.testing.assert_allclose(training.predict(X), predicted, rtol=1e-5)
    else:
        np.testing.assert_array_equal(training.predict(X), predicted)
    manifest = json.loads((folder / "manifest.json").read_text())
    jsonschema.validate(manifest, SCHEMA)
    return manifest


CASES = {
    "numbers and texts": pipeline(LogisticRegression()),
    "texts": pipeline(LogisticRegression(), names=()),
    "codes": pipeline(LogisticRegression(), encoder=OrdinalEncoder()),
}


@pytest.mark.parametrize("case", CASES)
def test_classifiers_of_tables_go_on(case, tmp_path):
    X = table()
    model = OrtGradientClassifier(CASES[case].fit(X, labels(X)), **SETTINGS)
    manifest = goes_on(model, X, labels(X), tmp_path / "folder")
    data = [fact for fact in manifest["graphs"]["step"]["inputs"] if fact["role"] == "data"]
    assert ("city", "string", [16, 1]) in [(fact["name"], fact["type"], fact["shape"]) for fact in data]
    assert "unused" not in [fact["name"] for fact in data]


def test_regressors_of_tables_go_on(tmp_path):
    X = table()
    y = X["age"] * (X["city"] == "oslo") + X["pay"]
    goes_on(OrtGradientRegressor(pipeline(Ridge()).fit(X, y), **SETTINGS), X, y, tmp_path / "folder")


def test_adapters_of_tables_go_on(tmp_path):
    X = table()
    model = OrtGradientClassifier(pipeline(LogisticRegression()).fit(X, labels(X)), adapters=LoRA(1), **SETTINGS)
    goes_on(model, X, labels(X), tmp_path / "folder")


class Columns:
    """A data frame with what those of other libraries than pandas have in common with its own."""

    def __init__(self, frame):
        self.columns, self._frame = list(frame.columns), frame

    def __len__(self):
        return len(self._frame)

    def __getitem__(self, name):
        return self._frame[name]


def test_data_frames_of_other_libraries_give_their_columns(tmp_path):
    X = table()
    OrtGradientClassifier(CASES["texts"].fit(X, labels(X)), **SETTINGS).export_training(tmp_path / "f", X, labels(X))
    training = load_training(tmp_path / "f")
    np.testing.assert_array_equal(training.predict_proba(Columns(X)), training.predict_proba(X))


def test_texts_go_on_and_come_back(tmp_path):
    texts, y = ["good fine nice", "bad awful", "nice good", "awful bad bad"] * 12, [1, 0, 1, 0] * 12
    model = OrtGradientClassifier(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y), **SETTINGS)
    goes_on(model, texts, y, tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(texts, y)
    back = model.load_state(training.state).to_sklearn()
    np.testing.assert_array_equal(back.predict(texts), training.predict(texts))


def test_a_table_trained_in_node(tmp_path):
    """Step by step and in epochs, with the labels as texts."""
    X = table()
    model = OrtGradientClassifier(pipeline(LogisticRegression()).fit(X, labels(X)), **SETTINGS)
    model.partial_fit(X, labels(X)).export_training(tmp_path / "graphs")
    (tmp_path / "rows.json").write_text(json.dumps({**X.to_dict("list"), "y": labels(X).tolist()}))
    lines = in_node(
        tmp_path,
        """
const { y: named, unused, ...rows } = JSON.parse(await file("rows.json"));
const columns = Object.entries(rows);
const part = (from, to) => Object.fromEntries(columns.map(([name, column]) => [name, column.slice(from, to)]));
await trainer.epoch({ ...rows, y: trainer.encode(named) }, { learningRate: 0.01 });
for (let i = 0; i < 72; i += 16) {
  await trainer.step({ ...part(i, i + 16), y: trainer.encode(named.slice(i, i + 16)) }, { learningRate: 0.01 });
}
console.log((await trainer.predict(rows)).label.data.join());
""",
    )
    expected = model.partial_fit(X, labels(X)).partial_fit(X, labels(X)).weights_
    predicted = model.predict(X)
    model.load_state(tmp_path / "trained.safetensors")
    for name, array in expected.items():
        np.testing.assert_allclose(model.weights_[name], array, rtol=0, atol=1e-6)
    assert lines == [",".join(predicted)]


def test_unsupported_table_exports_are_refused(tmp_path):
    X = table()
    model = OrtGradientClassifier(pipeline(LogisticRegression()).fit(X, labels(X)), **SETTINGS)
    model.partial_fit(X, labels(X)).export_training(tmp_path / "folder")
    with pytest.raises(
        ModelError, match=r"encodes columns of a table before it is trained, but .* Take export_training"
    ):
        model.to_training_onnx()
    training = load_training(tmp_path / "folder")
    with pytest.raises(TypeError, match=r"'city' takes texts, got None\. Write a missing value as the text"):
        training.predict(X.assign(city=None))
    with pytest.raises(ValueError, match=r"has the inputs \['age', 'city', 'pay'\]: .*, got \['age', 'city'\]"):
        training.predict(X[["age", "city"]])
    renamed = X.rename(columns={"age": "step"})
    other = OrtGradientClassifier(pipeline(LogisticRegression(), ("step", "pay")).fit(renamed, labels(X)), **SETTINGS)
    quietly(other.partial_fit, renamed, labels(X))
    with pytest.raises(
        ModelError,
        match=r"has an input, a column or a weight 'step', but .* a tensor of the state\. Rename it",
    ):
        other.export_training(tmp_path / "other")


@pytest.mark.long
def test_columns_and_values_with_names_of_the_training_graphs(tmp_path):
    """Columns keep their names; values within the graph get other ones, so that its state comes back."""
    X = table().rename(columns={"age": "y", "pay": "sample_weight", "city": "learning_rate"})
    model = pipeline(LogisticRegression(), ("y", "sample_weight"), ("learning_rate",))
    y = labels(table())
    estimator = OrtGradientClassifier(model.fit(X, y), **SETTINGS)
    goes_on(estimator, X, y, tmp_path / "folder")
    estimator.load_state(tmp_path / "folder").partial_fit(X, y)
    graph = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 5] X) => (float[N, 3] Y) <float[5, 3] W = {1, 2, 3,
        4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> { step = MatMul(X, W) parameters = Identity(step) Y = Neg(parameters) }"""
    X, y = np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32), np.arange(32) % 3
    estimator = quietly(OrtGradientClassifier(onnx.parser.parse_model(graph), **SETTINGS).fit, X, y)
    goes_on(estimator, X, y, tmp_path / "folder")
    estimator.load_state(tmp_path / "folder").partial_fit(X, y)
    renamed = onnx.parser.parse_model(graph.replace("parameters", "other").replace("W", "parameters"))
    estimator = OrtGradientClassifier(renamed, **SETTINGS)
    with pytest.raises(ModelError, match="has an input, a column or a weight 'parameters'"):
        estimator.export_training(tmp_path / "other", X, y)
