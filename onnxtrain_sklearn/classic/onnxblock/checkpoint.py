"""Checkpoint files of onnxruntime-training: parameters, optimizer state, and user-defined properties.

The format is a FlatBuffer with a schema of onnxruntime; its slots are addressed by number here. Reading and writing
need neither onnxruntime-training nor code generated from the schema.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from ..._ir.files import content_of
from ..._ir.limits import LARGEST_MESSAGE
from ..._utils.atomic_files import whole_file
from ..._utils.errors import refusing
from ...exceptions import ModelError

try:
    import flatbuffers
    import flatbuffers.table
    from flatbuffers import number_types as types
except ImportError as error:  # installed with every onnxruntime, unless its dependencies were left out
    raise ImportError("Checkpoints of onnxruntime-training are FlatBuffers: pip install flatbuffers.") from error

# Slots of the tables in onnxruntime's schema, in the order of its files checkpoint.fbs and ort.fbs:
#
# - Checkpoint: version, module, optimizer groups, properties
# - module: trained parameters, frozen parameters, whether it is nominal, whether the values are in another file
# - optimizer group: name, step, initial learning rate, a table for each parameter: name, moments
# - properties: integers, floats, texts; each a name and a value
# - tensor: name, documentation, sizes, type, bytes, texts, offset in another file

IDENTIFIER, VERSION = b"ODTC", 2
_MODULE, _GROUPS, _PROPERTIES = 1, 2, 3
_NAME, _DIMS, _TYPE, _RAW, _EXTERNAL = 0, 2, 3, 4, 6


@dataclass(frozen=True)
class OptimizerGroup:
    """The state of an optimizer: number of steps, initial learning rate, and vectors by parameter and slot."""

    name: str
    step: int
    initial_learning_rate: float
    moments: Mapping[str, Mapping[str, np.ndarray]]


class Checkpoint(dict[str, np.ndarray]):
    """The parameters of a checkpoint by name, trained ones first.

    Attributes
    ----------
    trained, frozen : tuple of str
        Names of parameters that require a gradient, and of those that do not.
    nominal : bool
        Whether the file only describes the parameters: then there are no arrays.
    properties : dict of str to int, float or str
        User-defined properties.
    optimizer : tuple of OptimizerGroup
        Empty if the file was saved without the optimizer's state.
    """

    def __init__(
        self,
        trained: Mapping[str, np.ndarray],
        frozen: Mapping[str, np.ndarray],
        *,
        nominal: bool = False,
        properties: Mapping[str, int | float | str] | None = None,
        optimizer: Sequence[OptimizerGroup] = (),
    ) -> None:
        super().__init__({**trained, **frozen})
        self.trained = tuple(trained)
        self.frozen = tuple(frozen)
        self.nominal = nominal
        self.properties = dict(properties or {})
        self.optimizer = tuple(optimizer)


def save_checkpoint(
    parameters: tuple[Iterable[onnx.TensorProto], Iterable[onnx.TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Write trained and frozen parameters to a file that onnxruntime-training reads.

    Parameters
    ----------
    parameters : tuple of two lists of onnx.TensorProto
        The result of :meth:`~.TrainingBlock.parameters`.
    path_to_checkpoint : str or path
    nominal_checkpoint : bool, default=False
        Whether to write only names, types and shapes, for a device that gets the values elsewhere.
    """
    if parameters is None:
        raise RuntimeError("There are no parameters to save.")
    groups = [{t.name: onnx.numpy_helper.to_array(t) for t in tensors} for tensors in parameters]
    write(Checkpoint(*groups, nominal=bool(nominal_checkpoint)), path_to_checkpoint)


