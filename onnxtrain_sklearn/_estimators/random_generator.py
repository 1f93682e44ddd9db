"""The random generator of a call.

Without ``random_state`` it is seeded at random, and a checkpoint holds the seed that the first call drew: the same call
in another process goes on to the same bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike
from sklearn.utils import check_random_state

from .._data.targets import SeveralTargets, Targets
from .._utils.cache import digest
from ..callbacks.checkpoint import Checkpoint
from .examples import Call, Examples
from .parameters import set_callbacks_of

IRRELEVANT = {"model", "callbacks", "verbose"}
"""Parameters that are not compared: the graph is, and of callbacks those that steer."""

PIECE_ROWS = 4096
"""Rows of the data that are read at a time."""

SEEDS = 2**31 - 1
"""Seeds are less than this."""


class Seeded(Protocol):
    """An estimator that draws random numbers."""

    random_state: int | np.random.RandomState | None
    callbacks: Sequence[object] | None


def generator_of(estimator: Seeded, rows: Callable[[], Iterable[bytes]]) -> np.random.RandomState:
    """Return the generator of a call that begins a training on ``rows``, which are read for a checkpoint alone."""
    seed, held = estimator.random_state, [*(estimator.callbacks or ()), *set_callbacks_of(estimator)]
    checkpoint = next((one for one in held if isinstance(one, Checkpoint)), None)
    if seed is not None or checkpoint is None:
        return seeded(seed)
    checkpoint.validate()
    drawn = int(check_random_state(None).randint(SEEDS))
    return np.random.RandomState(checkpoint.seed(_seed_key(estimator, rows()), drawn))


class _Zeros(ISeedSequence):
    """The first words of a generator that is seeded next; those that NumPy derives take most of the time of both."""

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> np.ndarray:
        return np.zeros(n_words, dtype)


def seeded(seed: int | np.random.RandomState | None) -> np.random.RandomState:
    """Return the generator that scikit-learn's ``check_random_state`` returns for ``seed``."""
    generator: np.random.RandomState
    if isinstance(seed, int | np.integer):
        words: Any = _Zeros()  # of a type that NumPy takes and does not declare
        generator = np.random.RandomState(np.random.MT19937(words))
        generator.seed(int(seed))
    else:
        generator = check_random_state(seed)
    return generator


def bytes_of(examples: Examples, call: Call) -> Iterable[bytes]:
    """Yield the kind of the call and all rows, a few at a time."""
    yield str(call.one_pass).encode()
    for name, column in examples.columns.items():
        yield name.encode()
        for start in range(0, len(column), PIECE_ROWS):
            yield column.rows(slice(start, start + PIECE_ROWS)).tobytes()
    yield bytes_of_targets(examples.targets, examples.weights)


def bytes_of_targets(targets: Targets, weights: np.ndarray | None) -> bytes:
    """Return a digest of targets and weights of rows."""
    several = list(targets.weights) if isinstance(targets, SeveralTargets) else None
    return digest([np.asarray(targets.values), weights, several])


def _seed_key(estimator: Seeded, rows: Iterable[bytes]) -> str:
    """Return a digest of settings and rows; calls that differ in the model alone may share a seed."""
    hasher = blake2b(digest_size=12)
    names = [name for name in inspect.signature(type(estimator)).parameters if name not in IRRELEVANT]
    hasher.update(digest([type(estimator).__qualname__, {name: getattr(estimator, name) for name in names}]))
    for part in rows:
        hasher.update(part)
    return hasher.hexdigest()
