"""Correct conversions of skl2onnx that are inexact, and refuse fitted models that cannot be trained.

In the order in which a model passes them: :func:`refuse_untrainable` checks the model before the conversion.
:func:`repair` corrects the nodes that a converter of skl2onnx made, by the functions in :data:`REPAIRS`.
:func:`split_in_double` computes the inputs of trees in float64, as scikit-learn does. :func:`why_unconverted`,
:func:`without_gradient` and :func:`where_float32_is_coarse` return the error message if one of the later steps fails.
Any other wrong conversion is found when predictions are compared, and refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.kernel_approximation import Nystroem
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    LocalOutlierFactor,
    RadiusNeighborsClassifier,
    RadiusNeighborsRegressor,
)
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from .._ir.edits import insert_after
from .._ir.queries import constant
from .._ir.shapes import infer_shapes
from .._ml_operators.preprocessing import is_imputed_later, restore_missing, split_missing
from .._ort import sessions
from .._utils.typing import Estimator
from ..exceptions import ModelError
from ..graph import DOUBLE, FLOAT, GraphBuilder
from . import sklearn_private
from .converters.trees import exact_thresholds
from .fitted_model import Origin, follow, walk
from .model_record import ModelRecord, record_of
from .provenance import FORMS

Repair = Callable[[ir.Graph, Any, list[ir.Node]], None]


def repair(graph: ir.Graph, estimator: Estimator, names: frozenset[str]) -> None:
    """Correct, in place, the nodes ``names`` that the converter of ``estimator`` made."""
    for kind, functions in REPAIRS.items():
        for function in functions if isinstance(estimator, kind) else ():
            function(graph, estimator, [node for node in graph if node.name in names])


def _targets_of_neighbors(graph: ir.Graph, estimator: Estimator, nodes: list[ir.Node]) -> None:
    """Convert the averaged targets to float32, the type of all parameters."""
    for node in nodes:
        table = node.inputs[0] if node.op_type == "ArrayFeatureExtractor" else None
        if table is not None and table.const_value is not None and table.dtype is ir.DataType.DOUBLE:
            table.const_value = ir.tensor(table.const_value.numpy().astype(np.float32), name=table.name)
            table.dtype = ir.DataType.FLOAT
            _declare_float(node)


def _declare_float(node: ir.Node) -> None:
    for value in [value for value in node.outputs if value.dtype is ir.DataType.DOUBLE]:
        value.dtype = ir.DataType.FLOAT
        for user in [user for user, _ in value.uses() if user.op_type != "Cast"]:
            _declare_float(user)


def _leave_missing_values_out(graph: ir.Graph, estimator: Estimator, nodes: list[ir.Node]) -> None:
    """Replace missing values, which a later step imputes, before the nodes: their gradient would hold 0 * NaN."""
    inner = [v for node in nodes for v in node.outputs]
    made = [v for v in inner if v.is_graph_output() or any(node not in nodes for node, _ in v.uses())]
    read = {v: v.producer() for node in nodes for v in node.inputs if v is not None and v not in inner}
    given = [v for v, maker in read.items() if v.const_value is None and (maker is None or maker.op_type != "Constant")]
    if len(given) != 1 or len(made) != 1 or not is_imputed_later(made[0]):
        return
    op = GraphBuilder(graph, prefix="missing", constant_nodes=True)
    missing, known = split_missing(op, op.Cast(given[0], to=int(ir.DataType.FLOAT)))
    for node in nodes:
        for i, value in enumerate(node.inputs):
            if value is given[0]:
                node.replace_input_with(i, known)
    insert_after(op, made[0], lambda value: restore_missing(op, missing, value))
    graph.sort()


def _match_token_pattern(graph: ir.Graph, estimator: Estimator, nodes: list[ir.Node]) -> None:
    """Match scikit-learn's default token pattern in any script; lower-case in a locale that is installed."""
    locale = sessions.text_locale()
    for node in nodes:
        if node.op_type == "Tokenizer" and estimator.analyzer == "word" and estimator.token_pattern == WORDS:
            node.attributes["tokenexp"] = ir.AttrString("tokenexp", r"[\p{L}\p{N}_]+")
            node.attributes["mincharnum"] = ir.AttrInt64("mincharnum", 2)
        if node.op_type == "StringNormalizer" and locale is not None:
            node.attributes["locale"] = ir.AttrString("locale", locale)
        if node.op_type == "TfIdfVectorizer":  # shape inference does not know the number of columns
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            node.outputs[0].shape = ir.Shape([None, len(estimator.vocabulary_)])


