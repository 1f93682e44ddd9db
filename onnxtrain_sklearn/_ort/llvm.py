"""Functions compiled from LLVM's assembly language by llvmlite, which is optional.

:class:`MachineCode` compiles one. ``_compiler`` and the compiled updates write the text, which is the same on every
machine; LLVM translates it for the processor that it runs on, in about ten milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from threading import local
from typing import Any

COMPILER = "llvmlite"


@cache
def is_installed() -> bool:
    """Return True if the compiler is installed."""
    return find_spec(COMPILER) is not None


def is_loaded() -> bool:
    """Return True if the process has loaded the compiler."""
    return f"{COMPILER}.binding" in sys.modules


class MachineCode:
    """The function ``run`` of a text in LLVM's assembly language, which has one argument, a pointer.

    Raises
    ------
    RuntimeError
        If LLVM does not accept the text.
    """

    def __init__(self, text: str) -> None:
        llvm = _llvm()
        module = llvm.parse_assembly(text)
        module.verify()
        processor = {"cpu": llvm.get_host_cpu_name(), "features": llvm.get_host_cpu_features().flatten()}
        machine = llvm.Target.from_default_triple().create_target_machine(opt=3, **processor)
        self._engine = llvm.create_mcjit_compiler(module, machine)  # owns the memory of the code
        self._engine.finalize_object()
        address = self._engine.get_function_address("run")
        self._call: Callable[[ctypes.c_void_p], object] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def __call__(self, pointer: ctypes.c_void_p) -> object:
        """Call the function; other threads of Python run meanwhile."""
        return self._call(pointer)


@cache
def features() -> str:
    """Return the features of the processor in LLVM's notation, such as ``"+avx2,-avx512f"``."""
    return str(_llvm().get_host_cpu_features().flatten())


@cache
def _llvm() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


_lock_at_fork = local()


def _take_lock() -> None:
    """Wait until no other thread compiles: in a forked child, a lock that another thread held is never released."""
    library = getattr(sys.modules.get(f"{COMPILER}.binding.ffi"), "lib", None)
    _lock_at_fork.lock = getattr(library, "_lock", nullcontext())
    _lock_at_fork.lock.__enter__()


def _release_lock() -> None:
    _lock_at_fork.lock.__exit__(None, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_lock, after_in_parent=_release_lock, after_in_child=_release_lock)
