"""Targets that a loss declares by name: their types and shapes, and their columns in the matrix that minibatches carry.

Minibatches, streams and training graphs hold one target array. So the targets of a row are columns of one matrix of
floats, which hold whole numbers up to :data:`LARGEST` exactly, and the loss graph gives each its type and shape back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ..graph import GraphBuilder

TargetType: TypeAlias = Literal["float", "int64", "bool"]

LARGEST = 2**24
"""Whole numbers up to this are exact in float32."""


@dataclass(frozen=True)
class Target:
    """A target that a loss declares.

    Parameters
    ----------
    shape : tuple of str or int, default=("N",)
        Its axes. The first is "N", the rows. Other names are sizes that the data determine: axes of one name, also of
        other targets of the loss, have one size.
    dtype : {"float", "int64", "bool"}, default="float"
        "float" is the type of the scores.

    Examples
    --------
    >>> from onnxtrain_sklearn.losses import Target
    >>> Target(("N", "length"), "int64")
    Target(shape=('N', 'length'), dtype='int64')
    """

    shape: tuple[str | int, ...] = ("N",)
    dtype: TargetType = "float"

    __module__ = "onnxtrain_sklearn.losses"

    def __post_init__(self) -> None:
        sizes = self.shape[1:] if isinstance(self.shape, tuple) else (0,)
        valid = all(d != "N" if isinstance(d, str) else isinstance(d, int) and d > 0 for d in sizes)
        if not valid or self.shape[:1] != ("N",):
            raise ValueError(
                f"shape of a target must be a tuple that begins with 'N', such as ('N', 'length'), got {self.shape!r}."
            )
        if self.dtype not in ("float", "int64", "bool"):
            raise ValueError(f"dtype of a target must be 'float', 'int64' or 'bool', got {self.dtype!r}.")


@dataclass(frozen=True)
class SizedTarget:
    """A declared target of some data: the shape of its rows is known."""

    name: str
    dtype: TargetType
    row_shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns of the matrix of targets that hold it."""
        return math.prod(self.row_shape)


@dataclass(frozen=True)
class DeclaredTargets:
    """The declared targets of some data, in the order of their columns, and the shape of a row of the scores."""

    targets: tuple[SizedTarget, ...]
    score_row: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Columns of the matrix, at least one: without targets it is a column of zeros."""
        return max(1, sum(one.width for one in self.targets))

    def with_scores(self, row: tuple[int, ...]) -> DeclaredTargets:
        """Return the targets for scores whose rows have this shape."""
        return replace(self, score_row=row)

    def matrix(self, arrays: Sequence[np.ndarray], n_rows: int) -> np.ndarray:
        """Return the columns of ``arrays``, which are in the order of the targets."""
        if not arrays:
            return np.zeros((n_rows, 1), np.float32)
        # float32 holds all but numbers of float64
        kind = np.result_type(np.float32, *(a.dtype for a in arrays if a.dtype.kind == "f"))
        return np.concatenate([a.reshape(n_rows, -1).astype(kind) for a in arrays], axis=1)

    def arrays(self, matrix: np.ndarray) -> dict[str, np.ndarray]:
        """Return the targets by name, in their types and shapes, from their columns."""
        found, start = {}, 0
        for one in self.targets:
            part = matrix[:, start : start + one.width].reshape(len(matrix), *one.row_shape)
            found[one.name] = part if one.dtype == "float" else part.astype(one.dtype)
            start += one.width
        return found

    def emit(self, op: GraphBuilder, matrix: ir.Value, rows: int) -> dict[str, ir.Value]:
        """Emit the targets by name, in their types and shapes, from their columns."""
        found, start = {}, 0
        kinds: dict[str, Any] = {"int64": ir.DataType.INT64, "bool": ir.DataType.BOOL}
        for one in self.targets:
            part = op.Slice(matrix, [start], [start + one.width], [1])
            part = op.Reshape(part, [rows, *one.row_shape])
            found[one.name] = part if one.dtype == "float" else op.Cast(part, to=kinds[one.dtype])
            start += one.width
        return found