WORDS = r"(?u)\b\w\w+\b"
"""scikit-learn's default token pattern."""

REPAIRS: dict[type, tuple[Repair, ...]] = {
    CountVectorizer: (_match_token_pattern,),
    KNeighborsRegressor: (_targets_of_neighbors,),
    MaxAbsScaler: (_leave_missing_values_out,),
    MinMaxScaler: (_leave_missing_values_out,),
    PowerTransformer: (_leave_missing_values_out,),
    RadiusNeighborsRegressor: (_targets_of_neighbors,),
    RobustScaler: (_leave_missing_values_out,),
    StandardScaler: (_leave_missing_values_out,),
}
"""For each class of estimators, the corrections of skl2onnx's nodes."""


# Fitted models that are refused: checks before the conversion, and why a model has no gradient.


def refuse_untrainable(record: ModelRecord) -> None:
    """Raise ModelError for a model without a trainable output, or whose decision rule training would not follow."""
    last = record.last
    if not (record.gives_labels or record.task == "regression"):
        other = ", but transforms rows" if hasattr(record.estimator, "transform") else ""
        if record.task == "clustering" or record.has_probabilities:  # mixture models have probabilities
            other = ", but clusters"
        raise ModelError(
            f"A fitted {record.name} predicts neither numbers nor classes{other}. Give a regressor, a classifier, a "
            f"detector of outliers, or a pipeline that ends in one."
        )
    scored = record.has_probabilities or record.has_decision_function or record.has_output_codes
    if record.task == "classification" and record.outputs is None and not scored:
        way = " Fit it with voting='soft'." if isinstance(last, VotingClassifier) else ""
        raise ModelError(
            f"This {record.last_name} has neither predict_proba() nor decision_function(): it predicts labels only, "
            f"which have no gradient.{way}"
        )
    if isinstance(last, LocalOutlierFactor) and not last.novelty:
        raise ModelError(
            f"This {record.last_name} has scores only for the rows that it was fitted to. Fit it with novelty=True."
        )
    if isinstance(last, OneVsRestClassifier) and last.multilabel_:
        # The estimator of a label that was constant in the fitted data has no decision function.
        constant_labels = [isinstance(one, sklearn_private._ConstantPredictor) for one in last.estimators_]
        if any(constant_labels) and not all(hasattr(one, "predict_proba") for one in last.estimators_):
            raise ModelError(
                f"Label {constant_labels.index(True)} of this OneVsRestClassifier was the same in all rows that it was "
                f"fitted to, and has no decision function. Fit it to rows that differ in every label."
            )
    elif isinstance(last, OneVsRestClassifier) and len(last.estimators_) > 1:
        # Labels follow decision functions, but the probabilities are trained, which may rank the classes differently.
        inner = record_of(last.estimators_[0]).last_name
        both = hasattr(last, "predict_proba") and hasattr(last, "decision_function")
        if both and inner in ("BaggingClassifier", "NuSVC", "SVC", "StackingClassifier"):
            raise ModelError(
                f"This OneVsRestClassifier chooses labels by the decision functions of its {inner}. Training changes "
                f"the probabilities, which need not agree with them. Give a classifier that has only one of the two."
            )
    # If the model uses the labels of nested estimators, these must predict the class with the largest score.
    nested: Sequence[Any] = [last.final_estimator_] if isinstance(last, StackingClassifier) else []
    if isinstance(last, MultiOutputClassifier | ClassifierChain):
        nested = last.estimators_
    for one in map(record_of, nested):
        by_votes = one.is_libsvm and one.has_probabilities and isinstance(last, StackingClassifier)
        clipped = one.is_linear_by_descent and one.last.loss == "modified_huber" and len(one.last.classes_) > 2
        if one.threshold is not None or by_votes or one.is_one_vs_one or clipped:
            name = one.last_name if one.threshold is None else type(one.threshold.rule).__name__
            raise ModelError(
                f"{name} within {record.last_name} chooses labels by a rule of its own, which training would not "
                f"follow there. It is followed where {name} is the model itself, or the last step of a pipeline."
            )
    for _, part in walk(record.estimator):
        if isinstance(part, TfidfTransformer | TfidfVectorizer) and part.sublinear_tf:
            raise ModelError(f"{type(part).__name__}(sublinear_tf=True) has no right ONNX form. Fit it without.")


