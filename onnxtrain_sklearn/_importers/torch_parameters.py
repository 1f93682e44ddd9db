"""Restore each parameter of a PyTorch module under its own name.

PyTorch's exporters merge all parameters with equal numbers, such as newly initialized biases of zeros, into one
initializer; in training, these parameters would stay equal. The exporters also drop biases that are zero.
:func:`restore_parameters` gives each parameter its own initializer again, as far as the file tells; parameters that the
module shares stay shared. It calls the steps in their order: merged calls (``torch_calls``), parameters, folded results
(``torch_constants``), detached values, biases, bounds. The steps read the record of the traced program
(``torch_program``). If the record does not show where a parameter is read, :func:`warn_of_lost` warns.
:func:`own_names` later renames weights that have generated names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from .._ir.edits import copy_initializer, replace_value
from .._ir.queries import every_node, operand, reaching
from .._model.constants import tensor_of
from .._model.weights import array_of
from ..exceptions import warn
from ..graph import GraphBuilder, names_of, stop_gradient
from .torch_calls import TracedModules, separate_identities, separate_merged
from .torch_constants import recompute_folded, restore_bounds, separate_folded, warn_of_unrecorded_bounds
from .torch_program import TorchProgram, call_of, scope_of, sources_of

TRANSPOSED = ".T"
"""Suffix of the name of a matrix that is the transpose of the module's parameter."""


def restore_parameters(model: ir.Model) -> bool:
    """Give each parameter of the exported module an initializer of its own, in place; return True if any lacked one."""
    graph = model.graph
    changed = [separate_identities(graph)]
    program = TorchProgram(graph)
    if program.kinds:
        if separate_merged(graph, program):
            changed.append(True)
            program = TorchProgram(graph)  # the copied calls read further parameters
        changed += [
            _separate_parameters(graph, program),
            separate_folded(graph, program),
            stop_at_detached(graph, program),
            _restore_biases(graph, program),
        ]
        warn_of_lost(graph, program)  # now, because the steps below find no further parameters
        changed += [recompute_folded(graph, program), _share_copies(graph, program), restore_bounds(graph, program)]
    else:
        warn_of_unrecorded_bounds(graph)
    changed.append(_share_tables(graph))
    return any(changed)


def _separate_parameters(graph: ir.Graph, program: TorchProgram) -> bool:
    """Separate initializers that stand for several parameters, or for a parameter and a constant."""
    separated = False
    for value in list(graph.initializers.values()):
        readers: dict[str | None, list[tuple[ir.Node, int]]] = {}
        merged = program.status(value) == "parameter"
        for node, index in value.uses():
            name = program.parameter_at(node, index)
            if name is None and merged:
                name = _merged_parameter(node, value, program) or program.unread_parameter(node)
            readers.setdefault(name, []).append((node, index))
        known = [name for name in readers if name is not None]
        if known or merged:
            fixed = [(node, i) for node, i in readers.get(None, ()) if program.reads_constant(node, i)]
            separated = _read_copy(graph, value, f"{value.name}/constant", fixed) or separated
        first = value.name if value.name in readers else next(iter(known), None)
        for name in known:
            if name != first and name not in graph.initializers:
                separated = _read_copy(graph, value, name, readers[name]) or separated
    return separated


def _merged_parameter(node: ir.Node, value: ir.Value, program: TorchProgram) -> str | None:
    """Return the name, in the module, of the parameter that the node's call reads, if ``value`` may stand for it.

    This holds if the call names exactly one parameter, and that has the name of ``value`` or has no initializer.
    """
    call = call_of(node)
    read = [] if call is None else [name for name in call.names if program.kinds.get(name) == "PARAMETER"]
    found = program.targets.get(read[0]) if len(read) == 1 else None
    if call is None or found == value.name or node.graph is None or found in node.graph.initializers:
        return found if found == value.name else None
    is_number = value.const_value is not None and value.const_value.size == 1
    is_literal = is_number and any(map(_NUMBER.fullmatch, call.arguments))
    return None if is_literal or program.folded_names(node) else found


_NUMBER = re.compile(r"-?[\d.]+(?:e-?\d+)?")


