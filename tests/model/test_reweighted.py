"""Models with other weights, whose graphs are copied late."""

import gc
import threading
import weakref
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._estimators.call import seeded
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ir.queries import structure
from onnxtrain_sklearn._model import weights as model_weights
from onnxtrain_sklearn._model.trainable import trainable_model

X = np.random.RandomState(0).randn(40, 3).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


@pytest.fixture
def source():
    return trainable_model(load(MLP((4,)).build(3, 2, 0)))


@pytest.fixture
def drawn():
    return MLP((4,)).draft(3, 2, 1).weights


def test_graph_and_weights_are_those_of_a_copy(source, drawn):
    found = source.with_weights(drawn)
    before, expected = source.weights(), trainable_model(load(MLP((4,)).build(3, 2, 1)))
    for name, array in expected.weights().items():
        assert_array_equal(found.weights()[name], array)
    assert structure(found.model, ()) == structure(source.model, ())
    assert to_proto(found.model).SerializeToString() == to_proto(expected.model).SerializeToString()
    for name, array in before.items():
        assert_array_equal(source.weights()[name], array)


@pytest.mark.parametrize("limit", [1, 2**23])
@pytest.mark.long
def test_a_large_model_does_not_hold_the_weights_of_its_template(limit, drawn):
    """The form of an untrained network is forgotten where it is too large to be kept for further fits."""
    with mock.patch.object(model_weights, "COPIED_AT_ONCE", limit):
        source = trainable_model(load(MLP((4,)).build(3, 2, 0)))
        template, found = weakref.ref(source.model.graph), source.with_weights(drawn)
        del source
        gc.collect()
        assert (template() is None) == (limit == 1)
        expected = trainable_model(load(MLP((4,)).build(3, 2, 1)))
        assert to_proto(found.model).SerializeToString() == to_proto(expected.model).SerializeToString()
        other = {"layers.0.bias": np.arange(4.0, dtype=np.float32)}
        assert_array_equal(found.with_weights(other).weights()["layers.0.bias"], other["layers.0.bias"])
        assert_array_equal(found.weights()["layers.0.bias"], expected.weights()["layers.0.bias"])


def test_second_change_keeps_the_first(source, drawn):
    other = {"layers.0.bias": np.arange(4.0, dtype=np.float32)}
    for read_between in (False, True):
        once = source.with_weights(drawn)
        if read_between:
            assert once.model.graph is once.model.graph
        found = once.with_weights(other).weights()
        for name, array in {**source.weights(), **drawn, **other}.items():
            assert_array_equal(found[name], array.astype(np.float32))


def test_given_arrays_may_change_later(source, drawn):
    found = source.with_weights(drawn)
    drawn["layers.0.weight"][:] = 7
    assert not (found.weights()["layers.0.weight"] == 7).any()
    assert not (found.model.graph.initializers["layers.0.weight"].const_value.numpy() == 7).any()


def test_threads_get_one_graph(source, drawn):
    model, found, start = source.with_weights(drawn).model, [], threading.Barrier(8)

    def read():
        start.wait()
        found.append(model.graph)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_other_attributes_are_missing(source, drawn):
    with pytest.raises(AttributeError, match="no attribute 'grahp'"):
        source.with_weights(drawn).model.grahp  # noqa: B018


@pytest.mark.parametrize(
    ("estimator", "y"),
    [(OrtGradientClassifier(MLP((4,)), max_iter=2), Y), (OrtGradientRegressor(Linear(), max_iter=2), X[:, 0])],
    ids=["classifier", "regressor"],
)
@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_fits_of_a_known_structure_copy_no_graph(estimator, y, monkeypatch):
    estimator.set_params(random_state=0).fit(X, y).predict(X)
    monkeypatch.setattr(ir.Graph, "clone", lambda *_: 1 / 0)
    expected = estimator.predict(X)
    assert_array_equal(estimator.fit(X, y).predict(X), expected)


@pytest.mark.parametrize("state", [0, 7, np.int64(3), 2**32 - 1])
def test_generators_are_those_of_scikit_learn(state):
    expected = np.random.RandomState(state)
    found = seeded(state)
    for one, other in zip(found.get_state(), expected.get_state(), strict=True):
        assert_array_equal(one, other)
    assert_array_equal(found.permutation(100), expected.permutation(100))
    assert seeded(found) is found


@pytest.mark.parametrize("state", [-1, 2**32])
def test_seeds_out_of_range_are_refused(state):
    with pytest.raises(ValueError, match="Seed must be between 0"):
        seeded(state)
