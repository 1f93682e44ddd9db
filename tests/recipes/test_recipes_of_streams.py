"""Recipes on tables in blocks: the bits of arrays where the buffer holds all rows, else statistics of all rows."""

from __future__ import annotations

import os
import threading
import weakref

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.class_weight import compute_class_weight

from onnxtrain_sklearn import (
    RealMLPClassifier,
    RealMLPRegressor,
    RowBlocks,
    TabMClassifier,
    TabMRegressor,
)
from tests.helpers.environment import each_engine
from tests.helpers.observed import predict_in_batches, predict_in_chunks
from tests.helpers.selection import one_case
from tests.helpers.tuning import copy_into_blocks, limit_categories

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

FEATURES = ["size", "price", "color", "grade", "new"]
RECIPES = {"RealMLP": (RealMLPClassifier, RealMLPRegressor), "TabM": (TabMClassifier, TabMRegressor)}
each_recipe = pytest.mark.parametrize("name", RECIPES)


def table(n=600, seed=0):
    """Rows with numbers, text, categories that are numbers, and truth values; some are missing."""
    rng = np.random.default_rng(seed)
    size, price = rng.normal(size=n), rng.exponential(size=n) * 1e3
    color, new = rng.choice(["red", "green", "blue"], n), rng.random(n) < 0.3
    score = size + (color == "red") * 1.5 + new
    frame = pd.DataFrame({"size": size, "price": np.where(rng.random(n) < 0.1, np.nan, price)})
    frame["color"] = pd.Series(np.where(rng.random(n) < 0.1, None, color), dtype=object)
    frame["grade"] = pd.Categorical(rng.choice([10, 20, 30], n))
    frame["new"] = new
    frame["label"] = np.where(score > 1.2, "high", np.where(score < -0.5, "low", "middle"))
    frame["number"] = 100 + 10 * score
    return frame


def write(frame, path, rows=50):
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=rows)
    return path


def classifier(name="RealMLP", **options):
    options = {"max_iter": 4, "random_state": 0, "hidden_layer_sizes": 16} | options
    return RealMLPClassifier("td-s", **options) if name == "RealMLP" else TabMClassifier(2, **options)


def regressor(name="RealMLP", **options):
    options = {"max_iter": 4, "random_state": 0, "hidden_layer_sizes": 16} | options
    return RealMLPRegressor("td-s", **options) if name == "RealMLP" else TabMRegressor(2, **options)


def blocks(path, target="label", **options):
    return RowBlocks(path, target, columns=FEATURES, **{"buffer_rows": 400} | options)


def same_graph(one, other):
    return one.to_onnx().SerializeToString(deterministic=True) == other.to_onnx().SerializeToString(deterministic=True)


class Frames:
    """A source of a user's own: parts of a data frame."""

    def __init__(self, parts, target="label", buffer_rows=100, weight=None):
        self.parts, self.target, self.weight, self.buffer_rows = parts, target, weight, buffer_rows

    def __len__(self):
        return len(self.parts)

    def block(self, i):
        part = self.parts[i]
        X, y = part[[name for name in part if name in FEATURES]], part[self.target].to_numpy()
        return (X, y) if self.weight is None else (X, y, part[self.weight].to_numpy())


class Arrays:
    """Parts of an array, without targets."""

    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts)

    def block(self, i):
        return self.parts[i]


def parts_of(frame, count=24):
    return [frame.iloc[rows] for rows in np.array_split(np.arange(len(frame)), count)]


# Where the buffer holds all rows.

SOURCES = {
    "path": lambda path: path,
    "list": lambda path: [path],
    "data set": lambda path: ds.dataset(str(path)),
    "lazy frame": lambda path: pytest.importorskip("polars", "1.34").scan_parquet(path),
    "relation": lambda path: pytest.importorskip("duckdb").sql(f"select * from '{path}'"),
}
FRAMES = {
    "feather": lambda frame, path: frame.to_feather(path) or path,
    "reader": lambda frame, path: pa.Table.from_pandas(frame, preserve_index=False).to_reader,
}


