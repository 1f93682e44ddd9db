"""Several outputs trained on tables in blocks: the numbers of arrays where both see the same rows, and the errors."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn import (
    MLP,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    RealMLPClassifier,
    RowBlocks,
    callbacks,
)
from onnxtrain_sklearn.losses import LogLoss
from tests.helpers.environment import each_engine
from tests.helpers.observed import nothing_left_open, predict_in_batches, prepare_on_sample
from tests.helpers.selection import one_case
from tests.helpers.several_outputs import KINDS, data, graph
from tests.helpers.training import NEVER

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

NAMES = ["class", "labels", "numbers", "count"]
COLUMNS = {"class": "class", "labels": ["first", "second"], "numbers": ["n0", "n1"], "count": "count"}
X, Y = data(400)
Y = {name: Y[name] for name in NAMES}
FEATURES = [f"x{i}" for i in range(5)]
FRAME = pd.DataFrame(X, columns=FEATURES)
RNG = np.random.default_rng(1)
WEIGHTS = {"class": RNG.integers(0, 3, 400).astype(float), "count": RNG.integers(0, 2, 400).astype(float)}


def net(**options):
    settings = {"max_iter": 3, "learning_rate_init": 0.02, "batch_size": 32, "tol": NEVER, "random_state": 0}
    return OrtGradientMultiOutput(graph(NAMES), loss={n: KINDS[n].loss for n in NAMES}, **settings | options)


def write(path, rows=20, **columns):
    """Write the table; columns replace or follow its own."""
    table = FRAME.assign(
        **{"class": Y["class"], "count": Y["count"], "weight": WEIGHTS["class"], "other weight": WEIGHTS["count"]},
        **dict(zip(("first", "second"), Y["labels"].T, strict=True)),
        **dict(zip(("n0", "n1"), Y["numbers"].T, strict=True)),
    ).assign(**columns)
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path, row_group_size=rows)
    return path


def blocks(path, buffer_rows=200, weights=None, **options):
    return RowBlocks(path, COLUMNS, sample_weight=weights, columns=FEATURES, buffer_rows=buffer_rows, **options)


def assert_same_bits(found, expected):
    assert found.weights_.keys() == expected.weights_.keys()
    for name, array in expected.weights_.items():
        np.testing.assert_array_equal(found.weights_[name], array)


class Parts:
    """A source of a user's own: dicts of targets and of weights."""

    def __init__(self, buffer_rows, weights=None, targets=Y):
        self.buffer_rows, self.weights, self.targets = buffer_rows, weights, targets

    def __len__(self):
        return 20

    def block(self, i):
        rows = slice(20 * i, 20 * i + 20)
        y = {name: one[rows] for name, one in self.targets.items()}
        if self.weights is None:
            return FRAME[rows], y
        return FRAME[rows], y, {name: one[rows] for name, one in self.weights.items()}


# Equal to arrays: to the bit where the buffer holds all rows, or where the order is kept and outputs weigh rows alike.


WEIGHTED = {
    "equal weights": (None, None),
    "one column": ("weight", WEIGHTS["class"]),
    "a column for some": ({"class": "weight", "count": "other weight"}, WEIGHTS),
}


@each_engine
@pytest.mark.parametrize(("columns", "weights"), WEIGHTED.values(), ids=WEIGHTED)
def test_rows_that_fit_into_the_buffer_train_to_the_bits_of_arrays(columns, weights, engine, tmp_path):
    found = net(engine=engine).fit(blocks(write(tmp_path / "table.parquet"), 500, columns))
    assert_same_bits(found, net(engine=engine).fit(FRAME, Y, weights))
    assert list(found.feature_names_in_) == FEATURES


@pytest.mark.long
def test_paths_with_columns_by_output_train_to_the_bits_of_arrays(tmp_path):
    path = write(tmp_path / "table.parquet")
    pq.write_table(pq.read_table(path).drop(["weight", "other weight"]), path)
    for source in (path, [path], lambda: pq.read_table(path).to_reader()):
        assert_same_bits(net().fit(source, COLUMNS), net().fit(FRAME, Y))


@one_case
@pytest.mark.long
@each_engine
@pytest.mark.parametrize("columns", [None, "weight"])
def test_streamed_rows_train_to_the_bits_of_arrays_if_the_order_is_kept(columns, engine, tmp_path):
    weights = None if columns is None else WEIGHTS["class"]
    found = net(shuffle=False, engine=engine).fit(blocks(write(tmp_path / "table.parquet"), weights=columns))
    assert_same_bits(found, net(shuffle=False, engine=engine).fit(FRAME, Y, weights))


