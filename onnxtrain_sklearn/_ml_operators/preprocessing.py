"""Rewrite the preparation of features: scalers, imputers, encoders, selection of columns.

Scales, offsets, imputed and encoded values become parameters. A rule returns None for inputs that are not floats, such
as text: no gradient flows through these, so the node is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from ..graph import FLOAT, INT32, INT64, GraphBuilder
from .rewritten_node import LazyValue, RewriteRule, RewrittenNode

_TO_VECTOR = np.array([-1])


def _scaler(r: RewrittenNode) -> Sequence[LazyValue]:
    """Compute (X - offset) * scale; missing values that a later step imputes have no gradient."""
    offset, scale = r.floats("offset"), r.floats("scale")
    columns = r.columns()
    for vector in (offset, scale):
        if vector.size not in (1, columns) and not (vector.size and columns is None):
            r.refuse(f"it has {vector.size} numbers for {columns} features")

    def of(x: ir.Value) -> ir.Value:
        return r.op.Mul(r.op.Sub(x, r.parameter("offset", offset)), r.parameter("scale", scale))

    def scaled() -> ir.Value:
        x = r.matrix()
        if not is_imputed_later(r.node.outputs[0]):
            return of(x)
        missing, known = split_missing(r.op, x)
        return restore_missing(r.op, missing, of(known))

    return (scaled,)


def is_imputed_later(value: ir.Value) -> bool:
    """Return True if a node that depends on ``value`` tests for missing values."""
    front, seen = [value], {value}
    while front:
        for node in {node for node, _ in front.pop().uses()}:
            if node.op_type in ("IsNaN", "Imputer"):
                return True
            front += [v for v in node.outputs if v not in seen]
            seen.update(node.outputs)
    return False


def split_missing(op: GraphBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return where values are missing, and ``x`` with ones there, as their gradient would be 0 * NaN."""
    missing = op.IsNaN(x)
    return missing, op.Where(missing, 1.0, x)


def restore_missing(op: GraphBuilder, missing: ir.Value, x: ir.Value) -> ir.Value:
    """Return ``x`` with missing values in the places that :func:`split_missing` found."""
    return op.Where(missing, np.array(np.nan, np.float32), x)


