"""Labels of files of fitted models: their order, rules, types and opsets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC

from onnxtrain_sklearn import GraphModel, OrtGradientClassifier
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.ml_files import DATA, IRIS, NAMES, file_of, run

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # skl2onnx reads what scikit-learn means to drop
]


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


def test_first_partial_fit_without_labels_needs_classes():
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


def test_labels_by_custom_rule_are_refused():
    X = np.random.RandomState(0).standard_normal((60, 2)).astype(np.float32)
    other = [helper.make_node("Mul", ["own", "own"], ["label"])]
    proto = linear_classifier([0, -1, 1], [1.0, 2.0, -1.0, 0.5, 0.0, -2.0], extra=other)
    assert set(run(proto, X)[0]) == {0, 1}
    with pytest.raises(ModelError, match=r"predict\(\) differs from the label of the file in \d+% of the rows"):
        OrtGradientClassifier(proto).fit(X, np.arange(60) % 3)


def test_two_labels_a_row_that_are_one():
    """Both are the first operator's label, but the scores are those of its two classes: no model of two labels."""
    twice = [
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        helper.make_node("Unsqueeze", ["own", "axis"], ["column"]),
        helper.make_node("Concat", ["column", "column"], ["label"], axis=1),
    ]
    proto = linear_classifier([0, 2], [1.0, 2.0, -1.0, 0.5], extra=twice)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("label", TensorProto.INT64, ["N", 2]))
    X, y = np.random.RandomState(0).standard_normal((20, 2)).astype(np.float32), np.arange(20) % 2 * 2
    with pytest.raises(ValueError, match="predicts 2 labels a row, and y has 1"):
        OrtGradientClassifier(proto, max_iter=1).fit(X, y)
    with pytest.raises((ModelError, ValueError), match=r"refused|cannot model"):
        OrtGradientClassifier(proto, max_iter=1).fit(X, np.stack([y, y], axis=1))


def test_unnamed_labels_are_zero_or_one():
    twice = [
        helper.make_node("Mul", ["own", "own"], ["square"]),
        helper.make_node("Constant", [], ["shape"], value_ints=[-1, 1]),
        helper.make_node("Reshape", ["square", "shape"], ["column"]),
        helper.make_node("Concat", ["column", "column"], ["label"], axis=1),
    ]
    proto = linear_classifier([0, 2], [1.0, 2.0, -1.0, 0.5], extra=twice)
    X, y = np.random.RandomState(0).standard_normal((20, 2)).astype(np.float32), np.arange(20) % 2 * 4
    with pytest.raises(ModelError, match="2 labels a row in 'label' that are not 0 or 1"):
        OrtGradientClassifier(proto, max_iter=1).fit(X, np.stack([y, y], axis=1))


def test_labels_are_no_output_to_train():
    classifier = OrtGradientClassifier(GraphModel(linear_classifier([0, 2], [1.0, 2.0, -1.0, 0.5]), output="label"))
    with pytest.raises(ModelError, match=r"output='label' is of type .*; only floats are trained: name 'p'"):
        classifier.fit([[0, 1]] * 4, [0, 2] * 2)


def test_nodes_without_an_opset_are_refused():
    proto = linear_classifier([0, 1], [1.0, 2.0, -1.0, 0.5])
    kept = [one for one in proto.opset_import if one.domain]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    with pytest.raises(ModelError, match="has nodes of the default domain, but imports no opset"):
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


def margins_of(estimator, X, y):
    """Return a fitted estimator, and its file with margins in place of probabilities."""
    fitted = estimator.fit(X, y)
    options = {id(fitted): {"zipmap": False, "raw_scores": True}}
    return fitted, to_onnx(fitted, X[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


def test_two_margins_are_one_score():
    """The softmax of (-s, s) would be the sigmoid of 2 s."""
    X, y = DATA["cancer"]
    fitted, proto = margins_of(OneVsRestClassifier(LogisticRegression()), X, y)
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    expected = fitted.decision_function(X.astype(np.float64))
    assert_allclose(run(proto, X)[1][:, 1], expected, rtol=1e-4, atol=1e-4)
    assert_allclose(start.decision_function(X), expected, rtol=1e-4, atol=1e-4)


def test_margins_of_pairs_of_three_classes_are_not_scores_of_classes():
    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    fitted, proto = margins_of(SVC(decision_function_shape="ovo"), X, y)
    label, margins = run(proto, X)
    assert (margins.argmax(axis=1) != label).mean() > 0.5  # read as scores of classes, they would be refused
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    sure = np.abs(fitted.decision_function(X)).min(axis=1) > 1e-3
    assert_array_equal(start.predict(X)[sure], fitted.predict(X)[sure])


def test_margins_that_point_away_from_the_labels_are_refused():
    X, y = DATA["cancer"]
    _, proto = margins_of(SVC(probability=True, random_state=0), X, y)
    label, margins = run(proto, X)
    assert (margins <= 0).all()  # negative probabilities
    assert (margins.argmax(axis=1) != label).mean() > 0.9
    with pytest.raises(ModelError, match="labels of the file are not the classes of the largest scores"):
        OrtGradientClassifier(proto, max_iter=1).fit(X, y)


def test_probabilities_that_random_rows_do_not_show():
    X, y = load_digits(return_X_y=True)
    X, y = X[:300].astype(np.float32), y[:300]
    fitted = GaussianNB().fit(X, y)
    proto = to_onnx(fitted, X[:1], options={id(fitted): {"zipmap": False}}, target_opset={"": 18, "ai.onnx.ml": 3})
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    assert_allclose(start.predict_proba(X), run(proto, X)[1], atol=1e-5)


def test_saturated_probabilities_are_compared_by_their_scores():
    """In float32 sigmoids of large scores are equal, and the file takes the first; the model compares logarithms."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:300].astype(np.float32), y[:300]
    fitted = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    proto = to_onnx(fitted, X[:1], options={id(fitted): {"zipmap": False}}, target_opset={"": 18, "ai.onnx.ml": 3})
    start = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
    rng = np.random.RandomState(1)
    other = np.stack([rng.permutation(column) for column in X.T], axis=1)
    scores = np.sort(fitted.decision_function(other.astype(np.float64)), axis=1)
    # logarithms of sigmoids in float32 differ until both scores are beyond 100; then the model takes the first, too
    clear = (scores[:, -1] - scores[:, -2] > 1e-5 * np.abs(scores).max()) & (scores[:, -2] < 80)
    right = fitted.predict(other.astype(np.float64))[clear]
    assert (run(proto, other)[0][clear] != right).mean() > 0.2
    assert_array_equal(start.predict(other)[clear], right)
