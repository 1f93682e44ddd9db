"""Callbacks in the form of ``sklearn.callback``: hooks, order, levels of searches and pipelines, copies, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import FineTuner, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.callbacks import Callback
from tests.helpers.callbacks import Recorder, Scores, net
from tests.helpers.data import blobs, line
from tests.helpers.training import weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
sklearn_has_callbacks = pytest.mark.skipif(
    not hasattr(OrtGradientClassifier, "set_callbacks"), reason="sklearn.callback is of scikit-learn 1.9"
)

X, Y = blobs()
TWO_EPOCHS = [
    "setup", "fit begins", "epoch begins", "epoch 0 ends", "epoch begins", "epoch 1 ends", "fit 0 ends", "teardown",
]  # fmt: skip


def test_hooks_are_called_in_order():
    recorder = Recorder()
    assert weights_equal(net(recorder, max_iter=2).fit(X, Y), net(max_iter=2).fit(X, Y))
    assert recorder.told == TWO_EPOCHS


def test_a_callback_ends_training_and_nothing_is_warned_of(recwarn):
    recorder = Recorder(last=2)
    assert net(recorder, lambda epoch: None).fit(X, Y).n_iter_ == 2
    assert recorder.told == TWO_EPOCHS
    assert not recwarn


def test_a_pass_is_a_task_with_one_epoch():
    recorder = Recorder(last=1)
    passes = net(recorder)
    for _ in range(2):
        passes.partial_fit(X, Y, classes=[0, 1])
    once = ["setup", "partial_fit begins", "epoch begins", "epoch 0 ends", "partial_fit 0 ends", "teardown"]
    assert recorder.told == 2 * once
    assert passes.n_iter_ == 2


def test_a_callback_ends_a_search_on_all_rows():
    recorder = Recorder(last=3)
    regressor = OrtGradientRegressor(optimizer="lbfgs", callbacks=[recorder], max_iter=50)
    assert regressor.fit(*line()).n_iter_ == 3
    by_function = OrtGradientRegressor(optimizer="lbfgs", callbacks=[lambda epoch: epoch.number == 3], max_iter=50)
    assert by_function.fit(*line()).n_iter_ == 3


def test_fine_tuning_tells_of_the_loss_before_and_after():
    X, y = line()
    recorder = Recorder()
    OrtGradientRegressor(Ridge().fit(X, y), finetune=FineTuner(cv=2), callbacks=[recorder]).fit(X, y + 1)
    assert recorder.told[-4:] == ["epoch begins", "epoch 1 ends", "fit 0 ends", "teardown"]


def test_hooks_get_the_rows_and_an_estimator_as_if_training_had_ended():
    scores, weights = Scores(), np.linspace(0, 2, len(X))
    fitted = net(scores, max_iter=2).fit(X, Y, sample_weight=weights)
    (X_1, y_1, metadata, first), (_, _, _, second), (_, _, _, last) = scores.values()
    assert_array_equal(X_1, X[1:])  # the first row weighs nothing
    assert_array_equal(y_1, Y[1:])
    assert_array_equal(metadata["sample_weight"], weights[1:])
    assert weights_equal(first, net(max_iter=1).fit(X, Y, sample_weight=weights))
    assert_array_equal(second.predict(X), fitted.predict(X))
    assert (first.n_iter_, second.n_iter_, last.n_iter_) == (1, 2, 2)
    assert first.partial_fit(X, Y).n_iter_ == 2
    assert not hasattr(fitted, "_training")


def test_rows_that_are_held_out_are_not_among_those_of_the_hooks():
    scores = Scores()
    net(scores, max_iter=1, early_stopping=True, validation_split=0.25).fit(X, list(Y))
    assert {len(rows) for X, y, *_ in scores.values() for rows in (X, y)} == {90}


@pytest.mark.parametrize("hook", ["setup", "on_fit_task_begin", "on_fit_task_end"])
def test_hook_error_leaves_estimator_unfitted_after_teardown(hook):
    def broken(*args, **kwargs):
        raise RuntimeError("no disk")

    first, second = Recorder(), Recorder()
    setattr(second, hook, broken)
    estimator = net(first, second)
    with pytest.raises(RuntimeError, match="no disk"):
        estimator.fit(X, Y)
    assert first.told[-1] == second.told[-1] == "teardown"
    assert not hasattr(estimator, "classes_")
    assert not hasattr(estimator, "_training")


def test_an_error_of_a_teardown_is_raised():
    class Broken(Recorder):
        def teardown(self, estimator, context):
            raise RuntimeError("no disk")

    other = Recorder()
    with pytest.raises(RuntimeError, match="no disk"):
        net(Broken(), other).fit(X, Y)
    assert other.told[-1] == "teardown"


def test_hook_with_unknown_argument_is_refused():
    class Wrong(Recorder):
        def on_fit_task_end(self, estimator, context, *, loss):
            raise AssertionError

    with pytest.raises(TypeError, match=r"asks for \['loss'\], but a hook is given X, y, metadata"):
        net(Wrong()).fit(X, Y)


class Greatest(Callback):
    """An own callback: an entry of the history, and something to remember."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def after_epoch(self, training):
        memory = training.memory(self)
        memory["epochs"] = memory.get("epochs", 0) + 1
        training.row["greatest"] = self.factor * float(abs(training.parameters.vector).max())


