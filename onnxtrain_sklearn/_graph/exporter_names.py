"""What the name of a constant tells: whether an exporter made it up, or a framework gave it to a parameter."""

from __future__ import annotations

import re

import onnx_ir as ir

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
"""Names of what tf2onnx or TensorFlow Lite computed in advance; a variable is named after the node that reads it."""
_TENSORFLOW_CONSTANT = re.compile(r"(?:.*/)?Const(?:_\d+)?:\d+")
_TENSORFLOW_VARIABLE = re.compile(r"(?:.*/)?ReadVariableOp(?:_\d+)?(?:/resource)?:\d+")

_PADDLE_PARAMETER = re.compile(r".+\.[wb]_\d+(?:_deepcopy_\d+)?")
_PADDLE_CAST = re.compile(r"auto\.cast\.\d+")
_BUFFER = re.compile(r"(?:.*[._/])?(?:\w+_)?buffer\d*")


def is_made_up(value: ir.Value) -> bool:
    """Whether an exporter generated the name of a constant; parameters mostly have other names."""
    name, shape = value.name or "0", value.shape
    if _MADE_UP.fullmatch(name) or shape is None:
        return _MADE_UP.fullmatch(name) is not None
    if not len(shape):
        return _is_of_tensorflow_operations(name)
    return all(length == 1 for length in shape) and _PADDLE_CAST.fullmatch(name) is not None


def is_paddle_parameter(value: ir.Value) -> bool:
    """Whether PaddlePaddle gave a parameter its name, such as ``conv2d_0.w_0``: its exporter writes Constant nodes."""
    return _PADDLE_PARAMETER.fullmatch(value.name or "") is not None


def is_buffer(value: ir.Value) -> bool:
    """Whether the name says that a constant is a buffer of a PyTorch module, such as ``stft.forward_basis_buffer``."""
    return _BUFFER.fullmatch(value.name or "") is not None


def is_tensorflow_constant(name: str) -> bool:
    """Whether the name is that of ``tf.constant``; TensorFlow itself gives it, and not to variables."""
    return _TENSORFLOW_CONSTANT.fullmatch(name) is not None


def is_tensorflow_variable(name: str) -> bool:
    return _TENSORFLOW_VARIABLE.fullmatch(name) is not None


def _is_of_tensorflow_operations(name: str) -> bool:
    """Whether all operations in a name are arithmetic; TensorFlow Lite joins those that it fuses by semicolons."""
    return all(_TENSORFLOW_OPERATION.fullmatch(part) for part in name.split(";"))
