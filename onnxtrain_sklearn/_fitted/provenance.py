"""Map the parameters of a graph to the attributes of the fitted estimators that they come from.

The converters of this package name the attribute of each parameter. For a parameter of another converter, :func:`named`
compares the numbers with the fitted numbers of the converted estimator, in each of :data:`FORMS` (unchanged,
transposed, as reciprocals, ...). If several attributes have the same numbers, a :class:`Tracer` decides. The resulting
:class:`Origin` gives the parameter its name, distinguishes weights from settings, and is where ``to_sklearn()`` writes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy import linalg
from sklearn import ensemble
from sklearn.base import BaseEstimator, is_classifier
from sklearn.covariance import EmpiricalCovariance
from sklearn.svm import OneClassSVM
from sklearn.tree import BaseDecisionTree

from .._ir.edits import insert_after
from .._ml_operators.rewritten_node import Role
from .._utils.typing import Estimator
from ..exceptions import ModelError
from ..graph import GraphBuilder, Names
from .converters.context import ConversionRecord
from .fitted_model import Origin, Path, assign, follow, has_attributes, walk

VOTES = "votes"
"""The form of the classes of training points as votes: a row for each point, with the share of each class."""


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
"""For each form, the function from an attribute to a parameter and its inverse."""

COMPUTED: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "transposed": lambda op, value: op.Transpose(value, perm=[1, 0]),
    "reciprocal": lambda op, value: op.Div(1.0, value),
}
"""Forms that the graph itself computes, so that the parameter equals the attribute."""


def named(
    model: ir.Model, roles: Sequence[Role], watched: Sequence[ConversionRecord], root: Estimator, tracer: Tracer
) -> list[Origin]:
    """Rename the parameters of the graph after estimators and attributes, in place; return the origin of each.

    The converters of this package name the attribute of each parameter. For other converters, ``tracer`` helps to find
    the attribute.
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
        if source is not None:
            owner = source.owner
        else:
            # Find the innermost estimator whose converter made the node or the initializer.
            makers = [one for one in watched if (role.node in one.nodes if role else name in one.initializers)]
            owner = min(makers, key=lambda one: len(one.nodes)).estimator if makers else None
        if owner is None or id(owner) not in paths:
            continue
        path = paths[id(owner)]
        attribute, form = (source.attribute, source.form) if source else _found(tracer, name, path, owner, value, role)
        if role is None and not attribute:
            continue
        stem = _dotted(attribute) if attribute else role.role if role else name
        stem = f"log_{stem}" if form == "logarithm" else stem
        new = Names(model.graph.initializers).free(f"{_prefix(root, path, owner)}.{stem}", 2)
        model.graph.initializers.pop(name)
        value.name, value.const_value = new, ir.tensor(value.const_value.numpy(), name=new)
        model.graph.initializers.add(value)
        if form in COMPUTED:
            form = _hold_as_attribute(model.graph, new, form, follow(owner, attribute))
        what = "probabilities" if form in ("probability", VOTES) else role.role if role else stem
        origins.append(Origin(new, path, attribute, form, what, role.places if role else None))
    return origins


def _found(
    tracer: Tracer, name: str, path: Path, owner: Estimator, value: ir.Value, role: Role | None
) -> tuple[Path, str]:
    """Find the attribute of a parameter of another converter by its numbers; return its path, () if none, and form.

    Leaves have no attribute. If the numbers are trivial or equal those of several attributes, compare the copy of the
    model in which all numbers differ.
    """
    assert value.const_value is not None
    array = value.const_value.numpy()
    found = [] if role is not None and role.places is not None else _equal_attributes(owner, array)
    if found and (len(found) > 1 or array.size == 1 or np.isin(array, (-1, 0, 1)).all()):
        traced = tracer.array(name)
        found = found if traced is None else _equal_attributes(tracer.part(path), traced)
    return found[0] if found else ((), "same")


def _equal_attributes(owner: Estimator, array: np.ndarray) -> list[tuple[Path, str]]:
    """Return the attributes that have these numbers, each with the form; documented attributes come first."""
    found = list[tuple[Path, str]]()
    for path, numbers in fitted_numbers(owner):
        for form, (there, _) in FORMS.items() if numbers.size == array.size else ():
            with np.errstate(all="ignore"):
                formed = there(numbers.astype(np.float64)).astype(np.float32)
            same_shape = _squeezed(formed.shape) == _squeezed(array.shape)
            if same_shape and np.allclose(formed.reshape(array.shape), array, rtol=1e-6, atol=0, equal_nan=False):
                found.append((path, form))
    return sorted(found, key=lambda one: _last(one[0]).startswith("_"))


def _last(path: Path) -> str:
    return next(part for part in reversed(path) if isinstance(part, str))


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _dotted(path: Path) -> str:
    return ".".join(str(part).strip("_") if isinstance(part, str) else str(part) for part in path)


def _prefix(root: Estimator, path: Path, owner: Estimator) -> str:
    """Return the names of the steps that lead to an estimator, or its class if no step has a name."""
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


