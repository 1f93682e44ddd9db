"""Blocks of tables: every kind of source gives the rows of the table in order, and errors name file and column."""

from __future__ import annotations

import gc
import io
import os
import pickle
import tempfile

import numpy as np
import pytest

from onnxtrain_sklearn import RowBlocks
from onnxtrain_sklearn._data import row_blocks
from tests.helpers.observed import nothing_left_open

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    numbers = {"a": rng.normal(size=n), "b": rng.integers(0, 9, n), "y": rng.integers(0, 3, n), "w": rng.random(n)}
    return pa.table(numbers)


@pytest.fixture
def folder(tmp_path):
    """Four files, one of them without rows, in row groups of 20 rows."""
    for i, n in enumerate((100, 0, 37, 250)):
        pq.write_table(table(n, i), tmp_path / f"part{i}.parquet", row_group_size=20)
    return tmp_path


@pytest.fixture
def whole():
    return pa.concat_tables([table(n, i) for i, n in enumerate((100, 0, 37, 250))])


def relation(folder):
    duckdb = pytest.importorskip("duckdb")
    return duckdb.sql(f"select * from '{folder}/*.parquet'")


def csv_file(folder):
    from pyarrow import csv

    # In one chunk: pyarrow 16 writes twenty rows twice where a chunk is empty.
    parts = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    csv.write_csv(pa.concat_tables(parts).combine_chunks(), folder / "t.csv")
    return folder / "t.csv"


