"""Weights of an estimator as boxes (``WeightsDisplay``), and norms of its gradients as colors (``GradientDisplay``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._utils.typing import Estimator, HistoryRow
from .training import fitted_last_step, given_axes, new_axes

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
        places = np.arange(len(self.weights))
        quantiles = np.zeros((len(self.weights), 5))
        for i, array in enumerate(self.weights.values()):
            if array.size:
                quantiles[i] = np.quantile(np.asarray(array, np.float64).ravel(), [0, 0.25, 0.5, 0.75, 1])
        least, first, middle, third, largest = quantiles.T
        colors = ["C0" if self.trained is None or name in self.trained else "lightgray" for name in self.weights]
        self.ax_.hlines(places, least, largest, color="gray", linewidth=1)
        self.boxes_ = list(self.ax_.barh(places, third - first, left=first, height=0.6, color=colors))
        self.ax_.plot(middle, places, "k|", markersize=9)
        shapes = {name: "x".join(map(str, array.shape)) or "scalar" for name, array in self.weights.items()}
        self.ax_.set_yticks(places, [f"{name} {shape}" for name, shape in shapes.items()])
        self.ax_.invert_yaxis()
        self.ax_.set_xlabel("weight")
        if self.estimator_name is not None:
            self.ax_.set_title(self.estimator_name)
        return self


# The norms of the gradients of a training run, by layer and epoch.


RECORDED = "gradient_norm/"
"""Prefix of a parameter's name in the rows of a history."""

DISPLAYED_BY = ("layer", "parameter")


class GradientDisplay:
    """Norms of gradients by layer and epoch, as colors on a logarithmic scale: where they vanish, or explode.

    It is recommended to use :meth:`from_estimator` or :meth:`from_history`. The norms are those that the callback
    ``GradientStatistics(by_parameter=True)`` records.

    Parameters
    ----------
    norms : sequence of mapping of str to sequence of float
        For each network of an ensemble the norms of each layer in each epoch, by the name of the layer. A single
        network is a sequence of one.
    estimator_name : str, default=None
        Title of the picture.

    Attributes
    ----------
    axes_ : list of matplotlib.axes.Axes
        A panel for each network.
    figure_ : matplotlib.figure.Figure
    meshes_ : list of matplotlib.collections.QuadMesh
        The colors of each panel; norms of zero and missing epochs have none.

    See Also
    --------
    TrainingDisplay : The curves of a training run, with the norm of all gradients.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import GradientStatistics
    >>> from onnxtrain_sklearn.displays import GradientDisplay
    >>> statistics = GradientStatistics(by_parameter=True)
    >>> net = OrtGradientClassifier(MLP((8, 4)), callbacks=[statistics], tol=1e-2, random_state=0)
    >>> display = GradientDisplay.from_estimator(net.fit(*load_iris(return_X_y=True)))
    >>> [label.get_text() for label in display.axes_[0].get_yticklabels()]
    ['layers.0', 'layers.1', 'layers.2']
    """

    def __init__(self, norms: Sequence[Mapping[str, Sequence[float]]], *, estimator_name: str | None = None) -> None:
        self.norms = norms
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls, estimator: Estimator, *, by: str = "layer", ax: Axes | Iterable[Axes] | None = None, **kwargs: object
    ) -> Self:
        """Draw the norms of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of this package, a pipeline that ends in one, or a search over them.
        by : {"layer", "parameter"}, default="layer"
            A row for each layer, whose parameters have one name up to the last dot, or for each parameter.
        ax : matplotlib.axes.Axes or iterable of them, default=None
            An axes for each network; None: those of a new figure.
        **kwargs : object
            Keywords of :meth:`matplotlib.axes.Axes.pcolormesh`.

        Returns
        -------
        GradientDisplay

        Raises
        ------
        ValueError
            No norms were recorded.
        """
        net = fitted_last_step(estimator)
        return cls.from_history(net.history_, by=by, estimator_name=type(net).__name__, ax=ax, **kwargs)

    @classmethod
    def from_history(
        cls,
        history: Iterable[Mapping[str, object]],
        *,
        by: str = "layer",
        estimator_name: str | None = None,
        ax: Axes | Iterable[Axes] | None = None,
        **kwargs: object,
    ) -> Self:
        """Draw the norms of a history, as fitted estimators have it in ``history_``.

        Parameters
        ----------
        history : iterable of mapping, or data frame
            A row for each epoch, with the norm of the gradient of each parameter as ``gradient_norm/NAME``.
        by : {"layer", "parameter"}, default="layer"
            A row for each layer, whose parameters have one name up to the last dot, or for each parameter.
        estimator_name : str, default=None
            Title of the picture.
        ax : matplotlib.axes.Axes or iterable of them, default=None
            An axes for each network; None: those of a new figure.
        **kwargs : object
            Keywords of :meth:`matplotlib.axes.Axes.pcolormesh`.

        Returns
        -------
        GradientDisplay

        Raises
        ------
        ValueError
            No norms were recorded.
        """
        if by not in DISPLAYED_BY:
            raise ValueError(f"by must be 'layer' or 'parameter', got {by!r}.")
        rows = list(history.to_dict("records") if hasattr(history, "to_dict") else history)
        # The rows of an ensemble tell which network they belong to; each network has epochs, and a panel, of its own.
        networks = dict.fromkeys(row.get("network", 0) for row in rows)
        norms = [_curves_by_name([row for row in rows if row.get("network", 0) == one], by) for one in networks]
        if not any(norms):
            raise ValueError(
                "The history has no norms of the gradients of parameters. Train with the callback "
                "GradientStatistics(by_parameter=True), which records them."
            )
        return cls(norms, estimator_name=estimator_name).plot(ax=ax, **kwargs)

    def plot(self, ax: Axes | Iterable[Axes] | None = None, **kwargs: object) -> Self:
        """Draw the norms.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or iterable of them, default=None
            An axes for each network; None: those of a new figure.
        **kwargs : object
            Keywords of :meth:`matplotlib.axes.Axes.pcolormesh`.

        Returns
        -------
        GradientDisplay
            The display itself, with ``axes_``, ``figure_`` and ``meshes_``.
        """
        panels = len(self.norms)
        layers = max(map(len, self.norms))
        size = (6.4, panels * (1.2 + 0.3 * layers))
        self.axes_ = new_axes(panels, size) if ax is None else given_axes(ax, panels, "the norms of each network")
        self.figure_ = self.axes_[0].figure
        self.meshes_ = [_draw_norms(one, each, kwargs) for one, each in zip(self.axes_, self.norms, strict=True)]
        for number, one in enumerate(self.axes_ if panels > 1 else (), start=1):
            one.set_title(f"network {number}", fontsize="small")
        self.axes_[-1].set_xlabel("epoch")
        if self.estimator_name is not None:
            self.axes_[0].set_title(self.estimator_name)
        return self


