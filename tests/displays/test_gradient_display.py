"""The display of gradients: norms by layer and epoch, as they were recorded."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientClassifier, RealMLPClassifier
from onnxtrain_sklearn.callbacks import GradientStatistics
from onnxtrain_sklearn.displays import GradientDisplay

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_iris(return_X_y=True)


def axes(panels=1):
    return Figure().subplots(panels, 1, squeeze=False)[:, 0]


def labels(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


@pytest.fixture(scope="module")
def net():
    callbacks = [GradientStatistics(by_parameter=True)]
    return OrtGradientClassifier(MLP((3,)), callbacks=callbacks, max_iter=4, random_state=0).fit(X, Y)


def test_a_layer_is_the_norm_of_its_parameters_together(net):
    display = GradientDisplay.from_estimator(net, ax=axes())
    assert labels(display.axes_[0]) == ["layers.0", "layers.1"]
    for i, layer in enumerate(("layers.0", "layers.1")):
        parts = np.array(
            [[row[f"gradient_norm/{layer}.{kind}"] for kind in ("weight", "bias")] for row in net.history_]
        )
        assert_allclose(display.norms[0][layer], np.linalg.norm(parts, axis=1))
        assert_allclose(display.meshes_[0].get_array()[i], display.norms[0][layer])
    together = np.linalg.norm(list(display.norms[0].values()), axis=0)
    assert_allclose(together, [row["gradient_norm"] for row in net.history_], rtol=1e-5)
    assert isinstance(display.meshes_[0].norm, LogNorm)
    assert display.axes_[0].get_title() == "OrtGradientClassifier"
    assert display.axes_[-1].get_xlabel() == "epoch"
    assert display.axes_[0].get_xlim() == (0.5, 4.5)


def test_parameters_of_pipelines_and_styles(net):
    pipeline = make_pipeline(StandardScaler(), net)
    display = GradientDisplay.from_estimator(pipeline, by="parameter", ax=axes()[0], cmap="gray")
    assert labels(display.axes_[0]) == [name.partition("/")[2] for name in net.history_[0] if "/" in name]
    assert len(labels(display.axes_[0])) == 4
    assert display.meshes_[0].get_cmap().name == "gray"


def test_frames_and_epochs_without_norms(net):
    rows = [{"epoch": 1, "gradient_norm/a.w": 3.0, "gradient_norm/a.b": 4.0}, {"epoch": 2, "gradient_norm/a.w": 0.0}]
    display = GradientDisplay.from_history(rows, ax=axes())
    assert_allclose(display.norms[0]["a"], [5.0, np.nan])
    shown = GradientDisplay.from_history(rows, by="parameter", ax=axes()).meshes_[0].get_array()
    assert shown.mask.tolist() == [[False, True], [False, True]]  # a logarithm has no color for zero
    frame = net.history_.to_frame()
    drawn = GradientDisplay.from_history(frame, ax=axes())
    assert drawn.norms == GradientDisplay.from_estimator(net, ax=axes()).norms
    assert drawn.axes_[0].get_title() == ""


def test_an_ensemble_has_a_panel_for_each_network():
    callbacks = [GradientStatistics(by_parameter=True)]
    ensemble = RealMLPClassifier("td-s", n_ensembles=2, max_iter=2, callbacks=callbacks, random_state=0).fit(X, Y)
    display = GradientDisplay.from_estimator(ensemble, ax=axes(2))
    assert [ax.get_title() for ax in display.axes_] == ["RealMLPClassifier", "network 2"]
    assert all(len(curve) == 2 for one in display.norms for curve in one.values())


def test_wrong_arguments_of_gradient_display_are_refused(net):
    plain = OrtGradientClassifier(callbacks=[GradientStatistics()], max_iter=1, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match=r"GradientStatistics\(by_parameter=True\), which records them"):
        GradientDisplay.from_estimator(plain)
    with pytest.raises(ValueError, match="by must be 'layer' or 'parameter', got 'epoch'"):
        GradientDisplay.from_estimator(net, by="epoch")
    with pytest.raises(ValueError, match="ax must be 1 axes, for the norms of each network, got 2"):
        GradientDisplay.from_estimator(net, ax=axes(2))
