"""Decides whether ``y`` has a label at each position of a row, and which axis of the scores is that of the classes."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from .._data.positions import label_array
from .._data.targets import Targets
from .._given.comparison import OwnOutput
from .._graph.positions import Positions
from .._graph.trainable import TrainableModel


def takes_positions(estimator: BaseEstimator, source: TrainableModel | None, y: ArrayLike) -> bool:
    """Whether ``y`` has a label at each position.

    A matrix has, if the scores of a row have several axes; else its columns are several labels of the row.
    """
    axis = vars(estimator).get("class_axis")  # a parameter of classifiers
    if axis is None or sp.issparse(y):
        return False
    if axis != "auto":
        return True
    axes = _axes(y)
    if axes != 2 or source is None:
        return axes > 2
    row = source.output_row
    long = [size for size in row if size != 1]
    return len(long) > 1 or (len(row) == 2 and len(long) == 1 and _is_at(long[0], label_array(y)))


def class_axis_of(estimator: object) -> int | str:
    """Return the setting of a classifier."""
    axis: int | str = vars(estimator)["class_axis"]
    return axis


def _is_at(places: int | None, labels: np.ndarray) -> bool:
    """Whether labels of two classes are at the places of single scores; zeros and ones are indicators, as ever."""
    return labels.shape[1] > 1 and places in (None, labels.shape[1]) and not np.isin(labels, (0, 1)).all()


def _axes(y: ArrayLike) -> int:
    """Return the number of axes; 2 if the rows of a list differ in length."""
    if isinstance(y, list | tuple) and (not y or isinstance(y[0], str | bytes | int | float)):
        return 1  # without a copy
    shape = getattr(y, "shape", None)
    try:
        return np.asarray(y).ndim if shape is None else len(shape)
    except ValueError:
        return 2


def positions_of(own: OwnOutput | None, source: TrainableModel, targets: Targets, setting: int | str) -> Positions:
    """Return the axes of the scores; ValueError if they do not fit the labels, or both ends may be that of classes."""
    if own is None:
        raise ValueError(
            f"y has a label at each of {targets.row_shape} positions, for which the graph must have scores: give an "
            f"ONNX graph, or a builder of your own."
        )
    row, places, declared = own.row_shape, targets.row_shape, source.output_row
    ends = {axis: rest for axis, rest in ((-1, row[:-1]), (1, row[1:])) if setting in ("auto", axis)}
    fitting = [axis for axis, rest in ends.items() if rest == places]
    if len(fitting) > 1 and len(declared) == len(row):  # an axis of any size is none of classes
        fitting = [axis for axis in fitting if declared[min(axis, 0)] is not None] or fitting
    if row == places:
        return Positions(len(places), -1)
    if len(fitting) == 1:
        return Positions(len(places), fitting[0])
    shape = ("n", *row)
    if fitting:
        raise ValueError(
            f"The graph's output {own.name!r} has shape {shape}: its first axis after the rows and its last one may "
            f"both be that of the classes. Say class_axis=1 or class_axis=-1."
        )
    raise ValueError(
        f"The graph's output {own.name!r} has shape {shape}, but y has shape {('n', *places)}: labels at positions "
        f"need scores of shape {('n', *places, 'k')} or {('n', 'k', *places)}."
    )