_SCALERS = (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)


def where_float32_is_coarse(estimator: Estimator) -> str:
    """Return a remedy for a graph that differs from its model because float32 is too coarse for its numbers."""
    parts = [part for _, part in walk(estimator)]
    why = "float32, in which graphs compute, may be too coarse for it"
    processes = [part for part in parts if isinstance(part, GaussianProcessRegressor)]
    kernels = [[kernel for _, kernel in walk(process.kernel_)] for process in processes]
    if not all(any(isinstance(one, WhiteKernel) and one.noise_level > 1e-3 for one in each) for each in kernels):
        return (
            f"{why}: a Gaussian process without noise passes through every row, by a tiny length scale or by large "
            f"numbers that cancel. Fit it with noise, kernel=RBF() + WhiteKernel(), and with normalize_y=True."
        )
    if not any(isinstance(part, _SCALERS) for part in parts):
        return f"{why}: fit it to scaled columns, by a StandardScaler."
    if any(isinstance(part, Nystroem) for part in parts):
        return (
            f"{why}: some of the rows that its Nystroem has kept are nearly the same to the kernel, so that large "
            f"numbers cancel. Fit it with a larger gamma or fewer n_components, or with a stronger penalty after it."
        )
    if any(isinstance(part, OneHotEncoder) and part.drop is None and hasattr(part, "categories_") for part in parts):
        return (
            f"{why}: the columns of a OneHotEncoder add up to one, so that large coefficients may cancel. Fit it with "
            f"OneHotEncoder(drop='first'), or with a stronger penalty."
        )
    return f"{why}: large numbers cancel. Fit it with a stronger penalty, or without columns that say the same."


_NEIGHBORS = (
    "neighbors by weights or a metric without a form that can be trained. Fit it to dense rows with weights='uniform' "
    "or 'distance', and with the metric 'euclidean', 'manhattan' or 'minkowski'"
)

_VOTE_COUNTERS = {
    BaggingClassifier: (
        "the votes of its estimators, which have no predict_proba(). Give it estimators that have: "
        "SVC(probability=True), or CalibratedClassifierCV around others"
    ),
    KNeighborsClassifier: _NEIGHBORS,
    RadiusNeighborsClassifier: _NEIGHBORS,
}
"""For ensembles whose probabilities are shares of votes: what is counted, and the remedy."""


def without_gradient(record: ModelRecord) -> str:
    """Return the message for a model none of whose parameters has a gradient."""
    last = record.last
    counted = _VOTE_COUNTERS.get(type(record.last))
    if counted and not (isinstance(last, BaggingClassifier) and hasattr(last.estimators_[0], "predict_proba")):
        return f"The probabilities of this {record.last_name} have no gradient: they count {counted}."
    return (
        f"This {record.name} has no parameter with a gradient: its predictions change in steps, as counts of neighbors "
        f"and of votes do, or not at all."
    )


_WITHOUT_CONVERTER = re.compile(r"shape calculator for type '<class '(?:\w+\.)*(\w+)'>'")
"""Matches skl2onnx's error for a class without converter."""

_UNCLEAR = {
    "LinearDiscriminantAnalysis": (
        "at most 1 input(s)",
        "transforms rows, and has an ONNX form as a classifier alone, which is the last step",
    ),
    "RandomTreesEmbedding": ("", "has no ONNX form"),
    "TargetEncoder": (
        "only support TargetEncoder",
        "encodes by several classes; one that encodes by two, or by numbers, has an ONNX form",
    ),
}
"""For steps that skl2onnx refuses with an unclear error: a part of that error, and a clear reason."""


