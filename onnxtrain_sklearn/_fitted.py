"""Fitted scikit-learn models as trainable graphs.

A model is converted in float32, pruned to the output that is trained, and its operators of ai.onnx.ml are rewritten.
A parameter is known by the estimator that it came from and by the attribute that holds it: that makes its name, decides
that it is a weight and not a setting, and is the way back into scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.ensemble._forest import ForestClassifier
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC, NuSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ._conversion import Path, Watched, converted, first_step, follow, has_attributes, last_step, walk
from ._gradient.nodes import dims
from ._graph.builder import GraphBuilder, infer_shapes
from ._graph.model import TrainableModel, trainable_model
from ._graph.rewrite import rewrite
from .exceptions import ModelError, UnsupportedOperatorError
from .losses import Loss, Quantile

EPSILON = 1e-6
"""Added to probabilities before their logarithm, so that one of zero can still be trained."""


@dataclass(frozen=True)
class Origin:
    """Where a parameter of the graph comes from.

    Attributes
    ----------
    name : str
        The parameter, as in ``weights_``.
    owner : tuple of (str or int)
        Attributes and positions that lead from the fitted model to the estimator that holds it.
    attribute : tuple of (str or int)
        The same from that estimator to the numbers; empty where no attribute holds them as they are.
    form : str
        What the parameter is of the attribute's numbers, a key of :data:`FORMS`.
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


@dataclass(frozen=True)
class FittedModel:
    """What is known of a fitted model beside its graph.

    Attributes
    ----------
    origins : tuple of Origin
        Of every parameter.
    classes : ndarray or None
        The labels of a classifier.
    n_features : int
    feature_names : ndarray or None
    loss : str or Loss
        What is minimised where the user has not said.
    """

    origins: tuple[Origin, ...]
    classes: np.ndarray | None
    n_features: int
    feature_names: np.ndarray | None
    loss: str | Loss

    def known_classes(self, classes: Any) -> Any:
        """Return the labels that rows may have; those that the user names must be the model's own."""
        if self.classes is None:
            return classes
        if classes is not None and not np.array_equal(classes, self.classes):
            given, known = np.asarray(classes).tolist(), self.classes.tolist()
            raise ValueError(f"classes={given} are not those of the fitted model, {known}.")
        return self.classes


FORMS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "same": (lambda a: a, lambda a: a),
    "transposed": (lambda a: a.T, lambda a: a.T),
    "reciprocal": (lambda a: 1 / a, lambda a: 1 / a),
    "negated": (lambda a: -a, lambda a: -a),
    "logarithm": (np.log, np.exp),
}
"""How the numbers of an attribute may stand in a graph, and the way back."""


FITTED_SETTINGS = frozenset({"coef0"})
"""Arguments of constructors that are numbers of the fitted model too."""


def is_estimator(model: Any) -> bool:
    """Whether ``model`` is a scikit-learn estimator, fitted or not."""
    return isinstance(model, BaseEstimator) and hasattr(model, "fit")


def takes_nan(model: Any) -> bool:
    """Whether a scikit-learn model takes missing values."""
    return bool(get_tags(first_step(model)).input_tags.allow_nan)


def fitted_model(estimator: Any) -> tuple[TrainableModel, FittedModel]:
    """Return a fitted model as a trainable graph, and what else is known of it.

    Raises
    ------
    NotFittedError
    ModelError
        The model cannot be converted, or holds nothing that can be trained; the message says why.
    """
    check_is_fitted(estimator)
    _refuse_other_kinds(estimator)
    model, watched = converted(estimator)
    _prune(model, 1 if is_classifier(estimator) else 0)
    infer_shapes(model)
    _drop_needless_norms(model.graph)
    rewritten = rewrite(model)
    origins = _named(rewritten.model, rewritten.roles, watched, estimator)
    origins = [_as_probabilities(rewritten.model, one, estimator) for one in origins]
    for origin in origins:
        _tie_normal_density(rewritten.model, origin, estimator)
    _expose_scores(rewritten.model, estimator)
    try:
        source = trainable_model(infer_shapes(rewritten.model))
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(_without_gradient(estimator)) from error
    kept = tuple(o for o in origins if o.name in source.parameters and not _is_setting(o, source, estimator))
    if not kept:
        raise ModelError(_without_gradient(estimator))
    return replace(source, parameters=tuple(origin.name for origin in kept)), FittedModel(
        origins=kept,
        classes=np.asarray(estimator.classes_) if is_classifier(estimator) else None,
        n_features=int(estimator.n_features_in_),
        feature_names=getattr(estimator, "feature_names_in_", None),
        loss=_loss_of(estimator, source),
    )


