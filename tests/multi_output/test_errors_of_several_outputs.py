"""What an estimator of several outputs refuses, in sentences that say what to do; and graphs that it takes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, numpy_helper, parser
from sklearn.linear_model import Ridge

from onnxtrain_sklearn import MLP, GraphModel, Inputs, OrtGradientMultiOutput
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError
from onnxtrain_sklearn.losses import Loss
from tests.helpers.several_outputs import data, graph
from tests.helpers.training import NEVER
from tests.multi_output.test_multi_output import PAIR, TARGETS, Y, run

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, _ = data(60)


class Fourth(Loss):
    def __call__(self, op, scores, y, link):
        squared = op.Mul(op.Sub(scores, y), op.Sub(scores, y))
        return op.Mul(squared, squared)


class FourthOfNumbers(Fourth):
    tasks = frozenset({"regression"})


def net(model=None, **parameters):
    defaults = {"loss": PAIR, "max_iter": 2, "random_state": 0}
    return OrtGradientMultiOutput(graph(list(PAIR)) if model is None else model, **defaults | parameters)


REFUSED = [
    ({"loss": None}, {}, "loss must be a dict with a loss for each output"),
    ({"loss": {}}, {}, "loss must be a dict with a loss for each output"),
    ({"loss": "log_loss"}, {}, "'loss' parameter of OrtGradientMultiOutput must be a dict of losses by output"),
    ({"loss": {"class": "log_los"}}, {}, "Output 'class': Unknown loss 'log_los'. Did you mean 'log_loss'"),
    ({"loss": {"klass": "log_loss"}}, {"y": {"klass": Y["class"]}}, "output='klass' is no output of the graph."),
    ({"loss": {**PAIR, "number": Fourth()}}, {}, "Output 'number': Fourth is for regression and for classification"),
    ({"loss_weights": {"klass": 1}}, {}, "loss_weights names 'klass', an output without a loss. Did you mean 'class'"),
    ({"loss_weights": {"class": -1}}, {}, "loss_weights must be finite numbers, not negative, got -1"),
    ({"loss_weights": {"class": np.nan}}, {}, "loss_weights must be finite numbers, not negative, got nan"),
    ({"loss_weights": dict.fromkeys(PAIR, 0)}, {}, "loss_weights are all zero"),
    ({"loss_weights": [1, 2]}, {}, "'loss_weights' parameter of OrtGradientMultiOutput must be a dict of numbers"),
    ({"class_weight": {"number": {1: 2}}}, {}, "Output 'number': class_weight is for classification"),
    ({"class_weight": {"class": {"a": -1}}}, {}, "Output 'class': class_weight must contain non-negative numbers"),
    ({"model__output_kind": {"number": "probabilities"}}, {}, "Output 'number': output_kind='probabilities' is not"),
    ({"model__output_kind": {"size": "scores"}}, {}, "output_kind names 'size', an output without a loss"),
    ({"model": MLP()}, {}, "model must be an ONNX graph with the outputs .*Builders and fitted models have one output"),
    ({"model": Ridge()}, {}, "model must be an ONNX graph with the outputs"),
    ({"scoring": "r2", "early_stopping": True}, {}, "scoring must be a function"),
    ({}, {"y": None}, "requires y to be passed"),
    ({}, {"y": Y["class"]}, "y must be a dict of arrays by output of the graph, Inputs"),
    ({}, {"y": {"class": Y["class"]}}, r"y lacks the output\(s\) \['number'\]"),
    ({}, {"y": {**TARGETS, "size": Y["number"]}}, "y names 'size', an output without a loss"),
    ({}, {"y": {**TARGETS, "number": np.full(60, np.nan)}}, "Output 'number': Input y contains NaN"),
    ({}, {"y": {**TARGETS, "number": Y["numbers"]}}, "Output 'number': The graph's output has 1 column"),
    ({}, {"y": {**TARGETS, "class": np.arange(60) % 4}}, "Output 'class': The graph's output has 3 column"),
    ({}, {"y": {**TARGETS, "class": Y["class"][:50]}}, "Output 'class': Found input variables with inconsistent"),
    ({}, {"sample_weight": {"klass": np.ones(60)}}, "sample_weight names 'klass'"),
    ({}, {"sample_weight": {"class": np.ones(9)}}, "Output 'class': sample_weight.shape == "),
    ({}, {"sample_weight": dict.fromkeys(PAIR, np.zeros(60))}, "The sum of sample_weight is zero"),
    ({}, {"classes": ["a", "b", "c"]}, "classes must be a dict of labels by output, got list"),
    ({}, {"classes": {"class": ["c", "b", "a"]}}, "Output 'class': classes must be sorted"),
    ({}, {"X_val": X}, "X_val and y_val belong together"),
    ({}, {"X_val": X, "y_val": {"class": Y["class"]}}, "y_val lacks the output"),
]


@pytest.mark.parametrize(("parameters", "arguments", "match"), REFUSED, ids=[match[:60] for *_, match in REFUSED])
def test_refused(parameters, arguments, match):
    estimator = net().set_params(**parameters)
    with pytest.raises((ValueError, TypeError), match=match):
        estimator.fit(**{"X": X, "y": TARGETS, **arguments})
    assert not hasattr(estimator, "classes_")


def test_other_outputs_on_a_later_call():
    estimator = net(warm_start=True).fit(X, TARGETS)
    before = estimator.weights_
    estimator.set_params(loss={"class": "log_loss"})
    with pytest.raises(ModelError, match="loss was changed from the outputs"):
        estimator.fit(X, {"class": Y["class"]})
    estimator.set_params(loss=PAIR, model__output_kind="scores")
    with pytest.raises(ModelError, match="output_kind was changed"):
        estimator.fit(X, TARGETS)
    assert all((array == before[name]).all() for name, array in estimator.weights_.items())


def test_validation_rows_without_a_label_of_an_output():
    weight = {"class": np.r_[np.ones(40), np.zeros(20)]}
    with pytest.raises(ValueError, match="Output 'class': The sum of sample_weight_val is zero"):
        net().fit(X, TARGETS, X_val=X, y_val=TARGETS, sample_weight_val={"class": np.zeros(60), "number": np.ones(60)})
    few = {"class": (np.arange(60) > 56).astype(float)}
    with pytest.raises(ValueError, match="Output 'class': The validation rows have no positive weight"):
        net(early_stopping=True).fit(X, TARGETS, few)
    assert np.isfinite(net().fit(X, TARGETS, X_val=X, y_val=TARGETS, sample_weight_val=weight).validation_scores_[-1])


def test_probabilities_whose_scores_cannot_be_found_and_means():
    mean = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 5] X) => (float[N, 3] class, float[N, 1] count)
        <float[5, 3] A = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1}, float[5, 1] C = {0.1, 0.2, 0, 0, 0},
         float[5, 3] B = {1, 2, 3, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1}> {
          a = MatMul (X, A)  b = MatMul (X, B)  p = Softmax (a)  q = Softmax (b)  sum = Add (p, q)
          half = Constant <value_float = 0.5> ()  class = Mul (sum, half)  c = MatMul (X, C)  count = Softplus (c) }""")
    kinds = {"class": "probabilities", "count": "means"}
    estimator = net(
        GraphModel(mean, output_kind=kinds), loss={"class": "log_loss", "count": "poisson"}, learning_rate_init=0.0
    )
    estimator.fit(X, {"class": Y["class"], "count": Y["count"]})
    given = run(mean, {"X": X})
    assert_allclose(estimator.predict_proba(X)["class"], given["class"], rtol=1e-4, atol=1e-6)
    assert_allclose(estimator.predict(X)["count"], given["count"].ravel(), rtol=1e-4)


