"""Training of several outputs: checkpoints, weights from elsewhere, rows of embeddings, scorers of scikit-learn."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import cross_val_score

from onnxtrain_sklearn import SGD, Inputs, LoRA, OrtGradientMultiOutput
from onnxtrain_sklearn.callbacks import Callback, Checkpoint
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import each_engine
from tests.helpers.observed import updates_by_rows
from tests.helpers.several_outputs import data, graph
from tests.helpers.step_options import with_options
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = data(60)
PAIR = {"class": "log_loss", "number": "squared_error"}
TARGETS = {name: Y[name] for name in PAIR}
WEIGHTS = {"class": np.arange(60) % 3 + 0.5}
WORDS, LENGTH = 1500, 3


def net(**parameters):
    defaults = {"max_iter": 6, "learning_rate_init": 0.02, "batch_size": 16, "tol": NEVER, "random_state": 0}
    return OrtGradientMultiOutput(graph(list(PAIR)), loss=PAIR, **defaults | parameters)


class Crash(Callback):
    """Ends the program in the fourth epoch."""

    steers = False

    def after_epoch(self, training):
        if training.row["epoch"] == 4:
            raise MemoryError


@each_engine
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_checkpoint_goes_on_to_the_bit(tmp_path, engine, weights):
    whole = net(engine=engine).fit(X, TARGETS, weights)
    with pytest.raises(MemoryError):
        net(engine=engine, callbacks=[Checkpoint(tmp_path), Crash()]).fit(X, TARGETS, weights)
    seen = []
    later = net(engine=engine, callbacks=[Checkpoint(tmp_path), lambda epoch: seen.append(epoch.number)])
    later.fit(X, TARGETS, weights)
    assert seen == [4, 5, 6]
    assert later.loss_curve_ == whole.loss_curve_
    for name, array in whole.weights_.items():
        assert_array_equal(later.weights_[name], array)
    other = net(engine=engine, callbacks=[Checkpoint(tmp_path)], loss_weights={"class": 2.0}).fit(X, TARGETS, weights)
    assert other.loss_curve_[0] != whole.loss_curve_[0]


def test_weights_from_elsewhere(tmp_path):
    trained, other = net(random_state=1).fit(X, TARGETS), net(max_iter=1).fit(X, TARGETS)
    assert other.load_state(trained.weights_) is other
    for name, own in trained.predict_proba(X).items():
        assert_array_equal(other.predict_proba(X)[name], own)
    assert_array_equal(other.predict(X)["number"], trained.predict(X)["number"])
    with pytest.raises(ModelError, match=r"'trunk' of shape \[2\]"):
        other.load_state({**trained.weights_, "trunk": np.zeros(2)})


@pytest.mark.skipif(not hasattr(onnxruntime, "LoraAdapter"), reason="this onnxruntime has no adapter files")
def test_factors_from_a_file(tmp_path):
    factors = net(adapters=LoRA(2, targets=["trunk"])).fit(X, TARGETS)
    factors.save_adapter(tmp_path / "trunk.onnx_adapter")
    loaded = net(adapters=LoRA(2, targets=["trunk"]), max_iter=1).fit(X, TARGETS)
    loaded.load_state(tmp_path / "trunk.onnx_adapter")
    for name, array in factors.adapters_.items():
        assert_allclose(loaded.adapters_[name], array, rtol=1e-6)


def words(rng):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> net (int64[N, {LENGTH}] X) => (float[N, 3] kind, float[N, 1] size)
        {{ E = Gather(T, X) M = ReduceMean <axes = [1], keepdims = 0> (E) kind = MatMul(M, V) size = MatMul(M, W) }}"""
    )
    arrays = {"T": rng.normal(size=(WORDS, 4)), "V": rng.normal(size=(4, 3)), "W": rng.normal(size=(4, 1))}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


@each_engine
def test_rows_of_embeddings(engine):
    rng = np.random.default_rng(0)
    model, ids = words(rng), rng.integers(0, 60, (48, LENGTH)) * 23
    y = {"kind": np.arange(48) % 3, "size": rng.normal(size=48)}
    settings = {"learning_rate_init": 0.05, "batch_size": 16, "max_iter": 4, "random_state": 0, "engine": engine}
    fitted = {}
    for updates in ("exact", "lazy"):
        for optimizer in (SGD(), "adamw"):
            losses = {"kind": "log_loss", "size": "squared_error"}
            one = OrtGradientMultiOutput(
                model, loss=losses, optimizer=with_options(optimizer, lazy_rows=updates == "lazy"), **settings
            )
            fitted[updates, str(optimizer)] = one.fit(ids, y)
    lazy = fitted["lazy", "adamw"]
    assert updates_by_rows(lazy)
    start, absent = onnx.numpy_helper.to_array(model.graph.initializer[0]), np.setdiff1d(np.arange(WORDS), ids)
    assert_array_equal(lazy.weights_["T"][absent], start[absent])
    assert np.abs(fitted["exact", "adamw"].weights_["T"][absent] - start[absent]).max() > 0  # decays
    for name, array in fitted["exact", str(SGD())].weights_.items():
        assert_allclose(fitted["lazy", str(SGD())].weights_[name], array, rtol=0, atol=1e-6)


def test_scikit_learn_metrics_are_refused_with_a_remedy():
    fitted = net().fit(X, TARGETS)
    predictions = fitted.predict(X)
    assert accuracy_score(Y["class"], predictions["class"]) == fitted.output_scores(X, TARGETS)["class"]
    for metric in (accuracy_score, r2_score):
        with pytest.raises(TypeError, match=r"these predictions are a dict by output: \['class', 'number'\]"):
            metric(TARGETS, predictions)
    for scoring in ("accuracy", "r2"):
        with pytest.raises(TypeError, match=r"scoring= of searches and callbacks may be a function"):
            cross_val_score(net(), X, Inputs(TARGETS), scoring=scoring, error_score="raise")
    assert type(pickle.loads(pickle.dumps(predictions))) is dict
    assert isinstance(predictions, dict)
    assert list(fitted.predict_proba(X)) == ["class"]


def test_scores_monitored_by_scikit_learn():
    callback = pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")
    monitor = callback.ScoringMonitor(scoring=lambda estimator, X, y: estimator.output_scores(X, y))
    fitted = net().set_callbacks(monitor).fit(X, TARGETS)
    assert [row["number"] for row in monitor.get_logs().data][-1] == fitted.output_scores(X, TARGETS)["number"]
    with pytest.raises(TypeError, match="these predictions are a dict by output") as caught:
        net().set_callbacks(callback.ScoringMonitor(scoring="accuracy")).fit(X, TARGETS)
    assert len(str(caught.value)) < 500