def _curves_by_name(rows: Sequence[HistoryRow], by: str) -> dict[str, list[float]]:
    """Return the norm of each layer, or of each parameter, in every epoch of one network."""
    names = [name for row in rows for name in row if name.startswith(RECORDED)]
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        parameter = name.removeprefix(RECORDED)
        layer = parameter.rpartition(".")[0] or parameter
        groups.setdefault(layer if by == "layer" else parameter, []).append(name)
    # the norm of several gradients together; NaN if the epoch has none
    return {
        group: [math.hypot(*(np.nan if row.get(n) is None else float(row[n]) for n in members)) for row in rows]
        for group, members in groups.items()
    }


def _draw_norms(ax: Axes, norms: Mapping[str, Sequence[float]], style: Mapping[str, object]) -> Any:
    from matplotlib.colors import LogNorm

    table = np.array(list(norms.values()), dtype=np.float64).reshape(len(norms), -1)
    # The color scale is logarithmic: leave out norms of zero, and those that overflowed.
    shown = np.ma.masked_where(~(np.isfinite(table) & (table > 0)), table)
    keywords: dict[str, Any] = {"norm": LogNorm(), "cmap": "viridis", **style}
    # Cells centered on the numbers of epochs and of rows; the first layer is at the top.
    edges = np.arange(table.shape[1] + 1) + 0.5, np.arange(len(norms) + 1) - 0.5
    mesh = ax.pcolormesh(*edges, shown, **keywords)
    ax.set_yticks(np.arange(len(norms)), list(norms))
    ax.invert_yaxis()
    ax.figure.colorbar(mesh, ax=ax, label="gradient norm")
    return mesh
