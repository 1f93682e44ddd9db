"""The interface of optimizers: base classes, the options that all share, and terms that several of them use.

A step maps parameters, gradients and state to new ones. An elementwise optimizer describes the update of a single
element. It receives vectors of any length, so that one graph updates all parameters at once, or a piece of them. Any
other optimizer receives each parameter by itself, in its shape.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypedDict

from onnx_ir import Value

from .._utils.params import BELOW_ONE, COUNT, FACTORS, POSITIVE, Component, Rules, check_parameters
from ..exceptions import InvalidParameterError
from ..graph import GraphBuilder
from ..schedules import Schedule, resolve_schedule
from .scalars import Number

if TYPE_CHECKING:
    from typing_extensions import Self

Named: TypeAlias = "Mapping[str, Value]"
Step: TypeAlias = "tuple[Value, dict[str, Value]]"


# Options of the step, documented and checked once; each optimizer adds its own rule.


class StepOptions(TypedDict, total=False):
    """The options that the constructor of an optimizer takes, and passes on to :class:`Optimizer`.

    The estimator applies these options; the ``update`` of an optimizer does not see them. Clipping and accumulation
    precede the update, the average follows it, and factors and schedules scale its scalars.
    """

    max_grad_norm: float | None
    ema_decay: float | None
    accumulate: int
    lazy_rows: bool
    learning_rate_factors: Mapping[str, float] | None
    weight_decay_factors: Mapping[str, float] | None
    weight_decay_schedule: str | Schedule


OPTIONS = tuple(StepOptions.__annotations__)
"""The names of the options."""

VALID: Rules = {
    "max_grad_norm": (POSITIVE, None),
    "ema_decay": (BELOW_ONE, None),
    "accumulate": (COUNT,),
    "lazy_rows": (bool,),
    "learning_rate_factors": (FACTORS, None),
    "weight_decay_factors": (FACTORS, None),
}
"""The valid values of the options; a schedule is checked when its name is resolved."""

DOCUMENTED = """\
max_grad_norm : float or None, default=None
    Upper limit of the Euclidean norm of all gradients together. None: no limit.
ema_decay : float or None, default=None
    Decay of an exponential moving average of the weights, in [0, 1), such as 0.999. Predictions, validation scores,
    ``weights_`` and ``to_onnx()`` use the average; training continues from the weights themselves. The initial weights
    are not part of the average, and running statistics are not averaged. None: no average.
accumulate : int, default=1
    Number of minibatches whose gradients make one step, as their weighted mean. The step equals one on a minibatch of
    ``accumulate`` times ``batch_size`` rows, but needs only the memory of a small one. Batch statistics, dropout masks
    and losses in which rows meet are computed for each minibatch.
lazy_rows : bool, default=False
    Whether a step updates only the rows of a matrix that its minibatch reads, as ``torch.optim.SparseAdam`` does. All
    other rows and their optimizer state stay as they are: weight decay, ``alpha`` and momentum do not act on them. This
    saves time if the matrix is large; if rows are rare, it also trains differently. It concerns embeddings (trained
    matrices that only Gather reads, along the first axis) and, if ``X`` is a sparse matrix, the matrix that ``X`` is
    multiplied by, whose rows belong to the columns of ``X``. A matrix that is also read in another way, such as by the
    output layer, or multiplied by dense data, has all its rows updated. Only on the CPU. False: all rows are updated;
    rows are skipped only if that changes nothing, as with :class:`~onnxtrain_sklearn.SGD` without momentum, weight
    decay and ``alpha``.
learning_rate_factors : dict or None, default=None
    Dict from glob patterns to factors >= 0 of the learning rate, such as ``{"*": 0.1, "layers.2.*": 1.0}``. The last
    pattern that matches a parameter counts, so put general ones first; without a match the factor is 1. Patterns of a
    graph builder, an attribute of the same name, come before these. ``describe()`` of the estimator lists the names.
weight_decay_factors : dict or None, default=None
    Dict from glob patterns to factors of ``weight_decay``, in the same form.
