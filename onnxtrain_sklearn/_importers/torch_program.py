"""Read what PyTorch's exporters record of a program: names of parameters, calls and module paths.

:class:`TorchProgram` holds the record, :func:`call_of` and :func:`scope_of` read it for one node, and
:func:`is_made_up` and its neighbors judge the name of a constant.

``torch.onnx.export`` (dynamo) merges equal constants, precomputes functions of parameters (folding), and renames the
results. The metadata of the file still record the traced program: the signature lists parameters and buffers, and each
node holds the call that it was made for, with the names of the values that the call read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import onnx_ir as ir

from .._ir.queries import every_node, graphs_in, number_of, operand, reads

CALL, SCOPES = "pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
KIND, ORIGINAL = "pkg.torch.export.graph_signature.InputSpec.kind", "pkg.torch.onnx.original_node_name"

Status = Literal["parameter", "constant", "folded"]

_SIGNATURE_LINE = re.compile(r"^(\w+): (\w+)(?: target='([^']*)')?", re.MULTILINE)
_CALLED = re.compile(
    r"%(\w+) : (?:\[num_users=(\d+)\])?.*?target=([\w.]+)\]\(args = \((.*)\), kwargs = \{(.*)\}\)", re.DOTALL
)
_NAME = re.compile(r"%(\w+)")
_QUOTED = re.compile(r"'([^']*)'")

_SLOTS: dict[str, tuple[int | None, int | None]] = {
    "_native_batch_norm_legit": (1, 2),
    "_native_batch_norm_legit_no_training": (1, 2),
    "addmm": (2, 0),
    "batch_norm": (1, 2),
    "conv1d": (1, 2),
    "conv2d": (1, 2),
    "conv3d": (1, 2),
    "conv_transpose1d": (1, 2),
    "conv_transpose2d": (1, 2),
    "convolution": (1, 2),
    "embedding": (0, None),
    "group_norm": (2, 3),
    "instance_norm": (1, 2),
    "layer_norm": (2, 3),
    "linear": (1, 2),
    "native_layer_norm": (2, 3),
    "prelu": (1, None),
    "rms_norm": (2, None),
}
"""For each function of PyTorch, the positions of weight and bias among its arguments."""

RELU6 = (0.0, 6.0)

_WEIGHTS = frozenset(
    {("Gather", 0)}
    | {(kind, 1) for kind in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "PRelu")}
    | {(f"{kind}Normalization", 1) for kind in ("Batch", "Group", "Instance", "Layer", "RMS")}
    | {("Mul", 0)}
)
_BIASES = frozenset(
    {(kind, 2) for kind in ("Conv", "ConvTranspose", "Gemm")}
    | {(f"{kind}Normalization", 2) for kind in ("Batch", "Group", "Instance", "Layer")}
    | {("Add", 0), ("Add", 1)}
)
"""Operands that hold the weight and the bias of these functions: operator and position."""


PRODUCER = "pytorch"
"""The name of the producer in the files of both exporters."""


def is_from_torch(model: ir.Model) -> bool:
    """Return True if PyTorch exported a model: its producer, or metadata that other tools left in the file, say so."""
    return model.producer_name == PRODUCER or SIGNATURE in model.graph.metadata_props


@dataclass(frozen=True)
class TracedCall:
    """A call of the traced program: its result, its function, its arguments, and the number of calls that read it."""

    name: str
    function: str
    arguments: tuple[str, ...]
    users: int | None = None

    @property
    def names(self) -> list[str]:
        """Names of the values that the call reads."""
        return [name for argument in self.arguments for name in _NAME.findall(argument)]


@lru_cache(maxsize=4096)
def _traced_call(text: str) -> TracedCall | None:
    found = _CALLED.match(text)
    if found is None:
        return None
    name, users, target, arguments, options = found.groups()
    parts = target.removeprefix("torch.ops.").split(".")
    function = parts[1] if len(parts) > 1 else parts[0]
    return TracedCall(name, function, (*_split(arguments), *_split(options)), int(users) if users else None)


def _split(text: str) -> Iterator[str]:
    """Split arguments at their commas, but not within brackets."""
    depth, start = 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()


def call_of(node: ir.Node) -> TracedCall | None:
    """Return the call that a node was made for; None if the file does not record it."""
    text = node.metadata_props.get(CALL)
    return None if text is None else _traced_call(text)


def names_read(node: ir.Node) -> list[str]:
    """Return the names of the values that a node's call reads; empty if the file does not record them."""
    call = call_of(node)
    return [] if call is None else call.names


