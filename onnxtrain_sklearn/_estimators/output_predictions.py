"""The outputs of the inference graph of several heads, by number, and their values during training."""

from __future__ import annotations

import numpy as np

from .._inference.head import Head
from .scoring import Predictions


def first_outputs(head: Head, *, with_scores: bool) -> list[int]:
    """Return the number of the first output of the inference graph for each part: the label, or the number."""
    sizes = [(1 if part.task == "regression" else 2) + with_scores for part in head.parts]
    return [sum(sizes[:i]) for i in range(len(sizes))]


def numbers_of_outputs(head: Head, output: int, *, with_scores: bool) -> list[int]:
    """Return the number of an output of the inference graph for each part; -1: of its scores."""
    first = first_outputs(head, with_scores=with_scores)
    last = [1 if part.task == "regression" else 2 for part in head.parts]
    return [begin + (end if output == -1 else min(output, end - 1)) for begin, end in zip(first, last, strict=True)]


class LiveOutputs(Predictions[list[np.ndarray]]):
    """The predictions of all outputs for the validation rows, computed once per score."""

    def _computed(self, output: int, *, with_scores: bool) -> list[np.ndarray]:
        numbers = numbers_of_outputs(self._run.head, output, with_scores=with_scores)
        return self._predictor(with_scores=with_scores).run_several(self._live, numbers, self._rows)

    def finite(self) -> bool:
        return all(bool(np.isfinite(own).all()) for own in self(self._X, -1, with_scores=True))
