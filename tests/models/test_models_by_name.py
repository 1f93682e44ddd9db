"""Builders by name: ``model="mlp"`` is ``MLP()`` in every respect, nested parameters and searches included."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import MLP, GraphModel, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.models import MODELS, resolve_builder

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = make_classification(60, 5, random_state=0)
X = X.astype(np.float32)
SETTINGS = {"max_iter": 3, "random_state": 0}


@pytest.mark.parametrize(
    ("estimator", "name"), [*((OrtGradientClassifier, name) for name in MODELS), (OrtGradientRegressor, "mlp")]
)
def test_name_trains_like_its_object(estimator, name):
    named = estimator(name, **SETTINGS).fit(X, Y)
    built = estimator(MODELS[name](), **SETTINGS).fit(X, Y)
    assert named.model == name
    assert named.weights_.keys() == built.weights_.keys()
    for key, array in built.weights_.items():
        assert_array_equal(named.weights_[key], array)


def test_nested_parameters_are_set_by_name():
    estimator = OrtGradientClassifier("mlp").set_params(model__hidden_layer_sizes=(3,))
    assert estimator.model.get_params() == MLP((3,)).get_params()
    grid = {"model__hidden_layer_sizes": [(2,), (4,)]}
    search = GridSearchCV(OrtGradientClassifier("mlp", **SETTINGS), grid, cv=2, error_score="raise").fit(X, Y)
    sizes = search.best_params_["model__hidden_layer_sizes"]
    assert search.best_estimator_.weights_["layers.0.weight"].shape == (5, *sizes)


def test_names_are_values_of_a_search():
    search = GridSearchCV(OrtGradientClassifier(**SETTINGS), {"model": ["mlp", "linear"]}, cv=2, error_score="raise")
    assert len(search.fit(X, Y).cv_results_["params"]) == 2


def test_a_warm_start_takes_the_name_for_the_object():
    estimator = OrtGradientClassifier("mlp", warm_start=True, **SETTINGS).fit(X, Y)
    for model in (MLP(), None, "mlp"):
        estimator.set_params(model=model).fit(X, Y)
    assert estimator.n_iter_ == 12
    with pytest.raises(ValueError, match="model was changed"):
        estimator.set_params(model="linear").fit(X, Y)


def test_copies_keep_the_name():
    fitted = OrtGradientClassifier("linear", **SETTINGS).fit(X, Y)
    assert clone(fitted).model == pickle.loads(pickle.dumps(fitted)).model == "linear"
    assert str(OrtGradientClassifier("mlp").describe()).startswith("MLP(): fit builds the graph")


def test_a_misspelt_name_gets_the_nearest_one():
    with pytest.raises(ValueError, match=r"Unknown model 'mpl'.* Did you mean 'mlp'.*'linear', 'mlp'.*paths of ONNX"):
        OrtGradientClassifier("mpl").fit(X, Y)


def test_outputs_and_their_kinds_are_for_given_graphs():
    with pytest.raises(ValueError, match=r"output='scores' names an output of a given.*model is 'mlp'"):
        OrtGradientClassifier(GraphModel("mlp", output="scores")).fit(X, Y)
    with pytest.raises(ValueError, match="output_kind='scores' is for given ONNX graphs"):
        OrtGradientClassifier(GraphModel("mlp", output_kind="scores")).fit(X, Y)


def test_resolve_builder_takes_names_and_leaves_files():
    assert resolve_builder("net.onnx") is None
    assert resolve_builder(b"") is None
    assert isinstance(resolve_builder(None), MLP)
    assert isinstance(resolve_builder("linear"), Linear)
