"""What notebooks show: links to the documentation, and curves and graph that unfold, with all text escaped."""

from __future__ import annotations

import inspect
import re
import xml.etree.ElementTree as ET

import numpy as np
import onnx.parser
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPClassifier,
    TabMRegressor,
)
from onnxtrain_sklearn._estimators import html
from onnxtrain_sklearn._estimators.html import curves_svg
from onnxtrain_sklearn.callbacks import EpochScoring
from onnxtrain_sklearn.displays import plot_graph
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.several_outputs import data, graph

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_iris(return_X_y=True)
NET = OrtGradientClassifier(MLP((3,)), max_iter=3, random_state=0)
HAS_TABLES = hasattr(OrtGradientClassifier, "_get_params_html")  # scikit-learn's, with links, from 1.7 on


def pictures(estimator):
    """The drawings in what a notebook shows, as XML, after scikit-learn's part."""
    text = estimator._repr_mimebundle_()["text/html"]
    assert text.endswith(html.pictures(estimator))
    assert estimator._repr_html_() != ""
    parts = html.pictures(estimator).split("<svg")[1:]
    return [ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>") for part in parts]


def texts(svg):
    return [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(html, "documentation_url", lambda: "https://docs.example/stable/")


def test_curves_and_graph_of_a_fitted_estimator_unfold():
    fitted = clone(NET).set_params(callbacks=[EpochScoring("loss")]).fit(X, Y, X_val=X, y_val=Y)
    shown = fitted._repr_html_()
    assert shown.count("<summary>Training</summary>") == shown.count("<summary>Graph</summary>") == 1
    losses, scores, graph = pictures(fitted)
    assert {"loss", "validation loss", "epoch 3"} < set(texts(losses))
    assert {"validation score"} < set(texts(scores))
    assert {"X", "float Nx4", "Gemm", "layers.0.weight 4x3", "label", "probabilities"} < set(texts(graph))
    orange = [node for node in graph.iter() if node.get("fill") == "orange"]
    assert len(orange) == 2


def test_the_curve_is_that_of_the_losses():
    values = [8.0, 4.0, 2.0, 1.0]
    path = next(
        node.get("d") for node in ET.fromstring(curves_svg({"loss": values})).iter() if node.get("stroke-width")
    )
    places = [float(point.split()[1]) for point in path.removeprefix("M").split(" L")]
    assert places == [10.0, 60.0, 110.0, 160.0]  # a logarithmic scale


@pytest.mark.parametrize("values", [[], [np.nan], [1.0], [2.0, np.nan, -3.0, np.inf, 1.0], [0.0] * 3, range(9000)])
def test_curves_of_any_numbers_are_drawings(values):
    drawn = curves_svg({"loss": list(values), "a < b": []})
    root = ET.fromstring(drawn)
    assert "a < b" in texts(root)
    assert "nan" not in drawn
    assert "inf" not in drawn.replace("infinite", "")
    assert len(drawn) < 20_000


def test_before_fit_there_are_none():
    assert "<summary>Training" not in NET._repr_html_()
    assert html.pictures(NET) == ""


@pytest.mark.long
@pytest.mark.parametrize(("kind", "options"), [(RealMLPClassifier, {}), (TabMRegressor, {"n_members": 2})])
def test_recipes_show_each_network(kind, options):
    small = {"hidden_layer_sizes": (4,), "max_iter": 2, "random_state": 0, **options}
    fitted = kind(n_ensembles=2, **small).fit(X, Y)
    losses, scores, *_ = pictures(fitted)
    assert {"loss of network 1", "loss of network 2"} < set(texts(losses))
    assert {"validation score of network 1", "validation score of network 2"} < set(texts(scores))
    assert "orange" in plot_graph(fitted, draw=False).svg


def test_several_outputs_have_a_graph():
    rows, targets = data(20)
    losses = {"class": "log_loss", "number": "squared_error"}
    fitted = OrtGradientMultiOutput(graph(list(losses)), loss=losses, max_iter=1).fit(
        rows, {name: targets[name] for name in losses}
    )
    *_, drawn = pictures(fitted)
    assert {"X", "number", "class_label"} < set(texts(drawn))


def test_large_and_unexportable_graphs_are_named():
    nodes = "".join(f"v{i + 1} = Relu(v{i})\n" for i in range(210))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 4] v0) => (float[N, 1] Y) <float[4, 1] W = {{1, 2, 3, 4}}> {{ {nodes} Y = MatMul(v210, W) }}""")
    assert "too many to be read" in html.pictures(OrtGradientRegressor(model, max_iter=1).fit(X, Y))
    fitted = clone(NET).fit(X, Y)

    def refuse():
        raise ModelError("no tensors for <labels>")

    fitted.to_onnx = refuse
    assert "no tensors for &lt;labels&gt;" in html.pictures(fitted)


def test_all_text_is_escaped():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        net (float[N, 4] X) => (float[N, 1] Y) <float[4, 1] W = {1, 2, 3, 4}> { Y = MatMul(X, W) }""")
    for name, other in (("X", "<b>x</b>"), ("W", "</svg><script>w</script>")):
        for node in model.graph.node:
            node.input[:] = [other if one == name else one for one in node.input]
    model.graph.input[0].name, model.graph.initializer[0].name = "<b>x</b>", "</svg><script>w</script>"
    shown = OrtGradientRegressor(model, max_iter=1).fit(X, Y)._repr_html_()
    assert "<script>w" not in shown
    assert "<b>x" not in shown
    assert "&lt;script&gt;w" in shown


