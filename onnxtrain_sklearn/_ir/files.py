"""Read models in all forms that users give, with their weights, within the limits, and write them to files.

:func:`read` takes a ModelProto, bytes, or the path of a file in protobuf, JSON or one of ONNX's two text formats, and
reads external data, the weights in files beside the model; of a model above 2 GiB they may stay there. Sizes are
checked before anything is read, because a file of a kilobyte can claim any size. External data must be in the folder of
the model: onnx opens no path that leads out of it. :func:`content_of` reads other files with the same care, and
:func:`write` writes a model. The graph itself is validated later (``_importers/load``).
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from itertools import count, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx.external_data_helper
import onnx_ir as ir
from google.protobuf.message import DecodeError

from .._ort import sessions
from .._utils.atomic_files import whole_file
from .._utils.errors import refusing, require_memory
from ..exceptions import InvalidParameterError, ModelError
from .limits import (
    LARGEST_MESSAGE,
    bytes_per_element,
    current_limits,
    exceeded,
    nodes_of,
    require_one_message,
    require_within_limits,
)


def without_program(model: Any) -> Any:
    """Return the ModelProto of an ``ONNXProgram`` of ``torch.onnx.export``, or any other ``model`` unchanged.

    An ``ONNXProgram`` can be neither copied nor pickled.
    """
    held = None if isinstance(model, type) else getattr(model, "model_proto", None)
    return held if isinstance(held, onnx.ModelProto) else model


IN_PLACE = LARGEST_MESSAGE
"""Bytes of weights beside a model above which :func:`read` may leave them in their files."""

STAYING = frozenset(onnx.TensorProto.DataType.Value(name) for name in "BFLOAT16 DOUBLE FLOAT FLOAT16 UINT8".split())
"""Types of weights that may stay in their files; signed bytes are rewritten for some processors."""

SMALL = 2**16
"""Bytes of a weight from which it may stay in its file; smaller ones may be shapes, which inference reads."""


def read(model: onnx.ModelProto | bytes | str | os.PathLike[str], *, in_place: bool = False) -> onnx.ModelProto:
    """Read a model with its weights; raise if it exceeds the limits. The argument is not changed.

    With ``in_place``, large weights of a model above 2 GiB stay in the files beside it: the tensors name their files by
    absolute paths, and :func:`~onnxtrain_sklearn._ort.sessions.create_session` finds them there.
    """
    model = without_program(model)
    if not isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        raise InvalidParameterError(
            f"expected an onnx.ModelProto, bytes or the path of a file, got {type(model).__name__} ({model!r})."
        )
    proto = model if isinstance(model, onnx.ModelProto) else _parse_model(model)
    in_place = in_place and not isinstance(model, onnx.ModelProto | bytes) and sessions.reads_in_place()
    require_within_limits(proto, in_place=in_place)
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
    stays = set[str]()
    if in_place and sum(map(_size, external)) > IN_PLACE:
        large = (tensor for tensor in proto.graph.initializer if _size(tensor) >= SMALL)
        stays = {tensor.name for tensor in large if tensor.data_type in STAYING}
    require_one_message(sum(_size(tensor) for tensor in external if tensor.name not in stays), " outside the graph")
    _require_readable(external, folder, stays)
    with refusing(f"The weights that {source(model)} keeps beside it cannot be read"):
        for tensor in proto.graph.initializer if stays else ():
            if tensor in external and tensor.name in stays:
                _name_file(tensor, folder)
                external.remove(tensor)
        for tensor in external:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
            tensor.data_location = onnx.TensorProto.DEFAULT  # onnx before 1.23 leaves the tensor marked as external
            del tensor.external_data[:]
    return proto


def require_whole(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Return a model that holds all of its weights; ModelError if some stay in files, which ``what`` cannot hold."""
    if (outside := _in_files(proto)) and (name := outside[0].name):
        size = sum(map(_size, outside))
        raise ModelError(
            f"{what} cannot hold a model above 2 GiB, whose weight {name!r} and others ({size:,} bytes) stay in their "
            f"files. Write the trained model by to_onnx(path=...)."
        )
    return proto


