"""The estimators inside scikit-learn's, as one ONNX graph by skl2onnx: types, options, opsets, names, registration."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx.checker
import onnx.parser
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import make_column_transformer
from sklearn.ensemble import VotingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor, register_converters
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.models import ACTIVATIONS
from tests.helpers.converted_estimators import (
    CLASSIFIERS,
    NUMBERS,
    REGRESSORS,
    TARGETS,
    X,
    columns_of,
    convert,
    fit,
    fitted,
    net,
    regressor,
    results,
    same_labels,
)
from tests.helpers.processes import run_in_new_process

OPSETS = range(15, 22)


OURS_ALONE = ("alone", "hinge", "search")


"""Compositions that compute nothing beside our graph, and so are held to the bit."""


TARGETS_OF_CLASSIFIERS = [
    (name, target) for i, name in enumerate(CLASSIFIERS) for target in ("multiclass", ("binary", "strings")[i % 2])
]
"""Each with several classes, and every other one with two, or with texts."""


@pytest.mark.parametrize(("name", "target"), TARGETS_OF_CLASSIFIERS)
def test_classifiers(name, target):
    estimator = fitted("classifier", name, target)
    for dtype in (np.float32, np.float64):
        data = X.astype(dtype)
        label, values = results(convert(estimator, data, zipmap=False), data)
        same_labels(label, estimator.predict(data))
        assert values.dtype == dtype
        if name != "hard vote":
            tolerance = 0 if name in OURS_ALONE and dtype == np.float32 else 1e-6
            assert_allclose(values, columns_of(estimator, data), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name):
    estimator = fitted("regressor", name, "number")
    for dtype in (np.float32, np.float64):
        data = X.astype(dtype)
        (found,) = results(convert(estimator, data), data)
        assert found.dtype == dtype
        assert found.shape == (len(X), 1)
        tolerance = 0 if name in OURS_ALONE else 1e-5
        assert_allclose(found.ravel(), estimator.predict(data), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "estimator",
    [regressor(), make_pipeline(StandardScaler(), MultiOutputRegressor(regressor())), regressor(loss="poisson")],
    ids=["several numbers", "a model a number", "log link"],
)
def test_regressors_of_other_targets(estimator):
    positive = getattr(estimator, "loss", "") == "poisson"
    estimator = fit(estimator, TARGETS["positive" if positive else "numbers"])
    for dtype in (np.float32, np.float64):
        data = X.astype(dtype)
        (found,) = results(convert(estimator, data), data)
        prediction = estimator.predict(data)
        assert_allclose(found, prediction.reshape(len(X), -1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "target"),
    [
        (net(), "labels"),
        (make_pipeline(StandardScaler(), net()), "labels"),
        (OneVsRestClassifier(net()), "labels"),
        (MultiOutputClassifier(net()), "labels"),
        (MultiOutputClassifier(net()), "label strings"),
    ],
    ids=["alone", "pipeline", "one vs rest", "a model a label", "a model a label of strings"],
)
def test_several_labels(estimator, target):
    estimator = fit(estimator, TARGETS[target])
    for dtype in (np.float32, np.float64):
        data = X.astype(dtype)
        label, values = results(convert(estimator, data, zipmap=False), data)
        same_labels(label, estimator.predict(data))
        assert_allclose(np.array(values), np.array(estimator.predict_proba(data)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("data", [(X * 10).astype(np.int64), (X * 10).astype(np.int32), X > 0], ids=["i8", "i4", "b"])
def test_whole_numbers(data):
    classifier, number = fitted("classifier", "alone", "strings"), fitted("regressor", "alone", "number")
    label, values = results(convert(classifier, data, zipmap=False), data)
    same_labels(label, classifier.predict(data))
    assert_array_equal(values, classifier.predict_proba(data.astype(np.float32)))
    assert_array_equal(results(convert(number, data), data)[0].ravel(), number.predict(data).astype(np.float32))


def test_numbers_as_labels():
    """Like all of skl2onnx: floats become integers, and so do booleans."""
    for labels in (TARGETS["binary"] + 1.0, TARGETS["binary"].astype(bool), TARGETS["binary"].astype(np.uint8)):
        classifier = fit(net(), labels)
        label, values = results(convert(classifier, zipmap=False))
        assert label.dtype == np.int64
        same_labels(label, classifier.predict(X))
        assert_array_equal(values, classifier.predict_proba(X))


def test_frame_of_mixed_columns():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 0, "high", "low")})
    columns = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(), ["c"]))
    pipeline = fit(make_pipeline(columns, net()), TARGETS["strings"], frame)
    proto = convert(pipeline, frame, zipmap=False)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    label, values = session.run(None, {name: frame[[name]].to_numpy() for name in frame})
    same_labels(label, pipeline.predict(frame))
    assert_allclose(values, pipeline.predict_proba(frame), rtol=0, atol=1e-6)


def test_weights_of_equal_members_are_their_own():
    """They start equal, and whoever trains the graph further must find them apart."""
    voting = fit(VotingRegressor([("a", regressor()), ("b", regressor())]), NUMBERS)
    names = {initializer.name for initializer in convert(voting).graph.initializer}
    assert {"layers_0_weight", "layers_0_weight1", "layers_1_bias", "layers_1_bias1"} <= names


def test_nodes_are_named_apart():
    names = [node.name for node in convert(fitted("classifier", "bag", "strings"), zipmap=False).graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("target", ["binary", "strings", "labels"])
def test_opsets_of_a_pipeline(opset, target):
    """The nodes of the union are of earlier opsets than those of the graph."""
    pipeline = fitted("classifier", "union before", target)
    proto = convert(pipeline, opset=opset, zipmap=False)
    assert {entry.version for entry in proto.opset_import if not entry.domain} == {opset}
    label, values = results(proto)
    same_labels(label, pipeline.predict(X))
    assert_allclose(values, pipeline.predict_proba(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("opset", [15, 21])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_in_other_opsets(activation, opset):
    number = fit(regressor(model=MLP((3,), activation), max_iter=1), NUMBERS)
    assert_allclose(results(convert(number, opset=opset))[0].ravel(), number.predict(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", ["binary", "strings"])
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_raw_scores(loss, target):
    classifier = fit(net(loss=loss), TARGETS[target])
    label, values = results(convert(classifier, zipmap=False, raw_scores=True))
    same_labels(label, classifier.predict(X))
    assert_array_equal(values, columns_of(classifier, X, raw_scores=True))


def test_dicts_are_the_default():
    classifier = fitted("classifier", "alone", "strings")
    for options in ({}, {"zipmap": True}):
        label, rows = results(convert(classifier, **options))
        same_labels(label, classifier.predict(X))
        assert [list(row) for row in rows] == [["high", "low", "mid"]] * len(X)
        values = np.array([list(row.values()) for row in rows], dtype=np.float32)
        assert_array_equal(values, classifier.predict_proba(X))


def test_a_column_per_class():
    pipeline = fitted("classifier", "pipeline", "multiclass")
    proto = convert(pipeline, zipmap="columns")
    assert [output.name for output in proto.graph.output] == ["output_label", "i0", "i5", "i10"]
    label, *columns = results(proto)
    same_labels(label, pipeline.predict(X))
    assert_allclose(np.stack(columns, axis=1), pipeline.predict_proba(X), rtol=0, atol=1e-6)


def test_labels_by_number():
    classifier = fitted("classifier", "alone", "strings")
    label, values = results(convert(classifier, zipmap=False, nocl=True))
    assert label.dtype == np.int64
    same_labels(classifier.classes_[label], classifier.predict(X))
    assert_array_equal(values, classifier.predict_proba(X))


def test_classes_as_an_output():
    classifier = fitted("classifier", "alone", "strings")
    label, _, classes = results(convert(classifier, zipmap=False, output_class_labels=True))
    same_labels(label, classifier.predict(X))
    assert classes.tolist() == ["high", "low", "mid"]


def test_options_by_class():
    classifier = fitted("classifier", "alone", "binary")
    options = {OrtGradientClassifier: {"zipmap": False, "raw_scores": True}}
    proto = skl2onnx.to_onnx(classifier, X[:1], options=options, target_opset=18)
    assert_array_equal(results(proto)[1], columns_of(classifier, X, raw_scores=True))


@pytest.mark.parametrize("raw_scores", [False, True])
def test_raw_scores_of_one_vs_rest(raw_scores):
    estimator = fit(OneVsRestClassifier(net(loss="hinge" if raw_scores else "log_loss")), TARGETS["strings"])
    label, values = results(convert(estimator, zipmap=False, raw_scores=raw_scores))
    same_labels(label, estimator.predict(X))
    assert_allclose(values, columns_of(estimator, X, raw_scores), rtol=0, atol=1e-6)


def test_unknown_options():
    with pytest.raises(NameError, match="Option 'scores' not in"):
        convert(fitted("classifier", "alone", "binary"), scores=True)
    with pytest.raises(NameError, match="Option 'zipmap' not in"):
        convert(fitted("regressor", "alone", "number"), zipmap=False)
    with pytest.raises(ValueError, match="Unexpected value"):
        convert(fitted("classifier", "alone", "binary"), zipmap="column")


def test_probabilities_that_a_loss_does_not_give():
    estimator = fit(OneVsRestClassifier(net(loss="hinge")), TARGETS["strings"])
    with pytest.raises(ModelError, match="raw_scores=False asks for probabilities, which this OneVsRestClassifier"):
        convert(estimator, zipmap=False, raw_scores=False)
    label, scores = results(convert(estimator, zipmap=False))
    same_labels(label, estimator.predict(X))
    assert_allclose(scores, estimator.decision_function(X), rtol=0, atol=1e-6)


def test_labels_that_skl2onnx_lacks():
    classifier = net(model=Linear()).partial_fit(X, TARGETS["binary"] + 1.0, classes=[0.5, 1.0, 2.0])
    with pytest.raises(ModelError, match=r"integers or strings, the classes are \[0.5, 1.0, 2.0\]"):
        convert(classifier, zipmap=False)
    label, _ = results(convert(classifier, zipmap=False, nocl=True))
    assert_array_equal(classifier.classes_[label], classifier.predict(X))


@pytest.mark.parametrize("estimator", [net(), regressor()], ids=["classifier", "regressor"])
def test_not_fitted(estimator):
    options = {id(estimator): {"zipmap": False}} if isinstance(estimator, OrtGradientClassifier) else None
    with pytest.raises(NotFittedError):
        skl2onnx.to_onnx(estimator, X[:1], options=options, target_opset=18)


def test_strings_as_input():
    number = fitted("regressor", "alone", "number")
    with pytest.raises(ModelError, match="OrtGradientRegressor takes numbers, got a StringTensorType"):
        skl2onnx.convert_sklearn(number, initial_types=[("X", StringTensorType([None, 4]))], target_opset=18)


def test_two_matrices():
    number, types = fitted("regressor", "alone", "number"), [(n, FloatTensorType([None, 2])) for n in "ab"]
    with pytest.raises(ModelError, match="OrtGradientRegressor takes one matrix, got 2 inputs"):
        skl2onnx.convert_sklearn(number, initial_types=types, target_opset=18)


def test_operators_that_are_not_wanted():
    with pytest.raises(RuntimeError, match="'Gemm' is black listed"):
        skl2onnx.to_onnx(fitted("regressor", "alone", "number"), X[:1], black_op={"Gemm"}, target_opset=18)


def test_register_converters_keeps_the_converter_of_a_user(monkeypatch):
    def declare(operator):
        operator.outputs[0].set_type(FloatTensorType([None, 1]))

    def convert_to_input(scope, operator, container):
        container.add_node("Identity", operator.inputs[0].full_name, operator.outputs[0].full_name, name="users")

    number = fitted("regressor", "alone", "number")
    with monkeypatch.context() as patch:
        patch.setitem(skl2onnx._supported_operators.sklearn_operator_name_map, OrtGradientRegressor, "Users")
        skl2onnx.update_registered_converter(OrtGradientRegressor, "Users", declare, convert_to_input)
        register_converters()
        assert "users" in [node.name for node in convert(number).graph.node]
    assert_array_equal(results(convert(number))[0].ravel(), number.predict(X))


VOTING = """
import pickle, sys
from sklearn.datasets import load_iris
from sklearn.ensemble import VotingClassifier
assert "skl2onnx" not in sys.modules
{first}
import onnxtrain_sklearn
X, y = load_iris(return_X_y=True)
net = onnxtrain_sklearn.OrtGradientClassifier(onnxtrain_sklearn.Linear(), max_iter=1, random_state=0)
model = VotingClassifier([("a", net), ("b", net)], voting="soft", flatten_transform=False).fit(X, y)
def outputs():
    from skl2onnx import to_onnx
    return [output.name for output in to_onnx(model, X[:1].astype("float32"), target_opset=18).graph.output]
{then}
assert outputs() == ["output_label", "output_probability"]
"""


@pytest.mark.slow
def test_import_after_skl2onnx_registers_converters():
    program = VOTING.format(first="import skl2onnx", then="")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


NOT_REGISTERED = """
try:
    outputs()
