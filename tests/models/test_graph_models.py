"""Models with settings of how their graph is read: copies, nested parameters, and settings that do not apply."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import (
    MLP,
    GraphModel,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    callbacks,
)
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)
GRAPH = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
    net (float[N, 4] X) => (float[N, 1] a, float[N, 1] b)
    <float[4, 1] A = {1, 0, 0, 0}, float[4, 1] B = {0, 1, 0, 0}> { a = MatMul (X, A)  b = MatMul (X, B) }""")
ONCE = {"max_iter": 1, "random_state": 0}


class OwnBuilder(BaseEstimator):
    """A builder of the user, whose graph is that of another one."""

    def __init__(self, builder=None):
        self.builder = builder

    def build(self, n_features, n_outputs, random_state=None):
        return (self.builder or Linear()).build(n_features, n_outputs, random_state)


@pytest.mark.parametrize("model", [GRAPH, GRAPH.SerializeToString(), MLP((3,)), None, LogisticRegression().fit(X, y)])
def test_default_settings_train_the_same_bits_as_the_plain_model(model):
    plain, wrapped = (OrtGradientClassifier(one, **ONCE).fit(X, y) for one in (model, GraphModel(model)))
    assert_array_equal(wrapped.decision_function(X), plain.decision_function(X))
    assert str(wrapped.describe()) == str(plain.describe())


def test_output_selects_the_weights_that_are_trained():
    fitted = OrtGradientRegressor(GraphModel(GRAPH, "b"), **ONCE).fit(X, y)
    assert set(fitted.weights_) == {"B"}


