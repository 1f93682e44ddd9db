"""The folder of training graphs: written as a whole and checked when it is read, with its files of safetensors."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from .._ir.edits import append_graph, replace_inputs
from .._ir.files import content_of, read
from .._ir.limits import LARGEST_MESSAGE, require_survivable
from .._ir.protobuf import to_proto
from .._utils.atomic_files import whole_folder
from .._utils.untrusted_text import json_object
from ..exceptions import ModelError
from ..graph import GraphBuilder, Names
from .epoch_graph import PredictGraph, epoch_graph, joined_graphs, predict_graph
from .manifest import (
    FORMAT,
    MANIFEST,
    STATE_FILE,
    VERSION,
    GraphEntry,
    epoch_entry,
    is_plain_name,
    manifest_of,
    predict_entry,
    read_manifest,
    step_entry,
)
from .source import TARGETS, ExportSource
from .step_graph import StepGraph, step_graph

TRAINING_FORMS = {"step": ("step",), "epoch": ("epoch",), "both": ("step", "epoch")}
"""The training graphs of a folder by the parameter ``form``."""


LONGEST_MANIFEST = 2**25
"""Bytes of a manifest; lists of labels are the longest part."""


@dataclass(frozen=True, eq=False)
class TrainingFolder:
    """The content of a folder: the manifest, the graphs as bytes by name, the state, and its file if it is made."""

    manifest: Mapping[str, Any]
    graphs: Mapping[str, bytes]
    state: Mapping[str, np.ndarray]
    state_file: bytes | None = None


def require_known_form(form: str, target: str) -> None:
    """Raise unless both are among the choices of ``export_training``."""
    if form not in TRAINING_FORMS:
        raise ValueError(f"form must be one of {', '.join(map(repr, TRAINING_FORMS))}, got {form!r}.")
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(map(repr, TARGETS))}, got {target!r}.")


def training_folder(source: ExportSource, form: str) -> TrainingFolder:
    """Return the content of a folder with the training graphs of ``form``."""
    step, predict = _training_graphs(source)
    entries = _entries(step, predict, form)
    graphs = {name: entry.proto.SerializeToString() for name, entry in entries.items()}
    state = {one.name: np.asarray(one.value) for one in step.state}
    tensors = state_bytes(state, source.facts.get(CONSTANTS))
    files = {f"{name}.onnx": content for name, content in graphs.items()} | {STATE_FILE: tensors}
    facts = {name: {"bytes": len(content), "sha256": _sha256(content)} for name, content in files.items()}
    return TrainingFolder(manifest_of(source, step, entries, facts), graphs, state, tensors)


def _training_graphs(source: ExportSource) -> tuple[StepGraph, PredictGraph]:
    """Return the graph of a step and the one that predicts, behind what encodes a table."""
    if source.others:
        step, predict = joined_graphs(source)
    else:
        step = step_graph(source)
        predict = predict_graph(source, step)
    if source.front is not None:
        step, predict = step_behind(source.front, step), predictions_behind(source.front, predict)
    return step, predict


def _entries(step: StepGraph, predict: PredictGraph, form: str) -> dict[str, GraphEntry]:
    found = {}
    if "epoch" in TRAINING_FORMS[form]:
        epoch = epoch_graph(step)  # first, as what follows shortens the names of the step
        found["epoch"] = epoch_entry(epoch, compact_proto(epoch.model, "epoch"))
    if "step" in TRAINING_FORMS[form]:
        found["step"] = step_entry(step, compact_proto(step.model, "step"))
    return found | {"predict": predict_entry(predict, compact_proto(predict.model, "predict"))}


CONSTANTS = "constants"
"""The key of the constants of the graph, in the manifest and in the metadata of a state."""


def state_bytes(state: Mapping[str, np.ndarray], constants: object = None) -> bytes:
    """Return the file that holds a state, and the constants of its graph."""
    known = {} if constants is None else {CONSTANTS: json.dumps(constants, allow_nan=False)}
    return tensor_bytes(state, {"format": FORMAT, "version": str(VERSION), **known})


def read_state_file(path: Path) -> StateArrays:
    """Return the state in a file of safetensors."""
    arrays, notes = tensors_and_notes(content_of(path, first=require_tensors), str(path))
    text = notes.get(CONSTANTS)
    return StateArrays(arrays, None if text is None else json_object(text, f"The metadata {CONSTANTS!r} of {path}"))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_folder(content: TrainingFolder, path: str | os.PathLike[str]) -> None:
    """Write a folder as a whole: an error leaves what was there as it is."""
    target = Path(path)
    _require_replaceable(target)
    with whole_folder(target) as new:
        for name, graph in content.graphs.items():
            (new / f"{name}.onnx").write_bytes(graph)
        constants = content.manifest.get(CONSTANTS)
        tensors = state_bytes(content.state, constants) if content.state_file is None else content.state_file
        (new / STATE_FILE).write_bytes(tensors)
        text = json.dumps(content.manifest, indent=2, ensure_ascii=False, allow_nan=False)
        (new / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _require_replaceable(target: Path) -> None:
    """Raise unless the path is free, or is a folder that holds an earlier export alone."""
    if not target.exists():
        return
    known = {MANIFEST, STATE_FILE, "step.onnx", "epoch.onnx", "predict.onnx"}
    if not target.is_dir() or {entry.name for entry in target.iterdir()} - known:
        raise FileExistsError(
            f"{target} exists and is not a folder of training graphs alone, so it is not replaced: name a new folder."
        )


def read_folder(path: str | os.PathLike[str]) -> TrainingFolder:
    """Return the content of a folder; raise ModelError where a file is missing, changed, or of another version."""
    folder = Path(path)
    file = folder / MANIFEST
    if not file.is_file():
        raise ModelError(f"{folder} holds no {MANIFEST}: it is not a folder of training graphs (export_training).")
    manifest = read_manifest(content_of(file, most=LONGEST_MANIFEST), str(file))
    state_file = manifest["state"]["file"]
    files = {n: _read_file(folder, n, fact, is_state=n == state_file) for n, fact in manifest["files"].items()}
    graphs = {name: files[graph["file"]] for name, graph in manifest["graphs"].items()}
    for name, graph in graphs.items():
        require_own_graph(graph, str(folder / manifest["graphs"][name]["file"]))
    what = str(folder / manifest["state"]["file"])
    if not graphs:
        raise ModelError(f"{file} names no graphs. Export the training graphs again.")
    state = tensors_of(files[manifest["state"]["file"]], what)
    require_state(manifest, state, what)
    return TrainingFolder(manifest, graphs, state)


def _read_file(folder: Path, name: str, fact: object, *, is_state: bool) -> bytes:
    """Return the content of a file that the manifest names, which must lie in the folder and be the one it names."""
    if not is_plain_name(name):
        raise ModelError(f"{folder / MANIFEST} names the file {name!r}, which is not in the folder itself.")
    file, digest = folder / name, fact.get("sha256") if isinstance(fact, dict) else None
    if not file.is_file():
        raise ModelError(f"{folder} lacks {name}, which its {MANIFEST} names: copy the whole folder.")
    if file.resolve().parent != folder.resolve():
        raise ModelError(f"{file} is a link that leads out of the folder: copy the whole folder.")
    content = content_of(file, first=require_tensors) if is_state else content_of(file, most=LARGEST_MESSAGE)
    if _sha256(content) != digest:
        raise ModelError(
            f"{file} has changed: its SHA-256 is {_sha256(content)}, and {MANIFEST} says {str(digest)[:64]}. Export "
            f"the folder again; a state that was trained elsewhere belongs into a file of its own, for "
            f"load_state(file)."
        )
    return content


def require_own_graph(content: bytes, what: str) -> None:
    """Raise ModelError unless a graph is within the limits, ends no process, and holds its weights itself.

    onnxruntime would look for weights that are kept elsewhere in the working directory.
    """
    try:
        require_survivable(read(content))
    except ModelError as error:
        raise ModelError(f"{what} cannot be trained with: {error}") from error


def require_state(manifest: Mapping[str, Any], state: Mapping[str, np.ndarray], what: str) -> None:
    """Raise unless ``state`` has the tensors that the manifest declares."""
    known = {fact["name"] for fact in manifest["state"]["tensors"]}
    if other := [name for name in state if name not in known]:
        raise ModelError(f"{what} holds {other[0]!r}, which is no tensor of the state of these training graphs.")
    for fact in manifest["state"]["tensors"]:
        name, shape = fact["name"], list(fact["shape"])
        if name not in state:
            raise ModelError(f"{what} lacks {name!r}, a tensor of the state of these training graphs.")
        if list(state[name].shape) != shape:
            raise ModelError(
                f"{what} holds {name!r} of shape {list(state[name].shape)}, and the training graphs have {shape}: it "
                f"belongs to another model."
            )
        if state[name].dtype.name != fact["type"]:
            raise ModelError(
                f"{what} holds {name!r} of type {state[name].dtype}, and the training graphs have {fact['type']}: it "
                f"belongs to another model."
            )


# Preprocessing before a network: the graph from the columns of a table to the matrix that is trained on.
#
# It has no trained weights. In training graphs it computes the inputs of the network from each minibatch, so that a
# loop gives the rows as they are in the table.


def step_behind(front: ir.Model, step: StepGraph) -> StepGraph:
    """Return the step whose data are the inputs of ``front``; the model of ``step`` is changed."""
    _put_in_front(front, step.model.graph, step.batch)
    return replace(step, data=tuple(value.name or "" for value in front.graph.inputs))


def predictions_behind(front: ir.Model, predict: PredictGraph) -> PredictGraph:
    """Return the graph that predicts from the inputs of ``front``; the model of ``predict`` is changed."""
    _put_in_front(front, predict.model.graph, "N")
    return predict


def _put_in_front(front: ir.Model, graph: ir.Graph, rows: int | str) -> None:
    """Let ``graph`` compute the inputs that have the names of the outputs of ``front``."""
    _require_equal_opsets(front, graph)
    own, op = front.clone().graph, GraphBuilder(graph, prefix="front")
    names = [value.name or "" for value in own.outputs]
    columns = [ir.Value(name=v.name, type=v.type, shape=ir.Shape([rows, *(v.shape or ())[1:]])) for v in own.inputs]
    computed = dict(zip(names, append_graph(op, own, columns, "front/"), strict=True))
    replace_inputs(graph, computed)
    taken = {value.name for value in (*graph.inputs, *graph.outputs)} | graph.initializers.keys()
    if clash := [column.name for column in columns if column.name in taken]:
        raise ModelError(
            f"The table has a column {clash[0]!r}, and the training graphs have an input or a weight of this name: "
            f"rename the column."
        )
    graph.inputs[:] = [*columns, *graph.inputs]
    graph.sort()


def _require_equal_opsets(front: ir.Model, graph: ir.Graph) -> None:
    for domain, version in front.graph.opset_imports.items():
        if graph.opset_imports.setdefault(domain, version) != version:
            raise ModelError(
                f"The steps before the network are in opset {version} of {domain or 'ai.onnx'!r}, and the network is "
                f"in {graph.opset_imports[domain]}: convert them to one (onnx.version_converter)."
            )


# Small files: short names inside a graph, and no types of values that a runtime infers itself.


def compact_proto(model: ir.Model, name: str, taken: Collection[str] = ()) -> onnx.ModelProto:
    """Return ``model`` as protobuf, without the names and the types of values inside it; the model is changed.

    New names are other ones than those that are ``taken``.
    """
    graphs = list(model.graphs())
    kept = {*model.graph.inputs, *model.graph.outputs}
    names = Names([*taken, *(value.name or "" for value in kept)])
    for value in (value for graph in graphs for value in _inner_values(graph) if value not in kept):
        if value.name:  # an omitted output has none
            value.name = names.numbered("v")
    for node in model.graph.all_nodes():
        node.name = names.numbered("n")
        node.metadata_props.clear()
        node.doc_string = None
    ends = {value for graph in graphs for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    for value in (value for node in model.graph.all_nodes() for value in node.outputs if value not in ends):
        value.type = value.shape = None
    model.graph.name, model.producer_name, model.doc_string = name, "onnxtrain-sklearn", None
    model.metadata_props.clear()
    return to_proto(model)


def _inner_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from list(graph.initializers.values())
    for node in graph:
        yield from node.outputs


# Named arrays in the format of safetensors, which has readers in many languages and is a header and raw numbers.
#
# What is read may come from anywhere. Each byte of the file belongs to one array, so that no file takes more memory
# than it is long.


_TENSOR_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "F16": "<f2", "U8": "|u1", "BOOL": "|b1"}
_NAMES_OF_TYPES = {np.dtype(kind): name for name, kind in _TENSOR_TYPES.items()}

_NOTES = "__metadata__"
_MOST_AXES = 32
_LONGEST_HEADER = 2**25


def tensor_bytes(arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> bytes:
    """Return the file that holds ``arrays``; ``notes`` are its metadata."""
    header: dict[str, object] = {_NOTES: dict(notes)}
    contents, start = [], 0
    for name, array in arrays.items():
        kind = array.dtype.newbyteorder("<")
        content = np.ascontiguousarray(array, kind).reshape(-1).view(np.uint8)
        offsets = [start, start + content.nbytes]
        header[name] = {"dtype": _NAMES_OF_TYPES[kind], "shape": list(array.shape), "data_offsets": offsets}
        contents.append(content.data)
        start += content.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *contents])


def tensors_of(content: bytes, what: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file; raise ModelError, which begins with ``what``, if it is none."""
    return tensors_and_notes(content, what)[0]


