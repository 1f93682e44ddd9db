"""The head of a graph, which follows the scores: task, link and labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._data.target_range import TargetRange
from .._data.target_scale import TargetScale
from .._graph.links import Link, Task
from .._graph.positions import Positions


@dataclass(frozen=True)
class Head:
    """What comes after the scores.

    Attributes
    ----------
    task : {"regression", "binary", "multiclass", "multilabel", "multioutput"}
    link : str
        The function from scores to predictions or probabilities.
    n_outputs : int
        Columns of the scores.
    classes : ndarray, list of ndarray or None
        Labels that the label indices stand for; a list for several labels a row, each with classes of its own.
    target_scale : TargetScale or None
        What the targets were scaled by for training; predictions are scaled back.
    target_range : TargetRange or None
        Of a regressor, the range of the targets that were trained on, and whether predictions are clipped to it.
    row_shape : tuple of int
        Shape of a row of numeric targets that has several axes, such as an image; else empty.
    positions : Positions or None
        Of a classifier that predicts a label at each position of a row; ``n_outputs`` are scores of one position.
    parts : tuple of Head
        The heads of a graph with several outputs; ``n_outputs`` are then the columns of all targets.
    """

    task: Task
    link: Link
    n_outputs: int
    classes: np.ndarray | list[np.ndarray] | None = None
    target_scale: TargetScale | None = None
    target_range: TargetRange | None = None
    row_shape: tuple[int, ...] = ()
    positions: Positions | None = None
    parts: tuple[Head, ...] = ()

    @property
    def groups(self) -> tuple[int, ...]:
        """Columns of the scores that belong to each of several labels."""
        return tuple(map(len, self.classes)) if isinstance(self.classes, list) else ()

    @property
    def has_probabilities(self) -> bool:
        """Whether the link of a classifier gives probabilities."""
        return self.task != "regression" and self.link != "identity"
