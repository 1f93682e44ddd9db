"""Mutations of bytes, and of any field of any message of a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx
import onnx.helper
import onnx.numpy_helper
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.values import FLOATS, NUMBERS, WORDS

_INTEGERS = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64}


def bytes_of(rng: random.Random, content: bytes) -> bytes:
    """Return other bytes: some changed, cut off, taken out, put in or repeated."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        i = rng.randrange(len(data) + 1)
        j = min(len(data), i + rng.choice([1, 2, 4, 8, 64]))
        kind = rng.choice(["flip", "set", "cut", "drop", "insert", "repeat"])
        if kind == "flip" and i < len(data):
            data[i] ^= 1 << rng.randrange(8)
        elif kind == "set":
            data[i:j] = rng.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * (j - i)
        elif kind == "cut":
            del data[i:]
        elif kind == "drop":
            del data[i:j]
        elif kind == "insert":
            data[i:i] = rng.randbytes(rng.choice([1, 4, 100]))
        else:
            data[i:i] = data[i:j] * rng.choice([1, 3, 50])
    return bytes(data)


def messages(root: Message) -> Iterator[Message]:
    """Yield a message and all that are in it; without recursion, as some are deep."""
    front = [root]
    while front:
        message = front.pop()
        yield message
        for field, value in message.ListFields():
            if field.message_type is not None:
                front += [value] if isinstance(value, Message) else list(value)


def field_of_message(rng: random.Random, model: onnx.ModelProto) -> None:
    """Change any field of any message."""
    every = list(messages(model))
    message = rng.choice(every)
    field = rng.choice(list(message.DESCRIPTOR.fields))
    if rng.random() < 0.75 and message.ListFields():
        field = rng.choice(message.ListFields())[0]
    if not isinstance(getattr(message, field.name), Message | bool | int | float | str | bytes):
        _repeated(rng, every, getattr(message, field.name), field)
    elif field.message_type is not None:
        _replaced(rng, every, getattr(message, field.name), message, field.name)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(rng, field, getattr(message, field.name)))


def _repeated(rng: random.Random, every: list[Message], items: Any, field: FieldDescriptor) -> None:
    kind = rng.choice(["delete", "copy", "swap", "change", "clear"])
    if kind == "clear" or not len(items):
        alike = [m for m in every if field.message_type is not None and m.DESCRIPTOR.name == field.message_type.name]
        if len(items):
            del items[:]
        elif field.message_type is None:
            items.append(_scalar(rng, field, None))
        elif alike:
            items.add().CopyFrom(copy_of(rng.choice(alike)))
        return
    i, j = rng.randrange(len(items)), rng.randrange(len(items))
    if kind == "delete":
        del items[i]
    elif field.message_type is not None:
        other = copy_of(items[i])
        if kind == "swap":
            items[i].CopyFrom(copy_of(items[j]))
            items[j].CopyFrom(other)
        else:
            items.add().CopyFrom(other)
    elif kind == "swap":
        items[i], items[j] = items[j], items[i]
    elif kind == "copy":
        items.append(items[i])
    else:
        items[i] = _scalar(rng, field, items[i])


def copy_of(message: Message) -> Message:
    other = type(message)()
    other.CopyFrom(message)
    return other


def _replaced(rng: random.Random, every: list[Message], value: Message, parent: Message, name: str) -> None:
    alike = [m for m in every if m.DESCRIPTOR is value.DESCRIPTOR]
    if alike and rng.random() < 0.6:
        value.CopyFrom(copy_of(rng.choice(alike)))
    else:
        parent.ClearField(name)


def _scalar(rng: random.Random, field: FieldDescriptor, value: Any) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    if kind in _INTEGERS | _UNSIGNED:
        number = rng.choice([*NUMBERS, *(int(value or 0) + d for d in (1, -1, 1, -1, 3, 100))])
        bits = 31 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 63
        return max(-(2**bits) if kind in _INTEGERS else 0, min(2**bits - 1, number))
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice([*FLOATS, rng.gauss(0, 3)])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return not value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes_of(rng, bytes(value or b""))
    return rng.choice([*WORDS, str(value or "") + rng.choice(["_grad", "x", "/", "_0"])])