def padding_row(node: ir.Node) -> int | None:
    """Return the row of an embedding table that is not trained (``padding_idx``); None if there is none."""
    call = call_of(node)
    if call is None or call.function != "embedding" or (node.domain, node.op_type) != ("", "Gather"):
        return None
    row = call.arguments[2] if len(call.arguments) > 2 else "-1"
    return int(row) if row.isdecimal() else None


def is_open_clip(node: ir.Node) -> bool:
    """Return True if a Clip has the derivative 0 at its bounds, as ReLU6 and hardtanh, not 1 as torch.clamp.

    The PyTorch function decides, or the bounds of ReLU6 if it is not recorded. Zeros at which it matters are common:
    BatchNormalization without a shift keeps those of a ReLU6 before it.
    """
    call = call_of(node)
    if call is not None:
        return call.function.rstrip("_") in ("hardtanh", "relu6")
    return clip_bounds(node) == RELU6


def clip_bounds(node: ir.Node) -> tuple[float | None, float | None]:
    """Return the lower and the upper bound of a Clip, each None if it is absent or not constant."""
    return number_of(operand(node, 1)), number_of(operand(node, 2))


def scope_of(node: ir.Node) -> str:
    """Return the path of the module whose ``forward`` made the call, "" if there is none."""
    scopes = _QUOTED.findall(node.metadata_props.get(SCOPES, ""))
    return scopes[-2] if len(scopes) > 1 else ""


