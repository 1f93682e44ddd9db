"""The estimator of several outputs: predictions, classes, scores, export, copies, searches."""

from __future__ import annotations

import inspect
import pickle
import re

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper, parser
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import Inputs, LoRA, OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor
from tests.helpers.environment import each_engine
from tests.helpers.several_outputs import KINDS, data, graph
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = data(60)
LINKS = {"class": "Softmax", "yes": "Sigmoid", "tags": "Sigmoid", "count": "Exp"}
PAIR = {"class": "log_loss", "number": "squared_error"}
TARGETS = {name: Y[name] for name in PAIR}


def net(names=tuple(PAIR), links=None, **parameters):
    defaults = {"max_iter": 20, "learning_rate_init": 0.02, "batch_size": 16, "tol": NEVER, "random_state": 0}
    losses = {name: KINDS[name].loss for name in names}
    return OrtGradientMultiOutput(graph(list(names), **links or {}), loss=losses, **defaults | parameters)


def single(name, links=None, **parameters):
    kind = OrtGradientRegressor if KINDS[name].task == "regression" else OrtGradientClassifier
    defaults = {"max_iter": 20, "learning_rate_init": 0.02, "batch_size": 16, "tol": NEVER, "random_state": 0}
    return kind(graph([name], **links or {}), loss=KINDS[name].loss, **defaults | parameters)


def same(one, two):
    return all(np.array_equal(array, two.weights_[name]) for name, array in one.weights_.items())


