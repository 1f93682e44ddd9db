"""What `to_onnx` gives: skl2onnx's names and types, and the numbers of the estimator to the bit."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx.checker
import onnx.parser
import onnxruntime
import pytest
import skl2onnx
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
NUMBERS = X @ [1.0, 2.0, 3.0]
TARGETS = {
    "two classes": np.where(X[:, 0] > 0, 7, -3),
    "two strings": np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)],
    "booleans": X[:, 0] > 0,
    "floats": np.where(X[:, 0] > 0, 2.0, 1.0),
    "three classes": X.argmax(axis=1) * 5,
    "three strings": np.array(["low", "high", "mid"])[X.argmax(axis=1)],
    "labels": (X > 0).astype(int),
}
FORMS = {
    "plain": {},
    "dicts": {"zipmap": True},
    "columns": {"zipmap": "columns"},
    "scores": {"raw_scores": True},
    "dicts of scores": {"zipmap": True, "raw_scores": True},
    "columns of scores": {"zipmap": "columns", "raw_scores": True},
}


def fit_quietly(estimator, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y)


@cache
def fitted_for_export(target, loss="log_loss", columns=None):
    """A classifier; ``columns`` asks for a graph with so many scores."""
    model = MLP((4,)) if columns is None else MLP((4,)).build(3, columns, 0)
    classifier = OrtGradientClassifier(model, loss=loss, max_iter=3, learning_rate_init=0.05, random_state=0)
    return fit_quietly(classifier, TARGETS[target])


def export_results(proto, feed=X, name="X"):
    """The outputs of a graph by name; the graph must be valid."""
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {name: feed}), strict=True))


def expected_outputs(classifier, raw_scores=False):
    """The columns that stand beside the label, by the methods of the estimator."""
    if hasattr(classifier, "predict_proba") and not raw_scores:
        return classifier.predict_proba(X)
    scores = classifier.decision_function(X)
    return np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores


def described(output):
    """Name, element types and sizes of an output; names of axes are free."""
    kind = output.type
    if kind.HasField("sequence_type"):
        row = kind.sequence_type.elem_type.map_type
        return output.name, row.key_type, row.value_type.tensor_type.elem_type
    tensor = kind.tensor_type
    return output.name, tensor.elem_type, [d.dim_value for d in tensor.shape.dim]


def outputs_of(proto):
    return [described(output) for output in proto.graph.output]


def by_skl2onnx(estimator, options=None):
    options = None if options is None else {id(estimator): options}
    return skl2onnx.to_onnx(estimator, X[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


# Names and types


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["two classes", "two strings", "booleans", "three classes", "three strings"])
def test_outputs_are_those_of_skl2onnx(target, form):
    theirs = by_skl2onnx(LogisticRegression().fit(X, TARGETS[target]), {"zipmap": False} | FORMS[form])
    assert outputs_of(fitted_for_export(target).to_onnx(**FORMS[form])) == outputs_of(theirs)


@pytest.mark.parametrize("form", ["plain", "columns"])
def test_outputs_for_several_labels_are_those_of_skl2onnx(form):
    theirs = by_skl2onnx(
        fit_quietly(MLPClassifier((2,), max_iter=1), TARGETS["labels"]), {"zipmap": False} | FORMS[form]
    )
    ours, theirs = outputs_of(fitted_for_export("labels").to_onnx(**FORMS[form])), outputs_of(theirs)
    assert ours[0] == (theirs[0][0], theirs[0][1], [0, 3])  # skl2onnx leaves out the second axis
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize("y", [NUMBERS, np.stack([NUMBERS, -NUMBERS], axis=1)], ids=["one number", "two numbers"])
def test_output_of_a_regressor_is_that_of_skl2onnx(y):
    regressor = fit_quietly(OrtGradientRegressor(MLP((4,)), max_iter=1), y)
    ((name, kind, sizes),) = outputs_of(by_skl2onnx(fit_quietly(MLPRegressor(hidden_layer_sizes=(2,), max_iter=1), y)))
    sizes[1] = y.size // len(y)  # skl2onnx declares one column for two as well
    assert outputs_of(regressor.to_onnx()) == [(name, kind, sizes)]
    assert_array_equal(export_results(regressor.to_onnx())[name].reshape(y.shape), regressor.predict(X))


# Values


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize("target", TARGETS)
def test_values_are_those_of_the_estimator(target, loss, form):
    classifier, options = fitted_for_export(target, loss), FORMS[form]
    zipmap, raw_scores = options.get("zipmap"), options.get("raw_scores", False)
    label, *values = export_results(classifier.to_onnx(**options)).values()
    prediction = classifier.predict(X)
    assert label.shape == prediction.shape
    assert_array_equal(label.astype(prediction.dtype), prediction)
    columns = expected_outputs(classifier, raw_scores)
    if zipmap is True:
        (rows,) = values
        assert [list(row) for row in rows] == [classifier.classes_.tolist()] * len(X)
        values = np.array([list(row.values()) for row in rows], dtype=np.float32)
        assert_array_equal(values, columns)
    elif zipmap == "columns":
        assert [v.shape for v in values] == [(len(X),)] * len(classifier.classes_)
        assert_array_equal(np.stack(values, axis=1), columns)
    elif loss == "hinge" and not raw_scores:
        assert_array_equal(values[0], columns[:, -1:] if len(classifier.classes_) == 2 else columns)
    else:
        assert_array_equal(values[0], columns)


@pytest.mark.parametrize(
    ("target", "names"),
    [("two classes", ["i-3", "i7"]), ("two strings", ["sno", "syes"]), ("floats", ["s1.0", "s2.0"])],
)
def test_columns_are_named_by_their_class(target, names):
    assert list(export_results(fitted_for_export(target).to_onnx(zipmap="columns"))) == ["output_label", *names]


@pytest.mark.parametrize("form", FORMS)
def test_two_scores_of_two_classes(form):
    """A graph that ends in one score a class has one decision for the two."""
    classifier = fitted_for_export("two classes", columns=2)
    outputs = list(export_results(classifier.to_onnx(**FORMS[form])).values())
    columns = expected_outputs(classifier, FORMS[form].get("raw_scores", False))
    if FORMS[form].get("zipmap") is True:
        assert_array_equal(np.array([list(row.values()) for row in outputs[1]], dtype=np.float32), columns)
    else:
        found = np.stack(outputs[1:], axis=1) if form.startswith("columns") else outputs[1]
        assert_array_equal(found, columns)
    assert columns.shape == (len(X), 2)


def test_double_graph():
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]> g (double[N, 3] X) => (double[N, 3] Y)
        <double[3, 3] W = {-1, -0.9, -0.4, -0.3, 0.1, 0.2, 0.3, 0.7, 1}> { Y = MatMul(X, W) }""")
    classifier = fit_quietly(OrtGradientClassifier(proto, max_iter=2, random_state=0), TARGETS["three strings"])
    exact = classifier.predict_proba(X)
    assert exact.dtype == np.float64
    feed = X.astype(np.float64)
    assert_array_equal(export_results(classifier.to_onnx(), feed)["probabilities"], exact)
    columns = export_results(classifier.to_onnx(zipmap="columns"), feed)
    assert_array_equal(np.stack([columns["shigh"], columns["slow"], columns["smid"]], axis=1), exact)
    rows = export_results(classifier.to_onnx(zipmap=True), feed)[
        "output_probability"
    ]  # ZipMap knows single precision alone
    assert_array_equal(np.array([list(row.values()) for row in rows], dtype=np.float32), exact.astype(np.float32))


