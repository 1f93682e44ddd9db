"""L-BFGS by SciPy, the only optimizer that minimizes the loss of the whole data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy.optimize

from .._utils.params import COUNT, Rules
from .base import BaseOptimizer

IterationCallback: TypeAlias = "Callable[[np.ndarray, float], bool | None]"
Objective: TypeAlias = "Callable[[np.ndarray], tuple[float, np.ndarray]]"


@dataclass(frozen=True, eq=False)
class MinimizeResult:
    """Result of ``LBFGS.minimize``: the last iterate, of shape (P,), and its objective.

    ``converged`` is True if a tolerance was met, ``limited`` if a limit was reached. If neither is, a line search
    failed. ``message`` is SciPy's message.
    """

    vector: np.ndarray
    loss: float
    n_iter: int
    converged: bool
    limited: bool
    message: str


class LBFGS(BaseOptimizer):
    r"""Limited-memory BFGS on the whole data set: a quasi-Newton method for smooth losses on small data.

    .. math:: p ← p - η_k H_k ∇f(p)

    with H an inverse Hessian estimated from the last iterations and η from a line search: learning rate, schedule,
    batch size and order of the rows play no role, nor does ``n_iter_no_change`` without early stopping. Run by
    ``scipy.optimize.minimize(method="L-BFGS-B")``, as in scikit-learn's MLP. Liu and Nocedal, "On the limited memory
    BFGS method for large scale optimization", Mathematical Programming 45, 1989.

    Parameters
    ----------
    history_size : int, default=10
        Iterations that H is estimated from, at least 1; each costs two vectors of float64.
    max_line_searches, max_fun : int, default=20 and 15000
        Evaluations of the objective in one line search (SciPy's ``maxls``) and in all, at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn.optimizers import LBFGS
    >>> LBFGS().minimize(lambda x: (float(x @ x), 2 * x), np.array([3.0, 4.0]), max_iter=20, tol=1e-6).converged
    True
    """

    name = "lbfgs"
    takes_minibatches = False
    valid: ClassVar[Rules] = dict.fromkeys(("history_size", "max_line_searches", "max_fun"), (COUNT,))

    def __init__(self, history_size: int = 10, max_line_searches: int = 20, max_fun: int = 15000) -> None:
        self.history_size = history_size
        self.max_line_searches = max_line_searches
        self.max_fun = max_fun

    def minimize(
        self,
        objective: Objective,
        start: np.ndarray,
        *,
        max_iter: int,
        tol: float,
        callback: IterationCallback | None = None,
    ) -> MinimizeResult:
        """Minimize ``objective`` from ``start``; the vectors, of shape (P,), are float64.

        Parameters
        ----------
        objective : callable (vector) -> (loss, gradient)
            It must neither keep nor change the vector.
        start : ndarray of shape (P,)
        max_iter, tol : int, float
            Maximum number of iterations. The search ends earlier if no element of the gradient exceeds ``tol``, or if
            the loss stops falling.
        callback : callable (vector, loss) -> bool or None, optional
            Called after each iteration; True stops the search.
        """
        limits = {"maxls": self.max_line_searches, "maxfun": self.max_fun, "maxiter": max_iter}
        options: Any = {"maxcor": self.history_size, "gtol": tol, **limits}

        def report(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            if callback is not None and callback(intermediate_result.x, float(intermediate_result.fun)):
                raise StopIteration  # tells SciPy to end the search

        x0: Any = np.asarray(start, np.float64)
        end = scipy.optimize.minimize(objective, x0, jac=True, method="L-BFGS-B", callback=report, options=options)
        return MinimizeResult(end.x, float(end.fun), int(end.nit), bool(end.success), end.status == 1, str(end.message))
