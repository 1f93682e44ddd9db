"""CPU time of predictions of 1, 100 and 100,000 rows beside scikit-learn's MLP and, where it is installed, PyTorch.

All have the same network, in float32, with rows in float32 and in float64. PyTorch's form is what people write: the
rows as a tensor, the network without gradients, the class with the highest score. Repetitions alternate, and the least
of each counts. Run it with ``OMP_NUM_THREADS=1``. Numbers of different runs of this program cannot be compared, the
ratios of one run can.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from onnxtrain_sklearn import MLP, OrtGradientClassifier

LAYERS = ((30, (100,), 2), (64, (128,), 10))
ROWS = (1, 100, 100_000)
METHODS = ("predict", "predict_proba")

Call = Callable[[np.ndarray], object]


def competitors(method: str, layers: tuple[int, tuple[int, ...], int]) -> dict[str, Call]:
    """Return a method of each competitor, fitted on a few rows."""
    features, hidden, classes = layers
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(500, features)).astype(np.float32), np.arange(500) % classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ours = OrtGradientClassifier(MLP(hidden), max_iter=2).fit(X, y)
        theirs = MLPClassifier(hidden, max_iter=2).fit(X, y)
    calls: dict[str, Call] = {"ours": getattr(ours, method), "sklearn": getattr(theirs, method)}
    with contextlib.suppress(ImportError):
        calls["torch"] = torch_call(method, layers)
    return calls


def torch_call(method: str, layers: tuple[int, tuple[int, ...], int]) -> Call:
    import torch

    torch.set_num_threads(1)
    features, hidden, classes = layers
    sizes = (features, *hidden, classes)
    linear = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    net = torch.nn.Sequential(*[part for one in linear for part in (one, torch.nn.ReLU())][:-1]).eval()

    def scores(X: np.ndarray) -> torch.Tensor:
        return net(torch.from_numpy(X).float())

    @torch.inference_mode()
    def predict(X: np.ndarray) -> np.ndarray:
        return scores(X).argmax(dim=1).numpy()

    @torch.inference_mode()
    def predict_proba(X: np.ndarray) -> np.ndarray:
        return torch.softmax(scores(X), dim=1).numpy()

    return {"predict": predict, "predict_proba": predict_proba}[method]


def measure(calls: dict[str, Call], X: np.ndarray, repeat: int) -> dict[str, float]:
    """Return the microseconds of a call of each competitor: the least of ``repeat`` alternating measurements."""
    count = max(1, min(2000, 300_000 // X.size))
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeat):
        for name, call in calls.items():
            best[name] = min(best[name], seconds(call, X, count) / count * 1e6)
    return best


def seconds(call: Call, X: np.ndarray, count: int) -> float:
    call(X)
    start = time.process_time()
    for _ in range(count):
        call(X)
    return time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time of predictions, beside scikit-learn's MLP (and PyTorch).")
    parser.add_argument("--repeat", type=int, default=9, help="alternating repetitions (default: %(default)s)")
    repeat = parser.parse_args(arguments).repeat
    rng = np.random.default_rng(0)
    for layers in LAYERS:
        for method in METHODS:
            calls = competitors(method, layers)
            for rows in ROWS:
                for dtype in (np.float32, np.float64):
                    best = measure(calls, rng.normal(size=(rows, layers[0])).astype(dtype), repeat)
                    ratios = " ".join(
                        f"{name} {us / best['ours']:5.2f}x" for name, us in best.items() if name != "ours"
                    )
                    name = f"{layers} {method} {rows} rows {np.dtype(dtype)}"
                    print(f"{name:<55} {best['ours']:12,.1f} us  {ratios}", flush=True)


if __name__ == "__main__":
    main()
