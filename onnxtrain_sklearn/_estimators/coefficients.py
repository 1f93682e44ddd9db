"""Coefficients of graphs that are one linear layer, under scikit-learn's names.

The scores are traced back to the input. The graph may have one product with weights, additions of biases, and operators
that negate, join or select columns, or scale those of ``X`` by constants. With any other operator, such as a scaler
that is trained, there is no ``coef_``: coefficients that are not in the units of ``X`` would rank features wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import onnx_ir as ir

from .._fitted.fitted_model import sample_rows
from .._pretrained.ml_files import FittedFile
from .._utils.typing import Estimator, MatrixLike
from ..exceptions import ModelError
from ..models.given import bare_model
from .examples import predictions_on
from .fitted_state import FittedState

_LAYOUT = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that keep the values of a single column of scores; they might reorder several columns."""


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """``X @ weight + bias``, of shapes (n_features, k) and (k,)."""

    weight: np.ndarray
    bias: np.ndarray


def coefficients_of(estimator: object) -> np.ndarray:
    """Return the weights of the features in the shape of scikit-learn's linear models."""
    state, layer = _linear_layer(estimator, "coef_")
    weight = np.ascontiguousarray(layer.weight.T)
    return weight[0] if state.decoding.task == "regression" and len(weight) == 1 else weight


def intercept_of(estimator: object) -> np.ndarray | float:
    """Return the bias in the shape of scikit-learn's linear models."""
    state, layer = _linear_layer(estimator, "intercept_")
    return float(layer.bias[0]) if state.decoding.task == "regression" and len(layer.bias) == 1 else layer.bias


def _linear_layer(estimator: object, name: str) -> tuple[FittedState, LinearLayer]:
    state: FittedState | None = vars(estimator).get("_state")
    found = None if state is None else affine_scores(state)
    if state is None or found is None:
        why = "was trained on a graph that is not one linear layer of X"
        if state is None:
            why = "is not fitted yet"
        elif state.snapshots:
            why = "predicts by the mean of several snapshots"
        raise AttributeError(f"{type(estimator).__name__} has no {name}: it {why}.")
    return state, found


def affine_scores(state: FittedState) -> LinearLayer | None:
    """Return the trained linear layer of the decision function; None if the graph is not one."""
    graph, decoding = state.deployed, state.decoding
    takes_columns = state.fitted is not None and state.fitted.parts is not None
    if (
        len(graph.inputs) != 1
        or graph.own_loss is not None
        or graph.link == "votes"
        or graph.members
        or decoding.groups
        or takes_columns
    ):
        return None
    if decoding.positions is not None or state.snapshots or decoding.link == "ordinal":
        return None
    scores = next(value for value in graph.model.graph.outputs if value.name == graph.scores)
    found = _Trace(graph.inputs[0].name, state.weights()).of(scores)
    if not isinstance(found, LinearLayer) or found.weight.shape[1] != decoding.n_scores:
        return None
    if decoding.task == "multiclass" and decoding.n_scores == 2:
        return LinearLayer(found.weight[:, 1:] - found.weight[:, :1], found.bias[1:] - found.bias[:1])
    k = decoding.n_columns  # the first scores are the predictions
    weight = found.weight[:, :k]
    bias = found.bias[:k]
    scale = decoding.target_scale
    bounds = decoding.target_range

    # Convert the layer of scaled targets to the units of the targets.
    if scale is not None and decoding.link == "exp":  # scale · exp(s) = exp(s + log scale)
        bias = (bias + np.log(scale.scale)).astype(bias.dtype)
    elif scale is not None:
        bias = (bias * scale.scale + scale.center).astype(bias.dtype)
        weight = (weight * scale.scale).astype(weight.dtype)

    # Outputs whose targets are constant are predicted as this constant, whatever their weights are.
    if bounds is not None and bounds.constant.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            constants = np.log(bounds.low) if decoding.link == "exp" else bounds.low
        bias = np.where(bounds.constant, constants, bias).astype(bias.dtype)
        weight = np.where(bounds.constant, 0, weight)
    return LinearLayer(weight, bias)


