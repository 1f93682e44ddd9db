"""``export-training`` writes the folder that the estimator itself writes."""

from __future__ import annotations

import joblib
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import Linear, OrtGradientClassifier, RealMLPClassifier, load_training
from tests.cli.tables import program_json
from tests.helpers.training import quietly

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)


def test_the_last_step_of_a_pipeline_is_exported(tmp_path, capsys):
    pipeline = make_pipeline(StandardScaler(), OrtGradientClassifier(Linear(), max_iter=2, random_state=0))
    joblib.dump(quietly(pipeline.fit, X, y), tmp_path / "pipeline.joblib")
    options = ["--form", "step", "--batch-size", "8"]
    status, told = program_json(capsys, "export-training", tmp_path / "pipeline.joblib", tmp_path / "folder", *options)
    assert status == 0
    assert sorted(told["files"]) == ["manifest.json", "predict.onnx", "state.safetensors", "step.onnx"]
    training = load_training(tmp_path / "folder")
    assert training.manifest["batch_size"] == 8
    rows = pipeline[:-1].transform(X)
    np.testing.assert_allclose(training.predict_proba(rows), pipeline.predict_proba(X), rtol=1e-5)


def test_other_estimators_are_refused(tmp_path, capsys):
    joblib.dump(LogisticRegression().fit(X, y), tmp_path / "plain.joblib")
    status, told = program_json(capsys, "export-training", tmp_path / "plain.joblib", tmp_path / "folder")
    assert status == 2
    assert "holds a LogisticRegression, and training graphs are made of" in told["error"]["message"]
    assert not (tmp_path / "folder").exists()


def test_a_recipe_is_referred_to_its_method(tmp_path, capsys):
    joblib.dump(quietly(RealMLPClassifier("td-s", max_iter=2, random_state=0).fit, X, y), tmp_path / "recipe.joblib")
    status, told = program_json(capsys, "export-training", tmp_path / "recipe.joblib", tmp_path / "folder")
    assert status == 2
    assert "holds a RealMLPClassifier" in told["error"]["message"]
    assert "call export_training(folder, X, y) in Python" in told["error"]["message"]
    assert not (tmp_path / "folder").exists()


def test_file_without_estimator_is_named_in_the_error(tmp_path, capsys):
    (tmp_path / "net.onnx").write_bytes(b"")
    for name in (tmp_path / "net.onnx", "mlp", "realmlp"):
        status, told = program_json(capsys, "export-training", name, tmp_path / "folder")
        assert status == 2
        assert f"{str(name)!r} is no stored estimator" in told["error"]["message"]
