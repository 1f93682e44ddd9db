"""Ensembles in one graph: scores of several members, the mean of their losses, the mean of their predictions."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logit, softmax
from sklearn.base import clone

from onnxtrain_sklearn import SGD, GraphModel, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.classic.artifacts import read_checkpoint
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import LOSSES
from onnxtrain_sklearn.models import BaseBuilder
from tests.helpers.data import blobs, line
from tests.helpers.environment import each_engine
from tests.helpers.training import NEVER, quietly, weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MEMBERS = 3


class Members(BaseBuilder):
    """Linear members; ``only`` names the one that is built alone, from the same weights."""

    scales_targets = True

    def __init__(self, n_members: int | None = MEMBERS, only: int | None = None, ends_in: str = "Identity") -> None:
        self.n_members = n_members
        self.only = only
        self.ends_in = ends_in

    def build(self, n_features, n_outputs, random_state=None):
        rng = np.random.RandomState(5)
        weight = rng.normal(size=(MEMBERS, n_features, n_outputs)).astype(np.float32)
        bias = rng.normal(size=(MEMBERS, n_outputs)).astype(np.float32)
        if self.only is None:
            weight = weight.transpose(1, 0, 2).reshape(n_features, -1)
            shape = f"float[N, {MEMBERS}, {n_outputs}]"
        else:
            weight, bias, shape = weight[self.only], bias[self.only], f"float[N, {n_outputs}]"
        bias, sizes = bias.ravel(), [0, MEMBERS, n_outputs] if self.only is None else [0, n_outputs]
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, {n_features}] X) => ({shape} scores)
            <int64[{len(sizes)}] shape = {{{", ".join(map(str, sizes))}}}>
            {{ flat = Gemm(X, weight, bias)  wide = Reshape(flat, shape)  scores = {self.ends_in}(wide) }}"""
        )
        for name, array in (("weight", weight), ("bias", bias)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return model


def task_of(name, task):
    """Return the estimator class and data of a task that the loss can be used for."""
    if task == "regression":
        X, y = line(50, outputs=2)
        return OrtGradientRegressor, X, np.abs(y) + 0.1
    X, y = blobs(50, classes={"multiclass": 3}.get(task, 2))
    if task == "multilabel":
        y = np.c_[y, X[:, 0] > 0, X[:, 1] > 0].astype(int)
    if task == "multioutput":
        y = np.c_[y, np.digitize(X[:, 1], [-0.5, 0.5])]
    return OrtGradientClassifier, X, y


TASKS = [
    (name, task)
    for name, kind in LOSSES.items()
    for task in ("regression", "binary", "multiclass", "multilabel", "multioutput")
    if kind().targets == "labels"
    if task in kind.tasks or (task == "multioutput" and "multiclass" in kind.tasks and name != "ordinal")
]


def trained(kind, X, y, sample_weight=None, rate=0.01, **settings):
    settings = {"optimizer": SGD(), "batch_size": 16, "max_iter": 2, "tol": NEVER, "random_state": 0, **settings}
    estimator = kind(settings.pop("model", Members()), learning_rate_init=rate, **settings)
    return quietly(estimator.fit, X, y, sample_weight)


def scores_of(estimator, X):
    """Return the scores of the members in float64, of shape (N, members, n_outputs)."""
    weights = {name: array.astype(np.float64) for name, array in estimator.weights_.items()}
    return (X.astype(np.float64) @ weights["weight"] + weights["bias"]).reshape(len(X), MEMBERS, -1)


@each_engine
@pytest.mark.parametrize(("loss", "task"), TASKS)
def test_a_step_is_that_of_each_member_alone(loss, task, engine):
    """The members share no weights here: the gradient of a member is its own, divided by their number."""
    kind, X, y = task_of(loss, task)
    weights = np.random.default_rng(0).integers(0, 3, len(X)) / 2
    settings = {"loss": loss, "engine": engine}
    if task == "binary":
        settings["class_weight"] = {0: 2.0}
    ensemble = trained(kind, X, y, weights, rate=0.03, **settings)
    assert ensemble.engine_ == engine
    shape = (X.shape[1], MEMBERS, -1)
    alone = [trained(kind, X, y, weights, model=Members(None, only=i), **settings) for i in range(MEMBERS)]
    for i, member in enumerate(alone):
        assert_allclose(ensemble.weights_["weight"].reshape(shape)[:, i], member.weights_["weight"], rtol=0, atol=2e-5)
    assert_allclose(ensemble.loss_curve_, np.mean([member.loss_curve_ for member in alone], axis=0), rtol=1e-4)


@pytest.mark.parametrize("loss", [name for name, task in TASKS if task == "binary"])
def test_predictions_for_two_classes(loss):
    _, X, y = task_of(loss, "binary")
    fitted = trained(OrtGradientClassifier, X, y, loss=loss, max_iter=20)
    scores = scores_of(fitted, X)[:, :, 0]
    if "hinge" in loss:
        decision = scores.mean(axis=1)
        assert not hasattr(fitted, "predict_proba")
    else:
        links = {"modified_huber": lambda s: (np.clip(s, -1, 1) + 1) / 2}
        p = links.get(loss, expit)(scores).mean(axis=1)
        decision = 2 * p - 1 if loss == "modified_huber" else logit(p)
        assert_allclose(fitted.predict_proba(X)[:, 1], p, atol=1e-6)
    assert_allclose(fitted.decision_function(X), decision, atol=3e-5)
    assert_array_equal(fitted.predict(X), (decision > 0).astype(int))


@pytest.mark.parametrize("loss", ["log_loss", "focal", "modified_huber", "hinge"])
def test_predictions_for_several_classes(loss):
    _, X, y = task_of(loss, "multiclass")
    fitted = trained(OrtGradientClassifier, X, y, loss=loss, max_iter=20)
    scores = scores_of(fitted, X)
    if loss == "hinge":
        decision = scores.mean(axis=1)
    else:
        p = softmax(scores, axis=2)
        if loss == "modified_huber":
            p = np.clip(scores, -1, 1) + 1
            p = np.where(p.sum(axis=2, keepdims=True) == 0, 1, p)
            p /= p.sum(axis=2, keepdims=True)
        p = p.mean(axis=1)
        decision = 2 * p - 1 if loss == "modified_huber" else np.log(p)
        assert_allclose(fitted.predict_proba(X), p, atol=1e-6)
    assert_allclose(fitted.decision_function(X), decision, atol=3e-5)
    assert_array_equal(fitted.predict(X), decision.argmax(axis=1))


def test_predictions_for_several_labels():
    _, X, y = task_of("log_loss", "multilabel")
    fitted = trained(OrtGradientClassifier, X, y, max_iter=5)
    p = expit(scores_of(fitted, X)).mean(axis=1)
    assert_allclose(fitted.predict_proba(X), p, atol=1e-6)
    assert_allclose(fitted.decision_function(X), logit(p), atol=1e-5)
    assert_array_equal(fitted.predict(X), (p > 0.5).astype(int))
    _, X, y = task_of("log_loss", "multioutput")
    fitted = trained(OrtGradientClassifier, X, y, max_iter=5)
    parts = np.split(scores_of(fitted, X), [2], axis=2)
    for found, decision, own in zip(fitted.predict_proba(X), fitted.decision_function(X), parts, strict=True):
        p = softmax(own, axis=2).mean(axis=1)
        assert_allclose(found, p, atol=1e-6)
        expected = logit(p[:, 1]) if p.shape[1] == 2 else np.log(p)
        assert_allclose(decision, expected, atol=1e-5)


@pytest.mark.parametrize("scaling", ["auto", None])
@pytest.mark.parametrize("loss", [n for n, task in TASKS if task == "regression" and n != "reconstruction"])
def test_predictions_of_numbers(loss, scaling):
    _, X, y = task_of(loss, "regression")
    y = y * [10.0, 100.0]
    fitted = trained(OrtGradientRegressor, X, y, loss=loss, max_iter=3, rate=1e-4, target_scaling=scaling)
    scores = scores_of(fitted, X)
    by_log = loss in ("poisson", "gamma", "tweedie", "negative_binomial", "gamma_nll")
    means = np.exp(scores) if by_log else scores
    expected = means.mean(axis=1)[:, :2]  # the further scores are not predicted
    if scaling and loss != "negative_binomial":  # keeps the unit of y
        expected = expected * y.mean(axis=0) if by_log else expected * y.std(axis=0) + y.mean(axis=0)
    assert_allclose(fitted.predict(X), expected, rtol=1e-4, atol=1e-4)


def test_scores_of_any_size_give_finite_numbers():
    X, y = blobs(50)
    fitted = trained(OrtGradientClassifier, X, y, max_iter=1)
    huge = X * 1e4
    scores = scores_of(fitted, huge)[:, :, 0]
    log_p, log_q = (np.logaddexp.reduce(-np.logaddexp(0, -sign * scores), axis=1) for sign in (1, -1))
    assert_allclose(fitted.decision_function(huge), log_p - log_q, rtol=1e-4)
    p = fitted.predict_proba(huge)
    assert np.isfinite(p).all()
    by_decision = np.argsort(fitted.decision_function(X), kind="stable")
    assert (np.diff(fitted.predict_proba(X.astype(np.float64))[by_decision, 1]) >= 0).all()


@pytest.mark.parametrize("kind", [OrtGradientClassifier, OrtGradientRegressor])
def test_the_file_predicts_the_mean(kind):
    X, y = blobs(60, classes=3)
    fitted = trained(kind, X, y, max_iter=3)
    model = fitted.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"X": X})
    assert_array_equal(found[0].ravel(), fitted.predict(X))
    names = [value.name for value in session.get_outputs()]
    assert names == (["variable"] if kind is OrtGradientRegressor else ["label", "probabilities"])
    assert [value.shape[1:] for value in session.get_outputs()][-1] == [1 if kind is OrtGradientRegressor else 3]
    if kind is OrtGradientClassifier:
        assert_array_equal(found[1], fitted.predict_proba(X))
        raw = fitted.to_onnx(raw_scores=True, zipmap="columns")
        assert [value.name for value in raw.graph.output] == ["output_label", "i0", "i1", "i2"]


