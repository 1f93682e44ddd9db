"""``train`` and ``predict``: real tables in, ONNX files, reports and predictions out."""

from __future__ import annotations

import json
import runpy
import signal
import subprocess
import sys

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn import datasets
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier
from tests.cli.tables import FAST, program_json, read_back, write_iris, write_patients
from tests.helpers.command import interrupt_epoch, main, refuse_whole_pipelines, shift_file_predictions
from tests.helpers.selection import one_case


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tables")
    write_iris(made)
    write_patients(made)
    return made


@pytest.mark.slow
def test_from_a_shell(folder, tmp_path, monkeypatch, capsys):
    command = [sys.executable, "-m", "onnxtrain_sklearn", "train", folder / "iris.csv", "--target", "species"]
    options = ["--output", tmp_path / "deep" / "iris.onnx", "--set", "max_iter=30", "learning_rate_init=0.01", "--json"]
    done = subprocess.run(
        [*command, "--model", "mlp", *options], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scores"]["test"]["accuracy"] > 0.85
    assert "150 rows" in done.stderr
    assert "epoch 30 of at most 30" in done.stderr
    assert "warning: Training has not converged" in done.stderr
    monkeypatch.setattr(sys, "argv", [sys.argv[0], "train", "no.csv", "--target", "y"])
    monkeypatch.delitem(sys.modules, "onnxtrain_sklearn.__main__", raising=False)  # runpy warns of a module run twice
    with pytest.raises(SystemExit) as ended:  # as from a shell, but nothing is imported again
        runpy.run_module("onnxtrain_sklearn", run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[0] == "error: There is no file 'no.csv'."


def test_classes_are_trained_reported_and_predicted(folder, tmp_path, capsys):
    file, report = tmp_path / "iris.onnx", tmp_path / "r" / "iris.html"
    options = ["--target", "species", "--output", file, "--report", report, "--set", "max_iter=30", "--quiet"]
    status, told = program_json(capsys, "train", folder / "iris.csv", *options)
    assert status == 0
    assert told.keys() >= {
        "command", "succeeded", "model", "task", "target", "columns", "classes", "rows", "settings", "engine", "epochs",
        "scores", "baseline", "onnx", "seconds", "report",
    }  # fmt: skip
    assert (told["task"], told["rows"], told["epochs"]) == ("classification", {"train": 120, "test": 30}, 30)
    assert told["model"] == "realmlp"
    assert told["scores"]["test"]["accuracy"] > 0.85 > told["baseline"]["accuracy"]
    assert told["onnx"]["whole_pipeline"]
    page = report.read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "<td>accuracy</td>" in page
    assert "virginica" in page
    onnx.checker.check_model(onnx.load(file), full_check=True)
    output = tmp_path / "p.csv"
    assert main(["predict", str(file), str(folder / "iris.csv"), "--output", str(output), "-q"]) == 0
    predicted, given = read_back(output), read_back(folder / "iris.csv")
    assert list(predicted) == ["label", *(f"probabilities_{name}" for name in ("setosa", "versicolor", "virginica"))]
    assert np.mean(predicted["label"] == given["species"]) > 0.85
    np.testing.assert_allclose(predicted.drop(columns="label").sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_the_default_model_predicts_rows_that_it_has_not_seen(tmp_path, capsys):
    datasets.load_diabetes(as_frame=True).frame.to_csv(tmp_path / "t.csv", index=False)
    options = ["--target", "target", "--output", tmp_path / "m.onnx"]
    status, told = program_json(capsys, "train", tmp_path / "t.csv", *options)
    assert status == 0
    scores = told["scores"]
    assert scores["train"]["r2"] < 0.65  # a perceptron that has learned the rows by heart has 0.71
    assert scores["test"]["r2"] > 0.2


@pytest.mark.long
def test_columns_are_found_by_name(folder, tmp_path, capsys):
    file, turned = tmp_path / "iris.onnx", tmp_path / "turned.csv"
    program_json(capsys, "train", folder / "iris.csv", "--target", "species", "--output", file, *FAST)
    table = read_back(folder / "iris.csv")
    table[table.columns[::-1]].to_csv(turned, index=False)
    _, same = program_json(capsys, "predict", file, folder / "iris.csv")
    _, other = program_json(capsys, "predict", file, turned, "--keep", "species")
    assert same["predictions"]["label"] == other["predictions"]["label"]
    assert other["predictions"]["species"] == table["species"].tolist()
    table.drop(columns=table.columns[1]).to_csv(turned, index=False)
    status, told = program_json(capsys, "predict", file, turned)
    assert status == 2
    assert "lacks the column 'sepal width (cm)'" in told["error"]["message"]


@one_case
@pytest.mark.parametrize("model", ["linear", "realmlp"])
def test_text_and_missing_values_go_into_the_file(folder, tmp_path, capsys, model):
    file = tmp_path / "m.onnx"
    options = ["--target", "target", "--model", model, "--output", file, "--set", "max_iter=2", "-q"]
    status, told = program_json(capsys, "train", folder / "patients.csv", *options)
    assert status == 0
    assert told["task"] == "regression"
    assert told["scores"]["test"].keys() == {"r2", "mean_absolute_error", "root_mean_squared_error"}
    assert told["onnx"]["whole_pipeline"]
    assert told["onnx"]["difference"] < 1e-4
    inputs = {one.name for one in onnx.load(file).graph.input}
    assert {"sex", "bmi"} <= inputs
    status, told = program_json(capsys, "predict", file, folder / "patients.csv")
    assert status == 0
    assert np.isfinite(told["predictions"]["variable"]).all()


@pytest.mark.long
def test_a_fitted_model_is_fine_tuned_on_its_own_columns(folder, tmp_path, capsys):
    table = read_back(folder / "iris.csv")
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(table.iloc[:, [2, 0]], table["species"])
    joblib.dump(fitted, tmp_path / "fitted.joblib")
    options = ["--target", "species", "--model", tmp_path / "fitted.joblib", "--output", tmp_path / "t.onnx", "-q"]
    status, told = program_json(capsys, "train", folder / "iris.csv", *options)
    assert status == 0
    assert told["columns"] == list(table.columns[[2, 0]])
    assert told["model"] == "fitted.joblib (Pipeline)"
    assert told["scores"]["test"]["accuracy"] > 0.85
    status, told = program_json(capsys, "train", folder / "iris.csv", *options, "--task", "regression")
    assert status == 2
    assert "is for classification" in told["error"]["message"]


@pytest.mark.long
def test_columns_keep_names_that_are_no_identifiers(folder, tmp_path, capsys):
    table = read_back(folder / "iris.csv")
    table.columns = ["length/width ratio", "2nd (cm)", "a b", "größe", "species"]
    table["a_b"] = np.where(table["a b"] > 3, "long", "short")
    table.to_csv(tmp_path / "named.csv", index=False)
    files = ["--target", "species", "--output", tmp_path / "named.onnx"]
    settings = ["--model", "mlp", "--set", "max_iter=200", "tol=1.0", "-q"]
    status, told = program_json(capsys, "train", tmp_path / "named.csv", *files, *settings)
    assert status == 0, told
    assert told["onnx"]["whole_pipeline"]
    assert told["onnx"]["difference"] < 1e-4
    model = onnx.load(tmp_path / "named.onnx")
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == [name for name in table.columns if name != "species"]
    shuffled = table.drop(columns="species")[["a_b", "größe", "2nd (cm)", "a b", "length/width ratio"]]
    shuffled.to_csv(tmp_path / "new.csv", index=False)
    output = tmp_path / "predicted.csv"
    status, told = program_json(capsys, "predict", tmp_path / "named.onnx", tmp_path / "new.csv", "--output", output)
    assert status == 0, told
    assert len(read_back(output)) == len(table)


def test_types_in_skops_files_must_be_trusted(folder, tmp_path, capsys):
    skops_io = pytest.importorskip("skops.io")
    table = read_back(folder / "iris.csv")
    X, y = table.drop(columns="species"), table["species"]
    path = tmp_path / "net.skops"
    trees = GradientBoostingClassifier(n_estimators=2, random_state=0).fit(X, y)
    skops_io.dump(OrtGradientClassifier(trees, max_iter=200, tol=1.0).fit(X, y), path)
    options = ["--target", "species", "--model", path, "--output", tmp_path / "t.onnx", "-q"]
    status, told = program_json(capsys, "train", folder / "iris.csv", *options)
    assert status == 2
    message = told["error"]["message"]
    assert "skops does not know" in message
    assert "onnxtrain_sklearn." not in message
    assert message.partition("add: --trust ")[2].split()


def test_a_graph_is_trained_from_its_own_weights(folder, tmp_path, capsys):
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    common = ["train", folder / "iris.csv", "--target", "species", "--quiet"]
    network = ["--model", "mlp", "--set", "max_iter=60", "learning_rate_init=0.02"]
    _, before = program_json(capsys, *common, "--output", first, *network)
    status, after = program_json(capsys, *common, "--model", first, "--output", second, "--set", "max_iter=1")
    assert status == 0
    assert after["scores"]["train"]["log_loss"] == pytest.approx(before["scores"]["train"]["log_loss"], rel=0.2)


@pytest.mark.long
def test_validation_and_test_tables(folder, tmp_path, capsys):
    table = read_back(folder / "iris.csv")
    table[::2].to_csv(tmp_path / "test.csv", index=False)
    tables = ["--test", tmp_path / "test.csv", "--validation", tmp_path / "test.csv"]
    common = ["train", folder / "iris.csv", "--target", "species", *tables, "--output", tmp_path / "m.onnx"]
    settings = ["--set", "n_iter_no_change=1", "tol=0.5", "optimizer=sgd", "optimizer__momentum=0.5", "--quiet"]
    status, told = program_json(capsys, *common, "--model", "mlp", *settings)
    assert status == 0
    assert told["rows"] == {"train": 150, "test": 75}
    assert told["epochs"] < 10  # the score on the validation table does not rise by a half
    few = ["--save", tmp_path / "m.joblib", "--set", "max_iter=2", "n_ensembles=1", "linear_part=False"]
    status, told = program_json(capsys, *common, *few)
    assert (status, told["model"]) == (0, "realmlp")
    stored = joblib.load(tmp_path / "m.joblib")
    reached = stored.score(table[::2].drop(columns="species"), table["species"][::2])
    assert reached in stored.validation_scores_[0]


@pytest.mark.parametrize("model", ["realmlp", "mlp", "linear"])
def test_time_limit_ends_the_training(model, folder, tmp_path, capsys):
    limit = ["--model", model, "--time-limit", "1e-6", "--output", tmp_path / "m.onnx"]
    status, told = program_json(capsys, "train", folder / "iris.csv", "--target", "species", *limit)
    assert (status, told["epochs"]) == (0, 1)


@pytest.mark.long
def test_odd_tables_of_the_default_model(tmp_path, capsys):
    y = np.arange(30) % 2
    days = pd.date_range("2020-01-01", periods=30).astype(str)
    told = {}
    for name, columns in {"dates": {"x": y, "day": days}, "rows": {"x": y}, "none": {}}.items():
        pd.DataFrame(columns | {"y": y}).to_csv(tmp_path / "t.csv", index=False)
        files = [tmp_path / "t.csv", "--target", "y", "--output", tmp_path / "m.onnx"]
        status = main([str(one) for one in ("train", *files, "--set", "max_iter=2", "n_ensembles=1")])
        assert status == (name == "none")
        told[name] = capsys.readouterr().err
    assert "Column 'day' holds dates, which are trained on as texts: make numbers of them" in told["dates"]
    assert "warning" not in told["rows"]  # probabilities are those that the log loss asks for
    assert "there is no column besides the target 'y'" in told["none"]


@one_case
@pytest.mark.parametrize("model", ["realmlp", "mlp"])
@pytest.mark.parametrize("missing", ["train", "predict", "both"])
@pytest.mark.long
def test_truth_values_stay_numbers_where_some_are_missing(missing, model, tmp_path, capsys):
    flags = pd.Series([True, False] * 30)
    some = flags.astype(object).where(np.arange(60) % 7 > 0)
    tables = {"train": flags, "predict": flags} | (
        {missing: some} if missing != "both" else {"train": some, "predict": some}
    )
    for name, column in tables.items():
        pd.DataFrame({"flag": column, "y": np.where(flags, "a", "b")}).to_csv(tmp_path / f"{name}.csv", index=False)
    settings = ["--model", model, "--set", "max_iter=40", "learning_rate_init=0.05", "--output", tmp_path / "m.onnx"]
    status, _ = program_json(capsys, "train", tmp_path / "train.csv", "--target", "y", *settings)
    assert status == 0
    assert onnx.load(tmp_path / "m.onnx").graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    files = [tmp_path / "m.onnx", tmp_path / "predict.csv", "--output", tmp_path / "p.csv"]
    assert main([str(one) for one in ("predict", *files)]) == 0
    known = tables["predict"].notna().to_numpy()
    right = read_back(tmp_path / "p.csv")["label"].to_numpy() == np.where(flags, "a", "b")
    assert right[known].all()


@pytest.mark.long
def test_columns_that_count_the_rows_give_a_warning(tmp_path, capsys):
    columns = {"a": np.arange(30) ** 2, "number": np.arange(30.0), "text": ["a", "b"] * 15, "y": np.arange(30)}
    pd.DataFrame(columns, index=range(5, 35)).to_csv(tmp_path / "t.csv")
    files = [tmp_path / "t.csv", "--target", "y", "--output", tmp_path / "m.onnx"]
    for left_out, warnings in {"a": 1, "Unnamed: 0": 0}.items():
        arguments = ("train", *files, "--drop", left_out, "--model", "linear", "--set", "max_iter=1")
        assert main([str(one) for one in arguments]) == 0
        told = capsys.readouterr().err
        assert told.count("counts the rows") == warnings
        assert warnings == 0 or "Column 'Unnamed: 0' counts the rows; if it says nothing about them, leave it" in told


@pytest.mark.long
def test_the_task_is_found_in_the_target(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    targets = {
        "flag": x > 0,
        "level": rng.integers(0, 3, 60),
        "count": rng.integers(0, 1000, 60),
        "word": np.where(x > 0, "a", "b"),
        "fraction": x,
        "grade": rng.integers(1, 6, 60).astype(float),
        "amount": rng.integers(0, 1000, 60).astype(float),
    }
    tasks = {}
    for name, y in targets.items():
        pd.DataFrame({"x": x, name: y}).to_csv(tmp_path / "t.csv", index=False)
        options = ["--target", name, "--output", tmp_path / "m.onnx", "--model", "linear", "--set", "max_iter=1"]
        _, told = program_json(capsys, "train", tmp_path / "t.csv", *options)
        tasks[name] = told["task"]
    classes = {"flag", "level", "word", "grade"}
    assert tasks == {name: "classification" if name in classes else "regression" for name in targets}


@pytest.mark.long
def test_report_without_matplotlib_mentions_it(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    options = ["--target", "species", "--output", str(tmp_path / "m.onnx"), "--report", str(tmp_path / "r.html")]
    assert main(["train", str(folder / "iris.csv"), *options, "--set", "max_iter=1"]) == 0
    assert "matplotlib is not installed" in capsys.readouterr().err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "matplotlib is not installed" in page
    assert "<img" not in page


@pytest.mark.long
def test_text_in_reports_is_escaped(tmp_path, capsys):
    frame = pd.DataFrame({"<b>x</b>": [1.0, 2.0, 3.0, 4.0] * 5, "a|b": ["<i>", "&"] * 10})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for name in ("r.html", "r.md"):
        files = ["--output", tmp_path / "m.onnx", "--report", tmp_path / name]
        options = ["--target", "a|b", "--model", "linear", *files, "--set", "max_iter=1"]
        assert program_json(capsys, "train", tmp_path / "t.csv", *options)[0] == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    assert "<i>" not in page
    assert "a\\|b by linear" in (tmp_path / "r.md").read_text(encoding="utf-8")


@pytest.fixture
def handled_interrupts():
    """Let SIGINT raise KeyboardInterrupt, also where a shell started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("handled_interrupts")
@pytest.mark.parametrize("model", ["mlp", "realmlp"])
def test_ctrl_c_keeps_the_weights_reached_so_far(folder, tmp_path, capsys, monkeypatch, model):
    interrupt_epoch(monkeypatch, 3)
    options = ["--target", "species", "--model", model, "--output", tmp_path / "m.onnx", "--set", "max_iter=30"]
    status, told = program_json(capsys, "train", folder / "iris.csv", *options)
    assert status == 0
    assert 1 <= told["epochs"] <= 4
    assert told["onnx"]["difference"] < 1e-6


@pytest.mark.long
def test_a_difference_from_the_estimator_fails(folder, tmp_path, capsys, monkeypatch):
    shift_file_predictions(monkeypatch)
    options = ["--target", "species", "--output", str(tmp_path / "m.onnx"), "--set", "max_iter=1", "-q"]
    assert main(["train", str(folder / "iris.csv"), *options]) == 1
    assert "DIFFER" in capsys.readouterr().out


def test_a_pipeline_that_is_not_converted_leaves_the_network(folder, tmp_path, capsys, monkeypatch):
    refuse_whole_pipelines(monkeypatch, RuntimeError("no converter"))
    options = ["--target", "species", "--model", "mlp", "--output", str(tmp_path / "m.onnx"), "--set", "max_iter=1"]
    assert main(["train", str(folder / "iris.csv"), *options]) == 0
    printed = capsys.readouterr()
    assert "no converter" in printed.err
    assert "the network alone" in printed.out
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


def test_a_file_of_skl2onnx_is_run(folder, tmp_path, capsys):
    skl2onnx = pytest.importorskip("skl2onnx")
    table = read_back(folder / "iris.csv")
    X = table.drop(columns="species").to_numpy(np.float32)
    model = skl2onnx.to_onnx(
        LogisticRegression(max_iter=1000).fit(X, table["species"]), X[:1], target_opset=18
    )  # with dictionaries
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    status, told = program_json(capsys, "predict", tmp_path / "m.onnx", folder / "iris.csv", "--drop", "species")
    assert status == 0
    assert told["columns"] == [
        "output_label",
        *(f"output_probability_{c}" for c in ("setosa", "versicolor", "virginica")),
    ]
    ridge = skl2onnx.to_onnx(Ridge().fit(X[:, :2], X[:, 2]), X[:1, :2], target_opset=18)
    (tmp_path / "r.onnx").write_bytes(ridge.SerializeToString())
    status, told = program_json(
        capsys, "predict", tmp_path / "r.onnx", folder / "iris.csv", "--columns", *table.columns[:2]
    )
    assert status == 0
    assert told["columns"] == ["variable"]
    status, told = program_json(capsys, "predict", tmp_path / "r.onnx", folder / "iris.csv", "--drop", "species")
    assert status == 2
    assert "takes 2 columns, the table has 4" in told["error"]["message"]


def test_parquet(folder, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    read_back(folder / "patients.csv").to_parquet(tmp_path / "t.parquet")
    options = ["--target", "target", "--model", "linear", "--output", tmp_path / "m.onnx", "--set", "max_iter=1"]
    status, told = program_json(capsys, "train", tmp_path / "t.parquet", *options)
    assert status == 0
    assert told["onnx"]["difference"] < 1e-4
