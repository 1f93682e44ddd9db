"""The parameters that are trained: the user's selection, checked against what can be trained."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from .._graph.constants import rounded
from .._graph.low_rank import factors_of_matrices
from .._graph.reweighted import form_of
from .._graph.trainable import TrainableModel, why_quantized
from .._graph.weights import TRAINED_TYPES
from ..exceptions import ModelError, warn
from .missed_matrices import warn_of_missed_matrices
from .parameters import Trainable, select_trainable

_UNREAD = np.empty(0)

MOST_NAMED = 8
"""Parameters that a warning names."""


def selected(source: TrainableModel, trainable: Trainable) -> tuple[TrainableModel, list[str]]:
    """Return the names of the parameters that ``trainable`` selects, and the model with these among its parameters.

    A constant that was not recognized as a weight becomes one if it is named in full.
    """
    source = _with_named_constants(source, trainable)
    if source.low_rank:
        return _beside_factors(source, trainable)
    weights = source.weights() if callable(trainable) else {}  # only predicates read the values, which may be large
    names = select_trainable({name: weights.get(name, _UNREAD) for name in source.parameters}, trainable)
    everything = isinstance(trainable, str) and trainable == "all"
    if source.quantized:
        _require_floats(source, names, everything=everything)
    if source.narrow and everything:
        _refuse_narrow_floats(source)
    warn_of_missed_matrices(source, trainable, names)
    return source, names


def warn_of_doubtful(source: TrainableModel, names: Collection[str], trainable: Trainable) -> None:
    """Warn of trained numbers that may be constants, unless the user has said what is trained."""
    found = [name for name in source.doubtful if name in names]
    if not found or not (isinstance(trainable, str) and trainable == "all"):
        return
    shown = ", ".join(f"{name!r} ({source.roles.get(name, '').split(',')[0]})" for name in found[:MOST_NAMED])
    others = [name for name in source.parameters if name not in found]
    few = repr(others) if 0 < len(others) <= MOST_NAMED else f"lambda name, array: name not in {found!r}"
    warn(
        f"Single numbers of the graph are trained that may be constants of its formulas: {shown}"
        f"{f' and {len(found) - MOST_NAMED} more' if len(found) > MOST_NAMED else ''}. Say which: trainable='*' "
        f"trains them, trainable={few} leaves them as they are."
    )


def _beside_factors(source: TrainableModel, trainable: Trainable) -> tuple[TrainableModel, list[str]]:
    """Return the low-rank factors and what is selected beside them; the matrices that they change stay frozen."""
    factors, changed = factors_of_matrices(source.low_rank), {one.matrix for one in source.low_rank}
    if source.quantized:
        _require_floats(source, [*factors], everything=False)
    if isinstance(trainable, str) and trainable == "all":
        return source, [name for name in source.parameters if name in factors]
    if isinstance(trainable, str | Iterable) and (both := changed.intersection([*_listed_names(trainable)])):
        raise ValueError(
            f"trainable names {min(both)!r}, which stays as it is beside its low-rank factors. Leave it out of "
            f"trainable, or out of the targets of the adapters."
        )
    others = tuple(name for name in source.parameters if name not in changed)
    found, names = selected(replace(source, parameters=others, low_rank=()), trainable)
    added = tuple(name for name in found.parameters if name not in others)
    parameters = (*source.parameters, *added)
    chosen = factors.union(names)
    result = replace(found, parameters=parameters, low_rank=source.low_rank)
    return result, [name for name in parameters if name in chosen]


def _listed_names(trainable: str | Iterable[str]) -> list[str]:
    return [trainable] if isinstance(trainable, str) else list(trainable)


def _with_named_constants(source: TrainableModel, trainable: Trainable) -> TrainableModel:
    if callable(trainable) or not isinstance(trainable, str | Iterable):
        return source
    patterns = [trainable] if isinstance(trainable, str) else list(trainable)
    named = [name for name in patterns if isinstance(name, str) and name in source.constants]
    initializers = form_of(source.model).graph.initializers
    for name in named:
        if name in source.statistics:
            raise ValueError(
                f"trainable names {name!r}, a running statistic of a normalization, which batches move and no gradient "
                f"does. Name its scale and bias; training_mode=True trains with the statistics of minibatches."
            )
        if name not in initializers or TRAINED_TYPES[initializers[name].dtype] != source.dtype:
            raise ValueError(
                f"trainable={name!r} names a constant that cannot be trained ({source.constants[name]}): it must be an "
                f"initializer of type {source.dtype}, as the parameters are. Store it as one to train it."
            )
    if not named:
        return source
    roles = {**source.roles, **dict.fromkeys(named, "named in trainable")}
    constants = {name: reason for name, reason in source.constants.items() if name not in named}
    return replace(source, parameters=(*source.parameters, *named), roles=roles, constants=constants)


def _refuse_narrow_floats(source: TrainableModel) -> None:
    initializers = source.model.graph.initializers
    narrow = ", ".join(f"{name!r} ({initializers[name].dtype})" for name in source.narrow[:3])
    raise ModelError(
        f"The graph has {len(source.narrow)} weight(s) of types that are not trained: {narrow}. Export the model in "
        f"float32, or name the float32 parameters to train in trainable: the others stay as they are."
    )


def _require_floats(source: TrainableModel, names: list[str], *, everything: bool) -> None:
    """Raise if quantization would leave weights out, or give them no gradient."""
    initializers = source.model.graph.initializers
    free = [name for name in source.parameters if not rounded(initializers[name])]
    holds_weights = any("QuantizeLinear" not in node for node in source.quantized)  # integer products
    if set(names) <= set(free) and not (everything and holds_weights):
        return
    behind = ", ".join(map(repr, free))
    rest = f", or name parameters behind the last of these nodes in trainable: {behind}" if free else ""
    raise ModelError(f"{why_quantized(source.quantized)}{rest}.")
