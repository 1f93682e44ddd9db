"""What PyTorch's exporter computed from parameters in advance: each result of its own, also where numbers are equal.

The exporter folds ``1 + weight`` of a normalization or the reshaped factor of a layer scale into a constant, and makes
one initializer of all that are equal. Those of a fresh network are: trained so, they would stay equal. The calls that
read them still name the folded results. Two names are two parameters where they are read in different modules, and
within one module where it has as many parameters as names: a module that is called twice folds one parameter twice.
A module under two paths has its parameters twice in the signature, but all calls read those of one path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from .edits import copy_initializer
from .names import names_of
from .torch_program import TorchProgram, call_of, names_read, scope_of
from .weights import array_of

Use = tuple[ir.Node, int]
Key = tuple[str, str]
"""The module that reads a folded result, and the name of the result; "" for all results of the module."""


def separate_folded(graph: ir.Graph, program: TorchProgram) -> None:
    """Give each folded result an initializer of its own, in place; what cannot be told apart stays one."""
    folded = [v for v in graph.initializers.values() if program.status(v) == "folded" and _holds_floats(v)]
    aliases = _aliases(graph, program) if folded else {}
    uses = {value: list(_known_uses(value, program, aliases)) for value in folded}
    ambiguous = _ambiguous_modules((key for found in uses.values() for key, _ in found), program)
    for value, found in uses.items():
        readers: dict[Key, list[Use]] = {}
        for (module, name), use in found:
            readers.setdefault((module, "" if module in ambiguous else name), []).append(use)
        for (module, name), own in list(readers.items())[1:] if _may_be_merged(value) else ():
            _let_read_copy(graph, value, f"{module}/{name or value.name}" if module else name, own)


def _holds_floats(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _may_be_merged(value: ir.Value) -> bool:
    """Whether a weight holds numbers that several parameters may begin with; equal drawn ones are shared."""
    if value.const_value is None or value.is_graph_output():
        return False
    array = array_of(value)
    return array.size == 1 or np.unique(array).size < array.size


def _known_uses(value: ir.Value, program: TorchProgram, aliases: Mapping[str, str]) -> Iterator[tuple[Key, Use]]:
    """Return the readers that name one folded result of a module that has a parameter nobody reads."""
    for node, index in value.uses():
        module, names = _canonical(called_module(node), aliases), program.folded_names(node)
        if len(names) == 1 and program.unseen_within(module) and not _may_be_literal(node, value):
            yield (module, names[0]), (node, index)


def called_module(node: ir.Node) -> str:
    """Return the path of the module that made the call; the marks of its second and later calls are left out."""
    return ".".join(part.partition("@")[0] for part in scope_of(node).split("."))


def _aliases(graph: ir.Graph, program: TorchProgram) -> dict[str, str]:
    """Return the paths of modules that are other modules too: all calls read the parameters of the other path."""
    unseen = set(program.unseen)
    read = set(program.targets.values()) - unseen
    found: dict[str, str] = {}
    for node in graph:
        module = called_module(node)
        for name in names_read(node):
            owner, _, leaf = program.targets.get(name, "").rpartition(".")
            if owner and owner != module and f"{module}.{leaf}" in unseen:
                found |= dict(_outer_pairs(module, owner, read))
    return found


def _outer_pairs(module: str, owner: str, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return two paths of a module, and those of the modules around it that are then one: no call reads the first."""
    while module and owner and not any(name.startswith(f"{module}.") for name in read):
        yield module, owner
        (module, _, inner), (owner, _, part) = module.rpartition("."), owner.rpartition(".")
        if inner != part:
            break


def _canonical(module: str, aliases: Mapping[str, str]) -> str:
    """Return the path under which the parameters of a module are read."""
    outer, inner = module, ""
    while outer:
        if outer in aliases:
            return aliases[outer] + inner
        outer, _, last = outer.rpartition(".")
        inner = f".{last}{inner}"
    return module


def _may_be_literal(node: ir.Node, value: ir.Value) -> bool:
    """Whether a single number may be one that the call names itself."""
    call = call_of(node)
    is_single = value.const_value is not None and value.const_value.size == 1
    return is_single and call is not None and any(not argument.startswith("%") for argument in call.arguments)


def _ambiguous_modules(keys: Iterable[Key], program: TorchProgram) -> set[str]:
    """Return the modules whose folded results are not as many as their parameters that nobody reads."""
    names: dict[str, set[str]] = {}
    for module, name in keys:
        names.setdefault(module, set()).add(name)
    return {
        module
        for module, own in names.items()
        if len(own) not in _numbers_of_parameters(program.unseen_within(module), module)
    }


def _numbers_of_parameters(parameters: list[str], module: str) -> set[int]:
    """Return the numbers of parameters: with those of inner modules, and without them."""
    depth = module.count(".") + 1 if module else 0
    return {len(parameters), sum(name.count(".") == depth for name in parameters)}


def _let_read_copy(graph: ir.Graph, value: ir.Value, name: str, readers: list[Use]) -> None:
    own = copy_initializer(graph, value, names_of(graph).free(name))
    for node, index in readers:
        node.replace_input_with(index, own)