def why_unconverted(estimator: Estimator, error: Exception) -> str:
    """Return the message for a model whose conversion failed: the class, or the reason, and what to do."""
    whole = type(estimator).__name__
    words = " ".join(str(error).split())
    for name in sorted({type(part).__name__ for _, part in walk(estimator)} & _UNCLEAR.keys()):
        told, reason = _UNCLEAR[name]
        if told in words:
            return f"{name} in this {whole} {reason}. {_instead_of(name)}"
    found = _WITHOUT_CONVERTER.search(words)
    if found is None:
        return f"skl2onnx cannot convert this {whole}: {words[:500].removesuffix('.')}. {_instead_of('what it names')}"
    unknown = found[1]
    if unknown == whole:
        return (
            f"{whole} has no converter to ONNX, neither here nor in skl2onnx. Give another model, or register a "
            f"converter by skl2onnx.update_registered_converter."
        )
    return (
        f"{unknown} in this {whole} has no converter to ONNX, neither here nor in skl2onnx. {_instead_of(unknown)} Or "
        f"register a converter by skl2onnx.update_registered_converter."
    )


def _instead_of(step: str) -> str:
    return (
        f"Fit a model with other settings or another step in place of {step}; or apply that step to the data "
        f"beforehand, and give what follows it as the model."
    )


# The inputs of trees are computed in float64, as scikit-learn does.
#
# A tree compares numbers with thresholds. If a scaler or another step computes these numbers, a float32 result may be
# on the other side of a threshold, and another leaf would predict. So the steps before a tree are computed a second
# time, in float64, with scikit-learn's fitted numbers. scikit-learn's trees then round their inputs to float32;
# histogram trees compare float64. No gradient reaches the numbers of steps before a tree. They become constants, even
# if other nodes read them too, because training them would move the splits.
#
# Such a model also reads its data (the input of the graph, or each numeric column of its table) as float64, because
# rounding to float32 could move a number across a threshold.


_MOVED = frozenset(
    "Cast Concat Expand Flatten Gather GatherElements Identity Reshape Slice Split Squeeze Transpose Unsqueeze "
    "Where".split()
)
"""Operators that only move, select or convert the numbers that they read."""

_COMPUTED = frozenset(
    "Abs Add Clip Cos Div Exp Gemm Log MatMul Max Min Mul Neg Pow Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum "
    "ReduceSumSquare Relu Sigmoid Sin Softmax Sqrt Sub Sum Tanh".split()
)
"""Operators that compute new numbers and have float64 kernels."""


def split_in_double(model: ir.Model, origins: Sequence[Origin], root: Estimator) -> list[Origin]:
    """Compute the inputs of trees in float64, in place; return the origins of the remaining parameters."""
    graph = model.graph
    finders = [node for node in graph if node.domain == "ai.onnx.ml" and node.op_type.startswith("TreeEnsemble")]
    if not finders:
        return list(origins)
    infer_shapes(model)
    doubled = _Doubled(graph, {one.name: numbers for one in origins if (numbers := _numbers(one, root)) is not None})
    finders = [node for node in finders if node.inputs[0] is not None and doubled.is_computed(node.inputs[0])]
    if finders:
        doubled.take_float64()
    for node in finders:
        rows = node.inputs[0]
        assert rows is not None
        booster = _histogram_booster(graph, node, origins, root)
        rows = doubled.of(rows)
        if booster is None:
            node.replace_input_with(0, doubled.op.Cast(rows, to=FLOAT))
            continue
        for name, numbers in (("nodes_values", exact_thresholds(booster)), ("target_weights", None)):
            old = node.attributes.pop(name)
            array = np.asarray(old.value if numbers is None else numbers, np.float64)
            node.attributes[f"{name}_as_tensor"] = ir.AttrTensor(f"{name}_as_tensor", ir.tensor(array))
        node.replace_input_with(0, rows)
    graph.sort()
    common.RemoveUnusedNodesPass()(model)
    return [one for one in origins if one.name in graph.initializers and one.name not in doubled.read]


def _numbers(origin: Origin, root: Estimator) -> np.ndarray | None:
    """Return the numbers of a parameter in the fitted model's own precision; None if no attribute holds them."""
    if not origin.attribute:
        return None
    there, _ = FORMS[origin.form]
    with np.errstate(all="ignore"):
        return there(np.asarray(follow(follow(root, origin.owner), origin.attribute), np.float64))


def _histogram_booster(graph: ir.Graph, node: ir.Node, origins: Sequence[Origin], root: Estimator) -> Any:
    """Return the histogram booster whose leaves a tree node finds, or None."""
    for reshaped in [user for value in node.outputs for user, _ in value.uses()]:
        for one in origins:
            owner = follow(root, one.owner)
            is_booster = isinstance(owner, HistGradientBoostingClassifier | HistGradientBoostingRegressor)
            if is_booster and one.role == "leaf_values" and _gathers(reshaped, graph.initializers[one.name]):
                return owner
    return None