def _read_copy(graph: ir.Graph, value: ir.Value, name: str, readers: Sequence[tuple[ir.Node, int]]) -> bool:
    """Make these readers of an initializer read a renamed copy of it; return False if there are no readers."""
    if not readers:
        return False
    is_transposed = all(_transposes(*use) for use in readers)
    own = copy_initializer(graph, value, names_of(graph).free(f"{name}{TRANSPOSED}" if is_transposed else name))
    for node, index in readers:
        node.replace_input_with(index, own)
    return True


def _transposes(node: ir.Node, index: int) -> bool:
    """Return True if the exporter wrote a linear layer as a product with the transposed matrix."""
    return (node.op_type, index) == ("MatMul", 1)


def _restore_biases(graph: ir.Graph, program: TorchProgram) -> bool:
    """Add the biases that the exporter dropped because they are zero; a layer that is called twice has one."""
    restored: dict[str, ir.Value] = {}
    for node in list(graph):
        name = program.bias_of(node) if len(node.inputs) == 2 else None
        weight = None if name is None else node.inputs[1]
        if name is None or weight is None or weight.const_value is None or weight.name not in graph.initializers:
            continue
        if name not in restored:
            shape = array_of(weight).shape
            if node.op_type == "Gemm":
                count = shape[0] if node.attributes.get_int("transB", 0) else shape[1]
            else:  # Conv, or ConvTranspose, whose kernel holds only the output channels of one group
                count = shape[0] if node.op_type == "Conv" else shape[1] * node.attributes.get_int("group", 1)
            zeros = np.zeros(count)
            restored[name] = copy_initializer(graph, weight, names_of(graph).free(name), zeros)
        node.resize_inputs(3)
        node.replace_input_with(2, restored[name])
    return bool(restored)


def _share_copies(graph: ir.Graph, program: TorchProgram) -> bool:
    """Make a layer that is called twice read one matrix: the exporter copies large matrices that it transposes.

    Only matrices that are equal and not constant are shared: slices of one parameter may all be zeros.
    """

    def are_copies(one: ir.Value, other: ir.Value) -> bool:
        a, b = array_of(one), array_of(other)
        return a.dtype == b.dtype and np.array_equal(a, b) and bool(np.ptp(a))

    first: dict[str, list[ir.Value]] = {}
    shared = False
    for value in list(graph.initializers.values()):
        names = {program.parameter_at(node, index) for node, index in value.uses()}
        name = names.pop() if len(names) == 1 else None
        if name is None or value.const_value is None or len(value.const_value.shape) < 2:
            continue
        known = first.setdefault(name, [])
        same = next((other for other in known if are_copies(other, value)), None)
        if same is None:
            known.append(value)
        elif not value.is_graph_output() and not value.is_graph_input():
            for node, index in list(value.uses()):
                node.replace_input_with(index, same)
            del graph.initializers[value.name or ""]
            shared = True
    return shared


def _share_tables(graph: ir.Graph) -> bool:
    """Make products with the transposed table of an embedding read the table itself: the exporter copied it.

    Tables hold random or trained numbers, so two equal tables are one parameter.
    """

    def is_transpose(table: np.ndarray, value: ir.Value) -> bool:
        assert value.const_value is not None
        if table.ndim != 2 or table.shape[::-1] != tuple(value.const_value.shape) or table.dtype.kind != "f":
            return False
        return bool(np.ptp(table)) and np.array_equal(table.T, array_of(value))

    tables = {
        v: array_of(v)
        for v in graph.initializers.values()
        if v.const_value is not None and any(n.op_type == "Gather" and not i for n, i in v.uses())
    }
    op = GraphBuilder(graph, prefix="shared")
    shared = False
    for value in list(graph.initializers.values()):
        if value in tables or not value.uses() or not all(_transposes(*use) for use in value.uses()):
            continue
        table = next((t for t, array in tables.items() if is_transpose(array, value)), None)
        if table is not None and value.name:
            op.dtype = table.dtype or op.dtype
            del graph.initializers[value.name]
            replace_value(op, value, op.Transpose(table, perm=[1, 0]))
            graph.sort()
            shared = True
    return shared


