"""Split the calls of modules that PyTorch's exporter merged because their parameters had equal initial values.

:func:`separate_merged` splits the calls in files of the newer exporter; :func:`separate_identities` and
:class:`TracedModules` handle files of the older one.

For example, two freshly initialized layers that normalize one input become one node in the file. The recorded calls
that read the result of the second layer still name that result, which no node computes, and the signature lists the
second layer's parameters, which no call reads. One module that is called twice on one input is merged too, but leaves
no unread parameters: it stays merged.

The exporter also removes calls that do nothing. A call that reads the result of a removed call (``norm(x) + 0``) names
neither layer. Then the input of the two layers decides: its record counts the calls that read it, and the file has one
fewer.

These counts also show that there was only one layer: if the file lacks a reader of the layer's result, but no reader of
the layer's input, then the calls downstream were made twice, on one result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import onnx_ir as ir

from .._ir.edits import bypass, copy_initializer
from .._model.weights import array_of
from ..exceptions import warn
from ..graph import copy_type, names_of
from .quantization import is_fake
from .tf2onnx import is_drawn
from .torch_program import CALL, TorchProgram, call_of, names_read

ReadAt = tuple[ir.Node, int]
NodesByCall = Mapping[str, Sequence[ir.Node]]
"""The nodes of each call of the traced program, by the name of the call's result."""

FindReads: TypeAlias = "Callable[[ir.Node, TorchProgram], Iterator[tuple[str, str, int]]]"

_READ_NAME, _NUMBERED_NAME = re.compile(r"%(\w+)"), re.compile(r"(.*?)(?:_(\d+))?")

MERGED_CALLS = 3
"""Largest number of calls without parameters, such as activations, between a call with parameters and a merged call."""


@dataclass(frozen=True)
class MergedCall:
    """A call with which the exporter merged other, equal calls.

    Attributes
    ----------
    calls : tuple of str
        The names of the calls, from the one that reads ``parameters`` to this one.
    parameters : tuple of str
        The names, in the module, of the parameters that the first of these calls reads.
    missing : mapping of str to sequence of (node, position)
        For each result that is missing from the file, by name: the inputs of nodes that should read it.
    """

    calls: tuple[str, ...]
    parameters: tuple[str, ...]
    missing: Mapping[str, Sequence[ReadAt]]

    @property
    def module(self) -> str:
        return self.parameters[0].rpartition(".")[0]


def separate_merged(graph: ir.Graph, program: TorchProgram) -> bool:
    """Give calls that were merged with an equal one nodes of their own, in place; return True if there are any."""
    nodes: dict[str, list[ir.Node]] = {}
    for node in graph:
        call = call_of(node)
        if call is not None:
            nodes.setdefault(call.name, []).append(node)

    # Find merged calls by their readers: the record of a reader names another call of the same function. The parameters
    # that the other call may have read are its candidates (twins). There was only one layer if the call with parameters
    # lost no reader and the calls downstream lost all missing readers: then those calls were made twice, on one result.
    named = list(_merged_calls(nodes, program, _replaced_reads))
    found = []
    for merged in named:
        unchanged = _lost_readers(merged.calls[0], nodes) == 0 and (_lost_before(merged, nodes, program) or 0) <= 0
        if not unchanged or _lost_downstream(merged, nodes) < len(merged.missing):
            found.append((merged, _twins(merged, program.unseen)))
    claims = Counter(twin for _, twins in found for twin in twins)

    # Find calls that may also stand for another call that no reader names, because the exporter removed the calls
    # between, such as ``x + 0``. Then it is not known which reader belongs to which parameters. If there is a single
    # reader and no reader names the call, nothing was merged: that reader read the result of a removed call.
    suspected = []
    for merged in _merged_calls(nodes, program, _reads_past_removed):
        if merged.calls[-1] in {other.calls[-1] for other in named}:
            continue
        twins = [twin for twin in _twins(merged, program.unseen) if twin not in claims]
        if len(merged.missing) > 1:
            is_likely = len(merged.missing) >= len(twins)
        else:
            lost = _lost_readers(merged.calls[0], nodes) != 0 or _lacks_number(merged, nodes)
            is_likely = lost and bool(_further_readers(merged, nodes))
        if twins and is_likely:
            suspected.append((merged, twins))

    # Separate the calls whose parameters are certain: no other call claims them, and the counts of readers agree.
    known = [
        (merged, twins)
        for merged, twins in found
        if len(twins) == len(merged.missing)
        and all(claims[twin] == 1 for twin in twins)
        and _lost_before(merged, nodes, program) != 0
        and not _lost_downstream(merged, nodes)
    ]
    claims.update(twin for _, twins in suspected for twin in twins)
    known += [
        (merged, twins)
        for merged, twins in suspected
        if len(twins) == 1 and claims[twins[0]] == 1 and _stands_for_one(merged, nodes)
    ]
    inputs = {target: name for name, target in program.targets.items()}
    for merged, twins in known:
        for name, twin in zip(merged.missing, twins, strict=True):
            pairs = [*zip(merged.parameters, twin, strict=True), *_buffers(merged, twin, nodes, program)]
            renamed = {inputs[old]: inputs[new] for old, new in pairs}
            _separate_call(graph, nodes, merged, name, renamed)

    for merged, twins in (*found, *suspected):
        if twins and (merged, twins) not in known:
            others = ", ".join(repr(name) for twin in twins for name in twin)
            warn(
                f"PyTorch's exporter merged calls that begin equal: {merged.calls[-1]!r}, which reads the parameters "
                f"of {merged.module!r}, stands for {', '.join(map(repr, merged.missing))} too. The file does not tell "
                f"which of {others} these read: they are trained as one with those of {merged.module!r}, or not at "
                f"all. Export with torch.onnx.export(..., optimize=False), which merges nothing."
            )
    return bool(known)


