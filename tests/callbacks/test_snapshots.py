"""Snapshots of one training predict together: their mean, in one graph, in copies, and until training goes on."""

from __future__ import annotations

import copy
import io
import pickle

import joblib
import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPClassifier,
    TabM,
)
from onnxtrain_sklearn.callbacks import Checkpoint, SnapshotEnsemble, WeightAveraging
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.callbacks import net
from tests.helpers.data import blobs, line
from tests.helpers.environment import each_engine
from tests.helpers.several_outputs import data, graph
from tests.helpers.step_options import configured
from tests.helpers.training import weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()
SIX = {"max_iter": 6, "n_iter_no_change": np.inf}
LABELS = {
    "two classes": (OrtGradientClassifier, Y),
    "three classes": (OrtGradientClassifier, np.array(["a", "b", "c"])[np.arange(len(X)) % 3]),
    "tags": (OrtGradientClassifier, np.c_[Y, 1 - Y, Y]),
    "labels": (OrtGradientClassifier, np.array(["a", "b", "c"])[np.c_[Y, np.arange(len(X)) % 3]]),
    "numbers": (OrtGradientRegressor, X @ np.ones((X.shape[1], 2))),
    "number": (OrtGradientRegressor, X.sum(axis=1) * 100 + 500),
}


class Kept:
    """Keeps the estimator at the end of some epochs."""

    def __init__(self, epochs):
        self.epochs, self.found = epochs, []

    def setup(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        if context.task_name == "epoch" and context.task_id + 1 in self.epochs:
            self.found.append(copy.deepcopy(fitted_estimator))

    def teardown(self, estimator, context):
        pass


def ensemble(kind=OrtGradientClassifier, *more, cycles=3, **parameters):
    settings = {"model": MLP((6,)), "batch_size": 32, "learning_rate_init": 0.05, "random_state": 0, **SIX}
    return configured(kind(callbacks=[SnapshotEnsemble(cycles), *more]), **settings | parameters)


def probabilities(estimator, data):
    found = estimator.predict_proba(data)
    return np.concatenate(found, axis=1) if isinstance(found, list) else found


@each_engine
@pytest.mark.parametrize("case", LABELS)
def test_predictions_are_the_mean_of_the_snapshots(case, engine):
    kind, y = LABELS[case]
    kept = Kept([2, 4, 6])
    fitted = ensemble(kind, kept, engine=engine).fit(X, y)
    assert len(kept.found) == 3
    if kind is OrtGradientRegressor:
        wanted = np.mean([one.predict(X) for one in kept.found], axis=0)
        assert_allclose(fitted.predict(X), wanted, rtol=2e-5, atol=1e-5)
        assert fitted.predict(X).shape == y.shape
        return
    wanted = np.mean([probabilities(one, X) for one in kept.found], axis=0)
    assert_allclose(probabilities(fitted, X), wanted, rtol=2e-5, atol=1e-6)
    assert np.abs(probabilities(kept.found[0], X) - wanted).max() > 1e-3
    assert fitted.predict(X).shape == y.shape
    if y.ndim == 1:
        even = np.sort(wanted, axis=1)[:, -1] - np.sort(wanted, axis=1)[:, -2] < 1e-5
        assert_array_equal(fitted.predict(X)[~even], fitted.classes_[wanted.argmax(axis=1)][~even])


def test_the_rate_falls_in_cycles_and_the_last_snapshots_predict():
    fitted = ensemble(cycles=3, max_iter=7).fit(X, Y)
    assert fitted.callbacks_["SnapshotEnsemble"] == {"epochs": [2, 4, 7]}
    rates = np.array([row["learning_rate"] for row in fitted.history_])
    steps, within = 4, {2: 8, 4: 8, 7: 12}
    begun = {1: 0, 2: 0, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4}
    for epoch, rate in enumerate(rates, start=1):
        size = within[min(end for end in within if end >= epoch)]
        last = (epoch - begun[epoch]) * steps - 1
        assert rate == pytest.approx(0.05 * (1 + np.cos(np.pi * last / size)) / 2)
    kept = Kept([4, 7])
    two = net(SnapshotEnsemble(3, last=2), kept, max_iter=7, n_iter_no_change=np.inf).fit(X, Y)
    assert_allclose(two.predict_proba(X), np.mean([one.predict_proba(X) for one in kept.found], axis=0), rtol=1e-5)


def test_the_graph_holds_all_and_copies_predict_the_same():
    fitted = ensemble().fit(X, Y)
    model = fitted.to_onnx()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = X.astype(np.float32)
    label, p = session.run(None, {session.get_inputs()[0].name: rows})
    assert_array_equal(label, fitted.predict(rows))
    assert_array_equal(p, fitted.predict_proba(rows))
    sizes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    assert {f"{i}.{name}": array.shape for i in range(3) for name, array in fitted.weights_.items()} == sizes
    file = io.BytesIO()
    joblib.dump(fitted, file)
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted), joblib.load(io.BytesIO(file.getvalue()))):
        assert_array_equal(twin.predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(clone(fitted).fit(X, Y).predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(fitted.predict_proba(X[:1]), fitted.predict_proba(X)[:1])
    assert_allclose(fitted.predict_proba(csr_array(X)), fitted.predict_proba(X), rtol=1e-5, atol=1e-7)


def test_skl2onnx_converts_all_snapshots():
    skl2onnx = pytest.importorskip("skl2onnx")
    pipeline = make_pipeline(StandardScaler(), ensemble()).fit(X, Y)
    rows = X.astype(np.float32)
    options = {id(pipeline[-1]): {"zipmap": False}}
    converted = skl2onnx.to_onnx(pipeline, rows[:1], options=options, target_opset=18)
    session = onnxruntime.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(None, {"X": rows})[1], pipeline.predict_proba(X), atol=1e-5)


def test_training_that_goes_on_ends_the_ensemble():
    fitted = ensemble(warm_start=True).fit(X, Y)
    together = fitted.predict_proba(X)
    alone = OrtGradientClassifier(MLP((6,)), random_state=0).partial_fit(X, Y, classes=[0, 1])
    assert_array_equal(alone.load_state(fitted.weights_).predict_proba(X), last_alone(fitted))
    passed = copy.deepcopy(fitted).partial_fit(X, Y)
    assert_array_equal(passed.predict_proba(X), last_alone(passed))
    again = fitted.fit(X, Y)
    assert again.callbacks_["SnapshotEnsemble"] == {"epochs": [8, 10, 12]}
    assert np.abs(again.predict_proba(X) - together).max() > 1e-4
    again.set_params(callbacks=None, max_iter=1).fit(X, Y)
    assert_array_equal(again.predict_proba(X), last_alone(again))
    loaded = ensemble().fit(X, Y)
    assert_array_equal(loaded.load_state(loaded.weights_).predict_proba(X), last_alone(loaded))


def last_alone(estimator):
    """The probabilities by ``weights_``, computed in NumPy's float64."""
    twin = OrtGradientClassifier(MLP((6,)), random_state=1).partial_fit(X, Y, classes=[0, 1])
    return twin.load_state(estimator.weights_).predict_proba(X)


def test_a_training_that_ends_early_has_no_ensemble():
    with pytest.warns(UserWarning, match="Training ended after 3 epochs, before the second of 3 cycles did"):
        fitted = ensemble(OrtGradientClassifier, lambda epoch: epoch.number == 3).fit(X, Y)
    assert_array_equal(fitted.predict_proba(X), last_alone(fitted))


def test_a_checkpoint_holds_the_snapshots(tmp_path):
    class Crash(Exception):
        pass

    def crash(epoch):
        if epoch.number == 5:
            raise Crash

    with pytest.raises(Crash):
        ensemble(OrtGradientClassifier, Checkpoint(tmp_path), crash).fit(X, Y)
    steps = []
    resumed = ensemble(OrtGradientClassifier, Checkpoint(tmp_path), steps.append).fit(X, Y)
    whole = ensemble().fit(X, Y)
    assert [epoch.number for epoch in steps] == [5, 6]
    assert weights_equal(resumed, whole)
    assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))
    assert [row["learning_rate"] for row in resumed.history_] == [row["learning_rate"] for row in whole.history_]


