"""Estimators for raw tables: the graph takes the table, ensembles are means, and scikit-learn's conventions hold."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, Runtime, TabMClassifier, TabMRegressor
from onnxtrain_sklearn.exceptions import DeviceError, OnnxTrainWarning
from tests.helpers.gpu import gpu
from tests.helpers.observed import forbid_sessions, wrap_passes
from tests.helpers.recipes import folds, held_out, member, outputs_of
from tests.helpers.selection import one_case
from tests.helpers.sessions import evaluate

SMALL = {"variant": "td-s", "hidden_layer_sizes": (16,), "max_iter": 12, "random_state": 0}


def flowers():
    """Return iris as a data frame with text, a nullable column and missing values, and labels that are text."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    X.columns = ["sepal length", "sepal width", "petal length", "petal width"]
    X["size"] = np.where(X["petal length"] > 4.5, "large", np.where(X["petal length"] > 2.5, "middle", "small"))
    X["wide"] = (X["sepal width"] > 3).astype("boolean")
    X.loc[::7, "size"] = None
    X.loc[::9, "wide"] = pd.NA
    X.loc[::11, "sepal length"] = np.nan
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


def feeds_of(X):
    feeds = {}
    for name in X:
        text = X[name].dtype.kind not in "iufb"
        column = X[name].astype(object).fillna("") if text else X[name].to_numpy(np.float32, na_value=np.nan)
        feeds[name] = np.asarray(column, object if text else np.float32).reshape(-1, 1)
    return feeds


FEW_UNITS = {RealMLPClassifier: {"hidden_layer_sizes": (4,)}, TabMClassifier: {"hidden_layer_sizes": 4, "n_members": 2}}
TABM = {"n_members": 4, "hidden_layer_sizes": 24, "learning_rate_init": 0.01, "max_iter": 60, "random_state": 0}