def _stands_for_one(merged: MergedCall, nodes: NodesByCall) -> bool:
    """Return True if ``merged`` stands for exactly one other call, which all readers that do not name it should read.

    This holds if the file lacks exactly one call that read the same input, and a later call of the same function. The
    other call has readers, because PyTorch drops calls that nothing reads.
    """
    further = _further_readers(merged, nodes)
    all_name_it = all({value.name, merged.calls[-1]} & {*names_read(node)} for node, value in further)
    single = len(merged.missing) == 1 and bool(further) and all_name_it
    return single and _lost_readers(merged.calls[0], nodes) == 1 and _lacks_number(merged, nodes)


def _lost_before(merged: MergedCall, nodes: NodesByCall, program: TorchProgram) -> int | None:
    """Return the number of recorded readers that are not in the file, for the input of a call.

    If the input lost none, go on upstream to the value from which calls without parameters computed the input.
    """
    call = merged.calls[0]
    for _ in range(MERGED_CALLS):
        lost = _lost_readers(call, nodes)
        before = {source for node in nodes[call] for source in _positions_of_calls(node)}
        if lost != 0 or len(before) != 1:
            return lost
        call = before.pop()
        if _parameters_read(program, nodes[call][0]):
            break
    return 0


def _lost_downstream(merged: MergedCall, nodes: NodesByCall) -> int:
    """Return the number of recorded readers not in the file, for the results of all calls but the last one."""
    return sum(max(0, _lost_readers(call, nodes) or 0) for call in merged.calls[1:])


def _further_readers(merged: MergedCall, nodes: NodesByCall) -> list[tuple[ir.Node, ir.Value]]:
    """Return the nodes that read the result of a call and do not name another, each with the value that it reads."""
    own = nodes[merged.calls[-1]]
    missing = {use for uses in merged.missing.values() for use in uses}
    uses = [(node, index, value) for part in own for value in part.outputs for node, index in value.uses()]
    return [(node, value) for node, index, value in uses if node not in own and (node, index) not in missing]


def _lost_readers(name: str, nodes: NodesByCall) -> int | None:
    """Return the number of recorded calls that read the input of a call but are not in the file; None if unknown."""
    read = {node.inputs[i] for node in nodes[name] for where in _positions_of_calls(node).values() for i in where}
    value = read.pop() if len(read) == 1 else None
    producer = None if value is None else value.producer()
    call = None if producer is None else call_of(producer)
    if value is None or call is None or call.users is None or value.name != call.name or value.is_graph_output():
        return None
    readers = [(node, call_of(node)) for node, _ in value.uses()]
    return call.users - len({node if reader is None else reader.name for node, reader in readers} - {call.name})


