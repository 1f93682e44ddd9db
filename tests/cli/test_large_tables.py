"""Tables that are read in pieces, from files, folders and patterns: predictions and trainings of the command line."""

from __future__ import annotations

import datetime
import os

import joblib
import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn import metrics
from sklearn.linear_model import LogisticRegression

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from tests.cli.tables import program_json
from tests.helpers.command import main, predict_pieces, train_from_blocks, write_files
from tests.helpers.tuning import copy_into_blocks

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
CHUNK = 500
ROWS = 2 * CHUNK + 201
"""Rows of three chunks, the last of which is small."""

COLUMNS = ["a", "b", "c"]


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 3)), columns=COLUMNS)
    return frame.assign(y=np.where(frame["a"] + frame["b"] ** 2 > 1, "yes", "no"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An ONNX file of a classifier of the first columns, and its probabilities of all rows."""
    frame = table()
    fitted = OrtGradientClassifier(MLP((8,)), max_iter=1, random_state=0).fit(frame[COLUMNS], frame["y"])
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    content = fitted.to_onnx().SerializeToString()
    path.write_bytes(content)
    session, X = onnxruntime.InferenceSession(content), frame[COLUMNS].to_numpy(np.float32)
    parts = [session.run(["probabilities"], {"X": X[i : i + CHUNK]})[0] for i in range(0, ROWS, CHUNK)]
    return path, np.concatenate(parts)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Predict chunks of few rows, and read pieces of a chunk, of which the table has three."""
    predict_pieces(monkeypatch, CHUNK)


def write_parquet(path, frame, group=230):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=group)
    return path


def write_csv(path, frame):
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False)
    return path