def test_without_an_address_there_are_no_links(monkeypatch):
    monkeypatch.setattr(html, "documentation_url", lambda: None)
    assert NET._get_doc_link() == ""
    assert ".html" not in html.pictures(NET)


@pytest.mark.parametrize("estimator", [NET, OrtGradientRegressor(), RealMLPClassifier(), OrtGradientMultiOutput()])
def test_estimators_link_to_their_page(estimator, address):
    page = f"https://docs.example/stable/api/generated/onnxtrain_sklearn.{type(estimator).__name__}.html"
    assert estimator._get_doc_link() == page
    shown = estimator._repr_html_()
    assert f'href="{page}"' in shown
    if HAS_TABLES:
        assert shown.count(f'href="{page}#') == len(estimator.get_params(deep=False))


def test_foreign_classes_have_no_page_and_steps_are_linked(address):
    class Own(OrtGradientClassifier):
        pass

    assert Own()._get_doc_link() == ""
    assert "onnxtrain_sklearn.OrtGradientClassifier.html" in make_pipeline(StandardScaler(), NET)._repr_html_()


def test_as_text_there_is_no_html():
    with sklearn.config_context(display="text"):
        assert not hasattr(NET, "_repr_html_")
        assert list(NET._repr_mimebundle_()) == ["text/plain"]


def test_the_address_is_that_of_the_metadata(monkeypatch):
    from email.message import Message

    declared = Message()
    for entry in ("Homepage, https://home.example", "Documentation, https://docs.example/a,b"):
        declared["Project-URL"] = entry
    monkeypatch.setattr(html.metadata, "metadata", lambda name: declared)
    assert html.documentation_url.__wrapped__() == "https://docs.example/a,b"
    monkeypatch.setattr(html.metadata, "metadata", lambda name: Message())
    assert html.documentation_url.__wrapped__() is None


def test_graphs_are_svg_without_matplotlib():
    svg = ET.fromstring(plot_graph(OrtGradientRegressor(Linear()).fit(X, Y), draw=False).svg)
    assert {"Gemm", "weight 4x1", "Nx4"} < set(texts(svg))


@pytest.mark.parametrize("estimator", [OrtGradientRegressor(), RealMLPClassifier()], ids=lambda one: type(one).__name__)
def test_the_meaning_of_each_parameter_unfolds(estimator, monkeypatch):
    monkeypatch.setattr(html, "documentation_url", lambda: None)
    text = estimator._repr_html_()
    assert "What the parameters mean" in text
    told = re.findall(r"<dt><code>(.*?)</code>: .+?</dt><dd>(.+?)</dd>", text, re.DOTALL)
    assert [name for name, _ in told] == list(inspect.signature(type(estimator)).parameters)
    assert not any("`" in meaning or "<" in meaning for _, meaning in told)
    monkeypatch.setattr(html, "documentation_url", lambda: "https://docs.example")
    assert "What the parameters mean" not in estimator._repr_html_()