def _lacks_number(merged: MergedCall, nodes: NodesByCall) -> bool:
    """Return True if a number is missing among the later calls of the same function, which PyTorch numbers."""
    function, own = _function_and_number(merged.calls[0])
    numbers = {number for name, number in map(_function_and_number, nodes) if name == function}
    return not numbers.issuperset(range(own, max(numbers)))


def _merged_calls(nodes: NodesByCall, program: TorchProgram, reads: FindReads) -> Iterator[MergedCall]:
    """Yield the calls whose results are read in place of other calls' results, according to ``reads``."""
    missing: dict[str, dict[str, list[ReadAt]]] = {}
    for node in (node for own in nodes.values() for node in own):
        for source, name, index in reads(node, program):
            missing.setdefault(source, {}).setdefault(name, []).append((node, index))
    for source, uses in missing.items():
        calls = _calls_from_parameters(source, nodes, program)
        parameters = _parameters_read(program, nodes[calls[0]][0]) if calls else []
        if len({name.rpartition(".")[0] for name in parameters}) == 1:
            missing_calls = {name: uses[name] for name in sorted(uses, key=_function_and_number)}
            yield MergedCall(calls, tuple(parameters), missing_calls)


def _replaced_reads(node: ir.Node, program: TorchProgram) -> Iterator[tuple[str, str, int]]:
    """Yield (call whose result the node reads, name of the result that it should read, position of the input)."""
    names = names_read(node)
    missing = program.folded_names(node)
    sources = _positions_of_calls(node) if missing else {}
    for source, positions in sources.items():
        value = node.inputs[positions[0]]
        # A call with several results also has the names of the single results, such as getitem_3.
        known = {source, "" if value is None else value.name or ""}
        functions = {_function_and_number(other)[0] for other in known if other}
        alike = [n for n in names if n in known or (n in missing and _function_and_number(n)[0] in functions)]
        alike = alike * len(positions) if len(set(alike)) == 1 else alike
        if len(alike) == len(positions):
            yield from ((source, name, i) for name, i in zip(alike, positions, strict=True) if name not in known)


def _reads_past_removed(node: ir.Node, program: TorchProgram) -> Iterator[tuple[str, str, int]]:
    """Yield like :func:`_replaced_reads`, if the node names the result of a missing call of any other function."""
    names = names_read(node)
    read = {value.name for value in node.inputs if value is not None}
    missing = [name for name in program.folded_names(node) if name not in read]
    sources = _positions_of_calls(node) if missing else {}
    unnamed = [(i, source) for source, positions in sources.items() if source not in names for i in positions]
    unnamed = [(i, source) for i, source in unnamed if (value := node.inputs[i]) is None or value.name not in names]
    missing = missing[:1] * len(unnamed) if len({*missing}) == 1 else missing
    if len({source for _, source in unnamed}) == 1 and len(missing) == len(unnamed):
        yield from ((source, name, i) for name, (i, source) in zip(missing, unnamed, strict=True))


def _function_and_number(name: str) -> tuple[str, int]:
    """Split the name of a result, such as ``layer_norm_3``, into the function's name and the number."""
    found = _NUMBERED_NAME.fullmatch(name)
    assert found is not None
    return found[1], int(found[2] or 0)


def _positions_of_calls(node: ir.Node) -> dict[str, list[int]]:
    """Return, by the name of a call, the positions of the inputs at which a node reads its result."""
    found: dict[str, list[int]] = {}
    own = call_of(node)
    for index, value in enumerate(node.inputs):
        producer = None if value is None else value.producer()
        call = None if producer is None else call_of(producer)
        if call is not None and own is not None and call.name != own.name:
            found.setdefault(call.name, []).append(index)
    return found


