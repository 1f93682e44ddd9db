"""What estimators say of themselves: what is trained, what is frozen, and why."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor, RealMLP
from tests.helpers.data import DATA
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.RandomState(0).normal(size=(40, 3)).astype(np.float32)
TWO = (X[:, 0] > 0).astype(int)


def described_graph(tail="Y = Sigmoid(Z)"):
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] Y)
        <float[3, 4] A = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}, float[4] b = {{1, 2, 3, 4}},
         float[4, 1] C = {{1, 2, 3, 4}}, float val_3 = {{2}}>
        {{ H = Gemm(X, A, b) low = Constant <value_float = 0.0> () R = Max(H, low) S = Mul(R, val_3) Z = MatMul(S, C)
           {tail} }}""")


def statuses(description):
    return {entry.name: entry.status for entry in description.entries}


@pytest.mark.parametrize("fitted", [False, True])
def test_of_a_given_graph(fitted):
    classifier = OrtGradientClassifier(described_graph(), trainable=["A", "C"], max_iter=1, engine="portable")
    described = (classifier.fit(X, TWO) if fitted else classifier).describe()
    constants = {"val_3": "constant", "low": "constant"}
    assert statuses(described) == {"A": "trained", "b": "frozen", "C": "trained"} | constants
    assert (described.n_trained, described.engine, described.opset) == (16, "portable", 18)
    assert (described.output, described.loss) == ("Y", "on 'Z', before the final sigmoid")
    reasons = {entry.name: entry.reason for entry in described.entries}
    assert reasons["A"] == "weight of Gemm"
    assert reasons["b"] == "weight of Gemm, not selected by trainable"
    assert "exporter" in reasons["val_3"]
    assert reasons["low"] == "a setting of Max"
    assert set(classifier.weights_ if fitted else "AbC") == set("AbC")
    head, second, *lines = str(described).splitlines()
    assert head == "ONNX graph, opset 18, engine portable: 16 trained, 4 frozen, 2 that are no weights"
    assert second == "output 'Y', loss taken on 'Z', before the final sigmoid"
    if fitted:
        assert lines.pop(0).startswith("step: ")
    assert [line.split()[:4] for line in lines[:3]] == [
        ["trained", "A", "3x4", "float32:"], ["trained", "C", "4x1", "float32:"], ["frozen", "b", "4", "float32:"],
    ]  # fmt: skip


@pytest.mark.parametrize("fitted", [False, True])
def test_factors_of_the_rates(fitted):
    factors = {"optimizer__learning_rate_factors": {"*": 0.5, "C": 1.0}, "optimizer__weight_decay_factors": {"b": 0.0}}
    classifier = configured(OrtGradientClassifier(described_graph(), trainable=["A", "b", "C"], max_iter=1), **factors)
    described = (classifier.fit(X, TWO) if fitted else classifier).describe()
    told = {e.name: (e.learning_rate_factor, e.weight_decay_factor) for e in described.of("trained")}
    assert told == {"A": (0.5, 1.0), "b": (0.5, 0.0), "C": (1.0, 1.0)}
    assert {(e.learning_rate_factor, e.weight_decay_factor) for e in described.of("constant")} == {(1.0, 1.0)}
    lines = {line.split()[1]: line for line in str(described).splitlines()[2:]}
    assert lines["A"].endswith("weight of Gemm, learning rate times 0.5")
    assert lines["b"].endswith("learning rate times 0.5, weight decay times 0")
    assert "times" not in lines["C"]


def test_factors_of_a_builder():
    described = OrtGradientClassifier(RealMLP(hidden_layer_sizes=4), max_iter=1).fit(X, TWO).describe()
    assert {e.name: e.learning_rate_factor for e in described.entries}["layers.0.bias"] == 0.1


def test_describe_leaves_estimator_unchanged():
    given = described_graph()
    before, regressor = given.SerializeToString(), OrtGradientRegressor(given)
    parameters = regressor.get_params()
    regressor.describe()
    assert given.SerializeToString() == before
    assert regressor.get_params() == parameters
    assert not hasattr(regressor, "_state")


def test_of_a_builder():
    regressor = OrtGradientRegressor(MLP((5,)), max_iter=1)
    described = regressor.describe()
    assert described.entries == ()
    assert str(described).startswith("MLP(hidden_layer_sizes=(5,)): fit builds the graph")
    assert regressor.fit(X, X[:, 0]).describe().n_trained == 3 * 5 + 5 + 5 + 1
    assert str(OrtGradientRegressor().describe()).startswith("MLP(): fit builds")


def test_of_a_fitted_pipeline():
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, TWO)
    classifier = OrtGradientClassifier(pipeline, trainable="logisticregression.*", max_iter=1)
    expected = {"standardscaler.mean": "frozen", "standardscaler.scale": "frozen", "logisticregression.coef": "trained"}
    assert expected.items() <= statuses(classifier.describe()).items()
    assert statuses(classifier.fit(X, TWO).describe()) == statuses(classifier.describe())
    assert str(classifier.describe()).startswith("Pipeline(")


def test_statistics_that_move_and_statistics_that_stay():
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 3] X) => (float[N, 1] Y) <float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0},
        float[3] v = {1, 1, 1}, float[3, 1] W = {1, 2, 3}>
        { H, p, q = BatchNormalization <training_mode = 1> (X, s, b, m, v) Y = MatMul(H, W) }""")
    moving = OrtGradientRegressor(proto).describe()
    assert {e.name: e.reason for e in moving.of("statistic")} == dict.fromkeys("mv", "moved by training")
    still = OrtGradientRegressor(proto, trainable="W").describe()
    assert {e.name: e.reason for e in still.of("statistic")} == dict.fromkeys("mv", "stays as it is")


def test_verbose_prints_it_once(capsys):
    regressor = OrtGradientRegressor(described_graph("Y = Identity(Z)"), verbose=1, max_iter=1)
    regressor.fit(X, X[:, 0])
    text = str(regressor.describe())
    assert text in capsys.readouterr().out
    regressor.partial_fit(X, X[:, 0])
    assert text not in capsys.readouterr().out


def test_files_are_named():
    text = str(OrtGradientClassifier(str(DATA / "lenet.onnx")).describe())
    assert text.startswith("'lenet.onnx', opset")
