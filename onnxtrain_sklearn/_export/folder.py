"""The folder of training graphs: written as a whole, and checked when it is read.

``training_folder`` makes its content, ``write_folder`` writes it, and ``read_folder`` reads it. A folder
may come from an untrusted source, so ``read_folder`` checks hashes, names, graphs and the state by the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._ir.files import content_of, read, require_whole
from .._ir.limits import LARGEST_MESSAGE, require_survivable
from .._utils.atomic_files import whole_folder
from ..exceptions import ModelError
from .exported import ExportedTraining
from .graphs import graph_entries, training_graphs
from .manifest import MANIFEST, STATE_FILE, is_plain_name, manifest_of, read_manifest
from .state_files import CONSTANTS, require_tensors, state_bytes, tensors_of


@dataclass(frozen=True, eq=False)
class TrainingFolder:
    """The content of a folder: manifest, graphs as bytes by name, state, and the bytes of its file if made already."""

    manifest: Mapping[str, Any]
    graphs: Mapping[str, bytes]
    state: Mapping[str, np.ndarray]
    state_file: bytes | None = None


def training_folder(exported: ExportedTraining, form: str) -> TrainingFolder:
    """Return the content of a folder with the training graphs of ``form``."""
    step, predict = training_graphs(exported)
    entries = graph_entries(step, predict, form)
    graphs = {
        name: require_whole(entry.proto, "A folder of training graphs").SerializeToString()
        for name, entry in entries.items()
    }
    state = {one.name: np.asarray(one.value) for one in step.state}
    tensors = state_bytes(state, exported.facts.get(CONSTANTS))
    files = {f"{name}.onnx": content for name, content in graphs.items()} | {STATE_FILE: tensors}
    facts = {name: {"bytes": len(content), "sha256": _sha256(content)} for name, content in files.items()}
    return TrainingFolder(manifest_of(exported, step, entries, facts), graphs, state, tensors)


def write_folder(content: TrainingFolder, path: str | os.PathLike[str]) -> None:
    """Write a folder as a whole; an error leaves an earlier folder as it was.

    Raise FileExistsError if the path holds anything but an earlier export.
    """
    target = Path(path)
    known = {MANIFEST, STATE_FILE, "step.onnx", "epoch.onnx", "predict.onnx"}
    if target.exists() and (not target.is_dir() or {entry.name for entry in target.iterdir()} - known):
        raise FileExistsError(
            f"{target} exists and is not a folder of training graphs alone, so it is not replaced: name a new folder."
        )
    with whole_folder(target) as new:
        for name, graph in content.graphs.items():
            (new / f"{name}.onnx").write_bytes(graph)
        constants = content.manifest.get(CONSTANTS)
        tensors = state_bytes(content.state, constants) if content.state_file is None else content.state_file
        (new / STATE_FILE).write_bytes(tensors)
        text = json.dumps(content.manifest, indent=2, ensure_ascii=False, allow_nan=False)
        (new / MANIFEST).write_text(text + "\n", encoding="utf-8")


LONGEST_MANIFEST = 2**25
"""Largest manifest to read, in bytes; lists of labels are its longest part."""


def read_folder(path: str | os.PathLike[str]) -> TrainingFolder:
    """Return the content of a folder; raise ModelError if a file is missing, changed, or of another version."""
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
    """Return the content of a file that the manifest names; raise unless it lies in the folder and has its hash."""
    if not is_plain_name(name):
        raise ModelError(f"{folder / MANIFEST} names the file {name!r}, which is not in the folder itself.")
    file = folder / name
    digest = fact.get("sha256") if isinstance(fact, dict) else None
    if not file.is_file():
        raise ModelError(f"{folder} lacks {name}, which its {MANIFEST} names: copy the whole folder.")
    if file.resolve().parent != folder.resolve():
        raise ModelError(f"{file} is a link that leads out of the folder: copy the whole folder.")
    content = content_of(file, first=require_tensors) if is_state else content_of(file, most=LARGEST_MESSAGE)
    if _sha256(content) != digest:
        raise ModelError(
            f"{file} has changed: its SHA-256 is {_sha256(content)}, but {MANIFEST} says {str(digest)[:64]}. Export "
            f"the folder again. Write a state that was trained elsewhere to a file of its own, for load_state(file)."
        )
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def require_own_graph(content: bytes, what: str) -> None:
    """Raise ModelError unless a graph is within the limits, cannot crash the process, and contains its weights.

    (onnxruntime would look for weights in other files in the working directory.)
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