def _calls_from_parameters(name: str, nodes: NodesByCall, program: TorchProgram) -> tuple[str, ...]:
    """Return the chain of calls from the nearest upstream call with parameters to ``name``; () if the way branches."""
    calls = [name]
    while len(calls) <= MERGED_CALLS + 1:
        if _parameters_read(program, nodes[calls[0]][0]):
            return tuple(calls)
        before = {source for node in nodes[calls[0]] for source in _positions_of_calls(node)}
        if len(before) != 1:
            break
        calls.insert(0, before.pop())
    return ()


def _parameters_read(program: TorchProgram, node: ir.Node) -> list[str]:
    """Return the names, in the module, of the parameters that a node's call reads."""
    return [program.targets.get(name, "") for name in names_read(node) if program.kinds.get(name) == "PARAMETER"]


def _buffers(
    merged: MergedCall, twin: Sequence[str], nodes: NodesByCall, program: TorchProgram
) -> Iterator[tuple[str, str]]:
    """Yield pairs of buffers: one that a call reads, and the buffer of the same name in the module of the twin."""
    module = twin[0].rpartition(".")[0]
    known = set(program.targets.values())
    for name in names_read(nodes[merged.calls[0]][0]):
        target = program.targets.get(name, "")
        other = f"{module}.{target.rpartition('.')[2]}".lstrip(".")
        if program.kinds.get(name) == "BUFFER" and _outer_module(target) == merged.module and other in known:
            yield target, other


