"""Forward and backward passes under the caller's control, in one session or in two.

The class holds the sessions and the names; an instance holds the forward passes that await their backward pass.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from .._ir.protobuf import to_proto
from .._ort import objects as runtime
from .._ort.devices import Device
from .._utils.errors import refusing
from .grad_helper import split

Tensors: TypeAlias = "Sequence[np.ndarray | runtime.OrtValue]"


@dataclass(frozen=True)
class GraphInfo:
    """Names and positions in the gradient graph, as onnxruntime-training's graph builder reports them."""

    user_input_names: list[str]
    user_output_names: list[str]
    initializer_names: list[str]
    initializer_names_to_train: list[str]
    user_input_grad_names: dict[str, str]
    initializer_grad_names_to_train: list[str]
    module_output_gradient_name: list[str]
    output_grad_indices_non_differentiable: list[int]


@dataclass
class Pending:
    """A forward pass whose backward pass has not run yet."""

    state: Any
    shapes: list[list[int]]
    saved: list[runtime.OrtValue]


class OrtGradientForwardBackwardFunction:
    """Base of the classes that :class:`OrtGradientForwardBackward` creates; they run forward and backward passes.

    Each forward pass with ``training=True`` awaits its backward pass. :meth:`backward` runs that of the last one, or of
    the one that ``pending`` selects; passes of several instances are independent.
    """

    _run_options: ClassVar[Any]
    _sess: ClassVar[Any]
    _sess_eval: ClassVar[Any]
    _training_agent: ClassVar[Any]
    _cache: ClassVar[Any]
    _logger: ClassVar[logging.Logger | None]
    _debug: ClassVar[bool]
    _input_names: ClassVar[list[str]]
    _output_names: ClassVar[list[str]]
    _grad_input_names: ClassVar[list[str]]
    _weights_to_train: ClassVar[list[str]]
    _bw_fetches_names: ClassVar[list[str]]
    _fw_outputs_device_info: ClassVar[list[runtime.OrtDevice]]
    _bw_outputs_device_info: ClassVar[list[runtime.OrtDevice]]
    _fw_no_grad_output_device_info: ClassVar[list[runtime.OrtDevice]]
    _graph_info: ClassVar[GraphInfo]
    _trained_onnx: ClassVar[onnx.ModelProto]
    _onx_inp: ClassVar[list[str]]
    _onx_out: ClassVar[list[str]]
    _optimized_pre_grad_model: ClassVar[onnx.ModelProto]
    _graph_builder: ClassVar[Any]
    _device: ClassVar[Device]
    _types: ClassVar[dict[str, np.dtype[np.generic]]]
    _new_state: ClassVar[Callable[[], Any]]

    def __init__(self) -> None:
        self.saved_tensors_: list[runtime.OrtValue] | None = None
        self._pending: list[Pending] = []

    @staticmethod
    def device_name(device: runtime.OrtDevice) -> str:
        """Return the name of an OrtDevice: "cpu", "cuda", ..."""
        return runtime.device_name(device)

    @staticmethod
    def input_to_ort(
        tensors: Tensors | runtime.OrtValueVector, devices: Sequence[runtime.OrtDevice], debug: bool
    ) -> runtime.OrtValueVector:
        """Return the tensors as an OrtValueVector.

        Parameters
        ----------
        tensors : list of ndarray, OrtValue, or OrtValueVector
            Arrays are copied to their device; values are used without a copy.
        devices : list of OrtDevice
            Device of each tensor.
        debug : bool
            Whether to check that every value holds a tensor.

        Returns
        -------
        OrtValueVector
        """
        if len(tensors) != len(devices):
            raise ValueError(f"expected {len(devices)} tensors, one for each device, got {len(tensors)}.")
        values = [_value(tensor, device) for tensor, device in zip(tensors, devices, strict=True)]
        if debug:
            for i, value in enumerate(values):
                if not value.is_tensor():
                    raise TypeError(f"tensor {i} is a {value.data_type()}; only dense tensors have gradients.")
        return tensors if runtime.is_vector(tensors) else runtime.vector(values)

    @property
    def saved_tensors(self) -> list[runtime.OrtValue]:
        """The tensors of the last :meth:`save_for_backward`: the inputs of the last forward pass for training."""
        if self.saved_tensors_ is None:
            raise RuntimeError("No tensors were saved: run forward(inputs, training=True) first.")
        return self.saved_tensors_

    def save_for_backward(self, inputs: Sequence[runtime.OrtValue]) -> None:
        """Save a shallow copy of the list of inputs; :meth:`forward` calls this in training mode."""
        self.saved_tensors_ = list(inputs)

    def forward(
        self,
        inputs: Tensors | runtime.OrtValueVector,
        training: bool = False,
        forward_outputs_cache: runtime.OrtValueVector | None = None,
    ) -> runtime.OrtValueVector:
        """Run the graph.

        Parameters
        ----------
        inputs : list of ndarray or OrtValue, or OrtValueVector
            The inputs of the graph in the order of ``_input_names``, then the weights in that of ``_weights_to_train``.
            The memory of values is used until the backward pass; arrays are copied.
        training : bool, default=False
            Whether a backward pass will follow.
        forward_outputs_cache : OrtValueVector, default=None
            Vector for the outputs: empty, or the outputs of an earlier pass, whose memory is overwritten.

        Returns
        -------
        OrtValueVector
            The outputs, in the order of ``_output_names``.
        """
        cls = type(self)
        feeds = self._checked_feeds(inputs)
        outputs = _fetches(forward_outputs_cache, len(cls._output_names), "forward_outputs_cache")
        if training:
            state = cls._new_state()
            with refusing("The forward pass failed"):
                cls._training_agent.run_forward(feeds, outputs, state, cls._cache)
            self.save_for_backward(feeds)
            self._pending.append(Pending(state, [list(v.shape()) for v in outputs], self.saved_tensors))
        else:
            given = dict(zip(cls._grad_input_names, feeds, strict=True))
            known = {v.name for v in cls._sess_eval.get_inputs()}
            given = {name: value for name, value in given.items() if name in known}
            options, memory = cls._run_options, cls._device.memory
            found = runtime.run(cls._sess_eval, given, cls._output_names, list(outputs), options, memory=memory)
            runtime.fill(outputs, found)
        self._log("forward", outputs)
        return outputs

    def backward(
        self,
        grad_outputs: Tensors | runtime.OrtValueVector | np.ndarray | runtime.OrtValue,
        backward_outputs_cache: runtime.OrtValueVector | None = None,
        *,
        pending: int = -1,
    ) -> runtime.OrtValueVector:
        """Run the backward pass of a forward pass for training.

        Parameters
        ----------
        grad_outputs : list of ndarray or OrtValue, OrtValueVector, or the only one of them
            The gradient of each float output, in the order of ``_output_names``. If its shape differs from that of the
            output, but not the number of elements, it is reshaped.
        backward_outputs_cache : OrtValueVector, default=None
            Vector for the gradients: empty, or the gradients of an earlier pass, whose memory is overwritten.
        pending : int, default=-1
            Position among the forward passes that await their backward pass; -1: the last.

        Returns
        -------
        OrtValueVector
            The gradients of the float inputs, then of the weights: ``_bw_fetches_names``.
        """
        cls = type(self)
        if not -len(self._pending) <= pending < len(self._pending):
            raise RuntimeError(
                f"{len(self._pending)} forward passes wait for their backward pass, so number {pending} does not "
                f"exist. Run forward(inputs, training=True) first; each has one backward pass."
            )
        waiting = self._pending[pending]
        grads = self._checked_gradients(grad_outputs, waiting.shapes)
        results = _fetches(backward_outputs_cache, len(cls._bw_fetches_names), "backward_outputs_cache")
        self.saved_tensors_ = waiting.saved
        del self._pending[pending]
        with refusing("The backward pass failed"):
            cls._training_agent.run_backward(grads, results, waiting.state)
        self._log("backward", results)
        return results

    @classmethod
    def save_onnx_graph(
        cls, folder: str | os.PathLike[str] | type[bytes], prefix: str | None = None, suffix: str | None = None
    ) -> dict[str, Any]:
        """Save the graph with gradients and the graph with the weights as inputs.

        Parameters
        ----------
        folder : str, path, or the type ``bytes``
            An existing folder; ``bytes`` returns the graphs instead.
        prefix, suffix : str, default=None
            Prefix and suffix of the file names.

        Returns
        -------
        dict of str to str or bytes
            Path or content of the graphs ``_trained_onnx`` and ``_optimized_pre_grad_model``, by name.
        """
        graphs = {name: getattr(cls, name) for name in ("_trained_onnx", "_optimized_pre_grad_model")}
        contents = {name: graph.SerializeToString() for name, graph in graphs.items()}
        if folder is bytes:
            return contents
        if isinstance(folder, type) or not os.path.isdir(folder):
            raise FileNotFoundError(f"Folder {folder!r} does not exist. Give an existing one, or bytes.")
        paths = {n: os.path.join(folder, f"{prefix or ''}{cls.__name__}{n}{suffix or ''}.onnx") for n in contents}
        for name, path in paths.items():
            with open(path, "wb") as file:
                file.write(contents[name])
        return paths

    def _checked_feeds(self, inputs: Tensors | runtime.OrtValueVector) -> runtime.OrtValueVector:
        cls = type(self)
        names = cls._grad_input_names
        if len(inputs) != len(names):
            raise ValueError(f"forward expects {len(names)} tensors ({', '.join(names)}), got {len(inputs)}.")
        given = [_of_type(x, cls._types[name], name) for name, x in zip(names, inputs, strict=True)]
        device = runtime.ort_device(cls._device)
        return self.input_to_ort(inputs if runtime.is_vector(inputs) else given, [device] * len(given), cls._debug)

    def _checked_gradients(self, grads: Any, shapes: Sequence[Sequence[int]]) -> runtime.OrtValueVector:
        cls = type(self)
        single = isinstance(grads, np.ndarray) or runtime.unwrapped_value(grads) is not None
        given = [grads] if single else list(grads)
        exact = cls._graph_info.output_grad_indices_non_differentiable
        wanted = [(n, s) for i, (n, s) in enumerate(zip(cls._output_names, shapes, strict=True)) if i not in exact]
        if len(given) != len(wanted):
            names = ", ".join(name for name, _ in wanted)
            raise ValueError(f"backward expects {len(wanted)} gradients, of {names}; got {len(given)}.")
        device = runtime.ort_device(cls._device)
        fitted = [
            _of_shape(_of_type(grad, cls._types[name], name), shape, name, device)
            for grad, (name, shape) in zip(given, wanted, strict=True)
        ]
        return self.input_to_ort(fitted, [device] * len(fitted), cls._debug)

    def _log(self, step: str, values: runtime.OrtValueVector) -> None:
        """Log a pass and check that its values are finite, if the class was created with these options."""
        cls = type(self)
        names = cls._output_names if step == "forward" else cls._bw_fetches_names
        if cls._logger is not None:
            cls._logger.info(
                "[%s] %s: %s", cls.__name__, step, {n: v.shape() for n, v in zip(names, values, strict=True)}
            )
        if cls._debug:
            for name, value in zip(names, values, strict=True):
                array = runtime.copied_array(value)
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise FloatingPointError(f"{name!r} holds NaN or infinite numbers after the {step} pass.")


