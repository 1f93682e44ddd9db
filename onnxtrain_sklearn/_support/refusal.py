"""Errors of the libraries that read, infer, convert and run graphs, told as ours.

They raise whatever they like, from IndexError to classes of their own, and which one changes from release to release.
So the few places where a graph passes into a library, or where what it says is taken for granted, stand in a
``with refusing(...)``: the sentence says what was tried, the library's own words come after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..exceptions import ModelError, OnnxTrainError

NOT_ENOUGH = "There is not enough memory"

LONGEST = 600
"""Characters of a library's words that are quoted: some quote the whole graph."""


@contextmanager
def refusing(sentence: str, kind: type[ModelError] = ModelError) -> Iterator[None]:
    """Raise ``kind``, which begins with ``sentence``, for whatever goes wrong within.

    Errors that are ours pass, and a MemoryError stays one: the graph is not to blame for it.
    """
    try:
        yield
    except OnnxTrainError:
        raise
    except MemoryError as error:
        if str(error).startswith(NOT_ENOUGH):
            raise
        raise MemoryError(f"{NOT_ENOUGH}. {sentence}.") from error
    except Exception as error:
        raise kind(f"{sentence}: {reason(error)}.") from error


def reason(error: BaseException) -> str:
    """Return the text of the first cause of an error, without the place in ONNX's source where it arose."""
    while error.__cause__ is not None:  # onnx_ir wraps an error once for each function on the way
        error = error.__cause__
    text = " ".join(str(error).rpartition(" failed: ")[2].split()).rstrip(".:")
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    known = isinstance(error, ValueError | TypeError | RuntimeError) and text
    return text if known else f"{type(error).__name__}{': ' if text else ''}{text}"