def _hold_as_attribute(graph: ir.Graph, name: str, form: str, numbers: np.ndarray) -> str:
    """Make a parameter equal to its attribute, with nodes that compute the form; return the form that then remains."""
    value = graph.initializers[name]
    held = np.atleast_1d(np.asarray(numbers, np.float32))
    if form == "transposed" and held.ndim != 2:
        return form
    op = GraphBuilder(graph, prefix=f"{name}/{form}", constant_nodes=True)
    shape = value.shape if form == "transposed" else ir.Shape(held.shape)
    value.const_value, value.shape = ir.tensor(np.ascontiguousarray(held), name=name), ir.Shape(held.shape)
    insert_after(op, value, lambda v: COMPUTED[form](op, v)).shape = shape
    graph.sort()
    return "same"


# Tracer: a copy of a fitted model whose numbers are all different, converted in the same way.
#
# It shows which attribute a parameter comes from if another package's converter made the parameter and the model's own
# numbers are ambiguous: a scale of ones equals its reciprocal, an identity matrix its transpose. The copy is never run.


FITTED_SETTINGS = frozenset({"coef0"})
"""Constructor arguments that can be trained like fitted numbers."""


def fitted_numbers(owner: object) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield paths and arrays of the attributes with fitted numbers, of an estimator and of those that it wraps."""
    yield from own_numbers(owner)
    for name, value in vars(owner).items():
        if isinstance(value, BaseEstimator) and _is_fitted_name(name):
            yield from (((name, *path), array) for path, array in fitted_numbers(value))


def own_numbers(owner: object) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield paths and arrays of the attributes with fitted numbers, of an estimator itself."""
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
        """Return the parameter ``name`` of the copy's graph; None if the copy has another graph."""
        value = None if self._graph is None else self._graph.initializers.get(name)
        return None if value is None or value.const_value is None else value.const_value.numpy()

    def part(self, path: Path) -> Any:
        """Return the estimator of the copy that ``path`` leads to."""
        return follow(self._copy, path)

    @cached_property
    def _copy(self) -> Any:
        other = copy.deepcopy(self._root)
        rng = np.random.RandomState(0)
        for _, part in list(walk(other)):
            for path, array in list(own_numbers(part)):
                assign(part, path, rng.uniform(0.2, 0.8, array.shape))
        return other

    @cached_property
    def _graph(self) -> ir.Graph | None:
        try:
            model, structure = self._convert(self._copy)
        except Exception:  # a converter may fail if numbers that belong together are replaced independently
            return None
        return model.graph if structure == self._structure else None


# Writing trained numbers back to the attributes that they come from, in a copy of the model.
#
# Only numbers that training changed are written, because the inverse of a form would round the others. The arrays of
# trees are no assignable attributes; functions write into the trees.


def write_back(
    model: Estimator, origins: Sequence[Origin], before: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]
) -> Any:
    """Return a deep copy of ``model`` with the numbers that differ between ``before`` and ``now`` written back."""
    changed = [origin for origin in origins if not np.array_equal(before[origin.name], now[origin.name])]
    lost = [origin.name for origin in changed if not origin.attribute and origin.role not in LEAVES]
    for origin in (one for one in changed if not one.attribute and one.role in LEAVES):
        owner = follow(model, origin.owner)
        if not isinstance(owner, WITH_TREES):
            raise ModelError(
                f"{origin.name!r} was trained, and {type(owner).__name__} keeps its trees in a form of its own that "
                f"numbers cannot be written back to. Freeze it with trainable=..., or take to_onnx()."
            )
    if lost:
        raise ModelError(
            f"These trained numbers have no attribute in {type(model).__name__}: {', '.join(lost)}. Freeze them with "
            f"trainable=..., or take to_onnx()."
        )
    result = copy.deepcopy(model)
    for origin in changed:
        owner = follow(result, origin.owner)
        if origin.attribute:
            assign(owner, origin.attribute, FORMS[origin.form][1](np.asarray(now[origin.name], np.float64)))
        else:
            LEAVES[origin.role](owner, origin, before[origin.name], now[origin.name])
        _complete(follow(owner, origin.attribute[:-1]) if len(origin.attribute) > 1 else owner, origin.attribute)
    return result


def _complete(owner: Estimator, path: Path) -> None:
    """Update private attributes that duplicate the attribute just written."""
    attribute = str(path[-1]) if path else ""
    if attribute == "scale_" and hasattr(owner, "var_"):
        owner.var_ = owner.scale_**2
    if attribute.strip("_") in ("dual_coef", "intercept") and hasattr(owner, "_dual_coef_"):
        # LIBSVM's private copies have the opposite sign for two classes.
        sign = -1.0 if is_classifier(owner) and len(owner.classes_) == 2 else 1.0
        public = f"{attribute.strip('_')}_"
        private = f"_{attribute.strip('_')}_"
        written, repeated = (private, public) if attribute == private else (public, private)
        vars(owner)[repeated] = sign * vars(owner)[written]
        if isinstance(owner, OneClassSVM):
            owner.offset_ = -owner.intercept_
    if attribute == "y_thresholds_":
        owner._build_f(owner.X_thresholds_, owner.y_thresholds_)
    if attribute == "precision_" and isinstance(owner, EmpiricalCovariance):
        owner.covariance_ = linalg.pinvh(owner.precision_)
    if attribute == "_fit_X" and getattr(owner, "_tree", None) is not None:
        metric = {"metric": owner.effective_metric_, **owner.effective_metric_params_}
        owner._tree = type(owner._tree)(owner._fit_X, owner.leaf_size, **metric)


