"""Axes of matplotlib for the panels of a display, and the estimator whose data it shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._support.typing import Estimator

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def new_axes(panels: int, size: tuple[float, float]) -> list[Axes]:
    """Return axes below each other in a new figure of pyplot."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Displays draw with matplotlib: pip install matplotlib.") from error
    _, axes = plt.subplots(panels, 1, figsize=size, squeeze=False, layout="constrained")
    return list(axes[:, 0])


def given_axes(ax: Axes | Iterable[Axes], panels: int, what: str) -> list[Axes]:
    """Return the axes that a caller gave; ``what`` names the panels.

    Raises
    ------
    ValueError
        There are more axes than panels, or fewer.
    """
    axes: list[Any] = list(np.ravel(np.array(ax, dtype=object)))
    if len(axes) != panels:
        raise ValueError(f"ax must be {panels} axes, for {what}, got {len(axes)}.")
    return axes


def fitted_last_step(estimator: Estimator) -> Estimator:
    """Return the fitted estimator itself, or the last step of a pipeline, or the best of a search."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    steps = getattr(estimator, "steps", None)
    last: Estimator = estimator if steps is None else steps[-1][1]
    check_is_fitted(last)
    return last
