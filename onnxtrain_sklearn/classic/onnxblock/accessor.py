"""The model that blocks extend: one per ``with base(...)``, visible only to the thread that entered it.

The original keeps one model for the whole process. Here it is a context variable, so threads and tasks can build
concurrently, and several of them may share a block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import onnx
import onnx.helper

from ..._graph.files import read
from ..._runtime.gradient_builder import CUSTOM_OPERATORS, require_library
from ..._support.refusal import refusing
from ...exceptions import ModelError

IR_VERSION, OPSET = 10, 21
"""The newest IR version and opset that onnxruntime-training reads; its last version is 1.19."""


@dataclass
class ModelAccessor:
    """The model under construction.

    Attributes
    ----------
    model : onnx.ModelProto
        The model to which blocks add their nodes.
    path : str or None
        The file from which it was read.
    by_rows : bool
        Whether reductions keep the rows, because an estimator weights them.
    """

    model: onnx.ModelProto
    path: str | None = None
    by_rows: bool = False
    depth: int = 0
    _count: int = field(default=0, repr=False)

    @property
    def has_path(self) -> bool:
        """Whether the model was read from a file."""
        return self.path is not None

    def name(self, token: str) -> str:
        """Return an unused name."""
        graph = self.model.graph
        taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
        taken |= {value.name for value in (*graph.input, *graph.initializer)}
        while True:
            self._count += 1
            if (found := f"onnx::{token}::{self._count}") not in taken:
                return found


_CURRENT: ContextVar[ModelAccessor | None] = ContextVar("onnxblock model", default=None)


def current_accessor() -> ModelAccessor:
    """Return the accessor of the innermost ``with base(...)``."""
    accessor = _CURRENT.get()
    if accessor is None:
        raise RuntimeError(
            "There is no model to extend: call blocks within `with onnxblock.base(model)` or `empty_base()`."
        )
    return accessor


@contextmanager
def entered(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    """Let blocks called in this context extend the model of ``accessor``."""
    token = _CURRENT.set(accessor)
    try:
        yield accessor
    finally:
        _CURRENT.reset(token)


@contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """Let blocks called in this context extend a copy of ``model``.

    Parameters
    ----------
    model : onnx.ModelProto
    model_path : str or path, default=None
        The file of the model, if it has external data: the weights are read from its folder.

    Yields
    ------
    ModelAccessor
        Its ``model`` is the copy.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic import onnxblock
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, -2}> { Y = MatMul(X, W) }''')
    >>> with onnxblock.base(model) as accessor:
    ...     loss = onnxblock.loss.MSELoss()("Y")
    >>> [node.op_type for node in accessor.model.graph.node]
    ['MatMul', 'Sub', 'Pow', 'ReduceMean']
    """
    if not isinstance(model, onnx.ModelProto):
        raise ModelError(
            f"base needs an onnx.ModelProto to build on, got {type(model).__name__}; empty_base() starts from nothing."
        )
    path = None if model_path is None else os.fspath(model_path)
    copy = onnx.ModelProto()
    copy.CopyFrom(read(path) if path is not None and _has_external_data(model) else model)
    with entered(ModelAccessor(copy, path)) as accessor:
        yield accessor


def _has_external_data(model: onnx.ModelProto) -> bool:
    return any(tensor.external_data for tensor in model.graph.initializer)


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let blocks called in this context extend an empty model.

    Parameters
    ----------
    opset_version : int, default=None
        None: 21, the newest that onnxruntime-training reads.

    Yields
    ------
    ModelAccessor
        Its ``model`` is the result.
    """
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="onnxtrain_sklearn")
    model.graph.name = "graph"
    imports = {"com.microsoft": 1, "": OPSET if opset_version is None else opset_version}
    model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in imports.items())
    with entered(ModelAccessor(model)) as accessor:
        yield accessor


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[str]:
    """Make the operators of a library known to gradients that are built in this context.

    Parameters
    ----------
    custom_op_library_path : str or path
        A file that this onnxruntime loads.
    """
    path = os.fspath(custom_op_library_path)
    if not os.path.exists(path):
        raise RuntimeError(f"The library of custom operators {path!r} does not exist.")
    with refusing(f"The library of custom operators {path!r} cannot be loaded"):
        require_library(path)
    token = CUSTOM_OPERATORS.set(path)
    try:
        yield path
    finally:
        CUSTOM_OPERATORS.reset(token)
