"""Sessions tied to fixed arrays of the host or of a device.

A :class:`Binding` runs a session on the same arrays again and again, as training does: its runs neither copy nor
allocate, but for the cases that it names. onnxruntime borrows the memory of bound arrays and holds no reference, so
the binding keeps them alive.
:class:`DeviceArray` is an array in the memory of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from .devices import OWN_MEMORY
from .packages import onnxruntime
from .sessions import not_run, require_indices


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
        part.shape = tuple(shape)
        part.dtype = self.dtype
        part.memory = self.memory
        part._flat = self._flat
        part.pointer = self.pointer + start * self.dtype.itemsize
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

    Kernels write through bound memory, also to inputs (BatchNormalization writes its running statistics) and to memory
    that is mapped read-only, which ends the process. So a copy is bound for an array that is not contiguous, and for a
    read-only input: each run copies the inputs before and the outputs after. A read-only output is an error.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> None:
        self._session = session
        self._arrays = {**inputs, **outputs}
        self._inputs = {value.name for value in session.get_inputs()}
        self._on_host: set[str] | None = None  # the inputs that a session on a device reads on the host
        if session.get_providers()[0] in OWN_MEMORY:
            infos = getattr(session, "get_input_memory_infos", None)  # all inputs, if onnxruntime does not tell
            places = ["Cpu"] * len(self._inputs) if infos is None else [info.name for info in infos()]
            names = [value.name for value in session.get_inputs()]
            self._on_host = {n for n, place in zip(names, places, strict=True) if place.lower().startswith("cpu")}
        self._copies: dict[str, np.ndarray] = {}
        self._binding = session.io_binding()
        # Bind and run through the C objects inside, without the checks that their classes make each time. Sessions on
        # devices run through the class, which looks up the options of captured graphs.
        inside = getattr(self._binding, "_iobinding", None)
        self._binder, self._own = (self._binding, False) if inside is None else (inside, True)
        own = getattr(session, "_sess", None)
        self._run: Callable[[], object] = partial(session.run_with_iobinding, self._binding)
        if session.get_providers() == ["CPUExecutionProvider"] and own is not None and inside is not None:
            self._run = partial(own.run_with_iobinding, inside, None)
        for name in self._arrays:
            self._bind(name)

    def run(self, **changed: Array) -> None:
        """Run the session once, with other arrays for the inputs and outputs named; the GIL is released."""
        if changed or self._on_host is not None:
            self._arrays.update(changed)
            again: Set[str] = changed.keys()
            if self._on_host is not None:
                hosts = {name for name in self._inputs if isinstance(self._arrays[name], np.ndarray)}
                again = again | self._on_host | hosts
            for name in again:
                self._bind(name)
        try:
            if self._copies:
                for name in self._copies.keys() & self._inputs:
                    self._copies[name][...] = self._arrays[name]
                self._run()
                for name in self._copies.keys() - self._inputs:
                    self._arrays[name][...] = self._copies[name]  # type: ignore[index]
            else:
                self._run()
        except Exception as error:  # each release has another class for it
            raise not_run(error) from error

    def require_indices(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise ModelError if an array for an input holds an index that its table on the device does not have."""
        require_indices(self._session, arrays)

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


@cache
def _memory_argument(memory: tuple[str, int], *, own: bool) -> tuple[Any, ...]:
    """Return the arguments that name a memory to a binder; the C object takes a device, its class a name and index."""
    return (onnxruntime.OrtDevice.make(*memory)._get_c_device(),) if own else memory
