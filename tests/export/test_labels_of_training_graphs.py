"""What steps of exported graphs make of targets that are no class: nothing checks what a loop feeds them."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn.losses import LOSSES
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS, Folder

BATCH = SETTINGS["batch_size"]
X = np.random.default_rng(0).normal(size=(BATCH, 5)).astype(np.float32)


def folder(path, classes=3, **parameters):
    y = np.arange(8 * classes) % classes
    rows = np.random.default_rng(1).normal(size=(len(y), 5)).astype(np.float32)
    model = OrtGradientClassifier(MLP((8,)), **SETTINGS | {"max_iter": 1} | parameters)
    quietly(model.fit, rows, y).export_training(path / "graphs")
    return Folder(path / "graphs")


def target(label):
    """Return classes for a minibatch, one of which is ``label``."""
    return {"X": X, "y": np.r_[label, np.arange(BATCH - 1) % 3].astype(np.int64)}


@pytest.mark.parametrize("loss", [name for name, kind in LOSSES.items() if "multiclass" in kind.tasks])
@pytest.mark.parametrize("label", [-1, -3, 3, 5])
def test_a_label_that_is_no_class_makes_the_loss_nan(loss, label, tmp_path):
    graphs = folder(tmp_path, loss=loss)
    before = graphs.state["parameters"].copy()
    assert np.isfinite(graphs.steps(target(0))).all()
    assert (graphs.state["parameters"] != before).any()
    assert np.isnan(graphs.steps(target(label))).all()


@pytest.mark.parametrize("label", [-7, 6])
def test_a_label_far_from_the_classes_is_refused(label, tmp_path):
    with pytest.raises(InvalidArgument, match="out of data bounds"):
        folder(tmp_path).steps(target(label))


@pytest.mark.parametrize("classes", [65, 256])
@pytest.mark.parametrize("above", [False, True])
def test_a_label_that_is_none_of_many_classes(classes, above, tmp_path):
    """Up to 255 it counts for nothing; of more classes -1 is the last one, and one above is refused."""
    graphs, label = folder(tmp_path, classes), classes if above else -1
    if classes == 256 and above:
        with pytest.raises(InvalidArgument, match="out of data bounds"):
            graphs.steps(target(label))
        return
    assert np.isfinite(graphs.steps(target(label))).all()