weight_decay_schedule : str or Schedule, default="constant"
    The schedule that ``weight_decay`` follows, step by step; the names of the estimators' ``learning_rate``.
"""
"""The entries of the options in an optimizer's docstring, which replace ``{options}``."""


class BaseOptimizer(Component):
    """Base class of :class:`Optimizer` and :class:`LBFGS`; the class attributes are the defaults of the options."""

    takes_minibatches: ClassVar[bool] = True
    """False for full-batch optimizers."""

    max_grad_norm: float | None = None
    ema_decay: float | None = None
    accumulate: int = 1
    lazy_rows: bool = False
    learning_rate_factors: Mapping[str, float] | None = None
    weight_decay_factors: Mapping[str, float] | None = None
    weight_decay_schedule: str | Schedule = "constant"


def rule_of(optimizer: BaseOptimizer) -> BaseOptimizer:
    """Return a copy of the optimizer without options: only its rule for the new parameters and state."""
    rule = copy.copy(optimizer)
    for name in OPTIONS:
        vars(rule).pop(name, None)  # the class attributes hold the defaults
    return rule


@dataclass(frozen=True)
class Parameter:
    """A trained parameter, or the vector of several that an elementwise optimizer updates at once.

    Attributes
    ----------
    name : str
    shape : tuple of int
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """Shape and initial value of an array of an optimizer's state.

    Attributes
    ----------
    shape : tuple of int
    fill : float, default=0.0
        The value of its elements before the first step.
    """

    shape: tuple[int, ...]
    fill: float = 0.0


class Optimizer(BaseOptimizer, ABC):
    """Base class of the optimizers that take one step per minibatch; derive from it to write your own.

    A class without a constructor has the options below as its parameters. A constructor that takes ``**options`` and
    passes them on, ``super().__init__(**options)``, adds them to its own.

    Parameters
    ----------
    {options}

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Optimizer
    >>> class SignSGD(Optimizer):
    ...     def update(self, op, p, g, state, k):
    ...         return op.Sub(p, op.Mul(op.Sign(g), k["learning_rate"])), {}
    >>> SignSGD()
    SignSGD()
    """

    elementwise: ClassVar[bool] = True
    """True if element i of the result depends on element i of each operand alone. Then :meth:`update` is given vectors
    that hold many parameters, or a piece of one; otherwise each parameter in its shape."""

    def __init__(
        self,
        *,
        max_grad_norm: float | None = None,
        ema_decay: float | None = None,
        accumulate: int = 1,
        lazy_rows: bool = False,
        learning_rate_factors: Mapping[str, float] | None = None,
        weight_decay_factors: Mapping[str, float] | None = None,
        weight_decay_schedule: str | Schedule = "constant",
    ) -> None:
        self.max_grad_norm = max_grad_norm
        self.ema_decay = ema_decay
        self.accumulate = accumulate
        self.lazy_rows = lazy_rows
        self.learning_rate_factors = learning_rate_factors
        self.weight_decay_factors = weight_decay_factors
        self.weight_decay_schedule = weight_decay_schedule

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _name_options(cls)

    def validate(self) -> None:
        """Raise InvalidParameterError if a parameter or an option breaks its rules."""
        super().validate()
        check_parameters(self, VALID)
        resolve_schedule(self.weight_decay_schedule, "weight_decay_schedule")

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``weight_decay_schedule__x`` first replaces a schedule given by name by its object."""
        if missing := [name for name in OPTIONS if name in params and name not in self._own_names()]:
            raise InvalidParameterError(
                f"{missing[0]} is an option of all optimizers, and the constructor of {type(self).__name__} does not "
                f"take it: let it take **options, and call super().__init__(**options)."
            )
        name = "weight_decay_schedule"
        given = params.get(name, self.weight_decay_schedule)
        if isinstance(given, str) and any(key.startswith(f"{name}__") for key in params):
            params[name] = resolve_schedule(given, name)
        found: Self = super().set_params(**params)
        return found

    def slots(self, p: Parameter) -> dict[str, Slot]:
        """Return the arrays of the state for a parameter, by name.

        The slots of an elementwise optimizer have the shape of the parameter, and the same fill for all parameters.
        """
        return {}

    def scalars(self, learning_rate: Number, t: Number) -> Mapping[str, Number]:
        """Return the scalars of step ``t`` (the first step is 1): bias corrections and the like.

        Floats are computed in double precision and take the parameters' type; integers are int64. Exported training
        graphs compute the same arithmetic by operators: take ``sqrt``, ``minimum``, ``maximum`` and ``where`` of
        this package instead of functions of ``math`` and ``if``, and no ``float()``.
        """
        return {"learning_rate": learning_rate}

    @abstractmethod
    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        """Emit one step; return the new parameters and the new state.

        Parameters
        ----------
        op : GraphBuilder
            Emits operators: ``op.Mul(x, y)``.
        p, g : value
            Parameters and gradients: vectors, or of the parameter's shape if the optimizer is not elementwise.
        state : mapping of str to value
            The arrays that :meth:`slots` declares.
        k : mapping of str to scalar value
            The scalars that :meth:`scalars` returns, and "weight_decay" if a schedule changes the weight decay. If
            :meth:`scalars` does not read the parameter ``weight_decay``, take ``k.get("weight_decay",
            self.weight_decay)``; if it does, it is called with the decay of the step.
        """

    def for_parameter(self, p: Parameter) -> Optimizer:
        """Return self, or the optimizer to use for this parameter instead."""
        return self

    @property
    def moves_without_gradient(self) -> bool:
        """True if an element may change in a step in which its gradient is zero.

        If False, rows of an embedding that do not occur in a minibatch are not updated, which saves time.
        """
        return True

    def fused(self) -> Optimizer | None:
        """Return an equal optimizer that uses onnxruntime-training's float32 kernels, if they are faster."""
        return None