@one_case
@each_engine
@each_recipe
def test_recipe_on_a_file_that_fits_has_the_bits_of_arrays(name, engine, tmp_path):
    frame = table().astype({"grade": int})
    path = write(frame, tmp_path / "table.parquet")
    for make, target in ((classifier, "label"), (regressor, "number")):
        expected = make(name, engine=engine).fit(frame[FEATURES], frame[target])
        found = make(name, engine=engine).fit(blocks(path, target, buffer_rows=2000))
        assert same_graph(found, expected)
        assert list(found.feature_names_in_) == FEATURES
        np.testing.assert_array_equal(found.predict(frame[FEATURES]), expected.predict(frame[FEATURES]))


@pytest.mark.parametrize("kind", SOURCES)
def test_each_kind_of_source_has_the_bits_of_arrays(kind, tmp_path):
    frame = table(300)[[*FEATURES, "label"]]
    path = write(frame, tmp_path / "table.parquet")
    expected = classifier().fit(frame[FEATURES].astype({"grade": int}), frame["label"])
    assert same_graph(classifier().fit(SOURCES[kind](path), y="label"), expected)


@pytest.mark.parametrize("buffer_rows", [2000, 280])
@pytest.mark.parametrize("kind", FRAMES)
def test_categories_that_are_numbers_are_those_of_the_source(kind, buffer_rows, tmp_path):
    frame = table(300)[[*FEATURES, "label"]]
    expected = classifier(validation_split=None, max_iter=1).fit(frame[FEATURES], frame["label"])
    rows = RowBlocks(FRAMES[kind](frame, tmp_path / "table.feather"), "label", buffer_rows=buffer_rows)
    found = classifier(validation_split=None, max_iter=1).fit(rows)
    assert found._inputs.categories == expected._inputs.categories
    assert found._inputs.categories[1].known == (10.0, 20.0, 30.0)
    assert buffer_rows < 300 or same_graph(found, expected)


def test_weights_and_fraction_of_a_table_that_fits_have_the_bits_of_arrays(tmp_path):
    frame = table(300).astype({"grade": int}).assign(weight=np.linspace(0.0, 2.0, 300))
    path = write(frame, tmp_path / "table.parquet")
    expected = regressor(validation_split=0.4).fit(frame[FEATURES], frame["number"], frame["weight"])
    found = regressor().fit(blocks(path, "number", sample_weight="weight", validation_split=0.4))
    assert same_graph(found, expected)
    with pytest.raises(ValueError, match=r"validation_split must be at most 0\.5, got 0\.9"):
        regressor().fit(blocks(path, "number", validation_split=0.9))


# Where it does not: what is learned before the first step.


@one_case
@each_recipe
def test_preprocessing_is_learned_from_all_blocks(name, tmp_path):
    frame = table().assign(grade=lambda f: f["grade"].astype(str))
    order = np.argsort(frame["price"].fillna(0.0).to_numpy())  # blocks that differ
    frame = frame.iloc[order]
    frame.loc[frame["size"] > 2, "size"] = np.nan
    path = write(frame, tmp_path / "table.parquet")
    rows = blocks(path, "number")
    found = regressor(name, validation_split=None, max_iter=1).fit(rows)._inputs
    expected = regressor(name, validation_split=None, max_iter=1).fit(frame[FEATURES], frame["number"])._inputs
    assert (found.numbers, found.gaps, found.categories) == (expected.numbers, expected.gaps, expected.categories)
    middle = [frame[one].astype(np.float32).median() for one in ("size", "price")]
    np.testing.assert_array_equal(found.fill, np.array(middle, np.float32))
    assert found.scaling.numbers().keys() == expected.scaling.numbers().keys()
    if name == "RealMLP":  # quantiles of up to 16,384 numbers are exact
        for one, array in expected.scaling.numbers().items():
            np.testing.assert_array_equal(found.scaling.numbers()[one], array)
    else:  # the noise differs, of a thousandth of a deviation
        filled = frame[["size", "price"]].fillna(dict(zip(("size", "price"), found.fill, strict=True))).to_numpy()
        exact = np.quantile(filled, np.linspace(0, 1, len(found.scaling.knots)), axis=0)
        np.testing.assert_allclose(found.scaling.knots, exact, atol=5e-3 * filled.std(axis=0).max())
        np.testing.assert_allclose(found.scaling.knots[:, 0], exact[:, 0], atol=5e-3)


