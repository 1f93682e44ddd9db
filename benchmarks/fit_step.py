"""Time of a minibatch step of a whole ``fit``, beside scikit-learn's MLP and, where it is installed, PyTorch.

All run the same network on the same rows with the same optimizer, batch size and number of steps, without penalty and
early stopping. Repetitions of the competitors alternate, so that a disturbance of the machine meets all of them, and
the minimum of each counts. The data are random: a step takes as long whatever it learns. Numbers of different runs
of this program cannot be compared, the ratios of one run can.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from onnxtrain_sklearn import MLP, SGD, Adam, OrtGradientClassifier
from onnxtrain_sklearn._training.update_executors import SAVINGS


@dataclass(frozen=True)
class Case:
    """A network with one hidden layer or more, its batch size, and how many batches and epochs one ``fit`` runs."""

    layers: tuple[int, ...]
    batch_size: int
    batches: int
    epochs: int

    @property
    def steps(self) -> int:
        return self.batches * self.epochs

    def __str__(self) -> str:
        return f"[{','.join(map(str, self.layers))}] b{self.batch_size}"


CASES = (
    Case((20, 100, 2), 32, batches=100, epochs=30),
    Case((64, 128, 10), 32, batches=100, epochs=30),
    Case((64, 128, 10), 200, batches=50, epochs=20),
    Case((784, 256, 128, 10), 128, batches=50, epochs=6),
    Case((784, 1024, 1024, 10), 256, batches=8, epochs=3),
)
OPTIMIZERS = ("sgd", "adam")
RATE = 0.001

Fit = Callable[[np.ndarray, np.ndarray], object]


def compile_at_once() -> None:
    """Let updates be compiled from the first step on, where llvmlite is installed."""
    SAVINGS.suffice = True


def ours(case: Case, optimizer: str, engine: str = "auto") -> Fit:
    return OrtGradientClassifier(
        MLP(case.layers[1:-1]),
        optimizer={"sgd": SGD(), "adam": Adam()}[optimizer],
        learning_rate_init=RATE,
        batch_size=case.batch_size,
        max_iter=case.epochs,
        tol=0.0,
        n_iter_no_change=case.epochs + 1,
        alpha=0,
        random_state=0,
        engine=engine,
    ).fit


def sklearn_mlp(case: Case, optimizer: str) -> Fit:
    return MLPClassifier(
        case.layers[1:-1],
        solver=optimizer,
        alpha=0.0,
        momentum=0.0,
        nesterovs_momentum=False,
        learning_rate_init=RATE,
        batch_size=case.batch_size,
        max_iter=case.epochs,
        tol=0.0,
        n_iter_no_change=case.epochs + 1,
        random_state=0,
    ).fit


def torch_eager(case: Case, optimizer: str) -> Fit:
    """Return the plain PyTorch loop that people write: shuffle, index, forward, backward, step."""
    import torch

    linear = [torch.nn.Linear(a, b) for a, b in zip(case.layers, case.layers[1:], strict=False)]
    parts = [part for layer in linear for part in (layer, torch.nn.ReLU())][:-1]
    net, loss = torch.nn.Sequential(*parts), torch.nn.CrossEntropyLoss()
    rule = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](net.parameters(), lr=RATE)

    def fit(X: np.ndarray, y: np.ndarray) -> None:
        rows, labels = torch.from_numpy(X), torch.from_numpy(y)
        for _ in range(case.epochs):
            for batch in torch.randperm(len(rows)).split(case.batch_size):
                rule.zero_grad()
                loss(net(rows[batch]), labels[batch]).backward()
                rule.step()

    return fit


def competitors() -> dict[str, Callable[[Case, str], Fit]]:
    try:
        import torch  # noqa: F401
    except ImportError:
        return {"ours": ours, "sklearn": sklearn_mlp}
    return {"ours": ours, "sklearn": sklearn_mlp, "torch": torch_eager}


def data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = case.batches * case.batch_size
    X = rng.standard_normal((rows, case.layers[0]), dtype=np.float32)
    return X, rng.integers(case.layers[-1], size=rows)


def measure(case: Case, optimizer: str, repeat: int) -> dict[str, float]:
    """Return the microseconds per step of each competitor: the least of ``repeat`` alternating fits."""
    X, y = data(case)
    makers = competitors()
    best = dict.fromkeys(makers, float("inf"))
    for _ in range(repeat):
        for name, make in makers.items():
            best[name] = min(best[name], seconds(make(case, optimizer), X, y) / case.steps * 1e6)
    return best


def seconds(fit: Fit, X: np.ndarray, y: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        fit(X, y)
        return time.perf_counter() - start


def line(case: Case, optimizer: str, best: dict[str, float]) -> str:
    others = [f"{best[name]:>12,.0f}   {best[name] / best['ours']:>5.2f}x" for name in best if name != "ours"]
    return f"{case!s:<26} {optimizer:<6} {case.steps:>6} {best['ours']:>12,.0f} {' '.join(others)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time of a step of fit, beside scikit-learn's MLP (and PyTorch).")
    parser.add_argument("--repeat", type=int, default=5, help="alternating repetitions (default: %(default)s)")
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="numbers from 0 (default: all)")
    options = parser.parse_args(arguments)
    compile_at_once()
    names = [f"{name:>12}   {'ratio':>6}" for name in competitors() if name != "ours"]
    print(f"{'microseconds per step':<26} {'':<6} {'steps':>6} {'ours':>12} {' '.join(names)}")
    for case in (CASES[i] for i in options.cases):
        for optimizer in OPTIMIZERS:
            print(line(case, optimizer, measure(case, optimizer, options.repeat)), flush=True)


if __name__ == "__main__":
    main()