def own_names(graph: ir.Graph, weights: Sequence[str]) -> dict[str, str]:
    """Rename the initializers among ``weights`` whose names PyTorch's exporters made up; return new by old names."""
    program = TorchProgram(graph)
    modules = TracedModules(graph)
    names = names_of(graph)
    renamed = {}
    for old in weights:
        value = graph.initializers.get(old)
        wanted = None if value is None else _own_name(value, program, modules)
        if value is not None and wanted is not None and wanted != old and wanted not in names:
            renamed[old] = names.free(wanted)
    for old, new in renamed.items():
        graph.initializers[old].name = new
    return renamed


def _own_name(value: ir.Value, program: TorchProgram, modules: TracedModules) -> str | None:
    name = value.name or ""
    if not program.kinds:
        return modules.name_of(value)
    if name in program.targets.values() or "." in name or "/" in name:
        return None
    found = {program.parameter_at(node, index) for node, index in value.uses()}
    if len(found) == 1 and (own := next(iter(found))) is not None:
        return f"{own}{TRANSPOSED}" if all(_transposes(*use) for use in value.uses()) else own
    scopes = {scope_of(node) for node, _ in value.uses()} - {""}
    return f"{scopes.pop()}/{name}" if len(scopes) == 1 else None


# Zero biases: PyTorch's newer exporter adds them to convolutions of modules without a bias.
#
# With ``optimize=False`` it expands a zero to the shape of the bias. For ``Conv3d``, and for ``padding="same"``, that
# shape has one axis too many, and current releases of onnxruntime refuse the graph. So these biases are removed.


def drop_zero_biases(model: ir.Model) -> bool:
    """Remove the computed zeros that convolutions add, in place; return True if there were any.

    The nodes that compute the zeros stay; a later pass removes unread nodes.
    """
    dropped = False
    for node in every_node(model.graph):
        bias = operand(node, 2) if node.op_type == "Conv" and not node.domain else None
        expanding = None if bias is None else bias.producer()
        if expanding is None or expanding.op_type != "Expand":
            continue
        source = expanding.inputs[0]
        while source is not None and (cast := source.producer()) is not None and cast.op_type in ("Cast", "CastLike"):
            source = cast.inputs[0]
        maker = None if source is None else source.producer()
        if source is not None and maker is not None and maker.op_type == "Constant":
            tensor = tensor_of(source)
            if tensor is not None and not tensor.numpy().any():
                node.resize_inputs(2)
                dropped = True
    return dropped


# Lost parameters: a warning where the exported file does not tell where the module reads them.
#
# PyTorch's exporter drops calls that change nothing: a product with a scale that is initialized with one, a sum with a
# shift that is initialized with zero. It merges calls whose parameters have equal initial values. The signature still
# lists the parameters, and the calls downstream name results that no node computes.


_MAY_CHANGE_NOTHING = re.compile(r"(?:add|addcmul|addmm|div|lerp|mul|pow|rsub|sub)(?:_\d+)?")
"""Matches results of functions that return their operand unchanged if a parameter is one or zero."""