@dataclass(frozen=True, eq=False)
class ScaledInput:
    """``X * factor + shift``, where ``factor`` and ``shift`` are scalars or arrays of shape (n_features,)."""

    factor: np.ndarray
    shift: np.ndarray


_INPUT = ScaledInput(np.array(1.0), np.array(0.0))

Found: TypeAlias = "np.ndarray | LinearLayer | ScaledInput | None"
"""A traced value: a constant, an affine function of the input, the scaled and shifted input, or None for any other."""


class _Trace:
    """Classifies the values of a graph: a constant, the input, an affine function of it, or None."""

    def __init__(self, name: str, weights: Mapping[str, np.ndarray]) -> None:
        self._name, self._weights = name, weights

    def of(self, value: ir.Value | None) -> Found:
        if value is None or value.name is None:
            return None
        if value.name in self._weights:
            return self._weights[value.name]
        if value.const_value is not None:
            return value.const_value.numpy()
        node = value.producer()
        if node is None:
            return _INPUT if value.name == self._name else None
        if node.op_type == "Constant" and "value" in node.attributes:
            return node.attributes["value"].as_tensor().numpy()
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        inputs = [] if rule is None else [self.of(x) for x in node.inputs]
        if inputs and _is_input(inputs[0]) and node.op_type in ("Mul", "Sub"):  # a scaler, if it is not trained
            factor = node.inputs[1]
            return None if factor is None or factor.name in self._weights else _scaled_input(node, inputs)
        return None if rule is None else rule(node, inputs)


def _attribute_or(node: ir.Node, name: str, default: object) -> Any:
    return node.attributes[name].value if name in node.attributes else default


def _linear_layout(node: ir.Node, inputs: Sequence[Found]) -> Found:
    value = inputs[0]
    if isinstance(value, LinearLayer):
        return value if node.op_type in ("Identity", "Cast") or value.weight.shape[1] == 1 else None
    if isinstance(value, np.ndarray) and node.op_type == "Reshape" and isinstance(inputs[1], np.ndarray):
        return value.reshape(inputs[1])
    return value if node.op_type in ("Identity", "Cast") or (node.op_type == "Flatten" and _is_input(value)) else None


def _is_input(value: Found) -> bool:
    return isinstance(value, ScaledInput)


def _scaled_input(node: ir.Node, inputs: Sequence[Found]) -> ScaledInput | None:
    x, numbers = inputs
    if not isinstance(x, ScaledInput) or not isinstance(numbers, np.ndarray) or numbers.ndim > 2:
        return None
    if numbers.ndim == 2 and len(numbers) > 1:
        return None
    row = numbers.reshape(-1).astype(np.float64)
    return ScaledInput(x.factor * row, x.shift * row) if node.op_type == "Mul" else ScaledInput(x.factor, x.shift - row)


def _linear_matmul(node: ir.Node, inputs: Sequence[Found]) -> LinearLayer | None:
    x, weight = inputs[:2]
    if not isinstance(x, ScaledInput) or not isinstance(weight, np.ndarray) or weight.ndim > 2:
        return None
    weight = weight.reshape(len(weight), -1)
    bias = np.broadcast_to(x.shift, len(weight)) @ weight.astype(np.float64)
    scaled = np.broadcast_to(x.factor, len(weight))[:, np.newaxis] * weight
    return LinearLayer(scaled.astype(weight.dtype), bias.astype(weight.dtype))


def _linear_gemm(node: ir.Node, inputs: Sequence[Found]) -> LinearLayer | None:
    weight = inputs[1]
    if _attribute_or(node, "transA", 0) or not isinstance(weight, np.ndarray):
        return None
    weight = np.float32(_attribute_or(node, "alpha", 1.0)) * (weight.T if _attribute_or(node, "transB", 0) else weight)
    found = _linear_matmul(node, [inputs[0], weight])
    bias = inputs[2] if len(inputs) > 2 and node.inputs[2] is not None else np.zeros(1, weight.dtype)
    return _shifted(found, bias, np.float32(_attribute_or(node, "beta", 1.0)))


