"""Reports of ``train``: numbers against scikit-learn on what the saved estimator predicts."""

from __future__ import annotations

import re

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from tests.cli.tables import program_json, write_iris, write_patients


def write_rare(path, share=0.06) -> pd.DataFrame:
    """Write a table of two classes, 'good' and the rare 'bad', which is the first in the order of the alphabet."""
    X, y = make_classification(600, 4, n_informative=3, n_redundant=0, weights=[1 - share], flip_y=0, random_state=1)
    frame = pd.DataFrame(X.round(3), columns=list("abcd")).assign(
        town=np.where(X[:, 0] > 0, "Bern", "Ulm"), state=np.where(y == 1, "bad", "good")
    )
    frame.to_csv(path, index=False)
    return frame


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    """Return the folder of a trained table, its test rows, and the report."""
    folder = tmp_path_factory.mktemp("rare")
    frame = write_rare(folder / "t.csv")
    _, test = train_test_split(np.arange(len(frame)), stratify=frame["state"], test_size=0.2, random_state=0)
    return folder, frame.drop(index=np.sort(test)), frame.iloc[np.sort(test)]


def train_rare(capsys, rare, *options):
    folder, _, test = rare
    files = ["--output", folder / "m.onnx", "--save", folder / "m.joblib"]
    network = ["--model", "mlp", "--set", "max_iter=20", "learning_rate_init=0.02"]
    status, told = program_json(capsys, "train", folder / "t.csv", "--target", "state", *files, *network, *options)
    assert status == 0, told
    model = joblib.load(folder / "m.joblib")
    chance = model.predict_proba(test.drop(columns="state").astype(dict.fromkeys("abcd", np.float32)))
    assert model.classes_.tolist() == ["bad", "good"]
    return told, chance[:, 0], (test["state"] == "bad").to_numpy()


@pytest.mark.parametrize("score", ["balanced_accuracy", "f1", "accuracy", "matthews_corrcoef"])
def test_rare_classes_are_named_with_the_best_threshold(score, rare, capsys):
    told, chance, positive = train_rare(capsys, rare, "--threshold-score", score)
    assert set(told["rare_classes"]) == {"bad"}
    assert told["rare_classes"]["bad"] == pytest.approx((rare[1]["state"] == "bad").mean())
    assert told["scores"]["test"]["roc_auc"] == pytest.approx(metrics.roc_auc_score(positive, chance), abs=1e-6)
    right = metrics.average_precision_score(positive, chance)
    assert told["scores"]["test"]["average_precision"] == pytest.approx(right, abs=1e-6)
    measure = getattr(metrics, score if score == "matthews_corrcoef" else f"{score}_score")
    best = max(measure(positive, chance >= one) for one in [0.5, *chance])
    found = told["threshold"]
    assert (found["positive"], found["score"]) == ("bad", score)
    assert found["value"] == pytest.approx(best)
    assert measure(positive, chance >= found["threshold"] - 1e-7) == pytest.approx(best)
    assert found["usual"] == pytest.approx(measure(positive, chance >= 0.5))