except KeyError as error:
    assert error.args == (onnxtrain_sklearn.OrtGradientClassifier,)
else:
    raise AssertionError("converted")
onnxtrain_sklearn.register_converters()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        "import skl2onnx\nmodel.fit(X, y)",
        "import skl2onnx\nnet.partial_fit(X, y, [0, 1, 2])",
        "import skl2onnx\nmodel = pickle.loads(pickle.dumps(model))",
        NOT_REGISTERED,
    ],
    ids=["fit", "partial_fit", "unpickling", "register_converters"],
)
def test_later_import_of_skl2onnx_needs_a_call_that_registers(then):
    run_in_new_process(VOTING.format(first="", then=then))


@pytest.mark.slow
def test_register_converters_covers_the_estimators_for_tables():
    program = """
import onnxtrain_sklearn
from skl2onnx._supported_operators import sklearn_operator_name_map as known
assert not any(kind.__module__.startswith("onnxtrain_sklearn") for kind in known)
onnxtrain_sklearn.register_converters()
names = "OrtGradientClassifier OrtGradientRegressor RealMLPClassifier RealMLPRegressor TabMClassifier TabMRegressor"
names += " OrtGradientMultiOutput FeatureStep"
assert {kind.__name__ for kind in known if kind.__module__.startswith("onnxtrain_sklearn")} == set(names.split())
"""
    run_in_new_process(program)