def source(kind, folder, frame):
    """Write a table in some form; return the arguments for it."""
    if kind.startswith("a."):
        return [(write_parquet if kind == "a.parquet" else write_csv)(folder / kind, frame)]
    write, ending = (write_parquet, "parquet") if "parquet" in kind else (write_csv, "csv")
    ends = (0, 300, len(frame) * 3 // 5, len(frame))
    files = [write(folder / "in" / f"{i}.{ending}", frame[ends[i] : ends[i + 1]]) for i in range(3)]
    if kind.startswith("files"):  # as a shell names them for a pattern
        return files
    return [folder / "in" / f"*.{ending}" if kind.startswith("pattern") else folder / "in"]


SOURCES = [
    "a.parquet",
    "a.csv",
    "a.csv.gz",
    "folder of parquet",
    "pattern of csv",
    "files of parquet",
    "files of csv",
]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("output", ["out/", "out.parquet", "out.csv", "out.csv.gz", None])
def test_pieces_are_predicted_like_the_whole_table(kind, output, model, tmp_path, capsys):
    path, expected = model
    data = source(kind, tmp_path, table())
    if output is None:
        status, told = program_json(capsys, "predict", path, *data, "--drop", "y", "--keep", "y")
        found = pd.DataFrame(told["predictions"])
    else:
        out = f"{tmp_path}/new/{output}"
        status, told = program_json(
            capsys, "predict", path, *data, "--columns", *COLUMNS, "--keep", "y", "--output", out
        )
        found = (pd.read_csv if ".csv" in out else pd.read_parquet)(out)
        assert told["output"] == out.rstrip("/")
        assert os.listdir(tmp_path / "new") == [output.rstrip("/")]
    assert (status, told["rows"]) == (0, ROWS)
    assert told["columns"] == list(found.columns) == ["y", "label", "probabilities_0", "probabilities_1"]
    assert (found["y"] == table()["y"]).all()
    assert np.array_equal(found.iloc[:, 2:].to_numpy(np.float32), expected)
    assert (found["label"] == np.array(["no", "yes"])[expected.argmax(axis=1)]).all()


def test_folder_of_predictions_has_files_in_order(model, tmp_path, monkeypatch):
    write_files(monkeypatch, 600)
    path, expected = model
    data = write_parquet(tmp_path / "a.parquet", table())
    assert main(["predict", str(path), str(data), "--drop", "y", "--output", f"{tmp_path}/out/"]) == 0
    assert sorted(os.listdir(tmp_path / "out")) == [f"part-0000{i}.parquet" for i in range(3)]
    assert np.array_equal(pd.read_parquet(tmp_path / "out").iloc[:, 1:].to_numpy(), expected)


def test_kept_columns_have_their_types_in_parquet(model, tmp_path, capsys):
    path, _ = model
    frame = table().drop(columns="y")
    some = np.arange(ROWS) > 900
    kept = pa.table(
        {
            "number": pa.array(np.arange(ROWS), mask=some),
            "flag": pa.array(np.arange(ROWS) % 2 == 0, mask=some),
            "day": pa.array([datetime.date(2024, 1, 1)] * ROWS),
            "kind": pa.array(["u", None, "v"] * (ROWS // 3) + ["u"]).dictionary_encode(),
        }
    )
    data = pa.Table.from_pandas(frame)
    for name in kept.column_names:
        data = data.append_column(name, kept.column(name))
    pq.write_table(data, tmp_path / "a.parquet", row_group_size=300)
    keep = ["--columns", *COLUMNS, "--keep", *kept.column_names]
    assert program_json(capsys, "predict", path, tmp_path / "a.parquet", *keep, "--output", f"{tmp_path}/out/")[0] == 0
    found = pq.read_table(tmp_path / "out").select(kept.column_names)
    assert found.equals(kept.set_column(3, "kind", kept.column("kind").cast(pa.string())))
    # Whole numbers stay whole in CSV and JSON too, in pieces with and without missing ones.
    program_json(capsys, "predict", path, tmp_path / "a.parquet", *keep, "--output", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [lines[i].split(",")[:3] for i in (1, 901, 902)] == [
        ["0", "True", "2024-01-01"],
        ["900", "True", "2024-01-01"],
        ["", "", "2024-01-01"],
    ]
    told = program_json(capsys, "predict", path, tmp_path / "a.parquet", *keep)[1]["predictions"]
    assert told["number"] == kept["number"].to_pylist()
    assert told["flag"] == kept["flag"].to_pylist()


def test_types_of_a_csv_file_are_those_of_all_its_rows(tmp_path, capsys):
    """Codes are text because of the last rows, and 007 is not 7."""
    n = 1500
    frame = pd.DataFrame({"code": ["007"] * n, "flag": ["True"] * n, "size": ["3"] * n, "empty": [""] * n})
    frame.iloc[-3:] = [["x", "", "2.5", ""], ["y", "False", "", ""], ["", "", "", ""]]
    path = tmp_path / "a.csv"
    frame.assign(y=np.arange(n) % 2).to_csv(path, index=False)
    options = ["--target", "y", "--model", "mlp", "--drop", "empty", "--set", "max_iter=1", "--quiet"]
    file = tmp_path / "m.onnx"
    assert program_json(capsys, "train", path, *options, "--output", file)[0] == 0
    keep = ["--drop", "y", "--keep", "code", "flag", "size", "empty"]
    status, told = program_json(capsys, "predict", file, path, *keep)
    assert status == 0
    found, whole = pd.DataFrame(told["predictions"]), pd.read_csv(path, low_memory=False)
    assert found["code"].astype(object).where(found["code"].notna(), None).tolist() == [
        *["007"] * (n - 3),
        "x",
        "y",
        None,
    ]
    assert [*found["flag"][:1], *found["flag"][-3:]] == [True, None, False, None]
    assert found["size"].isna().sum() == 2
    assert found["size"].tolist()[-4:-2] == [3.0, 2.5]
    # the predictions are those of the encoder's categories "007", "x" and "y"
    session = onnxruntime.InferenceSession(file)
    assert [one.name for one in session.get_inputs()] == ["code", "flag", "size"]
    feeds = {
        "code": np.array([[str(c) if isinstance(c, str) else ""] for c in whole["code"]], object),
        "flag": whole["flag"].map({True: 1.0, False: 0.0}).to_numpy(np.float32)[:, None],
        "size": whole["size"].to_numpy(np.float32)[:, None],
    }
    expected = session.run(["probabilities"], feeds)[0]
    np.testing.assert_allclose(found[["probabilities_0", "probabilities_1"]], expected, rtol=1e-5)


def test_error_in_a_late_piece_leaves_no_output(model, tmp_path, capsys):
    path, _ = model
    frame = table().astype({"y": object})
    data = write_csv(tmp_path / "a.csv", frame)
    with open(data, "a") as file:
        file.write("1,2,3,yes,5\n")
    for output in ("out.csv", "out.parquet", "out/"):
        arguments = ["predict", path, data, "--drop", "y", "--output", f"{tmp_path}/{output}"]
        status, told = program_json(capsys, *arguments)
        assert status == 1
        assert "a.csv' cannot be read as a CSV file: " in told["error"]["message"]
        assert os.listdir(tmp_path) == ["a.csv"]


REFUSED = {
    "files in the folder": (["in", "--output", "in/"], "is not empty"),
    "file as a folder": (["in", "--output", "in/0.csv/"], "is a file"),
    "archive": (["in", "--output", "out.zip"], "is an archive"),
    "table as output": (["in", "--output", "in/1.csv"], "is a table that is read"),
    "file twice": (["in/0.csv", "in", "--output", "out.csv"], "0.csv' is part of the table twice"),
    "no match": (["in/*.parquet", "--output", "out.csv"], "There is no file"),
    "mixed files": (["mixed"], "holds Parquet files and others, such as 'b.csv'"),
    "empty folder": (["none"], "holds no file"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_files_are_refused_before_the_work(arguments, message, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source("folder of csv", tmp_path, table())
    write_parquet(tmp_path / "mixed" / "a.parquet", table()[:9])
    write_csv(tmp_path / "mixed" / "b.csv", table()[:9])
    (tmp_path / "none").mkdir()
    status, told = program_json(capsys, "predict", model[0], *arguments)
    assert (status, told["error"]["type"]) == (2, "UsageError")
    assert message in told["error"]["message"]


def test_files_of_other_columns_are_refused(model, tmp_path, capsys):
    write_csv(tmp_path / "in" / "a.csv", table()[:9])
    write_csv(tmp_path / "in" / "b.csv", table()[:9][["b", "a", "c", "y"]])
    status, told = program_json(capsys, "predict", model[0], tmp_path / "in", "--drop", "y")
    assert status == 1
    assert "b.csv' has the columns ['b', 'a', 'c', 'y'], but" in told["error"]["message"]


def test_output_may_be_a_device(model, tmp_path):
    data = write_parquet(tmp_path / "a.parquet", table())
    before = os.stat(os.devnull).st_mode
    assert main(["predict", str(model[0]), str(data), "--drop", "y", "--output", os.devnull]) == 0
    assert os.stat(os.devnull).st_mode == before


# Training.


FLIGHTS = 1600


def flights(n=FLIGHTS) -> pd.DataFrame:
    """Return a table of numbers, texts, flags and missing values, sorted by its target."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"hour": rng.integers(5, 24, n), "carrier": rng.choice(["AA", "UA", "WN"], n)})
    wait = 3.0 * (frame["hour"] - 14) + 20 * (frame["carrier"] == "WN") + rng.normal(size=n)
    frame = frame.assign(gate=rng.normal(size=n), late=wait, state=np.where(wait > 5, "late", "in time"))
    frame.loc[frame.index % 7 == 0, ["gate", "carrier"]] = None
    return frame.sort_values("late", ignore_index=True)


@pytest.fixture
def large_from_800_rows(monkeypatch):
    train_from_blocks(monkeypatch, above=800, sample=600)
    copy_into_blocks(monkeypatch, 4)


def train(capsys, data, target, folder, *options):
    output = folder / "model.onnx"
    paths = data if isinstance(data, list) else [data]
    return program_json(capsys, "train", *paths, "--target", target, "--output", output, "--quiet", *options)


@pytest.mark.usefixtures("large_from_800_rows")
@pytest.mark.thinned(by=lambda target, **others: target)
@pytest.mark.parametrize(
    ("kind", "target", "drop"),
    [
        ("a.parquet", "late", "state"),
        ("a.csv", "late", "state"),
        ("a.csv.gz", "state", "late"),
        ("a.csv.xz", "late", "state"),
        ("folder of parquet", "late", "state"),
        ("files of csv", "state", "late"),
    ],
)
def test_large_tables_are_trained_from_blocks(kind, target, drop, tmp_path, capsys):
    frame = flights()
    data = source(kind, tmp_path, frame)
    report = tmp_path / "report.html"
    options = ["--set", "max_iter=6", "learning_rate_init=0.03", "--report", report]
    status, told = train(capsys, data, target, tmp_path, "--drop", drop, *options)
    assert status == 0
    assert told["model"] == "mlp"
    assert told["columns"] == ["hour", "carrier", "gate"]
    assert sum(told["rows"].values()) == FLIGHTS
    assert 0.18 * FLIGHTS < told["rows"]["test"] < 0.22 * FLIGHTS
    assert told["onnx"]["difference"] < 1e-4
    # The scores are those of the file, which predicts all rows: the held-out ones are a fifth of them.
    predicted = program_json(capsys, "predict", tmp_path / "model.onnx", *data, "--drop", target, drop)[1][
        "predictions"
    ]
    found, scores = np.array(next(iter(predicted.values()))), told["scores"]
    weights = [told["rows"][part] for part in scores]
    both = {name: np.average([scores[part][name] for part in scores], weights=weights) for name in scores["test"]}
    if target == "state":
        assert told["classes"] == ["in time", "late"]
        assert both["accuracy"] == pytest.approx(np.mean(found == frame["state"]), abs=1e-9)
        p = np.array([predicted[f"probabilities_{one}"] for one in told["classes"]]).T
        expected = -np.log(np.where(frame["state"] == "late", p[:, 1], p[:, 0])).mean()
        assert both["log_loss"] == pytest.approx(expected, rel=1e-4)
        assert scores["test"]["accuracy"] > 0.9
        assert told["baseline"]["accuracy"] == pytest.approx(
            frame["state"].value_counts(normalize=True).max(), abs=0.02
        )
    else:
        assert both["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(frame["late"], found), rel=1e-4)
        assert scores["test"]["r2"] == pytest.approx(metrics.r2_score(frame["late"], found), abs=0.02)
        assert scores["test"]["r2"] > 0.9
        assert told["baseline"]["r2"] == pytest.approx(0, abs=0.01)
        spread = frame["late"].std()
        assert told["baseline"]["root_mean_squared_error"] == pytest.approx(spread, rel=0.05)
    text = report.read_text()
    assert f"test ({told['rows']['test']} rows)" in text
    assert ("Test rows by true class" in text) == (target == "state")


@pytest.mark.usefixtures("large_from_800_rows")
@pytest.mark.parametrize("model", ["realmlp", "linear", "graph", "fitted", "stored"])
@pytest.mark.long
def test_every_kind_of_model_is_trained_from_blocks(model, tmp_path, capsys):
    frame = flights()
    numbers = frame[["hour", "gate", "state"]].fillna(0.0)
    data = write_parquet(tmp_path / "a.parquet", frame if model in ("realmlp", "linear") else numbers, group=320)
    given = model
    if model == "graph":
        given = tmp_path / "graph.onnx"
        given.write_bytes(MLP((8,)).build(n_features=2, n_outputs=2, random_state=0).SerializeToString())
    elif model in ("fitted", "stored"):
        given = tmp_path / "fitted.joblib"
        kind = (
            LogisticRegression() if model == "fitted" else OrtGradientClassifier(MLP((4,)), max_iter=1, random_state=0)
        )
        joblib.dump(kind.fit(numbers[["hour", "gate"]], numbers["state"]), given)
    drop = ["--drop", "late"] if model in ("realmlp", "linear") else []
    settings = ["max_iter=4", "learning_rate_init=0.04", *(["variant=td-s"] if model == "realmlp" else [])]
    status, told = train(capsys, data, "state", tmp_path, *drop, "--model", given, "--set", *settings)
    assert status == 0
    assert sum(told["rows"].values()) == FLIGHTS
    assert told["onnx"]["difference"] < 1e-4
    assert told["scores"]["test"]["accuracy"] > 0.65


@pytest.mark.usefixtures("large_from_800_rows")
@pytest.mark.long
def test_seed_decides_which_rows_of_blocks_are_held_out(tmp_path, capsys):
    data = write_parquet(tmp_path / "a.parquet", flights(), group=320)
    told = []
    for seed in (0, 0, 1):
        options = ["--drop", "late", "--seed", str(seed), "--model", "mlp", "--set", "max_iter=1"]
        told.append(train(capsys, data, "state", tmp_path, *options)[1])
    assert told[0]["scores"] == told[1]["scores"]
    assert told[0]["rows"] != told[2]["rows"]


@pytest.mark.long
@pytest.mark.usefixtures("large_from_800_rows")
def test_large_tables_are_tested_on_tables_of_their_own(tmp_path, capsys):
    frame = flights()
    for name, part in (("train", frame[::2]), ("test", frame[1::2]), ("stop", frame[1::10])):
        write_parquet(tmp_path / f"{name}.parquet", part, group=320)
    tables = ["--test", tmp_path / "test.parquet", "--validation", tmp_path / "stop.parquet"]
    options = ["--drop", "late", *tables, "--set", "max_iter=9", "learning_rate_init=0.02"]
    status, told = train(capsys, tmp_path / "train.parquet", "state", tmp_path, *options)
    assert (status, told["rows"]) == (0, {"train": FLIGHTS // 2, "test": FLIGHTS // 2})
    assert told["scores"]["test"]["accuracy"] > 0.9


@pytest.mark.long
@pytest.mark.usefixtures("large_from_800_rows")
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_large_validation_table_is_scored_on_evenly_spaced_rows(kind, tmp_path, capsys, monkeypatch):
    frame = flights()
    data = write_parquet(tmp_path / "train.parquet", frame[::3], group=200)
    held = source(f"folder of {kind}", tmp_path, frame[::-1][:1599])[0]
    seen = []
    plain = OrtGradientClassifier.fit
    monkeypatch.setattr(
        OrtGradientClassifier, "fit", lambda self, *given, **named: seen.append(named) or plain(self, *given, **named)
    )
    options = ["--drop", "late", "--validation", held, "--model", "mlp", "--set", "max_iter=2"]
    output = ["--target", "state", "--output", tmp_path / "m.onnx"]
    capsys.readouterr()
    assert main([*map(str, ["train", data, *output, *options])]) == 0
    assert f"{held}: 800 of 1599 rows, evenly spaced" in capsys.readouterr().err
    assert seen[0]["y_val"].tolist() == frame["state"][::-1][:1599:2].tolist()
    assert len(seen[0]["X_val"]) == 800


@pytest.mark.long
def test_few_rows_of_several_files_are_trained_in_memory(tmp_path, capsys):
    frame = flights(300)
    files = [write_parquet(tmp_path / "in" / f"{i}.parquet", frame[i::3]) for i in range(3)]
    together = write_parquet(tmp_path / "one.parquet", pd.concat([frame[i::3] for i in range(3)]))
    told = [
        train(capsys, data, "state", tmp_path, "--drop", "late", "--model", "mlp", "--set", "max_iter=3")[1]["scores"]
        for data in (tmp_path / "in", tmp_path / "in" / "*.parquet", files, together)
    ]
    assert told[0] == told[1] == told[2] == told[3]


WRONG = {
    "unknown target": (["--target", "stat"], 2, "--target 'stat' is no column of the table. Did you mean 'state'"),
    "unknown column": (["--target", "state", "--drop", "gat"], 2, "--drop 'gat' is no column"),
    "text to regress on": (["--target", "state", "--task", "regression"], 2, "holds text"),
    "L-BFGS": (["--target", "state", "--set", "optimizer=lbfgs"], 1, "takes all rows at once"),
    "missing target": (["--target", "carrier"], 1, "column 'carrier' has missing values"),
}


@pytest.mark.usefixtures("large_from_800_rows")
@pytest.mark.parametrize(("options", "status", "message"), WRONG.values(), ids=WRONG)
def test_wrong_calls_for_large_tables_are_errors(options, status, message, tmp_path, capsys):
    data = write_parquet(tmp_path / "a.parquet", flights(), group=320)
    output = ["--output", tmp_path / "model.onnx", "--quiet"]
    found, told = program_json(capsys, "train", data, *options, *output)
    assert message in told["error"]["message"]
    assert found == status
    assert os.listdir(tmp_path) == ["a.parquet"]
