"""Graphs of builders from drafts: the form is shared by the fits of a process, the numbers of a fit never."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from onnx import numpy_helper

from onnxtrain_sklearn import (
    MLP,
    Linear,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLP,
    TabM,
    clear_cache,
)
from onnxtrain_sklearn._data.columns import InputData
from onnxtrain_sklearn._data.targets import Targets
from onnxtrain_sklearn._estimators import graph_plan as module
from onnxtrain_sklearn._estimators.call import EncodedData
from onnxtrain_sklearn._estimators.graph_plan import built_graph
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.queries import structure
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn.models import Embedded, PeriodicEmbedding, PiecewiseLinearEmbedding, embeddings
from onnxtrain_sklearn.models.base import keywords_of

CODES = {4: 4, 5: 12, 6: 3}
SETTINGS = {"max_iter": 2, "learning_rate": "cosine", "random_state": 3, "learning_rate_init": 0.01}


def table(seed, n=60):
    rng = np.random.RandomState(seed)
    codes = [rng.randint(0, size, n) for size in CODES.values()]
    return np.column_stack([rng.normal(size=(n, 4)) * [1, 2, 1, 3], *codes]).astype(np.float32)


def labels(X):
    return (X[:, 0] + X[:, 1] * (X[:, 4] == 1) > 0).astype(np.int64)


BUILDERS = [
    MLP((5, 5), residual=True, normalization="batch"),
    Linear(),
    RealMLP(hidden_layer_sizes=(6, 5)),
    RealMLP("td-s", (6,)),
    RealMLP(hidden_layer_sizes=()),
    RealMLP(hidden_layer_sizes=(6, 5), categories=CODES, activation="tanh"),
    RealMLP("td-s", (6,), categories=CODES),
    RealMLP(hidden_layer_sizes=(6,), embedding="piecewise_linear"),
    RealMLP(hidden_layer_sizes=(6,), embedding=None),
    TabM(3, (6, 5), categories=CODES),
    TabM(3, (6,), mini=True, embedding=PeriodicEmbedding(form="plr")),
    TabM(3, (6,), embedding=PiecewiseLinearEmbedding(size=2, n_bins=4)),
]


@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("builder", BUILDERS, ids=repr)
def test_cached_form_equals_a_new_build(builder, task):
    clear_cache()
    for seed in (0, 1, 0):
        X = table(seed)
        y = labels(X) if task == "binary" else X[:, :1].astype(np.float64)
        data = {name: array for name, array in {"X": X, "y": y}.items() if name in keywords_of(builder)}
        whole = builder.build(7, 1, np.random.RandomState(seed), **data)
        expected = trainable_model(load(whole))
        examples = EncodedData({"X": InputData(X, np.dtype(np.float32))}, Targets(y, task, 1), None)
        found = built_graph(builder, examples, examples.targets.n_scores, None, np.random.RandomState(seed))
        assert found.parameters == expected.parameters
        assert found.members == getattr(builder, "n_members", None)
        assert structure(found.model, ()) != structure(found.model, found.weights())
        assert structure(found.model, found.weights()) == structure(expected.model, expected.weights())
        for name, array in expected.weights().items():
            assert_array_equal(found.weights()[name], array)


@pytest.mark.parametrize("builder", BUILDERS[2:], ids=repr)
def test_cached_forms_hold_no_weights(builder):
    clear_cache()
    X = table(0)
    OrtGradientClassifier(builder, **SETTINGS).fit(X, labels(X))
    assert len(module._drafted_graphs) == 1
    for source, _ in module._drafted_graphs._held.values():
        assert not any(array.any() for array in source.weights().values())
    for proto, _ in embeddings._part_graphs._held.values():
        assert not any(numpy_helper.to_array(one).any() for one in proto.graph.initializer)


def test_part_graphs_are_cached_once():
    clear_cache()
    X = table(0)
    OrtGradientClassifier(RealMLP(hidden_layer_sizes=(6, 5)), **SETTINGS).fit(X, labels(X))
    assert len(embeddings._part_graphs) == 3  # the scaled columns and two hidden layers
    OrtGradientClassifier(RealMLP(hidden_layer_sizes=(6, 5)), **SETTINGS).fit(table(1), labels(X))
    assert len(embeddings._part_graphs) == 3


@pytest.mark.parametrize("estimator", [OrtGradientClassifier, OrtGradientRegressor])
@pytest.mark.parametrize("builder", [*BUILDERS[2:], Embedded("periodic", RealMLP(hidden_layer_sizes=4))], ids=repr)
def test_fit_after_others_equals_fit_with_empty_cache(builder, estimator):
    X = table(5)
    y = labels(X) if estimator is OrtGradientClassifier else X[:, 2] * 3
    clear_cache()
    alone = estimator(builder, **SETTINGS).fit(X, y)
    clear_cache()
    for seed in (1, 2):
        estimator(builder, **SETTINGS | {"random_state": seed}).fit(table(seed), labels(table(seed)))
    after = estimator(builder, **SETTINGS).fit(X, y)
    for name, array in alone.weights_.items():
        assert_array_equal(after.weights_[name], array)
    assert_array_equal(after.predict(X), alone.predict(X))


def test_forms_of_classes_and_numbers_differ():
    """Two classes have two outputs inside, and numbers another activation."""
    clear_cache()
    X = table(0)
    for estimator, y in ((OrtGradientClassifier, labels(X)), (OrtGradientRegressor, X[:, 1])):
        for builder in (RealMLP(hidden_layer_sizes=(4,)), TabM(2, (4,))):
            found = estimator(builder, **SETTINGS).fit(X, y)
            last = found.weights_["heads.weight" if isinstance(builder, TabM) else "layers.1.weight"]
            assert last.shape[-1] == (2 if estimator is OrtGradientClassifier else 1)


class DoubledFrequencies(PeriodicEmbedding):
    """An embedding of somebody else, which changes what its base class emits."""

    def emit(self, op, x, n_features, random_state, X=None):
        return op.Mul(super().emit(op, x, n_features, random_state, X), 2.0)


@pytest.mark.parametrize("variant", ["td", "td-s"])
def test_derived_embedding_is_not_cached(variant):
    builders = [RealMLP(variant, (4,), embedding=e) for e in (PeriodicEmbedding(), DoubledFrequencies())]
    X = table(0)
    ours, theirs = (builder.build(7, 1, 0, X=X, y=labels(X)) for builder in builders)
    count = [[node.op_type for node in model.graph.node].count("Mul") for model in (ours, theirs)]
    assert count[1] == count[0] + 1
    first = [
        {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}["embedding.weight"]
        for model in (ours, theirs)
    ]
    assert_array_equal(*first)
    clear_cache()
    OrtGradientClassifier(builders[1], **SETTINGS).fit(X, labels(X))
    assert not len(module._drafted_graphs)
