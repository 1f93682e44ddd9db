"""Recognize fitted models in ONNX files that skl2onnx or onnxmltools wrote, and read their properties.

:func:`is_fitted_graph` recognizes such a file, and :class:`FittedFile` describes it. The other functions read a graph
without changing its results: the table that it takes, the classes that it names, the output that is trained.
``ml_conversion`` makes the graph trainable, and ``comparison`` compares the result with the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from .._fitted.fitted_model import FittedModel, Table, TableColumn
from .._ir.queries import is_float, reads
from .._ort import sessions
from ..exceptions import ModelError, nearest

Labels: TypeAlias = "tuple[np.ndarray, ...]"
"""The classes of each label, if rows have several labels."""


class FileComparison(NamedTuple):
    """Result of the comparison with a file: the reason why it was not compared, or the parts that were left out."""

    reason: str = ""
    without: str = ""


@dataclass(frozen=True)
class FittedFile(FittedModel):
    """The description of a fitted model that was given as an ONNX file.

    Attributes
    ----------
    file : onnx_ir.Model or None
        The graph as given, until the trainable graph has been compared with it.
    label, values : str or None
        Names of outputs of the file: the label, if there is one, and the trained output.
    of_probabilities : bool
        Whether each row of ``values`` sums to one.
    of_pairs : bool
        Whether ``values`` are margins of pairs of classes, whose votes choose the label, as in a support vector
        machine.
    allows_missing : bool
        Whether an operator accepts missing values: an imputer, IsNaN or a tree.
    order : ndarray or None
        The column of ``values`` for each of the sorted labels, if their order differs.
    labels : tuple of ndarray or None
        The classes of each label, if rows have several labels.
    is_text_network : bool
        Whether the file is a network downstream of a text encoder. Such a file does not determine labels.
    compared : FileComparison or None
        Result of the comparison of the graph that was read with the unchanged file.
    """

    file: ir.Model | None = None
    label: str | None = None
    values: str = ""
    of_probabilities: bool = False
    of_pairs: bool = False
    allows_missing: bool = False
    order: np.ndarray | None = None
    labels: Labels | None = None
    is_text_network: bool = False
    compared: FileComparison | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None, "compared": None}

    def for_task(self, *, classifies: bool) -> FittedFile:
        """Return the description for a classifier or a regressor; raise ModelError if the file is of the other kind."""
        if self.is_text_network:
            return replace(self, loss="log_loss" if classifies else "squared_error")
        if self.label is None and classifies:
            raise ModelError(
                f"The ONNX file has operators of ai.onnx.ml and returns {self.values!r} without labels, so it is a "
                f"regressor: train it with OrtGradientRegressor, or make the label of its classifier an output too."
            )
        if self.label is not None and not classifies:
            raise ModelError("The ONNX file is a classifier: train it with OrtGradientClassifier.")
        return self


def is_fitted_graph(model: ir.Model, output: str | None) -> bool:
    """Return True if a graph is read as a fitted model.

    It has operators of ai.onnx.ml, a text encoder, or was written by an estimator for raw tables.
    """
    return _has_operators_of_models(model) or is_text_network(model, output)


def is_text_network(model: ir.Model, output: str | None) -> bool:
    """Return True if the trained output depends on text, and the graph is otherwise a network without labels."""
    if not takes_text(model) or _has_operators_of_models(model):
        return False
    front: list[ir.Value] = [v for v in model.graph.outputs if is_float(v) and output in (None, v.name)][:1]
    seen = set[ir.Node]()
    while front:
        value = front.pop()
        node = value.producer()
        if value.is_graph_input() and value.dtype is ir.DataType.STRING:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            front += reads(node)
    return False


def _has_operators_of_models(model: ir.Model) -> bool:
    return any(node.domain == ML for node in model.graph) or is_raw_table(model)


def are_indicators(labels: Labels) -> bool:
    """Return True if each label is 0 or 1."""
    return all(one.dtype.kind in "iub" and np.array_equal(one, [0, 1]) for one in labels)


# Read graphs with operators of ai.onnx.ml: inputs, class labels, the trained output.


ML = "ai.onnx.ml"
PRODUCER = "onnxtrain_sklearn"
"""The producer name in files that the estimators for raw tables write."""

TABLE_KEY = "onnxtrain_sklearn.table"
"""The metadata entry that describes the table, as JSON, in a file that the command line wrote."""

FILE_TOLERANCE = 1e-4
"""Largest difference of equal numbers, relative to the largest number."""


CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""Operators whose first output is a label: operator -> attribute with the integer labels."""


