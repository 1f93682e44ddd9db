"""Parameters as named views of one vector: their selection, groups and segments, and which of them are penalized.

A parameter is a view into the vectors: sessions read and write the views, optimizers the whole vectors. Parameters of
rank two and more come first, so that the penalized ones are one slice. Running statistics, which training updates
without a gradient, follow the parameters, so that a single copy holds everything that training changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import onnx_ir as ir

from .._ir.limits import LARGEST_MESSAGE
from .._ir.queries import is_in_file, kind, operand
from .._model.constants import rounded
from .._model.trainable import TrainableModel, why_quantized
from .._model.weights import TRAINED_TYPES, array_of, factors_of_matrices, template_of
from .._utils.typing import DType
from ..exceptions import InvalidParameterError, ModelError, nearest, warn
from ..optimizers import BaseOptimizer, Optimizer, Parameter, Slot
from ..optimizers.in_place import slots_for


def owned(array: np.ndarray) -> np.ndarray:
    """Return ``array``, or a copy if training must not write to it.

    An unpickled array may be memory-mapped from a file (``mmap_mode``, joblib's workers). A session that writes to it
    would change the file or, if the array is read-only, crash the process.
    """
    if type(array) is np.ndarray and array.flags.owndata and array.flags.carray:
        return array
    return np.array(array, order="C", subok=False)


class FlatParameters:
    """Named arrays that share one vector.

    Parameters
    ----------
    weights : mapping of str to ndarray
        Initial values; they are copied.
    dtype : numpy.dtype
        Type of the vectors.
    running_statistics : mapping of str to ndarray, optional
        Initial values of the running statistics.
    groups : mapping of str to tuple of float, optional
        Sort keys by parameter. Parameters of rank >= 2 come before the others. Within each part, those with equal keys
        are neighbors in the vector, and those without a key come first.
    averages : bool, default=False
        Whether to keep a moving average of the parameters, which predictions use instead of them.

    Attributes
    ----------
    buffer : ndarray of shape (P + M,) or (P + M + P,)
        The P parameters, followed by the M running statistics and by the average of the parameters.
    average : ndarray of shape (P,) or None
        The average of the parameters, a view into ``buffer``.
    vector, gradient : ndarray of shape (P,)
        The parameters, a view into ``buffer``, and their gradients.
    names : tuple of str
        The parameters, in the order of the vector.
    running_statistics : tuple of str
        The running statistics.
    penalized : slice
        The part of the vectors that holds parameters of rank >= 2.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        dtype: DType,
        running_statistics: Mapping[str, np.ndarray] | None = None,
        groups: Mapping[str, tuple[float, ...]] | None = None,
        *,
        averages: bool = False,
    ) -> None:
        every = {**weights, **(running_statistics or {})}
        group = groups or {}
        self.names = tuple(sorted(weights, key=lambda name: (weights[name].ndim < 2, group.get(name, ()))))
        self.running_statistics = tuple(running_statistics or ())
        order = self.names + self.running_statistics
        self._shapes = {name: every[name].shape for name in order}
        ends = list(accumulate((every[name].size for name in order), initial=0))
        self._spans = {name: slice(a, b) for name, a, b in zip(order, ends, ends[1:], strict=False)}
        self.buffer: np.ndarray = np.empty(ends[-1], dtype)
        self.averages = False
        self.penalized = slice(0, int(sum(weights[n].size for n in self.names if weights[n].ndim >= 2)))
        self._divide(ends[len(self.names)])
        for name in order:
            self.view(name)[...] = every[name]
        if averages:
            self._set_averages(averages)

    def _divide(self, size: int) -> None:
        self._vector = self.buffer[:size]
        self.gradient = np.zeros(size, self.vector.dtype)  # takes no memory until a pass writes it
        self.average = self.buffer[-size:] if self.averages else None

    def _set_averages(self, averages: bool) -> None:
        end = len(self.vector) + len(self.statistics)
        parts = [self.buffer[:end], self.vector] if averages else [self.buffer[:end]]
        size, self.averages, self.buffer = len(self.vector), averages, np.concatenate(parts)
        self._divide(size)

    @property
    def vector(self) -> np.ndarray:
        """The parameters, a view into ``buffer``."""
        return self._vector

    @vector.setter
    def vector(self, value: np.ndarray) -> None:
        # Sessions are bound to this array, so they would ignore another one. ``vector *= 2`` assigns the same array.
        if value is not self._vector:
            raise AttributeError(
                "parameters.vector cannot be replaced: training reads this array. Write new values into it: "
                "parameters.vector[...] = values."
            )

    @property
    def statistics(self) -> np.ndarray:
        """The running statistics, a view into ``buffer``."""
        start = len(self.vector)
        return self.buffer[start : self._spans[self.running_statistics[-1]].stop if self.running_statistics else start]

    def aligned(self, elements: int) -> FlatParameters:
        """Return a copy in which every array begins at a multiple of ``elements``; zeros fill the gaps."""
        twin = copy.copy(self)
        order = self.names + self.running_statistics
        sizes = {name: self._spans[name].stop - self._spans[name].start for name in order}
        starts = list(accumulate((-(-sizes[name] // elements) * elements for name in order), initial=0))
        twin._spans = {name: slice(a, a + sizes[name]) for name, a in zip(order, starts, strict=False)}
        penalized = [twin._spans[name].stop for name in self.names if len(self._shapes[name]) >= 2]
        twin.penalized = slice(0, max(penalized, default=0))
        twin.averages = False
        twin.buffer = np.zeros(starts[-1], self.buffer.dtype)
        twin._divide(starts[len(self.names)])
        return twin.with_averages(self.averages)

    def with_averages(self, averages: bool) -> FlatParameters:
        """Return a copy with a moving average that starts from the parameters, or without one."""
        twin = copy.copy(self)
        twin._set_averages(averages)
        return twin

    def with_buffer(self, buffer: np.ndarray) -> FlatParameters:
        """Return the same layout over another ``buffer``, which holds the values."""
        twin = copy.copy(self)
        twin.buffer = buffer
        twin._divide(len(self.vector))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_vector": len(self.vector), "gradient": None, "average": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.buffer = owned(self.buffer)
        self._divide(cast("int", state["_vector"]))

    def span(self, name: str) -> slice:
        """Return the slice of ``buffer`` that holds the parameter or statistic ``name``."""
        return self._spans[name]

    def view(self, name: str) -> np.ndarray:
        """Return the parameter or statistic ``name`` as a view."""
        return self.buffer[self._spans[name]].reshape(self._shapes[name])

    def gradient_view(self, name: str) -> np.ndarray:
        """Return the gradient of ``name`` as a view into the vector of gradients."""
        return self.gradient[self._spans[name]].reshape(self._shapes[name])

    def views(self) -> dict[str, np.ndarray]:
        """Return every parameter and statistic by name, as a view."""
        return {name: self.view(name) for name in self.names + self.running_statistics}

    def prediction_views(self) -> dict[str, np.ndarray]:
        """Return views of the values that predictions use, by name: of the parameters' average, or of the parameters.

        Running statistics are not averaged. Predictions use the latest ones, as in ``torch.optim.swa_utils``.
        """
        views = self.views()
        if self.average is not None:
            views |= {name: self.average[self._spans[name]].reshape(self._shapes[name]) for name in self.names}
        return views

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters and running statistics by name, not of the average."""
        return {name: view.copy() for name, view in self.views().items()}


Trainable: TypeAlias = "str | Sequence[str] | Callable[[str, np.ndarray], bool]"


def select_trainable(weights: Mapping[str, np.ndarray], trainable: Trainable) -> list[str]:
    """Return the names that ``trainable`` selects: "all", names, glob patterns, or a predicate of name and array."""
    if callable(trainable) and not isinstance(trainable, type):
        chosen = [name for name, array in weights.items() if trainable(name, array.copy())]
        if not chosen:
            raise InvalidParameterError(
                f"trainable selects no parameter: the function returned False for {', '.join(weights)}."
            )
        return chosen
    if isinstance(trainable, str) and trainable == "all":
        return list(weights)
    if isinstance(trainable, type) or not isinstance(trainable, str | Iterable):
        raise InvalidParameterError(
            f"trainable must be 'all', names or glob patterns, or a function, got {trainable!r}."
        )
    patterns: list[Any] = _patterns(trainable)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InvalidParameterError(
                f"trainable must hold names or glob patterns, got {pattern!r} of type {type(pattern).__name__}."
            )
        if not any(matches(name, pattern) for name in weights):
            raise InvalidParameterError(
                f"trainable={pattern!r} matches no parameter of the graph.{nearest(pattern, weights)}"
            )
    chosen = [name for name in weights if any(matches(name, pattern) for pattern in patterns)]
    if not chosen:
        raise InvalidParameterError("trainable is an empty list: name at least one parameter, or 'all'.")
    return chosen


def matches(name: str, pattern: str) -> bool:
    """Return True if ``name``, with or without the ``.T`` of a transposed matrix, matches the glob ``pattern``."""
    return name == pattern or fnmatchcase(name, pattern) or fnmatchcase(name.removesuffix(".T"), pattern)


# Segments: slices of the flat vector that are updated separately. Slots: the arrays of the optimizer's state.
#
# An elementwise optimizer updates runs of neighboring parameters of equal factors (of the learning rate, of the weight
# decay): one set of scalars for each such segment works with any optimizer and with fused kernels, and is faster than a
# product with a vector of factors. Its state is vectors like that of the parameters. Any other optimizer, and one that
# leaves parameters to another, updates each parameter by itself, and its state has arrays of each parameter.


class Factors(NamedTuple):
    """Multipliers of the learning rate and the weight decay of a parameter."""

    rate: float = 1.0
    decay: float = 1.0


NO_FACTORS: Mapping[str, Factors] = {}


@dataclass(frozen=True)
class VectorSegment:
    """A slice of the vector of parameters that is updated on its own.

    Attributes
    ----------
    part : slice
    factors : Factors
        The factors of all parameters in the segment.
    optimizer : Optimizer
        The optimizer of these parameters, with its weight decay multiplied by ``factors.decay``.
    parameter : Parameter or None
        The only parameter of the segment, if its optimizer state has arrays of its own. None if the state consists of
        vectors that span all parameters.
    """

    part: slice
    factors: Factors
    optimizer: Optimizer
    parameter: Parameter | None = None


def vector_segments(
    parameters: FlatParameters, factors: Mapping[str, Factors], optimizer: Optimizer
) -> list[VectorSegment]:
    """Return the segments of the vector; parameters that ``factors`` does not name have factors of one."""
    if not updates_vectors(optimizer, parameters):
        found = []
        for parameter in all_parameters(parameters):
            own = factors.get(parameter.name, Factors())
            rule = with_decay_factor(optimizer, own.decay).for_parameter(parameter)
            found.append(VectorSegment(parameters.span(parameter.name), own, rule, parameter))
        return found
    groups: Iterable[tuple[Factors, Iterable[str]]] = [(Factors(), parameters.names)]
    if factors:
        groups = groupby(parameters.names, lambda name: factors.get(name, Factors()))
    decaying = {one.decay: with_decay_factor(optimizer, one.decay) for one in {Factors(), *factors.values()}}
    found = []
    for value, names in groups:
        spans = [parameters.span(name) for name in names]
        found.append(VectorSegment(slice(spans[0].start, spans[-1].stop), value, decaying[value.decay]))
    return found


def all_parameters(parameters: FlatParameters) -> list[Parameter]:
    """Return names and shapes of the parameters, as optimizers receive them."""
    return [Parameter(name, parameters.view(name).shape) for name in parameters.names]


def updates_vectors(optimizer: Optimizer, parameters: FlatParameters) -> bool:
    """Return True if the optimizer updates vectors that hold many parameters."""
    alone = type(optimizer).for_parameter is Optimizer.for_parameter
    return optimizer.elementwise and (
        alone or all(optimizer.for_parameter(one) is optimizer for one in all_parameters(parameters))
    )


def state_slots(optimizer: BaseOptimizer, parameters: FlatParameters) -> dict[str, Slot]:
    """Return the slots of the optimizer's state by name: ``slot`` spans all parameters, ``slot/parameter`` has one."""
    if not isinstance(optimizer, Optimizer):
        return {}
    if updates_vectors(optimizer, parameters):
        return slots_for(optimizer, Parameter("parameters", parameters.vector.shape))
    return {
        state_name(slot, one): array
        for one in all_parameters(parameters)
        for slot, array in slots_for(optimizer.for_parameter(one), one).items()
    }


def state_name(slot: str, parameter: Parameter | None) -> str:
    """Return the name, in the optimizer's state, of a slot that spans all parameters, or of that of one parameter."""
    return slot if parameter is None else f"{slot}/{parameter.name}"


def with_decay_factor(optimizer: Optimizer, factor: float) -> Optimizer:
    """Return the optimizer with its weight decay, if it has one, multiplied by ``factor``."""
    decay = getattr(optimizer, "weight_decay", 0.0)
    if factor == 1 or not decay:
        return optimizer
    twin = copy.copy(optimizer)
    vars(twin)["weight_decay"] = float(decay) * factor
    return twin


def require_rows_apart(optimizer: Optimizer) -> None:
    """Raise unless the optimizer can update single rows of a matrix."""
    if not optimizer.elementwise:
        raise ModelError(
            f"{type(optimizer).__name__}.update combines elements of a parameter, so single rows cannot be updated. "
            f"Set lazy_rows=False."
        )


# The parameters that are trained: the user's selection, checked against what can be trained.


_UNREAD = np.empty(0)

MOST_NAMED = 8
"""Largest number of parameters that a warning names."""


def selected(graph: TrainableModel, trainable: Trainable) -> tuple[TrainableModel, list[str]]:
    """Return the model and the names of the parameters that ``trainable`` selects.

    A constant that was not recognized as a weight becomes a parameter of the model if ``trainable`` names it in full.
    A frozen weight that stays in its file becomes a constant, which is never copied.
    """
    graph, names = _selected(graph, trainable)
    initializers = template_of(graph.model).graph.initializers
    trained = set(names)
    in_files = [name for name in graph.parameters if is_in_file(initializers[name])]
    if not in_files:
        return graph, names
    size = sum(array_of(initializers[name]).nbytes for name in in_files if name in trained)
    if size > LARGEST_MESSAGE:
        raise ModelError(
            f"The parameters to train have {size:,} bytes, and at most {LARGEST_MESSAGE:,} can be trained of a model "
            f"above 2 GiB. Select fewer by trainable, or set adapters=LoRA(), which trains factors beside the matrices."
        )
    frozen = dict.fromkeys((n for n in in_files if n not in trained), "a frozen weight, which stays in its file")
    kept = tuple(name for name in graph.parameters if name not in frozen)
    return replace(graph, parameters=kept, constants={**graph.constants, **frozen}), names


def _selected(graph: TrainableModel, trainable: Trainable) -> tuple[TrainableModel, list[str]]:
    patterns = _patterns(trainable)
    initializers = template_of(graph.model).graph.initializers
    named = [name for name in patterns if isinstance(name, str) and name in graph.constants]
    for name in named:
        if name in graph.statistics:
            raise ValueError(
                f"trainable names {name!r}, a running statistic of a normalization layer. It has no gradient: it is "
                f"averaged over minibatches if GraphModel(..., training_mode=True) is set. Name the scale and bias of "
                f"the layer instead."
            )
        if name not in initializers or TRAINED_TYPES[initializers[name].dtype] != graph.dtype:
            raise ValueError(
                f"trainable={name!r} names a constant that cannot be trained ({graph.constants[name]}). Store it "
                f"in the file as an initializer of type {graph.dtype}, the type of the parameters, to train it."
            )
    if named:
        roles = {**graph.roles, **dict.fromkeys(named, "named in trainable")}
        constants = {name: reason for name, reason in graph.constants.items() if name not in named}
        graph = replace(graph, parameters=(*graph.parameters, *named), roles=roles, constants=constants)

    everything = isinstance(trainable, str) and trainable == "all"
    if graph.low_rank:
        # With low-rank adapters, train the factors and the other selected parameters; the adapted matrices stay frozen.
        factors = factors_of_matrices(graph.low_rank)
        changed = {one.matrix for one in graph.low_rank}
        if graph.quantized:
            _require_floats(graph, [*factors], everything=False)
        if everything:
            return graph, [name for name in graph.parameters if name in factors]
        if both := changed.intersection(patterns):
            raise ValueError(
                f"trainable names {min(both)!r}, which stays as it is beside its low-rank factors. Leave it out of "
                f"trainable, or out of the targets of the adapters."
            )
        others = tuple(name for name in graph.parameters if name not in changed)
        _, names = _selected(replace(graph, parameters=others, low_rank=()), trainable)
        return graph, [name for name in graph.parameters if name in factors.union(names)]

    weights = graph.weights() if callable(trainable) else {}  # only a predicate reads the values, which may be large
    names = select_trainable({name: weights.get(name, _UNREAD) for name in graph.parameters}, trainable)
    if graph.quantized:
        _require_floats(graph, names, everything=everything)
    if graph.narrow and everything:
        narrow = ", ".join(f"{name!r} ({initializers[name].dtype})" for name in graph.narrow[:3])
        raise ModelError(
            f"The graph has {len(graph.narrow)} weight(s) of types that are not trained: {narrow}. Export the model "
            f"in float32, or set trainable to the float32 parameters to train; the other weights then stay unchanged."
        )
    _warn_of_missed_matrices(graph, trainable, names)
    return graph, names


def _patterns(trainable: Trainable) -> list[str]:
    """Return ``trainable`` as a list of names and patterns; [] if it is a predicate."""
    if isinstance(trainable, str):
        return [trainable]
    return list(trainable) if isinstance(trainable, Iterable) and not callable(trainable) else []


def warn_of_doubtful(graph: TrainableModel, names: Collection[str], trainable: Trainable) -> None:
    """Warn of trained scalars that may be constants of a formula, unless the user has set ``trainable``."""
    found = [name for name in graph.doubtful if name in names]
    if not found or not (isinstance(trainable, str) and trainable == "all"):
        return
    shown = ", ".join(f"{name!r} ({graph.roles.get(name, '').split(',')[0]})" for name in found[:MOST_NAMED])
    others = [name for name in graph.parameters if name not in found]
    few = repr(others) if 0 < len(others) <= MOST_NAMED else f"lambda name, array: name not in {found!r}"
    warn(
        f"Single numbers of the graph are trained that may be constants of its formulas: {shown}"
        f"{f' and {len(found) - MOST_NAMED} more' if len(found) > MOST_NAMED else ''}. Say which: trainable='*' "
        f"trains them, trainable={few} leaves them as they are."
    )


def _require_floats(graph: TrainableModel, names: list[str], *, everything: bool) -> None:
    """Raise if quantization hides weights from training or blocks their gradients."""
    initializers = graph.model.graph.initializers
    free = [name for name in graph.parameters if not rounded(initializers[name])]
    holds_weights = any("QuantizeLinear" not in node for node in graph.quantized)  # integer products
    if set(names) <= set(free) and not (everything and holds_weights):
        return
    passes = all("MatMulNBits" in node for node in graph.quantized)  # the gradient, to the parameters before them
    which = "floats" if passes else "parameters behind the last of these nodes"
    rest = f", or name {which} in trainable: {', '.join(map(repr, free))}" if free else ""
    raise ModelError(f"{why_quantized(graph.quantized)}{rest}.")


def _warn_of_missed_matrices(graph: TrainableModel, trainable: Trainable, names: Collection[str]) -> None:
    """Warn if a pattern such as ``"encoder.1.*"`` selects the bias of a layer but not its matrix.

    This happens because exporters generate names for matrices that they transpose. There is no warning for full names
    and patterns such as ``"*.bias"``, where the user evidently wants only the bias.
    """
    whole = [p for p in _patterns(trainable) if p.replace("/", ".").rpartition(".")[2] == "*" and p != "*"]
    biases = {name for name in names if any(matches(name, pattern) for pattern in whole)}
    if not biases:
        return
    missed = dict[str, str]()
    for node in template_of(graph.model).graph.all_nodes():
        # The products that the node computes, each as a pair of its bias and its matrix.
        pairs: list[tuple[ir.Value | None, ir.Value | None]] = []
        if kind(node) in ("Conv", "ConvTranspose", "Gemm"):
            pairs = [(operand(node, 2), operand(node, 1))]
        elif kind(node) == "Add":
            for bias, product in (node.inputs, node.inputs[::-1]):
                maker = None if product is None else product.producer()
                if maker is not None and kind(maker) == "MatMul":
                    pairs.append((bias, maker.inputs[1]))
        for bias, matrix in pairs:
            left, right = "" if bias is None else bias.name or "", "" if matrix is None else matrix.name or ""
            if left in biases and right in graph.parameters and right not in names:
                missed[right] = left
    if missed:
        told = ", ".join(f"{matrix!r} (bias {bias!r})" for matrix, bias in [*missed.items()][:3])
        more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        warn(
            f"trainable={trainable!r} selects biases and misses the matrices of the same layers, which have "
            f"other names in the file: {told}{more}. They stay as they are. Add them to trainable to train the whole "
            f"layers; describe() lists all names."
        )
