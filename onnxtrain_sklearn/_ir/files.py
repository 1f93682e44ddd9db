"""Read models in all forms that users give, with their weights, within the limits.

:func:`read` takes a ModelProto, bytes, or the path of a file in protobuf, JSON or one of ONNX's two text formats, and
reads external data, the weights in files beside the model. Sizes are checked before anything is read, because a file of
a kilobyte can claim any size. External data must be in the folder of the model: onnx opens no path that leads out of
it. :func:`content_of` reads other files with the same care. The graph itself is validated later (``_importers/load``).
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import count, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx.external_data_helper
import onnx_ir as ir
from google.protobuf.message import DecodeError

from .._utils.errors import refusing, require_memory
from ..exceptions import InvalidParameterError, ModelError
from .limits import LARGEST_MESSAGE, current_limits, exceeded, nodes_of, require_within_limits


def without_program(model: Any) -> Any:
    """Return the ModelProto of an ``ONNXProgram`` of ``torch.onnx.export``, or any other ``model`` unchanged.

    An ``ONNXProgram`` can be neither copied nor pickled.
    """
    held = None if isinstance(model, type) else getattr(model, "model_proto", None)
    return held if isinstance(held, onnx.ModelProto) else model


def read(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a model with its weights; raise if it exceeds the limits. The argument is not changed."""
    model = without_program(model)
    if not isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        raise InvalidParameterError(
            f"expected an onnx.ModelProto, bytes or the path of a file, got {type(model).__name__} ({model!r})."
        )
    proto = model if isinstance(model, onnx.ModelProto) else _parse_model(model)
    require_within_limits(proto)
    proto = _with_named_results(proto)
    external = [tensor for tensor in _tensors(proto) if onnx.external_data_helper.uses_external_data(tensor)]
    if not external:
        return proto
    if isinstance(model, onnx.ModelProto | bytes):
        location = _place(external[0]).get("location", "")
        raise ModelError(
            f"The weight {external[0].name!r} is kept in the file {location!r} beside the model's file, but "
            f"{source(model)} does not say in which folder. Give the path of the model's file as model, or the result "
            f"of onnx.load(path), without load_external_data=False."
        )
    folder = os.path.dirname(os.path.abspath(os.fspath(model)))
    _require_readable(external, folder)
    with refusing(f"The weights that {source(model)} keeps beside it cannot be read"):
        for tensor in external:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
            tensor.data_location = onnx.TensorProto.DEFAULT  # onnx before 1.23 leaves the tensor marked as external
            del tensor.external_data[:]
    return proto