CLASSIFIERS = {
    "RealMLP": RealMLPClassifier(**SMALL | {"variant": "td", "max_iter": 40}),
    "RealMLP TD-S": RealMLPClassifier(**SMALL | {"max_iter": 40}),
    "TabM": TabMClassifier(**TABM),
    "TabM-mini": TabMClassifier(**TABM, mini=True, embedding="piecewise_linear"),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("n_ensembles", [1, 2])
def test_graph_takes_the_table_and_predicts_as_the_classifier(name, n_ensembles):
    X, y = flowers()
    classifier = clone(CLASSIFIERS[name]).set_params(n_ensembles=n_ensembles).fit(X, y)
    assert classifier.score(X, y) > 0.85
    model = classifier.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == list(X)
    labels, probabilities = evaluate(model, **feeds_of(X))
    np.testing.assert_array_equal(labels, classifier.predict(X))
    np.testing.assert_allclose(probabilities, classifier.predict_proba(X), rtol=5e-7)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("n_ensembles", [1, 2])
@pytest.mark.parametrize("regressor", [RealMLPRegressor(**SMALL), TabMRegressor(**TABM)])
def test_graph_of_a_table_of_numbers_takes_a_matrix(regressor, n_ensembles):
    X, y = load_diabetes(return_X_y=True)
    regressor = clone(regressor).set_params(n_ensembles=n_ensembles).fit(X, y)
    assert regressor.score(X, y) > 0.3
    model = regressor.to_onnx()
    assert [value.name for value in model.graph.input] == ["X"]
    (predicted,) = evaluate(model, X=X.astype(np.float32))
    np.testing.assert_array_equal(predicted.ravel(), regressor.predict(X).astype(np.float32))


def test_ensemble_is_the_mean_of_its_members():
    X, y = load_iris(return_X_y=True)
    members = [member(RealMLPClassifier(**SMALL), X, y, seed) for seed in range(3)]
    feeds = {"X": X.astype(np.float32)}
    single = [outputs_of([one], "multiclass", **feeds)[1] for one in members]
    labels, probabilities = outputs_of(members, "multiclass", **feeds)
    np.testing.assert_allclose(probabilities, np.mean(single, axis=0), atol=1e-6)
    np.testing.assert_array_equal(labels, probabilities.argmax(axis=1))


def test_each_network_holds_out_other_rows():
    labels = np.repeat([0, 1, 2], [60, 30, 1])
    splits = folds(np.arange(91), labels, 3, 0.2)
    assert len(splits) == 3
    for rows, held in splits:
        assert sorted([*rows, *held]) == list(range(91))
        assert np.bincount(labels[held], minlength=3).tolist() == [12, 6, 0]  # a row alone in its class is trained on
    assert len(np.unique(np.concatenate([held for _, held in splits]))) == 3 * 18


@pytest.mark.parametrize(("count", "fraction", "expected"), [(1, 0.5, 50), (1, 0.1, 10), (10, 0.5, 10), (2, None, 0)])
def test_size_of_the_validation_part(count, fraction, expected):
    splits = folds(np.arange(100), None, count, fraction)
    assert [len(held) for _, held in splits] == [expected] * count


def test_the_epoch_that_validates_best_is_kept():
    X, y = load_diabetes(return_X_y=True)
    regressor = RealMLPRegressor("td-s", hidden_layer_sizes=64, max_iter=60, random_state=0).fit(X, y)
    (scores,) = regressor.validation_scores_
    assert len(scores) == regressor.n_iter_ == 60
    held = held_out(np.arange(len(y)))
    assert regressor.score(X[held], y[held]) == pytest.approx(max(scores), abs=1e-5)
    assert scores[-1] < max(scores) - 1e-3
    last = clone(regressor).set_params(validation_split=None).fit(X, y)
    assert last.validation_scores_ == [None]


@one_case
@pytest.mark.filterwarnings("ignore:Training has not converged")
@pytest.mark.parametrize("kind", [RealMLPClassifier, TabMClassifier])
def test_scoring_chooses_the_epoch(kind):
    X, y = load_iris(return_X_y=True)
    y = np.where(np.arange(150) < 3, 3, y)  # a class that no row held out has
    settings = {"max_iter": 10, "random_state": 0, "hidden_layer_sizes": 16, "n_ensembles": 1}
    alone = {"linear_part": False} if kind is RealMLPClassifier else {}
    classifier = kind(scoring="neg_log_loss", **settings, **alone).fit(X, y)
    (scores,) = classifier.validation_scores_
    held = held_out(np.arange(len(y)), y)
    assert 3 not in y[held]
    own = -log_loss(y[held], classifier.predict_proba(X[held]), labels=classifier.classes_)
    assert own == pytest.approx(max(scores), rel=1e-4)
    regressor = RealMLPRegressor(scoring="neg_mean_absolute_error", **settings).fit(X, X[:, 0])
    assert -1 < max(regressor.validation_scores_[0]) < 0
    with pytest.raises(ValueError, match="needs rows that are held out"):
        kind(scoring="neg_log_loss", validation_split=None).fit(X, y)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_label_smoothing_bounds_the_probabilities(n_classes):
    X = np.repeat(np.eye(n_classes), 50, axis=0)
    settings = {**SMALL, "max_iter": 100, "validation_split": None}
    largest = RealMLPClassifier(**settings, label_smoothing=0.3).fit(X, X.argmax(1)).predict_proba(X).max()
    assert largest == pytest.approx(0.7 + 0.3 / n_classes, abs=0.02)
    default = RealMLPClassifier(**settings).fit(X, X.argmax(1)).predict_proba(X).max()
    assert default == pytest.approx(0.9 + 0.1 / n_classes, abs=0.02)
    assert RealMLPClassifier(**settings, label_smoothing=0.0).fit(X, X.argmax(1)).predict_proba(X).max() > 0.998


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_unit_of_the_target_does_not_matter(unit):
    X, y = load_diabetes(return_X_y=True)
    expected = RealMLPRegressor(**SMALL).fit(X, y).score(X, y)
    assert RealMLPRegressor(**SMALL).fit(X, unit * y).score(X, unit * y) == pytest.approx(expected, abs=1e-3)


def test_predictions_stay_in_the_range_of_the_targets():
    X, y = load_diabetes(return_X_y=True)
    regressor = RealMLPRegressor(**SMALL, validation_split=None).fit(X, y)
    far = regressor.predict(np.vstack([X * 1e4, X * -1e4]))
    assert far.min() >= y.min() - 1e-3
    assert far.max() <= y.max() + 1e-3


def test_several_targets():
    X, y = load_diabetes(return_X_y=True)
    Y = np.column_stack([y, -1e3 * y])
    regressor = RealMLPRegressor(**SMALL).fit(X, Y)
    assert regressor.predict(X).shape == Y.shape
    assert regressor.score(X, Y) > 0.3


def test_unseen_and_missing_values_are_predicted():
    X, y = flowers()
    classifier = RealMLPClassifier(**SMALL).fit(X, y)
    odd = X.assign(size="huge")
    odd["petal width"] = np.nan
    assert np.isfinite(classifier.predict_proba(odd)).all()
    np.testing.assert_array_equal(classifier.predict_proba(odd), classifier.predict_proba(odd.assign(size=None)))


@pytest.mark.parametrize("labels", [[0, 1], [False, True], ["no", "yes"], [1.0, 2.0]])
def test_labels_of_two_classes(labels):
    X, y = load_iris(return_X_y=True)
    given = np.array(labels)[(y == 2).astype(int)]
    classifier = RealMLPClassifier(**SMALL | {"max_iter": 30}, n_ensembles=2).fit(X, given)
    assert classifier.predict(X).dtype == given.dtype
    assert classifier.score(X, given) > 0.8
    single = RealMLPClassifier(**SMALL).fit(X, given)
    kinds = [model.to_onnx().graph.output[0].type.tensor_type.elem_type for model in (classifier, single)]
    assert kinds[0] == kinds[1]


def test_rows_of_weight_zero_do_not_count():
    X, y = flowers()
    weights = np.arange(len(y)) % 3 > 0
    one = RealMLPClassifier(**SMALL).fit(X, y, sample_weight=weights)
    other = RealMLPClassifier(**SMALL).fit(X[weights], y[weights], sample_weight=np.ones(weights.sum()))
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-6)


