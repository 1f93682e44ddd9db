"""States of other models, and files of training graphs that are damaged or made to do harm."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper
import pytest

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, OrtGradientRegressor, load_training
from onnxtrain_sklearn._export.state_files import tensor_bytes, tensors_of
from onnxtrain_sklearn.callbacks import Checkpoint
from onnxtrain_sklearn.classic.artifacts import read_checkpoint
from onnxtrain_sklearn.exceptions import ModelError, RuntimeNotFoundError
from tests.helpers.hostile import net as given_net
from tests.helpers.selection import one_case
from tests.helpers.training import quietly

rng = np.random.default_rng(0)
X = rng.normal(size=(48, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def fitted(data: Any = X, model: Any = None, **settings: Any) -> Any:
    known = {"batch_size": 16, "max_iter": 2, "random_state": 0, "optimizer": SGD()} | settings
    return quietly(OrtGradientClassifier(MLP((4,)) if model is None else model, **known).fit, data, Y)


def unchanged(estimator: Any, state: Any, match: str) -> None:
    before = dict(estimator.weights_)
    with pytest.raises(ModelError, match=match):
        estimator.load_state(state)
    for name, array in before.items():
        np.testing.assert_array_equal(estimator.weights_[name], array)


# constants.

WAYS: dict[str, Any] = {
    "weights": lambda one, path: one.weights_,
    "a pickle of them": lambda one, path: pickle.loads(pickle.dumps(one.weights_)),
    "folder": lambda one, path: (one.export_training(path), path)[1],
    "its file": lambda one, path: (one.export_training(path), path / "state.safetensors")[1],
    "loop": lambda one, path: (one.export_training(path), load_training(path).partial_fit(X * 500, Y).state)[1],
    "saved": lambda one, path: (
        one.export_training(path),
        load_training(path).save_state(path.with_suffix(".st")),
        path.with_suffix(".st"),
    )[2],
    "training_info": lambda one, path: (
        path.with_suffix(".onnx").write_bytes(one.to_training_onnx().SerializeToString()),
        load_training(path.with_suffix(".onnx")).state,
    )[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_weights_go_behind_their_own_scale_of_the_inputs_alone(way, tmp_path):
    """Columns of large numbers are divided inside the graph by a scale that the fit takes from the data."""
    one, twin, other = fitted(X * 500), fitted(X * 500, random_state=1), fitted(X * 7000)
    state = WAYS[way](one, tmp_path / "a")
    unchanged(
        other,
        state,
        r"whose constant 'scaled/constant\w*' is \[.*the estimator is \[.*\] \(entry \d+: \S+, here \S+\).*the same",
    )
    unchanged(fitted(X), state, r"whose constant 'scaled/constant\w*' is \[.*that of the estimator is nothing")
    assert twin.load_state(state).predict_proba(X * 500).shape == (48, 2)
    if way != "loop":
        np.testing.assert_array_equal(twin.predict_proba(X * 500), one.predict_proba(X * 500))
    by_hand = dict(one.weights_)
    assert other.load_state(by_hand)  # nothing is known of it but names and shapes


@pytest.mark.parametrize(
    ("body", "other"),
    [
        ("C = Constant<value_float = 2.0>() H = Mul(X, C) Y = MatMul(H, W)", 3.0),
        ("H = LeakyRelu<alpha = 0.25>(X) Y = MatMul(H, W)", 0.5),
    ],
)
def test_constants_of_given_files_are_compared(body, other):
    def trained(text):
        model = OrtGradientRegressor(given_net(text), max_iter=1, random_state=0)
        return quietly(model.fit, X, X[:, 0])

    old = body.split("= ")[2].split(">")[0]
    one, same = trained(body), trained(body)
    assert same.load_state(one.weights_)
    unchanged(trained(body.replace(old, str(other))), one.weights_, rf"is {float(old):g}, and that of the .* {other:g}")


def test_scales_of_targets_are_compared():
    nets = [
        quietly(OrtGradientRegressor(MLP((4,)), max_iter=1, random_state=0).fit, X, X[:, 0] * scale)
        for scale in (1, 1, 90)
    ]
    assert nets[1].load_state(nets[0].weights_)
    unchanged(nets[2], nets[0].weights_, r"whose constant '(center|scale) of y' is")


@pytest.mark.parametrize("way", ["weights", "folder", "its file", "loop", "saved", "training_info"])
def test_labels_of_classes_are_compared(way, tmp_path):
    def trained(labels):
        return quietly(OrtGradientClassifier(MLP((4,)), max_iter=1, random_state=0).fit, X, np.array(labels)[Y])

    one = trained(["a", "b"])
    if way == "loop":
        one.export_training(tmp_path / "a")
        state = load_training(tmp_path / "a").partial_fit(X, np.array(["a", "b"])[Y]).state
    else:
        state = WAYS[way](one, tmp_path / "a")
    assert trained(np.array(["a", "b"], object)).load_state(state)
    for other in (["b", "c"], [0, 1]):
        told = ", ".join(map(str, other))
        unchanged(trained(other), state, rf"other classes of y: \[a, b\]; the estimator has \[{told}\]")
    number = quietly(OrtGradientRegressor(MLP((4,)), max_iter=1, random_state=0).fit, X, np.eye(2)[Y])
    unchanged(number, state, r"other classes of y: \[a, b\]; the estimator has nothing")


def test_order_and_columns_of_labels_are_compared():
    one, twin = fitted(), fitted()
    state = one.weights_
    state.constants["classes of y"]["values"] = [1, 0]
    unchanged(twin, state, r"\[1, 0\]; the estimator has \[0, 1\]")
    many = [np.arange(1100), np.append(np.arange(1099), 5000)]
    wide = [OrtGradientClassifier(MLP(()), random_state=0).partial_fit(X, Y, classes=labels) for labels in many]
    again = OrtGradientClassifier(MLP(()), random_state=0).partial_fit(X, Y, classes=many[0].astype(np.int32))
    assert again.load_state(wide[0].weights_)
    unchanged(again, wide[1].weights_, "other classes of y: an array of shape")
    columns = [
        OrtGradientClassifier(MLP((4,)), random_state=0).partial_fit(
            X, np.array([["a", low], ["b", "d"]])[Y], classes=[["a", "b"], sorted([low, "d"])]
        )
        for low in "ce"
    ]
    unchanged(columns[0], columns[1].weights_, r"classes of y\[:, 1\]: \[d, e\]; the estimator has \[c, d\]")


def test_values_that_only_training_reads_are_not_compared():
    one, other = (fitted(model=MLP((4,), dropout=share)) for share in (0.1, 0.5))
    assert other.load_state(one.weights_)


# files of tensors.

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def tensor_file(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


HOSTILE_TENSORS = {
    "nothing": b"",
    "a header that is too long": (2**63).to_bytes(8, "little") + b"{}",
    "no text": tensor_file(b"\xff\xfe"),
    "a list": tensor_file([]),
    "a deep list": tensor_file(b"[" * 100_000),
    "a deep object": tensor_file(b'{"a":' * 100_000),
    "a name twice": tensor_file(b'{"a":{},"a":{}}'),
    "NaN": tensor_file(b'{"a": NaN}'),
    "a number of many digits": tensor_file(b'{"a": ' + b"9" * 10_000 + b"}"),
    "notes that are no texts": tensor_file({"__metadata__": {"a": 1}, "a": ENTRY}),
    "no entry": tensor_file({"a": None}),
    "an unknown type": tensor_file({"a": {**ENTRY, "dtype": "F4"}}),
    "a type that is none": tensor_file({"a": {**ENTRY, "dtype": ["F32"]}}),
    "a negative size": tensor_file({"a": {**ENTRY, "shape": [-2]}}),
    "a size that is none": tensor_file({"a": {**ENTRY, "shape": [2.0]}}),
    "true": tensor_file({"a": {**ENTRY, "shape": [True, 2]}}),
    "a huge size": tensor_file({"a": {**ENTRY, "shape": [2**62]}}),
    "a huge size of none": tensor_file({"a": {**ENTRY, "shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}}, b""),
    "many axes": tensor_file({"a": {**ENTRY, "shape": [1] * 64 + [2]}}),
    "offsets backwards": tensor_file({"a": {**ENTRY, "data_offsets": [8, 0]}}),
    "offsets beyond": tensor_file({"a": {**ENTRY, "data_offsets": [8, 16]}}),
    "three offsets": tensor_file({"a": {**ENTRY, "data_offsets": [0, 8, 1]}}),
    "other bytes than the shape takes": tensor_file({"a": {**ENTRY, "shape": [3]}}),
    "overlap": tensor_file({"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
    "the same bytes": tensor_file({"a": ENTRY, "b": ENTRY}),
    "a gap": tensor_file({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
    "cut off": tensor_file({"a": ENTRY}, bytes(7)),
    "more at the end": tensor_file({"a": ENTRY}, bytes(9)),
    "truth values that are none": tensor_file(
        {"a": {"dtype": "BOOL", "shape": [8], "data_offsets": [0, 8]}}, b"\7" * 8
    ),
}


@pytest.mark.parametrize("kind", HOSTILE_TENSORS)
def test_hostile_files_of_tensors(kind, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(HOSTILE_TENSORS[kind])
    with pytest.raises(ModelError, match=r"no tensors in the format of safetensors|is not valid JSON|an object of J"):
        tensors_of(HOSTILE_TENSORS[kind], "a.safetensors")
    unchanged(FITTED(), tmp_path / "a.safetensors", "a.safetensors")


def FITTED(kept: list[Any] = []) -> Any:  # noqa: B006 - made once
    kept[:] = kept or [fitted()]
    return kept[0]


def test_entries_of_the_same_bytes_do_not_multiply_memory():
    entry = {"dtype": "U8", "shape": [2**20], "data_offsets": [0, 2**20]}
    content = tensor_file({f"a{i}": entry for i in range(500)}, bytes(2**20))
    tracemalloc.start()
    with pytest.raises(ModelError, match="begins at byte 0, and the one before ends at"):
        tensors_of(content, "x")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_files_of_tensors_come_back():
    arrays = {
        "b": np.arange(6, dtype=np.int64).reshape(2, 3), "a": np.zeros((0, 3), np.float32), "é": np.array(2.5),
        "c": np.array([True, False]),
    }  # fmt: skip
    found = tensors_of(tensor_bytes(arrays, {"x": "y"}), "x")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


# manifests.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "folder"
    fitted(model=MLP((4,), dropout=0.2), learning_rate="cosine").export_training(path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


def written(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


WILD = [None, True, -1, 0, 2.5, 2**70, "", "x", "../x", [], {}, [None], {"a": 1}, [[1]], 1e308]


def places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Yield the path of each value of a manifest."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


@one_case
@pytest.mark.thinned(by=lambda part: str(part % 2))
@pytest.mark.parametrize("part", range(12))
@pytest.mark.long
def test_manifest_with_wild_values_trains_or_is_refused(part, folder, tmp_path):
    """A manifest that is read at all trains and predicts, or raises an error that is ours."""
    manifest = json.loads(folder["manifest.json"])
    where = [path for path in places(manifest) if path[:1] not in (("files",), ("constants",), ("classes",))][part::12]
    path, wrong, read = written(tmp_path / "folder", folder), [], 0
    choose = np.random.default_rng(part)
    for place in where:
        for new in [WILD[i] for i in choose.integers(0, len(WILD), 2)]:
            (path / "manifest.json").write_text(json.dumps(put(manifest, place, new)))
            try:
                training = load_training(path, random_state=0).partial_fit(X, Y)
                training.predict(X)
                read += 1
            except (ModelError, MemoryError):
                pass
            except Exception as error:
                wrong.append((place, new, repr(error)[:200]))
    assert wrong == []
    assert 0 < read < 2 * len(where)  # some values describe and are not read


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m["graphs"]["step"].update(file="../step.onnx"), "the name of a file in the folder itself"),
        (lambda m: m["state"].update(file="..\\state"), "the name of a file in the folder itself"),
        (lambda m: m["files"].update({"../outside": {"sha256": "0" * 64}}), "is not in the folder itself"),
        (lambda m: m["state"]["tensors"].append(m["state"]["tensors"][0]), "names a tensor twice"),
        (
            lambda m: m.update(batch_size=10**12),
            "A step takes 16 rows, but the batch_size of its manifest is 10000000000",
        ),
        (lambda m: m.update(loss_output="x"), "has no output 'x', which its manifest names"),
        (lambda m: m["learning_rate"]["parameters"].update(total_steps="a"), "'total_steps' parameter of Cosine"),
        (
            lambda m: m["learning_rate"]["parameters"].update(a=1),
            "The schedules that the manifest names cannot be made",
        ),
        (lambda m: m.update(classes=[0, "b"]), "must be lists of different labels"),
        (lambda m: m["state"].update(tensors={}), "state.tensors.* must be a list"),
        (lambda m: m.update(state=[]), "state.* must be an object"),
        (lambda m: m.update(padding=1), "padding.* must be of the type bool, got 1"),
        (lambda m: m.update(batch_size=True), "batch_size.* must be an integer of 1 or more"),
        (lambda m: m.update(batch_size=2**53), r"batch_size.* below 2\*\*53, got 9007199254740992"),
        (lambda m: m["random"].update(seed=-1), "random.seed.* must be an integer of 0 or more"),
        (lambda m: m.pop("random"), "lacks 'random'"),
    ],
)
def test_contradicting_manifests_are_refused(change, match, folder, tmp_path):
    manifest = json.loads(folder["manifest.json"])
    change(manifest)
    path = written(tmp_path / "folder", {**folder, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises((ModelError, ValueError), match=match):
        load_training(path).partial_fit(X, Y)


def _of_other_shape(content: bytes, output: str) -> bytes:
    """Return a graph with an output twice over, without a declared shape."""
    model = onnx.load_model_from_string(content)
    for node in model.graph.node:
        node.output[:] = ["once" if name == output else name for name in node.output]
        node.input[:] = ["once" if name == output else name for name in node.input]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "flat"))
    model.graph.node.append(onnx.helper.make_node("Reshape", ["once", "flat"], ["row"]))
    model.graph.node.append(onnx.helper.make_node("Concat", ["row", "row"], [output], axis=0))
    for value in model.graph.output:
        if value.name == output:
            value.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


@pytest.mark.parametrize("output", ["loss", "state"])
def test_step_result_of_other_shape_is_refused(output, folder, tmp_path):
    manifest = json.loads(folder["manifest.json"])
    state = manifest["state"]["tensors"][0]
    name, match = manifest["loss_output"], r"The loss of a step must be one number, but it has the shape \(2,\)"
    if output == "state":
        name, match = state["output"], f"A step makes float32 .* of '{state['name']}', which is float32"
    step = _of_other_shape(folder["step.onnx"], name)
    manifest["files"]["step.onnx"]["sha256"] = hashlib.sha256(step).hexdigest()
    files = {**folder, "step.onnx": step, "manifest.json": json.dumps(manifest).encode()}
    training = load_training(written(tmp_path / "folder", files))
    before = {name: array.copy() for name, array in training.state.items()}
    with pytest.raises(ModelError, match=match):
        training.partial_fit(X, Y)
    for name, array in before.items():
        np.testing.assert_array_equal(training.state[name], array)


def test_inputs_of_a_step_are_not_larger_than_memory(folder, tmp_path):
    """Random numbers of the shape that the graph declares are drawn for dropout."""
    manifest = json.loads(folder["manifest.json"])
    model = onnx.load_model_from_string(folder["step.onnx"])
    random = next(value for value in model.graph.input if value.name == manifest["random"]["inputs"][0])
    random.type.tensor_type.shape.dim[1].dim_value = 2**60
    manifest["files"]["step.onnx"]["sha256"] = hashlib.sha256(model.SerializeToString()).hexdigest()
    files = {**folder, "step.onnx": model.SerializeToString(), "manifest.json": json.dumps(manifest).encode()}
    with pytest.raises(ModelError, match=r"has the input .* of the shape|cannot load the graph"):
        load_training(written(tmp_path / "folder", files)).partial_fit(X, Y)


# weights beside files of training graphs.


def with_external_weights(content: bytes, path: Path, location: str) -> bytes:
    """Return a model whose first initializer is kept in a file; its content is written to ``path``."""
    model = onnx.load_model_from_string(content)
    tensor = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    path.write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, location, 0, len(tensor.raw_data))
    tensor.ClearField("raw_data")
    return model.SerializeToString()


def test_bare_name_reads_weights_beside_the_file(tmp_path, monkeypatch):
    one, home, elsewhere = fitted(), tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir(), elsewhere.mkdir()
    content = with_external_weights(one.to_training_onnx().SerializeToString(), home / "w.bin", "w.bin")
    for place in (home, elsewhere):
        (place / "x.onnx").write_bytes(content)
    monkeypatch.chdir(home)
    for name in ("x.onnx", home / "x.onnx"):
        np.testing.assert_allclose(load_training(name).predict_proba(X), one.predict_proba(X), rtol=0, atol=1e-6)
    with pytest.raises(ModelError, match=r"there is no file 'w\.bin' in the folder '.*elsewhere'"):
        load_training(elsewhere / "x.onnx")


@pytest.mark.parametrize("location", ["../w.bin", "link.bin"])
def test_weights_from_outside_the_folder_are_refused(location, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    content = with_external_weights(fitted().to_training_onnx().SerializeToString(), tmp_path / "w.bin", location)
    (tmp_path / "home" / "link.bin").symlink_to(tmp_path / "w.bin")
    (tmp_path / "home" / "x.onnx").write_bytes(content)
    monkeypatch.chdir(tmp_path / "home")
    with pytest.raises(ModelError, match="cannot be read"):
        load_training("x.onnx")


def test_graphs_of_a_folder_hold_their_weights_themselves(folder, tmp_path, monkeypatch):
    """onnxruntime would read them from the working directory."""
    monkeypatch.chdir(tmp_path)
    model = onnx.load_model_from_string(folder["step.onnx"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(500, np.float32), "secret"))
    content = with_external_weights(model.SerializeToString(), tmp_path / "secret.bin", "secret.bin")
    manifest = json.loads(folder["manifest.json"])
    manifest["files"]["step.onnx"]["sha256"] = hashlib.sha256(content).hexdigest()
    files = {**folder, "step.onnx": content, "manifest.json": json.dumps(manifest).encode()}
    with pytest.raises(ModelError, match=r"step\.onnx cannot be trained with: The weight 'secret' is kept in the file"):
        load_training(written(tmp_path / "folder", files))


def test_a_link_out_of_the_folder_is_not_followed(folder, tmp_path):
    path = written(tmp_path / "folder", folder)
    (path / "step.onnx").rename(tmp_path / "step.onnx")
    (path / "step.onnx").symlink_to(tmp_path / "step.onnx")
    with pytest.raises(ModelError, match="a link that leads out of the folder"):
        load_training(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, "{}", '{"format": "onnxtrain-sklearn training", "version": 1}', "nul"]
)
def test_hostile_manifests_of_training_files(text, tmp_path):
    model = fitted().to_training_onnx()
    for entry in model.metadata_props:
        entry.value = text if entry.key == "onnxtrain_sklearn.training" else entry.value
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"The manifest in .*x\.onnx"):
        load_training(tmp_path / "x.onnx")


# files that are none, or that take no room on the disk.


def sparse(path: Path, beginning: bytes = b"", size: int = 2**33) -> None:
    with path.open("wb") as file:
        file.write(beginning)
        file.truncate(size)


HEADER = json.dumps({"parameters": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode()
STRANGE: dict[str, Any] = {
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "endless link": lambda path: path.symlink_to(path),
    "folder": lambda path: path.mkdir(),
    "eight gigabytes": lambda path: sparse(path),
    "eight gigabytes behind a beginning": lambda path: sparse(path, b"\x08\0\0\0ODTC"),
    "three gigabytes": lambda path: sparse(path, size=3 * 2**30),
    "eight gigabytes of JSON": lambda path: sparse(path, b'{"format": 1'),
    "a header of tensors, then eight gigabytes": lambda path: sparse(path, len(HEADER).to_bytes(8, "little") + HEADER),
    "a header of eight gigabytes": lambda path: sparse(path, (2**33 - 8).to_bytes(8, "little")),
}


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and sparse files")
@pytest.mark.parametrize("kind", STRANGE)
def test_files_that_are_none_are_not_read(kind, tmp_path):
    """Whatever a reader is given, it neither waits nor takes much memory."""
    net = fitted(callbacks=[Checkpoint(tmp_path / "checkpoints")])
    net.export_training(tmp_path / "good")
    readers: dict[str, Any] = {
        "checkpoint": read_checkpoint,
        "x.safetensors": net.load_state,
        "x.onnx_adapter": net.load_state,
        "x.onnx": load_training,
        **{f"{name}/{name}": load_training for name in ("manifest.json", "state.safetensors", "step.onnx")},
        "checkpoints": lambda path: fitted(callbacks=[Checkpoint(path)]),
    }
    for name, read in readers.items():
        path, given = tmp_path / name, tmp_path / name
        if "/" in name:
            given = path.parent
            shutil.copytree(tmp_path / "good", given)
            path.unlink()
        elif name == "checkpoints":
            (path,) = path.glob("*-*.npz")
            path.unlink()
        STRANGE[kind](path)
        tracemalloc.start()
        with pytest.raises((ModelError, RuntimeNotFoundError, FileNotFoundError)):  # 1.19 has no adapters
            read(given)
        assert tracemalloc.get_traced_memory()[1] < 2**24, name
        tracemalloc.stop()
