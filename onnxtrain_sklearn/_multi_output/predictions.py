"""Predictions of several outputs: a dict that says why scikit-learn's metrics do not take it."""

from __future__ import annotations

from typing import Any, TypeVar

OutputArray = TypeVar("OutputArray")


class OutputPredictions(dict[str, OutputArray]):
    """Predictions by output.

    Metrics of scikit-learn ask for the shape of what they take, and would speak of the number of outputs, or print all
    rows, where a dict has none.
    """

    @property
    def shape(self) -> Any:
        """Raise: a dict of arrays has no shape."""
        raise TypeError(
            f"Metrics of scikit-learn take one array, and these predictions are a dict by output: {list(self)}. Score "
            f"one output, metric(y[{next(iter(self), '...')!r}], predictions[{next(iter(self), '...')!r}]), or all of "
            f"them by score() and output_scores(); scoring= of searches and callbacks may be a function "
            f"(estimator, X, y) that does."
        )

    def __reduce__(self) -> tuple[type[dict[str, OutputArray]], tuple[dict[str, OutputArray]]]:
        """Pickle a plain dict."""
        return dict, (dict(self),)
