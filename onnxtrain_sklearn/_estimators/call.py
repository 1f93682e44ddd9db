"""A call of ``fit`` or ``partial_fit``: its arguments, its split of the rows, its context and its random generator."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import ArrayLike, DTypeLike
from sklearn.utils import check_random_state

from .._data.held_out import RowsToSplit, ValidationSplit, is_share, named_splits, split_rows
from .._data.target_scale import TargetScale
from .._data.targets import Classes, SeveralTargets, Targets
from .._fitted.fitted_model import FittedModel
from .._utils.cache import digest
from .._utils.params import Declaration
from .._utils.typing import Validation
from ..callbacks.checkpoint import Checkpoint
from ..finetuning import FineTuner
from .config import TrainingConfig
from .fitted_state import Columns, FittedState
from .parameters import set_callbacks_of


@dataclass(frozen=True)
class Call:
    """The arguments of a call of ``fit`` or ``partial_fit``.

    Attributes
    ----------
    X, y, sample_weight : data
    classes : ndarray, list of ndarray or None
        All labels, if the user gives them.
    validation : tuple or None
        X, y and sample_weight of the validation data.
    resume : bool
        Whether training continues from the last call.
    one_epoch : bool
        Whether to train for one epoch only, as ``partial_fit`` does.
    old_rows : tuple or None
        X, y and sample_weight of old rows, for fine-tuning.
    validation_split : float or None
        Share of the rows to hold out, of a table; None: the estimator's ``validation_split``.
    groups : array-like or None
        The group of each row, for a splitter of scikit-learn that holds out rows.
    source : object or None
        The table to read in blocks, if ``X`` is one: ``X`` itself, or what was opened from its path. Then ``y`` and
        ``sample_weight`` name columns.
    stream : Stream or None
        The blocks of the table to train on, if the buffer does not hold all rows; X, y and sample_weight are then a
        sample of them.
    resources : ExitStack
        Closes the table, and the thread that reads it, at the end of the call.
    began : float
        When the call began, by ``time.perf_counter``.
    """

    X: Any
    y: Any
    sample_weight: ArrayLike | None = None
    classes: Classes = None
    validation: Validation | None = None
    resume: bool = False
    one_epoch: bool = False
    old_rows: Validation | None = None
    validation_split: float | None = None
    groups: ArrayLike | None = None
    source: Any = None
    stream: Any = None
    resources: ExitStack = field(default_factory=ExitStack)
    began: float = field(default_factory=time.perf_counter)

    def resumed_state(self, estimator: object) -> FittedState | None:
        """Return the fitted state from which the call continues training; None if it starts training anew."""
        return vars(estimator).get("_state") if self.resume else None


def optional_data(name: str, X: Any, y: Any, sample_weight: Any, *, needs_y: bool = True) -> Validation | None:
    """Return optional data as one tuple, such as ``X_val``, ``y_val`` and their weights; None if they are not given."""
    if (X is None) != (y is None) and (needs_y or X is None):
        raise ValueError(f"X_{name} and y_{name} belong together: give both or neither.")
    if X is None and sample_weight is not None:
        raise ValueError(f"sample_weight_{name} holds the weights of X_{name} and y_{name}: give them too.")
    return None if X is None else (X, y, sample_weight)


@dataclass(frozen=True)
class EncodedData:
    """The examples of a call: inputs of the graph, encoded targets and weights; weights are None if all are one."""

    columns: Columns
    targets: Targets
    weights: np.ndarray | None

    def __len__(self) -> int:
        return len(self.targets.values)


class Split:
    """The training rows of a call, and the rows held out for early stopping; both are drawn on first use.

    Parameters
    ----------
    choice : float, array-like, splitter or None
        The rows to hold out, as ``validation_split`` names them; None holds out none.
    rng : numpy.random.RandomState
    given : RowsToSplit
        The data of the call, for splitters that read them.
    """

    def __init__(self, choice: ValidationSplit | None, rng: np.random.RandomState, given: RowsToSplit) -> None:
        self._choice, self._rng, self._given = choice, rng, given
        self._drawn: tuple[np.ndarray, np.ndarray | None] | None = None

    def of(self, examples: EncodedData) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the training rows and the held-out rows, or None; rows of weight zero are in neither."""
        # The split is drawn on first use, because a builder that needs no split must draw its weights first: another
        # order of draws would give other numbers.
        if self._drawn is None:
            rows = np.arange(len(examples)) if examples.weights is None else np.flatnonzero(examples.weights)
            if self._choice is None:
                self._drawn = rows, None
            elif is_share(self._choice):
                self._drawn = split_rows(rows, examples.targets, float(self._choice), self._rng)
            else:
                (self._drawn,) = named_splits(self._choice, rows, examples.targets, self._given, self._rng)
        return self._drawn