@pytest.mark.parametrize("taken", ["output_label", "output_probability", "probabilities", "predict/ZipMap"])
def test_names_that_the_graph_has_already(taken):
    body = '<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] X) => (float[N, 1] Y) <float[3, 1] W = {1, 2, 3}> {'
    proto = onnx.parser.parse_model(f'{body} "{taken}" = MatMul(X, W) Y = Sigmoid("{taken}") }}')
    classifier = fit_quietly(OrtGradientClassifier(proto, max_iter=1), TARGETS["two classes"])
    outputs = export_results(classifier.to_onnx(zipmap=True))
    assert list(outputs) == ["output_label", "output_probability"]
    rows = np.array([list(row.values()) for row in outputs["output_probability"]], dtype=np.float32)
    assert_array_equal(rows, classifier.predict_proba(X))


def test_export_options_leave_estimator_unchanged():
    classifier = fitted_for_export("three strings")
    before = classifier.to_onnx().SerializeToString()
    assert classifier.to_onnx(zipmap=True, raw_scores=True).SerializeToString() != before
    assert classifier.to_onnx().SerializeToString() == before
    assert classifier.model_.SerializeToString() == before


def test_only_dicts_need_the_operators_for_machine_learning():
    classifier = fitted_for_export("three strings")
    for options in FORMS.values():
        domains = {entry.domain for entry in classifier.to_onnx(**options).opset_import}
        assert domains == ({"", "ai.onnx.ml"} if options.get("zipmap") is True else {""})


# Errors


@pytest.mark.parametrize("value", ["column", None, 1, [True]])
def test_zipmap_that_there_is_not(value):
    with pytest.raises(ValueError, match="zipmap must be False, True or 'columns', got"):
        fitted_for_export("two classes").to_onnx(zipmap=value)


@pytest.mark.parametrize("value", ["yes", None, 1])
def test_raw_scores_that_there_are_not(value):
    with pytest.raises(ValueError, match="raw_scores must be True or False, got"):
        fitted_for_export("two classes").to_onnx(raw_scores=value)


def test_options_that_there_are_not():
    regressor = fit_quietly(OrtGradientRegressor(Linear(), max_iter=1), NUMBERS)
    for option in ("zipmap", "raw_scores"):
        with pytest.raises(TypeError, match=rf"OrtGradientRegressor\.to_onnx\(\).*'{option}'"):
            regressor.to_onnx(**{option: True})
    with pytest.raises(TypeError, match=r"OrtGradientClassifier\.to_onnx\(\).*'nocl'"):
        fitted_for_export("two classes").to_onnx(nocl=True)


@pytest.mark.parametrize("kind", [OrtGradientClassifier, OrtGradientRegressor])
def test_nothing_to_export_before_fit(kind):
    with pytest.raises(NotFittedError):
        kind().to_onnx()


def test_keys_that_onnx_lacks():
    classifier = OrtGradientClassifier(Linear()).partial_fit(X, TARGETS["floats"], classes=[0.5, 1.0, 2.0])
    with pytest.raises(ModelError, match=r"integers or strings, the labels are \[0.5, 1.0, 2.0\]. Leave zipmap=False"):
        classifier.to_onnx(zipmap=True)
    assert list(export_results(classifier.to_onnx(zipmap="columns"))) == ["output_label", "s0.5", "s1.0", "s2.0"]
