"""Fitted models that are ONNX files: graphs with operators of ai.onnx.ml, as skl2onnx and onnxmltools write them.

Such a graph becomes trainable as a fitted scikit-learn model does: pruned to its scores, its operators rewritten, its
probabilities brought into a form that a loss can be taken on. What an estimator would tell is read off the graph: the
labels of the classes, the rule that chooses one of them, and whether each row of the output adds up to one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from .. import _runtime
from .._data.columns import Column
from .._fitted.decision_rules import CHOICE, PAIRS, add_output, number_classes
from .._fitted.equivalence import sample_rows
from .._fitted.model import FittedModel
from .._fitted.scores import drop_needless_norms, normalise_leaves, show_scores
from .._graph.builder import GraphBuilder
from .._graph.queries import is_float
from .._graph.shapes import infer_shapes
from .._graph.trainable import TrainableModel, spec_of, trainable_model
from .._inference.predictor import Predictor
from .._ml_operators.context import Role
from .._ml_operators.rewrite import rewrite
from ..exceptions import ModelError, UnsupportedOperatorError, nearest

ML = "ai.onnx.ml"
CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""Operators whose first output is a label, and their attribute with integer labels."""

PROBES, TOLERANCE = 16, 1e-4
_COLUMNS = frozenset({"ArrayFeatureExtractor", "Gather", "Reshape", "Slice", "Squeeze"})
_SAME = frozenset({"Cast", "Identity", "Reshape", "Squeeze"})


@dataclass(frozen=True)
class FittedFile(FittedModel):
    """What is known of a fitted model that was given as ONNX.

    Attributes
    ----------
    file : onnx_ir.Model or None
        The graph as it was given, until the graph that is trained has been compared with it.
    label, values : str or None
        Its outputs with the label, where there is one, and with what is trained.
    of_probabilities : bool
        Whether a row of ``values`` adds up to one.
    takes_gaps : bool
        Whether something asks where numbers are missing, or sends rows down a tree.
    order : ndarray or None
        The columns of ``values`` in the order of the sorted labels, where it is another one.
    """

    file: ir.Model | None = None
    label: str | None = None
    values: str = ""
    of_probabilities: bool = False
    takes_gaps: bool = False
    order: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}


def is_fitted_graph(model: ir.Model) -> bool:
    """Whether a graph has operators of ai.onnx.ml."""
    return any(node.domain == ML for node in model.graph)


def fitted_file(
    given: ir.Model, output: str | None, zipped: Sequence[np.ndarray | None] = ()
) -> tuple[TrainableModel, FittedFile]:
    """Return a graph with operators of ai.onnx.ml as one that can be trained, and what else is known of it.

    ``zipped`` are the labels of the dictionaries that its scores came in.

    Raises
    ------
    ModelError
        It takes text, or holds nothing that can be trained.
    """
    model = given.clone()
    _require_numbers(model.graph)
    _declare_columns(model.graph)
    label = next((v for v in model.graph.outputs if v.dtype in (ir.DataType.INT64, ir.DataType.STRING)), None)
    classes = None if label is None else _classes(label, zipped)
    final = _trained_output(model.graph, output)
    known = FittedFile(
        origins=(),
        classes=classes,
        features={},
        loss="squared_error" if label is None else "log_loss",
        file=_with_outputs(model, label, final),
        label=None if label is None else label.name,
        values=final.name or "",
        takes_gaps=any(_takes_gaps(node) for node in model.graph),
    )
    if label is not None:
        known = replace(known, of_probabilities=_adds_up(known))
    return _trainable(model, label, final, known)