@dataclass(frozen=True, eq=False)
class FitContext:
    """The arguments of a call, the resolved parameters, and the decisions made before its state exists.

    Attributes
    ----------
    estimator : BaseOrtGradient
    call : Call
    config : TrainingConfig
    resumed : FittedState or None
        The state that the call continues.
    rng : numpy.random.RandomState
    split : Split
    tuner : FineTuner or None
        The settings of fine-tuning; None in plain training.
    fitted : FittedModel or None
        The fitted scikit-learn model that is trained; None without one, or if it gets a new head.
    transforming_model : FittedModel or None
        The fitted model that the transformers of the graph come from, which fine-tuning leaves frozen: ``fitted``, or
        the model that gets a new head.
    head_names : tuple of str
        The names of the weights of a new head; empty without one.
    target_scale : TargetScale or None
        The scale of the targets; only graphs of builders are trained on scaled targets.
    """

    estimator: Any
    call: Call
    config: TrainingConfig
    resumed: FittedState | None
    rng: np.random.RandomState
    split: Split
    tuner: FineTuner | None
    fitted: FittedModel | None
    transforming_model: FittedModel | None
    head_names: tuple[str, ...]
    target_scale: TargetScale | None


# The random generator of a call.
#
# Without ``random_state`` the seed is drawn at random. A Checkpoint stores it, so that the same call in another process
# can resume with the same bits.


PIECE_ROWS = 4096
"""Number of rows that are hashed at a time."""

SEEDS = 2**31 - 1
"""Seeds are less than this."""


class Seeded(Protocol):
    """An estimator that draws random numbers."""

    declared: ClassVar[Mapping[str, Declaration]]
    random_state: int | np.random.RandomState | None
    callbacks: Sequence[object] | None


def steering_parameters(estimator: Seeded) -> list[str]:
    """Return the names of the parameters that affect the trained weights.

    The model and the callbacks are left out, because :func:`~.training_state.identity_of` compares them separately.
    """
    declared = estimator.declared
    return [n for n in inspect.signature(type(estimator)).parameters if n not in declared or declared[n].steers]


def generator_of(estimator: Seeded, rows: Callable[[], Iterable[bytes]]) -> np.random.RandomState:
    """Return the random generator of a call that starts training anew.

    ``rows`` is called only if ``random_state`` is None and a callback is a Checkpoint, which stores the seed under a
    hash of the rows.
    """
    seed = estimator.random_state
    held = [*(estimator.callbacks or ()), *set_callbacks_of(estimator)]
    checkpoint = next((one for one in held if isinstance(one, Checkpoint)), None)
    if seed is not None or checkpoint is None:
        return seeded(seed)
    checkpoint.validate()
    drawn = int(check_random_state(None).randint(SEEDS))

    # The checkpoint stores the seed under a hash of settings and rows. Calls that differ only in the model share it.
    hasher = blake2b(digest_size=12)
    steering = {name: getattr(estimator, name) for name in steering_parameters(estimator)}
    hasher.update(digest([type(estimator).__qualname__, steering]))
    for part in rows():
        hasher.update(part)
    return np.random.RandomState(checkpoint.seed(hasher.hexdigest(), drawn))


class _Zeros(ISeedSequence):
    """A seed sequence of zeros, for a generator that is seeded right afterwards.

    With a real seed sequence, most of the time would go into a state that is then overwritten.
    """

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> np.ndarray:
        return np.zeros(n_words, dtype)


def seeded(seed: int | np.random.RandomState | None) -> np.random.RandomState:
    """Return the generator that scikit-learn's ``check_random_state`` returns for ``seed``."""
    generator: np.random.RandomState
    if isinstance(seed, int | np.integer):
        words: Any = _Zeros()  # Any, because NumPy's annotation of MT19937 lacks ISeedSequence
        generator = np.random.RandomState(np.random.MT19937(words))
        generator.seed(int(seed))
    else:
        generator = check_random_state(seed)
    return generator


def bytes_of(examples: EncodedData, call: Call) -> Iterable[bytes]:
    """Yield bytes that identify a call: ``fit`` or ``partial_fit``, then its rows, PIECE_ROWS at a time."""
    yield str(call.one_epoch).encode()
    for name, column in examples.columns.items():
        yield name.encode()
        for start in range(0, len(column), PIECE_ROWS):
            yield column.rows(slice(start, start + PIECE_ROWS)).tobytes()
    yield digest_of_targets(examples.targets, examples.weights)


def digest_of_targets(targets: Targets, weights: np.ndarray | None) -> bytes:
    """Return a digest of the targets and the sample weights."""
    several = list(targets.weights) if isinstance(targets, SeveralTargets) else None
    return digest([np.asarray(targets.with_shares(targets.values)), weights, several])
