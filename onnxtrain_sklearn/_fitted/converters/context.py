"""Interface of the converters: one fitted estimator that is converted to nodes and parameters.

A converter is a function of a :class:`Source`. It returns the outputs that skl2onnx declares: the predictions of a
regressor, or the labels and scores of a classifier. None means that the converter of skl2onnx is used.
:meth:`Source.parameter` makes a trainable number and notes its attribute. All other numbers are ``Constant`` nodes.
Nested estimators are converted by their own converters. Nothing here depends on skl2onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import is_outlier_detector

from ..._utils.typing import Estimator
from ...graph import GraphBuilder
from ..fitted_model import Path, follow

EPSILON = 1e-6
"""Smallest distance of probabilities from 0 and 1, where the gradient of their logarithm is infinite or very large."""


@dataclass(frozen=True)
class ParameterSource:
    """A parameter, and the attribute of the model that holds its numbers.

    Attributes
    ----------
    name : str
        The initializer, or the node of ai.onnx.ml whose numbers become initializers when it is rewritten.
    owner : object
        The estimator that holds the attribute.
    attribute : tuple of (str or int)
        The path from the estimator to the numbers.
    form : str
        How the parameter is computed from the attribute, a key of ``FORMS``.
    role : str
        Role of the numbers in the node of ai.onnx.ml; empty for an initializer.
    """

    name: str
    owner: Any
    attribute: Path
    form: str
    role: str = ""


@dataclass(frozen=True)
class ConversionRecord:
    """Nodes and initializers that the converter of an estimator added to the graph.

    Attributes
    ----------
    estimator : object
    nodes, initializers : frozenset of str
        Their names.
    known : tuple of ParameterSource
        The initializers whose attributes a converter of this package names.
    marked : dict of str
        Names of nodes from which decision rules are computed later, by their marks.
    """

    estimator: Any
    nodes: frozenset[str]
    initializers: frozenset[str]
    known: tuple[ParameterSource, ...] = ()
    marked: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """One fitted estimator that is converted.

    Attributes
    ----------
    op : GraphBuilder
        Emits nodes; its constants are nodes too.
    estimator : object
    x : onnx_ir.Value
        The rows, float32, one column a feature.
    name : str
        Start of the names of all nodes that are emitted.
    raw_scores : bool
        Whether a classifier is asked for its decision function instead of probabilities.
    convert_inner : callable
        ``convert_inner(estimator, x, raw_scores)`` converts another estimator and returns its outputs.
    known : list of ParameterSource
        The parameters made so far.
    marked : dict of str
        The nodes marked so far.
    inputs : sequence of onnx_ir.Value
        The rows as they arrive, in one matrix or in several; numbers or text.
    """

    op: GraphBuilder
    estimator: Any
    x: ir.Value
    name: str
    raw_scores: bool
    convert_inner: Callable[[Estimator, ir.Value, bool], Sequence[ir.Value]]
    known: list[ParameterSource] = field(default_factory=list)
    marked: dict[str, str] = field(default_factory=dict)
    inputs: Sequence[ir.Value] = ()

    def parameter(
        self,
        owner: Estimator,
        attribute: str | Path,
        array: ArrayLike | None = None,
        *,
        shape: Sequence[int] | None = None,
        held: Sequence[int] | None = None,
        form: str = "same",
    ) -> ir.Value:
        """Return a trainable parameter: a new initializer with the numbers of an attribute, or with ``array`` instead.

        The initializer has the shape of the attribute, or one axis if that is a single number, unless ``held`` gives
        another shape. With ``shape``, a Reshape in the graph changes the shape of the returned value.
        """
        path: Path = (attribute,) if isinstance(attribute, str) else attribute
        found = follow(owner, path)
        name = self.op.name(".".join(map(str, path)))
        self.known.append(ParameterSource(name, owner, path, form))
        numbers = np.asarray(found if array is None else array, np.float32).reshape(held or np.shape(found) or (1,))
        value = self.op.parameter(name, np.ascontiguousarray(numbers))
        return value if shape is None else self.op.Reshape(value, np.array(shape))

    def ml_operator(
        self, op_type: str, *, rows: ir.Value | None = None, outputs: int = 1, **attributes: Any
    ) -> Sequence[ir.Value]:
        """Emit the operator of ai.onnx.ml for the estimator, which reads ``rows``, by default the estimator's input.

        It is the only such operator of the estimator. The initializers into which it is rewritten get its name.
        """
        values = self.op.emit(
            op_type, self.x if rows is None else rows, domain="ai.onnx.ml", outputs=outputs, **attributes
        )
        node = values[0].producer()
        assert node is not None
        node.name = self.name
        values[-1].dtype = ir.DataType.FLOAT
        return values

    def hold(self, value: ir.Value, role: str, attribute: str, form: str = "same") -> None:
        """Note the attribute that holds the numbers of an ai.onnx.ml node; ``value`` is an output of the node."""
        node = value.producer()
        assert node is not None
        self.known.append(ParameterSource(node.name or "", self.estimator, (attribute,), form, role))

    def mark(self, what: str, value: ir.Value) -> None:
        """Record the node that computes ``value`` under the mark ``what``, for decision rules."""
        node = value.producer()
        assert node is not None
        assert node.name
        self.marked[what] = node.name

    def number(self, estimator: Estimator) -> ir.Value:
        """Return what a regressor predicts, (rows, outputs)."""
        return self.op.Reshape(self.convert_inner(estimator, self.x, False)[0], np.array([-1, 1]))

    def label(self, estimator: Estimator) -> ir.Value:
        """Return the labels that a classifier predicts, (rows, 1)."""
        return self.op.Reshape(self.convert_inner(estimator, self.x, False)[0], np.array([-1, 1]))

    def probabilities(self, estimator: Estimator) -> ir.Value:
        """Return the probabilities of the classes, (rows, classes)."""
        return self.op.Reshape(self.convert_inner(estimator, self.x, False)[1], np.array([-1, len(estimator.classes_)]))

    def decision(self, estimator: Estimator) -> ir.Value:
        """Return the decision function of a classifier, in one column for two classes."""
        scores = self.convert_inner(estimator, self.x, True)[1]
        classes = len(estimator.classes_)
        return self.op.Gather(scores, np.array([-1]), axis=1) if classes == 2 else scores

    def chosen(self, scores: ir.Value) -> ir.Value:
        """Return the class of the largest score of each row, the first one of a tie."""
        return self.class_at(self.op.ArgMax(scores, axis=1, keepdims=False))

    def class_at(self, positions: ir.Value) -> ir.Value:
        """Return the classes at the given positions, in skl2onnx's types: integers or strings."""
        return self.op.Gather(labels(self.estimator), positions, axis=0)

    def columns(self, score: ir.Value) -> ir.Value:
        """Return two columns for a single score s: (-s, s) if raw scores are wanted, else their sigmoids."""
        op = self.op
        if self.raw_scores:
            return op.Concat(op.Neg(score), score, axis=1)
        return op.Concat(op.Sigmoid(op.Neg(score)), op.Sigmoid(score), axis=1)