def _trainable(
    model: ir.Model, label: ir.Value | None, final: ir.Value, known: FittedFile
) -> tuple[TrainableModel, FittedFile]:
    graph, name = model.graph, final.name
    graph.outputs[:] = [_plain(final)]
    if label is not None and (machine := _machine(label)) is not None:
        _keep_votes(graph, machine)
        known = known if known.of_probabilities else replace(known, loss="hinge")
    common.RemoveUnusedNodesPass()(model)
    drop_needless_norms(infer_shapes(model).graph)
    transforms = {node.name or "": _transform(node) for node in graph}
    rewritten = rewrite(model)
    model = rewritten.model
    for role in rewritten.roles:
        if role.operator == f"{ML}.TreeEnsembleClassifier" and transforms[role.node] == "NONE":
            _keep_shares(model, role)
    if label is not None and known.classes is not None:
        known = replace(known, classes=np.sort(known.classes), order=_sort_classes(model.graph, known.classes))
    show_scores(model, probabilities=known.of_probabilities if label is not None else None)
    _keep_name(model.graph, name)
    source = _pruned(infer_shapes(model), name)
    settings = {role.name for role in rewritten.roles if _is_setting(role, source)}
    _hold_as_constants(source.model.graph, settings)
    source = replace(source, parameters=tuple(n for n in source.parameters if n not in settings))
    if not source.parameters:
        raise ModelError(_WITHOUT_GRADIENT.format(name=name))
    return source, known


_WITHOUT_GRADIENT = (
    "Output {name!r} of the graph holds no number that it has a gradient for: it changes in steps, as counts of "
    "neighbours and of votes do, or not at all."
)


def _pruned(model: ir.Model, name: str | None) -> TrainableModel:
    pairs, choice = (key if key in {v.name for v in model.graph.outputs} else None for key in (PAIRS, CHOICE))
    try:
        return trainable_model(model, pairs=pairs, choice=choice)
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(_WITHOUT_GRADIENT.format(name=name)) from error


# What the graph says of itself


def _require_numbers(graph: ir.Graph) -> None:
    texts = [value.name for value in graph.inputs if value.dtype is ir.DataType.STRING]
    if texts:
        raise ModelError(
            f"The graph takes text, in {', '.join(map(repr, texts))}, which is trained for fitted scikit-learn models "
            f"alone. Give that model, or an ONNX file of what comes behind its encoders."
        )