@pytest.mark.parametrize("ending", ["md", "html"])
def test_report_of_two_classes(ending, rare, capsys):
    path = rare[0] / f"r.{ending}"
    told, chance, positive = train_rare(capsys, rare, "--report", path)
    text = path.read_text(encoding="utf-8")
    headings = "Summary, Scores, Classes, Calibration, Importances, Training, Warnings of the training, Provenance"
    for heading in (*headings.split(", "), "Curves of the training", "Calibration curve"):
        assert f"## {heading}\n" in text if ending == "md" else f"<h2>{heading}</h2>" in text
    assert told["verdict"] in text.replace("&#x27;", "'")
    assert "Training has not converged" in text
    assert "onnxtrain-sklearn train" in text
    assert told["provenance"]["bytes"] == (rare[0] / "t.csv").stat().st_size
    assert told["importances"].keys() == {"a", "b", "c", "d", "town"}
    if ending == "html":
        assert text.count("data:image/png;base64,") == 2
        return
    assert text.startswith("---\nlibrary_name: onnx\ntags: [tabular-classification, ")
    assert "![Curves of the training](r.png)" in text
    assert (rare[0] / "r.png").read_bytes().startswith(b"\x89PNG")
    assert (rare[0] / "r-calibration.png").read_bytes().startswith(b"\x89PNG")
    # The table of the classes, against scikit-learn.
    predicted = np.where(chance >= 0.5, "bad", "good")
    right = metrics.classification_report(np.where(positive, "bad", "good"), predicted, output_dict=True)
    for label in ("bad", "good"):
        row = re.search(rf"^\| {label} \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", text, re.M)
        expected = [right[label][name] for name in ("precision", "recall", "f1-score", "support")]
        assert [float(one) for one in row.groups()] == pytest.approx(expected, abs=2e-3)
    # Calibration: bins of about equal size, which hold all test rows; their means are those of all rows.
    rows = re.findall(r"^\| ([\d.e-]+) \| ([\d.e-]+) \| (\d+) \|$", text.partition("## Calibration")[2], re.M)
    mean, share, count = np.array(rows[:10], float).T
    assert count.sum() == len(positive)
    assert (mean * count).sum() / count.sum() == pytest.approx(chance.mean(), rel=5e-3)
    assert (share * count).sum() == pytest.approx(positive.sum(), rel=5e-3)


@pytest.mark.long
def test_other_models_are_those_of_scikit_learn(rare, capsys):
    _, before, test = rare
    told, chance, positive = train_rare(capsys, rare, "--report", rare[0] / "again.html")
    assert told["baselines"].keys() == {"HistGradientBoosting", "LogisticRegression"}
    encoded = [
        np.column_stack([StandardScaler().fit(before[list("abcd")]).transform(one[list("abcd")]),
                         one["town"] == "Bern", one["town"] == "Ulm"])
        for one in (before, test)
    ]  # fmt: skip
    linear = LogisticRegression(max_iter=1000).fit(encoded[0], before["state"])
    right = metrics.log_loss(test["state"], linear.predict_proba(encoded[1]))
    assert told["baselines"]["LogisticRegression"]["log_loss"] == pytest.approx(right, rel=1e-3)
    own = metrics.log_loss(positive, chance)
    assert f"the trained model ({own:.3g}"[:-1] in told["verdict"]


def test_verdict_counts_differences_within_chance_as_none():
    from onnxtrain_sklearn._cli.scores import verdict

    rng = np.random.default_rng(0)
    own = rng.normal(1.0, 0.1, 400)
    others = {"A": own + rng.normal(0.1, 0.1, 400), "B": own + rng.normal(0.0, 1.0, 400) * 0.1, "C": own - 0.05}
    told = verdict(own, others, "regression")
    assert "is better than A (" in told
    assert "as good as B (" in told
    assert "worse than C (" in told
    assert verdict(own, {}, "regression") == "There is no other model to compare with."


@pytest.mark.long
@pytest.mark.parametrize(("writer", "target", "models"), [
    (write_iris, "species", {"HistGradientBoosting", "LogisticRegression"}),
    (write_patients, "target", {"HistGradientBoosting", "Ridge"}),
])  # fmt: skip
def test_reports_of_other_targets(writer, target, models, tmp_path, capsys):
    path, report = writer(tmp_path), tmp_path / "r.md"
    options = ["--target", target, "--model", "linear", "--output", tmp_path / "m.onnx", "--report", report]
    status, told = program_json(capsys, "train", path, *options)
    assert status == 0, told
    assert told["baselines"].keys() == models
    assert told["threshold"] is None
    text = report.read_text(encoding="utf-8")
    assert "## Calibration" not in text
    assert ("## Classes" in text) == (target == "species")
    largest = max(told["importances"], key=told["importances"].get)
    assert largest in ("petal length (cm)", "petal width (cm)", "bmi", "s5")
    # without rows that are held out, there is nothing to compare
    status, told = program_json(capsys, "train", path, *options, "--holdout", "0")
    assert status == 0
    assert "verdict" not in told
    assert "## Importances" not in report.read_text(encoding="utf-8")