def run(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([v.name for v in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("links", [{}, LINKS], ids=["scores", "activations"])
def test_an_output_is_predicted_as_the_estimator_of_that_output_does(links):
    several = net(KINDS, links).fit(X, Y)
    predicted, p, scores = several.predict(X), several.predict_proba(X), several.decision_function(X)
    found, weights = run(several.to_onnx(), {"X": X}), several.weights_
    assert list(predicted) == list(KINDS)
    assert several.output_names_ == list(KINDS)
    for name in KINDS:
        alone = single(name, {n: op for n, op in links.items() if n == name}, trainable="trunk", max_iter=1)
        alone.set_params(learning_rate_init=0.0).fit(X, Y[name])
        alone._state.graph = alone._state.graph.with_weights({n: weights[n] for n in alone.weights_})
        alone._state.frozen.update({n: weights[n] for n in alone.weights_ if n != "trunk"})
        alone._state.parameters.view("trunk")[...] = weights["trunk"]
        alone._state.live.predictors.clear()
        assert_array_equal(predicted[name], alone.predict(X))
        assert predicted[name].dtype == alone.predict(X).dtype
        onnx_name = name if name in found else f"{name}_label"
        assert_allclose(found[onnx_name].ravel(), predicted[name].ravel()) if name in found else None
        if KINDS[name].task != "regression":
            assert_array_equal(found[onnx_name], predicted[name])
            assert_array_equal(several.classes_[name], alone.classes_) if name != "labels" else None
            for own, other in zip(*map(listed, (scores[name], alone.decision_function(X))), strict=True):
                assert_allclose(own, other, rtol=1e-6, atol=1e-6)
        if hasattr(alone, "predict_proba"):
            for own, other in zip(*map(listed, (p[name], alone.predict_proba(X))), strict=True):
                assert_allclose(own, other, rtol=1e-6)
        assert_allclose(several.output_scores(X, Y)[name], alone.score(X, Y[name]))
    assert set(p) == {name for name in KINDS if KINDS[name].task != "regression" and name != "margin"}
    assert set(several.classes_) == {name for name in KINDS if KINDS[name].task != "regression"}


def listed(found):
    return found if isinstance(found, list) else [found]


def test_names_of_the_outputs_of_the_graph():
    fitted = net(("class", "margin", "number")).fit(X, {name: Y[name] for name in ("class", "margin", "number")})
    names = [output.name for output in fitted.to_onnx().graph.output]
    assert names == ["class_label", "class_probabilities", "margin_label", "margin_scores", "number"]
    raw = run(fitted.to_onnx(raw_scores=True), {"X": X})
    assert_allclose(raw["class_scores" if "class_scores" in raw else "class_probabilities"].shape, (60, 3))
    assert_allclose(raw["class_probabilities"], fitted.decision_function(X)["class"], rtol=1e-5)


def test_outputs_without_a_loss_are_left_out():
    proto = graph(list(KINDS))
    fitted = OrtGradientMultiOutput(proto, loss=PAIR, max_iter=1).fit(X, TARGETS)
    assert list(fitted.predict(X)) == list(PAIR)
    assert set(fitted.weights_) == {"trunk", "class.weight", "number.weight"}


@each_engine
def test_copies_and_passes(engine):
    first = net(engine=engine).fit(X, TARGETS)
    assert same(clone(first).fit(X, TARGETS), first)
    twin = pickle.loads(pickle.dumps(first))
    for name, own in first.predict(X).items():
        assert_array_equal(twin.predict(X)[name], own)
    assert same(twin.partial_fit(X[:30], {n: y[:30] for n, y in TARGETS.items()}),
                first.partial_fit(X[:30], {n: y[:30] for n, y in TARGETS.items()}))  # fmt: skip
    assert first.n_iter_ == 21
    on = net(engine=engine, max_iter=10, warm_start=True).fit(X, TARGETS).fit(X, TARGETS)
    assert same(on, net(engine=engine).fit(X, TARGETS))


def test_passes_over_parts_of_the_labels():
    estimator = net(shuffle=False)
    first, classes = Y["class"] != "c", {"class": ["a", "b", "c"]}
    with pytest.raises(ValueError, match="Output 'class': classes must be passed on the first call"):
        estimator.partial_fit(X[first], {n: y[first] for n, y in TARGETS.items()})
    estimator.partial_fit(X[first], {n: y[first] for n, y in TARGETS.items()}, classes)
    estimator.partial_fit(X, TARGETS)
    assert estimator.classes_["class"].tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="Output 'class': y contains labels that are not among the classes"):
        estimator.partial_fit(X, {**TARGETS, "class": np.where(first, "a", "d")})
    with pytest.raises(ValueError, match=r"Output 'class': classes=.* is not the same as on the last call"):
        estimator.partial_fit(X, TARGETS, {"class": ["a", "b"]})
    with pytest.raises(ValueError, match="classes names 'number', which is no output with labels"):
        estimator.partial_fit(X, TARGETS, {"number": [1, 2]})


def test_a_later_call_may_not_know_any_label_of_an_output():
    estimator = net().fit(X, TARGETS)
    before = estimator.weights_["class.weight"]
    estimator.partial_fit(X, {**TARGETS, "class": np.full(60, "?")}, sample_weight={"class": np.zeros(60)})
    assert_allclose(estimator.weights_["class.weight"], before, atol=0.02)
    assert estimator.n_iter_ == 21
    with pytest.raises(ValueError, match="Output 'class': The sum of sample_weight is zero"):
        net().fit(X, TARGETS, {"class": np.zeros(60)})


@pytest.mark.parametrize("stopping", [True, "best_epoch"])
def test_early_stopping_watches_the_mean_score(stopping):
    rows = slice(0, 40), slice(40, 60)
    train, held = ({name: y[part] for name, y in TARGETS.items()} for part in rows)
    estimator = net(early_stopping=stopping, max_iter=15, learning_rate_init=0.1)
    estimator.fit(X[:40], train, X_val=X[40:], y_val=held)
    assert_allclose(estimator.score(X[40:], held), estimator.best_validation_score_, rtol=1e-6)
    weight = {"class": np.arange(20) % 2, "number": np.ones(20)}
    estimator.fit(X[:40], train, X_val=X[40:], y_val=held, sample_weight_val=weight)
    assert_allclose(estimator.score(X[40:], held, weight), estimator.best_validation_score_, rtol=1e-6)
    assert len(net(early_stopping=stopping, max_iter=3).fit(X, TARGETS).validation_scores_) == 3


def test_scoring_by_a_function():
    seen = []

    def score(estimator, X, y):
        seen.append(len(y["class"]))
        return estimator.output_scores(X, y)["number"]

    estimator = net(scoring=score, early_stopping=True, max_iter=4).fit(X, TARGETS)
    assert seen == [6] * 4
    later = net(scoring=score, max_iter=2).fit(X, TARGETS, X_val=X, y_val=Inputs(TARGETS))
    assert_allclose(later.validation_scores_[-1], later.output_scores(X, TARGETS)["number"], rtol=1e-6)
    with pytest.raises(ValueError, match="scoring must be a function"):
        clone(estimator).set_params(scoring="accuracy").fit(X, TARGETS)


@pytest.mark.parametrize("wrap", [Inputs, pd.DataFrame])
@pytest.mark.long
def test_searches_and_splits(wrap):
    y = wrap(TARGETS)
    search = GridSearchCV(net(max_iter=5), {"loss_weights": [{"number": 0.0}, {"class": 0.0}]}, cv=2)
    assert search.fit(X, y).best_score_ > search.cv_results_["mean_test_score"].min()
    assert len(cross_val_score(make_pipeline(StandardScaler(), net(max_iter=2)), X, y, cv=3)) == 3
    train, test, y_train, y_test = train_test_split(X, y, random_state=0)
    assert net(max_iter=2).fit(train, y_train).score(test, y_test) < 1
    assert not is_classifier(search.best_estimator_)
    assert not is_regressor(search.best_estimator_)


def test_weights_of_rows_as_a_frame_and_as_one_array():
    w = np.arange(60) % 3 + 0.5
    by_output = {"class": w, "number": w}
    one = net().fit(X, TARGETS, w)
    assert same(one, net().fit(X, TARGETS, by_output))
    assert same(one, net().fit(X, TARGETS, pd.DataFrame(by_output)))
    assert not same(one, net().fit(X, TARGETS, {"class": w}))


@each_engine
def test_low_rank_factors_of_the_trunk(engine):
    estimator = net(adapters=LoRA(2, targets=["trunk"]), engine=engine).fit(X, TARGETS)
    assert sorted(estimator.adapters_) == ["trunk.lora_A", "trunk.lora_B"]
    assert_array_equal(run(estimator.to_onnx(), {"X": X})["class_label"], estimator.predict(X)["class"])
    given = run(estimator.to_onnx(adapter=True), {"X": X})
    assert set(given) == {"class_label", "class_probabilities", "number"}


def test_description_and_missing_methods():
    estimator = net(links=LINKS)
    told = str(estimator.describe())
    assert "output 'class, number'" in told
    assert "before the final softmax of 'class'; on the output of 'number'" in told
    assert str(estimator.fit(X, TARGETS).describe()).count("trained ") == told.count("trained ")
    regression = net(("number", "map")).fit(X, {name: Y[name] for name in ("number", "map")})
    for missing in ("predict_proba", "coef_", "to_sklearn", "fine_tuning_"):
        assert not hasattr(regression, missing)
    assert not hasattr(regression, "decision_function")


TWO_HEADS = """<ir_version: 8, opset_import: ["": 18]>
net (float[N, 1, 8, 8] image) => (float[N, 10] digit, float[N, 1] ink) {
  maps = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (image, kernel, kernel_bias)
  active = Relu (maps)
  small = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (active)
  flat = Flatten (small)
  digit = Gemm (flat, head, head_bias)
  ink = Gemm (flat, ink_head, ink_bias)
}"""


@pytest.mark.long
@each_engine
def test_a_network_of_two_heads_reads_digits_and_measures_ink(engine):
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    y = {"digit": digits.target, "ink": images.sum(axis=(1, 2, 3)) / 8}
    proto, rng = parser.parse_model(TWO_HEADS), np.random.default_rng(0)
    sizes = {"kernel": ((8, 1, 3, 3), 9), "head": ((128, 10), 128), "ink_head": ((128, 1), 128)}
    arrays = {name: rng.normal(0, fan**-0.5, shape) for name, (shape, fan) in sizes.items()}
    arrays |= {"kernel_bias": np.zeros(8), "head_bias": np.zeros(10), "ink_bias": np.zeros(1)}
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    part = np.arange(len(images)) % 3 > 0
    settings = {"learning_rate_init": 0.03, "learning_rate": "cosine", "batch_size": 64, "max_iter": 15}
    losses = {"digit": "log_loss", "ink": "squared_error"}
    estimator = OrtGradientMultiOutput(proto, loss=losses, engine=engine, random_state=0, **settings)
    known = {"ink": np.arange(part.sum()) % 2}  # half of the rows have no ink
    estimator.fit(images[part], {name: own[part] for name, own in y.items()}, known)
    scores = estimator.output_scores(images[~part], {name: own[~part] for name, own in y.items()})
    assert scores["digit"] > 0.95
    assert scores["ink"] > 0.95
    found = run(estimator.to_onnx(), {"image": images[~part]})
    assert_array_equal(found["digit_label"], estimator.predict(images[~part])["digit"])
    assert_allclose(found["ink"].ravel(), estimator.predict(images[~part])["ink"], rtol=1e-6)


def test_every_parameter_is_declared():
    given = inspect.signature(OrtGradientMultiOutput).parameters
    assert set(given) == set(OrtGradientMultiOutput.declared)
    assert all(hasattr(OrtGradientMultiOutput(), name) for name in OrtGradientClassifier.declared)
    assert not re.search(r"\{(parameters|attributes)\}", OrtGradientMultiOutput.__doc__ or "")