def test_weights_of_rows_and_classes_have_an_effect():
    X, y = flowers()
    plain = RealMLPClassifier(**SMALL).fit(X, y).predict_proba(X)[:, 0].mean()
    by_class = RealMLPClassifier(**SMALL, class_weight={"setosa": 50.0}).fit(X, y).predict_proba(X)[:, 0].mean()
    by_row = RealMLPClassifier(**SMALL).fit(X, y, sample_weight=np.where(y == "setosa", 50.0, 1.0))
    assert by_class > plain + 0.02
    assert by_row.predict_proba(X)[:, 0].mean() == pytest.approx(by_class, abs=1e-6)


def test_pickles_hold_graph_and_predict_the_same():
    X, y = flowers()
    classifier = RealMLPClassifier(**SMALL).fit(X, y)
    expected = classifier.predict_proba(X)
    copy = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict_proba(X), expected)
    assert copy.to_onnx() == classifier.to_onnx()
    assert len(pickle.dumps(classifier)) < 1.2 * len(classifier.to_onnx().SerializeToString()) + 20_000


@pytest.mark.parametrize("kind", [RealMLPClassifier, TabMRegressor])
def test_gpu_pickle_resumes_without_a_gpu(kind):
    X, y = flowers() if kind is RealMLPClassifier else load_diabetes(return_X_y=True)
    recipe = kind(**(SMALL if kind is RealMLPClassifier else TABM)).fit(X, y)
    expected = recipe.predict(X)
    recipe.device = recipe.device_ = "cuda"
    recipe._device = gpu()
    with pytest.warns(OnnxTrainWarning, match="was trained on CUDAExecutionProvider, .* goes on with device='cpu'"):
        loaded = pickle.loads(pickle.dumps(recipe))
    assert (loaded.device, loaded.device_) == ("cpu", "cpu")
    assert "providers" not in vars(loaded)
    np.testing.assert_array_equal(loaded.predict(X), expected)


def test_training_of_tabm_ends_by_its_patience():
    X, y = load_diabetes(return_X_y=True)
    regressor = TabMRegressor(**TABM | {"max_iter": 300}, n_iter_no_change=5).fit(X, y)
    (scores,) = regressor.validation_scores_
    assert regressor.n_iter_ == len(scores) == int(np.argmax(scores)) + 7 < 300


def sizes_of_minibatches(recipe, rows, monkeypatch, batch_size=64):
    seen = []
    wrap_passes(monkeypatch, lambda plain, step, weight, *rest: seen.append(weight) or plain(step, weight, *rest))
    X, y = np.random.default_rng(0).normal(size=(rows, 2)), np.arange(rows)
    recipe.set_params(max_iter=1, batch_size=batch_size, validation_split=None, engine="portable").fit(X, y)
    return seen


