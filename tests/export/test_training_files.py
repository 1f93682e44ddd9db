"""Exported training graphs go on exactly as the estimator does, in plain onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain_sklearn import (
    LBFGS,
    MLP,
    SGD,
    Adagrad,
    AdamW,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RMSprop,
    export_training,
    load_training,
)
from onnxtrain_sklearn.classic.optimizers import OrtAdamW
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import LOSSES
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer, minimum, sqrt, where
from tests.helpers.step_options import configured, with_options
from tests.helpers.training import quietly
from tests.helpers.training_graphs import SETTINGS, Folder, goes_on

ROWS = 40  # the last of three minibatches is padded


def rows(task: str, n: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    score = X @ rng.normal(size=5)
    if task == "regression":
        return X, np.exp(0.3 * score)
    return X, (score > 0).astype(int) if task == "binary" else np.digitize(score, [-1, 1])


def classifier(**parameters) -> OrtGradientClassifier:
    return configured(OrtGradientClassifier(MLP((8,))), **SETTINGS | parameters)


def regressor(**parameters) -> OrtGradientRegressor:
    return configured(OrtGradientRegressor(MLP((8,))), **SETTINGS | parameters)


class Sharper(AdamW):
    """The scalars of a user: a constant, a condition, a minimum."""

    def scalars(self, learning_rate, t):
        rate = where(t < 3, 0.5 * learning_rate, minimum(learning_rate, 1.0 / sqrt(t)))
        return {**super().scalars(rate, t), "epsilon": 1e-3}


STEPS = [kind() for kind in OPTIMIZERS.values() if issubclass(kind, Optimizer)] + [
    SGD(momentum=0.9, dampening=0.5, weight_decay=0.01),
    SGD(momentum=0.9, nesterov=True),
    Adagrad(lr_decay=0.1, initial_accumulator_value=0.5),
    RMSprop(momentum=0.5, centered=True),
    OrtAdamW(weight_decay=0.01),
    Sharper(),
]


@pytest.mark.parametrize("optimizer", STEPS, ids=repr)
def test_optimizers_go_on(optimizer, tmp_path):
    goes_on(classifier(optimizer=optimizer, learning_rate_init=0.003), *rows("multiclass"), tmp_path)


@pytest.mark.parametrize("optimizer", STEPS, ids=repr)
def test_scalars_in_the_graph_are_those_of_python(optimizer, tmp_path):
    """Also after many steps, where a wrong formula of a bias correction would differ most from the first ones."""
    model = classifier(optimizer=optimizer).partial_fit(*rows("multiclass"), classes=[0, 1, 2])
    model._state.optimizer_state.t = 5000
    goes_on_from(model, tmp_path)


def goes_on_from(model, tmp_path) -> None:
    X, y = rows("multiclass", 16)
    model.export_training(tmp_path / "folder", form="step")
    folder = Folder(tmp_path / "folder")
    folder.steps({"X": X, "y": y})
    model.partial_fit(X, y)
    np.testing.assert_allclose(folder.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)
    assert folder.state["step"] == model._state.optimizer_state.t


@pytest.mark.parametrize(
    ("loss", "task"),
    [
        (name, task)
        for name, kind in LOSSES.items()
        for task in sorted(kind.tasks)
        if task != "multilabel" and kind().targets == "labels"
    ],
)
def test_losses_go_on(loss, task, tmp_path):
    make = regressor if task == "regression" else classifier
    X, y = rows(task)
    y = X.copy() if loss == "reconstruction" else y
    goes_on(make(loss=loss, learning_rate_init=0.001), X, y, tmp_path, tolerance=2e-6)


@pytest.mark.parametrize(
    "parameters",
    [
        {"alpha": 0.1, "l1_ratio": 0.3},
        {"optimizer__max_grad_norm": 0.1},
        {"optimizer__ema_decay": 0.8},
        {"optimizer__learning_rate_factors": {"layers.0.*": 0.1}, "optimizer__weight_decay_factors": {"*bias": 0.0}},
        {"optimizer": SGD(), "alpha": 0.1},
    ],
    ids=str,
)
def test_settings_go_on(parameters, tmp_path):
    """With weights of the rows, by which the penalty is divided."""
    X, y = rows("multiclass")
    goes_on(classifier(**parameters), X, y, tmp_path, np.linspace(0.5, 2, len(X)).astype(np.float32))


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_class_weights_go_on(task, tmp_path):
    """The graph multiplies them into the weights of the rows, by which the penalty is divided."""
    X, y = rows(task)
    weights = np.linspace(0.5, 2, len(X)).astype(np.float32)
    folder = goes_on(classifier(class_weight={0: 0.2, 1: 5.0}, alpha=0.1), X, y, tmp_path, weights)
    assert folder.manifest["target"]["label_weights"] == [0.2, 5.0, 1.0][: 2 + (task == "multiclass")]


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("fitted", [True, False])
def test_balanced_classes_go_on(task, fitted, tmp_path):
    """With the weights that the rows of the fit, or of the export, came to."""
    X, y = rows(task)
    y[: len(y) // 2] = 0
    weights = np.linspace(0.5, 2, len(X)).astype(np.float32)
    model = classifier(class_weight="balanced", alpha=0, max_iter=1)
    if fitted:
        quietly(model.fit, X, y, weights).export_training(tmp_path / "folder")
    else:
        model.export_training(tmp_path / "folder", X, y)
        weights = None
    folder = Folder(tmp_path / "folder")
    found = folder.manifest["target"]["label_weights"]
    totals = np.bincount(y, weights)
    np.testing.assert_allclose(found, totals.sum() / len(totals) / totals, rtol=1e-12)
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(X, y, weights)
    quietly(model.set_params(warm_start=fitted, max_iter=1).fit, X, y, weights)
    np.testing.assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)
    np.testing.assert_allclose(training.loss_curve_[-1], model.loss_, rtol=1e-5)


def test_balanced_weights_of_another_fit_are_not_known(tmp_path):
    model = quietly(classifier().fit, *rows("binary")).set_params(class_weight="balanced")
    with pytest.raises(ModelError, match="which this estimator was not fitted with: call fit again, or give a dict"):
        model.export_training(tmp_path / "folder")


@pytest.mark.parametrize("class_weight", [None, {0: 0.2, 1: 5.0}, "balanced"], ids=str)
@pytest.mark.parametrize("given", [None, np.linspace(0.5, 2, ROWS)], ids=["", "weights"])
def test_labels_that_do_not_count_go_on(class_weight, given, tmp_path):
    """A row weighs as its labels that count."""
    X = np.random.default_rng(0).normal(size=(ROWS, 4, 5)).astype(np.float32)
    y = np.digitize(X.sum(axis=2), [-1, 1])
    y[:20, 1:] = -100
    graph = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4, 5] X) => (float[N, 4, 3] Y)
        <float[5, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> { Y = MatMul(X, W) }"""
    model = configured(OrtGradientClassifier(onnx.parser.parse_model(graph), class_weight=class_weight), **SETTINGS)
    quietly(model.fit, X, y, given).export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(X, y, given)
    if class_weight == "balanced":
        quietly(model.set_params(warm_start=True, max_iter=1).fit, X, y, given)
    else:
        model.partial_fit(X, y, sample_weight=given)
    np.testing.assert_allclose(training.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)
    np.testing.assert_allclose(training.loss_curve_[-1], model.loss_, rtol=1e-5)


