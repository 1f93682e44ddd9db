"""Callbacks of the estimators for raw tables: their networks take them, as levels of the recipe."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, TabMClassifier, TabMRegressor
from onnxtrain_sklearn.callbacks import Checkpoint, EpochScoring
from tests.helpers.callbacks import Recorder
from tests.helpers.data import blobs, line

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()
KINDS = [RealMLPClassifier, RealMLPRegressor, TabMClassifier, TabMRegressor]


def small(kind, **parameters):
    own = {"n_members": 2} if "TabM" in kind.__name__ else {"variant": "td-s"}
    return kind(**{"hidden_layer_sizes": (4,), "max_iter": 2, "random_state": 0} | own | parameters)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_networks_of_a_recipe_take_callbacks_and_have_a_history(kind, tmp_path):
    data = (X, Y) if "Classifier" in kind.__name__ else line()
    recorder = Recorder()
    callbacks = [EpochScoring("loss"), recorder, Checkpoint(tmp_path)]
    fitted = small(kind, callbacks=callbacks, n_ensembles=2).fit(*data)
    assert [(row["network"], row["epoch"]) for row in fitted.history_] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row["loss"] for row in fitted.history_] == [loss for curve in fitted.loss_curves_ for loss in curve]
    assert all(row["validation_loss"] > 0 for row in fitted.history_)
    assert recorder.told.count("epoch begins") == 4
    assert [list(memories) for memories in fitted.callbacks_] == [["Checkpoint"]] * 2  # which alone keeps a memory
    steps = []
    again = small(kind, callbacks=[EpochScoring("loss"), Checkpoint(tmp_path), steps.append], n_ensembles=2).fit(*data)
    assert np.array_equal(again.predict(data[0]), fitted.predict(data[0]))
    assert steps == []
    assert pickle.loads(pickle.dumps(again)).history_ == again.history_
    assert list(again.history_.to_frame()["network"]) == [0, 0, 1, 1]
    with pytest.raises(AttributeError, match="not fitted"):
        _ = kind().history_


@pytest.mark.skipif(not hasattr(RealMLPClassifier, "set_callbacks"), reason="of scikit-learn 1.9")
def test_levels_of_a_recipe():
    from sklearn.callback import ScoringMonitor

    class Propagated(Recorder):
        max_propagation_depth = None

        def on_fit_task_end(self, estimator, context):
            self.told.append((type(estimator).__name__, context.task_name))

    monitor, bar, scores = ScoringMonitor(scoring="accuracy"), Propagated(), EpochScoring("loss")
    estimator = small(RealMLPClassifier, n_ensembles=2).set_callbacks(monitor, bar, scores)
    fitted = clone(estimator).fit(X, Y)
    network = [("OrtGradientClassifier", name) for name in ("epoch", "epoch", "fit")]
    assert [one for one in bar.told if isinstance(one, tuple)] == [*network, *network, ("RealMLPClassifier", "fit")]
    assert (bar.told[0], bar.told[-1], bar.told.count("setup")) == ("setup", "teardown", 1)
    rows = monitor.get_logs().data
    assert [row["task_id_path"] for row in rows] == [(0, 0), (0, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert "validation_loss" in fitted.history_[0]
    assert fitted._skl_callbacks == [monitor, bar, scores]
    assert not {"_callback_fit_ctx", "_parent_callback_ctx"} & vars(fitted).keys()
