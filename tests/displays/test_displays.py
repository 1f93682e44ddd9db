"""Displays: the data, the labels and the marks of the pictures."""

from __future__ import annotations

import sys

import numpy as np
import onnx.parser
import pytest
from matplotlib.figure import Figure
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor, RealMLPClassifier
from onnxtrain_sklearn.callbacks import EpochScoring, GradientStatistics
from onnxtrain_sklearn.displays import TrainingDisplay, WeightsDisplay, plot_graph
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_iris(return_X_y=True)


def axes(panels=1):
    return Figure().subplots(panels, 1, squeeze=False)[:, 0]


@pytest.fixture(scope="module")
def stopped():
    return OrtGradientClassifier(MLP((3,)), early_stopping=True, max_iter=4, random_state=0).fit(X, Y)


def test_training_shows_losses_and_scores(stopped):
    display = TrainingDisplay.of(stopped)
    assert display.losses == [stopped.loss_curve_]
    assert display.validation_scores == [stopped.validation_scores_]
    panels = len(display.panels)
    drawn = TrainingDisplay.from_estimator(stopped, ax=axes(panels), color="black")
    assert [one.get_ylabel() for one in drawn.axes_] == ["loss", "validation score"]
    assert drawn.axes_[0].get_title() == "OrtGradientClassifier"
    assert drawn.axes_[-1].get_xlabel() == "epoch"
    np.testing.assert_array_equal(drawn.lines_[0].get_ydata(), stopped.loss_curve_)
    np.testing.assert_array_equal(drawn.lines_[0].get_xdata(), [1, 2, 3, 4])
    assert drawn.lines_[1].get_color() == "black"
    assert drawn.figure_ is drawn.axes_[0].figure


def test_training_of_pipelines_and_of_given_data():
    net = OrtGradientClassifier(MLP((3,)), max_iter=2, random_state=0)
    pipeline = make_pipeline(StandardScaler(), net).fit(X, Y)
    assert TrainingDisplay.of(pipeline).losses == [pipeline[-1].loss_curve_]
    display = TrainingDisplay([[3.0, -2.0]], learning_rates=[[0.1, 0.2]]).plot(ax=axes(2))
    assert [one.get_ylabel() for one in display.axes_] == ["loss", "learning rate"]
    assert [one.get_yscale() for one in display.axes_] == ["linear", "log"]  # a loss may be negative


@pytest.mark.parametrize("as_frame", [False, True])
def test_a_history_has_further_curves(as_frame):
    callbacks = [EpochScoring("loss"), GradientStatistics()]
    net = OrtGradientClassifier(MLP((3,)), early_stopping=True, learning_rate="cosine", callbacks=callbacks, max_iter=3)
    history = net.fit(X, Y).history_
    given = history.to_frame() if as_frame else history
    display = TrainingDisplay.from_history(given, estimator_name="net", ax=axes(4))
    assert list(display.panels) == ["loss", "validation score", "learning rate", "gradient norm"]
    assert [text.get_text() for text in display.axes_[0].get_legend().get_texts()] == ["training", "validation"]
    keys = ["loss", "validation_loss", "validation_score", "learning_rate", "gradient_norm"]
    for key, line in zip(keys, display.lines_, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), [row[key] for row in history])
    same = TrainingDisplay.of(net)
    assert same.panels == display.panels


def test_a_constant_rate_and_missing_entries():
    rows = [{"loss": 2.0, "learning_rate": 0.1}, {"loss": 1.0, "learning_rate": 0.1, "gradient_norm": 3.0}]
    display = TrainingDisplay.from_history(rows, ax=axes(2))
    assert list(display.panels) == ["loss", "gradient norm"]
    np.testing.assert_array_equal(display.lines_[1].get_ydata(), [np.nan, 3.0])


def test_training_of_an_ensemble_has_a_curve_for_each_network():
    forest = RealMLPClassifier("td", max_iter=2, n_ensembles=2, hidden_layer_sizes=(4,), random_state=0).fit(X, Y)
    display = TrainingDisplay.of(forest)
    assert display.losses == forest.loss_curves_
    display.plot(ax=axes(len(display.panels)))
    assert [text.get_text() for text in display.axes_[0].get_legend().get_texts()] == ["network 1", "network 2"]


def test_wrong_axes_and_unfitted_estimators_are_refused(stopped):
    with pytest.raises(ValueError, match="ax must be 2 axes, for loss and validation score, got 1"):
        TrainingDisplay.from_estimator(stopped, ax=axes(1))
    with pytest.raises(NotFittedError):
        TrainingDisplay.from_estimator(OrtGradientClassifier())