def _value(tensor: Any, device: runtime.OrtDevice) -> runtime.OrtValue:
    value = runtime.unwrapped_value(tensor)
    if value is not None:
        return value
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"expected an array or an OrtValue, got {type(tensor).__name__}.")
    return runtime.value_of(tensor, device)


def _of_type(tensor: Any, dtype: np.dtype[np.generic], name: str) -> Any:
    """Return the tensor, float arrays cast to the float type of the graph; raise for other types."""
    value = runtime.unwrapped_value(tensor)
    found = runtime.dtype_of(value.data_type()) if value is not None else np.asarray(tensor).dtype
    if found == dtype:
        return tensor
    if value is None and dtype.kind == found.kind == "f":
        return np.asarray(tensor).astype(dtype)
    raise TypeError(f"{name!r} expects {dtype}, got {found}. Convert it first.")


def _of_shape(tensor: Any, shape: Sequence[int], name: str, device: runtime.OrtDevice) -> Any:
    """Return the gradient of an output, reshaped to that output."""
    value = runtime.unwrapped_value(tensor)
    found = list(np.shape(tensor) if value is None else value.shape())
    if found == list(shape):
        return tensor
    if int(np.prod(found)) != int(np.prod(shape)):
        raise ValueError(f"The gradient of {name!r} has shape {found}, which does not fit its shape {list(shape)}.")
    array = np.asarray(tensor) if value is None else runtime.copied_array(value)
    return runtime.value_of(array.reshape(shape), device)