def _normalizer(r: RewrittenNode) -> Sequence[LazyValue]:
    """Divide each row by its norm, or by 1 if the norm is zero, so that its gradient is finite."""
    op, norm = r.op, r.attribute("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        r.refuse(f"norm {norm!r} is none of 'MAX', 'L1' and 'L2'")

    def normalized() -> ir.Value:
        x = r.matrix()
        if norm == "L1" and _sums_to_one(x):
            return x
        if norm == "MAX":
            size = op.ReduceMax(x, axes=[1], keepdims=True)
        else:
            size = op.ReduceSum(op.Abs(x) if norm == "L1" else op.Mul(x, x), axes=[1], keepdims=True)
        size = op.Where(op.Equal(size, 0.0), 1.0, size)
        return op.Div(x, op.Sqrt(size) if norm == "L2" else size)

    return (normalized,)


def _sums_to_one(x: ir.Value) -> bool:
    """Return True if ``x`` has the columns (sigmoid(-s), sigmoid(s)), or is a softmax over the columns."""
    node = x.producer()
    if node is None or node.domain or node.op_type not in ("Concat", "Softmax"):
        return False
    if node.op_type == "Softmax":
        return True
    other, p = (v.producer() if v is not None else None for v in (*node.inputs, None, None)[:2])
    if other is None or p is None or {other.op_type, p.op_type} != {"Sigmoid"} or len(node.inputs) != 2:
        return False
    negative = other.inputs[0].producer() if other.inputs[0] is not None else None
    return negative is not None and negative.op_type == "Neg" and negative.inputs[0] is p.inputs[0]


def _imputer(r: RewrittenNode) -> Sequence[LazyValue | None]:
    """Replace missing values by the imputed ones."""
    if r.input().dtype is not ir.DataType.FLOAT:
        return (None,)
    imputed = r.floats("imputed_value_floats")
    replaced = np.float32(r.attribute("replaced_value_float", 0.0))
    if not imputed.size:
        r.refuse("it has no imputed_value_floats for its input of floats")
    columns = r.columns()
    if imputed.size > 1 and columns is None:
        r.refuse("the number of its features is not known")
    imputed = imputed if imputed.size == columns else imputed[:1]

    def filled() -> ir.Value:
        x = r.matrix()
        missing = r.op.IsNaN(x) if np.isnan(replaced) else r.op.Equal(x, replaced)
        return r.op.Where(missing, r.parameter("imputed", imputed), x)

    return (filled,)


def _binarizer(r: RewrittenNode) -> Sequence[LazyValue]:
    """Return 1 where X exceeds the threshold, else 0; the gradient is zero."""
    threshold = np.float32(r.attribute("threshold", 0.0))
    return (lambda: r.op.Cast(r.op.Greater(r.float_input(), threshold), to=FLOAT),)


def _one_hot_encoder(r: RewrittenNode) -> Sequence[LazyValue | None]:
    """Truncate numbers, as onnxruntime does; unknown categories give zeros, whatever the attribute ``zeros`` is.

    An encoder of text is kept: nothing upstream is trained, and an unknown category may be an error.
    """
    if "cats_strings" in r.node.attributes:
        return (None,)
    categories = r.ints("cats_int64s")
    if not categories.size:
        r.refuse("it has no categories")

    # Of equal categories the last one counts, as in onnxruntime; the others get a value that no input has.
    repeated = [c in categories[i + 1 :] for i, c in enumerate(categories.tolist())]
    distinct = np.where(repeated, np.iinfo(np.int64).min, categories)

    def encoded() -> ir.Value:
        found = r.op.Cast(r.input(), to=INT64)
        return r.op.Cast(r.op.Equal(r.op.Unsqueeze(found, axes=[-1]), distinct), to=FLOAT)

    return (encoded,)


def _array_feature_extractor(r: RewrittenNode) -> Sequence[LazyValue | None]:
    """Select columns of X by position; a vector is one row."""
    if not _is_float(r.input()):
        return (None,)

    def extracted() -> ir.Value:
        rank = r.rank(r.input())
        columns = r.op.Reshape(r.input(1), _TO_VECTOR)
        picked = r.op.Gather(r.input(), columns, axis=rank - 1)
        return r.op.Unsqueeze(picked, axes=[0]) if rank == 1 else picked

    return (extracted,)


def _feature_vectorizer(r: RewrittenNode) -> Sequence[LazyValue]:
    """Concatenate the inputs, each cut or padded with zeros to its number of columns."""
    sizes = r.ints("inputdimensions")
    if len(sizes) != len(r.node.inputs):
        r.refuse(f"it has {len(sizes)} inputdimensions for {len(r.node.inputs)} inputs")

    def joined() -> ir.Value:
        parts = []
        for i, size in enumerate(sizes.tolist()):
            x, columns = r.matrix(i), r.columns(i)
            if columns is None:
                r.refuse(f"the number of columns of its input {i} is not known")
            if columns > size:
                x = r.op.Slice(x, [0], [size], [1])
            elif columns < size:
                x = r.op.Pad(x, np.array([0, 0, 0, size - columns]))
            parts.append(x)
        return parts[0] if len(parts) == 1 else r.op.Concat(*parts, axis=1)

    return (joined,)


def _label_encoder(r: RewrittenNode) -> Sequence[LazyValue | None]:
    """Map keys to values, with a default for unknown keys: a lookup in a parameter, like an embedding."""
    if not _is_float(r.node.outputs[0]):
        return (None,)
    keys, values = _encoder_list(r, "keys"), _encoder_list(r, "values")
    if len(keys) != len(values) or not len(keys):
        r.refuse(f"it has {len(keys)} keys for {len(values)} values")
    tensor = r.attribute("default_tensor")
    default = np.array([r.attribute("default_float", -0.0)]) if tensor is None else tensor.numpy().ravel()
    _, first = np.unique(keys.astype(str), return_index=True)
    first.sort()

    def encoded() -> ir.Value:
        table = r.op.Concat(r.parameter("values", values[first]), r.parameter("default", default), axis=0)
        return r.op.Gather(table, _positions(r, r.input(), keys[first].tolist(), len(first)), axis=0)

    return (encoded,)


def _encoder_list(r: RewrittenNode, what: str) -> np.ndarray:
    """Return the keys or values of a LabelEncoder, of any type."""
    tensor = r.attribute(f"{what}_tensor")
    if tensor is not None:
        return np.array(tensor.numpy().ravel(), dtype=None)
    if f"{what}_floats" in r.node.attributes:
        return r.floats(f"{what}_floats")
    strings = r.attribute(f"{what}_strings", ())
    return np.array(list(strings), dtype=object) if strings else r.ints(f"{what}_int64s")


def _positions(r: RewrittenNode, x: ir.Value, keys: Sequence[str] | Sequence[float], absent: int) -> ir.Value:
    """Return the positions of the elements of ``x`` among distinct keys, ``absent`` for unknown ones."""
    if isinstance(keys[0], str | bytes):  # Equal takes no strings before opset 19, so a LabelEncoder maps them
        found = r.op.emit(
            "LabelEncoder", x, domain="ai.onnx.ml",
            keys_strings=list(cast("Sequence[str]", keys)), values_int64s=list(range(len(keys))), default_int64=absent,
        )[0]  # fmt: skip
        found.dtype = ir.DataType.INT64
        return found
    listed = np.array(keys, (x.dtype or ir.DataType.FLOAT).numpy())
    equal = r.op.Equal(r.op.Unsqueeze(x, axes=[-1]), listed)
    if np.isnan(listed).any():
        both = r.op.And(r.op.IsNaN(r.op.Unsqueeze(x, axes=[-1])), np.isnan(listed))
        equal = r.op.Or(equal, both)
    hit = r.op.Cast(equal, to=INT32)
    position = r.op.ArgMax(hit, axis=-1, keepdims=False)
    known = r.op.Greater(r.op.ReduceMax(hit, axes=[-1], keepdims=False), 0)
    return r.op.Where(known, position, absent)


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


RULES: dict[tuple[str, str], RewriteRule] = {
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _array_feature_extractor,
    ("ai.onnx.ml", "Binarizer"): _binarizer,
    ("ai.onnx.ml", "FeatureVectorizer"): _feature_vectorizer,
    ("ai.onnx.ml", "Imputer"): _imputer,
    ("ai.onnx.ml", "LabelEncoder"): _label_encoder,
    ("ai.onnx.ml", "Normalizer"): _normalizer,
    ("ai.onnx.ml", "OneHotEncoder"): _one_hot_encoder,
    ("ai.onnx.ml", "Scaler"): _scaler,
}
