"""Faults on real processes: workers that die, come and go change no bit; what cannot go on is a clear error, soon."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from onnxtrain_sklearn.dask import LocalSGD, cluster, partitions
from onnxtrain_sklearn.exceptions import ClusterError, DivergenceError
from tests.dask.helpers import arrays, classifier, cluster_of, frame, labels, same_bits

dask, dd = pytest.importorskip("dask"), pytest.importorskip("dask.dataframe")
da = pytest.importorskip("dask.array")
distributed, pd = pytest.importorskip("distributed"), pytest.importorskip("pandas")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]

SOON = 30.0
"""Seconds after which an error is due, on a machine whose cores are free."""


def require_soon(began):
    """Require that at most :data:`SOON` seconds are over since a moment, more where others have the cores."""
    taken = time.monotonic() - began
    if taken >= SOON:
        start, work = time.monotonic(), time.thread_time()
        while time.thread_time() - work < 1.0:
            pass
        slower = time.monotonic() - start
        assert taken < SOON * slower, f"{taken:.0f} seconds, on a machine on which a second of work takes {slower:.1f}"


def fit(**options):
    X, y = labels()
    own = {"averaging": LocalSGD(2, n_shards=4), "max_iter": 6, "batch_size": 50}
    return classifier(**(own | options)).fit(*arrays(X, y, rows=100))


@pytest.fixture(scope="module")
def expected(client):
    return fit()


@pytest.fixture
def own_client():
    """A cluster whose workers are killed; nannies replace them."""
    with cluster_of(2) as client:
        yield client


def kill_one(client, n_workers=2):
    """Kill a worker in the middle of its work, without a chance to say so.

    All are there before: a nanny whose worker dies while it starts gives up.
    """
    client.wait_for_workers(n_workers, timeout=60)
    pids = client.run(os.getpid, on_error="ignore")
    if pids:
        with suppress(ProcessLookupError):
            os.kill(next(iter(pids.values())), signal.SIGKILL)


# Deaths, arrivals and departures.


def test_death_of_a_worker_between_rounds_changes_no_bit(own_client, expected):
    deaths = []

    def kill(epoch):
        if epoch.number in (2, 4):
            kill_one(own_client)
            deaths.append(epoch.number)

    assert same_bits(fit(client=own_client, callbacks=[kill]), expected)
    assert deaths == [2, 4]


@pytest.mark.parametrize("function", ["facts", "converted", "window", "train_shard"])
def test_death_of_a_worker_after_a_submission_changes_no_bit(own_client, expected, monkeypatch, function):
    # "window": in the scatter of the rows; "train_shard": in a round.
    own_client.wait_for_workers(2, timeout=60)
    plain, deaths = cluster.Cluster.submit, []

    def submit(self, task, *arguments):
        future = plain(self, task, *arguments)
        if task.__name__.strip("_") == function and not deaths:
            deaths.append(1)
            kill_one(own_client)
        return future

    monkeypatch.setattr(cluster.Cluster, "submit", submit)
    assert same_bits(fit(client=own_client), expected)
    assert deaths


def test_death_of_a_worker_that_holds_results_changes_no_bit(own_client, expected, monkeypatch):
    own_client.wait_for_workers(2, timeout=60)
    plain, deaths = own_client.gather, []

    def gather(futures, **options):
        if futures[0].key.startswith("train_shard") and len(deaths) < 2:
            distributed.wait(futures)  # all results are on the workers
            (holder, *_) = own_client.who_has([futures[-1]])[futures[-1].key]
            with suppress(ProcessLookupError):
                os.kill(own_client.run(os.getpid, workers=[holder])[holder], signal.SIGKILL)
            deaths.append(holder)
        return plain(futures, **options)

    monkeypatch.setattr(own_client, "gather", gather)
    assert same_bits(fit(client=own_client), expected)
    assert len(deaths) == 2


def test_death_of_two_workers_one_after_the_other_changes_no_bit(own_client, expected):
    found = fit(client=own_client, callbacks=[lambda epoch: epoch.number in (2, 4) and kill_one(own_client)])
    assert same_bits(found, expected)


def test_workers_that_come_and_go_change_no_bit(expected):
    with cluster_of(1) as client:

        def change(epoch):
            if epoch.number == 1:
                client.cluster.scale(3)
                client.wait_for_workers(3, timeout=60)
            elif epoch.number == 3:
                client.retire_workers(list(client.scheduler_info(n_workers=-1)["workers"])[:2])

        assert same_bits(fit(client=client, callbacks=[change]), expected)


def test_all_workers_dead_is_an_error_and_a_checkpoint_goes_on_to_the_same_bits(tmp_path, expected, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 2.0)
    with cluster_of(2) as client:

        def kill(epoch):
            if epoch.number == 4:
                began.append(time.monotonic())
                client.cluster.scale(0)
                for pid in client.run(os.getpid, on_error="ignore").values():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        began = []
        with pytest.raises(ClusterError, match=r"no worker|cancelled"):
            fit(client=client, checkpoint=tmp_path, callbacks=[kill])
        require_soon(began[0])
    with cluster_of(1) as client:
        epochs = []
        found = fit(client=client, checkpoint=tmp_path, callbacks=[lambda epoch: epochs.append(epoch.number)])
    assert same_bits(found, expected)
    assert found.loss_curve_ == expected.loss_curve_
    assert epochs == [5, 6]


# Memory.


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_need_a_fraction_of_the_memory_of_the_rows(tmp_path, monkeypatch):
    # The windows of a worker are as small a part of the rows as those of 64 MiB are of a large table.
    monkeypatch.setattr(partitions, "WINDOW_BYTES", 2**22)
    n_parts, n_rows = 64, 2**14

    def rows(i):
        return np.random.default_rng(i).normal(size=(n_rows, 30)).astype(np.float32)

    def targets(i):
        return (rows(i)[:, 0] > 0).astype(int)

    def of_parts(make, shape, dtype):
        parts = [da.from_delayed(dask.delayed(make, pure=True)(i), (n_rows, *shape), dtype) for i in range(n_parts)]
        return da.concatenate(parts)

    X, y = of_parts(rows, (30,), np.float32), of_parts(targets, (), np.int64)
    total = X.nbytes + y.nbytes
    # Results of tasks stay below 20 MB in memory; Dask writes the others to disk, as it does where memory is full.
    spilling = dask.config.set({"distributed.worker.memory.target": 0.02, "distributed.worker.memory.spill": False})
    with spilling, cluster_of(1, memory_limit="1GB", local_directory=str(tmp_path)) as client:
        fit(client=client)  # imports, sessions
        (before,) = client.run(_reset_peak).values()
        averaging = LocalSGD(2000, n_shards=2)
        found = classifier(client=client, averaging=averaging, max_iter=1, batch_size=1000).fit(X, y)
        (peak,) = client.run(_peak_memory).values()
    assert found.t_ == n_parts * n_rows
    assert total > 100e6
    assert peak - before < total / 2


def _reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _peak_memory()


def _peak_memory():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


# What cannot go on.


@pytest.fixture
def soon():
    began = time.monotonic()
    yield
    require_soon(began)


@pytest.mark.usefixtures("soon")
def test_task_that_always_fails_is_named(client):
    X, y = labels()

    def fail(part):
        if len(part) and part["y"].index[0] == 600:
            raise KeyError("broken")
        return part

    table = dd.from_pandas(frame(X, y=y), npartitions=4).map_partitions(fail, meta=frame(X[:0], y=y[:0]))
    with pytest.raises(ClusterError, match="Partition 2: KeyError: 'broken'"):
        classifier().fit(table, "y")


@pytest.mark.usefixtures("soon")
def test_bad_value_names_its_partition(client):
    X, y = labels(40_000)
    for row, place in ((100, 0), (33_333, 3)):  # in the sample, and beyond it
        bad = X.copy()
        bad[row, 2] = np.inf
        with pytest.raises(ValueError, match=f"Partition {place}: Input X contains infinity"):
            classifier().fit(*arrays(bad, y, rows=10_000))


@pytest.mark.usefixtures("soon")
def test_lost_file_is_named(client, tmp_path):
    X, y = labels()
    paths = [tmp_path / f"{i}.parquet" for i in range(3)]
    for i, path in enumerate(paths):
        frame(X[400 * i : 400 * i + 400], y=y[400 * i : 400 * i + 400]).to_parquet(path)
    rows = dd.from_map(pd.read_parquet, paths, meta=frame(X[:0], y=y[:0]))
    paths[1].unlink()
    with pytest.raises(FileNotFoundError, match=r"Partition 1: .*1\.parquet"):
        classifier().fit(rows, "y")
    with pytest.raises(FileNotFoundError, match=r"1\.parquet"):
        classifier().fit([str(path) for path in paths], "y")


def test_file_lost_together_with_a_worker_is_named(tmp_path):
    X, y = labels(80_000)
    paths = [str(tmp_path / f"{i}.parquet") for i in range(2)]
    for i, path in enumerate(paths):
        frame(X[i::2], y=y[i::2]).to_parquet(path)
    with cluster_of(1) as client:
        times = []

        def lose(epoch):
            if epoch.number == 1:
                os.unlink(paths[1])
                kill_one(client, 1)
                times.append(time.monotonic())

        with pytest.raises(ValueError, match=r"Shard 0 in round \d+: .*1\.parquet cannot be read"):
            classifier(client=client, callbacks=[lose], max_iter=20).fit(paths, "y")
        require_soon(times[0])


@pytest.mark.usefixtures("soon")
def test_divergence_names_the_shard_and_keeps_finite_weights(client):
    X, y = labels()
    estimator = classifier(optimizer="sgd", learning_rate_init=1e30, averaging=LocalSGD(2, n_shards=2))
    with pytest.raises(DivergenceError, match=r"Shard [01] in round 1: training diverged"):
        estimator.fit(*arrays(X, y))
    assert all(np.isfinite(weight).all() for weight in estimator.weights_.values())


def test_worker_without_enough_memory_is_an_error(tmp_path):
    X, y = labels()
    began = tmp_path / "began"

    def grow(part):
        if part["y"].index[0] >= 600:
            if not began.exists():
                began.touch()
            part = np.ones(2**28), part  # 2 GiB
            time.sleep(30)
        return part

    table = dd.from_pandas(frame(X, y=y), npartitions=2).map_partitions(grow, meta=frame(X[:0], y=y[:0]))
    with cluster_of(1, memory_limit="700MB", local_directory=str(tmp_path)) as client:
        with pytest.raises(
            ClusterError, match=r"Partition [01]: workers died [234] times .* their memory was full: give"
        ):
            classifier(client=client).fit(table, "y")
        require_soon(time.monotonic() - (time.time() - began.stat().st_mtime))


@pytest.mark.usefixtures("soon")
def test_cluster_without_workers_is_an_error(monkeypatch):
    assert cluster.PATIENCE < SOON
    monkeypatch.setattr(cluster, "PATIENCE", 1.0)
    with cluster_of(0) as client, pytest.raises(ClusterError, match="no worker for 1 seconds"):
        fit(client=client)


@pytest.mark.usefixtures("soon")
def test_scheduler_lost_between_two_questions_is_an_error(monkeypatch):
    def get_events(topic):
        raise OSError("Stream is closed")

    monkeypatch.setattr(cluster, "PATIENCE", 1.0)
    with cluster_of(0) as client:
        monkeypatch.setattr(client, "get_events", get_events)
        with pytest.raises(ClusterError, match="the scheduler does not answer: Stream is closed, for 1 seconds"):
            fit(client=client)


@pytest.mark.usefixtures("soon")
def test_scheduler_that_does_not_answer_is_no_lack_of_workers(monkeypatch):
    silent = threading.Event()
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    monkeypatch.setattr(cluster, "SILENCE", 1.0)
    with cluster_of(0) as client:
        monkeypatch.setattr(client, "scheduler_info", lambda n_workers: silent.wait())
        try:
            with pytest.raises(ClusterError, match="the scheduler has not answered for 1 seconds"):
                fit(client=client)
        finally:
            silent.set()


@pytest.mark.usefixtures("soon")
def test_scheduler_that_does_not_count_deaths_is_an_error(monkeypatch):
    silent, asked = threading.Event(), []

    def get_events(topic):
        asked.append(topic)
        return [(float(when), {}) for when in range(1, len(asked))]  # a death of full memory before each question

    monkeypatch.setattr(cluster, "SILENCE", 1.0)
    with cluster_of(0) as client:
        monkeypatch.setattr(client, "get_events", get_events)
        monkeypatch.setattr(client, "run_on_scheduler", lambda *_: silent.wait())
        try:
            with pytest.raises(ClusterError, match="the scheduler has not answered for 1 seconds"):
                fit(client=client)
        finally:
            silent.set()


@pytest.mark.usefixtures("soon")
def test_scheduler_that_answers_late_is_waited_for(client, expected, monkeypatch):
    plain, late = client.scheduler_info, []

    def scheduler_info(n_workers):
        if not late:  # as while it imports the package
            late.append(time.sleep(3))
        return plain(n_workers)

    monkeypatch.setattr(cluster, "PATIENCE", 1.0)
    monkeypatch.setattr(client, "scheduler_info", scheduler_info)
    assert same_bits(fit(client=client), expected)
    assert late


@pytest.mark.usefixtures("soon")
def test_paused_workers_are_an_error(monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 1.0)
    memory = {"pause": 0.001, "spill": False, "target": False}
    full = dask.config.set({f"distributed.worker.memory.{name}": value for name, value in memory.items()})
    with full, cluster_of(1) as client, pytest.raises(ClusterError, match="paused for 1 seconds"):
        fit(client=client)


@pytest.mark.usefixtures("soon")
def test_closed_client_is_an_error():
    with cluster_of(1) as client:
        # In another thread: the fit may submit a task at that moment, wait for one, or do neither.
        closing = threading.Timer(0.0, client.close)
        with pytest.raises(ClusterError, match=r"closed|cancelled|lost"):
            fit(client=client, max_iter=500, callbacks=[lambda epoch: epoch.number == 3 and closing.start()])
        closing.join()


@pytest.mark.usefixtures("soon")
def test_client_closed_before_a_submission_is_an_error():
    with cluster_of(1) as client, pytest.raises(ClusterError, match="The client was closed"):
        fit(client=client, callbacks=[lambda epoch: epoch.number == 3 and client.close()])


def test_dead_scheduler_is_an_error(monkeypatch):
    killed = []

    def die(epoch):
        if epoch.number == 3:
            monkeypatch.setattr(cluster, "PATIENCE", 1.0)
            scheduler.kill()
            killed.append(time.monotonic())

    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--no-show"]
    start += ["--preload", "onnxtrain_sklearn.dask"]  # imported with the first task, it would make a long silence
    scheduler = subprocess.Popen(start, env=environment, stderr=subprocess.PIPE, text=True)
    worker = None
    try:
        address = next(found[0] for line in scheduler.stderr if (found := re.findall(r"tcp://\S+:\d+", line)))
        start = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
        worker = subprocess.Popen([*start, "--no-nanny"], env=environment, stderr=subprocess.DEVNULL)
        with distributed.Client(address) as client:
            client.wait_for_workers(1, timeout=60)
            with pytest.raises(ClusterError, match=r"closed|cancelled|lost|reached"):
                fit(client=client, callbacks=[die])
            require_soon(killed[0])
    finally:
        for process in (scheduler, worker):
            if process is not None:
                process.kill()
                process.wait()
        scheduler.stderr.close()


@pytest.mark.usefixtures("soon")
def test_timeout_ends_a_round_and_names_it(client):
    X, y = labels()
    table = dd.from_pandas(frame(X, y=y), npartitions=2).map_partitions(_wait, meta=frame(X[:0], y=y[:0]))
    with pytest.raises(ClusterError, match="Partition 0 took more than timeout=1 seconds"):
        classifier(timeout=1).fit(table, "y")


def _wait(part):
    time.sleep(4)
    return part


def test_missing_client_is_an_error(monkeypatch):
    def get_client():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "get_client", get_client)
    with pytest.raises(ValueError, match="There is no Dask client"):
        fit()
