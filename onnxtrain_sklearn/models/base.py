"""The base class of the graph builders, and the protocols that builders and their callers follow.

Derive from :class:`BaseBuilder` to write a builder. :class:`Builder` is the interface that the estimators call, and
documents the arguments that a builder may ask for.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeAlias, TypeGuard

import numpy as np
import onnx

from .._utils.params import Component

BY_COLUMN, BY_CHANNEL = "columns", "channels"
"""The values of ``scales_rows``."""


class BaseBuilder(Component, ABC):
    """Base class of the graph builders; ``build`` calls ``validate`` first.

    Attributes
    ----------
    scales_targets : bool
        Whether the graphs may be trained on regression targets of another unit than that of ``y``
        (``target_scaling="auto"`` of the regressor): their output is a linear layer of its own. False, the default:
        the graph predicts in the units of ``y`` itself.
    scales_rows : {"columns", "channels"} or None
        What the graphs of a builder of this package scale in rows of large numbers: each column, or each channel of an
        image or a signal. None, the default: nothing.
    """

    __module__ = "onnxtrain_sklearn.models"  # the path by which pickles name it
    scales_targets: ClassVar[bool] = False
    scales_rows: ClassVar[str | None] = None

    @abstractmethod
    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        """Return a graph from ``X`` (N, n_features) to ``scores`` (N, n_outputs) with initial weights."""


class Builder(Protocol):
    r"""The interface of a graph builder: a method ``build``.

    ``build(n_features, n_outputs, random_state)`` returns the graph. The estimators pass the three by position. A
    builder that needs more declares it in the signature of ``build`` as a keyword parameter, as methods of
    scikit-learn's estimators declare ``sample_weight``; it is passed by name.

    ========================= ==========================================================================================
    keyword                   what is passed
    ========================= ==========================================================================================
    ``row_shape``             Tuple of int, the shape of a row: ``(n_features,)`` for a table. A builder that declares
                              it takes ``X`` of more than two axes too, such as images: ``n_features`` is then the
                              product of the shape, and the input of the graph has the shape ("N", \*row_shape).
    ``X``                     The rows to train on, an array of shape (n_samples, \*row_shape) in float32 that is
                              read-only, or a sparse matrix where the user gave one. Rows that are held out for early
                              stopping and rows of weight zero are left out.
    ``y``                     Their targets: int64 of shape (n_samples,) with indices into the sorted classes for
                              classes, else float64 of shape (n_samples, n_outputs), in the units that
                              are trained (``target_scaling`` of the regressor).
    ``sample_weight``         Their weights, float64 of shape (n_samples,), or None where all are one.
    ========================= ==========================================================================================

    The data are those of the call that builds the graph: of ``fit``, or of the first ``partial_fit``.

    Targets are scaled for a builder whose attribute ``scales_targets`` is True; see :class:`BaseBuilder`. One whose
    attribute ``fit_intercept`` is False makes graphs that are 0 for a row of zeros, as
    :class:`Linear` does: targets are scaled for it without being centered.

    A builder with an attribute ``n_members`` that is not None makes an ensemble: the scores have the shape
    (N, n_members, n_outputs). What is minimized is the mean over the members of the loss of each. Predictions are the
    mean of the members' probabilities, or of their outputs; for losses with a log link, of their means. The graph must
    end in scores, whatever the loss is.
    """

    @property
    def build(self) -> Callable[..., onnx.ModelProto]:
        """Return the graph; the class documents the arguments."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A graph before it is made: graphs of the same builder for equal sizes and of equal form differ by weights alone.

    Attributes
    ----------
    weights : mapping of str to ndarray
        The initial weights by which they differ.
    form : hashable
        What else they are made from: the kind of the targets, constants that depend on the data.
    graph : callable
        Returns the graph with these weights.
    """

    weights: Mapping[str, np.ndarray]
    form: Hashable
    graph: Callable[[], onnx.ModelProto]


class Drafts(Builder, Protocol):
    """A builder that draws the weights of a graph before it makes the graph.

    Each class has a ``build`` of its own, which makes the graph of the draft: its signature tells users and
    :func:`keywords_of` the data that it takes.
    """

    def draft(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None, **data: Any
    ) -> Draft:
        """Return the draft of the graph that ``build`` makes; ``data`` are what ``build`` declares."""


KEYWORDS = ("row_shape", "X", "y", "sample_weight")
"""Arguments that a builder may declare beyond ``n_features``, ``n_outputs``, ``random_state``; see :class:`Builder`."""


class HasParameters(Protocol):
    """The methods that tell an estimator of scikit-learn."""

    def get_params(self, deep: bool = ...) -> dict[str, Any]: ...


class HasModelProto(Protocol):
    """A program of ``torch.onnx.export``, as far as it is read."""

    @property
    def model_proto(self) -> onnx.ModelProto: ...


ModelLike: TypeAlias = (
    "onnx.ModelProto | bytes | str | os.PathLike[str] | HasModelProto | Builder | HasParameters | None"
)
"""Type of an estimator's ``model``: a graph, its place, a builder, or a fitted estimator of scikit-learn."""


def is_builder(model: object) -> TypeGuard[Builder]:
    """Return True if ``model`` makes a graph sized to the data."""
    return not isinstance(model, type) and callable(getattr(model, "build", None))


def makes_drafts(builder: Builder) -> TypeGuard[Drafts]:
    """Return True if a builder has the method of :class:`Drafts`."""
    return hasattr(builder, "draft")


def keywords_of(builder: Builder) -> frozenset[str]:
    """Return which of :data:`KEYWORDS` the builder declares; ``**kwargs`` declares none."""
    build = builder.build
    return _declared_keywords(getattr(build, "__func__", build))


@lru_cache(maxsize=64)
def _declared_keywords(build: Callable[..., object]) -> frozenset[str]:
    try:
        declared = inspect.signature(build).parameters
    except (TypeError, ValueError):  # compiled functions may have no signature
        return frozenset()
    return frozenset(name for name in KEYWORDS if name in declared)
