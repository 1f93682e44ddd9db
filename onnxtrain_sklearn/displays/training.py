"""Curves of a training run: losses, validation scores, learning rates, norms of gradients.

``TrainingDisplay`` draws a panel for each. The axes, and the estimator in a pipeline or a search, are found by
functions at the end, which the other displays use too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._utils.typing import Estimator, HistoryRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Self


class TrainingDisplay:
    """Curves of a training run, one panel each: loss, validation score, learning rate, norm of the gradients.

    It is recommended to use :meth:`from_estimator` or :meth:`from_history`. Other panels than that of
    the loss are left out if they have no data, and that of a learning rate if it never changes.

    Parameters
    ----------
    losses : sequence of sequence of float
        Loss of each epoch, a curve for each network of an ensemble.
    validation_scores : sequence of sequence of float, default=()
        Score of each epoch on validation data, a curve for each network.
    validation_losses : sequence of sequence of float, default=()
        Loss of each epoch on validation data, in the panel of the losses.
    learning_rates : sequence of sequence of float, default=()
        Learning rate of each epoch, a curve for each network.
    gradient_norms : sequence of sequence of float, default=()
        Norm of the gradients in each epoch, a curve for each network.
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
    >>> net = OrtGradientClassifier("linear", early_stopping=True, tol=1e-3, learning_rate_init=0.1, random_state=0)
    >>> display = TrainingDisplay.from_estimator(net.fit(*load_iris(return_X_y=True)))
    >>> [ax.get_ylabel() for ax in display.axes_]
    ['loss', 'validation score']
    """

    def __init__(
        self,
        losses: Sequence[Sequence[float]],
        *,
        validation_scores: Sequence[Sequence[float]] = (),
        validation_losses: Sequence[Sequence[float]] = (),
        learning_rates: Sequence[Sequence[float]] = (),
        gradient_norms: Sequence[Sequence[float]] = (),
        estimator_name: str | None = None,
    ) -> None:
        self.losses = losses
        self.validation_scores = validation_scores
        self.validation_losses = validation_losses
        self.learning_rates = learning_rates
        self.gradient_norms = gradient_norms
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
        **kwargs : object
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
        rows = getattr(net, "history_", [])
        return cls(
            _curves(net, "loss_curves_", "loss_curve_"),
            validation_scores=_curves(net, "validation_scores_"),
            **{name: _column_of(rows, key) for name, key in _FURTHER.items()},
            estimator_name=type(net).__name__,
        )

    @classmethod
    def from_history(
        cls,
        history: Iterable[Mapping[str, object]],
        *,
        estimator_name: str | None = None,
        ax: Axes | Iterable[Axes] | None = None,
        **kwargs: object,
    ) -> Self:
        """Draw the curves of a history, as fitted estimators have it in ``history_``.

        Parameters
        ----------
        history : iterable of mapping, or data frame
            A row for each epoch, with ``loss`` and, where they are known, ``validation_score``, ``validation_loss``,
            ``learning_rate`` and ``gradient_norm``.
        estimator_name : str, default=None
            Title of the picture.
        ax : matplotlib.axes.Axes or iterable of them, default=None
            An axes for each panel that has data; None: those of a new figure.
        **kwargs : object
            Keywords of :meth:`matplotlib.axes.Axes.plot`.

        Returns
        -------
        TrainingDisplay
        """
        rows = list(history.to_dict("records") if hasattr(history, "to_dict") else history)
        further = {name: _column_of(rows, key) for name, key in _FURTHER.items()}
        losses, scores = _column_of(rows, "loss"), _column_of(rows, "validation_score")
        display = cls(losses, validation_scores=scores, **further, estimator_name=estimator_name)
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax: Axes | Iterable[Axes] | None = None, **kwargs: object) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or iterable of them, default=None
            An axes for each panel that has data; None: those of a new figure.
        **kwargs : object
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
            names_of_lines = self._labels(len(curves)) if name == "loss" else _networks(len(curves))
            self.lines_ += _draw_panel(one, name, curves, names_of_lines, kwargs)
        self.axes_[-1].set_xlabel("epoch")
        if self.estimator_name is not None:
            self.axes_[0].set_title(self.estimator_name)
        return self

    def _labels(self, curves: int) -> list[str]:
        further = len(self.validation_losses)
        return ["training"] * (curves - further) + ["validation"] * further if further else _networks(curves)

    @property
    def panels(self) -> dict[str, Sequence[Sequence[float]]]:
        """The curves that have points, by the name of their panel."""
        named = {
            "loss": [*self.losses, *self.validation_losses],
            "validation score": self.validation_scores,
            # a constant rate needs no panel
            "learning rate": [curve for curve in self.learning_rates if len(set(curve)) > 1],
            "gradient norm": self.gradient_norms,
        }
        found = {name: [curve for curve in curves if len(curve)] for name, curves in named.items()}
        return {name: curves for name, curves in found.items() if curves or name == "loss"}


_FURTHER = {
    "validation_losses": "validation_loss",
    "learning_rates": "learning_rate",
    "gradient_norms": "gradient_norm",
}
"""Keys of a history by the parameters of ``TrainingDisplay``; estimators have no attributes with these curves."""


def _networks(curves: int) -> list[str]:
    # matplotlib has ten colors; a legend of more networks would name two by each
    return [f"network {i + 1}" for i in range(curves)] if 1 < curves <= 10 else []


def _draw_panel(
    ax: Axes, name: str, curves: Sequence[Sequence[float]], labels: Sequence[str], style: Mapping[str, object]
) -> list[Any]:
    lines: list[Any] = []
    for i, curve in enumerate(curves):
        keywords: dict[str, Any] = {**({"label": labels[i]} if labels else {}), **style}
        lines += ax.plot(np.arange(1, len(curve) + 1), curve, **keywords)
    # Losses, rates and norms fall by orders of magnitude; scores do not. NaN is drawn on neither scale.
    positive = all(not value <= 0 for curve in curves for value in curve)
    if positive and curves and name != "validation score":
        ax.set_yscale("log")
    ax.set_ylabel(name)
    if labels:
        ax.legend(fontsize="small")
    return lines


def _curves(net: Estimator, *names: str) -> list[list[float]]:
    """Return the first of these attributes that is set, as curves: one, or one for each network of an ensemble."""
    found = next((getattr(net, name) for name in names if getattr(net, name, None) is not None), None)
    if found is None or not len(found):
        return []
    each = [list(one or []) for one in found] if isinstance(found[0], Sequence) or found[0] is None else [list(found)]
    return [[float(value) for value in one] for one in each]


def _column_of(rows: Iterable[HistoryRow], key: str) -> list[list[float]]:
    """Return an entry of a history as one curve, with NaN for epochs that lack it; no curve if all do."""
    found = [row.get(key) for row in rows]
    if all(value is None for value in found):
        return []
    return [[np.nan if value is None else float(value) for value in found]]


# Axes of matplotlib for the panels of a display, and the estimator whose data it shows.


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