@pytest.mark.parametrize(
    ("rows", "sizes"), [(10, [10]), (64, [64]), (65, [33, 32]), (100, [50, 50]), (130, [44, 44, 42])]
)
@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_no_minibatch_of_tabm_is_larger_than_batch_size(rows, sizes, monkeypatch):
    assert sizes_of_minibatches(TabMRegressor(**TABM), rows, monkeypatch) == sizes


@pytest.mark.parametrize(("embedding", "layers"), [(None, 3), ("piecewise_linear", 2)])
@pytest.mark.parametrize(("rows", "batches", "units"), [(70, [24, 24, 22], 256), (100, [100], 512)])
@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_tabm_takes_small_steps_on_few_rows(rows, batches, units, embedding, layers, monkeypatch):
    monkeypatch.setattr("onnxtrain_sklearn._recipes.tabm.SMALL_ROWS", 100)
    recipe = TabMRegressor(2, embedding=embedding, random_state=0)
    assert sizes_of_minibatches(recipe, rows, monkeypatch, batch_size="auto") == batches
    shapes = [tuple(one.dims) for one in recipe.to_onnx().graph.initializer]
    assert shapes.count((units, units)) == layers - 1
    assert (recipe.batch_size, recipe.hidden_layer_sizes) == ("auto", "auto")
    recipe.set_params(hidden_layer_sizes=8)
    assert sizes_of_minibatches(recipe, rows, monkeypatch, batch_size=rows) == [rows]
    assert (2, 8, 1) in [tuple(one.dims) for one in recipe.to_onnx().graph.initializer]


@pytest.mark.parametrize("variant", ["td", "td-s"])
@pytest.mark.parametrize(("rows", "sizes"), [(10, [10]), (64, [64]), (127, [64]), (130, [64, 64])])
def test_all_minibatches_of_realmlp_have_batch_size_rows(rows, sizes, variant, monkeypatch):
    assert sizes_of_minibatches(RealMLPRegressor(**SMALL | {"variant": variant}), rows, monkeypatch) == sizes


def test_equal_seeds_give_equal_models():
    X, y = flowers()
    models = [RealMLPClassifier(**SMALL, n_ensembles=2).fit(X, y).to_onnx() for _ in range(2)]
    assert models[0] == models[1]


