"""ONNX files with operators of ai.onnx.ml: they train as the fitted estimators do that they were made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, Normalizer, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._gradient.engine import available_engines
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # skl2onnx reads what scikit-learn means to drop
]

ENGINES = pytest.mark.parametrize("engine", available_engines())


def scaled(load, rows):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X[:rows]).astype(np.float32), y[:rows]


NAMES = np.array(["setosa", "versicolor", "virginica"])
IRIS, CANCER, DIGITS = scaled(load_iris, None), scaled(load_breast_cancer, 200), scaled(load_digits, 200)
DIABETES = (scaled(load_diabetes, 200)[0], load_diabetes().target[:200] / 50)
DATA = {
    "cancer": CANCER,
    "diabetes": DIABETES,
    "digits": DIGITS,
    "iris": IRIS,
    "names": (IRIS[0], NAMES[IRIS[1]]),
    "two names": (IRIS[0][:100], NAMES[IRIS[1][:100]]),
    "outliers": (CANCER[0], 2 * CANCER[1] - 1),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A file: the estimator that it is made from, its data, and the options of its converter."""

    name: str
    estimator: Any
    data: str
    options: dict[str, Any] = field(default_factory=dict)
    of_margins: bool = False

    def __str__(self) -> str:
        return self.name


STEPS = SimpleImputer(), StandardScaler(), Normalizer(), PCA(9)
MATRIX, MARGINS = {"zipmap": False}, {"zipmap": False, "raw_scores": True}
CASES = [
    Case("Ridge", Ridge(), "diabetes"),
    Case("Poisson", PoissonRegressor(), "diabetes"),
    Case("LogisticRegression", LogisticRegression(), "cancer"),
    Case("LogisticRegression of margins", LogisticRegression(), "cancer", MARGINS, of_margins=True),
    Case("LogisticRegression of ten", LogisticRegression(), "digits", MATRIX),
    Case("LogisticRegression of ten margins", LogisticRegression(), "digits", MARGINS, of_margins=True),
    Case("LogisticRegression of columns", LogisticRegression(), "digits", {"zipmap": "columns"}),
    Case("LogisticRegression of names", LogisticRegression(), "names"),
    Case("LogisticRegression of two names", LogisticRegression(), "two names"),
    Case("MaxAbsScaler, LogisticRegression", make_pipeline(MaxAbsScaler(), LogisticRegression()), "cancer"),
    Case("Pipeline", make_pipeline(*STEPS, LogisticRegression()), "digits"),
    Case("LinearSVC", LinearSVC(random_state=0), "cancer", of_margins=True),
    Case("LinearSVC of ten", LinearSVC(random_state=0), "digits", of_margins=True),
    Case("RidgeClassifier", RidgeClassifier(), "iris", MATRIX, of_margins=True),
    Case("SVC", SVC(), "cancer", of_margins=True),
    Case("SVC of margins", SVC(), "cancer", MARGINS, of_margins=True),
    Case("SVC of three", SVC(), "iris", MATRIX, of_margins=True),
    Case("SVC of pairs", SVC(decision_function_shape="ovo"), "iris", MATRIX, of_margins=True),
    Case("SVC with probabilities", SVC(probability=True, random_state=0), "cancer"),
    Case("SVC of names with probabilities", SVC(probability=True, random_state=0), "names", MATRIX),
    Case("SVR", SVR(), "diabetes"),
    Case("OneClassSVM", OneClassSVM(), "outliers", of_margins=True),
    Case("DecisionTreeClassifier", DecisionTreeClassifier(max_depth=4, random_state=0), "digits"),
    Case("DecisionTreeRegressor", DecisionTreeRegressor(max_depth=4, random_state=0), "diabetes"),
    Case("RandomForestClassifier", RandomForestClassifier(4, max_depth=4, random_state=0), "cancer", MATRIX),
    Case("RandomForestClassifier of ten", RandomForestClassifier(4, max_depth=4, random_state=0), "digits"),
    Case("RandomForestClassifier of names", RandomForestClassifier(4, max_depth=4, random_state=0), "names"),
    Case("RandomForestRegressor", RandomForestRegressor(4, max_depth=4, random_state=0), "diabetes"),
    Case("GradientBoostingClassifier", GradientBoostingClassifier(n_estimators=4, random_state=0), "cancer"),
    Case("GradientBoosting of margins", GradientBoostingClassifier(n_estimators=4), "cancer", MARGINS, of_margins=True),
    Case("GradientBoostingClassifier of three", GradientBoostingClassifier(n_estimators=3, random_state=0), "iris"),
    Case("GradientBoostingRegressor", GradientBoostingRegressor(n_estimators=4, random_state=0), "diabetes"),
    Case("MLPClassifier", MLPClassifier((8,), max_iter=5, random_state=0), "iris"),
    Case("GaussianNB", GaussianNB(), "iris"),
    Case("SGDClassifier", SGDClassifier(loss="log_loss", random_state=0), "iris"),
    Case("OneVsRestClassifier", OneVsRestClassifier(LogisticRegression()), "iris"),
    Case("OneVsOneClassifier", OneVsOneClassifier(LogisticRegression()), "iris", MATRIX, of_margins=True),
    Case("BaggingClassifier", BaggingClassifier(LogisticRegression(), n_estimators=2, random_state=0), "iris"),
    Case("CalibratedClassifierCV", CalibratedClassifierCV(LinearSVC(random_state=0), cv=2), "iris"),
]  # fmt: skip
EACH = pytest.mark.parametrize("case", CASES, ids=str)
AS_ESTIMATORS = (
    "Ridge",
    "LogisticRegression",
    "LogisticRegression of names",
    "SVC of three",
    "SVC of names with probabilities",
    "SVR",
    "DecisionTreeClassifier",
    "RandomForestClassifier",
    "RandomForestClassifier of ten",
    "RandomForestRegressor",
    "GradientBoostingClassifier",
    "GradientBoostingClassifier of three",
    "GradientBoostingRegressor",
)


