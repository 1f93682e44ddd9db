"""Stored estimators of this package: ``train --save`` writes them, and ``train --model`` goes on from their weights."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    TabMRegressor,
    load_training,
)
from tests.cli.tables import program_json, read_back, write_iris, write_patients
from tests.helpers.training import quietly


@pytest.fixture(scope="module")
def iris(tmp_path_factory):
    return write_iris(tmp_path_factory.mktemp("iris"))


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    return write_patients(tmp_path_factory.mktemp("patients"))


def rows_of(path):
    table = read_back(path)
    return table.drop(columns="species"), table["species"].to_numpy()


def small(**settings):
    return OrtGradientClassifier(random_state=0, learning_rate_init=0.01, batch_size=50, **settings)


def go_on(capsys, path, source, folder, *options):
    files = ["--output", folder / "m.onnx", "--save", folder / "again.joblib"]
    common = ["train", path, "--target", "species", "--model", source, *files, "--holdout", "0", "-q"]
    return program_json(capsys, *common, *options)


@pytest.mark.parametrize("form", ["alone", "behind a scaler", "in a search"])
def test_training_goes_on_from_the_weights_with_the_settings(iris, tmp_path, capsys, form):
    X, y = rows_of(iris)
    made = {
        "alone": small(max_iter=4, optimizer="sgd", callbacks=[print_nothing]),
        "behind a scaler": make_pipeline(StandardScaler(), small(max_iter=4, optimizer="sgd")),
        "in a search": GridSearchCV(small(optimizer="sgd"), {"max_iter": [4]}, cv=2),
    }
    stored = quietly(made[form].fit, X, y)
    joblib.dump(stored, tmp_path / "own.joblib")
    status, told = go_on(capsys, iris, tmp_path / "own.joblib", tmp_path, "--set", "max_iter=3")
    assert status == 0, told
    assert told["epochs"] == 3
    assert told["onnx"]["difference"] == 0
    whole = getattr(stored, "best_estimator_", stored)
    net, before = (whole, X) if form != "behind a scaler" else (whole[-1], whole[:-1].transform(X))
    quietly(net.set_params(warm_start=True, max_iter=3).fit, before, y)
    again = joblib.load(tmp_path / "again.joblib")
    np.testing.assert_array_equal(again.predict_proba(X), whole.predict_proba(X))
    trained = again if form != "behind a scaler" else again[-1]
    assert trained.n_iter_ == 7
    assert (trained.warm_start, trained.optimizer, trained.max_iter) == (False, "sgd", 3)
    assert trained.callbacks == ([print_nothing] if form == "alone" else None)


def print_nothing(epoch):
    """Take part in a training as a callback."""


def test_a_regressor_stops_on_a_validation_table(patients, tmp_path, capsys):
    table = read_back(patients)[["age", "s5", "target"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    X, y = table.drop(columns="target"), table["target"]
    joblib.dump(quietly(OrtGradientRegressor(max_iter=3, random_state=0).fit, X, y), tmp_path / "own.joblib")
    files = ["--model", tmp_path / "own.joblib", "--output", tmp_path / "m.onnx", "--save", tmp_path / "own.joblib"]
    options = ["--validation", tmp_path / "t.csv", "--set", "n_iter_no_change=1", "tol=1e9", "max_iter=50", "-q"]
    status, told = program_json(capsys, "train", tmp_path / "t.csv", "--target", "target", *files, *options)
    assert status == 0, told
    assert (told["task"], told["epochs"] < 10) == ("regression", True)
    assert joblib.load(tmp_path / "own.joblib").early_stopping is False


def test_a_recipe_is_trained_anew_with_its_settings(iris, tmp_path, capsys):
    table = read_back(iris)
    X, y = table.drop(columns="species"), table["species"]
    stored = RealMLPClassifier("td-s", hidden_layer_sizes=(8,), max_iter=3, random_state=5).fit(X, y)
    joblib.dump(stored, tmp_path / "recipe.joblib")
    files = ["--model", tmp_path / "recipe.joblib", "--output", tmp_path / "m.onnx", "--save", tmp_path / "s.joblib"]
    options = ["--holdout", "0", "--set", "max_iter=2", "-q"]
    status, told = program_json(capsys, "train", iris, "--target", "species", *files, *options)
    assert status == 0, told
    assert (told["task"], told["epochs"], told["onnx"]["whole_pipeline"]) == ("classification", 2, True)
    again = joblib.load(tmp_path / "s.joblib")
    assert (again.variant, again.hidden_layer_sizes, again.random_state) == ("td-s", (8,), 5)
    np.testing.assert_array_equal(again.predict_proba(X), clone(again).fit(X, y).predict_proba(X))


REFUSED = {
    "RealMLPRegressor": (make_pipeline(StandardScaler(), RealMLPRegressor()), "Train another with --model realmlp."),
    "TabMRegressor": (make_pipeline(StandardScaler(), TabMRegressor()), "Train another with --model tabm."),
    "several targets": (OrtGradientMultiOutput(), "has several targets, and train takes one --target"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_estimators_that_cannot_resume_are_refused_with_a_remedy(iris, tmp_path, capsys, case):
    stored, words = REFUSED[case]
    joblib.dump(stored, tmp_path / "own.joblib")
    table = read_back(iris)
    table["species"] = np.arange(len(table)) / 7.0
    table.to_csv(tmp_path / "t.csv", index=False)
    status, told = go_on(
        capsys, iris if "Classifier" in case else tmp_path / "t.csv", tmp_path / "own.joblib", tmp_path
    )
    assert status == 2
    assert words in told["error"]["message"]


def test_inspect_shows_the_parameters_of_the_network(iris, tmp_path, capsys):
    X, y = rows_of(iris)
    net = quietly(make_pipeline(StandardScaler(), small(max_iter=1)).fit, X, y)
    joblib.dump(net, tmp_path / "own.joblib")
    joblib.dump(net[-1], tmp_path / "last.joblib")
    status, told = program_json(capsys, "inspect", tmp_path / "own.joblib")
    assert status == 0
    assert {len(one["shape"]) for one in told["parameters"]} == {1, 2}
    _, alone = program_json(capsys, "inspect", tmp_path / "last.joblib")
    assert alone["parameters"] == told["parameters"]


@pytest.mark.long
def test_a_saved_pipeline_takes_the_table_and_goes_on(patients, tmp_path, capsys):
    common = ["train", patients, "--target", "target", "--output", tmp_path / "m.onnx", "--holdout", "0", "-q"]
    network = ["--model", "mlp", "--set", "max_iter=40", "learning_rate_init=0.01"]
    saved = tmp_path / "deep" / "p.joblib"
    status, first = program_json(capsys, *common, "--save", saved, *network)
    assert status == 0
    assert first["saved"] == {"path": str(saved), "bytes": saved.stat().st_size}
    assert b"EpochProgress" not in saved.read_bytes()
    status, more = program_json(capsys, *common, "--model", saved, "--save", saved, "--set", "max_iter=5")
    assert status == 0, more
    assert more["onnx"]["difference"] < 1e-4  # missing text is the same to both
    assert more["epochs"] == 5
    assert more["scores"]["train"]["r2"] == pytest.approx(first["scores"]["train"]["r2"], abs=0.05)
    assert joblib.load(saved)[-1].n_iter_ == 45


def test_a_saved_pipeline_is_exported_for_training(iris, tmp_path, capsys):
    saved, folder = tmp_path / "p.joblib", tmp_path / "folder"
    common = ["train", iris, "--target", "species", "--model", "mlp", "--output", tmp_path / "m.onnx", "-q"]
    assert program_json(capsys, *common, "--save", saved, "--set", "max_iter=5")[0] == 0
    assert program_json(capsys, "export-training", saved, folder, "--form", "step")[0] == 0
    X, _ = rows_of(iris)
    pipeline, training = joblib.load(saved), load_training(folder)
    np.testing.assert_allclose(training.predict_proba(pipeline[:-1].transform(X)), pipeline.predict_proba(X), rtol=1e-5)


@pytest.mark.long
def test_a_saved_graph_goes_on_without_its_file(iris, tmp_path, capsys):
    common = ["train", iris, "--target", "species", "--holdout", "0", "-q", "--set", "max_iter=5"]
    assert program_json(capsys, *common, "--model", "mlp", "--output", tmp_path / "first.onnx")[0] == 0
    graph, saved = ["--model", tmp_path / "first.onnx"], tmp_path / "own.joblib"
    assert program_json(capsys, *common, *graph, "--output", tmp_path / "m.onnx", "--save", saved)[0] == 0
    (tmp_path / "first.onnx").unlink()
    status, told = program_json(capsys, *common, "--model", saved, "--output", tmp_path / "m.onnx")
    assert status == 0, told
    assert told["epochs"] == 5


def test_the_file_to_save_is_named_as_it_is_read(iris, tmp_path, capsys):
    options = ["--target", "species", "--output", tmp_path / "m.onnx", "--save", tmp_path / "m.skops"]
    status, told = program_json(capsys, "train", iris, *options)
    assert status == 2
    assert "--save writes .joblib, .pkl or .pickle, got 'm.skops'" in told["error"]["message"]
    assert not (tmp_path / "m.onnx").exists()