def test_class_weights_of_several_labels_are_refused(tmp_path):
    X, y = rows("multiclass")
    model = quietly(classifier(class_weight="balanced").fit, X, np.eye(3, dtype=int)[y])
    model.set_params(class_weight=[{0: 1, 1: 2}] * 3)
    with pytest.raises(ModelError, match="rows by one label, and these have several: set class_weight=None"):
        model.export_training(tmp_path / "folder")


@pytest.mark.parametrize("optimizer", [one for one in STEPS if not isinstance(one, OrtAdamW)], ids=repr)
def test_graphs_for_the_web_have_no_float64(optimizer, tmp_path):
    X, y = rows("multiclass")
    settings = {"optimizer": with_options(optimizer, max_grad_norm=1.0, ema_decay=0.9), "learning_rate_init": 0.003}
    model = quietly(classifier(**settings).fit, X, y)
    model.export_training(tmp_path / "folder", target="web")
    for name in ("step", "epoch"):
        content = onnx.load(tmp_path / "folder" / f"{name}.onnx")
        assert onnx.TensorProto.DOUBLE not in types_of(content.graph)
    folder = Folder(tmp_path / "folder")
    for _ in range(5):
        folder.steps({"X": X, "y": y})
        model.partial_fit(X, y)
    np.testing.assert_allclose(folder.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-5)


