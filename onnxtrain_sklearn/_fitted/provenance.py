"""Map the parameters of a graph to the attributes of the fitted estimators that they come from.

The converters of this package say which attribute a parameter comes from. For those of others, :func:`named` compares
its numbers with the fitted numbers of the estimator whose converter made it, in each of :data:`FORMS`: as they are,
transposed, as reciprocals. Where several attributes have the same numbers, a :class:`Tracer` decides. The
:class:`Origin` gives the parameter its name, tells a weight from a setting, and tells ``to_sklearn()`` where to write.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import BaseEstimator

from .._ir.edits import insert_after
from .._ml_operators.rewritten_node import Role
from .._utils.typing import Estimator
from ..exceptions import ModelError
from ..graph import GraphBuilder, Names
from .converters.context import ConversionRecord
from .traversal import Path, assign, follow, has_attributes, walk


@dataclass(frozen=True)
class Origin:
    """Origin of a parameter of the graph in the fitted model.

    Attributes
    ----------
    name : str
        The parameter, as in ``weights_``.
    owner : tuple of (str or int)
        Attributes and positions that lead from the fitted model to the estimator that holds it.
    attribute : tuple of (str or int)
        The same from that estimator to the numbers; empty where no attribute holds them as they are.
    form : str
        How the parameter is computed from the attribute, a key of :data:`FORMS`.
    role : str
        What the parameter is to its operator.
    places : ndarray or None
        For leaf values: tree, node and target of each.
    """

    name: str
    owner: Path
    attribute: Path
    form: str
    role: str
    places: np.ndarray | None = field(default=None, compare=False, repr=False)


VOTES = "votes"
"""The form of classes as shares: for each training point a column for each class."""


def _refuse_votes(votes: np.ndarray) -> np.ndarray:
    raise ModelError(
        "Its classifier of neighbors holds one class for each training point. Training gave the points shares of "
        "several classes, which no attribute of it can hold. Take to_onnx(); or fit it with weights='distance', so "
        "that the points are trained, which it can hold."
    )


FORMS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "same": (lambda a: a, lambda a: a),
    "transposed": (lambda a: a.T, lambda a: a.T),
    "reciprocal": (lambda a: 1 / a, lambda a: 1 / a),
    "negated": (lambda a: -a, lambda a: -a),
    "logarithm": (np.log, np.exp),
    "absolute": (lambda a: a, np.abs),
    "probability": (lambda a: a, lambda a: np.abs(a) / (np.abs(a) + np.abs(1 - a))),
    VOTES: (lambda a: a, _refuse_votes),
}
"""The functions from an attribute to a parameter, and back."""

COMPUTED: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "transposed": lambda op, value: op.Transpose(value, perm=[1, 0]),
    "reciprocal": lambda op, value: op.Div(1.0, value),
}
"""The forms that are computed in the graph, so that the parameter equals the attribute."""


def named(
    model: ir.Model, roles: Sequence[Role], watched: Sequence[ConversionRecord], root: Estimator, tracer: Tracer
) -> list[Origin]:
    """Rename the parameters of the graph by their estimators, in place; return where each comes from.

    The converters of this package name the attribute of each parameter. ``tracer`` finds those of other converters.
    """
    paths = {id(part): path for path, part in walk(root)}
    made = {role.name: role for role in roles}
    known = {(one.name, one.role): one for record in watched for one in record.known}
    origins: list[Origin] = []
    for name, value in list(model.graph.initializers.items()):
        if value.dtype is not ir.DataType.FLOAT or value.const_value is None:
            continue
        role = made.get(name)
        source = known.get((name, "")) or known.get((role.node, role.role) if role else ("", ""))
        owner = source.owner if source else _owner(watched, role.node if role else "", name)
        if owner is None or id(owner) not in paths:
            continue
        path = paths[id(owner)]
        attribute, form = (source.attribute, source.form) if source else _found(tracer, name, path, owner, value, role)
        if role is None and not attribute:
            continue
        stem = _stem(attribute, form) if attribute else role.role if role else name
        new = Names(model.graph.initializers).free(f"{_prefix(root, path, owner)}.{stem}", 2)
        _rename(model.graph, name, new)
        if form in COMPUTED:
            form = _hold_as_attribute(model.graph, new, form, follow(owner, attribute))
        what = "probabilities" if form in ("probability", VOTES) else role.role if role else stem
        origins.append(Origin(new, path, attribute, form, what, role.places if role else None))
    return origins


def _owner(watched: Sequence[ConversionRecord], node: str, initializer: str) -> Any:
    """Return the estimator whose converter made a node, or an initializer; the innermost where several did."""
    found = [one for one in watched if (node in one.nodes if node else initializer in one.initializers)]
    return min(found, key=lambda one: len(one.nodes)).estimator if found else None


def _found(
    tracer: Tracer, name: str, path: Path, owner: Estimator, value: ir.Value, role: Role | None
) -> tuple[Path, str]:
    """Return the attribute of a parameter that another converter made, by its numbers; () where there is none.

    Leaves have no attribute. Numbers that are trivial, or equal to several attributes, do not tell: those of a copy of
    the model, in which all numbers differ, do.
    """
    assert value.const_value is not None
    array = value.const_value.numpy()
    found = [] if role is not None and role.places is not None else _equal_attributes(owner, array)
    if found and (len(found) > 1 or array.size == 1 or np.isin(array, (-1, 0, 1)).all()):
        traced = tracer.array(name)
        found = found if traced is None else _equal_attributes(tracer.part(path), traced)
    return found[0] if found else ((), "same")


def _equal_attributes(owner: Estimator, array: np.ndarray) -> list[tuple[Path, str]]:
    """Return the attributes with these numbers, and in which form; those that scikit-learn documents come first."""
    found = [
        (path, form)
        for path, numbers in fitted_numbers(owner)
        if numbers.size == array.size
        for form, (there, _) in FORMS.items()
        if _equal_in_form(there, numbers, array)
    ]
    return sorted(found, key=lambda one: _last(one[0]).startswith("_"))


def _equal_in_form(form: Callable[[np.ndarray], np.ndarray], numbers: np.ndarray, array: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        formed = form(numbers.astype(np.float64)).astype(np.float32)
    same_shape = _squeezed(formed.shape) == _squeezed(array.shape)
    return same_shape and np.allclose(formed.reshape(array.shape), array, rtol=1e-6, atol=0, equal_nan=False)


def _last(path: Path) -> str:
    return next(part for part in reversed(path) if isinstance(part, str))


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _dotted(path: Path) -> str:
    return ".".join(str(part).strip("_") if isinstance(part, str) else str(part) for part in path)


def _stem(attribute: Path, form: str) -> str:
    return f"log_{_dotted(attribute)}" if form == "logarithm" else _dotted(attribute)


def _prefix(root: Estimator, path: Path, owner: Estimator) -> str:
    """Return the names of the steps that lead to an estimator, or its class where none has one."""
    names: list[str] = []
    value: Any = root
    for i, part in enumerate(path):
        container = value
        value = getattr(value, str(part)) if has_attributes(value) else value[part]
        named = isinstance(part, int) and isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], str)
        if named:
            names.append(value[0])
        elif isinstance(part, int) and has_attributes(value) and not isinstance(container[0], str):
            names.append(f"{_dotted(path[i - 1 : i])}.{part}")
    return ".".join(names) or type(owner).__name__.lower()


def _rename(graph: ir.Graph, old: str, new: str) -> None:
    value = graph.initializers.pop(old)
    value.name = new
    if value.const_value is not None:
        value.const_value = ir.tensor(value.const_value.numpy(), name=new)
    graph.initializers.add(value)


def _hold_as_attribute(graph: ir.Graph, name: str, form: str, numbers: np.ndarray) -> str:
    """Let a parameter equal its attribute and compute its form in the graph; return the form that is left."""
    value, held = graph.initializers[name], np.atleast_1d(np.asarray(numbers, np.float32))
    if form == "transposed" and held.ndim != 2:
        return form
    op = GraphBuilder(graph, prefix=f"{name}/{form}", constant_nodes=True)
    shape = value.shape if form == "transposed" else ir.Shape(held.shape)
    value.const_value, value.shape = ir.tensor(np.ascontiguousarray(held), name=name), ir.Shape(held.shape)
    insert_after(op, value, lambda v: COMPUTED[form](op, v)).shape = shape
    graph.sort()
    return "same"


# Tracers: a copy of a fitted model whose numbers are all different, converted in the same way.
#
# They tell which attribute a parameter comes from where a converter of another package made it and the model's own
# numbers are ambiguous: a scale of ones equals its reciprocal, an identity matrix its transpose. The copy is never run.


FITTED_SETTINGS = frozenset({"coef0"})
"""Constructor arguments that are numbers of the fitted model."""


def fitted_numbers(owner: object) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield the fitted numbers of an estimator with their attributes, those of the estimators that it wraps too."""
    yield from own_numbers(owner)
    for name, value in vars(owner).items():
        if isinstance(value, BaseEstimator) and _is_fitted_name(name):
            yield from (((name, *path), array) for path, array in fitted_numbers(value))