def _refuse_other_kinds(estimator: Any) -> None:
    name = type(estimator).__name__
    if not (is_classifier(estimator) or is_regressor(estimator)):
        raise ModelError(
            f"A fitted {name} predicts neither numbers nor classes. Give a regressor, a classifier, or a pipeline that "
            f"ends in one."
        )
    for part in (part for _, part in walk(estimator)):
        if any(np.asarray(known).dtype.kind in "OUS" for known in getattr(part, "categories_", ())):
            raise ModelError(
                f"{type(part).__name__} encodes text, and the graph that is trained takes a matrix of numbers. Encode "
                f"such columns first, and give the model that was fitted on what comes out."
            )
        if isinstance(part, FixedThresholdClassifier | TunedThresholdClassifierCV):
            raise ModelError(
                f"{type(part).__name__} chooses labels at a threshold of its own, which its ONNX form and a gradient "
                f"know nothing of. Give the classifier in it: its estimator_."
            )
    last = last_step(estimator)
    if isinstance(last, SVC | NuSVC) and not hasattr(last, "predict_proba") and len(last.classes_) > 2:
        raise ModelError(
            f"The scores of this {type(last).__name__} of several classes count votes, in which only what breaks ties "
            f"has a gradient. Fit it with probability=True, whose probabilities can be trained."
        )
    if is_classifier(estimator) and _several_labels(last):
        raise ModelError(f"This {name} predicts several labels a row, which are not trained. Give one for each label.")


def _several_labels(classifier: Any) -> bool:
    binarizer = getattr(classifier, "_label_binarizer", None)
    return (
        isinstance(getattr(classifier, "classes_", None), list)
        or bool(getattr(classifier, "multilabel_", False))
        or getattr(binarizer, "y_type_", "").startswith("multilabel")
    )


def _without_gradient(estimator: Any) -> str:
    return (
        f"This {type(estimator).__name__} holds no number that its output has a gradient for: what it predicts changes "
        f"in steps, as counts of neighbours and of votes do, or not at all."
    )


def _is_setting(origin: Origin, source: TrainableModel, estimator: Any) -> bool:
    """Whether a parameter is no fitted number: what a scaler leaves out, an intercept that was not to be fitted."""
    if origin.attribute:
        owner = follow(estimator, origin.owner)
        return "intercept" in str(origin.attribute[0]) and getattr(owner, "fit_intercept", True) is False
    if origin.role in ("base_values", "imputed"):  # leaves can say the same; a constant that the user chose
        return True
    numbers = source.model.graph.initializers[origin.name].const_value
    neutral = {"offset": 0.0, "scale": 1.0}.get(origin.role)
    return neutral is not None and numbers is not None and bool((numbers.numpy() == neutral).all())


def _loss_of(estimator: Any, source: TrainableModel) -> str | Loss:
    """Return what the last estimator minimises, as far as there is a loss for it here."""
    last = last_step(estimator)
    if is_classifier(estimator):
        return "log_loss" if source.link in ("sigmoid", "softmax") else "hinge"
    name = type(last).__name__
    if source.link == "exp":
        if isinstance(getattr(last, "loss", None), str):  # of trees
            return last.loss
        power = float(getattr(last, "power", {"PoissonRegressor": 1, "GammaRegressor": 2}.get(name, 0)))
        return {1.0: "poisson", 2.0: "gamma"}.get(power, "squared_error")
    if name == "QuantileRegressor":
        return Quantile(last.quantile)
    return {"HuberRegressor": "huber"}.get(name, "squared_error")


