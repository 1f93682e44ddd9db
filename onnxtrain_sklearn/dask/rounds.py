"""Rounds of training: the task that trains a shard for some steps, and the step of the client that averages shards.

:func:`train_shard` is a pure function of a job (graph and settings), the state of a shard, a window of rows, and the
rates of the steps. So a task that runs twice changes nothing, and neither does a worker that comes or goes.
:class:`ClusterStep` holds the only truth: common weights, the states of the shards, the velocity of the outer
optimizer. To the epoch loop of :mod:`.._training.trainer` it is a step like others, whose ``train`` yields losses: so
schedules, early stopping, callbacks and checkpoints are those of one machine.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise, product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._data.batches import MERGE_LIMIT, ArrayBatches, Minibatch, distinct_rows, weighted_rows
from .._data.columns import InputData
from .._estimators.fitted_state import FittedState
from .._training.parameters import FlatParameters, state_slots
from .._training.programs import COMPILED
from .._training.rows_meet import where_rows_meet
from .._training.step import StepKind, TrainingStep
from .._training.step_choice import new_step
from .._training.step_parts import OptimizerState, Rates, StepParts, StepSettings
from .._training.trainer import is_finite
from .._utils.errors import ignores_float_errors
from ..exceptions import DivergenceError, ModelError
from .averaging import LocalSGD, outer_step, weighted_mean
from .cluster import Cluster, Future
from .partitions import ClusterStream, Stripe, Window, size_of_window

MASKS = 2**40
"""Distance of the numbers of the dropout masks of two shards: no shard draws so many, so no mask is drawn twice."""

IDLE_JOBS, CACHED_ORDERS = 8, 32
"""Prepared trainings, and orders of rows, that a worker keeps for further rounds."""

SEEDS = 2**31 - 1
"""Seeds are less than this."""

RandomState = dict[str, Any]
"""The state of a ``numpy.random.RandomState``."""


# What a worker does. Whatever it keeps from one task to the next only saves time.


class Prepared(NamedTuple):
    """A training that a worker has prepared; one task at a time uses it."""

    estimator: Any
    state: FittedState
    settings: StepSettings
    step: TrainingStep


class Job(NamedTuple):
    """The training of a call: graph, initial state and settings, pickled."""

    digest: bytes
    content: bytes

    @classmethod
    def of(
        cls,
        stream: ClusterStream,
        estimator: Any,
        state: FittedState,
        settings: StepSettings,
        step: TrainingStep,
        sparse: Collection[str],
    ) -> Job:
        """Return the job of an estimator that is prepared with this state."""
        import cloudpickle  # a dependency of distributed; losses may be classes of __main__

        twin: Any = object.__new__(type(estimator))
        own = {"callbacks": None, "early_stopping": False, "scoring": None, "verbose": 0, "random_state": None}
        kept = {name: value for name, value in vars(estimator).items() if not name.startswith("_")}
        vars(twin).update(kept, **own, _state=state)
        if "class_weight" in kept:  # a worker sees one partition, so that it cannot balance classes
            twin.class_weight = stream.class_weight(estimator.class_weight)
        content = cloudpickle.dumps(
            (twin, replace(settings, seed=state.seed), step.batch_size, tuple(sparse), step.engine)
        )
        return cls(blake2b(content, digest_size=16).digest(), content)

    @contextmanager
    def prepared(self) -> Iterator[Prepared]:
        """Return the training for the use of this task alone."""
        with _lock:
            waiting = _idle.get(self.digest)
            found = waiting.pop() if waiting else None
        found = found or self._prepare()
        yield found  # after an error it is dropped
        with _lock:
            _idle.setdefault(self.digest, []).append(found)
            _idle.move_to_end(self.digest)
            while len(_idle) > IDLE_JOBS:
                _idle.popitem(last=False)

    def _prepare(self) -> Prepared:
        estimator, settings, batch_size, sparse, engine = pickle.loads(self.content)
        state: FittedState = estimator._state
        settings = replace(settings, device=state.device)
        parts = StepParts(
            state.trained_form, settings, state.parameters, state.frozen, state.optimizer_state, batch_size, sparse
        )
        step = new_step(parts, compiled=engine == COMPILED)
        if step.engine != engine:
            raise ModelError(
                f"The client trains with the engine {engine!r}, and this worker has {step.engine!r}: install the same "
                f"packages on all machines, or set engine='portable'."
            )
        return Prepared(estimator, state, settings, step)


_idle: OrderedDict[bytes, list[Prepared]] = OrderedDict()
_orders: OrderedDict[bytes, tuple[np.ndarray, RandomState]] = OrderedDict()
_lock = threading.Lock()


class EpochPart(NamedTuple):
    """Steps ``start`` to ``stop`` of an epoch over a window, whose rows are shuffled by a generator in this state.

    ``rng`` is None where the order is kept, and ``whole`` says whether the window is all that the shard has.
    """

    start: int
    stop: int
    rng: RandomState | None
    size: int
    drop_last: bool
    whole: bool


class ShardState(NamedTuple):
    """What a shard goes on from: parameters with statistics, vectors of the optimizer, and its counts."""

    buffer: np.ndarray
    slots: dict[str, np.ndarray]
    t: int
    draws: int
    averaged: int


class ShardResult(NamedTuple):
    """A shard after a round: its state, weight and loss of each step, and the generator after the epoch's shuffle."""

    state: ShardState
    weights: np.ndarray
    losses: np.ndarray
    rng: RandomState | None


