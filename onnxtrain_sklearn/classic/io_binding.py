"""Bind inputs and outputs of training sessions to memory, with the methods of onnxruntime's IOBinding."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .._data.columns import require_in_memory
from .._ort import objects as runtime
from .._ort.devices import resolve_device
from .._utils.typing import DType
from ..exceptions import ModelError, nearest


class BoundArrays:
    """The arrays to which inputs and outputs are bound.

    Parameters
    ----------
    inputs, outputs : set of str
        The names that can be bound.

    Attributes
    ----------
    inputs : dict of str to ndarray
    outputs : dict of str to (ndarray or None)
        In the order of binding; None: each run makes a new array.
    results : list of ndarray
        The outputs of the last run.
    """

    def __init__(self, inputs: Collection[str], outputs: Collection[str]) -> None:
        self._valid = {"input": inputs, "output": outputs}
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: dict[str, np.ndarray | None] = {}
        self.results: list[np.ndarray] = []
        self._kept: list[Any] = []

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Bind an input; raise ModelError if the graph has none of this name."""
        self.inputs[self._checked(name, "input")] = array

    def bind_output(self, name: str, place: np.ndarray | None) -> None:
        """Bind an output; raise ModelError if the graph has none of this name."""
        self.outputs[self._checked(name, "output")] = place

    def _checked(self, name: str, kind: str) -> str:
        if name not in self._valid[kind]:
            raise ModelError(f"The graph has no {kind} {name!r}.{nearest(name, self._valid[kind])}")
        return name

    def view(self, ortvalue: object) -> np.ndarray:
        """Return the memory of an OrtValue as an array, and keep the value alive."""
        value = runtime.unwrapped_value(ortvalue)
        if value is None:
            raise TypeError(f"expected an OrtValue, got {type(ortvalue).__name__}.")
        self._kept.append(value)  # an array over its memory would not keep it
        _require_host(value.device_name())
        return _array_at("cpu", runtime.dtype_of(value.data_type()), value.shape(), value.data_ptr())

    def take(self, results: Sequence[np.ndarray]) -> None:
        """Store the outputs of a run, and write them to the memory to which they are bound."""
        for (name, place), array in zip(self.outputs.items(), results, strict=True):
            if place is not None:
                if place.shape != array.shape or place.dtype != array.dtype:
                    raise ModelError(
                        f"Output {name!r} is {array.dtype}{list(array.shape)}, but is bound to memory for "
                        f"{place.dtype}{list(place.shape)}."
                    )
                place[...] = array
        self.results = list(results)


class _Binding:
    """The methods that onnxruntime's two classes have in common."""

    def __init__(self, bound: BoundArrays) -> None:
        self.bound = bound

    def bind_ortvalue_input(self, name: str, ortvalue: object) -> None:
        """Bind an input to an OrtValue; each run reads it."""
        self.bound.bind_input(name, self.bound.view(ortvalue))

    def bind_ortvalue_output(self, name: str, ortvalue: object) -> None:
        """Bind an output to an OrtValue; each run writes to it."""
        self.bound.bind_output(name, self.bound.view(ortvalue))

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return the outputs of the last run."""
        return [array.copy() for array in self.bound.results]

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs in host memory need no synchronization."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs in host memory need no synchronization."""

    def clear_binding_inputs(self) -> None:
        """Remove all bindings of inputs."""
        self.bound.inputs = {}

    def clear_binding_outputs(self) -> None:
        """Remove all bindings of outputs."""
        self.bound.outputs, self.bound.results = {}, []


class SessionIOBinding(_Binding):
    """Inputs and outputs in host memory, with the methods of the class of this name in onnxruntime's C bindings.

    Parameters
    ----------
    session : object
        The attribute ``_sess`` of a :class:`~.TrainingSession`.
    """

    def __init__(self, session: Any) -> None:
        names = ({value.name for value in values} for values in (session.inputs_meta, session.outputs_meta))
        super().__init__(BoundArrays(*names))
        self._returned: runtime.OrtValueVector = None

    def bind_input(self, name: str, *place: Any) -> None:
        """Bind an input to an array, or to memory given as OrtDevice, element type, shape and address."""
        if len(place) == 1:
            require_in_memory(place[0], repr(name))
            self.bound.bind_input(name, np.asarray(place[0]))
            return
        device, element_type, shape, address = place
        self.bound.bind_input(name, _array_at(runtime.device_name(device), element_type, shape, address))

    def bind_output(
        self,
        name: str,
        device: runtime.OrtDevice,
        element_type: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        address: int | None = None,
    ) -> None:
        """Bind an output to new memory, or to memory at an address."""
        self.bound.bind_output(name, _output_at(runtime.device_name(device), element_type, shape, address))

    def get_outputs(self) -> runtime.OrtValueVector:
        """Return the outputs of the last run; their memory is kept until the next call."""
        device = runtime.ort_device(resolve_device())
        self._returned = runtime.vector(runtime.value_of(array, device) for array in self.bound.results)
        return self._returned


class IOBinding(_Binding):
    """The result of :meth:`~.TrainingSession.io_binding`: inputs and outputs in host memory.

    Parameters
    ----------
    session : TrainingSession
    """

    def __init__(self, session: Any) -> None:
        self._iobinding = SessionIOBinding(session._sess)
        super().__init__(self._iobinding.bound)

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an input to an array; each run reads it."""
        require_in_memory(arr_on_cpu, repr(name))
        self.bound.bind_input(name, np.asarray(arr_on_cpu))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to host memory at an address."""
        self.bound.bind_input(name, _array_at(device_type, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to new memory, or to host memory at an address."""
        self.bound.bind_output(name, _output_at(device_type, element_type, shape, buffer_ptr))

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run as ``onnxruntime.OrtValue``."""
        return [runtime.on_host(array) for array in self.bound.results]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """Return the outputs of the last run as an OrtValueVector."""
        return self._iobinding.get_outputs()


def _output_at(
    device_type: str, element_type: DTypeLike | None, shape: Sequence[int] | None, address: int | None
) -> np.ndarray | None:
    """Return the array at an address; None without an address: a run then makes the array."""
    _require_host(device_type)
    if address is None:
        return None
    if element_type is None or shape is None:
        raise TypeError("An output at an address (buffer_ptr) needs element_type and shape.")
    return _array_at(device_type, element_type, shape, address)


def _require_host(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise ValueError(f"Training sessions bind only host memory ('cpu'), got {device_type!r}.")


def _array_at(device_type: str, element_type: DTypeLike | None, shape: Sequence[int], address: int) -> np.ndarray:
    """Return the array at an address in host memory."""
    _require_host(device_type)
    dtype: DType = np.dtype(element_type)
    # The array does not own the memory: as with onnxruntime's own binding, the caller keeps it alive.
    size = int(np.prod(shape)) * dtype.itemsize
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(tuple(shape))