# Names


def _named(model: ir.Model, roles: Sequence[Any], watched: Sequence[Watched], root: Any) -> list[Origin]:
    """Rename the parameters of the graph by their estimators, in place; return where each comes from."""
    ways = {id(part): path for path, part in walk(root)}
    made = {role.name: role for role in roles}
    origins: list[Origin] = []
    taken: dict[int, set[Path]] = {}
    for name, value in list(model.graph.initializers.items()):
        if value.dtype is not ir.DataType.FLOAT or value.const_value is None:
            continue
        role = made.get(name)
        owner = _owner(watched, role.node if role else "", name)
        if owner is None or id(owner) not in ways:
            continue
        array, used = value.const_value.numpy(), taken.setdefault(id(owner), set())
        attribute, form = _attribute(owner, array, role.role if role else name, used, strict=role is None)
        if role is None and not attribute:
            continue
        used.add(attribute)
        stem = _dotted(attribute) if attribute else role.role if role else name
        new = _free(f"{_prefix(root, ways[id(owner)], owner)}.{stem}", model.graph)
        _rename(model.graph, name, new)
        places = role.places if role else None
        origins.append(Origin(new, ways[id(owner)], attribute, form, role.role if role else stem, places))
    return origins


def _owner(watched: Sequence[Watched], node: str, initializer: str) -> Any:
    """Return the estimator whose converter made a node, or an initializer; the innermost where several did."""
    found = [one for one in watched if (node in one.nodes if node else initializer in one.initializers)]
    return min(found, key=lambda one: len(one.nodes)).estimator if found else None


def _attribute(owner: Any, array: np.ndarray, role: str, used: set[Path], *, strict: bool) -> tuple[Path, str]:
    """Return the attribute whose numbers these are, and in which form; where several are equal, the name decides."""
    best: tuple[float, Path, str] = (-1.0, (), "same")
    for path, numbers in _numbers(owner):
        incidental = strict and numbers.size == 1 and "intercept" not in str(path)
        if path in used or numbers.size != array.size or incidental:
            continue
        for rank, (form, (there, _)) in enumerate(FORMS.items()):
            if _equal(there, numbers, array):
                score = _likeness(role, str(path[0])) - rank
                best = max(best, (score, path, form)) if best[1] else (score, path, form)
                break
    return best[1], best[2]