SOURCES = {
    "folder": lambda folder: folder,
    "pattern": lambda folder: f"{folder}/*.parquet",
    "list": lambda folder: [folder / f"part{i}.parquet" for i in range(4)],
    "address": lambda folder: f"file://{folder}/part3.parquet",
    "data set": lambda folder: ds.dataset(str(folder), format="parquet"),
    "filtered data set": lambda folder: ds.dataset(str(folder), format="parquet").filter(ds.field("b") < 100),
    "lazy frame": lambda folder: pytest.importorskip("polars", "1.34").scan_parquet(f"{folder}/*.parquet"),
    "relation": relation,
    "reader": lambda folder: ds.dataset(str(folder), format="parquet").scanner().to_reader,
    "CSV": csv_file,
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_blocks_of_every_source_hold_the_rows_in_order(folder, whole, source, request):
    source = source(folder)
    if request.node.callspec.id == "address":
        whole = table(250, 3)
    with RowBlocks(source, target="y", sample_weight="w", buffer_rows=160) as rows:
        blocks = [rows.block(i) for i in range(len(rows))]
        assert rows.n_rows == len(whole) == sum(rows.sizes)
        assert max(rows.sizes) <= 20
        assert rows.feature_names == ["a", "b"]
    for name in ("a", "b"):
        np.testing.assert_array_equal(np.concatenate([X[name] for X, _, _ in blocks]), whole[name])
    np.testing.assert_array_equal(np.concatenate([y for _, y, _ in blocks]), whole["y"])
    np.testing.assert_array_equal(np.concatenate([weights for _, _, weights in blocks]), whole["w"])


def test_columns_in_folder_names_are_features(tmp_path):
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(table(10), tmp_path / f"year={year}" / "part.parquet")
    rows = RowBlocks(tmp_path, target="y", columns=["year", "a"], buffer_rows=80)
    assert [rows.block(i)[0]["year"].to_pylist() for i in range(2)] == [[2023] * 10, [2024] * 10]


def test_columns_in_another_order_are_read_by_name(tmp_path):
    first, second = table(10, 1), table(10, 2)
    pq.write_table(first, tmp_path / "1.parquet")
    pq.write_table(second.select(["w", "y", "b", "a"]), tmp_path / "2.parquet")
    rows = RowBlocks(tmp_path, target="y", buffer_rows=80)
    assert rows.block(1)[0].to_pydict() == second.select(["a", "b", "w"]).to_pydict()


def test_index_that_pandas_wrote_without_a_name_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]})
    frame[frame["a"] != 2].to_parquet(tmp_path / "table.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "table.parquet").names
    for source in (tmp_path / "table.parquet", ds.dataset(tmp_path)):
        with RowBlocks(source, target="y") as rows:
            assert rows.block(0)[0].column_names == ["a"]


@pytest.mark.parametrize(
    ("buffer_rows", "size"),
    [(640, 40), (32_000, 1024), (131_072, 2048)],  # 16 blocks; the least rows of a block; 64 blocks
)
def test_copy_has_blocks_that_are_neither_few_nor_short(buffer_rows, size, tmp_path):
    pq.write_table(table(20_000), tmp_path / "one.parquet", row_group_size=20_000)
    with RowBlocks(tmp_path / "one.parquet", target="y", buffer_rows=buffer_rows) as rows:
        assert rows.sizes == [size] * (20_000 // size) + [20_000 % size] * (20_000 % size > 0)
        for i in (0, 7, len(rows) - 1):
            assert rows.block(i)[0]["a"].to_pylist() == table(20_000)["a"].to_pylist()[i * size : (i + 1) * size]


def test_close_removes_the_copy_and_the_next_use_makes_it_anew(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = RowBlocks(lambda: whole.to_reader(), target="y", buffer_rows=160)
    before = rows.block(3)
    (first,) = tmp_path.iterdir()
    rows.close()
    assert not first.exists()
    assert rows.block(3)[0].equals(before[0])
    assert len(list(tmp_path.iterdir())) == 1
    del rows
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_pickles_hold_the_settings_only(folder):
    rows = RowBlocks(folder, target="y", buffer_rows=160)
    assert len(rows) == 20
    copy = pickle.loads(pickle.dumps(rows))
    assert copy._opened is None
    assert copy.sizes == rows.sizes


def write(folder, **columns):
    pq.write_table(pa.table(columns), folder / "last.parquet")


BAD = {
    "a missing column": (
        lambda folder: write(folder, a=[1.0], y=[1], w=[1.0]),
        r"last\.parquet has no column 'b'",
    ),
    "one column more": (
        lambda folder: write(folder, a=[1.0], b=[1], c=[1.0], y=[1], w=[1.0]),
        r"last\.parquet has columns that .*part0\.parquet lacks: \['c'\]",
    ),
    "a column renamed": (
        lambda folder: write(folder, a=[1.0], c=[1], y=[1], w=[1.0]),
        r"last\.parquet has columns that .*part0\.parquet lacks: \['c'\], and lacks \['b'\]",
    ),
    "another type": (
        lambda folder: write(folder, a=["text"], b=[1], y=[1], w=[1.0]),
        r"Column 'a' is double in .*part\d\.parquet, but string in .*last\.parquet",
    ),
    "no Parquet": (lambda folder: (folder / "last.parquet").write_bytes(b"none"), r"last\.parquet.* cannot be read"),
    "a missing target": (
        lambda folder: write(folder, a=[1.0], b=[1], y=pa.array([None], pa.int64()), w=[1.0]),
        r"Row group 0 of .*last\.parquet: column 'y' has missing values",
    ),
    "a weight that is NaN": (
        lambda folder: write(folder, a=[1.0], b=[1], y=[1], w=[float("nan")]),
        r"Row group 0 of .*last\.parquet: column 'w' has missing values",
    ),
    "a whole number that no float64 holds": (
        lambda folder: [write(folder, a=[2**53 + 1], b=[1], y=[1], w=[1.0])],
        r"Row group 0 of .*last\.parquet cannot be read: .*9007199254740993",
    ),
}


@pytest.mark.parametrize(("damage", "message"), BAD.values(), ids=BAD)
def test_bad_file_raises_an_error_that_names_it(folder, damage, message):
    damage(folder)
    files = [*sorted(folder.glob("part*")), folder / "last.parquet"]
    rows = RowBlocks(files, target="y", sample_weight="w", buffer_rows=160)
    with pytest.raises(ValueError, match=message):
        [rows.block(i) for i in range(len(rows))]


def test_missing_names_and_files_raise(folder):
    twice = pa.record_batch([pa.array([1.0])] * 3, names=["a", "a", "y"])
    for source, options, message in [
        (folder, {"target": "z"}, "no column 'z'"),
        (folder, {"target": "y", "columns": ["a", "q"]}, "no column 'q'"),
        (folder, {"target": "y", "columns": ["a", "y"]}, r"different columns, and name \['y'\] more than once"),
        (folder, {"target": "y", "columns": ["a", "b", "a"]}, r"name \['a'\] more than once"),
        (folder, {"target": ["y", "y"]}, r"name \['y'\] more than once"),
        (folder, {"target": "y", "sample_weight": "y"}, r"name \['y'\] more than once"),
        (folder, {"target": "y", "columns": []}, "columns is empty"),
        (folder, {"target": []}, "target is empty"),
        (pa.RecordBatchReader.from_batches(twice.schema, [twice]), {"target": "y"}, r"several .* names \['a'\]"),
        (folder / "part1.parquet", {"target": "y"}, "has no rows"),
        (lambda: table(0).to_reader(), {"target": "y"}, "has no rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            len(RowBlocks(source, **options))
    for source in (folder / "none.parquet", f"{folder}/none*.parquet", []):
        with pytest.raises(FileNotFoundError, match="No file"):
            len(RowBlocks(source, target="y"))
    for options, message in [
        ({"target": "y", "columns": "a"}, "columns must be a list of names"),
        ({"target": 0}, "target must be a list of names"),
        ({"target": "y", "sample_weight": ["w"]}, "sample_weight must be the name of a column"),
        ({"target": "y", "buffer_rows": 1e3}, "buffer_rows must be a whole number"),
        ({"target": "y", "prefetch": "1"}, "prefetch must be a whole number"),
    ]:
        with pytest.raises(TypeError, match=message):
            RowBlocks(folder, **options)
    assert RowBlocks(folder, "y", columns=np.array(["b", "a"])).feature_names == ["b", "a"]
    with pytest.raises(TypeError, match="A source is a path"):
        len(RowBlocks(5, target="y"))


@pytest.mark.parametrize("first", ["dictionary", "text"])
@pytest.mark.parametrize("buffer_rows", [160, 16])  # read where they lie, and copied
def test_categories_of_some_files_are_texts_of_others(first, buffer_rows, tmp_path):
    texts = [pa.array(["u", "v", None]).dictionary_encode(), pa.array(["w", "u", "v"], pa.large_string())]
    for i, own in enumerate(texts if first == "dictionary" else texts[::-1]):
        pq.write_table(pa.table({"a": own, "y": [i, i, i]}), tmp_path / f"{i}.parquet")
    rows = RowBlocks(tmp_path, "y", buffer_rows=buffer_rows)
    found = [label for i in range(len(rows)) for label in rows.block(i)[0].column("a").to_pylist()]
    assert found == (["u", "v", None, "w", "u", "v"] if first == "dictionary" else ["w", "u", "v", "u", "v", None])


def test_columns_of_one_name_are_named_with_their_file(tmp_path):
    columns = [pa.array([1.0])] * 3
    pq.write_table(pa.Table.from_arrays(columns, names=["a", "a", "y"]), tmp_path / "0.parquet")
    with pytest.raises(ValueError, match=r"0\.parquet has several columns of the name 'a'"):
        len(RowBlocks(tmp_path, "y"))


def failing_reader(error):
    """Return a function that makes a reader of 50 rows, after which there is an error."""

    def batches():
        yield pa.record_batch({"a": np.arange(50.0), "y": np.zeros(50)})
        raise error

    def source():
        return pa.RecordBatchReader.from_batches(pa.schema([("a", pa.float64()), ("y", pa.float64())]), batches())

    return source


def test_error_of_a_reader_names_the_source_and_the_row():
    with pytest.raises(ValueError, match=r"Rows from 50 on of a function cannot be read: .*the network is gone"):
        len(RowBlocks(failing_reader(OSError("the network is gone")), "y"))


def test_interrupt_in_a_reader_stays_an_interrupt(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        len(RowBlocks(failing_reader(KeyboardInterrupt()), "y"))
    assert not list(tmp_path.iterdir())


def test_copy_holds_categories_whose_dictionaries_differ(tmp_path):
    # An Arrow file holds one dictionary for all its batches.
    for name, words in (("one", ["a", "b"]), ("two", ["c", "a"])):
        column = pa.array(words * 20).dictionary_encode()
        pq.write_table(pa.table({"x": range(40), "f": column, "y": column}), tmp_path / f"{name}.parquet")
    with RowBlocks(tmp_path, target="y", buffer_rows=80) as rows:
        blocks = [rows.block(i) for i in range(len(rows))]
    assert len(blocks) == 16
    words = [*["a", "b"] * 20, *["c", "a"] * 20]
    assert np.concatenate([y for _, y, _ in blocks]).tolist() == words
    assert [f for X, _, _ in blocks for f in X["f"].to_pylist()] == words


def test_full_disk_is_an_error_that_names_the_folder_and_leaves_no_copy(whole, tmp_path, monkeypatch):
    class Full(io.FileIO):
        """File on a disk that is full after three blocks."""

        def write(self, message):
            if self.tell() > 3 * len(message):
                raise OSError(28, "No space left on device")
            return super().write(message)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(row_blocks, "open", Full, raising=False)
    with pytest.raises(OSError, match=r"copy of a function in .*No space left on device.*Set TMPDIR"):
        len(RowBlocks(lambda: whole.to_reader(), target="y", buffer_rows=160))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rows", [387, 200])
def test_file_that_changes_after_it_was_opened_raises(folder, whole, rows):
    # With other numbers of the same size, row groups lie where they lay before.
    path = folder / "whole.parquet"
    pq.write_table(whole, path, row_group_size=20)
    opened = RowBlocks(path, target="y", buffer_rows=160)
    assert len(opened.block(3)[1]) == 20
    pq.write_table(whole.set_column(0, "a", pa.array(-whole["a"].to_numpy())).slice(0, rows), path, row_group_size=20)
    os.utime(path, ns=(0, 0))  # the clock of some file systems is coarse
    with pytest.raises(ValueError, match=r"whole\.parquet was changed after .*RowBlocks\.close\(\)"):
        opened.block(3)
    opened.close()
    np.testing.assert_array_equal(opened.block(3)[0]["a"].to_numpy(), -whole["a"].to_numpy()[60:80])


def test_tab_separates_the_columns_of_tsv_files(tmp_path):
    (tmp_path / "table.tsv").write_text("a\ty\n1\t2\n3\t4\n")
    with RowBlocks(tmp_path / "table.tsv", target="y") as rows:
        assert rows.block(0)[0].to_pydict() == {"a": [1, 3]}
    (tmp_path / "table.csv").write_text("a,y\n1,2\n")
    with pytest.raises(ValueError, match="must have the same ending"):
        len(RowBlocks(tmp_path, target="y"))


@pytest.mark.parametrize("name", ["dä ta[1]%20 #?.parquet", "new\nline.parquet", "*.parquet"])
def test_names_of_files_are_taken_as_they_are(name, whole, tmp_path):
    pq.write_table(whole, tmp_path / name, row_group_size=20)
    pq.write_table(whole.slice(5), tmp_path / "other.parquet")
    with RowBlocks(tmp_path / name, target="y", buffer_rows=160) as rows:
        assert rows.n_rows == len(whole)


@pytest.mark.parametrize("share", [0, 0.5])
def test_file_that_is_still_being_written_is_named(share, whole, tmp_path):
    pq.write_table(whole, tmp_path / "one.parquet", row_group_size=20)
    content = (tmp_path / "one.parquet").read_bytes()
    (tmp_path / "two.parquet").write_bytes(content[: int(share * len(content))])
    with nothing_left_open(), pytest.raises(ValueError, match=r"two\.parquet cannot be read"):
        len(RowBlocks(tmp_path, target="y", buffer_rows=160))


def test_labels_beyond_the_whole_numbers_of_float64_stay_apart(tmp_path):
    labels = 2**53 + np.arange(40) % 2
    pq.write_table(pa.table({"x": range(40), "y": labels}), tmp_path / "one.parquet", row_group_size=40)
    for buffer_rows in (16, 400):  # copied, and read where they lie
        with RowBlocks(tmp_path / "one.parquet", target="y", buffer_rows=buffer_rows) as rows:
            assert np.concatenate([rows.targets(i)[0] for i in range(len(rows))]).tolist() == labels.tolist()


def test_blocks_of_a_copy_are_named_by_the_row_groups_that_they_come_from(tmp_path):
    groups = []
    for i, n in enumerate((50, 0, 7, 90)):
        path = tmp_path / f"{i}.parquet"
        pq.write_table(pa.table({"x": np.arange(n), "y": np.arange(n) % 2}), path, row_group_size=20)
        groups += [f"row group {row // 20} of {path}" for row in range(n)]  # of each row
    rows, start = RowBlocks(tmp_path, target="y", buffer_rows=48), 0
    assert 147 / 20 < len(rows) < 147
    for i, size in enumerate(rows.sizes):
        first, last = groups[start], groups[start + size - 1]
        assert rows.place(i) == f"R{first[1:]}" + (f", to {last}" if last != first else "")
        start += size
    assert start == len(groups)