def test_callback_records_and_state_travel_with_copies():
    fitted = net(Greatest(), Greatest(2.0), max_iter=2).fit(X, Y)
    assert fitted.callbacks_ == {"Greatest": {"epochs": 2}, "Greatest 2": {"epochs": 2}}
    assert clone(fitted).fit(X, Y).callbacks_ == fitted.callbacks_
    twin = pickle.loads(pickle.dumps(fitted))
    assert twin.history_ == fitted.history_
    twin.partial_fit(X, Y)
    assert twin.callbacks_["Greatest"] == {"epochs": 3}
    assert all(row["greatest"] > 0 for row in twin.history_)
    assert fitted.callbacks_["Greatest"] == {"epochs": 2}


def test_a_warm_start_goes_on_with_the_history():
    fitted = net(Greatest(), max_iter=2, warm_start=True).fit(X, Y).fit(X, Y)
    assert [row["epoch"] for row in fitted.history_] == [1, 2, 3, 4]
    assert fitted.callbacks_["Greatest"] == {"epochs": 4}
    fitted.set_params(warm_start=False).fit(X, Y)
    assert [row["epoch"] for row in fitted.history_] == [1, 2]


@pytest.mark.slow
def test_in_a_search_by_workers_each_estimator_has_its_history():
    pipeline = make_pipeline(StandardScaler(), net(Greatest(), max_iter=2))
    search = GridSearchCV(pipeline, {"ortgradientclassifier__max_iter": [2, 3]}, cv=2, n_jobs=2, error_score="raise")
    found = search.fit(X, Y).best_estimator_[-1]
    assert found.callbacks_ == {"Greatest": {"epochs": found.max_iter}}
    assert all("greatest" in row for row in found.history_)


def test_a_pipeline_does_not_take_callbacks_that_see_the_weights():
    pipeline = make_pipeline(StandardScaler(), net())
    if not hasattr(pipeline, "set_callbacks"):
        pytest.skip("sklearn.callback is of scikit-learn 1.9")
    with pytest.raises(TypeError, match=r"Greatest is for the estimators that train a graph, got Pipeline"):
        pipeline.set_callbacks(Greatest()).fit(X, Y)