def _numbers(owner: Any) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield the fitted numbers of an estimator with their attributes, those of the estimators that it wraps too."""
    for name, value in vars(owner).items():
        if not (name.endswith("_") or name.startswith("_") or name in FITTED_SETTINGS):
            continue
        if isinstance(value, np.ndarray | float | np.floating):
            array = np.asarray(value)
            if array.dtype.kind == "f" and array.size:
                yield (name,), array
        elif isinstance(value, list | tuple):
            for i, inner in enumerate(value):
                if isinstance(inner, np.ndarray) and inner.dtype.kind == "f" and inner.size:
                    yield (name, i), inner
        elif isinstance(value, BaseEstimator):
            yield from (((name, *path), array) for path, array in _numbers(value))


def _equal(form: Callable[[np.ndarray], np.ndarray], numbers: np.ndarray, array: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        formed = form(numbers.astype(np.float64)).astype(np.float32)
    same_shape = _squeezed(formed.shape) == _squeezed(array.shape)
    return same_shape and np.allclose(formed.reshape(array.shape), array, rtol=1e-6, atol=0, equal_nan=False)


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _likeness(role: str, attribute: str) -> float:
    plain = attribute.strip("_")
    if plain == role:
        return 3.0
    if plain in role or role in plain:
        return 2.0
    return 0.0 if attribute.startswith("_") else 1.0


def _dotted(path: Path) -> str:
    return ".".join(str(part).strip("_") if isinstance(part, str) else str(part) for part in path)


def _prefix(root: Any, path: Path, owner: Any) -> str:
    """Return the names of the steps that lead to an estimator, or its class where none has one."""
    names, value = [], root
    for i, part in enumerate(path):
        container = value
        value = getattr(value, part) if has_attributes(value) else value[part]  # type: ignore[arg-type]
        named = isinstance(part, int) and isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], str)
        if named:
            names.append(value[0])
        elif isinstance(part, int) and isinstance(container, list | np.ndarray) and has_attributes(value):
            names.append(f"{_dotted(path[i - 1 : i])}.{part}")
    return ".".join(names) or type(owner).__name__.lower()


def _free(name: str, graph: ir.Graph) -> str:
    candidate, count = name, 1
    while candidate in graph.initializers:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def _rename(graph: ir.Graph, old: str, new: str) -> None:
    value = graph.initializers.pop(old)
    value.name = new
    if value.const_value is not None:
        value.const_value = ir.tensor(value.const_value.numpy(), name=new)
    graph.initializers.add(value)


# Scores


def _prune(model: ir.Model, position: int) -> None:
    output = model.graph.outputs[position]
    if not isinstance(output.type, ir.TensorType):
        raise ModelError(f"Its output {output.name!r} is no tensor: models of several outputs a row are not trained.")
    output.shape = None  # skl2onnx declares two columns where there is one
    model.graph.outputs.clear()
    model.graph.outputs.append(output)
    common.RemoveUnusedNodesPass()(model)


def _drop_needless_norms(graph: ir.Graph) -> None:
    """Let probabilities of a linear classifier be: a softmax adds up to one, and so do two sigmoids of one score."""
    for node in [n for n in graph if n.op_type == "Normalizer"]:
        x, y = node.inputs[0], node.outputs[0]
        maker = None if x is None else x.producer()
        if x is None or maker is None or maker.op_type != "LinearClassifier":
            continue
        transform = maker.attributes["post_transform"].as_string() if "post_transform" in maker.attributes else "NONE"
        two = len(maker.attributes["intercepts"].as_floats()) <= 2
        if transform == "SOFTMAX" or (transform == "LOGISTIC" and two):
            ir.convenience.replace_all_uses_with(y, x, replace_graph_outputs=True)
            graph.remove(node, safe=True)


def _as_probabilities(model: ir.Model, origin: Origin, root: Any) -> Origin:
    """Keep the probabilities in the leaves of classifying trees probabilities while they are trained.

    The numbers w of a leaf are its share of one tree among several times |w| / sum(|w|), or times |w| / (|w| + |1 - w|)
    where there is one number for two classes. Other than through a softmax, a probability of zero has a gradient.
    """
    owner = follow(root, origin.owner)
    if origin.role != "leaf_values" or not isinstance(owner, DecisionTreeClassifier | ForestClassifier):
        return origin
    value, share = model.graph.initializers[origin.name], 1.0 / len(getattr(owner, "estimators_", [owner]))
    assert value.const_value is not None
    p = value.const_value.numpy() / share
    if p.ndim == 2 and not np.allclose(p.sum(axis=1), 1, atol=1e-4):
        return origin
    op = GraphBuilder(model.graph, prefix=f"{origin.name}/normalised", constant_nodes=True)
    value.const_value = ir.tensor(np.clip(p, EPSILON, 1 - EPSILON).astype(np.float32), name=origin.name)
    users = list(value.uses())
    size = op.Abs(value)
    total = op.ReduceSum(size, axes=[1], keepdims=True) if p.ndim == 2 else op.Add(size, op.Abs(op.Sub(1.0, value)))
    normalised = op.Mul(op.Div(size, total), share)
    normalised.type, normalised.shape = value.type, value.shape
    for node, index in users:
        node.replace_input_with(index, normalised)
    model.graph.sort()
    return replace(origin, role="leaf_probabilities")


def _tie_normal_density(model: ir.Model, origin: Origin, root: Any) -> None:
    """Compute what the logarithm of Gaussian densities takes of the variances from them: it stands there as numbers."""
    owner = follow(root, origin.owner)
    if not isinstance(owner, GaussianNB) or origin.attribute != ("var_",):
        return
    constant = -0.5 * np.log(2 * np.pi * owner.var_).sum(axis=1)
    variance = model.graph.initializers[origin.name]
    for name, value in list(model.graph.initializers.items()):
        array = None if value.const_value is None else value.const_value.numpy()
        if array is None or array.size != constant.size or not np.allclose(array.ravel(), constant, rtol=1e-5):
            continue
        op = GraphBuilder(model.graph, prefix=f"{origin.name}/density", constant_nodes=True)
        rows = op.Reshape(variance, np.array(owner.var_.shape))
        total = op.ReduceSum(op.Log(op.Mul(rows, 2 * np.pi)), axes=[1], keepdims=False)
        computed = op.Reshape(op.Mul(total, -0.5), np.array(array.shape))
        computed.type, computed.shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, computed)
        del model.graph.initializers[name]
    model.graph.sort()


def _expose_scores(model: ir.Model, estimator: Any) -> None:
    """Let the graph of a classifier end in scores, or in an activation on scores, that a loss can be taken on."""
    if not is_classifier(estimator):
        _expose_exponential(model.graph)
        return
    output, op = model.graph.outputs[0], GraphBuilder(model.graph, prefix="scores", constant_nodes=True)
    shown = _single_column(output)
    if shown is None and hasattr(estimator, "predict_proba") and not _ends_in(output, "Softmax"):
        shown = op.Softmax(op.Log(op.Add(op.Relu(output), EPSILON)), axis=1)
        shown.type, shown.shape = output.type, output.shape
    elif shown is None and not hasattr(estimator, "predict_proba") and (dims(output) or [0])[-1] == 2:
        column = (
            0 if isinstance(last_step(estimator), SVC | NuSVC) else 1
        )  # LIBSVM's first column speaks for the second
        shown = op.Gather(output, np.array([column]), axis=1)
        shown.type = output.type
    if shown is not None:
        model.graph.outputs[0] = shown
        model.graph.sort()
        common.RemoveUnusedNodesPass()(model)


def _expose_exponential(graph: ir.Graph) -> None:
    """Put a reshaping behind the exponential of a regressor before it: losses with a log link look behind the last."""
    output = graph.outputs[0]
    reshape = output.producer()
    before = None if reshape is None or reshape.op_type != "Reshape" else reshape.inputs[0]
    if reshape is None or before is None or not _ends_in(before, "Exp"):
        return
    op, name = GraphBuilder(graph, prefix="link", constant_nodes=True), output.name
    scores = before.producer().inputs[0]  # type: ignore[union-attr]
    exponential = op.Exp(op.Reshape(scores, reshape.inputs[1]))
    exponential.type, exponential.shape = output.type, output.shape
    graph.outputs[0] = exponential
    graph.remove(reshape, safe=True)
    exponential.name = name


def _ends_in(value: ir.Value, op_type: str) -> bool:
    node = value.producer()
    return node is not None and node.op_type == op_type


def _single_column(output: ir.Value) -> ir.Value | None:
    """Return the score, or the probability, that two columns of it come from: (-s, s), or their sigmoids."""
    concat = output.producer()
    if concat is None or concat.op_type != "Concat" or len(concat.inputs) != 2:
        return None
    first, second = concat.inputs
    assert first is not None
    assert second is not None
    if _ends_in(first, "Sigmoid") and _ends_in(second, "Sigmoid"):
        sides = [value.producer().inputs[0] for value in (first, second)]  # type: ignore[union-attr]
        return second if _is_negation(sides[0], sides[1]) else None
    return second if _is_negation(first, second) else None


def _is_negation(value: ir.Value | None, of: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    if node is None or node.inputs[0] is not of:
        return False
    if node.op_type == "Neg":
        return True
    factor = ir.convenience.get_const_tensor(node.inputs[1]) if node.op_type == "Mul" and node.inputs[1] else None
    return factor is not None and factor.numpy().ravel().tolist() == [-1.0]