def _classes(label: ir.Value, zipped: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return the labels of the classes in the order of the scores, where the graph names them."""
    node, _ = _maker(label)
    labels = list(zipped)
    if not labels and node is not None and node.op_type in CLASSIFIERS and node.domain == ML:
        labels = _attribute(node, "classlabels_strings") or _attribute(node, CLASSIFIERS[node.op_type])
    if not labels and node is not None and node.op_type in ("ArrayFeatureExtractor", "Gather"):
        held = _constant(node.inputs[0])
        labels = [] if held is None else held.ravel().tolist()
    return np.array(_texts(labels)) if len(set(labels)) == len(labels) > 1 else None


def _texts(labels: Sequence[object]) -> list[Any]:
    return [one.decode() if isinstance(one, bytes) else one for one in labels]


def _attribute(node: ir.Node, name: str) -> list[Any]:
    return list(node.attributes[name].value) if name in node.attributes else []


def _maker(value: ir.Value | None) -> tuple[ir.Node | None, int]:
    """Return the node that a value comes from, past those that hand it on, and which of its outputs it is."""
    while value is not None:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _SAME:
            return node, value.index() or 0
        value = node.inputs[0]
    return None, 0


def _trained_output(graph: ir.Graph, output: str | None) -> ir.Value:
    """Return the output of this name, or the first of floats; the scores that columns of them are taken from."""
    outputs = {v.name or "": v for v in graph.outputs}
    floats = [v for v in outputs.values() if isinstance(v.type, ir.TensorType) and is_float(v) and v.producer()]
    if output is not None:
        if output not in outputs:
            raise ModelError(f"output={output!r} is no output of the graph.{nearest(output, outputs)}")
        if (chosen := outputs[output]) not in floats and floats:
            names = " or ".join(repr(v.name) for v in floats)
            raise ModelError(f"output={output!r} is of type {chosen.type}; only floats are trained: name {names}.")
        return chosen
    if not floats:
        kinds = ", ".join(f"{name!r} ({value.type})" for name, value in outputs.items())
        raise ModelError(f"No output of the graph is a tensor of floats, which alone can be trained: {kinds}.")
    sources = {_source_of_column(value) for value in floats}
    return sources.pop() or floats[0] if len(floats) > 1 and len(sources) == 1 else floats[0]


def _source_of_column(value: ir.Value | None) -> ir.Value | None:
    """Return what a column is taken from; None for what is no column."""
    taken = None
    while value is not None and (node := value.producer()) is not None and node.op_type in _COLUMNS:
        taken = value = node.inputs[0]
    return taken


def _takes_gaps(node: ir.Node) -> bool:
    if node.op_type in ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "IsNaN"):
        return True
    return node.op_type == "Imputer" and bool(np.isnan(node.attributes["replaced_value_float"].as_float()))


# Inputs whose number of columns is not declared


def _declare_columns(graph: ir.Graph) -> None:
    """Declare as many columns as the operators behind an input have numbers for."""
    for value in graph.inputs:
        if value.shape is not None and len(value.shape) == 2 and not isinstance(value.shape[1], int):
            widths = {width for node, _ in value.uses() if (width := _width(node)) is not None}
            if len(widths) == 1:
                value.shape = ir.Shape([value.shape[0], widths.pop()])


def _width(node: ir.Node) -> int | None:
    """Return the number of columns that an operator has numbers for."""
    if node.domain != ML:
        return None
    if node.op_type in ("LinearClassifier", "LinearRegressor"):
        rows = len(_attribute(node, "intercepts")) or 1
        return len(_attribute(node, "coefficients")) // rows
    lengths = [len(_attribute(node, key)) for key in ("offset", "scale", "imputed_value_floats")]
    return max(lengths) if max(lengths) > 1 else None


# Probabilities or margins


def _with_outputs(model: ir.Model, label: ir.Value | None, final: ir.Value) -> ir.Model:
    """Return a copy of the graph that gives the label and what is trained."""
    final.shape = final.shape if final.is_graph_output() else None
    copy = model.clone()
    values = {v.name: v for node in copy.graph for v in node.outputs}
    copy.graph.outputs[:] = [values[v.name] for v in (label, final) if v is not None]
    common.RemoveUnusedNodesPass()(copy)
    return copy


def _adds_up(known: FittedFile) -> bool:
    """Whether the rows of the trained output are probabilities, whatever the input is."""
    assert known.file is not None
    rng, columns = np.random.RandomState(0), dict[str, Column]()
    for value in known.file.graph.inputs:
        spec = spec_of(value)
        drawn = 3 * rng.standard_normal((PROBES, *(n or 1 for n in spec.shape[1:])))
        columns[spec.name] = Column(drawn.astype(spec.dtype), spec.dtype)
    try:
        found = _outputs(known, columns)[1]
    except Exception:  # the number of columns is not known: by its name, then
        return "proba" in known.values
    return found.ndim == 2 and found.shape[1] > 1 and _are_probabilities(found)


def _are_probabilities(found: np.ndarray) -> bool:
    return bool((found >= -TOLERANCE).all() and np.allclose(found.sum(axis=1), 1, atol=TOLERANCE))


def _outputs(known: FittedFile, columns: Mapping[str, Column]) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the labels and the values that the given file gives."""
    assert known.file is not None
    running = Predictor(known.file, _runtime.resolve_device(), None)
    label = None if known.label is None else running.run(columns, output=0)
    values = running.run(columns, output=len(running.outputs) - 1)
    rows = len(next(iter(columns.values())))
    for array, one in ((label, True), (values, False)):
        if array is not None and (len(np.atleast_1d(array)) != rows or (one and array.size != rows)):
            raise ModelError(
                f"The ONNX file returns an array of shape {array.shape} for {rows} rows: each row must have "
                f"{'one label' if one else 'values of its own'}."
            )
    return label, values.reshape(rows, -1)


# Scores, rules and parameters


def _plain(value: ir.Value) -> ir.Value:
    """Return what a value is equal to: before a Cast to its own type, an Identity, a multiplication by one."""
    while (node := value.producer()) is not None and not node.domain and (x := node.inputs[0]) is not None:
        same = node.op_type == "Identity" or (node.op_type == "Cast" and x.dtype == value.dtype and is_float(x))
        if not same and not _is_times_one(node):
            break
        value = x
    return value


def _is_times_one(node: ir.Node) -> bool:
    factor = _constant(node.inputs[1]) if node.op_type == "Mul" else None
    return factor is not None and factor.ravel().tolist() == [1.0]


def _constant(value: ir.Value | None) -> np.ndarray | None:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _machine(label: ir.Value) -> ir.Node | None:
    """Return the support vector machine that chooses the label."""
    node, index = _maker(label)
    machine = node is not None and node.domain == ML and node.op_type == "SVMClassifier" and index == 0
    return node if machine and node is not None and sum(_attribute(node, "vectors_per_class")) else None


def _keep_votes(graph: ir.Graph, machine: ir.Node) -> None:
    """Let the classes that votes choose be an output, and the scores of pairs what is trained where votes are counted.

    The first column of two margins of LIBSVM speaks for the second class.
    """
    classes, of_probabilities = len(_attribute(machine, "vectors_per_class")), bool(_attribute(machine, "prob_a"))
    op = GraphBuilder(graph, prefix="votes", constant_nodes=True)
    if of_probabilities or classes > 2:
        add_output(graph, CHOICE, op.Identity(number_classes(machine, classes)))
    if classes > 2 and not of_probabilities:
        add_output(graph, PAIRS, op.Neg(machine.outputs[1]))
    if classes == 2 and not of_probabilities:
        graph.outputs[0] = op.Gather(machine.outputs[1], np.array([0]), axis=1)
        graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        graph.sort()


def _transform(node: ir.Node) -> str:
    return node.attributes["post_transform"].as_string() if "post_transform" in node.attributes else "NONE"


def _keep_shares(model: ir.Model, role: Role) -> None:
    """Keep the leaves of a forest probabilities: each adds up to the share of its tree, or is one number below it."""
    value = model.graph.initializers[role.name].const_value
    if role.role != "leaf_values" or value is None or role.places is None:
        return
    numbers, trees = value.numpy(), len(np.unique(role.places[..., 0]))
    total = numbers.sum(axis=1) if numbers.ndim == 2 else np.full(1, 1 / trees)
    share = float(total.mean())
    within = bool((numbers >= 0).all() and (numbers <= share * (1 + TOLERANCE)).all())
    if within and np.allclose(total, share, rtol=TOLERANCE):
        normalise_leaves(model, role.name, share, np.ones((numbers.shape[-1], 1), np.float32), several=False)


def _sort_classes(graph: ir.Graph, classes: np.ndarray | list[np.ndarray]) -> np.ndarray | None:
    """Put the columns of the scores into the order of sorted labels, and number the chosen class so.

    Returns the order, None where they are sorted.
    """
    order = np.argsort(classes, kind="stable")
    if (order == np.arange(len(order))).all():
        return None
    if any(v.name == PAIRS for v in graph.outputs):
        raise ModelError(f"The classes of the graph, {list(classes)}, are not sorted, as those of scikit-learn are.")
    op = GraphBuilder(graph, prefix="sorted", constant_nodes=True)
    for i, value in enumerate(graph.outputs):
        by_class = op.Gather(value, order, axis=1) if i == 0 else op.Gather(np.argsort(order), value)
        by_class.type = value.type
        graph.outputs[i] = by_class
        if i:
            value.name, by_class.name = None, value.name
    graph.sort()
    return order


def _keep_name(graph: ir.Graph, name: str | None) -> None:
    """Give what is trained the name of the output that was asked for, where nothing else has it."""
    final, taken = graph.outputs[0], {v.name for v in (*graph.inputs, *graph.initializers.values())}
    holder = next((v for node in graph for v in node.outputs if v.name == name and v is not final), None)
    if final.name != name and holder is None and name not in taken and final.producer() is not None:
        final.name = name


def _is_setting(role: Role, source: TrainableModel) -> bool:
    """Whether a parameter is no fitted number: a constant that fills gaps, codes of categories, a scaler's zeros."""
    if role.role in ("base_values", "imputed", "default"):  # leaves can say the same as base values
        return True
    if role.name not in source.parameters:
        return False
    value = source.model.graph.initializers[role.name].const_value
    numbers = np.empty(0) if value is None else value.numpy()
    if role.role == "values":
        return bool((np.sort(numbers) == np.arange(numbers.size)).all())
    neutral = {"offset": 0.0, "scale": 1.0}.get(role.role)
    return neutral is not None and bool((numbers == neutral).all())


def _hold_as_constants(graph: ir.Graph, names: Collection[str]) -> None:
    """Turn initializers into Constant nodes: whoever trains the exported graph further does not find them."""
    op = GraphBuilder(graph, prefix="setting", constant_nodes=True)
    for value in [value for name, value in graph.initializers.items() if name in names]:
        assert value.const_value is not None
        ir.convenience.replace_all_uses_with(value, op.constant(value.const_value.numpy()))
        del graph.initializers[value.name or ""]
    graph.sort()


# The proof that training starts from the file


Predict: TypeAlias = Callable[[Mapping[str, Column]], Mapping[str, np.ndarray]]


def started(known: FittedFile, columns: Mapping[str, Column], predict: Predict) -> FittedFile:
    """Compare what ``predict`` gives with what the file gives on rows of the data; the file is then let go.

    Raises
    ------
    ModelError
        They differ.
    """
    rows = sample_rows(np.arange(len(next(iter(columns.values())))))
    sample = {name: Column(column.rows(rows), column.dtype) for name, column in columns.items()}
    _require_file_start(known, sample, predict(sample))
    return replace(known, file=None)


Given: TypeAlias = "tuple[TrainableModel, FittedModel | None]"


def of_kind(given: Given, *, classifies: bool) -> Given:
    """Return what is known of a model; raises where a file that gives labels is to be trained for regression."""
    known = given[1]
    if isinstance(known, FittedFile) and known.label is not None and not classifies:
        raise ModelError("The ONNX file is of a classifier: take OrtGradientClassifier to train it.")
    return given


def _require_file_start(known: FittedFile, columns: Mapping[str, Column], ours: Mapping[str, np.ndarray]) -> None:
    label, values = _outputs(known, columns)
    values = values if known.order is None else values[:, known.order]
    if label is None:
        _require_close("predict", values, ours["predict"].reshape(values.shape))
        return
    method = "predict_proba" if known.of_probabilities else "decision_function"
    numbers = ours.get(method)
    if numbers is not None and numbers.shape == values.shape:
        _require_close(method, values, numbers)
    elif numbers is not None and method == "decision_function" and numbers.size == len(values):
        _require_close(method, np.abs(values[:, -1]), np.abs(numbers.ravel()))
    different = label.ravel() != ours["predict"]
    if (different & (_sureness(values) > TOLERANCE)).any():
        raise ModelError(
            f"{_OTHER_MODEL} predict() differs from the label of the file in {different.mean():.0%} of the rows: it "
            f"chooses classes by a rule that is not that of its largest score."
        )


_OTHER_MODEL = "It is refused, as training would begin from another model than the ONNX file:"


def _require_close(method: str, expected: np.ndarray, numbers: np.ndarray) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    if not np.allclose(numbers, expected, rtol=TOLERANCE, atol=TOLERANCE * scale):
        distance = float(np.abs(numbers - expected).max())
        raise ModelError(f"{_OTHER_MODEL} {method}() differs by up to {distance:.2g} on rows of X.")


def _sureness(values: np.ndarray) -> np.ndarray:
    """Return how far each row is from a tie of its two largest scores, or of one with zero."""
    values = values.reshape(len(values), -1)
    if values.shape[1] == 1:
        return np.asarray(np.abs(values.ravel()))
    top = np.sort(values, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])