def test_weights_are_boxes_of_their_quartiles():
    net = OrtGradientClassifier(MLP((3,)), max_iter=2, trainable=["*weight*"], random_state=0).fit(X, Y)
    display = WeightsDisplay.from_estimator(net, ax=axes()[0])
    trained = {entry.name for entry in net.describe().of("trained")}
    assert 0 < len(trained) < len(net.weights_)
    gray = [patch.get_facecolor()[0] == patch.get_facecolor()[1] for patch in display.boxes_]
    assert gray == [name not in trained for name in net.weights_]
    for array, patch in zip(net.weights_.values(), display.boxes_, strict=True):
        first, third = np.quantile(array.astype(np.float64), [0.25, 0.75])
        assert patch.get_x() == pytest.approx(first)
        assert patch.get_x() + patch.get_width() == pytest.approx(third)


def plotted_model():
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 3] X) => (float[N, 1] Y)
        <float[3, 2] W = {1, 2, 3, 4, 5, 6}, float[2, 1] V = {1, 2}, float two = {2}>
        { H = MatMul(X, W) S = Pow(H, two) A = Tanh(H) B = Add(S, A) Y = MatMul(B, V) }""")


def test_a_graph_has_layers_shapes_and_marks():
    display = plot_graph(plotted_model(), ax=axes()[0])
    boxes = {box.title: box for box in display.boxes if box.title != "MatMul"}
    assert [box.layer for box in boxes.values()] == [0, 2, 2, 3, 5]
    assert boxes["Pow"].place != boxes["Tanh"].place
    assert not boxes["Pow"].trained  # an exponent is no weight
    products = [box for box in display.boxes if box.title == "MatMul"]
    assert [(box.lines, box.trained) for box in products] == [(("W 3x2",), True), (("V 2x1",), True)]
    assert (0, 1, "Nx3") in display.edges
    assert {text.get_text() for text in display.texts_} == {"\n".join([b.title, *b.lines]) for b in display.boxes}
    assert display.dot.count("fillcolor=orange") == 2


def test_only_trained_parameters_of_an_estimator_are_marked():
    net = OrtGradientClassifier(plotted_model(), trainable=["V"])
    assert plot_graph(net, draw=False).dot.count("orange") == 1
    fitted = net.set_params(max_iter=1).fit(X[:100, :3], Y[:100])
    display = plot_graph(fitted, draw=False)
    assert [box.lines for box in display.boxes if box.trained] == [("V 2x1",)]
    assert {box.title for box in display.boxes if box.kind == "output"} == {"label", "probabilities"}


def test_parameters_of_all_outputs_are_marked():
    """Outputs of labels have none."""
    graph = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 2] X) => (float[N, 2] Y, int64[N] label, float[N, 1] Z) <float[2, 2] V = {1, 2, 3, 4},
        float[2, 1] W = {1, 2}> { Y = MatMul(X, V)  label = ArgMax<axis = 1, keepdims = 0>(Y)  Z = MatMul(X, W) }""")
    marked = [box.title for box in plot_graph(graph, draw=False).boxes if box.color == "orange"]
    assert marked == ["MatMul", "MatMul"]
    del graph.graph.output[2], graph.graph.output[0]
    with pytest.raises(ModelError, match="label"):
        plot_graph(graph, draw=False)


def test_graphs_that_cannot_be_drawn():
    nodes = "".join(f"v{i + 1} = Relu(v{i})\n" for i in range(250))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 2] v0) => (float[N, 1] Y) <float[2, 1] W = {{1, 2}}> {{ {nodes} Y = MatMul(v250, W) }}""")
    with pytest.raises(ValueError, match="give the text in dot to Graphviz"):
        plot_graph(model, ax=axes()[0])
    assert plot_graph(model, draw=False).dot.count("Relu") == 250
    with pytest.raises(TypeError, match="an ONNX graph or an estimator of this package, got int"):
        plot_graph(3)


def test_missing_matplotlib_error_names_the_package(stopped, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        TrainingDisplay.from_estimator(stopped)


@pytest.mark.parametrize("model", [None, "mlp", MLP((3,)), LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])], ids=str)
def test_an_estimator_that_makes_its_graph_is_to_be_fitted_first(model):
    with pytest.raises(NotFittedError, match=r"makes its graph in fit, from model=.*: call fit first"):
        plot_graph(OrtGradientRegressor(model), draw=False)
