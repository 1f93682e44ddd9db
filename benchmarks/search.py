"""Time of scikit-learn's searches over learning rates, and of a fit before its first step, beside scikit-learn's MLP.

The searches are scikit-learn's own: ``GridSearchCV`` over eight rates with five folds of breast_cancer and 50 epochs,
and ``HalvingRandomSearchCV`` with ``resource="max_iter"``. All train the same network with Adam in batches of 200 rows,
without penalty, for a fixed number of epochs. The competitors alternate, and the minimum of each counts. CPU time for
n_jobs=1, wall time else. Read the ratios.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingRandomSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, Adam, OrtGradientClassifier, clear_cache
from onnxtrain_sklearn._training.programs import can_compile
from onnxtrain_sklearn._training.trainer import Trainer

EPOCHS = 50
RATES = {"learning_rate_init": np.logspace(-4, -1, 8).tolist()}
COMMON = {"max_iter": EPOCHS, "batch_size": 200, "tol": 0.0, "n_iter_no_change": 10**6, "alpha": 0.0, "random_state": 0}


def ours(engine: str = "auto") -> Any:
    return OrtGradientClassifier(MLP((100,)), optimizer=Adam(), engine=engine, **COMMON)


def sklearn_mlp() -> Any:
    return MLPClassifier((100,), **COMMON)


def skorch_net() -> Any:
    import torch
    from skorch import NeuralNetClassifier

    class Net(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(torch.nn.Linear(30, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))

    settings = {"max_epochs": EPOCHS, "batch_size": 200, "train_split": None, "verbose": 0}
    return NeuralNetClassifier(Net, criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.Adam, **settings)


def competitors() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return what makes each competitor, and the name of its learning rate."""
    found = {"ours": (ours, "learning_rate_init"), "sklearn": (sklearn_mlp, "learning_rate_init")}
    if can_compile():
        found["compiled"] = (lambda: ours("compiled"), "learning_rate_init")
    try:
        import skorch  # noqa: F401
    except ImportError:
        return found
    return {**found, "skorch": (skorch_net, "lr")}


def grid_search(make: Callable[[], Any], rate: str, n_jobs: int) -> GridSearchCV:
    return GridSearchCV(make(), {rate: RATES["learning_rate_init"]}, cv=5, n_jobs=n_jobs)


def halving(make: Callable[[], Any], rate: str, n_jobs: int) -> HalvingRandomSearchCV:
    settings = {"resource": "max_iter", "min_resources": 10, "max_resources": 270, "random_state": 0, "cv": 5}
    return HalvingRandomSearchCV(make(), {rate: np.logspace(-4, -1, 100).tolist()}, n_jobs=n_jobs, **settings)


SEARCHES = {"GridSearchCV": grid_search, "HalvingRandomSearchCV": halving}


def seconds(search: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Return the CPU time of a search in this process, the wall time of one in several."""
    clock = time.process_time if search.n_jobs == 1 else time.perf_counter
    start = clock()
    search.fit(X, y)
    return clock() - start


def before_the_first_step(X: np.ndarray, y: np.ndarray, repeat: int) -> dict[str, float]:
    """Return the milliseconds of CPU time of a fit before its first step: compiled anew, and known."""
    reached: list[float] = []
    fit, Trainer.fit = Trainer.fit, lambda self: reached.append(time.process_time())  # type: ignore[method-assign]
    try:
        times: dict[str, list[float]] = {"compiled": [], "known": []}
        for _ in range(repeat):
            clear_cache()
            for name in times:
                start = time.process_time()
                ours().fit(X, y)
                times[name].append(1e3 * (reached[-1] - start))
    finally:
        Trainer.fit = fit  # type: ignore[method-assign]
    return {name: min(found) for name, found in times.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time of searches over learning rates, beside scikit-learn's MLP.")
    parser.add_argument("--repeat", type=int, default=3, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--jobs", type=int, nargs="+", default=(1, 2), help="values of n_jobs (default: 1 2)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X).astype(np.float32)
    for name, found in before_the_first_step(X, y, 10 * options.repeat).items():
        print(f"CPU time of fit before its first step, {name}: {found:.2f} ms")
    makers = competitors()
    for name, make_search in SEARCHES.items():
        for n_jobs in options.jobs:
            best = dict.fromkeys((one for one in makers if name == "GridSearchCV" or one != "skorch"), np.inf)
            for _ in range(options.repeat):
                for one in best:
                    best[one] = min(best[one], seconds(make_search(*makers[one], n_jobs), X, y))
            ratios = [f"{one} {found:.2f} s ({found / best['ours']:.1f}x)" for one, found in best.items()]
            print(f"{name} n_jobs={n_jobs}: {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