def write(proto: onnx.ModelProto, path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Write a model; return it as written.

    Weights that stay in files are copied into one file beside it, ``<name>.data``, a piece at a time.
    """
    target, outside = Path(path), _in_files(proto)
    if not outside:
        with whole_file(target) as file:
            file.write(proto.SerializeToString())
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    beside = target.with_name(f"{target.name}.data")
    for written in (target, beside):
        if os.path.realpath(written) in {os.path.realpath(_place(tensor)["location"]) for tensor in outside}:
            raise ModelError(
                f"The given model reads its weights from {_short(os.fspath(written))!r}: give another path."
            )
    with whole_file(beside) as file:
        for tensor in _in_files(result):
            place = _place(tensor)
            sessions.require_unchanged(place["location"])
            file.write(bytes(-file.tell() % ALIGNED))
            begin, left = file.tell(), int(place["length"])
            with open(place["location"], "rb") as given:
                given.seek(int(place["offset"]))
                while left and (piece := given.read(min(left, PIECE))):
                    left -= file.write(piece)
            if left:
                raise ModelError(f"The file {_short(place['location'])!r} was truncated while it was read.")
            del tensor.external_data[:]
            for key, value in {"location": beside.name, "offset": str(begin), "length": place["length"]}.items():
                tensor.external_data.add(key=key, value=value)
    with whole_file(target) as file:
        file.write(result.SerializeToString())
    return result


ALIGNED, PIECE = 4096, 2**24
"""Bytes whose multiples are the places of weights in a file, as runtimes map whole pages, and bytes that are copied at
a time."""


def _in_files(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [t for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]


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


def _require_size(size: int, what: str, read: int | None = None) -> None:
    if size > current_limits().file_bytes:
        raise exceeded(f"There are {size:,} bytes in {what}", "file_bytes")
    require_memory(size if read is None else max(0, read), what, copies=2)


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


def _size(tensor: onnx.TensorProto) -> int:
    size: int = math.ceil(math.prod(tensor.dims) * bytes_per_element(tensor.data_type))
    return size


def _name_file(tensor: onnx.TensorProto, folder: str) -> None:
    """Let a tensor name its file by an absolute path, with offset and length; ModelError if it is not in the folder."""
    place = _place(tensor)
    path = os.path.realpath(os.path.join(folder, place.get("location", "")))
    if os.path.commonpath([path, os.path.realpath(folder)]) != os.path.realpath(folder) or not os.path.isfile(path):
        raise _misplaced(tensor, f"the file {_short(path)!r} is not in the folder {_short(folder)!r}")
    if os.stat(path).st_nlink > 1:
        raise _misplaced(tensor, f"the file {_short(path)!r} has hard links, which may lead out of the folder: copy it")
    del tensor.external_data[:]
    name = sessions.name_of_file(path)
    offset = place.get("offset", "0")
    for key, value in {"location": name, "offset": offset, "length": str(_size(tensor))}.items():
        tensor.external_data.add(key=key, value=value)


def _require_readable(tensors: list[onnx.TensorProto], folder: str, stays: Collection[str] = ()) -> None:
    """Raise ModelError if offsets or lengths of external data are invalid, or the data exceed the limits.

    The data of the tensors named in ``stays`` are not read into memory.
    """

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
        location = place.get("location", "")
        end = (start or 0) + expected
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
    whole = sum(end - begin for found in ranges.values() for begin, end in found)
    _require_size(whole, "the files beside the model", read=whole - sum(_size(t) for t in tensors if t.name in stays))


def _place(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _misplaced(tensor: onnx.TensorProto, what: str) -> ModelError:
    return ModelError(f"{_misplaced_text(tensor, what)}.")


def _misplaced_text(tensor: onnx.TensorProto, what: str) -> str:
    return f"The weight {tensor.name!r} that is kept in a file beside the model cannot be read: {what}"
