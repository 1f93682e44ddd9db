"""The curves of a training run: losses, validation scores, learning rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._support.typing import Estimator
from .axes import fitted_last_step, given_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Self


class TrainingDisplay:
    """Curves of a training run, one panel each: the loss, the validation score, the learning rate.

    It is recommended to use :meth:`from_estimator`. A panel without data is left out.

    Parameters
    ----------
    losses : sequence of sequence of float
        Loss of each epoch, a curve for each network of an ensemble.
    validation_scores : sequence of sequence of float, default=()
        Score of each epoch on validation data, a curve for each network.
    learning_rates : sequence of sequence of float, default=()
        Learning rate of each epoch, a curve for each network.
    estimator_name : str, default=None
        Title of the picture.

    Attributes
    ----------
    axes_ : list of matplotlib.axes.Axes
        The panels, from the top.
    figure_ : matplotlib.figure.Figure
    lines_ : list of matplotlib.lines.Line2D
        The curves, in the order of the panels.

    See Also
    --------
    WeightsDisplay : The weights of a fitted estimator.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.displays import TrainingDisplay
    >>> net = OrtGradientClassifier("linear", early_stopping=True, learning_rate_init=0.1, random_state=0)
    >>> display = TrainingDisplay.from_estimator(net.fit(*load_iris(return_X_y=True)))
    >>> [ax.get_ylabel() for ax in display.axes_][:2]
    ['loss', 'validation score']
    """

    def __init__(
        self,
        losses: Sequence[Sequence[float]],
        *,
        validation_scores: Sequence[Sequence[float]] = (),
        learning_rates: Sequence[Sequence[float]] = (),
        estimator_name: str | None = None,
    ) -> None:
        self.losses = losses
        self.validation_scores = validation_scores
        self.learning_rates = learning_rates
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(cls, estimator: Estimator, *, ax: Axes | Iterable[Axes] | None = None, **kwargs: object) -> Self:
        """Draw the curves of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of this package, a pipeline that ends in one, or a search over them.
        ax : matplotlib.axes.Axes or iterable of them, default=None
            An axes for each panel that has data; None: those of a new figure.
        **kwargs
            Keywords of :meth:`matplotlib.axes.Axes.plot`.

        Returns
        -------
        TrainingDisplay
        """
        return cls.of(estimator).plot(ax=ax, **kwargs)

    @classmethod
    def of(cls, estimator: Estimator) -> Self:
        """Return the display of a fitted estimator without drawing it."""
        net = fitted_last_step(estimator)
        return cls(
            _curves(net, "loss_curves_", "loss_curve_"),
            validation_scores=_curves(net, "validation_scores_"),
            learning_rates=_rates(net),
            estimator_name=type(net).__name__,
        )

    def plot(self, ax: Axes | Iterable[Axes] | None = None, **kwargs: object) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or iterable of them, default=None
            An axes for each panel that has data; None: those of a new figure.
        **kwargs
            Keywords of :meth:`matplotlib.axes.Axes.plot`.

        Returns
        -------
        TrainingDisplay
            The display itself, with ``axes_``, ``figure_`` and ``lines_``.
        """
        panels = self.panels
        names = " and ".join(panels)
        self.axes_ = (
            new_axes(len(panels), (6.4, 1.2 + 2.4 * len(panels))) if ax is None else given_axes(ax, len(panels), names)
        )
        self.figure_ = self.axes_[0].figure
        self.lines_: list[Any] = []
        for one, (name, curves) in zip(self.axes_, panels.items(), strict=True):
            self.lines_ += _draw_panel(one, name, curves, **kwargs)
        self.axes_[-1].set_xlabel("epoch")
        if self.estimator_name is not None:
            self.axes_[0].set_title(self.estimator_name)
        return self

    @property
    def panels(self) -> dict[str, Sequence[Sequence[float]]]:
        """The curves that have points, by the name of their panel."""
        named = {
            "loss": self.losses,
            "validation score": self.validation_scores,
            "learning rate": self.learning_rates,
        }
        found = {name: [curve for curve in curves if len(curve)] for name, curves in named.items()}
        return {name: curves for name, curves in found.items() if curves or name == "loss"}


def _draw_panel(ax: Axes, name: str, curves: Sequence[Sequence[float]], **kwargs: object) -> list[Any]:
    lines: list[Any] = []
    for i, curve in enumerate(curves):
        label = {"label": f"network {i + 1}"} if len(curves) > 1 else {}
        style: dict[str, Any] = {**label, **kwargs}
        lines += ax.plot(np.arange(1, len(curve) + 1), curve, **style)
    positive = all(value > 0 for curve in curves for value in curve)
    if positive and curves and name != "validation score":
        ax.set_yscale("log")
    ax.set_ylabel(name)
    if 1 < len(curves) <= 10:
        ax.legend(fontsize="small")
    return lines


def _curves(net: Estimator, *names: str) -> list[list[float]]:
    """Return the first attribute that is there, as curves: one, or one for each network of an ensemble."""
    found = next((getattr(net, name) for name in names if getattr(net, name, None) is not None), None)
    if found is None or not len(found):
        return []
    each = [list(one or []) for one in found] if isinstance(found[0], Sequence) or found[0] is None else [list(found)]
    return [[float(value) for value in one] for one in each]


def _rates(net: Estimator) -> list[list[float]]:
    """Return the learning rates that a history of rows holds, where there is one."""
    rows = getattr(net, "history_", None)
    names = ("learning_rate", "rate")
    if rows is None or not hasattr(rows, "__iter__"):
        return []
    if hasattr(rows, "columns"):
        rows = rows.to_dict("records")
    found = [[row.get(name) for name in names if isinstance(row, dict)] for row in rows]
    rates = [next((value for value in one if value is not None), None) for one in found]
    return [[float(rate) for rate in rates if rate is not None]] if any(rate is not None for rate in rates) else []