Emit: TypeAlias = "Callable[[Source], Sequence[ir.Value] | None]"


@dataclass(frozen=True)
class Converter:
    """Conversion of one class of estimators.

    Attributes
    ----------
    emit : callable
        ``emit(source)`` returns the outputs, or None to use skl2onnx's own converter.
    columns : callable or None
        The number of output columns of the estimator; None if skl2onnx declares it.
    takes : callable
        Whether the converter supports the settings of the estimator.
    takes_text : bool
        True if the converter reads ``inputs``, which may be text; False if it reads ``x``.
    """

    emit: Emit
    columns: Callable[[Estimator], int] | None = None
    takes: Callable[[Estimator], bool] = lambda estimator: True
    takes_text: bool = False


def of_rows(
    emit: Callable[[Source], ir.Value],
    columns: Callable[[Estimator], int],
    takes: Callable[[Estimator], bool] = lambda estimator: True,
) -> Converter:
    """Return the converter whose ``emit(source)`` computes a single output; for outlier detectors it adds labels."""

    def results(source: Source) -> Sequence[ir.Value]:
        result, op = emit(source), source.op
        if not is_outlier_detector(source.estimator):
            return [result]
        return [op.Where(op.Less(result, 0.0), np.array(-1), np.array(1)), result]

    return Converter(results, columns, takes)


def labels(estimator: Estimator) -> np.ndarray:
    """Return the classes of a classifier in skl2onnx's types: integers or strings."""
    classes = np.asarray(estimator.classes_)
    return classes.astype(np.int64) if classes.dtype.kind in "iubf" else classes.astype(str)


def several_labels(estimator: Estimator) -> bool:
    """Return True if a classifier predicts several labels per row."""
    return isinstance(estimator.classes_, list)
