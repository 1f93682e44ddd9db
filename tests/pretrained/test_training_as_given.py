"""The graph that is trained computes what the graph that predicts does, or a given file is refused."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor, clear_cache
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines, can_compile
from tests.helpers.faults import change_trained_graphs
from tests.helpers.graphs import model
from tests.helpers.observed import compare_no_training

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:Output .Y. of the graph for a row of X depends"),
]

ENGINES = [*available_engines(), *(["compiled"] if can_compile() else [])]
X = np.random.RandomState(0).normal(size=(40, 3)).astype(np.float32)
LEAKY = "H = MatMul (X, V) A = LeakyRelu <alpha = 0.3> (H) Y = MatMul (A, W)"
WEIGHTS = "float[3, 2] V = {1, -2, 3, 1, 2, -1}, float[2, 1] W = {0.5, -0.7}"
DROPS = "c = Constant <value_float = 0.5> () t = Constant <value = bool {1}> () D = Dropout (A, c, t) Y = MatMul (D, W)"
NORMAL = "Z, m, v = BatchNormalization <training_mode = 1> (A, W1, B1, M1, V1) Y = MatMul (Z, W)"
STORED = "float[2] M1 = {0.5, 1}, float[2] V1 = {2, 3}"
FORMS = {
    "plain": {},
    "dropout": {"body": LEAKY.replace("Y = MatMul (A, W)", DROPS)},
    "noise": {"body": LEAKY.replace("Y = MatMul (A, W)", "R = RandomNormalLike (A) N = Add (A, R) Y = MatMul (N, W)")},
    "statistics": {
        "body": LEAKY.replace("Y = MatMul (A, W)", NORMAL),
        "weights": f"{WEIGHTS}, float[2] W1 = {{1, 2}}, float[2] B1 = {{0, 1}}, {STORED}",
    },
    "rows meet": {
        "body": LEAKY.replace("Y =", "P =") + " Q = ReduceMean <keepdims = 1> (P) Y = Sub (P, Q)",
    },
}


@pytest.fixture
def faulty(monkeypatch):
    """Let graphs lose the slopes of LeakyRelu where they are differentiated."""

    def lose_slopes(graph):
        for node in graph.graph:
            if node.op_type == "LeakyRelu":
                node.attributes.pop("alpha", None)

    clear_cache()
    change_trained_graphs(monkeypatch, lose_slopes)
    yield
    clear_cache()


def given(form="plain"):
    return model(**{"body": LEAKY, "weights": WEIGHTS, **FORMS[form]})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMS)
def test_trained_graph_that_differs_is_refused_by_node(engine, form, faulty):
    if (engine, form) == ("ort-training", "statistics"):
        pytest.skip("has no gradient of BatchNormalization")
    estimator = OrtGradientRegressor(given(form), max_iter=1, engine=engine)
    match = r"graph that is trained has a loss .* first node that differs is 'LeakyRelu_0' \(LeakyRelu\)"
    with pytest.raises(ModelError, match=match):
        estimator.fit(X, X.sum(axis=1))
    assert not hasattr(estimator, "n_outputs_")


@pytest.mark.parametrize("y", [X.sum(axis=1) + 1000, X.sum(axis=1) > 0], ids=["large targets", "classes"])
def test_difference_is_seen_beside_any_target(y, faulty):
    kind = OrtGradientClassifier if y.dtype == bool else OrtGradientRegressor
    with pytest.raises(ModelError, match="graph that is trained has a loss"):
        kind(given(), max_iter=1).fit(X, y)


def test_difference_of_several_outputs(faulty):
    proto = model(LEAKY.replace("Y =", "Z = Tanh (H) Y ="), y="float[N, 1] Y, float[N, 2] Z", weights=WEIGHTS)
    estimator = OrtGradientMultiOutput(proto, loss={"Z": "squared_error", "Y": "squared_error"}, max_iter=1)
    with pytest.raises(ModelError, match="graph that is trained has a loss"):
        estimator.fit(X, {"Y": X[:, 0], "Z": X[:, :2]})


@pytest.mark.parametrize("form", FORMS)
def test_comparison_changes_nothing(form, monkeypatch):
    y = X.sum(axis=1)
    settings = {"max_iter": 3, "random_state": 0, "batch_size": 16, "learning_rate_init": 0.01}
    weights = OrtGradientRegressor(given(form), **settings).fit(X, y).weights_
    compare_no_training(monkeypatch)
    plain = OrtGradientRegressor(given(form), **settings).fit(X, y).weights_
    for name, array in plain.items():
        np.testing.assert_array_equal(weights[name], array)


@pytest.mark.parametrize(
    ("form", "file", "training"),
    [
        ("plain", "compared", "compared"),
        ("dropout", "compared without Dropout", "compared without random numbers"),
        ("noise", "not compared: it draws random numbers", "compared without random numbers"),
        ("statistics", *["compared without statistics of minibatches"] * 2),
        ("rows meet", "compared", "compared"),
    ],
)
def test_description_names_the_comparison(form, file, training):
    estimator = OrtGradientRegressor(given(form), max_iter=1)
    assert estimator.describe().compared == ""
    described = estimator.fit(X, X.sum(axis=1)).describe()
    assert described.compared == f"file as given {file}; training graph {training}"
    assert described.compared in str(described)