def tensors_and_notes(content: bytes, what: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays of a file and its metadata; raise ModelError, which begins with ``what``, if it is none."""
    start, places, notes = _parts(io.BytesIO(content), len(content), what)
    return dict(_arrays_at(places, memoryview(content)[start:], what)), notes


def require_tensors(file: BinaryIO, size: int) -> None:
    """Raise ModelError unless the header of a file of so many bytes says what is in all of them."""
    _parts(file, size, str(file.name))


def _parts(file: BinaryIO, whole: int, what: str) -> tuple[int, list[_Place], dict[str, str]]:
    """Return where the arrays begin, the place of each, and the metadata; only the header is read."""
    size = int.from_bytes(file.read(8), "little")
    if whole < 8 or size > whole - 8:
        raise _unreadable(what, f"its header would take {size:,} bytes, and {max(0, whole - 8):,} are there")
    if size > _LONGEST_HEADER:
        raise _unreadable(what, f"its header takes {size:,} bytes, and at most {_LONGEST_HEADER:,} are read")
    header = json_object(file.read(size), f"The header of {what}")
    notes = header.pop(_NOTES, {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise _unreadable(what, f"{_NOTES} must hold texts")
    places = [_place_of(name, entry, what) for name, entry in header.items()]
    _require_partition(places, whole - 8 - size, what)
    return 8 + size, places, notes


@dataclass(frozen=True)
class _Place:
    """Name, type, shape and span of an array."""

    name: str
    kind: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


def _place_of(name: str, entry: object, what: str) -> _Place:
    """Return the place that the header names for an array."""
    found: dict[str, Any] = entry if isinstance(entry, dict) else {}
    kind: Any
    shape: Any
    offsets: Any
    kind, shape, offsets = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(kind, str) and kind in _TENSOR_TYPES):
        raise _unreadable(what, f"{name!r} is of the type {kind!r}, and {', '.join(_TENSOR_TYPES)} are read")
    if not (_are_sizes(shape) and len(shape) <= _MOST_AXES and _are_sizes(offsets) and len(offsets) == 2):
        raise _unreadable(what, f"{name!r} has the shape {shape!r} and the offsets {offsets!r}"[:300])
    dtype, (start, end) = np.dtype(_TENSOR_TYPES[kind]), offsets
    if end - start != math.prod(shape) * dtype.itemsize:
        raise _unreadable(
            what,
            f"{name!r} of the shape {shape} takes {math.prod(shape) * dtype.itemsize:,} bytes, not {end - start:,}",
        )
    return _Place(name, dtype, tuple(shape), start, end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < 2**63 for one in values)


def _require_partition(places: list[_Place], size: int, what: str) -> None:
    """Raise unless the arrays follow each other from the first byte to the last."""
    end = 0
    for place in sorted(places, key=lambda one: (one.start, one.end)):
        if place.start != end:
            raise _unreadable(
                what, f"{place.name!r} begins at byte {place.start:,}, and the one before ends at {end:,}"
            )
        end = place.end
    if end != size:
        raise _unreadable(what, f"its tensors take {end:,} bytes, and {size:,} are there")


def _arrays_at(places: list[_Place], data: memoryview, what: str) -> Iterator[tuple[str, np.ndarray]]:
    for place in places:
        content = data[place.start : place.end]
        if place.kind == np.bool_ and (np.frombuffer(content, np.uint8) > 1).any():
            raise _unreadable(what, f"{place.name!r} holds truth values other than 0 and 1")
        try:
            yield place.name, np.array(np.frombuffer(content, place.kind).reshape(place.shape))
        except ValueError as error:  # sizes whose product is 0 and that NumPy does not take
            raise _unreadable(what, f"{place.name!r} has the shape {list(place.shape)}") from error


def _unreadable(what: str, why: str) -> ModelError:
    return ModelError(f"{what} holds no tensors in the format of safetensors, or is truncated: {why}.")


# Arrays of a state by name, with the constants of the graph that they were trained in.


class StateArrays(dict[str, np.ndarray]):
    """A dict of arrays that knows which constants the graph has beside them.

    Weights that were trained behind one scale of the inputs predict something else behind another one.

    Attributes
    ----------
    constants : dict or None
        The constants by name, as the manifest of training graphs has them; None: not known.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], constants: Mapping[str, Any] | None) -> None:
        super().__init__(arrays)
        self.constants = constants

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self), self.constants)