@pytest.mark.parametrize("copied", [clone, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_keep_settings_and_fitted_models(copied):
    fitted = LogisticRegression().fit(X, y)
    twin = copied(GraphModel(fitted, "name", class_axis=1))
    assert (twin.output, twin.class_axis) == ("name", 1)
    assert twin.graph is fitted or copied is not clone
    assert_array_equal(twin.graph.coef_, fitted.coef_)
    estimator = copied(OrtGradientClassifier(GraphModel(fitted), **ONCE))
    assert_array_equal(estimator.model.graph.coef_, fitted.coef_)


def test_copies_hold_the_protobuf_of_a_program():
    class Program:
        model_proto = GRAPH

        def __reduce__(self):
            raise TypeError("a program cannot be copied")

    for twin in (clone(GraphModel(Program())), pickle.loads(pickle.dumps(GraphModel(Program(), "b")))):
        assert twin.graph == GRAPH


def test_nested_parameters_of_a_graph_make_the_object():
    estimator = OrtGradientRegressor(GRAPH, **ONCE).set_params(model__output="b")
    assert estimator.model.graph is GRAPH
    assert set(estimator.fit(X, y).weights_) == {"B"}
    nested = OrtGradientRegressor(GraphModel(MLP())).set_params(model__graph__hidden_layer_sizes=(2,))
    assert nested.model.graph.hidden_layer_sizes == (2,)
    search = GridSearchCV(OrtGradientRegressor(GRAPH, **ONCE), {"model__output": ["a", "b"]}, cv=2).fit(X, X[:, 1])
    assert search.best_params_ == {"model__output": "b"}  # it is the column


def test_parameters_of_a_fitted_model_are_not_set():
    estimator = OrtGradientClassifier(GraphModel(LogisticRegression().fit(X, y)))
    with pytest.raises(ValueError, match="model__graph__C: the parameters of a fitted model"):
        estimator.set_params(model__graph__C=2.0)
    for graph in (GRAPH, "net.onnx"):
        with pytest.raises(ValueError, match="graph__x sets a parameter of graph, which has none"):
            OrtGradientRegressor(GraphModel(graph)).set_params(model__graph__x=1)


def test_later_calls_accept_the_wrapped_form_of_the_same_model():
    estimator = OrtGradientRegressor(GRAPH, warm_start=True, **ONCE).fit(X, y)
    assert estimator.set_params(model=GraphModel(GRAPH)).fit(X, y).n_iter_ == 2
    with pytest.raises(ModelError, match="output was changed from None to b"):
        estimator.set_params(model=GraphModel(GRAPH, "b")).fit(X, y)


def test_a_checkpoint_belongs_to_one_reading_of_the_graph(tmp_path):
    for kind, expected in (("auto", 1), ("scores", 2)):
        model = GraphModel(GRAPH, "a", output_kind=kind)
        OrtGradientRegressor(model, callbacks=[callbacks.Checkpoint(tmp_path)], **ONCE).fit(X, y)
        assert len(list(tmp_path.iterdir())) == expected


REFUSED = {
    "output of a builder": (OrtGradientClassifier, GraphModel(MLP(), "scores"), "names an output of a given ONNX"),
    "output of a fitted model": (
        OrtGradientClassifier, GraphModel(LogisticRegression().fit(X, y), "scores"), "model is a LogisticRegression",
    ),
    "mode of a builder": (OrtGradientClassifier, GraphModel(MLP(), training_mode=True), "is for given ONNX graphs"),
    "mode of a builder of one's own": (
        OrtGradientClassifier, GraphModel(OwnBuilder(), training_mode=True), "a builder decides in which mode",
    ),
    "kind of a builder": (OrtGradientClassifier, GraphModel(MLP(), output_kind="scores"), "is for given ONNX graphs"),
    "kind of a regressor": (OrtGradientClassifier, GraphModel(GRAPH, output_kind="means"), "not for OrtGradientClass"),
    "kind by output": (OrtGradientClassifier, GraphModel(GRAPH, output_kind={"a": "auto"}), "is by output, and .* one"),
    "axis of a regressor": (OrtGradientRegressor, GraphModel(GRAPH, class_axis=1), "class_axis=1 is for class"),
    "axis by output": (OrtGradientClassifier, GraphModel(GRAPH, class_axis={"a": 1}), "is by output, and .* one"),
    "misspelt kind": (OrtGradientClassifier, GraphModel(GRAPH, output_kind="score"), "Did you mean 'scores'"),
    "a name that is none": (OrtGradientClassifier, GraphModel(GRAPH, output=3), "'output' parameter of GraphModel"),
    "settings of settings": (OrtGradientClassifier, GraphModel(GraphModel(GRAPH)), "'graph' parameter of GraphModel"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_do_not_apply_are_refused(name):
    kind, model, match = REFUSED[name]
    estimator = kind(model, **ONCE)
    before = dict(vars(estimator))
    with pytest.raises((ValueError, ModelError), match=match):
        estimator.fit(X, y)
    assert vars(estimator) == before


def test_several_outputs_refuse_the_name_of_one():
    losses = {"a": "squared_error", "b": "squared_error"}
    targets = {"a": X[:, 0], "b": X[:, 1]}
    estimator = OrtGradientMultiOutput(GraphModel(GRAPH, "a"), loss=losses, **ONCE)
    with pytest.raises(ValueError, match="output='a' names one output of the graph; the keys of loss"):
        estimator.fit(X, targets)
    with pytest.raises(InvalidParameterError, match="output_kind='means' is not for OrtGradientMultiOutput"):
        estimator.set_params(model=GraphModel(GRAPH, output_kind="means")).fit(X, targets)
    with pytest.raises(ValueError, match="Output 'a': class_axis is for classification"):
        estimator.set_params(model=GraphModel(GRAPH, class_axis={"a": 1})).fit(X, targets)
    assert estimator.set_params(model=GraphModel(GRAPH, output_kind={"a": "scores"})).fit(X, targets).n_iter_ == 1


def test_output_kind_applies_to_user_defined_builders():
    scores = OrtGradientClassifier(GraphModel(OwnBuilder(), output_kind="scores"), **ONCE).fit(X, y)
    auto = OrtGradientClassifier(OwnBuilder(), **ONCE).fit(X, y)
    assert_array_equal(scores.predict_proba(X), auto.predict_proba(X))
