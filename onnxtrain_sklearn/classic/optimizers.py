r"""AdamW and the updates of training sessions, with onnxruntime's exact formulas, and their settings.

With the averages :math:`m ← α m + (1 - α) g` and :math:`v ← β v + (1 - β) g^2`, divided by :math:`1 - α^t` and
:math:`1 - β^t` if the bias is corrected, the direction is :math:`d = m / (\sqrt v + ε)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ..exceptions import nearest
from ..graph import GraphBuilder
from ..optimizers import AdamW
from ..optimizers.adam import adam_step
from ..optimizers.base import Named, Step
from ..optimizers.scalars import Number

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..optimizers.base import StepOptions

MOMENTS = ("Moment_1", "Moment_2")
UPDATE_COUNT = "Update_Count"

_ADAM: dict[str, float] = {"alpha": 0.9, "beta": 0.999, "lambda": 0.0, "epsilon": 1e-6, "max_norm_clip": 1.0}
DEFAULT_ATTRIBUTES: dict[str, dict[str, float]] = {
    "SGDOptimizer": {},
    "AdamOptimizer": {**_ADAM, "do_bias_correction": 1, "weight_decay_mode": 0},
    "AdamWOptimizer": {
        "alpha": 0.9,
        "beta": 0.999,
        "epsilon": 1e-8,
        "weight_decay": 0.01,
        "max_norm_clip": 1.0,
        "correct_bias": 1,
        "adam_mode": 0,
    },
    "LambOptimizer": {**_ADAM, "ratio_min": -np.inf, "ratio_max": np.inf, "do_bias_correction": 1},
}
INTEGERS = {"do_bias_correction", "weight_decay_mode", "correct_bias", "adam_mode"}


def attributes_of(parameters: TrainingParameters, name: str) -> dict[str, float]:
    """Return the attributes of the optimizer for the weight ``name``; raise ValueError for an unknown one."""
    default = DEFAULT_ATTRIBUTES[parameters.training_optimizer_name]
    floats = parameters.optimizer_attributes_map.get(name, {})
    integers = parameters.optimizer_int_attributes_map.get(name, {})
    for given, valid in ((floats, default.keys() - INTEGERS), (integers, default.keys() & INTEGERS)):
        for key in given:
            if key not in valid:
                raise ValueError(f"{parameters.training_optimizer_name} has no attribute {key!r}.{nearest(key, valid)}")
    return {**default, **floats, **integers}


@dataclass(frozen=True)
class Update:
    """The inputs of the update of one weight; ``rate`` and ``count`` are scalars."""

    weight: ir.Value
    gradient: ir.Value
    moments: Sequence[ir.Value]
    rate: ir.Value
    count: ir.Value


def emit_updates(
    op: GraphBuilder, parameters: TrainingParameters, updates: Mapping[str, Update]
) -> dict[str, list[ir.Value]]:
    """Emit the new value of each weight, followed by its new moments."""
    kind = parameters.training_optimizer_name
    settings = {name: attributes_of(parameters, name) for name in updates}
    scale = None
    if parameters.enable_grad_norm_clip and kind != "SGDOptimizer":
        limit = max(one["max_norm_clip"] for one in settings.values())
        scale = _scale(op, [one.gradient for one in updates.values()], limit)
    results = {}
    for name, one in updates.items():
        op.dtype = one.weight.dtype or ir.DataType.FLOAT
        gradient = one.gradient if scale is None else op.Mul(one.gradient, op.Cast(scale, to=op.dtype))
        rate, count = op.Cast(one.rate, to=op.dtype), op.Cast(one.count, to=op.dtype)
        if kind == "SGDOptimizer":
            results[name] = [op.Sub(one.weight, op.Mul(gradient, rate))]
        else:
            results[name] = _adam(op, kind, settings[name], one, gradient, rate, count)
    return results


def _scale(op: GraphBuilder, gradients: Sequence[ir.Value], limit: float) -> ir.Value:
    """Emit the factor that clips the global gradient norm, computed in float64."""
    op.dtype = ir.DataType.DOUBLE
    squares = [op.ReduceSumSquare(op.Cast(g, to=ir.DataType.DOUBLE), keepdims=False) for g in gradients]
    norm = op.Sqrt(reduce(op.Add, squares))
    return op.Min(op.Div(float(limit), op.Add(norm, 1e-12)), 1.0)


def _adam(
    op: GraphBuilder,
    kind: str,
    settings: Mapping[str, float],
    one: Update,
    gradient: ir.Value,
    rate: ir.Value,
    count: ir.Value,
) -> list[ir.Value]:
    w = one.weight
    decay = settings.get("weight_decay", settings.get("lambda", 0.0))
    alpha, beta = settings["alpha"], settings["beta"]
    first = _moving_average(op, one.moments[0], gradient, alpha)
    second = _moving_average(op, one.moments[1], op.Mul(gradient, gradient), beta)
    corrected = bool(settings.get("do_bias_correction", settings.get("correct_bias")))
    m, v = first, second
    if corrected:
        m, v = (op.Div(x, op.Sub(1.0, op.Pow(op.value(b), count))) for x, b in ((first, alpha), (second, beta)))
    late = settings.get("weight_decay_mode", settings.get("adam_mode", 0))
    if late:  # epsilon is added before the bias correction; the decay is applied after the step
        root = op.Sqrt(op.Sub(1.0, op.Pow(op.value(beta), count))) if corrected else None
        direction = op.Div(m, op.Add(op.Sqrt(second), settings["epsilon"]))
        direction = direction if root is None else op.Mul(direction, root)
        new = op.Sub(w, op.Mul(direction, rate))
        return [op.Sub(new, op.Mul(op.Mul(new, decay), rate)) if decay else new, first, second]
    direction = op.Div(m, op.Add(op.Sqrt(v), settings["epsilon"]))
    direction = op.Add(direction, op.Mul(w, decay)) if decay else direction
    if kind == "LambOptimizer":
        direction = op.Mul(direction, _trust_ratio(op, w, direction, settings))
    return [op.Sub(w, op.Mul(direction, rate)), first, second]


def _moving_average(op: GraphBuilder, old: ir.Value, new: ir.Value, share: float) -> ir.Value:
    return op.Add(op.Mul(old, share), op.Mul(new, 1.0 - share))


def _trust_ratio(op: GraphBuilder, w: ir.Value, direction: ir.Value, settings: Mapping[str, float]) -> ir.Value:
    """Emit the norm of the weight divided by that of the step; 1 if one of the norms is zero."""
    # The flags keep the division from being 0 / 0, and put 1 in place of a ratio that lacks a norm.
    norms = [op.Sqrt(op.ReduceSumSquare(x, keepdims=False)) for x in (w, direction)]
    nonzero = [op.Cast(op.Cast(x, to=ir.DataType.BOOL), to=op.dtype) for x in norms]
    both = op.Mul(*nonzero)
    ratio = op.Div(norms[0], op.Add(norms[1], op.Sub(1.0, nonzero[1])))
    bounds = [np.asarray(settings[name], op.dtype.numpy()) for name in ("ratio_min", "ratio_max")]
    held = op.Min(op.Max(ratio, bounds[0]), bounds[1])
    return op.Add(op.Mul(held, both), op.Sub(1.0, both))


# The optimizer of onnxruntime-training's files, as an optimizer of the estimators.


__all__ = ["OrtAdamW"]


class OrtAdamW(AdamW):
    r"""AdamW in the form of onnxruntime-training, which ``OptimType.AdamW`` writes into the files for devices.

    .. math:: \tilde p = p - η \frac{\sqrt{1 - β_2^t}}{1 - β_1^t} \frac{m_t}{\sqrt{v_t} + ε}, \quad
        p ← \tilde p - η λ \tilde p

    with the averages m and v of :class:`~onnxtrain_sklearn.optimizers.Adam`. ε is added before the bias correction and
    is 100 times larger: where gradients are small, the first steps are shorter than those of
    :class:`~onnxtrain_sklearn.optimizers.AdamW`. The weight decay follows the step. It is the AdamW of the
    "transformers" library before version 4, ``adam_mode=1`` of the operator AdamWOptimizer.

    Parameters
    ----------
    beta_1, beta_2, epsilon : float, default=0.9, 0.999 and 1e-6
        As for :class:`~onnxtrain_sklearn.optimizers.Adam`.
    weight_decay : float, default=0.0
        λ, in [0, inf), relative to the learning rate.
    {options}

    Examples
    --------
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> from onnxtrain_sklearn.classic.optimizers import OrtAdamW
    >>> OrtGradientRegressor(Linear(), optimizer=OrtAdamW()).optimizer
    OrtAdamW()
    """

    def __init__(
        self,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(beta_1, beta_2, epsilon, weight_decay, **options)

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        return {**super().scalars(learning_rate, t), "epsilon": float(self.epsilon)}

    def update(self, op: GraphBuilder, p: ir.Value, g: ir.Value, state: Named, k: Named) -> Step:
        step, moments = adam_step(op, g, state, k, self)
        new = op.Sub(p, step)
        return op.Sub(new, op.Mul(new, k["decay"])) if self.weight_decay else new, moments

    def fused(self) -> None:
        return None


# The parameters of a training session, with the names and defaults of onnxruntime's TrainingParameters.


OPTIMIZER_NAMES = ("", "SGDOptimizer", "AdamOptimizer", "AdamWOptimizer", "LambOptimizer")

_MEANINGLESS = (
    "allreduce_post_accumulation attn_dropout_recompute data_parallel_size deepspeed_zero_stage enable_adasum "
    "gelu_recompute horizontal_parallel_size num_pipeline_micro_batches number_recompute_layers "
    "pipeline_cut_info_string pipeline_parallel_size propagate_cast_ops_allow propagate_cast_ops_level sliced_axes "
    "sliced_schema sliced_tensor_names transformer_layer_recompute use_fp16_moments use_memory_efficient_gradient "
    "use_mixed_precision world_rank world_size"
).split()


@dataclass
class TrainingParameters:
    """The settings of a training session; attributes are set after construction, as in onnxruntime.

    Attributes
    ----------
    loss_output_name : str
        The minimized output, a scalar.
    training_optimizer_name : str, default=""
        "SGDOptimizer", "AdamOptimizer", "AdamWOptimizer" or "LambOptimizer"; "": gradients only.
    weights_to_train, weights_not_to_train : set of str
        Initializers to train, by default all of floating-point type, and those to exclude.
    immutable_weights : dict of str to dict of int to float
        Initializers of one element that are not trained, by operator, position among its inputs, and value.
    lr_params_feed_name : str, default="Learning_Rate"
        The input for the learning rate; a run that is fed it takes a step.
    optimizer_attributes_map, optimizer_int_attributes_map : dict of str to dict
        Attributes of the optimizer by weight: ``alpha``, ``beta``, ``epsilon``, ``lambda`` (AdamW: ``weight_decay``),
        for Lamb ``ratio_min`` and ``ratio_max``, for all but SGD ``max_norm_clip``; integers ``do_bias_correction`` and
        ``weight_decay_mode``, for AdamW ``correct_bias`` and ``adam_mode``.
    enable_grad_norm_clip : bool, default=True
        Whether Adam, AdamW and Lamb clip the global gradient norm to the largest ``max_norm_clip`` (1 by default);
        SGDOptimizer never does.
    gradient_accumulation_steps : int, default=1
        Number of runs whose mean gradient makes one step.
    set_gradients_as_graph_outputs : bool, default=False
        Whether a session has outputs ``NAME_grad``.
    loss_scale : float, default=0.0
        Factor of the loss while gradients are computed; the gradients are divided by it. 0: no factor. It is never
        adapted during training.
    model_after_graph_transforms_path, model_with_gradient_graph_path, model_with_training_graph_path : str, default=""
        Files for the graph: before differentiation, with gradients, with the whole step.

    Notes
    -----
    The other attributes of the original do not apply to one process that trains the whole graph in its own precision: a
    session raises ValueError unless they have their defaults. ``use_mixed_precision`` is one of them because
    onnxruntime's CPU computes float16 operators in float32: it would change no number.

    Examples
    --------
    >>> from onnxtrain_sklearn.classic.training_session import TrainingParameters
    >>> parameters = TrainingParameters()
    >>> parameters.loss_output_name, parameters.training_optimizer_name = "loss", "SGDOptimizer"
    >>> parameters.lr_params_feed_name
    'Learning_Rate'
    """

    loss_output_name: str = ""
    training_optimizer_name: str = ""
    weights_to_train: set[str] = field(default_factory=set)
    weights_not_to_train: set[str] = field(default_factory=set)
    immutable_weights: dict[str, dict[int, float]] = field(default_factory=dict)
    lr_params_feed_name: str = "Learning_Rate"
    optimizer_attributes_map: dict[str, dict[str, float]] = field(default_factory=dict)
    optimizer_int_attributes_map: dict[str, dict[str, int]] = field(default_factory=dict)
    enable_grad_norm_clip: bool = True
    gradient_accumulation_steps: int = 1
    set_gradients_as_graph_outputs: bool = False
    model_after_graph_transforms_path: str = ""
    model_with_gradient_graph_path: str = ""
    model_with_training_graph_path: str = ""
    allreduce_post_accumulation: bool = False
    attn_dropout_recompute: bool = False
    data_parallel_size: int = 1
    deepspeed_zero_stage: int = 0
    enable_adasum: bool = False
    gelu_recompute: bool = False
    horizontal_parallel_size: int = 1
    loss_scale: float = 0.0
    num_pipeline_micro_batches: int = 1
    number_recompute_layers: int = 0
    pipeline_cut_info_string: str = ""
    pipeline_parallel_size: int = 1
    propagate_cast_ops_allow: list[str] = field(default_factory=list)
    propagate_cast_ops_level: int = 1
    sliced_axes: dict[str, int] = field(default_factory=dict)
    sliced_schema: dict[str, Any] = field(default_factory=dict)
    sliced_tensor_names: list[str] = field(default_factory=list)
    transformer_layer_recompute: bool = False
    use_fp16_moments: bool = False
    use_memory_efficient_gradient: bool = False
    use_mixed_precision: bool = False
    world_rank: int = 0
    world_size: int = 1
    _initial_state: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, repr=False)

    def __setattr__(self, name: str, value: object) -> None:
        # A misspelled attribute would be ignored, and training would be another one without a word.
        if name not in (known := {one.name for one in fields(self)}):
            raise AttributeError(f"TrainingParameters has no attribute {name!r}.{nearest(name, known)}")
        object.__setattr__(self, name, value)

    def set_optimizer_initial_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the initial state of the optimizer, as :meth:`~.TrainingSession.get_optimizer_state` returns it."""
        self._initial_state = {
            name: {slot: np.array(value.numpy() if hasattr(value, "numpy") else value) for slot, value in slots.items()}
            for name, slots in state.items()
        }

    @property
    def initial_state(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """The state set by :meth:`set_optimizer_initial_state`."""
        return self._initial_state

    def validate(self) -> None:
        """Raise ValueError if an attribute is invalid or does not apply."""
        default = TrainingParameters()
        for name in _MEANINGLESS:
            value, expected = getattr(self, name), getattr(default, name)
            if value != expected:
                raise ValueError(
                    f"TrainingParameters.{name}={value!r} does not apply: one process trains the whole graph in "
                    f"its own precision. Leave it {expected!r}."
                )
        if self.training_optimizer_name not in OPTIMIZER_NAMES:
            hint = nearest(self.training_optimizer_name, OPTIMIZER_NAMES[1:])
            raise ValueError(f"Unknown training_optimizer_name {self.training_optimizer_name!r}.{hint}")
        if not (isinstance(self.loss_scale, int | float) and np.isfinite(self.loss_scale) and self.loss_scale >= 0):
            raise ValueError(f"loss_scale must be a positive number, or 0 for none, got {self.loss_scale!r}.")
        if not isinstance(self.gradient_accumulation_steps, int) or self.gradient_accumulation_steps < 1:
            raise ValueError(
                f"gradient_accumulation_steps must be at least 1, got {self.gradient_accumulation_steps!r}."
            )
