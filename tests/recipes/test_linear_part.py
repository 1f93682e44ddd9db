"""The linear models beside the networks of RealMLP: their predictions, their share, and where they are refused."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx.reference import ReferenceEvaluator
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor
from onnxtrain_sklearn._recipes.linear_part import PENALTIES, SHARES, HeldOut, LinearModel, share_of_linear

RNG = np.random.RandomState(0)
X = RNG.normal(size=(150, 6)).astype(np.float32)
NUMBERS = np.column_stack([X[:, 0] - X[:, 1], 3 * X[:, 2] + 0.1 * RNG.normal(size=150)])
BINARY, CLASSES = (X[:, 0] + X[:, 1] > 0.3).astype(int), np.digitize(X[:, 0] + X[:, 2], [-0.6, 0.6])
WEIGHTS = RNG.uniform(0.5, 2, 150)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weights"])
@pytest.mark.parametrize("y", [BINARY, CLASSES], ids=["binary", "multiclass"])
def test_probabilities_are_those_of_logistic_regression(y, weights):
    task = "binary" if y is BINARY else "multiclass"
    found = LinearModel.fit(task, X, y, weights, {}, y.max() + 1).predict(X)
    expected = LogisticRegression(max_iter=1000).fit(X, y, weights).predict_proba(X)
    assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("columns", [[0], [0, 1]], ids=["one", "two"])
def test_numbers_are_those_of_ridge_regression_within_the_range_seen(columns):
    y = NUMBERS[:, columns]
    found = LinearModel.fit("regression", X, y, WEIGHTS, {}, len(columns)).predict(3 * X)
    for place in range(len(columns)):
        ridge = RidgeCV(PENALTIES).fit(X, y[:, place], WEIGHTS)
        expected = np.clip(ridge.predict(3 * X), y[:, place].min(), y[:, place].max())
        assert_allclose(found[:, place], expected, rtol=1e-5, atol=1e-5)


def test_classes_without_rows_get_no_probability():
    y = np.where(CLASSES == 1, 2, CLASSES)
    found = LinearModel.fit("multiclass", X, y, None, {}, 4).predict(X)
    assert found[:, [1, 3]].max() < 1e-9
    assert_allclose(found[:, [0, 2]], LogisticRegression(max_iter=1000).fit(X, y).predict_proba(X), atol=1e-6)
    alone = LinearModel.fit("multiclass", X, np.full(150, 2), None, {}, 4).predict(X)
    assert_allclose(alone, np.eye(4)[np.full(150, 2)], atol=1e-9)


@pytest.mark.parametrize("numbers", [X[:, :0], X[:, :3]], ids=["codes alone", "with numbers"])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_each_code_of_a_category_has_an_indicator(task, numbers, monkeypatch):
    first, second, many = (RNG.randint(count, size=150) for count in (4, 3, 12))
    codes = np.column_stack([first, numbers, second, many]).astype(np.float32)
    last = numbers.shape[1] + 1
    monkeypatch.setattr("onnxtrain_sklearn._recipes.linear_part.MOST_CODES", 10)  # so that the last column is left out
    y, n_outputs = {"binary": (BINARY, 2), "multiclass": (CLASSES, 3), "regression": (NUMBERS, 2)}[task]
    found = LinearModel.fit(task, codes, y, WEIGHTS, {0: 4, last: 3, last + 1: 12}, n_outputs).predict(codes)
    design = np.column_stack([numbers, np.eye(4)[first], np.eye(3)[second]])
    if task == "regression":
        ridge = RidgeCV(PENALTIES, alpha_per_target=True).fit(design, y, WEIGHTS)
        expected = np.clip(ridge.predict(design), y.min(axis=0), y.max(axis=0))
    else:
        expected = LogisticRegression(max_iter=1000).fit(design, y, WEIGHTS).predict_proba(design)
    assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("columns", [["color", "kind"], ["color", "size"]], ids=["texts alone", "with numbers"])
@pytest.mark.parametrize("kind", [RealMLPClassifier, RealMLPRegressor])
def test_tables_of_text_have_the_categories_in_their_linear_part(kind, columns, monkeypatch):
    color, other = RNG.randint(12, size=150), RNG.randint(3, size=150)
    table = {"color": [f"c{i}" for i in color], "kind": [f"k{i}" for i in other], "size": X[:, 0].tolist()}
    table = pd.DataFrame(table)[columns]
    y = color % 2 if kind is RealMLPClassifier else 2.0 * (color % 2) + 0.1 * X[:, 1]
    monkeypatch.setattr("onnxtrain_sklearn._recipes.ensemble.share_of_linear", lambda *_: 1.0)  # the linear part alone
    model = kind(max_iter=1, random_state=0).fit(table, y)
    assert model.score(table, y) > 0.9
    inputs = {name: table[[name]].to_numpy(np.float32 if name == "size" else object) for name in columns}
    graph = ReferenceEvaluator(model.to_onnx())
    expected = model.predict_proba(table) if kind is RealMLPClassifier else model.predict(table)
    assert_allclose(np.reshape(graph.run(None, inputs)[-1], (150, -1)), np.reshape(expected, (150, -1)), atol=1e-5)


@pytest.mark.parametrize("better", ["network", "linear"])
def test_the_share_goes_to_the_better_model(better):
    right, guess = np.eye(2)[BINARY] * 0.8 + 0.1, np.full((150, 2), 0.5)
    network, linear = (right, guess) if better == "network" else (guess, right)
    share = share_of_linear("binary", [HeldOut(BINARY, None, network, linear)], 150)
    assert share < 0.05 if better == "network" else share > 0.95


def test_the_share_is_the_mean_by_likelihood_of_the_held_out_rows():
    first, second = (RNG.dirichlet([2, 2], 20) for _ in range(2))
    y, weights = BINARY[:20], WEIGHTS[:20]
    found = share_of_linear("binary", [HeldOut(y, weights, first, second)], 20)
    losses = [log_loss(y, (1 - w) * first + w * second, sample_weight=weights) for w in SHARES]
    assert found == pytest.approx(np.average(SHARES, weights=np.exp(-20 * np.array(losses))))
    numbers, one, two = NUMBERS[:20, :1], NUMBERS[:20, :1] + 0.3, NUMBERS[:20, :1] * 0.5
    found = share_of_linear("regression", [HeldOut(numbers, weights, one, two)], 20)
    squares = [np.average((numbers - (1 - w) * one - w * two).ravel() ** 2, weights=weights) for w in SHARES]
    assert found == pytest.approx(np.average(SHARES, weights=np.array(squares) ** -10))  # normal errors: n / 2


def test_without_held_out_rows_the_share_is_one_half():
    assert share_of_linear("binary", [], 0) == pytest.approx(0.5)


CASES = {
    "binary": (RealMLPClassifier, BINARY),
    "multiclass": (RealMLPClassifier, np.array(["a", "b", "c"])[CLASSES]),
    "number": (RealMLPRegressor, NUMBERS[:, 1]),
    "numbers": (RealMLPRegressor, NUMBERS),
}


def predictions(model):
    found = model.predict_proba(X) if isinstance(model, RealMLPClassifier) else model.predict(X)
    return np.reshape(found, (150, -1))


@pytest.mark.parametrize("n_ensembles", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_the_graph_mixes_network_and_linear_model(case, n_ensembles, monkeypatch):
    kind, y = CASES[case]
    settings = {"n_ensembles": n_ensembles, "max_iter": 3, "random_state": 0}
    rows = {"X_val": X[:40], "y_val": y[:40]}  # each network trains on all rows
    fitted, fit = [], LinearModel.fit

    def kept(task, matrix, *arguments):
        fitted.append((fit(task, matrix, *arguments), matrix))
        return fitted[-1][0]

    monkeypatch.setattr(LinearModel, "fit", kept)
    found = {}
    for share in (0.0, 0.25, 1.0):
        monkeypatch.setattr("onnxtrain_sklearn._recipes.ensemble.share_of_linear", lambda *_, share=share: share)
        found[share] = kind(linear_part=True, **settings).fit(X, y, **rows)
    linear = np.mean([model.predict(matrix) for model, matrix in fitted[:n_ensembles]], axis=0)
    network = predictions(kind(linear_part=False, **settings).fit(X, y, **rows))
    assert np.abs(network - linear).max() > 0.1
    for share, model in found.items():
        expected = (1 - share) * network + share * linear
        assert_allclose(predictions(model), expected, rtol=1e-5, atol=1e-5)
        graph = ReferenceEvaluator(model.to_onnx())
        assert_allclose(np.reshape(graph.run(None, {"X": X})[-1], (150, -1)), expected, rtol=1e-5, atol=1e-5)
        if kind is RealMLPClassifier:
            assert_array_equal(model.predict(X), model.classes_[expected.argmax(axis=1)])


@pytest.mark.long
def test_the_share_is_that_of_the_rows_each_network_holds_out(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "onnxtrain_sklearn._recipes.ensemble.share_of_linear", lambda *given: asked.append(given) or 0.5
    )
    RealMLPClassifier(max_iter=2, random_state=0).fit(X, CLASSES, sample_weight=WEIGHTS)
    ((task, held, n_rows),) = asked
    assert (task, n_rows, len(held)) == ("multiclass", 150, 5)
    assert sorted(np.concatenate([one.weights for one in held])) == pytest.approx(sorted(WEIGHTS))
    assert_array_equal(np.bincount(np.concatenate([one.y for one in held])), np.bincount(CLASSES))
    RealMLPClassifier(max_iter=2, random_state=0).fit(X, CLASSES, X_val=X[:30], y_val=CLASSES[:30])
    assert asked[1][2] == 30  # the same rows for each network


@pytest.mark.long
def test_auto_mixes_below_two_thousand_rows_alone():
    assert len(RealMLPRegressor(max_iter=1, random_state=0).fit(X, NUMBERS).to_onnx().graph.node) > len(
        RealMLPRegressor(max_iter=1, linear_part=False, random_state=0).fit(X, NUMBERS).to_onnx().graph.node
    )
    many = np.tile(X, (14, 1))
    auto, without = (
        RealMLPRegressor(max_iter=1, hidden_layer_sizes=4, linear_part=value, random_state=0)
        .fit(many, np.tile(NUMBERS[:, 0], 14))
        .predict(X)
        for value in ("auto", False)
    )
    assert_array_equal(auto, without)


MISSING = np.where(np.arange(150)[:, None] == [3, 5], np.nan, NUMBERS)


@pytest.mark.parametrize(
    ("kind", "y", "settings", "message"),
    [
        (RealMLPClassifier, BINARY, {"validation_split": None}, "needs held-out rows"),
        (RealMLPClassifier, np.eye(3, dtype=int)[CLASSES], {}, "needs one label a row"),
        (RealMLPRegressor, MISSING, {}, "needs targets without missing numbers"),
    ],
)
def test_a_linear_part_that_cannot_be_fitted_is_refused_where_it_is_asked_for(kind, y, settings, message):
    model = kind(linear_part=True, max_iter=1, random_state=0, **settings)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not hasattr(model, "n_iter_")
    model.set_params(linear_part="auto").fit(X, y)
    assert np.isfinite(model.predict(X)).all()


def test_training_graphs_have_no_linear_part_and_refuse_one_that_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"linear_part=True needs held-out rows, .* linear_part=\"auto\" or False"):
        RealMLPClassifier(linear_part=True).export_training(tmp_path / "graphs", X, BINARY)
    assert not list(tmp_path.iterdir())