@ignores_float_errors
def train_shard(job: Job, shard: ShardState, part: EpochPart, rates: Sequence[Rates], window: Window) -> ShardResult:
    """Train a shard for the steps of a round; it ends early with a loss that is not finite."""
    weights, losses = list[float](), list[float]()
    with job.prepared() as prepared:
        state = prepared.state
        step = prepared.step
        accumulate = prepared.settings.accumulate
        state.parameters.buffer[...] = shard.buffer
        for name, slot in shard.slots.items():
            state.optimizer_state.slots[name][...] = slot
        vars(state.optimizer_state).update(t=shard.t, draws=shard.draws, averaged=shard.averaged)
        step.reload()
        minibatches, after = _minibatches(prepared, part, window)
        chosen = minibatches[part.start * accumulate : part.stop * accumulate]
        for weight, loss in step.train(_Chosen(chosen, step.batch_size), iter(rates).__next__):
            weights.append(weight)
            losses.append(loss)
            if not np.isfinite(loss):
                break
        step.synchronize()
        optimizer = state.optimizer_state
        result = ShardState(
            state.parameters.buffer.copy(),
            {name: slot.copy() for name, slot in optimizer.slots.items()},
            optimizer.t,
            optimizer.draws,
            optimizer.averaged,
        )
    return ShardResult(result, np.array(weights), np.array(losses), after)


def _minibatches(prepared: Prepared, part: EpochPart, window: Window) -> tuple[Sequence[Minibatch], RandomState | None]:
    """Return the minibatches of an epoch over a window, and the generator after it."""
    arrays, weights = window
    columns = {name: InputData(one, one.dtype) for name, one in arrays.items()}
    rows: np.ndarray = np.arange(next(iter(arrays.values())).shape[0])
    n_rows, size = len(rows), part.size
    merges = part.whole and n_rows <= min(size, MERGE_LIMIT)
    if merges and where_rows_meet(prepared.state.trained_form, prepared.settings) is None:
        rows, weights = distinct_rows(columns, rows, weights)  # as a fit does with a single minibatch of few rows
    else:
        rows, weights = weighted_rows(rows, weights)
    rng: Any = None if part.rng is None else _Shuffle(part.rng)
    batches = ArrayBatches(columns, rows, weights, size, rng, n_rows=n_rows, drop_last=part.drop_last)
    return list(batches.epoch()), None if rng is None else rng.state


class _Shuffle:
    """A generator that shuffles once; a later round of the epoch finds the order in this process."""

    def __init__(self, state: RandomState) -> None:
        self.state = state

    def shuffle(self, order: np.ndarray) -> None:
        key = self.state["state"]["key"].tobytes() + repr((self.state["state"]["pos"], order.shape, order[:1])).encode()
        with _lock:
            found = _orders.get(key)
        if found is None:
            rng = np.random.RandomState(0)
            rng.set_state(self.state)
            rng.shuffle(order)
            found = order.copy(), rng.get_state(legacy=False)
            with _lock:
                _orders[key] = found
                while len(_orders) > CACHED_ORDERS:
                    _orders.popitem(last=False)
        order[...], self.state = found


