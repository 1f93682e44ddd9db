"""The plan of the windows, the outer optimizer and the cost model, without a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn.dask import LocalSGD
from onnxtrain_sklearn.dask import partitions as rooms
from onnxtrain_sklearn.dask.averaging import outer_step, weighted_mean
from onnxtrain_sklearn.dask.partitions import ClusterStream, Facts


def planned(counts, n_shards, size=20, row_bytes=4):
    facts = [Facts(n, n, key=float(i)) for i, n in enumerate(counts)]
    stream = ClusterStream(None, [], 0, 0, np.random.RandomState(0), facts=facts)
    return stream.planned(n_shards, size, row_bytes)


COUNTS = {
    "equal": [100] * 10,
    "one": [1000],
    "skew": [1, 900, 0, 30, 69],
    "tiny": [1] * 50,
    "odd": [7, 11, 13, 17, 19],
}


@pytest.mark.parametrize("stripes", [4096, 1], ids=["each window has all", "by keys"])
@pytest.mark.parametrize("n_shards", [1, 2, 5, 16])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_plan_has_each_row_once_in_shards_of_almost_equal_size(monkeypatch, counts, n_shards, stripes):
    monkeypatch.setattr(rooms, "STRIPES", stripes)
    plan = planned(counts, n_shards)
    rows = [(s.part, i) for shard in plan for w in shard for s in w for i in range(s.first, counts[s.part], s.step)]
    assert sorted(rows) == [(part, i) for part, n in enumerate(counts) for i in range(n)]
    sizes = [sum(s.n_rows for w in shard for s in w) for shard in plan]
    assert len(plan) == n_shards
    assert max(sizes) - min(sizes) <= (1 if stripes > 1 else max(2, 0.1 * sum(counts) / n_shards))


def test_windows_hold_a_bounded_number_of_rows():
    plan = planned([10_000] * 20, 2, size=20, row_bytes=2**16)
    assert all(len(shard) > 50 for shard in plan)
    assert max(sum(s.n_rows for s in w) for shard in plan for w in shard) <= 1.2 * 2**10


def test_stripes_by_keys_mix_sorted_partitions(monkeypatch):
    monkeypatch.setattr(rooms, "STRIPES", 1)
    for shard in planned([50] * 200, 4):
        keys = [s.part for w in shard for s in w]
        assert np.mean(keys) == pytest.approx(99.5, abs=2)


def test_mean_with_rate_one_and_no_momentum_is_exact():
    start, mean = np.array([1e8, 1.0, -3.0]), np.array([1e-8, 0.1, 7.0])
    averaging = LocalSGD(outer_learning_rate=1.0, outer_momentum=0.0)
    found, _ = outer_step(averaging, start, mean, np.zeros(3))
    assert np.array_equal(found, mean)
    assert np.array_equal(weighted_mean([mean], [3.0]), mean)


@pytest.mark.parametrize("outer", ["nesterov", "momentum"])
def test_outer_optimizer_is_that_of_pytorch(outer):
    torch = pytest.importorskip("torch")
    averaging = LocalSGD(outer=outer, outer_learning_rate=0.7, outer_momentum=0.9)
    weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=outer == "nesterov")
    ours, velocity = np.zeros(4), np.zeros(4)
    for mean in np.random.RandomState(0).normal(size=(5, 4)):
        weights.grad = weights.detach() - torch.from_numpy(mean)
        theirs.step()
        ours, velocity = outer_step(averaging, ours, mean, velocity)
        assert ours == pytest.approx(weights.detach().numpy())


def test_outer_steps_by_hand():
    # Two rounds from 0 to means of 1: velocities -1 and -0.9 + (w - 1), by hand.
    averaging = LocalSGD(outer_learning_rate=0.5, outer_momentum=0.9)
    one, velocity = outer_step(averaging, np.zeros(1), np.ones(1), np.zeros(1))
    assert one == pytest.approx([0.95])  # 0 + 0.5 (1 + 0.9)
    two, velocity = outer_step(averaging, one, np.ones(1), velocity)
    assert velocity == pytest.approx([-0.95])
    assert two == pytest.approx([0.95 + 0.5 * (0.05 + 0.9 * 0.95)])


def test_weighted_mean_weighs():
    assert weighted_mean([np.zeros(2), np.ones(2)], [1.0, 3.0]) == pytest.approx([0.75, 0.75])


def test_cost_model_says_when_a_cluster_pays():
    rows, step = 1_000_000, 80e-6
    alone = rows / 200 * step
    often = LocalSGD(50).epoch_seconds(rows, 8, step_seconds=step, n_parameters=1000, n_slots=0)
    rarely = LocalSGD(2200).epoch_seconds(10 * rows, 8, step_seconds=step, n_parameters=1000, n_slots=0)
    assert often > alone
    assert rarely == pytest.approx(10 * alone / 8 / 0.8, rel=0.02)  # an efficiency of 80 %
    with pytest.raises(ValueError, match="n_workers"):
        LocalSGD().epoch_seconds(rows, 0, step_seconds=step, n_parameters=10)
