"""Update graphs: one step of an optimizer over flat vectors, proven safe to run in place.

A new vector overwrites the old one. This is correct only if nothing reads the old vector after the new one is written;
:func:`update_graph` proves it for every graph that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import onnx_ir as ir
from onnx_ir import Value

from .._graph.builder import GraphBuilder, Operand, new_graph, operators_of
from .._graph.edits import append_output
from ..exceptions import ModelError, instead_of
from .scheduled_decay import ScheduledDecay

Coefficients: TypeAlias = "dict[str, float | int]"
Step: TypeAlias = "tuple[Value, dict[str, Value]]"
Named: TypeAlias = "Mapping[str, Value]"

PIECE = 131072
"""Elements per run of an elementwise graph over vectors longer than two of these. Temporaries then fit the cache:
AdamW over 10M parameters takes 31 ms instead of 61 (64k to 256k are equal within noise)."""


class UpdateRule(Protocol):
    """The methods that :func:`update_graph` calls; :class:`onnxtrain_sklearn.optimizers.Optimizer` documents them."""

    elementwise: bool

    def state(self) -> dict[str, float]: ...

    def coefficients(self, learning_rate: float, t: int) -> Coefficients: ...

    def update(
        self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named
    ) -> Step: ...

    def fused(self) -> UpdateRule | None: ...

    @property
    def moves_without_gradient(self) -> bool: ...


@dataclass(frozen=True)
class UpdateGraph:
    """One optimizer step as a graph.

    Inputs of ``model`` are ``parameters``, ``gradients``, the slots and the coefficients by their names. Outputs are
    ``new_parameters`` and ``new_SLOT``, each of which may overwrite its predecessor. ``slots`` are the state vectors
    with their initial values, ``coefficients(learning_rate, t)`` the scalars of a step; where the weight decay is
    ``scheduled``, their third argument is its factor. An ``elementwise`` graph may be run on pieces of the vectors.
    """

    model: ir.Model
    slots: Mapping[str, float]
    coefficients: Callable[..., Coefficients]
    elementwise: bool
    scheduled: bool = False


def update_graph(
    optimizer: UpdateRule, dtype: ir.DataType, *, fused: bool = False, scheduled: bool = False
) -> UpdateGraph:
    """Return the update graph of ``optimizer`` for vectors of type ``dtype``, proven safe to run in place.

    With ``fused`` it uses equivalent kernels of onnxruntime-training, if there are any. With ``scheduled`` the weight
    decay is a coefficient of each step.
    """
    plain = update_rule(optimizer, dtype, fused=fused)
    slots, author = plain.state(), f"{type(plain).__name__}.update"
    decaying = ScheduledDecay(plain) if scheduled else None
    rule = plain if decaying is None else decaying
    vectors = {name: ir.val(name, dtype, ("P",)) for name in ("parameters", "gradients", *slots)}
    coefficients = rule.coefficients(0.001, 1).items()
    scalars = {k: ir.val(k, ir.DataType.INT64 if isinstance(x, int) else dtype, ()) for k, x in coefficients}
    op = new_graph([*vectors.values(), *scalars.values()], dtype, "update")
    state = {name: vectors[name] for name in slots}
    with operators_of(author):
        emitted: object = rule.update(op, vectors["parameters"], vectors["gradients"], state, scalars)
    parameters, new_state = _checked_step(emitted, author)
    if new_state.keys() != slots.keys():
        raise ModelError(f"{author} must return new values of the state {sorted(slots)}, got {sorted(new_state)}.")
    for name, value in _separate(op, {"parameters": parameters, **new_state}).items():
        _check_in_place(author, vectors[name], value)
        append_output(op.graph, value, f"new_{name}", vectors[name])
    if decaying is not None:
        _require_scheduled(author, decaying, scalars)
    numbers = [value.const_value for value in op.graph.initializers.values()]
    alike = all(number is None or number.size == 1 for number in numbers)  # else elements have constants of their own
    elementwise = rule.elementwise and alike and all(node.op_type in _ELEMENTWISE for node in op.graph)
    return UpdateGraph(ir.Model(op.graph, ir_version=8), slots, rule.coefficients, elementwise, scheduled)


def _checked_step(emitted: object, author: str) -> Step:
    if isinstance(emitted, tuple) and len(emitted) == 2 and isinstance(emitted[1], Mapping):
        values = emitted[0], *emitted[1].values()
        if all(isinstance(value, Value) for value in values):
            return emitted
    raise ModelError(
        f"{author} must return the new parameters and a dict of the new state, which are results of operators "
        f"(op.Sub(parameters, step), {{}}); {instead_of(emitted)}."
    )


def update_rule(
    optimizer: UpdateRule, dtype: ir.DataType, *, fused: bool = False, scheduled: bool = False
) -> UpdateRule:
    """Return the rule whose step the update graph computes, of :func:`update_graph`'s arguments."""
    fused = fused and dtype == ir.DataType.FLOAT and _belongs_to_rule(optimizer, "fused")
    rule = (optimizer.fused() if fused else None) or optimizer
    return ScheduledDecay(rule) if scheduled else rule


def moves_without_gradient(optimizer: UpdateRule) -> bool:
    """Whether an element may change in a step in which its gradient is zero."""
    return not _belongs_to_rule(optimizer, "moves_without_gradient") or optimizer.moves_without_gradient


def _belongs_to_rule(optimizer: UpdateRule, name: str) -> bool:
    """Whether an attribute is that of the class which defines the update: a subclass may override the rule alone."""
    rule = {"update", "state", "coefficients", name}
    return name in vars(next(c for c in type(optimizer).__mro__ if rule & vars(c).keys()))


def _require_scheduled(author: str, rule: ScheduledDecay, scalars: Named) -> None:
    """Raise unless the update depends on the weight decay of the step."""
    if not rule.changes({name for name, value in scalars.items() if value.consumers()}):
        raise ModelError(
            f"{author} does not follow weight_decay_schedule: its coefficients do not depend on weight_decay. Take "
            f"coefficients.get('weight_decay', self.weight_decay) in place of self.weight_decay in update."
        )


def clip_graph(dtype: ir.DataType) -> ir.Model:
    r"""Return the graph that limits the Euclidean norm of all gradients, safe to run in place.

    .. math:: g ← g \min(1, c / (‖g‖ + 10^{-6}))

    Inputs ``gradients`` (P,) and ``max_norm`` c; outputs ``new_gradients`` (P,) and ``norm``, the norm before. As
    ``torch.nn.utils.clip_grad_norm_``, but squares are summed in float64: in float32 the norm of 10M gradients is up to
    0.8 % off, and one of 1e20 makes it infinite and all gradients zero. A norm that is not finite gives NaN throughout.
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
    scale = op.Add(op.Min(ratio, 1.0), op.Sub(norm, norm))  # inf - inf is NaN
    return op.Mul(gradients, op.Cast(scale, to=dtype)), norm


def _separate(op: GraphBuilder, results: Named) -> dict[str, Value]:
    """Return ``results`` with copies of values that are inputs of the graph or occur twice."""
    values = list(results.values())
    return {name: v if v.producer() and values.count(v) == 1 else op.Identity(v) for name, v in results.items()}


_ELEMENTWISE = frozenset(
    "Abs Add And Cast Ceil Clip Div Equal Erf Exp Floor Greater GreaterOrEqual Identity Less LessOrEqual Log Max Min "
    "Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Softplus Sqrt Sub Sum Tanh Where "
    "AdamOptimizer SGDOptimizer".split()
)


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