def _fetches(cache: Any, count: int, role: str) -> runtime.OrtValueVector:
    """Return the vector for the results."""
    if cache is None:
        return runtime.vector()
    if not runtime.is_vector(cache):
        raise TypeError(f"{role} must be an OrtValueVector, got {type(cache).__name__}.")
    if len(cache) not in (0, count):
        raise ValueError(f"{role} must be empty or hold {count} values, got {len(cache)}.")
    return cache


# Training agent for an onnxruntime without one: a session for the forward pass and one for the backward pass.
#
# The forward session returns the outputs and the activations that the backward pass reads; a state object keeps these
# and the inputs. So passes are independent of each other, and their backward passes may run in any order.


@dataclass
class PassState:
    """Values by name that a backward pass reads; filled by the forward pass, cleared by the backward pass."""

    values: dict[str, runtime.OrtValue] = field(default_factory=dict)


class TwoSessions:
    """Run the graph of :func:`~.grad_helper.vjp_graph` as onnxruntime-training's agent does.

    Parameters
    ----------
    model : onnx_ir.Model
    inputs, outputs, gradients : list of str
        The order in which values are given and returned.
    device : Device
    options : onnxruntime.SessionOptions or None
    run_options : onnxruntime.RunOptions or None
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: Sequence[str],
        outputs: Sequence[str],
        gradients: Sequence[str],
        device: Device,
        options: object,
        run_options: object,
    ) -> None:
        forward, backward, activations = split(model, outputs)
        self._inputs, self._gradients, self._count = list(inputs), list(gradients), len(outputs)
        self._seeds = [f"{name}_grad" for name in outputs if f"{name}_grad" in {v.name for v in model.graph.inputs}]
        self._forward_outputs = list(dict.fromkeys([*outputs, *activations]))
        self._read = {v.name for v in forward.graph.inputs}, {v.name for v in backward.graph.inputs}
        self._memory, self._run_options = device.memory, run_options
        self._forward, self._backward = (
            runtime.session(to_proto(part).SerializeToString(), device, options) for part in (forward, backward)
        )

    def run_forward(
        self, feeds: runtime.OrtValueVector, fetches: runtime.OrtValueVector, state: PassState, cache: object = None
    ) -> None:
        """Store the outputs in ``fetches`` and the values that the backward pass needs in ``state``."""
        given = dict(zip(self._inputs, feeds, strict=True))
        found = self._run(self._forward, self._read[0], given, self._forward_outputs, fetches)
        runtime.fill(fetches, found[: self._count])
        state.values = {**given, **dict(zip(self._forward_outputs, found, strict=True))}

    def run_backward(self, grads: runtime.OrtValueVector, fetches: runtime.OrtValueVector, state: PassState) -> None:
        """Store the gradients in ``fetches`` and clear the state."""
        given = {**state.values, **dict(zip(self._seeds, grads, strict=True))}
        runtime.fill(fetches, self._run(self._backward, self._read[1], given, self._gradients, fetches))
        state.values = {}

    def _run(
        self,
        session: Any,
        read: Collection[str | None],
        given: Mapping[str, runtime.OrtValue],
        outputs: Sequence[str],
        held: runtime.OrtValueVector,
    ) -> list[runtime.OrtValue]:
        feeds = {name: value for name, value in given.items() if name in read}
        return runtime.run(session, feeds, outputs, list(held), self._run_options, memory=self._memory)
