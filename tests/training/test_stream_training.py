"""Training on a stream of blocks: the bits of the array, means over the rows seen, plans that need a known number."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import LBFGS, MLP, OrtGradientClassifier
from onnxtrain_sklearn._data.batches import Block, BlockBatches
from onnxtrain_sklearn._data.columns import InputData
from onnxtrain_sklearn._training.history import History
from onnxtrain_sklearn._training.trainer import FullBatchTrainer, Trainer
from onnxtrain_sklearn.callbacks import LearningRateFinder, SnapshotEnsemble, WeightAveraging
from tests.helpers.environment import OWN_MEMORY, available_engines
from tests.helpers.loop import Batches, Step, trainer
from tests.helpers.observed import trained_on_device
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 5)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
WEIGHTS = RNG.integers(0, 3, 90).astype(float)


class BlocksOf:
    """The rows of minibatches of arrays, in blocks."""

    def __init__(self, batches, borders, counted):
        self._batches, ends = batches, [0, *borders, len(batches._rows)]
        self._parts = [batches._rows[slice(*ends[i : i + 2])] for i in range(len(ends) - 1)]
        self.n_rows = len(batches._rows) if counted else None

    def __len__(self):
        return len(self._parts)

    def block(self, i):
        rows, weights = self._parts[i], self._batches._weights
        columns = {n: InputData(column.rows(rows), column.dtype) for n, column in self._batches._columns.items()}
        return Block(columns, None if weights is None else weights[rows])


@pytest.fixture
def streamed(monkeypatch):
    """Return a function after which trainers get the rows of their batches as a stream."""
    begin = Trainer.__init__

    def switch(borders=(), buffer_rows=0, *, counted=True):
        def init(self, settings, step, batches, *rest):
            blocks = BlocksOf(batches, borders, counted)
            options = {"buffer_rows": buffer_rows, "drop_last": batches.drop_last}
            begin(self, settings, step, BlockBatches(blocks, batches.size, batches._rng, **options), *rest)

        monkeypatch.setattr(Trainer, "__init__", init)

    return switch


@pytest.fixture(params=["host", "device"])
def where(request, monkeypatch):
    if request.param == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
        monkeypatch.setattr("onnxtrain_sklearn._training.device_step.RESIDENT_LIMIT", 0)
        monkeypatch.setattr("onnxtrain_sklearn._training.device_step.STEPS_AT_ONCE", 2)
    return request.param


def fitted(weights=None, **settings):
    defaults = {"batch_size": 16, "max_iter": 3, "learning_rate_init": 0.02, "random_state": 0}
    return configured(OrtGradientClassifier(MLP((6,), dropout=0.1)), **defaults | settings).fit(
        X, Y, sample_weight=weights
    )


def assert_same_bits(a, b):
    for name, array in a.weights_.items():
        assert_array_equal(array, b.weights_[name], err_msg=name)
    assert_allclose(a.loss_curve_, b.loss_curve_, rtol=1e-12)
    assert (a.n_iter_, a.t_) == (b.n_iter_, b.t_)


CASES = {
    "plain": {},
    "in order": {"shuffle": False},
    "groups": {"optimizer__accumulate": 3},
    "plan": {"learning_rate": "cosine"},
    "left out": {"drop_last": True},
    "one minibatch": {"batch_size": 200},
    "clipped, averaged": {"optimizer__max_grad_norm": 0.1, "optimizer__ema_decay": 0.9, "alpha": 0.1},
}

PLACES = [(engine, where) for engine in available_engines() for where in ("host", "device")] + [("compiled", "host")]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("borders", [(), (20, 20, 60)], ids=["one block", "blocks"])
@pytest.mark.parametrize(("engine", "where"), PLACES, indirect=["where"])
@pytest.mark.parametrize("case", CASES)
def test_buffered_stream_trains_to_bits_of_the_array(case, engine, borders, weights, streamed, where):
    if engine == "compiled":
        pytest.importorskip("llvmlite")
    settings = CASES[case] | {"engine": engine}
    expected = fitted(weights, **settings)
    streamed(borders, 90)
    found = fitted(weights, **settings)
    assert trained_on_device(found) == (where == "device")
    assert_same_bits(expected, found)


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_ordered_stream_equals_array_across_blocks(counted, streamed, where):
    expected = fitted(shuffle=False, engine="portable")
    streamed((5, 30, 31, 70), counted=counted)
    assert_same_bits(expected, fitted(shuffle=False, engine="portable"))


def test_loss_of_an_uncounted_stream_is_the_mean_over_the_weight_seen():
    batches = Batches(2.0, 1.0, 1.0)
    batches.weight = batches.n_minibatches = None
    history = History()
    trainer(Step([1.0, 2.0, 6.0]), batches, history).partial_fit()
    assert history.loss_curve == [(2 * 1 + 2 + 6) / 4]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "one_cycle"])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_plan_of_an_uncounted_stream_is_refused_before_the_first_step(schedule, method):
    batches = Batches(1.0)
    batches.n_minibatches = None
    step = Step([1.0])
    with pytest.raises(ValueError, match="does not know how many steps training takes: give total_steps"):
        getattr(trainer(step, batches, schedule=schedule), method)()
    assert not step.rates


def test_lbfgs_refuses_a_stream():
    batches = Batches(1.0)
    batches.weight = None
    plain = trainer(Step([1.0]))
    with pytest.raises(ValueError, match="LBFGS computes the loss of all rows in each evaluation"):
        FullBatchTrainer(LBFGS(), plain._settings, Step([1.0]), batches, History())


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_callbacks_that_sweep_over_the_data_take_a_stream(counted, streamed):
    streamed((5, 30, 31, 70), 40, counted=counted)
    model = MLP((6,), normalization="batch")
    settings = {"batch_size": 16, "max_iter": 4, "random_state": 0}
    callbacks = [LearningRateFinder(steps=20), WeightAveraging(0.5)]
    found = configured(OrtGradientClassifier(model, callbacks=callbacks), **settings).fit(X, Y)
    assert found.callbacks_["WeightAveraging"]["count"] == 2
    assert len(found.callbacks_["LearningRateFinder"]["losses"]) == 20
    assert found.t_ == 4 * 90


def test_snapshots_of_an_uncounted_stream_are_refused(streamed):
    streamed((5, 30), counted=False)
    with pytest.raises(ValueError, match="need the steps of an epoch"):
        fitted(callbacks=[SnapshotEnsemble(2)], n_iter_no_change=np.inf, max_iter=4)