@pytest.mark.parametrize("kind", [OrtGradientClassifier, OrtGradientRegressor])
def test_training_goes_on(kind):
    X, y = blobs(60)
    classes = {"classes": [0, 1]} if kind is OrtGradientClassifier else {}
    first = quietly(kind(Members(), random_state=0).partial_fit, X[:40], y[:40], **classes)
    copy = pickle.loads(pickle.dumps(first))
    assert_array_equal(copy.predict(X), first.predict(X))
    assert weights_equal(copy.partial_fit(X[40:], y[40:]), first.partial_fit(X[40:], y[40:]))
    again = clone(first).set_params(early_stopping=True, validation_split=0.3, max_iter=4, warm_start=True)
    quietly(again.fit, X, y)
    held = again.validation_scores_
    assert len(held) == 4
    assert quietly(again.fit, X, y).n_iter_ == 8
    watched = clone(first).set_params(max_iter=1)
    quietly(watched.fit, X, y, X_val=X[:30], y_val=y[:30])
    assert watched.validation_scores_ == [pytest.approx(watched.score(X[:30], y[:30]), abs=1e-6)]


@each_engine
def test_steps_equal_those_of_the_formula_in_float64(engine):
    """Three steps of gradient descent on the mean log loss of the members, the last minibatch padded."""
    X, y = blobs(40, classes=3)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(X))
    fitted = trained(OrtGradientClassifier, X, y, weights, rate=0.1, engine=engine, shuffle=False, max_iter=1)
    model = {i.name: onnx.numpy_helper.to_array(i) for i in Members().build(5, 3).graph.initializer}
    w, b = model["weight"].astype(np.float64).reshape(5, MEMBERS, 3), model["bias"].astype(np.float64).reshape(-1, 3)
    for batch in (slice(16), slice(16, 32), slice(32, 40)):
        rows, share = X[batch].astype(np.float64), weights[batch] / weights[batch].sum() / MEMBERS
        slope = softmax(np.einsum("ni,imk->nmk", rows, w) + b, axis=2) - np.eye(3)[y[batch]][:, None]
        slope *= share[:, None, None]
        w, b = w - 0.1 * np.einsum("ni,nmk->imk", rows, slope), b - 0.1 * slope.sum(axis=0)
    assert_allclose(fitted.weights_["weight"], w.reshape(5, -1), rtol=0, atol=1e-6)
    assert_allclose(fitted.weights_["bias"], b.ravel(), rtol=0, atol=1e-6)