def _name_options(cls: type) -> None:
    """Name the options in the signature of a constructor that takes ``**options``, and in the docstring.

    scikit-learn reads the names and defaults of parameters from the signature, and so do editors and ``help``.
    """
    init: Any = vars(cls).get("__init__")
    own = {} if init is None else inspect.signature(init).parameters
    if any(one.kind is one.VAR_KEYWORD for one in own.values()):
        shared = inspect.signature(Optimizer.__init__).parameters
        named = [one for one in own.values() if one.kind is not one.VAR_KEYWORD]
        named += [shared[name] for name in OPTIONS if name not in own]
        init.__signature__ = inspect.Signature(named)
    doc = cls.__doc__ or ""
    if "{options}" in doc:
        cls.__doc__ = inspect.cleandoc(doc).replace("{options}\n", DOCUMENTED)


_name_options(Optimizer)


# Terms that optimizers share: the penalty of weight decay, running averages.


WEIGHT_DECAY = "weight_decay"
"""Name of the parameter, and of the scalar that replaces it if a schedule changes the weight decay."""


class Decaying(Protocol):
    """An optimizer with weight decay."""

    weight_decay: float


def with_decay(op: GraphBuilder, gradients: Value, parameters: Value, optimizer: Decaying, k: Named) -> Value:
    """Emit the gradients plus the weight decay times the parameters."""
    if not optimizer.weight_decay:
        return gradients
    return op.Add(gradients, op.Mul(parameters, k.get(WEIGHT_DECAY, optimizer.weight_decay)))


def running_average(op: GraphBuilder, old: Value, x: Value, decay: float, gap: Any = None) -> Value:
    """Emit the new average ``decay * old + (1 - decay) * x``; ``gap`` is ``x - old`` where it is known."""
    # Do not compute β a + (1 - β) x, which costs the same: in float32, 0.999 and 0.001 do not add up to one.
    gap = op.Sub(x, old) if gap is None else gap
    return op.Add(old, op.Mul(gap, 1.0 - decay)) if decay >= 0.5 else op.Sub(x, op.Mul(gap, decay))
