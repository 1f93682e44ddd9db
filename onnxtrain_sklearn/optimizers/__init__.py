"""Optimizers and their registry.

Derive from :class:`Optimizer` to write your own; :data:`OPTIMIZERS` names the optimizers, :func:`resolve_optimizer`
finds one, and :func:`update_graph` makes the graph of its step. To add one to the package, write its file and import
its class here.
"""

from __future__ import annotations

from .._utils.params import registered, resolve
from .adafactor import Adafactor as Adafactor
from .adagrad import Adagrad as Adagrad
from .adam import Adam as Adam
from .adam import AdamW as AdamW
from .base import BaseOptimizer as BaseOptimizer
from .base import Optimizer as Optimizer
from .base import Parameter as Parameter
from .base import Slot as Slot
from .base import StepOptions as StepOptions
from .in_place import UpdateGraph as UpdateGraph
from .in_place import clip_graph as clip_graph
from .in_place import update_graph as update_graph
from .lamb import LAMB as LAMB
from .lbfgs import LBFGS as LBFGS
from .lbfgs import MinimizeResult as MinimizeResult
from .lion import Lion as Lion
from .muon import Muon as Muon
from .rmsprop import RMSprop as RMSprop
from .scalars import Scalar as Scalar
from .scalars import maximum as maximum
from .scalars import minimum as minimum
from .scalars import sqrt as sqrt
from .scalars import where as where
from .sgd import SGD as SGD

OPTIMIZERS: dict[str, type[BaseOptimizer]] = registered(BaseOptimizer, vars())
"""The optimizers imported above, by name."""


def resolve_optimizer(optimizer: str | BaseOptimizer) -> BaseOptimizer:
    """Return the optimizer that a name or an object stands for, its parameters validated."""
    return resolve("optimizer", optimizer, OPTIMIZERS, BaseOptimizer, kind="Optimizer")