class MembersInDouble(Members):
    def build(self, n_features, n_outputs, random_state=None):
        model = super().build(n_features, n_outputs, random_state)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
        for tensor in [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(float), tensor.name))
        return model


@each_engine
def test_members_in_double_with_a_full_batch(engine):
    X, y = blobs(60, classes=3)
    fitted = trained(
        OrtGradientClassifier, X, y, model=MembersInDouble(), optimizer="lbfgs", engine=engine, alpha=0.1, max_iter=50
    )
    assert fitted.weights_["weight"].dtype == np.float64
    p = softmax(scores_of(fitted, X), axis=2).mean(axis=1)
    assert_allclose(fitted.predict_proba(X.astype(np.float64)), p, rtol=0, atol=1e-5)
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]
    assert fitted.score(X, y) > 0.8


def test_unsupported_settings_of_ensembles_are_refused():
    X, y = blobs(60)
    fitted = trained(OrtGradientClassifier, X, y)
    assert not hasattr(fitted, "coef_")
    with pytest.raises(ModelError):
        fitted.to_sklearn()
    with pytest.raises(ValueError, match=r"output_kind='probabilities'.*n_members"):
        trained(OrtGradientClassifier, X, y, model=GraphModel(Members(), output_kind="probabilities"))


@pytest.mark.parametrize("members", [2, MEMBERS + 1])
def test_scores_of_another_number_of_members_are_refused(members):
    X, y = blobs(60)
    with pytest.raises(ModelError, match=rf"n_members={members}.*\('N', {members}, 1\).*\('N', 3, 1\)"):
        trained(OrtGradientClassifier, X, y, model=Members(members))


