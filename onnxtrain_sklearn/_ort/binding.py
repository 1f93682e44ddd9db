"""Sessions tied to fixed arrays of the host or of a device.

onnxruntime borrows the memory of bound arrays and holds no reference: a binding keeps them alive, and its runs neither
copy nor allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from .device_graphs import not_run
from .devices import OWN_MEMORY
from .packages import onnxruntime
from .sessions import require_indices


class DeviceArray:
    """An array in the memory of a device, or a view of a part of one.

    Parameters
    ----------
    array : ndarray
        Initial values, which are copied.
    memory : tuple of str and int
        Name and index, as :attr:`Device.memory` returns them.

    Attributes
    ----------
    pointer : int
        Address on the device.
    """

    def __init__(self, array: np.ndarray, memory: tuple[str, int]) -> None:
        self.shape, self.dtype, self.memory = array.shape, array.dtype, memory
        self._flat = onnxruntime.OrtValue.ortvalue_from_shape_and_type([max(1, array.size)], array.dtype, *memory)
        self.pointer = int(self._flat.data_ptr())
        self.write(array)

    def part(self, start: int, shape: Sequence[int]) -> DeviceArray:
        """Return a view of the elements from index ``start`` on, with the given shape."""
        part = object.__new__(DeviceArray)
        part.shape, part.dtype, part.memory = tuple(shape), self.dtype, self.memory
        part._flat, part.pointer = self._flat, self.pointer + start * self.dtype.itemsize
        return part

    def write(self, array: np.ndarray) -> None:
        """Overwrite the whole array from the host."""
        if array.size:
            self._flat.update_inplace(np.ascontiguousarray(array, self.dtype).ravel())

    def read(self) -> np.ndarray:
        """Return a copy of the whole array on the host."""
        return np.array(self._flat.numpy())[: int(np.prod(self.shape))].reshape(self.shape)


Array: TypeAlias = "np.ndarray | DeviceArray"

HOST = ("cpu", 0)


class Binding:
    """A session tied to input and output arrays; :meth:`run` reads the inputs and writes the outputs.

    Arrays are bound once. But a session on a device copies host inputs, and inputs that it needs on the host, when they
    are bound, not when it runs: there every run binds these again.

    Kernels write through bound memory, also to inputs (BatchNormalization) and to read-only memory. For an array that
    is not contiguous, and for a read-only input, a copy is bound: each run copies the inputs before and the outputs
    after. A read-only output is an error.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> None:
        self._session, self._arrays = session, {**inputs, **outputs}
        self._inputs = {value.name for value in session.get_inputs()}
        self._copied = _inputs_on_the_host(session) if session.get_providers()[0] in OWN_MEMORY else None
        self._copies: dict[str, np.ndarray] = {}
        self._binding = session.io_binding()
        self._run = _runner(session, self._binding)
        self._binder, self._own = _own_binder(self._binding)
        for name in self._arrays:
            self._bind(name)

    def run(self, **changed: Array) -> None:
        """Run the session once, with other arrays for the inputs and outputs named; the GIL is released."""
        if changed or self._copied is not None:
            self._arrays.update(changed)
            for name in changed if self._copied is None else changed.keys() | self._copied_when_bound(self._copied):
                self._bind(name)
        try:
            if self._copies:
                self._run_on_copies()
            else:
                self._run()
        except Exception as error:  # each release has another class for it
            raise not_run(error) from error

    def require_indices(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise ModelError if an array for an input holds an index that its table on the device does not have."""
        require_indices(self._session, arrays)

    def _copied_when_bound(self, on_host: Set[str]) -> Set[str]:
        """Return the inputs that a session on a device copies when they are bound."""
        return on_host | {name for name in self._inputs if isinstance(self._arrays[name], np.ndarray)}

    def _run_on_copies(self) -> None:
        for name in self._copies.keys() & self._inputs:
            self._copies[name][...] = self._arrays[name]
        self._run()
        for name in self._copies.keys() - self._inputs:
            self._arrays[name][...] = self._copies[name]  # type: ignore[index]

    def _bind(self, name: str) -> None:
        array = self._arrays[name]
        bind = self._binder.bind_input if name in self._inputs else self._binder.bind_output
        if isinstance(array, DeviceArray):
            bind(name, *_memory_argument(array.memory, own=self._own), array.dtype, array.shape, array.pointer)
            return
        if not (array.flags.writeable or name in self._inputs):
            raise ValueError(f"{name!r} is read only: an output must be writable to be bound. Pass a copy of it.")
        self._copies.pop(name, None)
        if not array.flags.carray:
            array = self._copies[name] = np.array(array, order="C", subok=False)
        address, _ = array.__array_interface__["data"]  # array.ctypes makes several objects
        bind(name, *_memory_argument(HOST, own=self._own), array.dtype, array.shape, address)


def _inputs_on_the_host(session: onnxruntime.InferenceSession) -> Set[str]:
    """Return the inputs that a session on a device reads on the host; all, where onnxruntime does not tell."""
    names = [value.name for value in session.get_inputs()]
    infos = getattr(session, "get_input_memory_infos", None)
    places = ["Cpu"] * len(names) if infos is None else [info.name for info in infos()]
    return {name for name, place in zip(names, places, strict=True) if place.lower().startswith("cpu")}


def _own_binder(binding: object) -> tuple[Any, bool]:
    """Return what binds arrays without the checks that its class makes each time, and whether there is such a thing."""
    own = getattr(binding, "_iobinding", None)
    return (binding, False) if own is None else (own, True)


@cache
def _memory_argument(memory: tuple[str, int], *, own: bool) -> tuple[Any, ...]:
    """Return how a binder names a memory; its class describes it anew for each array."""
    return (onnxruntime.OrtDevice.make(*memory)._get_c_device(),) if own else memory


def _runner(session: onnxruntime.InferenceSession, binding: Any) -> Callable[[], object]:
    """Return what runs the session once; on a CPU without what its class looks up each time, for captured graphs."""
    own, bound = getattr(session, "_sess", None), getattr(binding, "_iobinding", None)
    if session.get_providers() != ["CPUExecutionProvider"] or own is None or bound is None:
        return partial(session.run_with_iobinding, binding)
    return partial(own.run_with_iobinding, bound, None)
