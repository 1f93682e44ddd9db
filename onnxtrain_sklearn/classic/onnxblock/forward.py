"""Blocks that build a complete model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from ...exceptions import nearest
from . import blocks


class ForwardBlock(blocks.Block):
    """Base class of blocks that build a model to run: the names that ``build`` returns become its outputs.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic import onnxblock
    >>> class Squared(onnxblock.ForwardBlock):
    ...     def build(self, name):
    ...         return onnxblock.blocks.Pow(2.0)(name)
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, -2}> { Y = MatMul(X, W) }''')
    >>> block = Squared()
    >>> with onnxblock.base(model):
    ...     name = block("Y")
    >>> [output.name for output in block.to_model_proto().graph.output] == [name]
    True
    """

    _model: onnx.ModelProto | None = None

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model; raise RuntimeError if the block has not been called."""
        if self._model is None:
            raise RuntimeError("The model has not been built: call the block within `with onnxblock.base(model)`.")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block to the model; the names that ``build`` returns become the outputs."""
        output = self.build(*args, **kwargs)
        self._model = self.infer_shapes_on_base()
        set_outputs(self._model, output)
        self.base.CopyFrom(self._model)
        return output


def set_outputs(model: onnx.ModelProto, names: str | Sequence[str]) -> list[str]:
    """Make the values of these names the outputs of the model, in place; raise UnknownValueError for another name."""
    chosen = [names] if isinstance(names, str) else list(names)
    graph = model.graph
    known = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    outputs = []
    for name in chosen:
        if name not in known:
            raise blocks.UnknownValueError(
                f"The graph has no value {name!r}, or its type is not known.{nearest(str(name), known)}"
            )
        outputs.append(onnx.ValueInfoProto())
        outputs[-1].CopyFrom(known[name])
    del graph.output[:]
    graph.output.extend(outputs)
    return chosen