def _shifted(found: Found, bias: Found, factor: float | np.float32 = 1) -> LinearLayer | None:
    if not isinstance(found, LinearLayer) or not isinstance(bias, np.ndarray):
        return None
    columns = found.weight.shape[1]
    if bias.size not in (1, columns) or (bias.ndim > 1 and bias.shape[-1] != bias.size):
        return None
    added = np.broadcast_to(bias.reshape(-1) * factor, (columns,)).astype(found.weight.dtype)
    return LinearLayer(found.weight, found.bias + added)


def _linear_sum(node: ir.Node, inputs: Sequence[Found]) -> LinearLayer | None:
    a, b = inputs if isinstance(inputs[0], LinearLayer) else reversed(inputs)
    return _shifted(a, b)


def _negative(node: ir.Node, inputs: Sequence[Found]) -> LinearLayer | None:
    return LinearLayer(-inputs[0].weight, -inputs[0].bias) if isinstance(inputs[0], LinearLayer) else None


def _linear_concat(node: ir.Node, inputs: Sequence[Found]) -> LinearLayer | None:
    parts = [part for part in inputs if isinstance(part, LinearLayer)]
    if _attribute_or(node, "axis", None) not in (1, -1) or len(parts) < len(inputs):
        return None
    return LinearLayer(np.hstack([part.weight for part in parts]), np.hstack([part.bias for part in parts]))


def _linear_gather(node: ir.Node, inputs: Sequence[Found]) -> LinearLayer | None:
    found, places = inputs
    if not isinstance(found, LinearLayer) or not isinstance(places, np.ndarray):
        return None
    if _attribute_or(node, "axis", 0) not in (1, -1):
        return None
    return LinearLayer(found.weight[:, places.reshape(-1)], found.bias[places.reshape(-1)])


def _transposed(node: ir.Node, inputs: Sequence[Found]) -> np.ndarray | None:
    return np.transpose(inputs[0], _attribute_or(node, "perm", None)) if isinstance(inputs[0], np.ndarray) else None


_RULES: dict[str, Callable[[ir.Node, Sequence[Found]], Found]] = {
    **dict.fromkeys(_LAYOUT, _linear_layout),
    "MatMul": _linear_matmul,
    "Gemm": _linear_gemm,
    "Add": _linear_sum,
    "Sub": lambda node, inputs: _shifted(inputs[0], inputs[1], -1),
    "Mul": lambda node, inputs: None,  # a product of other values than the input is not traced
    "Neg": _negative,
    "Concat": _linear_concat,
    "Gather": _linear_gather,
    "Transpose": _transposed,
}


# ``to_sklearn``: a copy of the fitted model that was given, with the trained numbers written into it.


def trained_estimator(estimator: Any, state: FittedState, X: MatrixLike | None) -> Any:
    """Return a copy of the fitted model with the trained numbers of ``state``; raise if its predictions differ on X."""
    if state.fitted is None or isinstance(state.fitted, FittedFile):
        raise ModelError(
            "to_sklearn() needs model= to be a fitted scikit-learn estimator; this one was built or given as ONNX. "
            "Use to_onnx()."
        )
    if state.decoding.clips:
        raise ModelError(
            "clip_predictions=True: scikit-learn's model does not clip what it predicts. Use to_onnx(), or set "
            "clip_predictions=False and train on."
        )
    if state.snapshots:
        raise ModelError("to_sklearn() gives one model, and a SnapshotEnsemble predicts by several: use to_onnx().")
    if X is None and state.live.sample is None:
        raise ValueError(
            "to_sklearn() compares both models on rows of data, and a pickled estimator holds none: give "
            "some rows, to_sklearn(X)."
        )
    from .._fitted.equivalence import require_equal  # both need much of scikit-learn
    from .._fitted.provenance import write_back

    rows = state.live.sample if X is None else sample_rows(X)
    result = write_back(
        cast("Estimator", bare_model(estimator.model)), state.fitted.origins, state.graph.weights(), state.weights()
    )
    found = predictions_on(estimator, state, rows)
    doubles = any(spec.dtype == "float64" for spec in state.deployed.inputs)
    require_equal(
        result, rows, found, what="Take to_onnx(), as the trained graph", tolerance=1e-5, reads_float64=doubles
    )
    return result
