"""Tasks on a cluster: submit them, wait for them, and say what failed.

Waiting ends with an error when the scheduler, or all workers that run tasks, have been missing for :data:`PATIENCE`
seconds, when the scheduler has been silent for :data:`SILENCE` seconds, when a worker has run out of memory several
times, or when the caller's timeout is over.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..exceptions import ClusterError, DivergenceError, ModelError

PATIENCE = 20.0
"""Seconds without a worker that runs tasks after which waiting ends."""

SILENCE = 60.0
"""Seconds without an answer of a connected scheduler after which waiting ends.

A scheduler reads the first task in its event loop, which imports this package, and answers nothing until then: for 9
seconds on a machine with eight processes a core, and longer if the files come over a network. A dead scheduler closes
its connection, and is noticed after :data:`PATIENCE`.
"""

FULL_MEMORIES = 2
"""Deaths of workers with full memory after which a task is given up. Dask waits for four deaths, of any cause."""

Future = Any
"""A future of ``distributed``."""

KEPT_TYPES = (ValueError, TypeError, ModelError, DivergenceError, FileNotFoundError, MemoryError, OSError, RuntimeError)
"""Errors of a task that keep their type when the message is given the place of the task."""


class Cluster:
    """The tasks of one call of ``fit``.

    Parameters
    ----------
    client : distributed.Client or None
        None: the current client.
    timeout : float or None
        Seconds that tasks which are waited for together may take.
    """

    def __init__(self, client: Any, timeout: float | None) -> None:
        self.client = _client(client)
        self._timeout = timeout
        self._held: list[Future] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Run a pure function on a worker; return a future whose key belongs to this call alone."""
        import dask

        # Weights are arguments: as part of a task they survive a worker, which scattered arrays do not.
        quiet = dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"})
        with quiet, self._connected():
            return self.client.submit(
                function, *arguments, key=f"{function.__name__.strip('_')}-{uuid.uuid4().hex}", pure=False
            )

    def send(self, value: object) -> Future:
        """Bring an object to the workers once, for all tasks that take the future."""
        return self.submit(_sent, value)

    def compute(self, delayed: Sequence[Any]) -> list[Future]:
        """Compute delayed objects, and hold their results until :meth:`release` or :meth:`close`."""
        with self._connected():
            return self.hold(self.client.compute(list(delayed)))

    def persist(self, collections: Sequence[Any]) -> list[Any]:
        """Compute collections whose partitions stay on the workers; return collections of the results."""
        with self._connected():
            return list(self.client.persist(list(collections)))

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Name the cause of an error if the client was closed, by another thread perhaps, or lost its scheduler."""
        try:
            yield
        except Exception as error:  # its type depends on the moment, and on the release of distributed
            if self.client.status == "running":
                raise
            raise ClusterError(f"The client was closed, or its scheduler was lost: {error}") from error

    def hold(self, futures: list[Future]) -> list[Future]:
        """Keep results on the workers until :meth:`release` or :meth:`close`."""
        self._held += futures
        return futures

    def release(self, futures: Sequence[Future]) -> None:
        """Let the workers forget results, except those that other tasks still need."""
        gone = set(map(id, futures))
        self._held = [one for one in self._held if id(one) not in gone]
        for one in futures:
            one.release()

    def close(self) -> None:
        """Let the workers forget all."""
        self.release(list(self._held))

    @property
    def n_workers(self) -> int:
        """Workers that are there now; waits for the first one."""
        watch = _Watch(self.client)
        try:
            while True:
                if watch.workers:
                    return len(watch.workers)
                if (reason := watch.hopeless()) is not None:
                    raise ClusterError(reason)
                time.sleep(0.02)
        finally:
            watch.stop()

    def gather(self, futures: Sequence[Future], places: Sequence[str]) -> list[Any]:
        """Return the results of tasks; an error names the place of the task that failed."""
        if not futures:
            return []
        fetched = _Fetched(self.client, list(futures))
        began, watch = time.monotonic(), None
        try:
            while not fetched.ready.wait(0.25):
                taken = time.monotonic() - began
                if self._timeout is not None and taken > self._timeout:
                    raise ClusterError(
                        f"{_unfinished(futures, places)} took more than timeout={self._timeout:g} seconds."
                    )
                watch = watch or _Watch(self.client, futures)
                if (reason := watch.hopeless()) is not None:
                    raise ClusterError(f"{_unfinished(futures, places)} cannot be finished: {reason}")
                deaths = max(watch.deaths_of_memory)
                if deaths >= FULL_MEMORIES:
                    place = places[watch.deaths_of_memory.index(deaths)]
                    raise ClusterError(f"{place}: {_too_little_memory(deaths)}")
        except BaseException:
            self.release(futures)
            raise
        finally:
            if watch is not None:
                watch.stop()
        if fetched.error is None:
            return fetched.results
        errors = [(place, one.exception()) for one, place in zip(futures, places, strict=True) if one.status == "error"]
        self.release(futures)
        if not errors:
            raise ClusterError(
                f"The tasks were cancelled, or their scheduler was lost: {fetched.error}"
            ) from fetched.error
        raise _named(*errors[0]) from errors[0][1]


def _sent(value: object) -> object:
    return value


class _Fetched:
    """The results of futures, fetched by a thread: a gather of ``distributed`` cannot be given up."""

    def __init__(self, client: Any, futures: list[Future]) -> None:
        self.ready = threading.Event()
        self.results = list[Any]()
        self.error: BaseException | None = None
        threading.Thread(target=self._fetch, args=(client, futures), daemon=True).start()

    def _fetch(self, client: Any, futures: list[Future]) -> None:
        try:
            self.results = client.gather(futures)
        except BaseException as error:  # cancellations are no Exception
            self.error = error
        finally:
            self.ready.set()


class _Watch:
    """The workers of a cluster, and how often they died with a task, asked for by a thread: the answer may never come.

    Attributes
    ----------
    workers : dict of str
        The state of each worker, by its address.
    deaths_of_memory : list of int
        For each task, how often a worker died while it ran the task or one that it needs; 0 until FULL_MEMORIES workers
        have died of full memory.
    """

    def __init__(self, client: Any, futures: Sequence[Future] = ()) -> None:
        self._client = client
        self._keys = [one.key for one in futures]
        self._stopped = threading.Event()
        self.workers: dict[str, str] = {}
        self.deaths_of_memory = [0] * len(futures)
        self._before: float | None = None  # the time of the last death by full memory before this call
        self._hopeful = self._replied = time.monotonic()  # the last time with a worker, and with an answer or an error
        self._last: str | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                known = self._client.scheduler_info(n_workers=-1)["workers"]
                full = [float(when) for when, _ in self._client.get_events("worker-restart-memory")]
                if self._before is None:
                    self._before = max(full, default=0.0)
                if sum(when > self._before for when in full) >= FULL_MEMORIES:
                    self._count_deaths()
            except Exception as error:  # of a client that is closed or lost, perhaps between two questions
                self._last = f"the scheduler does not answer: {error}"
            else:
                self.workers = {address: one.get("status", "running") for address, one in known.items()}
                self._last = None
                if "running" in self.workers.values():
                    self._hopeful = time.monotonic()
            self._replied = time.monotonic()
            self._stopped.wait(0.5)

    def _count_deaths(self) -> None:
        def deaths(keys: list[str], dask_scheduler: Any = None) -> list[int]:
            # Nested, so that it is sent as code: the scheduler may lack this package.
            found = []
            for key in keys:
                worst = 0
                seen = set()
                waiting = [dask_scheduler.tasks.get(key)]
                while waiting:
                    task = waiting.pop()
                    if task is None or task in seen or task.state == "memory":
                        continue
                    seen.add(task)
                    worst = max(worst, task.suspicious)
                    waiting += task.dependencies
                found.append(worst)
            return found

        # A scheduler that takes no code raises: then the error comes from Dask, later.
        with suppress(Exception):
            self.deaths_of_memory = self._client.run_on_scheduler(deaths, self._keys)

    def hopeless(self) -> str | None:
        """Return why no task will be finished; None while there is hope."""
        if self._client.status in ("closed", "closing"):
            return "the client was closed."
        now = time.monotonic()
        for_seconds = f"for {PATIENCE:.0f} seconds"
        if self._client.status != "running":
            return f"the scheduler has not been reached {for_seconds}." if now - self._hopeful >= PATIENCE else None
        if now - self._replied >= SILENCE:
            return f"the scheduler has not answered for {SILENCE:.0f} seconds."
        if self._replied - self._hopeful < PATIENCE:  # silence says nothing about workers
            return None
        if self._last is not None:
            return f"{self._last.rstrip('.')}, {for_seconds}."
        if not self.workers:
            return f"there has been no worker {for_seconds}. Start workers, and call fit again."
        if "paused" not in self.workers.values():
            states = ", ".join(sorted(set(self.workers.values())))
            return f"there has been no worker that runs tasks {for_seconds}: all are {states}. Start workers."
        return (
            f"all workers have been paused {for_seconds}, because their memory is full. Give them more memory, or the "
            f"table smaller partitions."
        )


def _client(given: Any) -> Any:
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Training on a cluster needs dask and distributed, which are not installed. Install the extra "
            "onnxtrain-sklearn[dask]."
        ) from error
    if given is None:
        try:
            given = distributed.get_client()
        except ValueError:
            raise ValueError(
                "There is no Dask client: make one, as by distributed.Client(), or set the parameter client."
            ) from None
    if not isinstance(given, distributed.Client):
        raise TypeError(f"client must be a distributed.Client or None, got {type(given).__name__}.")
    if given.asynchronous:
        raise TypeError("client is asynchronous, and fit waits for its tasks: set a client that is not.")
    return given


REMEDY = "give them more of it, or the table smaller partitions."


def _too_little_memory(deaths: int) -> str:
    return f"workers died {deaths} times while they ran this task, because their memory was full: {REMEDY}"


def _unfinished(futures: Sequence[Future], places: Sequence[str]) -> str:
    waiting = [place for one, place in zip(futures, places, strict=True) if one.status != "finished"]
    return (waiting or list(places))[0]


def _named(place: str, error: BaseException) -> BaseException:
    """Return an error of the same type whose message names the place."""
    from distributed.scheduler import KilledWorker

    text = str(error)
    if isinstance(error, KilledWorker):
        return ClusterError(
            f"{place}: workers died {error.allowed_failures + 1} times while they ran this task, the last one "
            f"{error.last_worker.address}. Most often their memory was full: {REMEDY} The logs of the workers say more."
        )
    kind = next((kind for kind in KEPT_TYPES if type(error) is kind), None)
    if kind is not None:
        return kind(text if text.startswith(place) else f"{place}: {text}")
    for kept in (FileNotFoundError, OSError, ValueError, TypeError):  # classes of pyarrow and others derive from them
        if isinstance(error, kept):
            return kept(f"{place}: {text}")
    return ClusterError(f"{place}: {type(error).__name__}: {text}")