def _gathers(node: ir.Node, leaves: ir.Value) -> bool:
    """Return True if the result of ``node``, after a cast and a reshape, is the index of a Gather from ``leaves``."""
    if node.op_type == "Gather":
        return node.inputs[0] is leaves
    onward = node.op_type in ("Cast", "Reshape")
    return onward and any(_gathers(user, leaves) for value in node.outputs for user, _ in value.uses())


class _Doubled:
    """Float64 versions of the values of a graph, each computed once.

    Attributes
    ----------
    op : GraphBuilder
    read : set of str
        The parameters that were read.
    """

    def __init__(self, graph: ir.Graph, numbers: Mapping[str, np.ndarray]) -> None:
        self.op = GraphBuilder(graph, prefix="double", constant_nodes=True)
        self.read: set[str] = set()
        self._graph, self._numbers = graph, numbers
        self._made: dict[ir.Value, ir.Value] = {}

    def take_float64(self) -> None:
        """Change the floating-point inputs of the graph to float64, with a cast to float32 for their readers."""
        for value in self._graph.inputs:
            if value.dtype is ir.DataType.FLOAT:
                users = list(value.uses())
                value.dtype, single = ir.DataType.DOUBLE, self.op.Cast(value, to=FLOAT)
                single.shape, self._made[single] = value.shape, value
                for node, index in users:
                    node.replace_input_with(index, single)

    def is_computed(self, value: ir.Value) -> bool:
        """Return True if an operator upstream of ``value`` computes numbers instead of only moving them."""
        return any(node.op_type in _COMPUTED for node in self._makers(value))

    def _makers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the nodes upstream of ``value`` that compute or move floats, up to nodes of other kinds."""
        seen, front = set[ir.Value](), [value]
        while front:
            value = front.pop()
            node = value.producer()
            if node is None or value in seen or node.domain or node.op_type not in _MOVED | _COMPUTED:
                continue
            seen.add(value)
            yield node
            front += [x for x in node.inputs if x is not None and _is_real(x)]

    def of(self, value: ir.Value) -> ir.Value:
        """Return the float64 version of a floating-point value; other values are returned unchanged."""
        if value not in self._made:
            self._made[value] = self._in_double(value)
        return self._made[value]

    def _in_double(self, value: ir.Value) -> ir.Value:
        node, array = value.producer(), constant(value)
        if not _is_real(value) or value.dtype is ir.DataType.DOUBLE:
            return value
        if array is not None:
            return self.op.constant(self._exact(value, array))
        if node is None or node.domain or node.op_type not in _MOVED | _COMPUTED or self._is_exact(value):
            return self.op.Cast(value, to=DOUBLE)
        inputs = [x and self.of(x) for x in node.inputs]
        attributes = {name: a.value for name, a in node.attributes.items()}
        if node.op_type == "Cast":
            attributes["to"] = DOUBLE
        results = self.op.emit(node.op_type, *inputs, outputs=len(node.outputs), **attributes)
        for old, new in zip(node.outputs, results, strict=True):
            new.type = ir.TensorType(ir.DataType.DOUBLE) if _is_real(old) else old.type
            new.shape = old.shape
            self._made[old] = new
        return self._made[value]

    def _is_exact(self, value: ir.Value) -> bool:
        """Return True if float32 holds a value exactly, because it comes from other types, such as codes of text."""
        nodes = list(self._makers(value))
        read = [x for node in nodes for x in node.inputs if x is not None and _is_real(x)]
        return not any(node.op_type in _COMPUTED for node in nodes) and not any(
            x in self._made or constant(x) is not None or x.is_graph_input() for x in read
        )

    def _exact(self, value: ir.Value, array: np.ndarray) -> np.ndarray:
        """Return a constant as float64: with the fitted model's numbers if it has an origin, else the graph's."""
        if value.is_initializer() and value.name:
            self.read.add(value.name)
        exact = self._numbers.get(value.name or "")
        if (
            exact is None
            or exact.size != array.size
            or not np.allclose(exact.ravel(), array.ravel(), 1e-6, equal_nan=True)
        ):
            return array.astype(np.float64)
        return exact.reshape(array.shape)


def _is_real(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()