def test_the_attribute_is_checked():
    X, y = blobs(60)
    with pytest.raises(ValueError, match="n_members of Members must be an int"):
        trained(OrtGradientClassifier, X, y, model=Members(0))
    with pytest.raises(ModelError, match="ends in the function 'sigmoid'"):
        trained(OrtGradientClassifier, X, y, model=Members(ends_in="Sigmoid"))


def test_graph_of_member_shape_is_no_ensemble():
    X, y = blobs(60)
    for model in (Members(None), Members().build(5, 1)):
        with pytest.raises((ModelError, ValueError)):
            trained(OrtGradientClassifier, X, y, model=model)


@each_engine
@pytest.mark.parametrize("classes", [2, 3])
def test_files_for_devices_train_the_mean(tmp_path, classes, engine):
    X, y = blobs(60, classes=classes)
    fitted = trained(OrtGradientClassifier, X, y, engine=engine)
    fitted.export_artifacts(tmp_path)
    model = onnx.load(tmp_path / "eval_model.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    data, label = (value.name for value in model.graph.input[:2])
    target = y if classes == 3 else y[:, None].astype(np.float32)
    (value,) = session.run(["loss"], {data: X, label: target, **read_checkpoint(tmp_path / "checkpoint")})
    assert value == pytest.approx(fitted.set_params(batch_size=60).partial_fit(X, y).loss_, rel=1e-4)
