"""Update graphs: one step of an optimizer, proven safe to run in place; and the clipping of the gradients' norm.

The new parameters and state overwrite the old ones. This is correct only if no node reads an old array after the new
one is written; :func:`update_graph` proves it for every graph that it returns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import onnx_ir as ir
from onnx_ir import Value

from .._ir.edits import append_output
from ..exceptions import ModelError, instead_of
from ..graph import GraphBuilder, Operand, new_graph, operators_of
from .base import WEIGHT_DECAY, Named, Parameter, Slot, Step


class UpdateRule(Protocol):
    """The methods that :func:`update_graph` calls; :class:`onnxtrain_sklearn.optimizers.Optimizer` documents them."""

    @property
    def elementwise(self) -> bool: ...

    def slots(self, p: Parameter) -> Mapping[str, Slot]: ...

    @property
    def scalars(self) -> Callable[..., Mapping[str, Any]]: ...

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step: ...

    def fused(self) -> UpdateRule | None: ...

    @property
    def moves_without_gradient(self) -> bool: ...


@dataclass(frozen=True)
class UpdateGraph:
    """One optimizer step as a graph.

    Inputs of ``model`` are ``parameters``, ``gradients``, the slots and the scalars by their names. Outputs are
    ``new_parameters`` and ``new_SLOT``, each of which may overwrite its predecessor. ``slots`` are the arrays of the
    state, ``scalars(learning_rate, t)`` the scalars of a step; where the weight decay is ``scheduled``, their third
    argument is its factor. An ``elementwise`` graph takes vectors of any length, also pieces of them.
    """

    model: ir.Model
    slots: Mapping[str, Slot]
    scalars: Callable[..., Mapping[str, Any]]
    elementwise: bool
    scheduled: bool = False


def update_graph(
    optimizer: UpdateRule,
    dtype: ir.DataType,
    *,
    parameter: Parameter | None = None,
    fused: bool = False,
    scheduled: bool = False,
) -> UpdateGraph:
    """Return the update graph of ``optimizer``, proven safe to run in place.

    Parameters
    ----------
    optimizer : Optimizer
    dtype : onnx_ir.DataType
        The type of the parameters.
    parameter : Parameter, optional
        The parameter that the graph updates, needed unless the optimizer is elementwise.
    fused : bool, default=False
        Whether to use equivalent kernels of onnxruntime-training, if there are any.
    scheduled : bool, default=False
        Whether the weight decay is a scalar of each step.
    """
    author = f"{type(optimizer).__name__}.update"
    if optimizer.elementwise:
        parameter = Parameter("parameters", cast("tuple[int, ...]", ("P",)))
    elif parameter is None:
        raise ModelError(f"{author} is not elementwise: its graph depends on the shape of a parameter, which is None.")
    rule = update_rule(optimizer, dtype, fused=fused, scheduled=scheduled)
    slots = slots_for(rule, parameter)
    scalars_of_step = rule.scalars(0.001, 1)
    shapes = {"parameters": parameter.shape, "gradients": parameter.shape} | {n: s.shape for n, s in slots.items()}
    arrays = {name: ir.val(name, dtype, shape) for name, shape in shapes.items()}
    scalars = {k: ir.val(k, ir.DataType.INT64 if isinstance(x, int) else dtype, ()) for k, x in scalars_of_step.items()}
    if clash := [name for name in scalars if name in arrays]:
        raise ModelError(f"{type(optimizer).__name__} has a scalar and an array of the name {clash[0]!r}: rename one.")
    op = new_graph([*arrays.values(), *scalars.values()], dtype, "update")
    with operators_of(author):
        state = {name: arrays[name] for name in slots}
        emitted: Any = rule.update(op, arrays["parameters"], arrays["gradients"], state, scalars)
    is_step = isinstance(emitted, tuple) and len(emitted) == 2 and isinstance(emitted[1], Mapping)
    if not is_step or not all(isinstance(value, Value) for value in (emitted[0], *emitted[1].values())):
        raise ModelError(
            f"{author} must return the new parameters and a dict of the new state, which are results of operators "
            f"(op.Sub(parameters, step), {{}}); {instead_of(emitted)}."
        )
    if emitted[1].keys() != slots.keys():
        raise ModelError(f"{author} must return new values of the state {sorted(slots)}, got {sorted(emitted[1])}.")
    # Give each returned value an output of its own: copy a value that is an input of the graph or is returned twice.
    # Make all copies before the first check, which must count them as readers of the old arrays.
    returned = [emitted[0], *emitted[1].values()]
    new = [value if value.producer() and returned.count(value) == 1 else op.Identity(value) for value in returned]
    for name, value in zip(("parameters", *emitted[1]), new, strict=True):
        old = arrays[name]
        shape = op.shape(arrays[name]) or ()
        found = op.shape(value)
        if found is not None and all(isinstance(size, int) for size in (*found, *shape)) and found != shape:
            raise ModelError(f"{author} returns {name!r} of shape {list(found)}, and it has {list(shape)}.")
        _check_in_place(author, old, value)
        append_output(op.graph, value, f"new_{name}", old)
    if isinstance(rule, ScheduledDecay) and not rule.changes({k for k, v in scalars.items() if v.consumers()}):
        raise ModelError(
            f"{author} does not follow weight_decay_schedule: its scalars do not depend on weight_decay. Take "
            f"k.get('weight_decay', self.weight_decay) in place of self.weight_decay in update."
        )
    if rule.elementwise:
        # Each element of the results may depend only on the elements at the same index.
        mixes = [node.op_type for node in op.graph if node.op_type not in _ELEMENTWISE]
        numbers = [value.const_value for value in op.graph.initializers.values()]
        if mixes or any(number is not None and number.size != 1 for number in numbers):
            reason = f"emits {mixes[0]}, which may combine elements" if mixes else "has constants of several elements"
            raise ModelError(
                f"{author} {reason}, and the vectors that it is given hold many parameters. Set elementwise = False "
                f"in the class: it is then given each parameter in its own shape."
            )
    return UpdateGraph(ir.Model(op.graph, ir_version=8), slots, rule.scalars, rule.elementwise, scheduled)


def slots_for(rule: UpdateRule, parameter: Parameter) -> dict[str, Slot]:
    """Return the slots of a parameter; raise if their names cannot name arrays, or their shapes do not fit."""
    found = rule.slots(parameter)
    author = f"{type(rule).__name__}.slots"
    for name, slot in found.items():
        if not isinstance(slot, Slot):
            raise ModelError(f"{author} must return Slot objects by name, {instead_of(slot)} for {name!r}.")
        if not name.isidentifier() or name in ("parameters", "gradients"):
            raise ModelError(f"{author} returns a slot {name!r}: take another name, of letters, digits and '_'.")
        if rule.elementwise and slot.shape != parameter.shape:
            raise ModelError(
                f"{author} returns a slot {name!r} of shape {slot.shape}. An elementwise optimizer has slots of the "
                f"parameter's shape, Slot(p.shape); set elementwise = False for others."
            )
    return dict(found)


def update_rule(
    optimizer: UpdateRule, dtype: ir.DataType, *, fused: bool = False, scheduled: bool = False
) -> UpdateRule:
    """Return the rule whose step the update graph computes; the arguments are those of :func:`update_graph`."""
    fused = fused and dtype == ir.DataType.FLOAT and _belongs_to_rule(optimizer, "fused")
    # Replace NumPy scalars by Python numbers: a float32 scalar would make the scalars of a step float32.
    if numbers := {name: x.item() for name, x in vars(optimizer).items() if isinstance(x, np.generic)}:
        optimizer = copy.copy(optimizer)
        vars(optimizer).update(numbers)
    rule = (optimizer.fused() if fused else None) or optimizer
    return ScheduledDecay(rule) if scheduled else rule


def moves_without_gradient(optimizer: UpdateRule) -> bool:
    """Return True if an element may change in a step in which its gradient is zero."""
    return not _belongs_to_rule(optimizer, "moves_without_gradient") or optimizer.moves_without_gradient


def _belongs_to_rule(optimizer: UpdateRule, name: str) -> bool:
    """Return True if the most derived class that defines any part of the rule defines the attribute.

    A subclass may override ``update`` alone: what its base says of the attribute need not hold then.
    """
    rule = {"update", "slots", "scalars", name}
    return name in vars(next(c for c in type(optimizer).__mro__ if rule & vars(c).keys()))


class ScheduledDecay:
    """An optimizer whose weight decay is multiplied by a factor at each step.

    :meth:`scalars` returns the scalars of the optimizer, computed with the weight decay of the step, and this weight
    decay itself as "weight_decay". The optimizer uses one or the other.
    """

    moves_without_gradient = True

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = copy.copy(optimizer)
        self.weight_decay = optimizer.weight_decay
        self.elementwise: bool = optimizer.elementwise

    def slots(self, p: Parameter) -> Mapping[str, Slot]:
        """Return the slots of the optimizer."""
        found: Mapping[str, Slot] = self.optimizer.slots(p)
        return found

    def scalars(self, learning_rate: Any, t: Any, factor: Any = 1.0) -> dict[str, Any]:
        """Return the scalars of step ``t``."""
        # The scalars may depend on the weight decay, as in AdamW: compute them with the weight decay of the step.
        now = vars(self.optimizer)[WEIGHT_DECAY] = factor * self.weight_decay
        try:
            return {**self.optimizer.scalars(learning_rate, t), WEIGHT_DECAY: now}
        finally:
            vars(self.optimizer)[WEIGHT_DECAY] = self.weight_decay

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        """Emit one step of the optimizer."""
        emitted: Step = self.optimizer.update(op, p, g, state, k)
        return emitted

    def fused(self) -> None:
        """Return None, because fused kernels were chosen before the optimizer was wrapped."""

    def changes(self, used: set[str]) -> bool:
        """Return True if the factor changes any of the scalars that the graph uses."""
        one, half = self.scalars(0.001, 1), self.scalars(0.001, 1, 0.5)
        return any(one[name] != half[name] for name in used)


_ELEMENTWISE = frozenset(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh Cast Ceil Clip Cos Cosh Div Elu Equal Erf Exp Floor Greater "
    "GreaterOrEqual HardSigmoid Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or "
    "Pow Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh Where Xor "
    "AdamOptimizer SGDOptimizer".split()
)
"""Operators whose result at an index depends only on the operands at that index, so it may overwrite an operand."""


def _check_in_place(author: str, old: Value, new: Value) -> None:
    """Raise unless every reader of ``old`` runs before ``new`` is written, or writes it element by element."""
    writer = new.producer()
    before: set[ir.Node] = set()
    front = {writer} if writer else set()
    while front:
        before |= front
        front = {earlier for node in front for earlier in node.predecessors()} - before
    late = [n for n in old.consumers() if n not in before or (n is writer and n.op_type not in _ELEMENTWISE)]
    if late:
        raise ModelError(
            f"{author} reads {old.name!r} in node {late[0].name!r} that may run after its new value "
            f"is written over it. Compute everything that needs the old {old.name!r} on the way to its new value."
        )


# Clipping of the norm of all gradients, which precedes the update of any optimizer.


def clip_graph(dtype: ir.DataType) -> ir.Model:
    r"""Return the graph that limits the Euclidean norm of all gradients, safe to run in place.

    .. math:: g ← g \min(1, c / (‖g‖ + 10^{-6}))

    Inputs are ``gradients`` (P,) and ``max_norm`` c; outputs are ``new_gradients`` (P,) and ``norm``, the norm before
    clipping. The formula is that of ``torch.nn.utils.clip_grad_norm_``, but squares are summed in float64: in float32
    the norm of 10M gradients is up to 0.8 % off, and a gradient of 1e20 makes the norm infinite and all gradients zero.
    A norm that is not finite makes all gradients NaN.
    """
    gradients, max_norm = ir.val("gradients", dtype, ("P",)), ir.val("max_norm", dtype, ())
    op = new_graph([gradients, max_norm], ir.DataType.DOUBLE, "clip")
    clipped, norm = emit_clipped(op, gradients, op.Cast(max_norm, to=ir.DataType.DOUBLE), dtype)
    _check_in_place("clip_graph", gradients, clipped)
    append_output(op.graph, clipped, "new_gradients", gradients)
    append_output(op.graph, op.Cast(norm, to=dtype), "norm", max_norm)
    return ir.Model(op.graph, ir_version=8)


def emit_clipped(op: GraphBuilder, gradients: Value, max_norm: Operand, dtype: ir.DataType) -> tuple[Value, Value]:
    """Emit the clipped gradients, of type ``dtype``, and their norm in the type of the constants of ``op``."""
    norm = op.Sqrt(op.ReduceSumSquare(op.Cast(gradients, to=op.dtype), keepdims=False))
    ratio = op.Div(max_norm, op.Add(norm, 1e-6))
    scale = op.Add(op.Min(ratio, 1.0), op.Sub(norm, norm))  # norm - norm is 0, or NaN if the norm is not finite
    return op.Mul(gradients, op.Cast(scale, to=dtype)), norm