@pytest.mark.long
def test_statistics_and_averages_are_those_of_the_moment():
    model = MLP((6,), normalization="batch")
    kept = Kept([2, 4, 6])
    fitted = ensemble(OrtGradientClassifier, kept, model=model, optimizer__ema_decay=0.9, engine="portable").fit(X, Y)
    wanted = np.mean([one.predict_proba(X) for one in kept.found], axis=0)
    assert_allclose(fitted.predict_proba(X), wanted, rtol=2e-5, atol=1e-6)


def test_a_fitted_model_may_be_one_but_is_not_given_back():
    rows, target = line()
    fitted = ensemble(OrtGradientRegressor, model=Ridge().fit(rows, target), learning_rate_init=0.1).fit(rows, target)
    assert fitted.predict(rows).shape == target.shape
    with pytest.raises(ModelError, match=r"SnapshotEnsemble predicts by several: use to_onnx\(\)"):
        fitted.to_sklearn()
    linear = ensemble(OrtGradientRegressor, model=Linear()).fit(rows, target)
    assert not hasattr(linear, "coef_")


REFUSED = {
    "schedule": (ensemble(learning_rate="cosine"), "needs learning_rate='constant' and n_iter_no_change=np.inf"),
    "plateaus": (ensemble(n_iter_no_change=10), "and n_iter_no_change=10"),
    "few epochs": (ensemble(max_iter=2), "3 cycles need as many epochs, but max_iter=2: raise it"),
    "one cycle": (ensemble(cycles=1), "The 'cycles' parameter of SnapshotEnsemble must be an int in the range"),
    "averages": (ensemble(OrtGradientClassifier, WeightAveraging()), "choose one"),
    "members": (ensemble(model=TabM(4, (3,))), "its graph is an ensemble already"),
    "recipe": (RealMLPClassifier(callbacks=[SnapshotEnsemble()]), "needs learning_rate='constant'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_snapshots_of_a_schedule_without_cycles_are_refused(case):
    estimator, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, Y)


def test_other_trainings_are_refused():
    with pytest.raises(ValueError, match="training in minibatches: L-BFGS and fine-tuning"):
        ensemble(OrtGradientRegressor, optimizer="lbfgs").fit(*line())
    rows, targets = data(30)
    losses = {"class": "log_loss", "number": "squared_error"}
    several = ensemble(OrtGradientMultiOutput, model=graph(list(losses)), loss=losses)
    with pytest.raises(ValueError, match="its graph has several outputs"):
        several.fit(rows, {name: targets[name] for name in losses})


def test_snapshots_have_no_coefficients():
    fitted = ensemble(model=Linear()).fit(X, Y)
    with pytest.raises(AttributeError, match="has no coef_: it predicts by the mean of several snapshots"):
        _ = fitted.coef_


def test_an_adapter_is_for_one_network(tmp_path):
    fitted = ensemble().fit(X, Y)
    for save in (lambda: fitted.save_adapter(tmp_path / "a.onnx_adapter"), lambda: fitted.to_onnx(adapter=True)):
        with pytest.raises(
            ModelError, match="An adapter is for one network, and a SnapshotEnsemble predicts by several"
        ):
            save()