_COLUMNS = frozenset({"ArrayFeatureExtractor", "Gather", "Reshape", "Slice", "Squeeze"})


_SAME = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def is_raw_table(model: ir.Model) -> bool:
    """Return True if an estimator for raw tables wrote the graph, whose preprocessing fills in missing numbers."""
    return model.producer_name == PRODUCER and any(node.op_type == "IsNaN" for node in model.graph)


def takes_text(model: ir.Model) -> bool:
    """Return True if an input of a graph is text."""
    return any(value.dtype is ir.DataType.STRING for value in model.graph.inputs)


def table_of_file(model: ir.Model) -> Table | None:
    """Return the table that a graph with text inputs takes; None for a graph that takes numbers.

    A single text input is not a table if its rows are split into words, or if a row holds several texts.

    Raises
    ------
    ModelError
        An input is neither a column of text nor one of float32.
    """
    inputs = list(model.graph.inputs)
    if not takes_text(model):
        return None
    if len(inputs) == 1:
        # A row is a document if its text is split into words, or if it has several texts. Other texts are categories.
        sizes: list[Any] = [None, None, None] if inputs[0].shape is None else list(inputs[0].shape)
        width = 1 if len(sizes) == 1 else sizes[1] if len(sizes) == 2 else None
        if isinstance(width, int) and (width != 1 or len(sizes) == 1 or _is_split(inputs[0])):
            return Table((TableColumn(inputs[0].name or "", "text", gaps=False, width=width),), documents=True)
    for value in inputs:
        rest = None if value.shape is None else list(value.shape)[1:]
        fits = rest == [1] or (rest == [] and value.dtype is ir.DataType.STRING)
        if not fits or value.dtype not in (ir.DataType.STRING, ir.DataType.FLOAT):
            raise ModelError(
                f"The graph has inputs of text, and its input {value.name!r} is {value.dtype}{value.shape or ''}. "
                f"Beside text, each input must be one column of shape (N, 1), text or float32: declare each column of "
                f"the table so in initial_types of skl2onnx.to_onnx, or give the fitted scikit-learn model itself. Of "
                f"another graph, onnx.utils.extract_model writes the part behind the text, to train on its results."
            )
    allows_missing = any(takes_missing_values(node) for node in model.graph)
    columns = list[TableColumn]()
    for value in inputs:
        if value.dtype is ir.DataType.STRING:
            gap = _text_of_gaps(value, model)
            columns.append(TableColumn(value.name or "", "text", gaps=gap is not None, gap=gap))
        else:
            columns.append(TableColumn(value.name or "", "number", gaps=allows_missing))
    return Table(tuple(columns))


def _is_split(value: ir.Value) -> bool:
    """Return True if a text is split into words or counted, possibly after changes of case and shape."""
    for node, _ in value.uses():
        if node.op_type in _COUNTS_WORDS or (node.op_type in _AS_TEXT and _is_split(node.outputs[0])):
            return True
    return False


_COUNTS_WORDS = frozenset({"RegexSplitWithOffsets", "StringSplit", "TfIdfVectorizer", "Tokenizer"})
_AS_TEXT = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "StringNormalizer", "Unsqueeze"})


def prepare_text(graph: ir.Graph) -> None:
    """Set an installed locale for lower-casing if the graph names none, and declare the columns of counted words."""
    for node in graph:
        if node.op_type == "StringNormalizer" and "locale" not in node.attributes and not node.domain:
            locale = sessions.text_locale()
            if locale is not None:
                node.attributes["locale"] = ir.AttrString("locale", locale)
        if node.op_type == "TfIdfVectorizer" and not node.domain:  # shape inference does not know the number of columns
            width = max(numbers_of_attribute(node, "ngram_indexes"), default=-1) + 1
            x = node.inputs[0]
            of_row = x is not None and x.shape is not None and len(x.shape) == 1
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            node.outputs[0].shape = ir.Shape([width] if of_row else [None, width])