def _with_named_results(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a name for each omitted result of a Loop, Scan or If.

    onnxruntime computes omitted results too. If one has no name, it refuses the graph or crashes when it runs.
    """

    def leaves_out(node: Any) -> bool:
        return bool(node.op_type in ("If", "Loop", "Scan") and "" in node.output)

    if not any(leaves_out(node) for graph in (proto.graph, *proto.functions) for node in nodes_of(graph)):
        return proto
    result = deepcopy(proto)
    nodes = [node for graph in (result.graph, *result.functions) for node in nodes_of(graph)]
    known = {name for node in nodes for name in (*node.input, *node.output)}
    known |= {value.name for value in (*result.graph.input, *result.graph.initializer)}
    fresh = (name for i in count() if (name := f"unused/{i}") not in known)
    for node in filter(leaves_out, nodes):
        node.output[:] = [name or next(fresh) for name in node.output]
    return result


def source(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> str:
    """Return a description of the given model for error messages, such as its path."""
    if isinstance(model, str | os.PathLike):
        return f"the file {_short(os.fspath(model))!r}"
    return "the bytes" if isinstance(model, bytes) else "the ModelProto"


def _short(path: str) -> str:
    return path if len(path) <= 300 else f"{path[:300]}..."


def _parse_model(model: bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    if isinstance(model, bytes):
        _require_size(len(model), source(model))
    else:
        with refusing(f"{source(model)[:1].upper()}{source(model)[1:]} cannot be read"):
            if not Path(model).is_file():
                raise ModelError(f"There is no file {_short(os.fspath(model))!r}.")
            size = os.stat(model).st_size
            if LARGEST_MESSAGE < size <= current_limits().file_bytes:
                raise ModelError(
                    f"There are {size:,} bytes in {source(model)}, and a file of a model has at most "
                    f"{LARGEST_MESSAGE:,}: larger weights lie beside it (external data)."
                )
            _require_size(size, source(model))
    what = f"There is no ONNX model in {source(model)}, or a truncated one: it cannot be parsed"
    with refusing(what):
        try:
            if isinstance(model, bytes):
                return onnx.load_model_from_string(model)
            return onnx.load(os.fspath(model), load_external_data=False)
        except DecodeError as error:
            raise ModelError(f"{what} as protobuf.") from error


def content_of(
    path: str | os.PathLike[str], *, most: int | None = None, first: Callable[[BinaryIO, int], None] | None = None
) -> bytes:
    """Return the content of a file within the limits; FileNotFoundError passes.

    Parameters
    ----------
    path : str or path
    most : int, default=None
        Largest number of bytes that such a file can have.
    first : callable, default=None
        Function that is called with the open file and its size before the whole file is read. It raises if the start is
        not that of such a file: a sparse file of many gigabytes may take no space on the disk.

    Raises
    ------
    ModelError
        The path is a pipe, a device or a folder, or the file is too large or cannot be read.
    """
    what = _short(os.fspath(path))
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            raise ModelError(f"{what} is no file, but a folder, a pipe or a device.")
        if most is not None and facts.st_size > most:
            raise ModelError(f"{what} has {facts.st_size:,} bytes, and such a file has at most {most:,}.")
        with open(path, "rb") as file:
            if first is not None:
                first(file, facts.st_size)
                file.seek(0)
            _require_size(facts.st_size, what)
            return file.read(facts.st_size)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelError(f"{what} cannot be read: {error.strerror}.") from error


def _require_size(size: int, what: str) -> None:
    if size > current_limits().file_bytes:
        raise exceeded(f"There are {size:,} bytes in {what}", "file_bytes")
    require_memory(size, what, copies=2)


def _tensors(proto: onnx.ModelProto) -> Iterator[Any]:
    """Yield the tensors of graphs, subgraphs, functions and training information."""
    graphs: list[Any] = [proto.graph, *proto.functions]
    for info in proto.training_info:
        graphs += [info.initialization, info.algorithm]
    while graphs:
        graph = graphs.pop()
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
        for attribute in (a for node in graph.node for a in node.attribute):
            yield from ([attribute.t] if attribute.HasField("t") else [])
            yield from attribute.tensors
            graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _require_readable(tensors: list[onnx.TensorProto], folder: str) -> None:
    """Raise ModelError if offsets or lengths of external data are invalid, or the data exceed the limits."""

    def parsed(tensor: onnx.TensorProto, key: str, text: str | None) -> int | None:
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise _misplaced(tensor, f"its {key} is {text[:50]!r}, which is not a number of bytes")
        return int(text)

    ranges: dict[str, set[tuple[int, int]]] = {}
    for tensor in tensors:
        place = _place(tensor)
        start, length = (parsed(tensor, key, place.get(key)) for key in ("offset", "length"))
        with refusing(_misplaced_text(tensor, "its type cannot be kept there")):
            expected = math.ceil(math.prod(tensor.dims) * float(ir.DataType(tensor.data_type).itemsize))
        if length is not None and length != expected:
            raise _misplaced(tensor, f"its length is {length:,} bytes, and its shape and type take {expected:,}")
        ranges.setdefault(place.get("location", ""), set()).add((start or 0, (start or 0) + expected))
        with refusing(_misplaced_text(tensor, "its file cannot be found")):
            path = os.path.join(folder, place.get("location", ""))
            size = os.stat(path).st_size if os.path.isfile(path) else None
            missing = not os.path.lexists(path)
        location, end = place.get("location", ""), (start or 0) + expected
        if missing:
            told = f"there is no file {_short(location)!r} in the folder {_short(folder)!r}"
            raise _misplaced(tensor, f"{told}. Put it there: the model was saved with it")
        if size is not None and size < end:
            told = f"the file {_short(location)!r} has {size:,} bytes, and the weight ends at byte {end:,}"
            raise _misplaced(tensor, f"{told}. It is truncated, or belongs to another model: copy or save both again")
        if size is not None and length is None and size - (start or 0) > expected:
            raise _misplaced(tensor, f"its length is not given, and {size - (start or 0):,} bytes are there")
    for found in ranges.values():  # two weights may share all of their bytes, but must not overlap in part
        for (begin, end), (next_begin, next_end) in pairwise(sorted(found)):
            if next_begin < end:
                raise ModelError(
                    f"The files beside the model hold two weights at bytes {begin:,} to {end:,} and {next_begin:,} to "
                    f"{next_end:,}, which overlap: the model is not valid."
                )
    _require_size(sum(end - begin for found in ranges.values() for begin, end in found), "the files beside the model")


def _place(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _misplaced(tensor: onnx.TensorProto, what: str) -> ModelError:
    return ModelError(f"{_misplaced_text(tensor, what)}.")


def _misplaced_text(tensor: onnx.TensorProto, what: str) -> str:
    return f"The weight {tensor.name!r} that is kept in a file beside the model cannot be read: {what}"