@sklearn_has_callbacks
class TestSetByScikitLearn:
    def test_hooks_are_called_as_for_the_parameter(self):
        own, given = Recorder(), Recorder()
        fitted = net(own, max_iter=2).set_callbacks(given, Greatest()).fit(X, Y)
        assert own.told == given.told == TWO_EPOCHS
        assert "greatest" in fitted.history_[-1]
        assert not {"_training", "_callback_fit_ctx"} & vars(fitted).keys()

    def test_hook_ends_training_and_error_runs_teardown(self):
        recorder = Recorder(last=1)
        estimator = net().set_callbacks(recorder)
        assert estimator.fit(X, Y).n_iter_ == 1
        recorder.on_fit_task_begin = None
        with pytest.raises(TypeError):
            estimator.fit(X, Y)
        assert recorder.told[-1] == "teardown"
        assert estimator.n_iter_ == 1

    def test_warnings_name_the_line_of_the_user(self):
        with pytest.warns(ConvergenceWarning) as warned:
            net(Recorder(), max_iter=1).set_callbacks(Recorder()).fit(X, Y)
        assert [one.filename for one in warned] == [__file__]

    def test_clones_share_callbacks_and_pickles_hold_them(self):
        recorder = Recorder()
        estimator = net(max_iter=2).set_callbacks(recorder)
        clone(estimator).fit(X, Y)
        assert recorder.told == TWO_EPOCHS
        twin = pickle.loads(pickle.dumps(estimator.fit(X, Y)))
        assert twin._skl_callbacks[0].told == 2 * TWO_EPOCHS

    @pytest.mark.parametrize("n_jobs", [None, pytest.param(2, marks=pytest.mark.slow)])
    def test_monitor_receives_scores_of_all_levels(self, n_jobs):
        from sklearn.callback import ScoringMonitor

        monitor = ScoringMonitor(scoring="accuracy")
        pipeline = make_pipeline(StandardScaler(), net(max_iter=2).set_callbacks(monitor))
        grid = {"ortgradientclassifier__learning_rate_init": [0.01, 0.1]}
        search = GridSearchCV(pipeline, grid, cv=2, n_jobs=n_jobs).fit(X, Y)
        epochs = [row for row in monitor.get_logs().data if row["task_name"] == "epoch"]
        assert len(epochs) == 2 * (2 * 2 + 1)  # of each candidate and fold, and of the best one on all rows
        assert {len(row["task_id_path"]) for row in epochs} >= {5}
        assert search.score(X, Y) in [row["accuracy"] for row in epochs]

    def test_monitor_works_as_parameter(self):
        from sklearn.callback import ScoringMonitor

        monitor = ScoringMonitor(scoring="accuracy")
        fitted = net(monitor, max_iter=3).fit(X, Y)
        assert [row["task_id_path"] for row in monitor.get_logs().data] == [(0,), (0, 0), (0, 1), (0, 2)]
        assert monitor.get_logs().data[-1]["accuracy"] == fitted.score(X, Y)

    def test_propagated_callback_sees_epochs_within_a_search(self):
        class Propagated(Recorder):
            max_propagation_depth = None

            def on_fit_task_end(self, estimator, context):
                self.told.append((type(estimator).__name__, context.task_name))

        callback = Propagated()
        GridSearchCV(net(max_iter=2), {"alpha": [0.0, 1.0]}, cv=2).set_callbacks(callback).fit(X, Y)
        assert callback.told.count(("OrtGradientClassifier", "epoch")) == 2 * 5
        assert callback.told.count(("OrtGradientClassifier", "fit")) == 5
        assert callback.told.count("setup") == 1


def test_the_history_has_a_row_for_each_epoch():
    fitted = net(learning_rate="exponential").fit(X, Y, X_val=X, y_val=Y)
    rows = fitted.history_
    assert [row["loss"] for row in rows] == fitted.loss_curve_
    assert [row["validation_score"] for row in rows] == fitted.validation_scores_
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows] == [4, 8, 12, 16, 20, 24]
    assert rows[0]["learning_rate"] > rows[-1]["learning_rate"] > 0
    assert all(row["seconds"] > 0 for row in rows)
    rows[0]["loss"] = None  # a copy
    assert fitted.history_[0]["loss"] == fitted.loss_curve_[0]
    with pytest.raises(AttributeError, match="not fitted"):
        _ = net().history_


def test_the_history_is_a_data_frame_where_pandas_is():
    frame = net().fit(X, Y).partial_fit(X, Y).history_.to_frame()
    assert list(frame.columns) == ["epoch", "step", "loss", "learning_rate", "seconds"]
    assert len(frame) == 7