class TorchProgram:
    """The program that a graph was exported from.

    Parameters
    ----------
    graph : onnx_ir.Graph
        It must not change while this object is used.

    Attributes
    ----------
    kinds : dict of str to str
        For each input of the program, by its name there, "PARAMETER", "BUFFER" or another kind; empty without a record.
    targets : dict of str to str
        For each input of the program, by its name there, the parameter's or buffer's name in the module.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        signed = _SIGNATURE_LINE.findall(graph.metadata_props.get(SIGNATURE, "").partition("# outputs")[0])
        stored = [v for v in graph.initializers.values() if KIND in v.metadata_props and ORIGINAL in v.metadata_props]
        if not signed:
            signed = [(v.metadata_props[ORIGINAL], v.metadata_props[KIND], v.name or "") for v in stored]
        self.kinds = {name: kind for name, kind, _ in signed}
        self.targets = {name: target for name, _, target in signed if target}
        if {"CONSTANT_TENSOR", "PARAMETER"} <= {*self.kinds.values()}:
            # Keras copies its variables at each call, so that the program reads constants instead of parameters. Then
            # the constants are the weights, and the record is useless.
            read = {name for node in every_node(graph) for name in names_read(node)}
            if not any(kind == "PARAMETER" and name in read for name, kind in self.kinds.items()):
                self.kinds, self.targets = {}, {}
        self._names = {target: name for name, target in self.targets.items()}

    @cached_property
    def _parameters(self) -> set[str]:
        return {name for name, kind in self.kinds.items() if kind == "PARAMETER"}

    @cached_property
    def _computed(self) -> set[str]:
        """The results of calls that have nodes in the graph."""
        return {call.name for node in every_node(self._graph) if (call := call_of(node)) is not None}

    @cached_property
    def _read(self) -> dict[str, set[str]]:
        """The names of the values that the nodes of each call read."""
        found: dict[str, set[str]] = {}
        for node in every_node(self._graph):
            call = call_of(node)
            if call is not None:
                found.setdefault(call.name, set()).update(x.name or "" for x in reads(node))
        return found

    @cached_property
    def unseen(self) -> list[str]:
        """The names, in the module, of the parameters that no call in the graph reads directly."""
        seen = set[str]()
        for node in every_node(self._graph):
            names = names_read(node)
            if graphs_in(node):  # the call of a loop names all values that its body reads
                read = {value.name for value in reads(node)}
                names = [name for name in names if self.targets.get(name, name) in read]
            seen.update(names)
        return [self.targets.get(name, "") for name in self.kinds if name in self._parameters - seen]

    def unread_parameter(self, node: ir.Node) -> str | None:
        """Return the name, in the module, of the parameter that a node without a recorded call may read, or None.

        It is the only parameter, of the modules that read the node's results, that no call names and no initializer
        holds.
        """
        if call_of(node) is not None:
            return None
        scopes = {scope_of(reader) for value in node.outputs for reader, _ in value.uses()} - {""}
        within = tuple(f"{scope}." for scope in scopes)
        found = [name for name in self.unseen if name.startswith(within) and name not in self._graph.initializers]
        return found[0] if len(scopes) == len(found) == 1 else None

    def status(self, value: ir.Value) -> Status | None:
        """Return the status of a constant in the program; None if its role in the graph has to decide.

        "folded" constants were computed in advance, possibly from a parameter.
        """
        name = self._names.get(value.name or "")
        if name is not None:
            return "parameter" if name in self._parameters else "constant"
        if not self.kinds:
            return None
        if sources_of(value, self):
            return "folded"
        if any(name in self._names for name in folded_from(value)):
            return "constant"  # it is folded from buffers alone
        found = [self._status_of_use(node) for node, _ in value.uses()]
        if not found or None in found:
            return None
        return "folded" if "folded" in found else "constant"

    def _status_of_use(self, node: ir.Node) -> Status | None:
        call = call_of(node)
        if call is None:
            return None
        read = self._read[call.name]
        if any(self.targets.get(name) not in read for name in call.names if name in self._parameters):
            return None
        module = scope_of(node) if node.graph is self._graph else ""  # bodies of loops are modules of their own
        is_plausible = bool(self.folded_names(node) and self.unseen_within(module))
        return "folded" if is_plausible else "constant"

    def folded_names(self, node: ir.Node) -> list[str]:
        """Return the names of values that a node's call read but no node computes, because the exporter folded them."""
        names = (name for name in names_read(node) if name not in self.kinds and name not in self._computed)
        return [name for name in names if not _OF_NUMBERS.fullmatch(name)]

    def unseen_within(self, module: str) -> list[str]:
        """Return the names of the parameters of ``module`` that no call in the graph reads."""
        within = f"{module}." if module else ""
        return [target for target in self.unseen if target.startswith(within)]

    def reads_constant(self, node: ir.Node, index: int) -> bool:
        """Return True if the value that a node reads at a position is no parameter and is not computed from one."""
        call = call_of(node)
        if call is not None and (call.function, node.op_type) in _FILLERS:
            return index > 0
        known = self._computed | (self.kinds.keys() - self._parameters)
        return call is not None and all(name in known for name in call.names)

    def parameter_at(self, node: ir.Node, index: int) -> str | None:
        """Return the name, in the module, of the parameter that a node reads at a position; None if it is unclear."""
        call = call_of(node)
        if call is None or node.domain:
            return None
        found = [name for name in call.names if name in self._parameters]
        if call.function in _SLOTS:
            return self._in_slot(call, node.op_type, index)
        return self.targets.get(found[0]) if len(found) == 1 and (node.op_type, index) in _WEIGHTS | _BIASES else None

    def _in_slot(self, call: TracedCall, kind: str, index: int) -> str | None:
        weight, bias = _SLOTS[call.function]
        slot = weight if (kind, index) in _WEIGHTS else bias if (kind, index) in _BIASES else None
        if slot is None or slot >= len(call.arguments) or (call.function, kind) in _FILLERS:
            return None
        names = _NAME.findall(call.arguments[slot])
        return self.targets.get(names[0]) if len(names) == 1 and names[0] in self._parameters else None

    def buffer_at(self, node: ir.Node, index: int) -> str | None:
        """Return the name, in the module, of the running statistic that a BatchNormalization reads at a position."""
        call = call_of(node)
        if call is None or "batch_norm" not in call.function or index >= len(call.arguments):
            return None
        names = _NAME.findall(call.arguments[index])
        return self.targets.get(names[0]) if len(names) == 1 else None

    def bias_of(self, node: ir.Node) -> str | None:
        """Return the name, in the module, of the bias of a product, which the exporter may have dropped as zero."""
        call = call_of(node)
        if call is None or call.function not in _SLOTS or node.domain or (node.op_type, 2) not in _BIASES:
            return None
        return self._in_slot(call, node.op_type, 2)


def folded_from(value: ir.Value) -> list[str]:
    """Return the names of the values that a constant was folded from; empty if the file does not record them."""
    return _QUOTED.findall(value.metadata_props.get(FOLDED_FROM, ""))


def sources_of(value: ir.Value, program: TorchProgram) -> list[str]:
    """Return the names, in the module, of the parameters from which a constant was folded, according to the file."""
    kinds = {target: program.kinds[name] for name, target in program.targets.items()} if folded_from(value) else {}
    return [name for name in folded_from(value) if kinds.get(name) == "PARAMETER"]


_OF_NUMBERS = re.compile(r"(?:arange|empty|eye|full|linspace|ones|scalar_tensor|zeros)(?:_default)?(?:_\d+)?")
"""Matches results of calls that create tensors from literal numbers."""