def test_a_loss_of_the_user():
    estimator = net(loss={**PAIR, "number": FourthOfNumbers()}, tol=NEVER, max_iter=60, learning_rate_init=0.02)
    assert estimator.fit(X, TARGETS).output_scores(X, TARGETS)["number"] > 0.7


def test_several_inputs_and_running_statistics():
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 5] rows, float[N, 1] more) => (float[N, 3] class, float[N, 1] number)
        <float[5, 3] A = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1}, float[3] scale = {1, 1, 1}, float[3] shift = {0,
         0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}, float[3, 1] B = {1, 2, 3}> {
          a = MatMul (rows, A)  class = BatchNormalization (a, scale, shift, mean, var)
          b = MatMul (class, B)  number = Add (b, more) }""")
    estimator = net(GraphModel(proto, training_mode=True), engine="portable", batch_size=25)
    rows = Inputs({"rows": X, "more": X[:, :1]})
    estimator.fit(rows, TARGETS)
    assert (estimator.weights_["mean"] != 0).all()
    assert_allclose(
        run(estimator.to_onnx(), rows.arrays)["number"].ravel(), estimator.predict(rows)["number"], rtol=1e-6
    )


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_types_of_numbers(kind):
    proto = graph(list(PAIR))
    proto.graph.ClearField("value_info")
    dtype = {TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}[kind]
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = kind
    for one in proto.graph.initializer:
        one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one).astype(dtype), one.name))
    onnx.checker.check_model(proto, full_check=True)
    estimator = net(proto, max_iter=30, learning_rate_init=0.02).fit(X, TARGETS)
    found = run(estimator.to_onnx(), {"X": X.astype(dtype)})
    assert found["number"].dtype == dtype
    assert_allclose(found["number"].ravel(), estimator.predict(X)["number"], rtol=2e-3, atol=2e-3)
    assert_array_equal(found["class_label"], estimator.predict(X.astype(dtype))["class"])


def test_parameters_are_checked_before_the_data():
    with pytest.raises(InvalidParameterError, match="'max_iter' parameter of OrtGradientMultiOutput"):
        net(max_iter=0).fit(X, Y["class"])


@pytest.mark.parametrize("class_weight", ["balanced", {"class": "balanced"}], ids=str)
def test_balanced_classes_need_all_rows(class_weight):
    """Each call of `partial_fit` would weigh the classes by its own rows."""
    model = net(class_weight=class_weight)
    with pytest.raises(ValueError, match="class_weight='balanced' needs all data at once, partial_fit sees a part"):
        model.partial_fit(X, TARGETS, classes={"class": ["a", "b", "c"]})