def own_numbers(owner: object) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield the fitted numbers of an estimator with their attributes."""
    for name, value in vars(owner).items():
        if not _is_fitted_name(name):
            continue
        if isinstance(value, np.ndarray | float | np.floating):
            array = np.asarray(value)
            if array.dtype.kind == "f" and array.size:
                yield (name,), array
        elif isinstance(value, list | tuple):
            for i, inner in enumerate(value):
                if isinstance(inner, np.ndarray) and inner.dtype.kind == "f" and inner.size:
                    yield (name, i), inner


def _is_fitted_name(name: str) -> bool:
    return name.endswith("_") or name.startswith("_") or name in FITTED_SETTINGS


class Tracer:
    """The graph of a copy whose numbers are all different, converted on first use.

    Parameters
    ----------
    root : estimator
        The fitted model, which is left as it is.
    structure : object
        The structure that the copy's graph must have, so that its parameters correspond to those of the model's graph.
    convert : callable
        ``convert(estimator)`` returns a graph whose parameters are not renamed yet, and its structure.
    """

    def __init__(
        self, root: Estimator, structure: object, convert: Callable[[Estimator], tuple[ir.Model, object]]
    ) -> None:
        self._root, self._structure, self._convert = root, structure, convert

    def array(self, name: str) -> np.ndarray | None:
        """Return the parameter ``name`` of the copy's graph; None where the copy has another graph."""
        value = None if self._graph is None else self._graph.initializers.get(name)
        return None if value is None or value.const_value is None else value.const_value.numpy()

    def part(self, path: Path) -> Any:
        """Return the estimator of the copy that ``path`` leads to."""
        return follow(self._copy, path)

    @cached_property
    def _copy(self) -> Any:
        other, rng = copy.deepcopy(self._root), np.random.RandomState(0)
        for _, part in list(walk(other)):
            for path, array in list(own_numbers(part)):
                assign(part, path, rng.uniform(0.2, 0.8, array.shape))
        return other

    @cached_property
    def _graph(self) -> ir.Graph | None:
        try:
            model, structure = self._convert(self._copy)
        except Exception:  # a converter may need numbers that belong together
            return None
        return model.graph if structure == self._structure else None