def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    """Write the parameters of a checkpoint into the initializers of a model, in place.

    An input of the model with the name of a parameter becomes an initializer.
    """
    graph = model.graph
    checkpoint = read_checkpoint(path_to_checkpoint)
    held = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input}
    if missing := checkpoint.keys() - held.keys() - inputs.keys():
        raise ModelError(f"The model has no parameter {min(missing)!r}, which the checkpoint holds.")
    for name, array in checkpoint.items():
        if name in held:
            like = onnx.numpy_helper.to_array(held[name])
            if array.shape != like.shape or array.dtype != like.dtype:
                raise ModelError(
                    f"The checkpoint holds {name!r} as {array.dtype}{list(array.shape)}, the model as "
                    f"{like.dtype}{list(like.shape)}: it is a checkpoint of another model."
                )
            held[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
        else:
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            graph.input.remove(inputs[name])


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint file.

    Parameters
    ----------
    path : str or path
        A file written by onnxruntime-training or :func:`~.artifacts.generate_artifacts`.

    Returns
    -------
    Checkpoint
        A dict of arrays by name; its attributes hold the optimizer's state and the properties.

    Raises
    ------
    ModelError
        The file is not a checkpoint, or is a nominal one, which holds no values.
    """

    def require_identifier(file: BinaryIO, size: int) -> None:
        if file.read(8)[4:] != IDENTIFIER:
            raise ModelError(f"{file.name!r} is not a checkpoint of onnxruntime-training.")

    content = content_of(path, most=LARGEST_MESSAGE, first=require_identifier)
    with refusing(f"The checkpoint {os.fspath(path)!r} cannot be read"):
        return _read(content)


def _read(content: bytes) -> Checkpoint:
    start = flatbuffers.encode.Get(flatbuffers.packer.uoffset, content, 0)
    read = _Bytes(len(content))
    root = _Table(flatbuffers.table.Table(content, start), read)
    module, bag = root.table(_MODULE), root.table(_PROPERTIES)
    if module is None:
        raise ValueError("it holds no parameters")
    if module.number(2, types.BoolFlags):
        raise ValueError("it is nominal: it describes parameters and does not hold them")
    if module.number(3, types.BoolFlags):
        raise ValueError("it keeps its parameters in another file, which is not supported")
    groups = [_by_name(map(_checkpoint_array, module.tables(slot))) for slot in (0, 1)]
    if both := groups[0].keys() & groups[1].keys():
        raise ValueError(f"{min(both)!r} is trained and frozen")
    kinds = (types.Int64Flags, types.Float32Flags, None)
    pairs = [(one, kind) for slot, kind in enumerate(kinds) if bag is not None for one in bag.tables(slot)]
    found = _by_name((one.text(0), one.text(1) if kind is None else one.number(1, kind)) for one, kind in pairs)
    states = []
    for one in root.tables(_GROUPS):
        moments = _by_name((each.text(0), _by_name(map(_checkpoint_array, each.tables(1)))) for each in one.tables(3))
        rate = float(one.number(2, types.Float32Flags))
        states.append(OptimizerGroup(one.text(0), int(one.number(1, types.Int64Flags)), rate, moments))
    read.require_apart()
    return Checkpoint(*groups, properties=found, optimizer=states)


def _by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs as a dict; raise ValueError where a name comes twice."""
    found = dict[str, Any]()
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} comes twice")
        found[name] = value
    return found


def _checkpoint_array(table: _Table) -> tuple[str, np.ndarray]:
    dtype = ir.DataType(table.number(_TYPE, types.Int32Flags)).numpy()
    shape = [int(n) for n in table.numbers(_DIMS, types.Int64Flags)]
    raw = table.array_bytes(_RAW)
    return table.text(_NAME), np.frombuffer(raw.tobytes(), dtype).reshape(shape).copy()