OPTIONS = {
    "weights": {},
    "balanced classes": {"class_weight": "balanced"},
    "weights of classes": {"class_weight": {"class": {"a": 3.0, "b": 0.0, "c": 1.0}}},
    "ignored labels": {"ignore_label": {"class": "?"}},
}


@pytest.mark.long
@pytest.mark.parametrize("own_source", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outputs_that_weigh_rows_differently_train_as_on_arrays(options, own_source, monkeypatch, tmp_path):
    prepare_on_sample(monkeypatch, rows=60, blocks=4)
    targets = dict(Y)
    if "ignore_label" in options:
        targets["class"] = np.where(np.arange(400) % 5 < 3, Y["class"], "?")
    expected = net(shuffle=False, **options).fit(FRAME, targets, WEIGHTS)
    path = write(tmp_path / "table.parquet", **{"class": targets["class"]})
    source = blocks(path, 200, {"class": "weight", "count": "other weight"})
    if own_source:
        source = Parts(200, WEIGHTS, targets)
    found = net(shuffle=False, **options).fit(source)
    for name, array in expected.weights_.items():  # the mean weights of outputs are sums over blocks
        np.testing.assert_allclose(found.weights_[name], array, rtol=2e-5, atol=2e-6)


@pytest.mark.long
def test_labels_missing_in_files_where_their_weight_is_zero_are_not_read(monkeypatch, tmp_path):
    prepare_on_sample(monkeypatch, rows=60, blocks=4)
    gaps = WEIGHTS["class"] == 0
    labels = np.where(gaps, None, Y["class"])
    counts = pd.array(Y["count"].astype(int), dtype="Int64")
    counts[WEIGHTS["count"] == 0] = pd.NA
    path = write(tmp_path / "table.parquet", **{"class": labels, "count": counts})
    columns = {"class": "weight", "count": "other weight"}
    expected = net(shuffle=False).fit(FRAME, Y, WEIGHTS)
    for buffer_rows in (200, 500):
        found = net(shuffle=False).fit(blocks(path, buffer_rows, columns))
        for name, array in expected.weights_.items():
            np.testing.assert_allclose(found.weights_[name], array, rtol=2e-5, atol=2e-6)
    with pytest.raises(ValueError, match=r"Row group 0 of .*: column 'count' has missing values"):
        net().fit(blocks(path, 200, {"class": "weight"}))


@pytest.mark.long
def test_output_that_has_labels_in_one_block_alone_is_trained(monkeypatch, tmp_path):
    prepare_on_sample(monkeypatch, rows=40, blocks=2)
    weight = np.zeros(400)
    weight[140:160] = 1.0  # the seventh of 20 blocks, of which the sample has the first and the last
    labels = np.where(weight > 0, Y["class"], None)
    path = write(tmp_path / "table.parquet", **{"class": labels, "weight": weight})
    found = net(shuffle=False).fit(blocks(path, 200, {"class": "weight"}))
    expected = net(shuffle=False).fit(FRAME, Y, {"class": weight})
    assert found.classes_["class"].tolist() == ["a", "b", "c"]
    for name, array in expected.weights_.items():
        np.testing.assert_allclose(found.weights_[name], array, rtol=2e-5, atol=2e-6)


@pytest.mark.long
def test_class_of_the_last_block_alone_is_learned(monkeypatch, tmp_path):
    prepare_on_sample(monkeypatch, rows=40, blocks=2)
    labels = np.where(np.arange(400) < 385, np.where(Y["class"] == "c", "a", Y["class"]), "c")
    path = write(tmp_path / "table.parquet", **{"class": labels})
    found = net().fit(blocks(path))
    assert found.classes_["class"].tolist() == ["a", "b", "c"]
    assert [labels.tolist() for labels in found.classes_["labels"]] == [[0, 1], [10, 11, 12]]


# Training goes on: partial_fit, early stopping, a checkpoint, the state.


@pytest.mark.long
def test_partial_fit_makes_one_pass_over_a_stream(tmp_path):
    source = blocks(write(tmp_path / "table.parquet"))
    classes = {"class": ["a", "b", "c"], "labels": [[0, 1], [10, 11, 12]]}
    with pytest.raises(ValueError, match="classes"):
        net().partial_fit(source)
    found, expected = net(shuffle=False), net(shuffle=False)
    for _ in range(2):
        found.partial_fit(source, classes=classes)
        expected.partial_fit(FRAME, Y, classes)
    assert_same_bits(found, expected)


@pytest.mark.long
def test_early_stopping_holds_out_whole_blocks(tmp_path):
    found = net(early_stopping=True, max_iter=4).fit(blocks(write(tmp_path / "table.parquet"), validation_split=0.25))
    assert len(found.validation_scores_) == 4
    assert found.t_ == 4 * 300


@one_case
@pytest.mark.long
@pytest.mark.parametrize("weights", [None, {"class": "weight", "count": "other weight"}])
def test_checkpoint_of_a_stream_goes_on_to_the_same_bits(weights, tmp_path):
    source = blocks(write(tmp_path / "table.parquet"), weights=weights)
    expected = net(max_iter=4).fit(source)

    def stop(epoch):
        if epoch.number == 2:
            raise RuntimeError

    saved = callbacks.Checkpoint(tmp_path / "saved")
    with pytest.raises(RuntimeError):
        net(max_iter=4, callbacks=[saved, stop]).fit(source)
    found = net(max_iter=4, callbacks=[callbacks.Checkpoint(tmp_path / "saved")]).fit(source)
    assert_same_bits(found, expected)


@pytest.mark.long
def test_state_of_a_stream_goes_on_to_the_same_bits(tmp_path):
    source = blocks(write(tmp_path / "table.parquet"))
    classes = {"class": ["a", "b", "c"], "labels": [[0, 1], [10, 11, 12]]}
    expected, other = net().partial_fit(source, classes=classes), net().initialize(source)
    other.load_training_state(expected.training_state())
    assert_same_bits(other.partial_fit(source), expected.partial_fit(source))


# Predictions and scores.


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_predictions_of_a_source_are_those_of_arrays(method, monkeypatch, tmp_path):
    predict_in_batches(monkeypatch, rows=64)
    path, fitted = write(tmp_path / "table.parquet"), net().fit(FRAME, Y)
    expected = getattr(fitted, method)(FRAME)
    found = getattr(fitted, method)(path).read_all().to_pandas()
    columns = {}
    for name, own in expected.items():
        parts = {"": own} if not isinstance(own, list) else {f"_{i}": part for i, part in enumerate(own)}
        for suffix, part in parts.items():
            labels = fitted.classes_.get(name)
            labels = labels[int(suffix[1:])] if suffix else labels
            if method == "predict":
                names = [name] if part.ndim == 1 else [f"{name}_{i}" for i in range(part.shape[1])]
            else:
                part = part.reshape(len(part), -1)
                labels = labels[-part.shape[1] :]  # the score of two classes is that of the second
                names = [f"{name}{suffix}_{label}" for label in labels]
            columns |= dict(zip(names, part.reshape(len(part), -1).T, strict=True))
    assert list(found) == list(columns)
    for name, numbers in columns.items():
        np.testing.assert_array_equal(found[name].to_numpy(), numbers)


@pytest.mark.parametrize("weights", [None, "weight", {"class": "weight", "count": "other weight"}])
def test_scores_of_a_source_are_those_of_arrays(weights, monkeypatch, tmp_path):
    predict_in_batches(monkeypatch, rows=64)
    path, fitted = write(tmp_path / "table.parquet"), net().fit(FRAME, Y)
    given = {None: None, "weight": WEIGHTS["class"]}.get(weights, WEIGHTS) if not isinstance(weights, dict) else WEIGHTS
    expected = fitted.output_scores(FRAME, Y, given)
    for found in (fitted.output_scores(path, COLUMNS, weights), fitted.output_scores(blocks(path, weights=weights))):
        assert found == pytest.approx(expected, rel=1e-6)
    assert fitted.score(path, COLUMNS, weights) == pytest.approx(fitted.score(FRAME, Y, given), rel=1e-6)


# Errors name output, row group and column, and leave nothing open.


def test_columns_of_one_output_for_several_and_the_reverse_are_refused(tmp_path):
    path = write(tmp_path / "table.parquet")
    cases = [
        (net(), (path, "class"), "y must be a dict of the target columns by output"),
        (net(), (RowBlocks(path, "class"), None), "target must be a dict of the target columns by output"),
        (net(), (path, Y), "y must name the target column of each output, got ndarray for 'class'"),
        (OrtGradientClassifier(MLP((4,))), (path, {"a": "class"}), "y must be a column or a list of columns"),
        (OrtGradientClassifier(MLP((4,))), (blocks(path), None), "target must be a column or a list of columns"),
        (RealMLPClassifier(), (blocks(path), None), "target must be a column or a list of columns"),
    ]
    for estimator, given, message in cases:
        with pytest.raises(TypeError, match=message):
            estimator.fit(*given)
    with pytest.raises(TypeError, match="target must be a dict of the target columns by output"):
        net().fit(FRAME, Y).score(RowBlocks(path, "class"))


REFUSED = {
    "unknown output": ({**COLUMNS, "clas": "class"}, None, ValueError, "names 'clas', an output without a loss"),
    "no output": ({"class": "class"}, None, ValueError, "lacks the output"),
    "unknown column": ({**COLUMNS, "class": "kind"}, None, ValueError, "no column 'kind'"),
    "column of an output twice": ({**COLUMNS, "numbers": ["n0", "n0"]}, None, ValueError, r"name \['n0'\] more than"),
    "weights of no output": (COLUMNS, {"clas": "weight"}, ValueError, "sample_weight names 'clas'"),
    "weights of numbers": (COLUMNS, {"class": 3}, TypeError, r"sample_weight\['class'\] must be the name"),
    "weights of texts": (COLUMNS, {"count": "class"}, ValueError, "more than once"),
}


@pytest.mark.parametrize("buffer_rows", [200, 500])
@pytest.mark.parametrize(("target", "weights", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_columns_of_outputs_are_refused(target, weights, error, message, buffer_rows, tmp_path):
    path = write(tmp_path / "table.parquet")
    with pytest.raises(error, match=message):
        net().fit(RowBlocks(path, target, sample_weight=weights, columns=FEATURES, buffer_rows=buffer_rows))


@pytest.mark.parametrize("buffer_rows", [200, 500])
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("class", None, "column 'class' has missing values"),
     ("count", -1.0, "Column 'count': Output 'count': .*negative"),
     ("n1", np.inf, "Columns 'n0', 'n1': Output 'numbers': Input y"), ("x3", np.nan, "Input X contains NaN")],
)  # fmt: skip
def test_bad_value_in_a_late_block_names_its_row_group(column, value, message, buffer_rows, monkeypatch, tmp_path):
    prepare_on_sample(monkeypatch, rows=40, blocks=2)
    whole = pq.read_table(write(tmp_path / "table.parquet")).to_pandas()
    values = whole[column].to_numpy(copy=True)
    values[330] = value
    path, estimator = write(tmp_path / "table.parquet", **{column: values}), net().fit(FRAME, Y)
    weights = {name: array.copy() for name, array in estimator.weights_.items()}
    with nothing_left_open(), pytest.raises(ValueError, match=rf"Row group 16 of .*table\.parquet: .*{message}"):
        estimator.fit(blocks(path, buffer_rows))
    assert all(np.array_equal(weights[name], estimator.weights_[name]) for name in weights)


@pytest.mark.parametrize("buffer_rows", [200, 500])
@pytest.mark.parametrize(
    ("loss", "remedy"),
    [("soft", "takes soft labels .*, which OrtGradientClassifier trains, on one output. Give labels, and a loss of"),
     ("triplet", "takes targets of its own, which OrtGradientRegressor trains, on one output")],
)  # fmt: skip
def test_losses_of_one_output_are_refused(loss, remedy, buffer_rows, tmp_path):
    estimator = net()
    estimator.loss = {**estimator.loss, "numbers": LogLoss(targets="probabilities") if loss == "soft" else loss}
    before = dict(vars(estimator))
    with nothing_left_open(), pytest.raises(ValueError, match=f"Output 'numbers': loss=.* {remedy}"):
        estimator.fit(blocks(write(tmp_path / "table.parquet"), buffer_rows))
    assert vars(estimator) == before


def test_settings_and_targets_that_need_all_rows_are_refused(tmp_path):
    path = write(tmp_path / "table.parquet")
    with pytest.raises(ValueError, match="LBFGS takes all rows at once"):
        net(optimizer="lbfgs").fit(blocks(path))

    class Positions(Parts):
        def block(self, i):
            return X[20 * i : 20 * i + 20], {"switches": data(400)[1]["switches"][20 * i : 20 * i + 20]}

    estimator = OrtGradientMultiOutput(graph(["switches"]), loss={"switches": "log_loss"}, max_iter=1)
    with pytest.raises(ValueError, match="at positions take all rows at once"):
        estimator.fit(Positions(200))
    with pytest.raises(ValueError, match="at positions take all rows at once"):
        estimator.partial_fit(Positions(200), classes={"switches": [0, 1]})
    assert estimator.fit(Positions(500)).n_iter_ == 1
    with pytest.raises(ValueError, match="at positions take all rows at once"):
        estimator.partial_fit(Positions(200))
