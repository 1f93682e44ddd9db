"""The parameters of a training session, with the names and defaults of onnxruntime's TrainingParameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..exceptions import nearest

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
        Initializers of one element that are not trained: by operator, position among its inputs, and value.
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
        Factor of the loss for the computation of gradients, which are divided by it. 0: no factor; it is never adapted
        during training.
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
        if name not in (known := {one.name for one in fields(self)}):
            raise AttributeError(f"TrainingParameters has no attribute {name!r}.{nearest(name, known)}")
        object.__setattr__(self, name, value)

    def set_optimizer_initial_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the initial state of the optimizer, as :meth:`~.TrainingSession.get_optimizer_state` returns it."""
        self._initial_state = {name: {k: _array(v) for k, v in slots.items()} for name, slots in state.items()}

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
                    f"TrainingParameters.{name}={value!r} has no meaning here, where one process trains the "
                    f"whole graph in its own precision: leave it {expected!r}."
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


def _array(value: Any) -> np.ndarray:
    return np.array(value.numpy() if hasattr(value, "numpy") else value)