def _twins(merged: MergedCall, unseen: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the parameters that the calls merged into this one may have read, one tuple per candidate module.

    A candidate is a part of the same outer module, a module whose path differs by numbers or by one part, or the module
    itself.
    """
    leaves = [name.rpartition(".")[2] for name in merged.parameters]
    modules = dict.fromkeys(name.rpartition(".")[0] for name in unseen)
    alike = [(module, tuple(f"{module}.{leaf}".lstrip(".") for leaf in leaves)) for module in modules]
    alike = [(module, twin) for module, twin in alike if set(twin) <= set(unseen)]
    beside = [twin for module, twin in alike if _outer_module(module) == _outer_module(merged.module)]
    numbered = [twin for module, twin in alike if _without_numbers(module) == _without_numbers(merged.module)]
    own: list[tuple[str, ...]] = (
        [(name,) for name in unseen if name.rpartition(".")[0] == merged.module] if len(leaves) == 1 else []
    )
    parts = merged.module.split(".")  # paths that differ by one part: norm.identity and mixer.identity
    near = [
        twin
        for module, twin in alike
        if len(other := module.split(".")) == len(parts) and sum(a != b for a, b in zip(parts, other, strict=True)) == 1
    ]
    found = (beside, numbered, near, own)
    return next((twins for twins in found if len(twins) == len(merged.missing)), beside or numbered or near or own)


def _outer_module(module: str) -> str:
    return module.rpartition(".")[0]


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "", name)


def _separate_call(
    graph: ir.Graph, nodes: NodesByCall, merged: MergedCall, name: str, renamed: Mapping[str, str]
) -> None:
    """Copy the merged calls under the result ``name`` with ``renamed`` parameters; its readers read the last copy."""
    names = names_of(graph)
    copies = dict[ir.Value, ir.Value]()
    renamed = {**renamed, **{call: f"{call}_of_{name}" for call in merged.calls[:-1]}, merged.calls[-1]: name}
    for node in (node for call in merged.calls for node in nodes[call]):
        inputs = [value if value is None else copies.get(value, value) for value in node.inputs]
        copy = ir.Node(
            node.domain, node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs),
            version=node.version, name=names.free(f"{node.name}/separated"), metadata_props=dict(node.metadata_props),
        )  # fmt: skip
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            copy_type(new, old).name = names.free(f"{old.name}/separated") if old.name else old.name
        record = copy.metadata_props[CALL]
        copy.metadata_props[CALL] = _READ_NAME.sub(lambda m: f"%{renamed.get(m[1], m[1])}", record)
        graph.insert_after(node, copy)
        copies |= dict(zip(node.outputs, copy.outputs, strict=True))
    for node, index in merged.missing[name]:
        value = node.inputs[index]
        assert value is not None
        node.replace_input_with(index, copies[value])


# Module paths of PyTorch's older exporter: in the names of nodes, and copies of equal parameters.
#
# The older exporter keeps one initializer of several equal parameters, and writes an Identity for each other parameter,
# with that parameter's name as output. The names of nodes hold the module path: ``/body/layers.1/linear1/MatMul``.


_FOLDED = re.compile(r"onnx::\w+")
_LATER_CALL = re.compile(r"(.*?)_\d+")


def separate_identities(graph: ir.Graph) -> bool:
    """Replace each Identity of an initializer by a copy of it, or by the initializer itself if a module shares it.

    Return True if there was such an Identity.
    """

    def is_copy(node: ir.Node) -> bool:
        source = node.inputs[0] if node.op_type == "Identity" and not node.domain else None
        return source is not None and source.name in graph.initializers and not node.outputs[0].is_graph_output()

    nodes = [node for node in graph if is_copy(node)]
    if not nodes:
        return False
    modules = TracedModules(graph)
    for node in nodes:
        source, output = node.inputs[0], node.outputs[0]
        assert source is not None
        folded = _FOLDED.fullmatch(output.name or "") is not None
        callers = modules.callers(output)
        unknown = callers == {""} and not is_drawn(array_of(source))
        if folded and not unknown and not callers.isdisjoint(modules.callers(source)):
            bypass(node, source)
            continue
        name, output.name = output.name or "", None
        bypass(node, copy_initializer(graph, source, names_of(graph).free(name)))
    return True


class TracedModules:
    """The paths of the modules in the names of nodes.

    Parameters
    ----------
    graph : onnx_ir.Graph
        It must not change while this object is used.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    @cached_property
    def _known(self) -> set[str]:
        """The paths that begin the name of a parameter."""
        values = [*self._graph.initializers.values(), *(v for node in self._graph for v in node.outputs)]
        named = [v.name.split(".") for v in values if v.name and v.name[0] != "/"]
        return {".".join(parts[:i]) for parts in named for i in range(1, len(parts))}

    def readers(self, value: ir.Value) -> set[str]:
        """Return the paths of the modules that read ``value``."""
        return {self.module_of(node) for node, _ in value.uses()}

    def callers(self, value: ir.Value) -> set[str]:
        """Return paths like :meth:`readers`; ``linear_1`` is a second call of ``linear`` unless it names a module."""
        return {self.module_of(node, again=True) for node, _ in value.uses()}

    def module_of(self, node: ir.Node, *, again: bool = False) -> str:
        """Return the path of the module that a node belongs to, "" if its name holds none.

        The second call of the module ``linear`` is numbered, ``linear_1``, which may also be the name of a module. With
        ``again``, a number is taken for a repeated call even if ``linear`` has no parameters.
        """
        path = ""
        if is_fake(node):
            return path
        for part in (node.name or "").split("/")[1:-1]:
            whole = f"{path}.{part}".lstrip(".")
            numbered = _LATER_CALL.fullmatch(part)
            first = f"{path}.{numbered[1]}".lstrip(".") if numbered else whole
            path = first if whole not in self._known and (again or first in self._known) else whole
        return path

    def name_of(self, value: ir.Value) -> str | None:
        """Return a name for a parameter that the exporter named by a number; None if its module is not known."""
        modules = self.readers(value) - {""}
        if not _FOLDED.fullmatch(value.name or "") or len(modules) != 1:
            return None
        bias = self._bias_after(value)
        if bias is not None and all((node.op_type, i) == ("MatMul", 1) for node, i in value.uses()):
            return f"{bias.removesuffix('bias')}weight.T"
        return f"{modules.pop()}/{value.name}"

    def _bias_after(self, value: ir.Value) -> str | None:
        """Return the name of the bias that the same module adds to a product with a matrix."""
        for node, _ in value.uses():
            for user, _ in node.outputs[0].uses():
                names = [x.name or "" for x in user.inputs if x is not None and x.name in self._graph.initializers]
                if user.op_type == "Add" and self.module_of(user) == self.module_of(node):
                    own = [n for n in names if n.endswith("bias") and n.rpartition(".")[0] == self.module_of(node)]
                    return next(iter(own), None)
        return None