def types_of(graph: onnx.GraphProto) -> set[int]:
    """Return the types of tensors in a graph and the graphs within it, and those that Cast gives."""
    found = {tensor.data_type for tensor in graph.initializer}
    found |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        found |= {attribute.i} if attribute.name == "to" else {attribute.t.data_type}
        found |= types_of(attribute.g) if attribute.type == onnx.AttributeProto.GRAPH else set()
    return found


class InDouble(Optimizer):
    def update(self, op, p, g, state, k):
        exact = op.Cast(g, to=ir.DataType.DOUBLE)
        return op.Sub(p, op.Mul(op.Cast(exact, to=op.dtype), k["learning_rate"])), {}


def test_target(tmp_path):
    with pytest.raises(ModelError, match=r"InDouble, computes in it\. Change the optimizer, or take target='any'"):
        classifier(optimizer=InDouble()).export_training(tmp_path / "folder", *rows("multiclass"), target="web")
    with pytest.raises(ValueError, match="target must be one of 'any', 'web', got 'gpu'"):
        classifier().export_training(tmp_path / "folder", *rows("multiclass"), target="gpu")


@pytest.mark.parametrize("form", ["step", "epoch"])
def test_form(form, tmp_path):
    classifier().partial_fit(*rows("binary"), classes=[0, 1]).export_training(tmp_path / "one", form=form)
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        f"{form}.onnx", "predict.onnx", "state.safetensors", "manifest.json"
    }  # fmt: skip


def test_size_of_a_step(tmp_path):
    X, y = rows("multiclass")
    quietly(classifier(optimizer__max_grad_norm=1.0).fit, X, y).export_training(tmp_path / "folder")
    assert (tmp_path / "folder" / "step.onnx").stat().st_size < 10_000


def test_a_model_that_is_not_fitted_is_exported_untrained(tmp_path):
    X, y = rows("multiclass")
    model = classifier(alpha=0, max_iter=1)
    model.export_training(tmp_path / "folder", X, y, batch_size=8)
    assert not hasattr(model, "classes_")
    folder = Folder(tmp_path / "folder")
    assert folder.manifest["batch_size"] == 8
    assert folder.state["step"] == 0
    folder.steps({"X": X, "y": y})
    quietly(model.set_params(batch_size=8).fit, X, y)
    np.testing.assert_allclose(folder.state["parameters"], model._state.parameters.vector, rtol=0, atol=1e-6)


def test_targets_by_name_are_refused_where_there_is_one(tmp_path):
    X, y = rows("multiclass")
    classifier(max_iter=1).export_training(tmp_path / "folder", X, y, batch_size=8)
    with pytest.raises(ValueError, match="one target, but y is a dict: give its values alone"):
        load_training(tmp_path / "folder").partial_fit(X, {"y": y})
    with pytest.raises(ValueError, match="one target, but sample_weight is a dict: give a number for each row"):
        load_training(tmp_path / "folder").partial_fit(X, y, sample_weight={"y": np.ones(len(y))})


def test_the_function_takes_estimators_and_models(tmp_path):
    X, y = rows("multiclass")
    given = MLP((8,)).build(n_features=5, n_outputs=3, random_state=0)
    export_training(given, tmp_path / "model", X, y, optimizer="sgd", batch_size=16)
    export_training(OrtGradientClassifier(given, optimizer="sgd"), tmp_path / "estimator", X, y, batch_size=16)
    one, other = (Folder(tmp_path / name) for name in ("model", "estimator"))
    np.testing.assert_array_equal(one.state["parameters"], other.state["parameters"])
    assert one.manifest["files"]["step.onnx"] == other.manifest["files"]["step.onnx"]
    with pytest.raises(TypeError, match="optimizer is a parameter of the estimator"):
        export_training(OrtGradientClassifier(given), tmp_path / "never", X, y, optimizer="sgd")
    with pytest.raises(ValueError, match="X and y must be some rows of data"):
        export_training(given, tmp_path / "never")
    with pytest.raises(ModelError):
        export_training(tmp_path / "nowhere.onnx", tmp_path / "never", X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"optimizer": LBFGS()}, "LBFGS takes no steps of minibatches"),
    ],
    ids=str,
)
def test_refused(parameters, message, tmp_path):
    model = quietly(classifier(**parameters).fit, *rows("binary"))
    with pytest.raises(ModelError, match=message):
        model.export_training(tmp_path / "folder")
    assert not list(tmp_path.iterdir())