@pytest.mark.slow
def test_search_and_cross_validation_of_raw_tables():
    X, y = flowers()
    search = GridSearchCV(RealMLPClassifier(**SMALL), {"max_iter": [1, 30]}, cv=3).fit(X, y)
    assert search.best_params_ == {"max_iter": 30}
    assert cross_val_score(make_pipeline(clone(search.best_estimator_)), X, y, cv=3).mean() > 0.8


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"variant": "dt"}, "'variant' parameter .* Did you mean 'td'|'variant' parameter"),
        ({"max_iter": 0}, "'max_iter' parameter"),
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"n_ensembles": 0}, "'n_ensembles' parameter"),
        ({"validation_split": 0.6}, "'validation_split' parameter"),
        ({"learning_rate_init": 0}, "'learning_rate_init' parameter"),
        ({"label_smoothing": 1.0}, "'label_smoothing' parameter"),
        ({"scoring": "logloss"}, "Did you mean 'neg_log_loss'"),
        ({"categorical_features": ["color"]}, "names 'color', which is not a column"),
        ({"engine": "jax"}, "engine"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_invalid_parameters(parameters, message):
    X, y = load_iris(return_X_y=True, as_frame=True)
    with pytest.raises(ValueError, match=message):
        RealMLPClassifier(**SMALL | parameters).fit(X, y)


def test_error_leaves_fitted_estimator_unchanged():
    X, y = flowers()
    classifier = RealMLPClassifier(**SMALL).fit(X, y)
    expected = classifier.predict_proba(X)
    with pytest.raises(ValueError, match="one label a row"):
        classifier.fit(X, np.stack([np.arange(len(y)) % 3, np.arange(len(y)) % 2], axis=1))
    np.testing.assert_array_equal(classifier.predict_proba(X), expected)


@pytest.mark.parametrize("kind", [RealMLPClassifier, TabMClassifier])
@pytest.mark.parametrize("place", ["random_state", "validation_split"])
def test_error_restores_random_generators(kind, place):
    def interrupt(epoch):
        raise RuntimeError("of the callback")

    X, y = flowers()
    rng = np.random.RandomState(0)
    drawing = {"random_state": rng} if place == "random_state" else {"validation_split": ShuffleSplit(random_state=rng)}
    estimator = kind(**FEW_UNITS[kind] | {"max_iter": 1, "random_state": 0} | drawing, callbacks=[interrupt])
    before = dict(vars(estimator))
    with pytest.raises(RuntimeError, match="of the callback"):
        estimator.fit(X, y)
    assert vars(estimator) == before
    assert_allclose(rng.uniform(size=700), np.random.RandomState(0).uniform(size=700), rtol=0)


def test_sessions_are_made_once(monkeypatch):
    X, y = flowers()
    classifier = RealMLPClassifier(**SMALL).fit(X, y)
    classifier.predict(X)
    forbid_sessions(monkeypatch)
    classifier.predict(X)


@one_case
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [RealMLPClassifier, TabMClassifier])
@pytest.mark.long
def test_missing_text_is_no_category_of_any_member(kind):
    texts = np.array(["a", "b"] * 12, object)
    texts[5] = ""  # one member alone holds this row out, and takes the empty string for a missing value
    y = np.arange(24) // 12
    for seed in range(3):
        settings = FEW_UNITS[kind] | {"n_ensembles": 3, "max_iter": 1, "batch_size": 8, "validation_split": 0.3}
        ensemble = kind(**settings, random_state=seed)
        ensemble.fit(pd.DataFrame({"text": texts, "x": np.arange(24.0)}), y)
        missing, unseen = (pd.DataFrame({"text": [value], "x": [3.0]}) for value in (None, "unseen"))
        np.testing.assert_array_equal(ensemble.predict_proba(missing), ensemble.predict_proba(unseen))


@one_case
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [RealMLPClassifier, TabMClassifier])
def test_column_of_few_booleans_is_numeric_in_every_member(kind):
    flags = np.array([None] * 24, object)
    flags[5] = True
    X = pd.DataFrame({"flag": flags, "x": np.arange(24.0)})
    settings = FEW_UNITS[kind] | {"n_ensembles": 3, "max_iter": 1, "batch_size": 8, "validation_split": 0.3}
    ensemble = kind(**settings, random_state=0)
    ensemble.fit(X, np.arange(24) // 12)
    labels, _ = evaluate(ensemble.to_onnx(), X=np.array([[1.0, 3.0], [np.nan, 3.0]], np.float32))
    np.testing.assert_array_equal(labels, ensemble.predict(pd.DataFrame({"flag": [True, None], "x": [3.0, 3.0]})))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [RealMLPClassifier, RealMLPRegressor, TabMClassifier, TabMRegressor])
def test_runtime_of_recipe_reaches_training_and_predictions(kind, tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    own = {"n_members": 2} if "TabM" in kind.__name__ else {"variant": "td-s"}
    settings = {"hidden_layer_sizes": (4,), "max_iter": 2, "random_state": 0} | own
    known = kind(**settings).fit(X, y)

    # each session with these options begins a profile when it is created, named by the second
    options = {"enable_profiling": True, "profile_file_prefix": str(tmp_path / "profile")}
    runtime = Runtime(session_options=options, checkpoint_activations=True)
    fitted = kind(**settings, runtime=runtime).fit(X, y)
    profiles = list(tmp_path.iterdir())
    assert profiles
    for profile in profiles:
        profile.unlink()
    assert_allclose(fitted.predict(X), known.predict(X), rtol=1e-4, atol=1e-4)
    assert list(tmp_path.iterdir())
    assert fitted.engine_ == "portable"  # the only engine that recomputes activations

    for call in (lambda net: net.fit(X, y), lambda net: net.export_training(tmp_path / "graphs", X, y)):
        with pytest.raises(DeviceError, match="NoProvider"):
            call(kind(**settings, runtime=Runtime(providers=["NoProvider"])))
    with pytest.raises(ValueError, match="runtime must be a Runtime or None"):
        kind(**settings, runtime={"intra_op_num_threads": 2}).fit(X, y)
