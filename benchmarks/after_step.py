"""Time of a step with a callback: one that overrides no hook of a step, and one whose hook does nothing.

Both are divided by the time without callbacks. A hook that no class overrides is not called, so its ratio is 1 within
the noise. Repetitions alternate, so that a disturbance of the machine meets all of them; the minimum of each counts.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxtrain_sklearn import MLP, OrtGradientRegressor
from onnxtrain_sklearn.callbacks import Callback
from onnxtrain_sklearn.callbacks.base import TrainingInProgress

ROWS, FEATURES, BATCH = 16_000, 10, 32


class AfterEpoch(Callback):
    """Overrides the hook of an epoch alone."""

    def after_epoch(self, training: TrainingInProgress) -> None:
        """Do nothing."""


class AfterStep(Callback):
    """Overrides the hook of a step."""

    def after_step(self, training: TrainingInProgress, loss: float) -> None:
        """Do nothing."""


def microseconds(engine: str, callbacks: list[Callback], X: np.ndarray, y: np.ndarray) -> float:
    """Return the time of a step in the fastest epoch."""
    settings = {"batch_size": BATCH, "max_iter": 6, "tol": 0.0, "n_iter_no_change": 99, "alpha": 0, "random_state": 0}
    model = OrtGradientRegressor(MLP((16,)), callbacks=callbacks, engine=engine, **settings).fit(X, y)
    return 1e6 * min(row["seconds"] for row in model.history_[1:]) / (ROWS // BATCH)


def main() -> None:
    """Print the times and the ratios of each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--engines", nargs="*", default=["compiled", "portable"])
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(ROWS, FEATURES)).astype(np.float32), rng.normal(size=ROWS)
    cases: dict[str, list[Callback]] = {"none": [], "after_epoch": [AfterEpoch()], "after_step": [AfterStep()]}
    warnings.simplefilter("ignore", ConvergenceWarning)
    for engine in arguments.engines:
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(arguments.repeat):
            for name, callbacks in cases.items():
                times[name].append(microseconds(engine, callbacks, X, y))
        least = {name: min(found) for name, found in times.items()}
        for name, found in least.items():
            print(f"{engine:>9} {name:>12} {found:7.2f} us a step {found / least['none']:6.3f}")


if __name__ == "__main__":
    main()