_FILLERS = frozenset({("group_norm", "InstanceNormalization"), ("native_group_norm", "InstanceNormalization")})
"""Pairs (PyTorch function, operator): in these nodes of a group normalization, scale and bias are no parameters."""


# Names of constants: generated by an exporter, or given to a parameter by a framework.


_ATEN = (
    "add alias arange bmm cat clone copy cos cumsum detach div empty exp expand eye fill flatten full gather index "
    "index_put index_select lift_fresh_copy linspace log logical_not masked_fill matmul mm mul neg new_full new_ones "
    "new_zeros ones outer permute pow reciprocal repeat reshape rsqrt scalar_tensor scatter select select_scatter sin "
    "slice slice_scatter sqrt squeeze stack sub sum t to to_copy transpose tril triu unsqueeze value view where zeros"
).replace(" ", "|")
_MADE_UP = re.compile(
    rf"""
    val_\d+ | \d+ | _?(?:{_ATEN})(?:_like)?(?:_default)?(?:_\d+)?  # PyTorch: nodes of its traced program, folded
    | (?:c_)?_?(?:lifted_|tensor_)?(?:tensor|constant)_?\d*
    | onnx::\w+ | .*\bConstant(?:_\d+)?(?:_output_\d+)?   # the older exporter of PyTorch, and Constant nodes anywhere
    | /.+_output_\d+                                      # its nodes, which tools that simplify graphs have folded
    | (?:p2o\.)?helper\.constant\.\d+ | Constant@\d+      # PaddlePaddle
    | (?:.*[/.])?(?:[Cc]onst(?:ant)?|zeros|ones|Fill)(?:_like)?(?:_\d+)?(?:__\d+)?(?::\d+)?  # TensorFlow, Keras
    | .*/[xy](?::\d+)? | (?:.*/)?Select(?:V2)?(?:_\d+)?/[et](?::\d+)? | (?:.*/)?Atan2_(?:one|pi)__\d+
    | const_\w+?__\d+ | .*const_fold_opt__\d+
    """,
    re.VERBOSE,
)
_TENSORFLOW_OPERATION = re.compile(
    r"(?:.*/)?(?:add|AddV2|Cast|Const|div|div_no_nan|Exp|Log|Log1p|Maximum|Minimum|mul|Mul|Neg|pow|Pow|RealDiv|Rsqrt"
    r"|Sqrt|Square|sub|Sub|truediv)(?:_\d+)?(?:_recip)?(?:__\d+)?(?::\d+)?"
)
"""Matches names of values that tf2onnx or TensorFlow Lite folded; a variable is named after the node that reads it."""
_TENSORFLOW_CONSTANT = re.compile(r"(?:.*/)?Const(?:_\d+)?:\d+")
_TENSORFLOW_VARIABLE = re.compile(r"(?:.*/)?ReadVariableOp(?:_\d+)?(?:/resource)?:\d+")

_PADDLE_PARAMETER = re.compile(r".+\.[wb]_\d+(?:_deepcopy_\d+)?")
_PADDLE_CAST = re.compile(r"auto\.cast\.\d+")
_BUFFER = re.compile(r"(?:.*[._/])?(?:\w+_)?buffer\d*")


def is_made_up(value: ir.Value) -> bool:
    """Return True if an exporter generated the name of a constant; parameters mostly have other names."""
    name, shape = value.name or "0", value.shape
    if _MADE_UP.fullmatch(name) or shape is None:
        return _MADE_UP.fullmatch(name) is not None
    if not len(shape):
        # TensorFlow Lite joins the names of fused operations by semicolons.
        return all(_TENSORFLOW_OPERATION.fullmatch(part) for part in name.split(";"))
    return all(length == 1 for length in shape) and _PADDLE_CAST.fullmatch(name) is not None


def is_paddle_parameter(value: ir.Value) -> bool:
    """Return True if PaddlePaddle named a parameter, as in ``conv2d_0.w_0``; it may be in a Constant node."""
    return _PADDLE_PARAMETER.fullmatch(value.name or "") is not None


def is_buffer(value: ir.Value) -> bool:
    """Return True if a constant is named as a buffer of a PyTorch module, such as ``stft.forward_basis_buffer``."""
    return _BUFFER.fullmatch(value.name or "") is not None


def is_tensorflow_constant(name: str) -> bool:
    """Return True if a constant has the name of ``tf.constant``, which TensorFlow never gives to variables."""
    return _TENSORFLOW_CONSTANT.fullmatch(name) is not None


def is_tensorflow_variable(name: str) -> bool:
    return _TENSORFLOW_VARIABLE.fullmatch(name) is not None