def warn_of_lost(graph: ir.Graph, program: TorchProgram) -> None:
    """Warn of parameters that apparently are not trained, or not as in PyTorch."""
    # Find results of arithmetic that calls name and no node computes. Skip this if a folded constant has no recorded
    # source, because the results may then be computed from that constant's parameters.
    removed = set[str]()
    if not any(program.status(v) == "folded" and not sources_of(v, program) for v in graph.initializers.values()):
        stored = {name.rpartition("/")[2] for name in graph.initializers}
        for node in graph:
            names = (name for name in program.folded_names(node) if name not in stored)
            removed.update(name for name in names if _MAY_CHANGE_NOTHING.fullmatch(name))
            call = call_of(node)
            for value in node.outputs if call is not None else ():
                own = value.name or ""
                if value.is_graph_output() and own != call.name and _MAY_CHANGE_NOTHING.fullmatch(own):  # type: ignore[union-attr]
                    removed.add(own)

    # Find parameters that no call reads and no initializer holds, except the weight and bias of a BatchNormalization,
    # which the exporter folds into the convolution before it.
    held = {name.removesuffix(".T") for name in graph.initializers}
    held = held.union(*(sources_of(value, program) for value in graph.initializers.values()))
    normalized = {
        name
        for name in program.unseen
        if f"{name.rpartition('.')[0]}.running_var".lstrip(".") in program.targets.values()
    }
    unread = [name for name in program.unseen if name not in held and name not in normalized]
    # A layer that the module does not call leaves both its weight and its bias unread.
    unused = {name.rpartition(".")[0] for name in unread if name.endswith(".weight")}
    unused &= {name.rpartition(".")[0] for name in unread if name.endswith(".bias")}
    merged = any(_merges_values(node, program) for node in graph)
    lost = [name for name in unread if merged or (removed and name.rpartition(".")[0] not in unused)]

    # Find merged parameters that a call reads although its record names a removed result instead.
    doubtful = []
    for value in graph.initializers.values():
        if program.status(value) == "parameter" and not np.ptp(array_of(value)):
            calls = [call for node, _ in value.uses() if (call := call_of(node)) is not None]
            inputs = {name for name, target in program.targets.items() if target == value.name}
            if any(inputs.isdisjoint(call.names) and not removed.isdisjoint(call.names) for call in calls):
                doubtful.append(value.name or "")
    if lost or doubtful:
        warn(
            f"PyTorch's exporter left out calls that do not change the numbers of this file, or merged calls that "
            f"begin equal, and the file does not tell which parameters they read. In PyTorch these parameters may be "
            f"trained, or otherwise than here: {', '.join(map(repr, dict.fromkeys([*lost, *doubtful])))}. Export with "
            f"torch.onnx.export(..., optimize=False), which leaves nothing out."
        )


def _merges_values(node: ir.Node, program: TorchProgram) -> bool:
    """Return True if a node reads one value twice, and its call names two results that are not in the file."""
    call = call_of(node)
    values = [value for value in node.inputs if value is not None and not value.is_initializer()]
    repeated = {value.name for value in values if values.count(value) > 1}
    return call is not None and not repeated <= {*call.names} and len({*program.folded_names(node)}) > 1


# Detached values of a PyTorch module: no gradient flows through them here either.
#
# ONNX has no operator for ``detach``. The newer exporter writes an Identity whose record holds the call, or drops the
# call; then the nodes that read the value still name the call's result.


_DETACHED = re.compile(r"detach(?:_default)?_?(?:_\d+)?")


def stop_at_detached(graph: ir.Graph, program: TorchProgram) -> bool:
    """End the path of the gradient at each detached value that depends on a parameter, in place."""
    parameters = {
        name for name, value in graph.initializers.items() if program.status(value) in ("parameter", "folded")
    }
    op = GraphBuilder(graph, prefix="detached")
    stopped = dict[ir.Value, ir.Value]()
    for node in list(graph):
        for index in _detached_inputs(node, program):
            value = node.inputs[index]
            assert value is not None
            if reaching(value) & parameters:
                stopped[value] = stopped[value] if value in stopped else stop_gradient(op, value)
                node.replace_input_with(index, stopped[value])
    if stopped:
        graph.sort()
    return bool(stopped)


def _detached_inputs(node: ir.Node, program: TorchProgram) -> Iterator[int]:
    """Yield the positions at which a node reads detached values."""
    call = call_of(node)
    if call is None:
        return
    if call.function.rstrip("_") == "detach":
        yield 0
        return
    missing = {*program.folded_names(node)}
    if not any(map(_DETACHED.fullmatch, missing)):
        return
    # Find inputs that are results of calls which this node's call does not name: the exporter replaced the named ones.
    others = []
    for i, value in enumerate(node.inputs):
        producer = None if value is None else value.producer()
        other = None if producer is None else call_of(producer)
        if value is not None and other is not None and other.name != call.name and value.name not in call.names:
            others.append(i)
    if others and all(map(_DETACHED.fullmatch, missing)):
        yield from others
    elif len(call.names) == len(node.inputs):
        yield from (i for i, name in enumerate(call.names) if name in missing and _DETACHED.fullmatch(name))
