"""Types for libraries without type hints: data, scikit-learn's estimators, arguments that skl2onnx passes.

They are structural: nothing here imports those libraries, and nothing checks an object at run time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

DType: TypeAlias = "np.dtype[np.generic]"


class SparseLike(Protocol):
    """A sparse array or matrix of scipy."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def ndim(self) -> int: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def data(self) -> Any: ...

    def tocsr(self) -> Any: ...

    def toarray(self) -> np.ndarray: ...

    def reshape(self, *shape: int) -> Any: ...


class FrameLike(Protocol):
    """A data frame of pandas or polars."""

    @property
    def columns(self) -> Any: ...

    def __getitem__(self, key: Hashable | list[Hashable], /) -> Any: ...


MatrixLike: TypeAlias = "ArrayLike | SparseLike | FrameLike | Mapping[str, ArrayLike | SparseLike]"
"""Data that ``fit`` and ``predict`` take as ``X``."""


class BlocksLike(Protocol):
    """Blocks of a table that need not fit into memory, such as :class:`RowBlocks`."""

    def __len__(self) -> int: ...

    def block(self, i: int, /) -> Any: ...


SourceLike: TypeAlias = "BlocksLike | os.PathLike[str] | Callable[[], Any]"
"""Sources of blocks; texts, which are paths, and lists of them are among the data in memory too."""

TableLike: TypeAlias = "MatrixLike | SourceLike"
"""Data that ``fit`` takes as ``X``: those in memory, and the sources of blocks."""

Predictions: TypeAlias = "np.ndarray | Any"
"""The predictions for data in memory; for a source, a ``pyarrow.RecordBatchReader``."""

Validation: TypeAlias = "tuple[MatrixLike, ArrayLike, ArrayLike | None]"
"""``X_val``, ``y_val`` and ``sample_weight_val``."""

HistoryRow: TypeAlias = "Mapping[str, Any]"
"""A row of ``history_``: numbers and scores by name."""

ClassWeight: TypeAlias = "Mapping[Any, float] | Sequence[Mapping[Any, float]] | str | None"
"""Weights by label, for several labels a row one mapping each, or "balanced"."""


class Estimator(Protocol):
    """An estimator of scikit-learn, or of a library that follows it.

    Its learned attributes differ from class to class, and no library declares them.
    """

    def get_params(self, deep: bool = ...) -> dict[str, Any]: ...

    def __getattr__(self, name: str, /) -> Any: ...

    def __setattr__(self, name: str, value: Any, /) -> None: ...


class Variable(Protocol):
    """A value of the graph that skl2onnx writes."""

    full_name: str
    raw_name: str
    type: Any

    def init_status(self, *, is_fed: bool) -> None: ...

    def set_type(self, new_type: object) -> None: ...

    def get_first_dimension(self) -> int | None: ...


class Options(Protocol):
    """Holder of the options of converters: the scope and the container."""

    def add_options(self, model_id: int, options: Mapping[str, object]) -> None: ...

    def get_options(
        self, model: object, default_values: Mapping[str, object] | None = ..., fail: bool = ...
    ) -> dict[str, Any]: ...


Parsers: TypeAlias = "Mapping[type, Callable[..., Any]] | None"
"""Functions that declare the outputs of estimators, by class."""


class Scope(Options, Protocol):
    """Scope in which skl2onnx declares the names of a graph."""

    operators: Mapping[str, Operator]

    def get_unique_operator_name(self, seed: str) -> str: ...

    def get_unique_variable_name(self, seed: str) -> str: ...

    def declare_local_variable(self, raw_name: str, type: object = ...) -> Variable: ...

    def declare_local_operator(self, type: str, raw_model: object = ...) -> Operator: ...


class Operator(Protocol):
    """An estimator in skl2onnx, between its variables."""

    type: str
    raw_operator: Any
    inputs: Any
    outputs: Any
    column_indices: Sequence[int]

    @property
    def scope_inst(self) -> Scope: ...

    def infer_types(self) -> None: ...


class Container(Options, Protocol):
    """Container in which skl2onnx collects nodes and initializers."""

    nodes: list[Any]
    initializers: list[Any]
    initializers_strings: dict[str, str]
    node_domain_version_pair_sets: set[tuple[str, int]]
    add_node: Any

    def check_white_black_list(self, node_type: str) -> None: ...

    def target_opset_any_domain(self, domain: str) -> int: ...

    def _get_allowed_options(self, model: object) -> dict[str, Any]: ...
