"""CPU time of a training step of a transformer with a large vocabulary, beside PyTorch.

Needs PyTorch and onnxscript beside the package. Two layers of a transformer encoder read 32 texts of 32 words, whose
frequencies fall with their rank as those of a language do; the mean over the words is classified. PyTorch exports the
network with random weights, and both sides train it. ``sparse`` is PyTorch with ``Embedding(sparse=True)`` and
``SparseAdam`` for it, ``lazy`` is ours with ``lazy_rows=True``. Runs alternate, and the least of them counts.
"""

from __future__ import annotations

import argparse
import io
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxtrain_sklearn import SGD, Adam, AdamW, OrtGradientClassifier
from onnxtrain_sklearn._training.step_parts import Rates

ROWS, WORDS, CLASSES, RATE = 32, 32, 4, 0.001
SHAPES = ((60, 128), (30_522, 128), (30_522, 312))
OURS: dict[str, Any] = {"SGD": SGD, "Adam": Adam, "AdamW": AdamW}
THEIRS: dict[str, Any] = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


class Encoder(nn.Module):
    """Embedded words, two layers of a transformer, the mean over the words, a linear layer."""

    def __init__(self, vocabulary: int, width: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, sparse=sparse)
        self.places = nn.Parameter(torch.randn(WORDS, width) * 0.02)
        layer = partial(nn.TransformerEncoderLayer, width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.Sequential(layer(), layer())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x) + self.places).mean(1))


def texts(vocabulary: int, count: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, vocabulary + 1)
    X = rng.choice(vocabulary, (count, WORDS), p=frequencies / frequencies.sum())
    return X, np.arange(count) % CLASSES


def exported(network: nn.Module, X: np.ndarray) -> bytes:
    with io.StringIO() as sink, redirect_stdout(sink), redirect_stderr(sink):
        program = torch.onnx.export(
            network.eval(), (torch.from_numpy(X),), dynamo=True, dynamic_shapes=({0: torch.export.Dim("n")},)
        )
    return program.model_proto.SerializeToString()


def our_estimator(model: bytes, optimizer: str, X: np.ndarray, y: np.ndarray, **options: Any) -> Any:
    estimator = OrtGradientClassifier(
        model, optimizer=OURS[optimizer](**options), learning_rate_init=RATE, batch_size=ROWS, random_state=0
    )
    return estimator.partial_fit(X, y, classes=np.arange(CLASSES))


def our_step(estimator: Any) -> Callable[[], object]:
    step = estimator._state.live.step
    return lambda: (step.compute_gradients(float(ROWS)), step.update(Rates(RATE)))


def their_step(
    vocabulary: int, width: int, optimizer: str, X: np.ndarray, y: np.ndarray, *, sparse: bool
) -> Callable[[], object]:
    network, data, target = Encoder(vocabulary, width, sparse=sparse), torch.from_numpy(X), torch.from_numpy(y)
    words = list(network.words.parameters()) if sparse else []
    others = [p for p in network.parameters() if all(p is not word for word in words)]
    of_words = torch.optim.SGD if optimizer == "SGD" else torch.optim.SparseAdam
    optimizers = [THEIRS[optimizer](others, lr=RATE), *([of_words(words, lr=RATE)] if sparse else [])]

    def step() -> None:
        for one in optimizers:
            one.zero_grad()
        nn.functional.cross_entropy(network(data), target).backward()
        for one in optimizers:
            one.step()

    return step


def least(runs: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the milliseconds of each run: the least of ``repeat`` alternating ones."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeat):
        for name, run in runs.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], (time.process_time() - start) * 1e3)
    return best


def compared(vocabulary: int, width: int, optimizer: str, repeat: int) -> dict[str, float]:
    X, y = texts(vocabulary)
    model = exported(Encoder(vocabulary, width), X)
    runs: dict[str, Callable[[], object]] = {
        "PyTorch": their_step(vocabulary, width, optimizer, X, y, sparse=False),
        "PyTorch sparse": their_step(vocabulary, width, optimizer, X, y, sparse=True),
        "ours": our_step(our_estimator(model, optimizer, X, y)),
    }
    runs["ours lazy"] = our_step(our_estimator(model, optimizer, X, y, lazy_rows=True))
    return least(runs, repeat)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CPU time of a step of a transformer with a large vocabulary.")
    parser.add_argument("--repeat", type=int, default=30, help="alternating repetitions (default: %(default)s)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for vocabulary, width in SHAPES:
        for optimizer in OURS:
            best = compared(vocabulary, width, optimizer, options.repeat)
            shares = "  ".join(f"{name} {ms:6.2f} ms ({ms / best['PyTorch']:.2f})" for name, ms in best.items())
            print(f"{vocabulary:>6} words of {width:>3}  {optimizer:<6}  {shares}", flush=True)


if __name__ == "__main__":
    main()