@cache
def made(case):
    """Return the fitted estimator of a case, and its file."""
    X, y = DATA[case.data]
    estimator = clone(case.estimator).fit(X, y)
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    options = {id(last): case.options} if case.options else None
    return estimator, to_onnx(estimator, X[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


def run(proto, X):
    """Return the labels and the numbers of a file, or None and the numbers."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: X})
    if len(outputs) == 1:
        return None, outputs[0]
    if isinstance(outputs[1], list):
        return outputs[0].ravel(), np.array([list(row.values()) for row in outputs[1]])
    return outputs[0].ravel(), outputs[1] if len(outputs) == 2 else np.stack(outputs[1:], axis=1)


def given(case, model, **parameters):
    kind = OrtGradientRegressor if case.data == "diabetes" else OrtGradientClassifier
    return kind(model, **{"max_iter": 2, "random_state": 0, **parameters})


def untrained(case, model, **parameters):
    X, y = DATA[case.data]
    return given(case, model, max_iter=1, optimizer="sgd", learning_rate_init=1e-30, **parameters).fit(X, y)


@EACH
def test_training_starts_from_the_file(case):
    (X, y), (_, proto) = DATA[case.data], made(case)
    labels, numbers = run(proto, X)
    start = untrained(case, proto)
    if labels is None:
        assert_allclose(start.predict(X), numbers.ravel(), rtol=1e-4, atol=1e-4)
        return
    assert_array_equal(start.classes_, np.unique(y))
    if not case.of_margins:
        assert_allclose(start.predict_proba(X), numbers, atol=1e-4)
    elif numbers.shape[1] == 2:
        assert_allclose(np.abs(start.decision_function(X)), np.abs(numbers[:, 1]), rtol=1e-3, atol=1e-4)
    else:
        assert_allclose(start.decision_function(X).reshape(numbers.shape), numbers, rtol=1e-3, atol=1e-4)
    sure = np.ptp(np.sort(numbers, axis=1)[:, -2:], axis=1) > 1e-3 if numbers.shape[1] > 1 else numbers[:, 0] != 0
    assert_array_equal(start.predict(X)[sure], labels[sure])


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_the_trained_file_has_the_same_input_and_predicts_what_the_estimator_does(case):
    (X, y), (_, proto) = DATA[case.data], made(case)
    trained = given(case, proto, learning_rate_init=0.01).fit(X, y)
    exported = trained.to_onnx()
    onnx.checker.check_model(exported, full_check=True)
    assert [(v.name, len(v.type.tensor_type.shape.dim)) for v in exported.graph.input] == [("X", 2)]
    labels, numbers = run(exported, X)
    if labels is None:
        assert_allclose(trained.predict(X), numbers.ravel(), rtol=1e-5)
    else:
        assert_array_equal(trained.predict(X), labels)
    assert set(trained.weights_) <= {tensor.name for tensor in exported.graph.initializer}


@pytest.mark.parametrize("case", [case for case in CASES if case.name in AS_ESTIMATORS], ids=str)
@ENGINES
def test_files_train_as_their_estimators(case, engine):
    (X, y), (estimator, proto) = DATA[case.data], made(case)
    parameters = {"engine": engine, "learning_rate_init": 0.01, "max_iter": 4}
    by_estimator, by_file = (given(case, model, **parameters).fit(X, y) for model in (estimator, proto))
    method = "predict" if case.data == "diabetes" else "predict_proba" if not case.of_margins else "decision_function"
    assert_allclose(getattr(by_file, method)(X), getattr(by_estimator, method)(X), rtol=2e-3, atol=2e-3)
    assert_allclose(by_file.loss_curve_, by_estimator.loss_curve_, rtol=1e-3)
    assert by_file.engine_ == engine


def test_paths_bytes_and_messages_are_one_model(tmp_path):
    case = CASES[2]
    (X, y), (_, proto) = DATA[case.data], made(case)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    found = [given(case, model).fit(X, y).predict_proba(X) for model in (proto, path, str(path), path.read_bytes())]
    for one in found[1:]:
        assert_array_equal(one, found[0])


@pytest.mark.parametrize("data", ["cancer", "digits"])
def test_training_on_shifted_data_improves_what_was_held_out(data):
    (X, y), rng = DATA[data], np.random.RandomState(0)
    half, model = len(X) // 2, make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    shifted = (X + 2 * rng.standard_normal(X.shape[1])).astype(np.float32)
    before = model.score(shifted[half:], y[half:])
    tuned = OrtGradientClassifier(to_onnx(model, X[:1]), learning_rate_init=0.01, max_iter=60, random_state=0)
    assert before + 0.15 < tuned.fit(shifted[:half], y[:half]).score(shifted[half:], y[half:])


# Labels


def file_of(name):
    return made(next(case for case in CASES if case.name == name))[1]


def test_labels_that_the_file_does_not_name_are_refused():
    X, y = DATA["names"]
    model = OrtGradientClassifier(file_of("LogisticRegression of names"))
    with pytest.raises(ValueError, match=r"not among the classes: \['sativa'\].*setosa"):
        model.fit(X, np.where(y == "setosa", "sativa", y))
    with pytest.raises(ValueError, match=r"classes=.* are not those of the fitted model"):
        model.partial_fit(X, y, classes=["setosa", "versicolor", "x"])


def test_classes_that_y_lacks_stay():
    X, y = DATA["names"]
    trained = OrtGradientClassifier(file_of("RandomForestClassifier of names"), max_iter=2).fit(X[:100], y[:100])
    assert trained.classes_.tolist() == NAMES.tolist()
    assert trained.predict_proba(X).shape == (150, 3)


def test_the_first_pass_knows_the_classes():
    X, y = DATA["names"]
    trained = OrtGradientClassifier(file_of("LogisticRegression of names")).partial_fit(X[:60], y[:60])
    assert trained.classes_.tolist() == NAMES.tolist()
    assert trained.partial_fit(X, y).t_ == 210


def test_the_first_pass_of_a_graph_without_labels_needs_them():
    model = helper.make_model(onnx.parser.parse_graph("g (float[N, 4] X) => (float[N, 3] Y) <float[4, 3] w = {0,0,0,0,0,0,0,0,0,0,0,0}> {Y = MatMul(X, w)}"), opset_imports=[helper.make_opsetid("", 18)])  # fmt: skip  # noqa: E501
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        OrtGradientClassifier(model).partial_fit(*IRIS)


def linear_classifier(labels, coefficients, label="label", extra=(), **attributes):
    """Return a file of a LinearClassifier by hand, of an input of two columns."""
    kind = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_ints"
    made = {"coefficients": coefficients, "intercepts": [0.0] * len(labels), "post_transform": "SOFTMAX", kind: labels}
    node = helper.make_node("LinearClassifier", ["X"], ["own", "p"], domain="ai.onnx.ml", **{**made, **attributes})
    of_label = TensorProto.STRING if isinstance(labels[0], str) else TensorProto.INT64
    outputs = [helper.make_tensor_value_info(label, of_label, ["N"]),
               helper.make_tensor_value_info("p", TensorProto.FLOAT, ["N", len(labels)])]  # fmt: skip
    X = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", attributes.pop("columns", 2)])
    nodes = [node, *(extra or [helper.make_node("Identity", ["own"], [label])])]
    graph = helper.make_graph(nodes, "g", [X], outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("labels", [["b", "a", "c"], [3, 1, 2]], ids=str)
def test_classes_that_are_not_sorted(labels):
    X = np.random.RandomState(0).standard_normal((60, 2)).astype(np.float32)
    proto = linear_classifier(labels, [1.0, 2.0, -1.0, 0.5, 0.0, -2.0])
    own, p = run(proto, X)
    model = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, own)
    assert model.classes_.tolist() == sorted(labels)
    assert_array_equal(model.predict(X), own)
    assert_allclose(model.predict_proba(X), p[:, np.argsort(labels)], atol=1e-5)


def test_labels_by_a_rule_of_their_own_are_refused():
    X = np.random.RandomState(0).standard_normal((60, 2)).astype(np.float32)
    other = [helper.make_node("Mul", ["own", "own"], ["label"])]
    proto = linear_classifier([0, -1, 1], [1.0, 2.0, -1.0, 0.5, 0.0, -2.0], extra=other)
    assert set(run(proto, X)[0]) == {0, 1}
    with pytest.raises(ModelError, match=r"predict\(\) differs from the label of the file in \d+% of the rows"):
        OrtGradientClassifier(proto).fit(X, np.arange(60) % 3)


# Data


def test_labels_are_one_for_each_row():
    twice = [
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        helper.make_node("Unsqueeze", ["own", "axis"], ["column"]),
        helper.make_node("Concat", ["column", "column"], ["label"], axis=1),
    ]
    proto = linear_classifier([0, 2], [1.0, 2.0, -1.0, 0.5], extra=twice)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("label", TensorProto.INT64, ["N", 2]))
    X = np.random.RandomState(0).standard_normal((20, 2)).astype(np.float32)
    with pytest.raises(ModelError, match=r"returns an array of shape \(20, 2\) for 20 rows: .* one label"):
        OrtGradientClassifier(proto, max_iter=1).fit(X, np.arange(20) % 2 * 2)


def test_labels_are_no_output_to_train():
    classifier = OrtGradientClassifier(linear_classifier([0, 2], [1.0, 2.0, -1.0, 0.5]), output="label")
    with pytest.raises(ModelError, match=r"output='label' is of type .*; only floats are trained: name 'p'"):
        classifier.fit([[0, 1]] * 4, [0, 2] * 2)


def test_missing_values_go_where_the_file_takes_them():
    X, y = DATA["iris"]
    gaps = np.where(np.random.RandomState(0).uniform(size=X.shape) < 0.1, np.nan, X).astype(np.float32)
    filled = make_pipeline(SimpleImputer(), LogisticRegression()).fit(gaps, y)
    trained = OrtGradientClassifier(to_onnx(filled, gaps[:1]), max_iter=1, optimizer="sgd", learning_rate_init=1e-30)
    assert_allclose(trained.fit(gaps, y).predict_proba(gaps), filled.predict_proba(gaps), atol=1e-4)
    assert not any("imputed" in name for name in trained.weights_)
    with pytest.raises(ValueError, match="contains NaN"):
        OrtGradientClassifier(file_of("GaussianNB")).fit(gaps, y)


def test_the_number_of_columns_need_not_be_declared():
    X, y = DATA["iris"]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    proto = to_onnx(model, initial_types=[("X", FloatTensorType([None, None]))])
    trained = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    assert_allclose(trained.predict_proba(X), model.predict_proba(X), atol=1e-5)


def test_constants_and_neutral_scalers_are_not_trained():
    assert set(untrained(CASES[9], made(CASES[9])[1]).weights_) == {
        "linear_classifier.coef",
        "linear_classifier.intercept",
        "scaler.scale",
    }
    forest = next(case for case in CASES if case.name == "GradientBoostingRegressor")
    assert set(untrained(forest, made(forest)[1]).weights_) == {"trees.leaf_values"}


# What is refused


def test_a_classifier_is_not_trained_as_a_regressor():
    X, y = DATA["cancer"]
    with pytest.raises(ModelError, match="is a classifier: train it with OrtGradientClassifier"):
        OrtGradientRegressor(file_of("LogisticRegression")).fit(X, y)


def test_counts_have_no_gradient():
    X, y = DATA["iris"]
    proto = to_onnx(KNeighborsClassifier().fit(X, y), X[:1], options={"zipmap": False})
    with pytest.raises(ModelError, match="changes in steps, as counts of neighbours"):
        OrtGradientClassifier(proto).fit(X, y)


def test_text_is_refused():
    codes = {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.5]}
    node = helper.make_node("LabelEncoder", ["X"], ["Y"], domain="ai.onnx.ml", **codes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("X", TensorProto.STRING, ["N", 1])],
                              [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", 1])])  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)])
    with pytest.raises(ModelError, match="has inputs of text, 'X'"):
        OrtGradientRegressor(proto).fit(np.array([["a"], ["b"]]), [1.0, 2.0])


def test_a_file_has_no_estimator_to_write_back_to():
    trained = untrained(CASES[0], made(CASES[0])[1])
    with pytest.raises(ModelError, match="given as ONNX"):
        trained.to_sklearn()


def test_nodes_without_an_opset_are_refused():
    proto = linear_classifier([0, 1], [1.0, 2.0, -1.0, 0.5])
    kept = [one for one in proto.opset_import if one.domain]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    with pytest.raises(ModelError, match="imports no opset of the default domain, and has nodes of it"):
        OrtGradientClassifier(proto).fit(np.eye(2, dtype=np.float32), [0, 1])


def test_dictionaries_need_no_default_opset():
    proto = linear_classifier([0, 2], [1.0, 2.0, -1.0, 0.5])
    del proto.graph.node[1:], proto.graph.output[:], proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    proto.graph.node.append(helper.make_node("ZipMap", ["p"], ["d"], domain="ai.onnx.ml", classlabels_int64s=[0, 2]))
    row = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    proto.graph.output.append(helper.make_tensor_value_info("own", TensorProto.INT64, ["N"]))
    proto.graph.output.append(helper.make_value_info("d", helper.make_sequence_type_proto(row)))
    X = np.random.RandomState(0).standard_normal((20, 2)).astype(np.float32)
    trained = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30)
    trained.fit(X, run(proto, X)[0])
    assert trained.classes_.tolist() == [0, 2]
    assert_allclose(trained.predict_proba(X), run(proto, X)[1], atol=1e-5)