def _text_of_gaps(value: ir.Value, model: ir.Model) -> str | None:
    """Return the text that replaces missing text, if this package wrote the file and recorded it."""
    told = model.metadata_props.get(TABLE_KEY)
    if told is not None:
        found = json.loads(told).get("missing_text")
        return found if isinstance(found, str) else None
    if model.producer_name != PRODUCER:
        return None
    encoders = [node for node, _ in value.uses() if node.op_type == "LabelEncoder"]
    known = {key for node in encoders for key in _texts(numbers_of_attribute(node, "keys_strings"))}
    return next(text for text in ("", *(f"nan{'_' * i}" for i in range(len(known) + 1))) if text not in known)


def classes_of_graph(label: ir.Value, zipped: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return the class labels in the order of the scores; None if the graph does not name them."""
    node, _ = maker_of(label)
    labels = list(zipped)
    if not labels and node is not None and node.op_type in CLASSIFIERS and node.domain == ML:
        labels = numbers_of_attribute(node, "classlabels_strings") or numbers_of_attribute(
            node, CLASSIFIERS[node.op_type]
        )
    if not labels and node is not None and node.op_type in ("ArrayFeatureExtractor", "Gather"):
        held = constant_of(node.inputs[0])
        labels = [] if held is None else held.ravel().tolist()
    return np.array(_texts(labels)) if len(set(labels)) == len(labels) > 1 else None


def _texts(labels: Sequence[object]) -> list[Any]:
    return [one.decode() if isinstance(one, bytes) else one for one in labels]


def numbers_of_attribute(node: ir.Node, name: str) -> list[Any]:
    """Return a list attribute, empty if it is missing."""
    return list(node.attributes[name].value) if name in node.attributes else []


def maker_of(value: ir.Value | None) -> tuple[ir.Node | None, int]:
    """Return the node and output index that compute a value, skipping nodes that only cast or reshape it."""
    while value is not None:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _SAME:
            return node, value.index() or 0
        value = node.inputs[0]
    return None, 0


def trained_output_of(graph: ir.Graph, output: str | None, *, sequences: bool = False) -> ir.Value:
    """Return the output named ``output``, or the first float output; if all outputs are columns of a value, that value.

    ``sequences`` says whether the output may be a sequence of tensors, which holds several labels per row.
    """
    outputs = {v.name or "": v for v in graph.outputs}
    floats = [v for v in outputs.values() if isinstance(v.type, ir.TensorType) and is_float(v) and v.producer()]
    floats += [v for v in outputs.values() if sequences and is_sequence(v)]
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
    # If all outputs are columns of one value, train that value, which holds the scores of all classes.
    sources = {_source_of_column(value) for value in floats}
    return sources.pop() or floats[0] if len(floats) > 1 and len(sources) == 1 else floats[0]


def is_sequence(value: ir.Value) -> bool:
    """Return True if the graph computes ``value`` as a sequence of tensors; its type may be lost in shape inference."""
    node = value.producer()
    return node is not None and node.op_type == "SequenceConstruct" and not node.domain


def _source_of_column(value: ir.Value | None) -> ir.Value | None:
    """Return the value from which a column is selected; None if ``value`` is not a column."""
    taken = None
    while value is not None and (node := value.producer()) is not None and node.op_type in _COLUMNS:
        taken = value = node.inputs[0]
    return taken


def takes_missing_values(node: ir.Node) -> bool:
    """Return True if an operator accepts missing values."""
    if node.op_type in ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "IsNaN"):
        return True
    return node.op_type == "Imputer" and bool(np.isnan(node.attributes["replaced_value_float"].as_float()))


def declare_columns(graph: ir.Graph) -> None:
    """Declare the number of columns of the inputs, inferred from the operators that read them."""
    for value in graph.inputs:
        if value.shape is None or len(value.shape) != 2 or isinstance(value.shape[1], int):
            continue
        widths = set[int]()
        for node in [node for node, _ in value.uses() if node.domain == ML]:
            if node.op_type in ("LinearClassifier", "LinearRegressor"):
                rows = len(numbers_of_attribute(node, "intercepts")) or 1
                widths.add(len(numbers_of_attribute(node, "coefficients")) // rows)
                continue
            lengths = [len(numbers_of_attribute(node, key)) for key in ("offset", "scale", "imputed_value_floats")]
            if max(lengths) > 1:  # a single number applies to all columns
                widths.add(max(lengths))
        if len(widths) == 1:
            value.shape = ir.Shape([value.shape[0], widths.pop()])


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of a constant, None for any other value."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()