WITH_TREES = (
    BaseDecisionTree,
    ensemble.ExtraTreesClassifier,
    ensemble.ExtraTreesRegressor,
    ensemble.GradientBoostingClassifier,
    ensemble.GradientBoostingRegressor,
    ensemble.HistGradientBoostingClassifier,
    ensemble.HistGradientBoostingRegressor,
    ensemble.IsolationForest,
    ensemble.RandomForestClassifier,
    ensemble.RandomForestRegressor,
)
"""The estimators into whose trees numbers can be written; trees of other libraries do not allow it."""


def _write_leaves(owner: Estimator, origin: Origin, before: np.ndarray, now: np.ndarray) -> None:
    """Write the values of leaves, which the graph multiplies by a factor such as the learning rate or 1 / trees."""
    assert origin.places is not None
    places = origin.places.reshape(-1, 3)
    cells = [_cell(owner, *(int(n) for n in place)) for place in places]
    old = np.array([cell() for cell, _ in cells])
    factor = float((before.ravel() * old).sum() / (old * old).sum()) if old.any() else _factor(owner)
    if not np.allclose(factor * old, before.ravel(), rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(before).max()))):
        raise ModelError(f"The leaves of {type(owner).__name__} are not those of the graph: {origin.name!r}.")
    for (_, write), value in zip(cells, now.ravel().astype(np.float64) / factor, strict=True):
        write(value)


def _factor(owner: Estimator) -> float:
    """Return the factor between graph and model for leaves that are all zero, from which it cannot be computed."""
    if isinstance(owner, ensemble.GradientBoostingClassifier | ensemble.GradientBoostingRegressor):
        return float(owner.learning_rate)
    averages = isinstance(owner, ensemble.RandomForestRegressor | ensemble.ExtraTreesRegressor)
    return 1.0 / len(owner.estimators_) if averages else 1.0


def _cell(owner: Estimator, tree: int, node: int, target: int) -> tuple[Callable[[], float], Callable[[float], None]]:
    """Return the functions that read and write one value of one leaf."""
    if isinstance(owner, ensemble.IsolationForest):  # a leaf's value is the depth plus the expected remaining depth
        beyond = owner._average_path_length_per_tree[tree]
        depth = owner._decision_path_lengths[tree][node] - 1.0
        return lambda: float(depth + beyond[node]), lambda value: beyond.__setitem__(node, value - depth)
    if hasattr(owner, "_predictors"):
        flat = [predictor for stage in owner._predictors for predictor in stage]
        nodes = flat[tree].nodes
        return lambda: float(nodes["value"][node]), lambda value: nodes["value"].__setitem__(node, value)
    values = _trees_of_model(owner)[tree].value
    # The arrays of scikit-learn's trees are (nodes, outputs, classes); boosting has one number in a leaf.
    place = (node, 0, target) if is_classifier(owner) else (node, target, 0)
    if isinstance(getattr(owner, "estimators_", None), np.ndarray):
        place = (node, 0, 0)
    return lambda: float(values[place]), lambda value: values.__setitem__(place, value)


def _trees_of_model(owner: Estimator) -> list[Any]:
    if hasattr(owner, "tree_"):
        return [owner.tree_]
    return [estimator.tree_ for estimator in np.ravel(np.array(owner.estimators_, dtype=object))]


def _write_probabilities(owner: Estimator, origin: Origin, before: np.ndarray, now: np.ndarray) -> None:
    """Write the probabilities of leaves; for two classes, the graph holds only that of the second class."""
    assert origin.places is not None
    trees = _trees_of_model(owner)
    numbers = np.abs(now.astype(np.float64))
    if now.ndim == 2:
        cells = [(output, i) for output, n in enumerate(np.atleast_1d(owner.n_classes_)) for i in range(n)]
        for (tree, node, target), value in zip(origin.places.reshape(-1, 3), numbers.ravel(), strict=True):
            output, i = cells[target]
            trees[tree].value[node, output, i] = value
        for tree, node, _ in np.unique(origin.places[:, 0], axis=0):
            held = trees[tree].value[node]
            held /= held.sum(axis=1, keepdims=True)
        return
    p = numbers / (numbers + np.abs(1 - now.astype(np.float64)))
    for place, value in zip(origin.places, p, strict=True):
        trees[place[0]].value[place[1], 0] = [1 - value, value]


LEAVES: dict[str, Callable[[Any, Origin, np.ndarray, np.ndarray], None]] = {
    "leaf_probabilities": _write_probabilities,
    "leaf_values": _write_leaves,
}
"""For each role of leaves, which have no attribute, the function that writes them."""