class _Bytes:
    """Count the bytes that were read: a hostile file, whose parts overlap, must not take more memory than its size."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._arrays = list[tuple[int, int]]()

    def count(self, size: int) -> None:
        """Raise ValueError if more bytes were read than the file has."""
        self._left -= size
        if self._left < 0:
            raise ValueError("its parts overlap")

    def of_array(self, start: int, size: int) -> None:
        """Count the bytes of an array."""
        self.count(size)
        self._arrays.append((start, start + size))

    def require_apart(self) -> None:
        """Raise ValueError if arrays overlap."""
        if any(end > start for (_, end), (start, _) in pairwise(sorted(self._arrays))):
            raise ValueError("its arrays overlap")


class _Table:
    """A table of a FlatBuffer, read by slot number."""

    def __init__(self, table: Any, read: _Bytes) -> None:
        self._table, self._read = table, read

    def _at(self, slot: int) -> int:
        # The list of a table's slots begins with two numbers of two bytes; each slot has two bytes, 0 if it is not set.
        offset = int(self._table.Offset(4 + 2 * slot))
        return offset and offset + int(self._table.Pos)

    def number(self, slot: int, kind: Any) -> Any:
        at = self._at(slot)
        return self._table.Get(kind, at) if at else 0

    def text(self, slot: int) -> str:
        at = self._at(slot)
        if not at:
            return ""
        found = bytes(self._table.String(at))
        self._read.count(len(found))
        return found.decode()

    def table(self, slot: int) -> _Table | None:
        at = self._at(slot)
        return self._of(self._table.Indirect(at)) if at else None

    def tables(self, slot: int) -> Iterator[_Table]:
        if at := self._at(slot):
            start = self._table.Vector(at - self._table.Pos)
            for i in range(self._table.VectorLen(at - self._table.Pos)):
                yield self._of(self._table.Indirect(start + 4 * i))

    def numbers(self, slot: int, kind: Any) -> np.ndarray:
        at = self._at(slot)
        empty = np.zeros(0, np.uint8)
        return np.asarray(self._table.GetVectorAsNumpy(kind, at - self._table.Pos)) if at else empty

    def array_bytes(self, slot: int) -> np.ndarray:
        """Return the bytes of an array."""
        found = self.numbers(slot, types.Uint8Flags)
        if found.size:
            start = int(self._table.Vector(self._at(slot) - self._table.Pos))
            self._read.of_array(start, found.size)
        return found

    def _of(self, position: int) -> _Table:
        return _Table(flatbuffers.table.Table(self._table.Bytes, position), self._read)


def write(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint to a file that onnxruntime-training reads."""
    builder = flatbuffers.Builder(1024)
    # The parameters: trained ones, then frozen ones.
    lists = [
        _vector(builder, [_pack(builder, name, checkpoint[name], nominal=checkpoint.nominal) for name in names])
        for names in (checkpoint.trained, checkpoint.frozen)
    ]
    builder.StartObject(4)
    for slot, offset in enumerate(lists):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    builder.PrependBoolSlot(2, checkpoint.nominal, False)
    module = int(builder.EndObject())

    # The optimizer's state.
    offsets = []
    for group in checkpoint.optimizer:
        states = _vector(builder, [_state(builder, name, slots) for name, slots in group.moments.items()])
        text = builder.CreateString(group.name)
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(0, text, 0)
        builder.PrependInt64Slot(1, group.step, 0)
        builder.PrependFloat32Slot(2, group.initial_learning_rate, 0.0)
        builder.PrependUOffsetTRelativeSlot(3, states, 0)
        offsets.append(int(builder.EndObject()))
    groups = _vector(builder, offsets)

    bag = _bag(builder, checkpoint.properties)
    builder.StartObject(4)
    builder.PrependInt32Slot(0, VERSION, 0)
    for slot, offset in ((_MODULE, module), (_GROUPS, groups), (_PROPERTIES, bag)):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    builder.Finish(builder.EndObject(), file_identifier=IDENTIFIER)
    with whole_file(Path(path)) as file:
        file.write(builder.Output())


def _pack(builder: flatbuffers.Builder, name: str, array: np.ndarray, *, nominal: bool = False) -> int:
    content = b"" if nominal else np.ascontiguousarray(array).tobytes()
    text = builder.CreateString(name)
    raw = builder.CreateByteVector(content)
    builder.StartVector(8, array.ndim, 8)
    for size in reversed(array.shape):  # a FlatBuffer is written from its end
        builder.PrependInt64(size)
    dims = builder.EndVector()
    builder.StartObject(7)
    for slot, offset in ((_NAME, text), (_DIMS, dims), (_RAW, raw)):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    builder.PrependInt32Slot(_TYPE, ir.DataType.from_numpy(array.dtype).value, 0)
    builder.PrependInt64Slot(_EXTERNAL, -1, -1)  # -1: the bytes are in this file
    return int(builder.EndObject())


def _vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _state(builder: flatbuffers.Builder, name: str, slots: Mapping[str, np.ndarray]) -> int:
    moments = _vector(builder, [_pack(builder, n, a) for n, a in slots.items()])
    text = builder.CreateString(name)
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependUOffsetTRelativeSlot(1, moments, 0)
    return int(builder.EndObject())


def _bag(builder: flatbuffers.Builder, properties: Mapping[str, int | float | str]) -> int:
    kinds: list[tuple[type, Callable[[Any], Any]]] = [(int, int), (float, float), (str, builder.CreateString)]
    groups: list[list[int]] = [[], [], []]
    for name, value in properties.items():
        kind = next((i for i, (one, _) in enumerate(kinds) if type(value) is one), None)
        if kind is None:
            raise TypeError(f"Properties are int, float or str, got {name}={value!r}.")
        written = kinds[kind][1](value)
        text = builder.CreateString(name)
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, text, 0)
        prepend = (builder.PrependInt64Slot, builder.PrependFloat32Slot, builder.PrependUOffsetTRelativeSlot)[kind]
        prepend(1, written, 0)
        groups[kind].append(int(builder.EndObject()))
    offsets = [_vector(builder, group) for group in groups]
    builder.StartObject(3)
    for slot, offset in enumerate(offsets):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())
