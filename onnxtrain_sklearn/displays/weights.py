"""The distribution of the numbers in each weight of an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .._support.typing import Estimator
from .axes import fitted_last_step, given_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Self


class WeightsDisplay:
    """Boxes of the numbers in each weight: quartiles, with whiskers to the least and the largest.

    It is recommended to use :meth:`from_estimator`.

    Parameters
    ----------
    weights : mapping of str to ndarray
        The weights by name.
    trained : collection of str, default=None
        The names of those that were trained, which are drawn in color; None: all.
    estimator_name : str, default=None
        Title of the picture.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
    figure_ : matplotlib.figure.Figure
    boxes_ : list of matplotlib artists
        A box for each weight, in the order of ``weights``.

    See Also
    --------
    TrainingDisplay : The curves of a training run.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.displays import WeightsDisplay
    >>> net = OrtGradientClassifier("linear", learning_rate_init=0.1, tol=1e-2, random_state=0)
    >>> display = WeightsDisplay.from_estimator(net.fit(*load_iris(return_X_y=True)))
    >>> [label.get_text() for label in display.ax_.get_yticklabels()] == [
    ...     f"{name} {'x'.join(map(str, array.shape))}" for name, array in net.weights_.items()
    ... ]
    True
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        *,
        trained: frozenset[str] | None = None,
        estimator_name: str | None = None,
    ) -> None:
        self.weights = weights
        self.trained = trained
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(cls, estimator: Estimator, *, ax: Axes | None = None) -> Self:
        """Draw the weights of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted ``OrtGradientClassifier`` or ``OrtGradientRegressor``, a pipeline that ends in one, or a search.
        ax : matplotlib.axes.Axes, default=None
            Where to draw; None: in a new figure.

        Returns
        -------
        WeightsDisplay
        """
        net = fitted_last_step(estimator)
        if not hasattr(net, "weights_"):
            raise ValueError(f"{type(net).__name__} has no weights_: its networks are parts of the graph of to_onnx().")
        trained = frozenset(entry.name for entry in net.describe().of("trained"))
        return cls(net.weights_, trained=trained, estimator_name=type(net).__name__).plot(ax=ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the weights.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Where to draw; None: in a new figure.

        Returns
        -------
        WeightsDisplay
            The display itself, with ``ax_``, ``figure_`` and ``boxes_``.
        """
        height = 1.2 + 0.3 * len(self.weights)
        self.ax_ = new_axes(1, (6.4, height))[0] if ax is None else given_axes(ax, 1, "the weights")[0]
        self.figure_ = self.ax_.figure
        places, quantiles = np.arange(len(self.weights)), np.array([_quantiles(a) for a in self.weights.values()])
        least, first, middle, third, largest = quantiles.T
        colors = ["C0" if self.trained is None or name in self.trained else "lightgray" for name in self.weights]
        self.ax_.hlines(places, least, largest, color="gray", linewidth=1)
        self.boxes_ = list(self.ax_.barh(places, third - first, left=first, height=0.6, color=colors))
        self.ax_.plot(middle, places, "k|", markersize=9)
        self.ax_.set_yticks(places, [f"{name} {_told_shape(array)}" for name, array in self.weights.items()])
        self.ax_.invert_yaxis()
        self.ax_.set_xlabel("weight")
        if self.estimator_name is not None:
            self.ax_.set_title(self.estimator_name)
        return self


def _quantiles(array: np.ndarray) -> np.ndarray:
    numbers = np.asarray(array, np.float64).ravel()
    return np.quantile(numbers, [0, 0.25, 0.5, 0.75, 1]) if numbers.size else np.zeros(5)


def _told_shape(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape)) or "scalar"
