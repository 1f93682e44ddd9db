"""Run an update graph with NumPy, or as a loop that llvmlite compiles, to the same bits.

An update graph of elementwise operators over vectors reads and writes memory more than it computes. NumPy writes each
result into memory that is in the cache already, where onnxruntime allocates a temporary for each node: AdamW takes
three quarters of the time of onnxruntime. For short vectors the larger gain is that no session runs. The graph stays
the one definition of the update; it is interpreted here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from .._compiler.views import LANES
from .._ir.queries import constant
from .._ort.binding import Binding
from .._ort.llvm import MachineCode, is_installed, is_loaded
from .._utils.cache import Cache
from ..optimizers import UpdateGraph


@dataclass(frozen=True)
class UpdateTuning:
    """Constants for the choice of an update's executor, measured by ``python benchmarks/update_choice.py``.

    Microseconds of AdamW's update on two cores of a busy machine, with NumPy 2.5 and onnxruntime 1.32, minima of five
    runs:

    ========== ===== ============ ================= ==================
    parameters NumPy machine code session, 1 thread session, 2 threads
    ========== ===== ============ ================= ==================
    1,000          7            1                 8                  8
    30,000        47           10                66                 65
    235,000      403           86               525                533
    1,000,000  2,016          517             2,684              2,168
    ========== ===== ============ ================= ==================

    Machine code is the fastest at every size, and NumPy next to it. A second thread of a session changes nothing up to
    235,000 parameters. With 1,000,000 its runs took from 2,168 to 5,836 where one thread took 2,684 to 3,090: it may
    gain a fifth with a free core, and loses as easily without one.

    Attributes
    ----------
    least_elements : int
        Longer vectors are updated by NumPy, others by a session. It is 0 with NumPy 2, which is always faster; a call
        of NumPy 1.26 takes twice as long.
    block : int
        Elements of a block of NumPy, whose vectors and temporaries are still in the cache when they are read again.
    piece : int
        Elements of a piece: a session updates a vector longer than two pieces piece by piece. Temporaries then fit the
        cache: AdamW over 10M parameters takes 31 ms instead of 61 (64k to 256k are equal within noise).
    loading, compiling : float
        Seconds that it takes to load the compiler, and to compile a loop.
    call, element : float
        Seconds that NumPy takes for one operator: for its call, and for each element.
    """

    least_elements: int = 0 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32768
    block: int = 65536
    piece: int = 131072
    loading: float = 0.1
    compiling: float = 0.01
    call: float = 4e-7
    element: float = 1e-10


TUNING = UpdateTuning()

UFUNCS: Mapping[str, Any] = {
    "Abs": np.absolute,
    "Add": np.add,
    "Div": np.divide,
    "Identity": np.positive,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}
"""For each operator whose floats NumPy and onnxruntime compute to the same bits, the NumPy function."""


@dataclass(frozen=True)
class Formula:
    """An update as a list of operators.

    Attributes
    ----------
    nodes : sequence of tuple
        Operator type, names of the operands, name of the result.
    constants : mapping of str to ndarray
    registers : mapping of str to (int or None)
        For each computed value, by name, the number of the temporary vector that holds it; None for a scalar.
    """

    nodes: Sequence[tuple[str, tuple[str, ...], str]]
    constants: Mapping[str, Any]
    registers: Mapping[str, int | None]


def formula_of(update: UpdateGraph) -> Formula | None:
    """Return the formula of an update; None if NumPy cannot run it."""
    graph = update.model.graph
    values = [value for node in graph for value in (*node.inputs, *node.outputs) if value is not None]
    floats = all(value.dtype in (None, ir.DataType.FLOAT, ir.DataType.DOUBLE) for value in values)
    if not (update.elementwise and floats and all(node.op_type in UFUNCS and not node.domain for node in graph)):
        return None
    nodes = [
        (node.op_type, tuple(x.name or "" for x in node.inputs if x), node.outputs[0].name or "") for node in graph
    ]
    constants = {name: constant(value) for name, value in graph.initializers.items()}
    outputs = {value.name or "" for value in graph.outputs}

    # Assign the temporaries. A temporary is free again after the last node that reads it; that node may overwrite it.
    last = {name: i for i, (_, operands, _) in enumerate(nodes) for name in operands}
    registers: dict[str, int | None] = {}
    vectors = {"parameters", "gradients", *update.slots}
    free = list[int]()
    count = 0
    for i, (_, operands, result) in enumerate(nodes):
        released = {registers.get(name) for name in operands if last[name] == i}
        free += sorted(k for k in released if k is not None)
        if not vectors.intersection(operands):
            registers[result] = None
            continue
        vectors.add(result)
        if result not in outputs:
            if not free:
                free, count = [count], count + 1
            registers[result] = free.pop()
    return Formula(nodes, constants, registers)


class NumpyUpdate:
    """An in-place update of ``vectors``, the parameters and the slots, by calls of NumPy functions.

    The vectors are updated block by block, so that the numbers of a block and the temporaries stay in the cache.

    The caller silences NumPy's floating-point warnings once for an epoch: here it would cost more than the update of a
    short vector. The epoch loop finds numbers that are not finite.

    Attributes
    ----------
    calls : list of callable
    block : int
        Elements that each call computes at most.
    """

    def __init__(
        self,
        formula: Formula,
        vectors: Mapping[str, np.ndarray],
        gradients: np.ndarray,
        scalars: Mapping[str, np.ndarray],
    ) -> None:
        self.calls = list[Callable[[], object]]()
        self.block = min(TUNING.block, len(gradients))
        registers, dtype, size = formula.registers, gradients.dtype, TUNING.block
        temporaries = [np.empty(self.block, dtype) for _ in range(len(set(registers.values()) - {None}))]
        numbers = {name: np.zeros((), dtype) for name, place in registers.items() if place is None}
        for start in range(0, len(gradients), size):
            part = {name: vector[start : start + size] for name, vector in {**vectors, "gradients": gradients}.items()}
            local = {n: temporaries[k][: len(part["gradients"])] for n, k in registers.items() if k is not None}
            results = {f"new_{name}": part[name] for name in vectors}
            arrays: dict[str, Any] = {**formula.constants, **scalars, **numbers, **part, **local, **results}
            for op_type, operands, result in formula.nodes:
                if not start or result not in numbers:  # the first block computes the scalars for all
                    # Passing the result array by position takes two thirds of the time of the keyword ``out``.
                    self.calls.append(partial(UFUNCS[op_type], *(arrays[name] for name in (*operands, result))))

    def run(self) -> None:
        """Update all blocks."""
        for call in self.calls:
            call()


# Updates of vectors by compiled loops, where llvmlite is installed.
#
# A loop takes a fifth of NumPy's time, with the same bits. Loading the compiler takes a tenth of a second, so a process
# loads it only when compiled loops would have saved as much time already.


ELEMENT_TYPES = {"f": "float", "d": "double"}

_loops: Cache[MachineCode] = Cache(64, 2**20, lambda _: 2**12)


class Savings:
    """The time that compiling would have saved so far in the updates of this process."""

    def __init__(self) -> None:
        self._seconds, self.suffice = 0.0, False

    def add(self, seconds: float) -> None:
        """Add ``seconds``; compiling is worthwhile once the sum exceeds the time that compiling takes."""
        self._seconds += seconds
        self.suffice |= self._seconds >= (TUNING.compiling if is_loaded() else TUNING.loading)

    def forget(self) -> None:
        """Give up compiling in this process."""
        self._seconds, self.suffice = -math.inf, False


SAVINGS = Savings()


def saved_by_compiling(update: object) -> float:
    """Return the estimated seconds that a compiled loop would save in each step."""
    if not (isinstance(update, NumpyUpdate) and is_installed()):
        return 0.0
    return len(update.calls) * (TUNING.call + update.block * TUNING.element)


class _Argument(ctypes.c_void_p):
    """The argument of a compiled loop: a pointer that keeps the arrays alive to which it refers."""

    def __init__(self, arrays: Sequence[np.ndarray], count: int) -> None:
        self._kept = np.array([count, *(array.ctypes.data for array in arrays)], np.int64), arrays
        super().__init__(self._kept[0].ctypes.data)


class CompiledUpdate:
    """An in-place update of ``vectors``, the parameters and the slots, by a compiled loop.

    Attributes
    ----------
    run : callable
        Calls the loop; it keeps all arrays that the loop reads and writes.
    """

    def __init__(
        self,
        formula: Formula,
        vectors: Mapping[str, np.ndarray],
        gradients: np.ndarray,
        scalars: Mapping[str, np.ndarray],
    ) -> None:
        dtype = gradients.dtype
        read = {name for _, operands, _ in formula.nodes for name in operands}
        long = {**vectors, "gradients": gradients}
        short = {name: array for name, array in {**formula.constants, **scalars}.items() if name in read}
        kind = ELEMENT_TYPES[dtype.char]
        key = tuple(formula.nodes), tuple(long), tuple(short), kind
        code = _loops.get(key, lambda: MachineCode(loop_code(formula, list(long), list(short), kind)))
        arrays = *long.values(), *short.values()
        assert all(array.dtype == dtype and array.flags.c_contiguous for array in arrays)
        self.run: Callable[[], object] = partial(code, _Argument(arrays, len(gradients)))


VectorUpdate: TypeAlias = Binding | CompiledUpdate | NumpyUpdate


def formula_update(
    formula: Formula, vectors: Mapping[str, np.ndarray], gradients: np.ndarray, scalars: Mapping[str, np.ndarray]
) -> CompiledUpdate | NumpyUpdate:
    """Return the in-place update of ``vectors``, parameters and slots: compiled if that pays off, else by NumPy."""
    if SAVINGS.suffice and is_installed():
        try:
            return CompiledUpdate(formula, vectors, gradients, scalars)
        except (ImportError, OSError, RuntimeError):  # a broken or old llvmlite, an unknown processor, no rights
            SAVINGS.forget()
    return NumpyUpdate(formula, vectors, gradients, scalars)


# The formula of an update as one loop over the elements, in LLVM's assembly language.
#
# Each element of each vector is read once and written once; intermediate results are in registers. Every operation is
# rounded separately, as in NumPy, because no instruction allows LLVM to contract or reorder: the bits are the same.
#
# The function has one argument, a pointer to an array of integers: the number of elements, the addresses of the
# vectors, then the addresses of the scalars. The language is documented at https://llvm.org/docs/LangRef.html.


INSTRUCTIONS = {"Add": "fadd", "Div": "fdiv", "Mul": "fmul", "Neg": "fneg", "Sub": "fsub"}
INTRINSICS = {"Abs": "fabs", "Sqrt": "sqrt"}
SIZES = {"float": 4, "double": 8}


class _Lines:
    """The lines of a function in assembly language; values are named by numbers."""

    def __init__(self, element: str) -> None:
        self.element = element
        self.lines = list[str]()
        self._count = 0

    def value(self, expression: str) -> str:
        """Add a line that computes ``expression``; return the name of the value."""
        self._count += 1
        self.lines.append(f"  %v{self._count} = {expression}")
        return f"%v{self._count}"

    def pointer(self, i: int) -> str:
        """Add lines that load the ``i``-th address from the argument; return the name of the pointer."""
        return self.value(f"load ptr, ptr {self.value(f'getelementptr i64, ptr %argument, i64 {i}')}")

    def compute(self, node: tuple[str, tuple[str, ...], str], values: dict[str, str], width: int) -> None:
        """Add lines that compute a node; ``values`` maps operands to names, and gets the name of the result."""
        operator, operands, result = node
        kind = self.kind(width)
        given = [values[name] for name in operands]
        if operator == "Identity":
            values[result] = given[0]
        elif operator in INTRINSICS:
            values[result] = self.value(f"call {kind} {self.intrinsic(operator, width)}({kind} {given[0]})")
        else:
            values[result] = self.value(f"{INSTRUCTIONS[operator]} {kind} {', '.join(given)}")

    def kind(self, width: int) -> str:
        """Return the LLVM type of ``width`` elements."""
        return self.element if width == 1 else f"<{width} x {self.element}>"

    def intrinsic(self, operator: str, width: int) -> str:
        """Return the name of the LLVM intrinsic of an operator for ``width`` elements."""
        bits = {"float": "f32", "double": "f64"}[self.element]
        return f"@llvm.{INTRINSICS[operator]}.{bits if width == 1 else f'v{width}{bits}'}"

    def repeat(self, value: str) -> str:
        """Add lines that make a vector of equal elements from the scalar ``value``; return its name."""
        kind = self.kind(LANES)
        first = self.value(f"insertelement {kind} poison, {self.element} {value}, i64 0")
        return self.value(f"shufflevector {kind} {first}, {kind} poison, <{LANES} x i32> zeroinitializer")


class _Loop(NamedTuple):
    """A loop of the function: its label, the labels before and after it, its first and its last element."""

    label: str
    before: str
    after: str
    start: str
    stop: str
    width: int


def loop_code(formula: Formula, vectors: Sequence[str], scalars: Sequence[str], element: str) -> str:
    """Return the text of the function ``run``.

    Parameters
    ----------
    formula : Formula
    vectors, scalars : sequence of str
        Names in the order of the addresses. Vectors for which the formula has a new value are updated in place.
    element : {"float", "double"}
    """
    code = _Lines(element)
    computed = [node for node in formula.nodes if _is_scalar(formula, node)]
    count = code.value("load i64, ptr %argument")
    places = {name: code.pointer(1 + i) for i, name in enumerate(vectors)}
    pointers = {name: code.pointer(1 + len(vectors) + i) for i, name in enumerate(scalars)}
    single = {name: code.value(f"load {element}, ptr {pointer}") for name, pointer in pointers.items()}
    for node in computed:
        code.compute(node, single, 1)
    repeated = {name: code.repeat(value) for name, value in single.items()}
    whole = code.value(f"and i64 {count}, -{LANES}")
    code.lines += [f"  %some = icmp sgt i64 {whole}, 0", "  br i1 %some, label %wide, label %between"]
    _add_loop(code, formula, places, repeated, _Loop("wide", "entry", "between", "0", whole, LANES))
    code.lines += ["between:", f"  %rest = icmp slt i64 {whole}, {count}", "  br i1 %rest, label %single, label %end"]
    _add_loop(code, formula, places, single, _Loop("single", "between", "end", whole, count, 1))
    names = [(code.kind(width), code.intrinsic(operator, width)) for operator in INTRINSICS for width in (1, LANES)]
    declared = [f"declare {kind} {name}({kind})" for kind, name in names]
    return "\n".join([*declared, "define void @run(ptr %argument) {", "entry:", *code.lines, "end:", "  ret void", "}"])


def _is_scalar(formula: Formula, node: tuple[str, tuple[str, ...], str]) -> bool:
    return formula.registers.get(node[2], 0) is None


def _add_loop(
    code: _Lines, formula: Formula, places: Mapping[str, str], scalars: Mapping[str, str], loop: _Loop
) -> None:
    """Add a loop over the elements at ``places``, which computes ``loop.width`` of them at a time."""
    label = loop.label
    kind = code.kind(loop.width)
    size = SIZES[code.element]
    code.lines += [f"{label}:", f"  %{label}_i = phi i64 [{loop.start}, %{loop.before}], [%{label}_next, %{label}]"]
    at = {n: code.value(f"getelementptr {code.element}, ptr {p}, i64 %{label}_i") for n, p in places.items()}
    values = {**scalars, **{n: code.value(f"load {kind}, ptr {p}, align {size}") for n, p in at.items()}}
    for node in formula.nodes:
        if not _is_scalar(formula, node):
            code.compute(node, values, loop.width)
    written = {name: values[f"new_{name}"] for name in places if f"new_{name}" in values}
    code.lines += [f"  store {kind} {value}, ptr {at[name]}, align {size}" for name, value in written.items()]
    code.lines += [
        f"  %{label}_next = add i64 %{label}_i, {loop.width}",
        f"  %{label}_more = icmp slt i64 %{label}_next, {loop.stop}",
        f"  br i1 %{label}_more, label %{label}, label %{loop.after}",
    ]
