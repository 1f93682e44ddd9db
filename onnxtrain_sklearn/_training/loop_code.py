"""The formula of an update as one loop over the elements, in LLVM's assembly language.

Each element of each vector is read once and written once; what is between is in registers. Every operation is rounded
on its own, as in NumPy, since no instruction allows LLVM to contract or reorder: the results are the same to the bit.

The function has one argument, a pointer to an array of integers: the number of elements, the addresses of the vectors,
then those of the scalars. The reference of the language is https://llvm.org/docs/LangRef.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .._compiler.stages import LANES
from .numpy_update import Formula

INSTRUCTIONS = {"Add": "fadd", "Div": "fdiv", "Mul": "fmul", "Neg": "fneg", "Sub": "fsub"}
INTRINSICS = {"Abs": "fabs", "Sqrt": "sqrt"}
SIZES = {"float": 4, "double": 8}


class _Lines:
    """The lines of a function; each value has a number for its name."""

    def __init__(self, element: str) -> None:
        self.element, self.lines, self._count = element, list[str](), 0

    def value(self, expression: str) -> str:
        """Add a value; return its name."""
        self._count += 1
        self.lines.append(f"  %v{self._count} = {expression}")
        return f"%v{self._count}"

    def pointer(self, i: int) -> str:
        """Add the ``i``-th address of the argument; return its name."""
        return self.value(f"load ptr, ptr {self.value(f'getelementptr i64, ptr %argument, i64 {i}')}")

    def compute(self, node: tuple[str, tuple[str, ...], str], values: dict[str, str], width: int) -> None:
        """Add the result of a node to ``values``, which holds the names of its operands."""
        operator, operands, result = node
        kind, given = self.kind(width), [values[name] for name in operands]
        if operator == "Identity":
            values[result] = given[0]
        elif operator in INTRINSICS:
            values[result] = self.value(f"call {kind} {self.intrinsic(operator, width)}({kind} {given[0]})")
        else:
            values[result] = self.value(f"{INSTRUCTIONS[operator]} {kind} {', '.join(given)}")

    def kind(self, width: int) -> str:
        """Return the type of so many elements."""
        return self.element if width == 1 else f"<{width} x {self.element}>"

    def intrinsic(self, operator: str, width: int) -> str:
        """Return the name of the function for so many elements."""
        bits = {"float": "f32", "double": "f64"}[self.element]
        return f"@llvm.{INTRINSICS[operator]}.{bits if width == 1 else f'v{width}{bits}'}"

    def repeat(self, value: str) -> str:
        """Add a vector of equal elements; return its name."""
        kind = self.kind(LANES)
        first = self.value(f"insertelement {kind} poison, {self.element} {value}, i64 0")
        return self.value(f"shufflevector {kind} {first}, {kind} poison, <{LANES} x i32> zeroinitializer")


class _Loop(NamedTuple):
    """The place of a loop in the function: its label, those before and after it, its first element and its last."""

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
    code, computed = _Lines(element), [node for node in formula.nodes if _is_scalar(formula, node)]
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
    label, kind, size = loop.label, code.kind(loop.width), SIZES[code.element]
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
