"""What a training is given and returns: rows, and the fitted estimator with its way of reading a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .tables import MISSING_TEXT

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Rows:
    """Rows of the table without the target, and their targets."""

    frame: pandas.DataFrame
    y: np.ndarray


@dataclass(frozen=True)
class Trained:
    """A fitted estimator.

    Attributes
    ----------
    predictor : estimator
        Predicts from what ``prepare`` returns.
    net : estimator
        The estimator of this package in it, with the losses of its epochs.
    prepare : callable
        Takes a data frame.
    columns : list of str
        The columns that it reads, in their order.
    missing_text : str
        What stands for missing text in the ONNX file.
    earlier : int
        Epochs of earlier fits that the training went on from.
    """

    predictor: Any
    net: Any
    prepare: Callable[[Any], Any]
    columns: list[str]
    missing_text: str = MISSING_TEXT
    earlier: int = 0