@pytest.mark.long
def test_quantiles_of_many_rows_are_those_of_a_sketch(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": np.sort(rng.exponential(size=60_000)), "number": rng.normal(size=60_000)})
    path = write(frame, tmp_path / "table.parquet", rows=2000)
    fitted = regressor(validation_split=None, max_iter=1, batch_size=4096)
    fitted.fit(RowBlocks(path, "number", buffer_rows=16_000))
    for value, share in ((fitted._inputs.fill[0], 0.5), (fitted._inputs.scaling.center[0], 0.5)):
        assert abs((frame["size"] < value).mean() - share) < 2e-3
    low, high = np.quantile(frame["size"], [0.25, 0.75])
    np.testing.assert_allclose(1 / fitted._inputs.scaling.factor[0], high - low, rtol=5e-3)


@pytest.mark.long
@one_case
@each_recipe
def test_category_and_class_of_the_last_block_alone_are_learned(name, tmp_path):
    frame = table()
    late = np.arange(len(frame)) >= len(frame) - 50
    frame["color"] = np.where(late, "violet", frame["color"])
    frame["label"] = np.where(late, "late", frame["label"])
    path = write(frame, tmp_path / "table.parquet")
    options = {"learning_rate_init": 0.02} if name == "TabM" else {}
    fitted = classifier(name, max_iter=20, batch_size=64, **options).fit(blocks(path))
    assert fitted.classes_.tolist() == ["high", "late", "low", "middle"]
    assert (fitted.predict(frame.loc[late, FEATURES]) == "late").mean() > 0.9  # the block is not held out
    unseen = frame.loc[late, FEATURES].assign(color="of no row")
    assert not np.allclose(fitted.predict_proba(unseen), fitted.predict_proba(frame.loc[late, FEATURES]))


@one_case
@pytest.mark.long
@each_recipe
@pytest.mark.parametrize("setting", ["from_dtype", ["color", "new"]], ids=str)
def test_columns_without_values_in_blocks_are_those_of_the_table(setting, name):
    frame = table()
    parts = parts_of(frame)
    # All values of a block are missing, as NaN in a column of text too; in the last column in all blocks.
    parts[0] = parts[0].assign(color=np.nan, size=None, price=np.nan)
    parts[3] = parts[3].assign(color=None, new=None)
    parts = [part.assign(grade=np.nan) for part in parts]
    whole = pd.concat([part.astype({"color": object, "size": float, "new": object}) for part in parts])
    options = {"validation_split": None, "categorical_features": setting}
    found = classifier(name, **options).fit(Frames(parts))
    expected = classifier(name, **options).fit(whole[FEATURES], whole["label"])
    one, other = found._inputs, expected._inputs
    assert (one.numbers, one.gaps, one.categories) == (other.numbers, other.gaps, other.categories)
    np.testing.assert_array_equal(one.fill, other.fill)
    assert found.score(whole[FEATURES], whole["label"]) > 0.4


def test_columns_of_one_file_without_values_have_the_type_of_other_files(tmp_path):
    frame = table(500)
    write(frame.iloc[:250].assign(color=None, price=None), tmp_path / "0.parquet")
    write(frame.iloc[250:], tmp_path / "1.parquet")
    fitted = classifier().fit(blocks(tmp_path, buffer_rows=400))
    assert [one.known for one in fitted._inputs.categories] == [("blue", "green", "red"), (0.0, 1.0)]


def test_rows_of_weight_zero_count_in_no_statistic(tmp_path):
    frame = table().astype({"grade": int}).assign(weight=1.0)
    frame.loc[::7, ["size", "price", "color", "weight"]] = [1e6, -1e6, "violet", 0.0]
    frame.loc[:149, "weight"] = 0.0  # three whole blocks
    path = write(frame, tmp_path / "table.parquet")
    kept = frame[frame["weight"] > 0]
    found = regressor(validation_split=None, max_iter=1).fit(blocks(path, "number", sample_weight="weight"))
    expected = regressor(validation_split=None, max_iter=1).fit(kept[FEATURES], kept["number"])
    assert found._inputs.categories == expected._inputs.categories
    for name, array in expected._inputs.scaling.numbers().items():
        np.testing.assert_array_equal(found._inputs.scaling.numbers()[name], array)
    with pytest.raises(ValueError, match="sum of sample_weight is zero"):
        regressor().fit(blocks(write(frame.assign(weight=0.0), path), "number", sample_weight="weight"))


@pytest.mark.long
def test_balanced_classes_weigh_as_those_of_all_rows(tmp_path):
    frame = table().sort_values("label")
    path = write(frame, tmp_path / "table.parquet")
    classes = np.unique(frame["label"])
    weights = compute_class_weight("balanced", classes=classes, y=frame["label"])
    given = dict(zip(classes, weights, strict=True))
    balanced, given, plain = (
        classifier(class_weight=one, batch_size=64, max_iter=2).fit(blocks(path)) for one in ("balanced", given, None)
    )
    X = frame[FEATURES]
    np.testing.assert_allclose(balanced.predict_proba(X), given.predict_proba(X), atol=1e-5)
    assert np.abs(balanced.predict_proba(X) - plain.predict_proba(X)).max() > 1e-2
    with pytest.raises(ValueError, match="class_weight"):
        classifier(class_weight={"high": 1.0, "other": 2.0}).fit(blocks(path))


# Training.


@one_case
@pytest.mark.long
@each_engine
@each_recipe
@pytest.mark.parametrize(("make", "target"), [(classifier, "label"), (regressor, "number")])
def test_recipe_on_blocks_of_a_sorted_table_scores_as_on_arrays(make, target, name, engine, tmp_path):
    frame = table(2400).astype({"grade": int}).sort_values("number")
    path = write(frame, tmp_path / "table.parquet", rows=80)
    test = table(1000, seed=1).astype({"grade": int})
    options = {"max_iter": 12, "engine": engine, "hidden_layer_sizes": 32}
    options |= {"learning_rate_init": 0.01} if name == "TabM" else {}
    arrays = make(name, **options).fit(frame[FEATURES], frame[target])
    streamed = make(name, **options).fit(blocks(path, target, buffer_rows=800))
    score = streamed.score(test[FEATURES], test[target])
    assert score > arrays.score(test[FEATURES], test[target]) - 0.03
    assert score > 0.85
    assert streamed.n_iter_ == len(streamed.loss_curves_[0]) == len(streamed.validation_scores_[0])


@one_case
@each_recipe
@pytest.mark.long
def test_a_seed_gives_the_same_bits_with_and_without_reading_ahead(name, tmp_path):
    path = write(table(500), tmp_path / "table.parquet")
    fits = [classifier(name, max_iter=2).fit(blocks(path, prefetch=ahead)) for ahead in (0, 1, 3)]
    assert all(same_graph(fits[0], other) for other in fits[1:])
    assert not same_graph(fits[0], classifier(name, max_iter=2, random_state=1).fit(blocks(path)))
    assert not [one for one in threading.enumerate() if one.name.startswith("onnxtrain_sklearn-read")]


@pytest.mark.long
def test_members_of_an_ensemble_hold_out_different_blocks(tmp_path):
    frame = table()
    read = []

    class Counted(Frames):
        def block(self, i):
            read.append(i)
            return super().block(i)

    fitted = classifier(n_ensembles=3, max_iter=4, batch_size=64, validation_split=0.25).fit(
        Counted(parts_of(frame, 12), buffer_rows=200)
    )
    assert {row["network"] for row in fitted.history_} == {0, 1, 2}
    # Twelve blocks are in four folds of three; those of the last fold are trained on by each member.
    counts = sorted(np.bincount(read, minlength=12))
    assert counts[-3] > counts[8]
    assert len(set(counts[:9])) <= 3
    assert fitted.score(frame[FEATURES], frame["label"]) > 0.7


@pytest.mark.long
def test_blocks_are_released_after_use():
    alive, most = [], 0

    class Rows(np.ndarray):
        """An array that weak references can follow."""

    class Counted(Frames):
        def block(self, i):
            nonlocal most
            X, y = super().block(i)
            rows = X[["size", "price"]].to_numpy().view(Rows)
            alive.append(weakref.ref(rows))
            most = max(most, sum(one() is not None for one in alive))
            return rows, y

    fitted = classifier("RealMLP", max_iter=2).fit(Counted(parts_of(table(300), 15), buffer_rows=100))
    assert fitted.n_iter_ == 2
    assert most <= 4


@pytest.mark.long
def test_balanced_weights_of_several_labels_are_those_of_all_rows(tmp_path):
    frame = table().assign(low=lambda f: (f["size"] < -1).astype(int), red=lambda f: (f["color"] == "red").astype(int))
    path = write(frame.sort_values("low"), tmp_path / "table.parquet")
    names, classes = ["low", "red"], np.array([0, 1])
    weights = [compute_class_weight("balanced", classes=classes, y=frame[name]) for name in names]
    few = {"max_iter": 2, "batch_size": 64}
    balanced = classifier(class_weight="balanced", **few).fit(blocks(path, names))
    given = classifier(class_weight=[dict(zip([0, 1], own, strict=True)) for own in weights], **few).fit(
        blocks(path, names)
    )
    plain = classifier(**few).fit(blocks(path, names))
    np.testing.assert_array_equal(balanced.predict_proba(frame[FEATURES]), given.predict_proba(frame[FEATURES]))
    assert np.abs(balanced.predict_proba(frame[FEATURES]) - plain.predict_proba(frame[FEATURES])).max() > 1e-2


@pytest.mark.long
def test_several_labels_and_several_numbers_are_trained(tmp_path):
    frame = table().assign(
        new_label=lambda f: (f["size"] > 0).astype(int), red=lambda f: (f["color"] == "red").astype(int)
    )
    frame["other"] = -2.0 * frame["number"]
    path = write(frame, tmp_path / "table.parquet")
    labels = classifier(max_iter=8, batch_size=64).fit(blocks(path, ["new_label", "red"]))
    assert labels.classes_.tolist() == [0, 1]
    assert (labels.predict(frame[FEATURES]) == frame[["new_label", "red"]]).to_numpy().mean() > 0.9
    numbers = regressor(max_iter=8, batch_size=64).fit(blocks(path, ["number", "other"]))
    assert numbers.predict(frame[FEATURES]).shape == (len(frame), 2)
    assert numbers.score(frame[FEATURES], frame[["number", "other"]]) > 0.8
    weighted = classifier(class_weight=[{0: 1, 1: 1}, {0: 0, 1: 1}], batch_size=64).fit(
        blocks(path, ["new_label", "red"])
    )
    assert weighted.predict(frame[FEATURES])[:, 1].mean() > 0.9  # only rows with the second label count


# Errors, warnings, and what is left behind.


def text_in_a_later_block(frame):
    frame["price"] = frame["price"].astype(object)
    frame.loc[350:374, "price"] = "unknown"


ERRORS = {
    "a number and a text": (
        text_in_a_later_block,
        ValueError,
        r"Block 14: Column 'price' of X holds text, and numbers",
    ),
    "times": (lambda f: f.assign(size=pd.Timestamp("2020")), TypeError, r"Block 0: .*'size' of X holds times"),
    "infinity": (
        lambda f: f.assign(size=np.where(f.index == 360, np.inf, f["size"])),
        ValueError,
        "Block 14: .*infinity",
    ),
    "one class": (lambda f: f.assign(label="a"), ValueError, "at least 2 classes"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_block_and_column_and_leave_the_recipe_as_it_was(case):
    change, kind, message = ERRORS[case]
    frame = table()
    changed = change(frame)
    estimator = classifier()
    before = dict(vars(estimator))
    with pytest.raises(kind, match=message):
        estimator.fit(Frames(parts_of(frame if changed is None else changed)))
    assert vars(estimator) == before


def test_errors_name_the_row_group(tmp_path):
    frame = table()
    frame.loc[360, "size"] = np.inf
    path = write(frame, tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=r"Row group 7 of .*table\.parquet: .*infinity .* in column 'size'") as held:
        classifier().fit(blocks(path, prefetch=2))
    assert not [one for one in threading.enumerate() if one.name.startswith("onnxtrain_sklearn-read")], held


@pytest.mark.parametrize("column", ["size", "target", "weight"])
def test_errors_name_the_row_group_of_a_table_that_the_buffer_holds(column, tmp_path):
    frame = table().assign(weight=1.0)
    frame["target"] = frame["size"] * 2
    frame.loc[360, column] = np.inf
    source = RowBlocks(
        write(frame, tmp_path / "table.parquet"), "target", sample_weight="weight", columns=FEATURES, buffer_rows=5000
    )
    with pytest.raises(ValueError, match=r"Row group 7 of .*table\.parquet: .*infinity") as held:
        regressor().fit(source)
    assert f"olumn {column!r}" in str(held.value)


def mixed_cells(frame):
    frame["color"] = frame["color"].where(frame.index != 360, 7)
    return frame


PREPROCESSING_FAULTS = {
    "mixed cells": (mixed_cells, {}, r"Block 14: Column 'color' of X mixes categories of type int, str"),
    "text that is not named": (
        lambda f: f.assign(color=np.where(f.index < 350, None, "red")),
        {"categorical_features": ["grade"]},
        r"Block 14: could not convert string to float: column 'color'",
    ),
}


@each_recipe
@pytest.mark.parametrize("buffer_rows", [100, 5000], ids=["stream", "whole buffer"])
@pytest.mark.parametrize("case", PREPROCESSING_FAULTS)
def test_fault_that_preprocessing_finds_names_block_and_column(case, buffer_rows, name):
    change, options, message = PREPROCESSING_FAULTS[case]
    estimator = classifier(name, **options)
    before = dict(vars(estimator))
    with pytest.raises(ValueError, match=message):
        estimator.fit(Frames(parts_of(change(table())), buffer_rows=buffer_rows))
    assert vars(estimator) == before


@pytest.mark.parametrize("buffer_rows", [400, 5000], ids=["stream", "whole buffer"])
def test_fault_that_preprocessing_finds_names_file_and_row_group(buffer_rows, tmp_path):
    path = write(table().assign(color=[None] * 370 + ["red"] * 230), tmp_path / "table.parquet")
    estimator = classifier(categorical_features=["grade"])
    with pytest.raises(ValueError, match=r"Row group 7 of .*table\.parquet: .* column 'color' of X holds text"):
        estimator.fit(blocks(path, buffer_rows=buffer_rows))


def test_too_few_blocks_to_hold_out_are_an_error(tmp_path):
    frame = table(300)
    with pytest.raises(ValueError, match=r"the source has 2, of which 2 can be left out: write smaller row groups"):
        classifier(n_ensembles=3).fit(Frames(parts_of(frame, 2), buffer_rows=100))
    assert classifier(validation_split=None).fit(Frames(parts_of(frame, 2), buffer_rows=100)).n_iter_ == 4


@pytest.mark.filterwarnings("ignore:Column .* different texts")
def test_column_of_too_many_categories_is_an_error(monkeypatch, tmp_path):
    limit_categories(monkeypatch, 300)
    frame = table().assign(color=[f"customer {i}" for i in range(600)])
    with pytest.raises(ValueError, match=r"Row group \d+ .*'color' of X has more than 300 categories"):
        classifier().fit(blocks(write(frame, tmp_path / "table.parquet")))


@pytest.mark.long
def test_columns_that_may_be_misread_are_warned_of_once(tmp_path):
    frame = table().assign(color=[f"2020-01-{i % 28 + 1:02}" for i in range(600)], size=np.arange(600) + 2**24)
    path = write(frame, tmp_path / "table.parquet")
    with pytest.warns(UserWarning, match="olumn") as caught:
        classifier(max_iter=2).fit(blocks(path, prefetch=0))
    messages = [str(one.message) for one in caught if "column" in str(one.message).lower()]
    assert sum("'color' holds dates" in message for message in messages) == 1
    assert sum("'size' of X holds the integer 16777217" in message for message in messages) == 1
    assert len(messages) == 2


@pytest.mark.long
def test_copies_of_sources_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    copy_into_blocks(monkeypatch, 8)
    os.mkdir(tmp_path / "copies")
    frame = table()
    path = write(frame, tmp_path / "table.parquet", rows=600)  # one row group: it is copied
    fitted = clone(classifier(max_iter=2)).fit(pq.read_table(path).to_reader, y="label")
    assert fitted.n_iter_ == 2
    with blocks(path) as rows:
        assert classifier(max_iter=2).fit(rows).n_iter_ == 2
        assert len(os.listdir(tmp_path / "copies")) == 1
    assert not os.listdir(tmp_path / "copies")


# Predictions and scores.


def numbers_of(reader):
    """Return the columns that a reader yields, as an array."""
    return np.stack([one.to_numpy() for one in reader.read_all().columns], axis=1).squeeze()


@one_case
@each_recipe
def test_predictions_of_a_file_have_the_bits_of_arrays(name, tmp_path, monkeypatch):
    predict_in_chunks(monkeypatch, rows=200)
    predict_in_batches(monkeypatch, rows=200)
    frame = table(500).assign(weight=np.linspace(0.0, 2.0, 500))  # three chunks of rows
    path = write(frame.iloc[:, ::-1], tmp_path / "table.parquet", rows=90)
    X = frame[FEATURES]
    labels = classifier(name, max_iter=1).fit(X, frame["label"])
    reader = labels.predict_proba(path)
    assert reader.schema.names == labels.classes_.tolist() == ["high", "low", "middle"]
    batches = list(reader)
    assert len(batches) == 3
    found = np.concatenate([one.to_pandas().to_numpy() for one in batches])
    np.testing.assert_array_equal(found, labels.predict_proba(X))
    np.testing.assert_array_equal(numbers_of(labels.predict(str(path))), labels.predict(X))
    rows = RowBlocks(path, "label", sample_weight="weight")
    expected = accuracy_score(frame["label"], labels.predict(X), sample_weight=frame["weight"])
    np.testing.assert_allclose(labels.score(rows), expected, rtol=1e-12)
    numbers = regressor(name, max_iter=1).fit(X, frame["number"])
    np.testing.assert_array_equal(numbers_of(numbers.predict(path)), numbers.predict(X))
    expected = r2_score(frame["number"], numbers.predict(X))
    np.testing.assert_allclose(numbers.score(path, "number"), expected, rtol=1e-9)


def test_predictions_of_blocks_without_names_and_of_several_targets_are_those_of_arrays(tmp_path):
    frame = table(300).assign(red=lambda f: (f["color"] == "red").astype(int), new=lambda f: f["new"].astype(int))
    X = frame[["size", "price"]].to_numpy()
    source = Arrays(np.array_split(X, 7))
    labels = classifier(max_iter=2).fit(X, frame[["red", "new"]])
    reader = labels.predict(source)
    assert reader.schema.names == ["prediction_0", "prediction_1"]
    np.testing.assert_array_equal(numbers_of(reader), labels.predict(X))
    np.testing.assert_array_equal(numbers_of(labels.predict_proba(source)), labels.predict_proba(X))
    numbers = regressor(max_iter=2).fit(X, frame[["number", "size"]])
    np.testing.assert_array_equal(numbers_of(numbers.predict(source)), numbers.predict(X))


def test_predictions_name_the_block_of_an_error_and_end_with_a_new_fit(tmp_path, monkeypatch):
    frame = table(500)
    path = write(frame, tmp_path / "table.parquet", rows=90)
    fitted = regressor(max_iter=1).fit(frame[FEATURES], frame["number"])
    predict_in_chunks(monkeypatch, rows=200)
    predict_in_batches(monkeypatch, rows=200)
    reader = fitted.predict(path)
    reader.read_next_batch()
    fitted.set_params(random_state=1).fit(frame[FEATURES][:400], frame["number"][:400])
    with pytest.raises(RuntimeError, match="was trained while its predictions were read"):
        reader.read_all()
    frame.loc[100, "size"] = np.inf
    with pytest.raises(ValueError, match=r"Row group 1 of .*table\.parquet: .*infinity .*'size'"):
        fitted.predict(write(frame, path, rows=90)).read_all()
    with pytest.raises(NotFittedError):
        regressor().predict(path)
    with pytest.raises(ValueError, match="score requires y"):
        fitted.score(frame[FEATURES])


def test_export_of_training_graphs_refuses_a_table_in_files(tmp_path):
    path = write(table(300), tmp_path / "table.parquet")
    with pytest.raises(TypeError, match="a table to be read in blocks"):
        classifier().export_training(tmp_path / "out", path, "label")
    with pytest.raises(ValueError, match="requires y to be passed"):
        classifier().fit(table(300)[FEATURES])
    with pytest.raises(ValueError, match="give it alone"):
        classifier().fit(blocks(path), "label")