class _Chosen:
    """Some minibatches as :class:`~.batches.Batches`."""

    passes = 1
    weight: float | None = None

    def __init__(self, minibatches: Sequence[Minibatch], size: int) -> None:
        self._minibatches, self.size = minibatches, size

    @property
    def n_minibatches(self) -> int:
        return len(self._minibatches)

    @property
    def n_rows(self) -> int:
        return sum(len(one.rows) for one in self._minibatches)

    def epoch(self, skip: int = 0) -> Iterator[Minibatch]:
        return iter(self._minibatches[skip:])

    def resident(self, limit: int) -> None:
        return None

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        raise NotImplementedError("A round is part of a training whose digest the client has.")


# What the client does.


class ClusterBatches:
    """The rows of all shards, as the epoch loop sees them.

    Attributes
    ----------
    plan : list of list of list of Stripe
        The windows of each shard.
    size : int
        Rows of a minibatch of a shard.
    weight : float or None
        Sum of the weights of all rows; None until the windows are built.
    """

    passes = 1

    def __init__(
        self,
        stream: ClusterStream,
        averaging: LocalSGD,
        plan: list[list[list[Stripe]]],
        size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        accumulate: int,
    ) -> None:
        self.plan, self.shuffle, self.drop_last, self._stream = plan, shuffle, drop_last, stream
        self._averaging = averaging
        counts = [[sum(one.n_rows for one in window) for window in shard] for shard in plan]
        self.size = max(1, min(size, max(map(max, counts))))
        self.counts, self.accumulate = counts, accumulate
        self.weight: float | None = None

    def steps_of(self, shard: int) -> list[int]:
        """Return the steps of an epoch over each window of a shard."""
        return [-(-self.minibatches(n) // self.accumulate) for n in self.counts[shard]]

    def minibatches(self, n_rows: int) -> int:
        """Return the minibatches of an epoch over a window."""
        size = min(self.size, n_rows)
        return n_rows // size if self.drop_last else -(-n_rows // size)

    @property
    def longest(self) -> int:
        """Steps of an epoch, if all windows had as many as the one with most."""
        return len(self.plan[0]) * self.most_of_window

    @property
    def most_of_window(self) -> int:
        """Steps of the window that has most."""
        return max(steps for shard in range(len(self.plan)) for steps in self.steps_of(shard))

    @property
    def rounds_of_window(self) -> int:
        """Rounds of the window that has most steps."""
        return -(-self.most_of_window // int(self._averaging.sync_every))

    @property
    def steps_of_round(self) -> int:
        """Steps of a round of the window that has most steps, at most."""
        return -(-self.most_of_window // self.rounds_of_window)

    @property
    def n_minibatches(self) -> int:
        """Minibatches of an epoch of a shard."""
        if len(self.plan) == len(self.plan[0]) == 1:
            return self.minibatches(self.counts[0][0])
        return self.longest * self.accumulate

    @property
    def n_rows(self) -> int:
        """Rows of an epoch."""
        kept = [min(self.size, n) * self.minibatches(n) if self.drop_last else n for one in self.counts for n in one]
        return sum(kept)

    def epoch(self, skip: int = 0) -> Iterator[Minibatch]:
        """Raise an error: the rows are on the workers."""
        raise RuntimeError("The rows of a cluster are not on the client.")

    def resident(self, limit: int) -> None:
        """Return None: the rows are on the workers."""

    def close(self) -> None:
        """Do nothing; the call lets go of the windows."""

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with what tells one table, and one way of averaging, from another."""
        update(repr((self.size, self.plan, self.shuffle, self.drop_last, self._averaging)).encode())
        for one in self._stream.facts:
            update(one.content.encode())


@dataclass(eq=False)
class ClusterStep:
    """A step of the epoch loop that trains all shards for an epoch, round by round.

    Attributes
    ----------
    parameters, optimizer_state, batch_size, engine, kind
        As in :class:`~.step.TrainingStep`; ``parameters`` are the common weights, ``optimizer_state`` is the mean of
        the shards.
    """

    in_host_memory: ClassVar[bool] = False

    cluster: Cluster
    averaging: LocalSGD
    batches: ClusterBatches
    fitted: FittedState
    settings: StepSettings
    batch_size: int
    engine: str
    kind: StepKind | None
    job: Future
    windows: list[list[Future]]
    round: int = 0

    def __post_init__(self) -> None:
        self.parameters: FlatParameters = self.fitted.parameters
        self.optimizer_state: OptimizerState = self.fitted.optimizer_state
        self._pending: dict[int, RandomState] = {}  # generators of the shards after this epoch
        self._velocity = np.zeros(len(self.parameters.vector))
        self._shards = self._fresh()
        count = len(self.windows)
        self._generators: list[np.random.RandomState] = [self.fitted.rng]
        if count > 1:
            self._generators = [np.random.RandomState(seed) for seed in self.fitted.rng.randint(SEEDS, size=count)]

    def _fresh(self) -> list[ShardState]:
        """Return shards that go on from the optimizer's state on the client."""
        one = self.optimizer_state
        buffer = self.parameters.buffer
        slots = {name: slot.copy() for name, slot in one.slots.items()}
        return [ShardState(buffer, slots, one.t, one.draws + i * MASKS, one.averaged) for i in range(len(self.windows))]

    def train(
        self,
        batches: Any,
        next_rates: Callable[[], Rates],
        after: Callable[[float], bool] | None = None,
        skip: int = 0,
    ) -> Iterator[tuple[float, float]]:
        """Train an epoch; yield weight and loss of each step, the means over the shards."""
        if after is not None or skip:
            raise ValueError(
                "A callback follows single steps, as by after_step or every_steps, and their weights are on the "
                "workers: let it follow epochs, as TimeLimit(within_epochs=False) does."
            )
        begun = [self._begin_epoch(shard) for shard in range(len(self.windows))]
        # A round reads one window of each shard: a worker needs no memory for more.
        length = self.batches.most_of_window
        ends = np.linspace(0, length, self.batches.rounds_of_window + 1).round().astype(int).tolist()
        for turn, (start, stop) in product(range(len(begun[0])), pairwise(ends)):
            self.round += 1
            rates = [next_rates() for _ in range(start, stop)]
            asked = list[Future]()
            chosen = list[int]()
            places = list[str]()
            for shard, order in enumerate(begun):
                window, steps, part = order[turn]
                if start < steps:
                    part = part._replace(start=start, stop=min(stop, steps))
                    state = self._shards[shard]._replace(buffer=self.parameters.buffer)
                    rows = self.windows[shard][window]
                    asked.append(self.cluster.submit(train_shard, self.job, state, part, rates, rows))
                    chosen.append(shard)
                    places.append(f"Shard {shard} in round {self.round}")
            if not asked:
                continue
            results: list[ShardResult] = self.cluster.gather(asked, places)
            self._require_finite(results, places)
            self._average(chosen, results)
            yield from _mean_losses(results)
        self._publish()

    def _begin_epoch(self, shard: int) -> list[tuple[int, int, EpochPart]]:
        """Draw the order of the windows of a shard; return each with its steps and the generator of its rows."""
        steps = self.batches.steps_of(shard)
        batches = self.batches
        rng = self._generators[shard]
        whole = len(steps) == 1
        order = list(range(len(steps)))
        states = list[RandomState | None]([None] * len(steps))
        if batches.shuffle and whole:
            states = [rng.get_state(legacy=False)]  # the task returns the generator after the shuffle
        elif batches.shuffle:
            order = rng.permutation(len(steps)).tolist()
            states = [
                np.random.RandomState(seed).get_state(legacy=False) for seed in rng.randint(SEEDS, size=len(steps))
            ]
        return [
            (i, steps[i], EpochPart(0, 0, state, batches.size, batches.drop_last, whole))
            for i, state in zip(order, states, strict=True)
        ]

    def _require_finite(self, results: Sequence[ShardResult], places: Sequence[str]) -> None:
        for one, place in zip(results, places, strict=True):
            if np.isfinite(one.losses).all() and all(map(is_finite, (one.state.buffer, *one.state.slots.values()))):
                continue
            self.forget_state()
            raise DivergenceError(
                f"{place}: training diverged. The loss, the weights or the optimizer's state became NaN or infinite; "
                f"the weights of the last epoch were restored. Scale the inputs (StandardScaler), lower "
                f"learning_rate_init or outer_learning_rate, or limit the gradient: "
                f"optimizer=AdamW(max_grad_norm=1.0).",
                self.fitted.history.loss_curve,
            )

    def _average(self, chosen: Sequence[int], results: Sequence[ShardResult]) -> None:
        """Move the common weights, and keep the states of the shards."""
        parameters = self.parameters
        shares = [float(one.weights.sum()) or 1e-300 for one in results]
        start = parameters.vector.astype(np.float64)
        end = len(parameters.vector)
        mean = weighted_mean([one.state.buffer for one in results], shares)
        vector, self._velocity = outer_step(self.averaging, start, mean[:end], self._velocity)
        parameters.buffer[end:] = mean[end:]
        parameters.vector[...] = vector
        for shard, one in zip(chosen, results, strict=True):
            self._shards[shard] = one.state
            if one.rng is not None and len(self.windows[shard]) == 1:
                self._pending[shard] = one.rng

    def _publish(self) -> None:
        """End the epoch: the generators go on, and the optimizer's state becomes the mean of the shards."""
        for shard, state in self._pending.items():
            self._generators[shard].set_state(state)
        self._pending.clear()
        for name, slot in self.optimizer_state.slots.items():
            slot[...] = weighted_mean([one.slots[name] for one in self._shards], [1.0] * len(self._shards))
        first = self._shards[0]
        t, averaged = max(one.t for one in self._shards), max(one.averaged for one in self._shards)
        vars(self.optimizer_state).update(t=t, draws=first.draws, averaged=averaged)

    def synchronize(self) -> None:
        """Do nothing: the host's copies are up to date between two epochs."""

    def reload(self) -> None:
        """Do nothing: each round begins with the host's copy of the weights."""

    def forget_state(self) -> None:
        """Reset the optimizers of all shards, and the outer one."""
        self.optimizer_state.reset(state_slots(self.settings.optimizer, self.parameters))
        self._shards, self._velocity = self._fresh(), np.zeros_like(self._velocity)

    def remote_state(self) -> dict[str, Any]:
        """Return the states of the shards and of the outer optimizer."""
        own = [
            {"slots": one.slots, "t": one.t, "draws": one.draws, "averaged": one.averaged, "rng": rng.get_state(False)}
            for one, rng in zip(self._shards, self._generators, strict=True)
        ]
        return {"shards": own, "velocity": self._velocity.copy(), "round": self.round}

    def restore_remote(self, stored: Mapping[str, Any]) -> None:
        """Go on from such states."""
        shards, velocity = stored.get("shards"), stored.get("velocity")
        if not isinstance(shards, list) or len(shards) != len(self._shards):
            raise ModelError("The stored state has other shards than this training.")
        if not isinstance(velocity, np.ndarray) or velocity.shape != self._velocity.shape:
            raise ModelError("The stored state belongs to other weights.")
        for i, one in enumerate(shards):
            slots = {name: np.array(slot) for name, slot in one["slots"].items()}
            self._shards[i] = ShardState(self.parameters.buffer, slots, one["t"], one["draws"], one["averaged"])
            self._generators[i].set_state(one["rng"])
        self._velocity = velocity.copy()
        self.round = int(stored["round"])


def _mean_losses(results: Sequence[ShardResult]) -> Iterator[tuple[float, float]]:
    """Yield the weight of each step over all shards, and its mean loss."""
    if len(results) == 1:
        yield from zip(results[0].weights.tolist(), results[0].losses.tolist(), strict=True)
        return
    for i in range(max(len(one.weights) for one in results)):
        pairs = [(float(one.weights[i]), float(one.losses[i])) for one in results if i < len(one.weights)]
        total = sum(weight for weight, _ in pairs)
        yield total, sum(weight * loss for weight, loss in pairs) / total


def training_step(
    stream: ClusterStream,
    batches: ClusterBatches,
    averaging: LocalSGD,
    step: TrainingStep,
    estimator: Any,
    state: FittedState,
    settings: StepSettings,
    sparse: Collection[str],
) -> ClusterStep:
    """Return the step of a call, once its windows are built on the workers."""
    cluster: Cluster = stream.source.cluster
    job = cluster.send(Job.of(stream, estimator, state, settings, step, sparse))
    cluster.hold([job])
    windows = stream.submit(job, batches.plan)
    every = [one for shard in windows for one in shard]
    places = [f"Window {i} of shard {shard}" for shard, own in enumerate(windows) for i in range(len(own))]
    sizes = cluster.gather([cluster.submit(size_of_window, one) for one in every], places)
    planned = [n for own in batches.counts for n in own]
    if [n for n, _ in sizes] != planned:
        raise ValueError(
            f"X or y changed while fit read it: {sum(planned)} rows were counted, and {sum(n for n, _ in sizes)} came. "
            f"Persist the collection, or make its partitions from a fixed source."
        )
    batches.weight = None if batches.drop_last else sum(weight for _, weight in sizes)
    return ClusterStep(
        cluster, averaging, batches, state, settings, step.batch_size, step.engine, step.kind, job, windows
    )
