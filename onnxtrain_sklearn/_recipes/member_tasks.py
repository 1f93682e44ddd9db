"""Callbacks of a recipe: its networks take them, each as a task of the recipe in the form of ``sklearn.callback``.

Callbacks that scikit-learn passes on to nested estimators, such as its progress bar, are told of the recipe and of its
networks; all others of the networks alone, whose epochs they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from .._estimators.callback_support import (
    SET,
    CallbackSupportMixin,
    call_with_teardown,
    is_propagated,
    set_callbacks_of,
)
from .._training.history import EpochRows
from .members import Network

Recipe: TypeAlias = Any
"""An estimator for raw tables."""

FitResult = TypeVar("FitResult")


class MemberTasks:
    """The tasks of a call of ``fit`` of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._root: Any = None
        self._set = set_callbacks_of(recipe)

    def run(self, fit: Callable[[], FitResult]) -> FitResult:
        """Call ``fit`` as the task of the recipe."""
        if not self._set:
            return fit()
        held = self._recipe.__dict__
        given, held[SET] = held[SET], [one for one in self._set if is_propagated(one)]
        try:
            result: FitResult = call_with_teardown(self._recipe, lambda: self._told(fit))
            return result
        finally:
            held[SET] = given

    def _told(self, fit: Callable[[], FitResult]) -> FitResult:
        recipe = self._recipe
        self._root = root = recipe._init_callback_context(max_subtasks=recipe.n_ensembles)
        root.call_on_fit_task_begin(estimator=recipe)
        result = fit()
        root.call_on_fit_task_end(estimator=recipe)
        return result

    def fit(self, network: Network, X: object, y: object, settings: Mapping[str, object]) -> None:
        """Fit a network with the callbacks of the recipe."""
        recipe, root = self._recipe, self._root
        network.set_params(callbacks=recipe.callbacks)
        if root is None:
            network.fit(X, y, **settings)
            return
        network.set_callbacks(*(one for one in self._set if not is_propagated(one)))
        task = root.subcontext(task_name="network")
        with task.propagate_callback_context(network):
            task.call_on_fit_task_begin(estimator=recipe)
            network.fit(X, y, **settings)
        task.call_on_fit_task_end(estimator=recipe)


class TracedRecipe(CallbackSupportMixin):
    """A recipe with the history of its networks."""

    loss_curves_: list[list[float]]
    _epochs: list[dict[str, Any]]

    @property
    def history_(self) -> EpochRows:
        """A dict for each epoch of each network, as that of the networks; ``network`` is its number."""
        if "loss_curves_" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'history_': it is not fitted.")
        return EpochRows(map(dict, self._epochs))


def epochs_of(networks: list[Network]) -> list[dict[str, Any]]:
    """Return the history of all networks, as plain dicts."""
    return [{"network": number, **row} for number, network in enumerate(networks) for row in network.history_]
