"""Relations of callbacks that steer training, of changes between calls, and of embeddings."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from sklearn.metrics import accuracy_score, r2_score

from onnxtrain_sklearn import Runtime
from onnxtrain_sklearn.callbacks import EarlyStopping, EpochScoring, LearningRateFinder, WeightAveraging
from onnxtrain_sklearn.optimizers import OPTIMIZERS, SGD
from tests.combinations.outcomes import applies, difference, near, outcome, same
from tests.combinations.wide_draws import WideDraw, quiet, take
from tests.helpers.step_options import with_options

CHANGES: tuple[dict[str, Any], ...] = (
    {"optimizer": SGD(momentum=0.5)},
    {"optimizer": OPTIMIZERS["adamw"](weight_decay=0.3)},
    {"optimizer": with_options(OPTIMIZERS["adam"](weight_decay=0.3), weight_decay_schedule="linear")},
    {"optimizer": with_options(OPTIMIZERS["adam"](weight_decay=0.3), weight_decay_factors={"*": 0.2})},
    {"dropout_schedule": "linear"},
    {"runtime": Runtime(checkpoint_activations=True), "engine": "portable"},
    {"optimizer__lazy_rows": True},
    {"optimizer__lazy_rows": False},
    {"optimizer__accumulate": 3, "optimizer__ema_decay": 0.7},
    {"alpha": 1.0, "l1_ratio": 0.5},
    {"optimizer__max_grad_norm": 0.05},
    {"batch_size": 7},
    {"optimizer__learning_rate_factors": {"*": 0.1}},
    {"optimizer__ema_decay": 0.3},
    {"optimizer__ema_decay": None},
    {"class_weight": {3: 2.0, 7: 0.5}},
    {"clip_predictions": True},
    {"learning_rate": "cosine", "max_iter": 3},
    {"runtime": Runtime(session_options={"intra_op_num_threads": 1})},
)
"""Settings that are changed between two calls."""


def epochs(draw: WideDraw, count: int, **settings: Any) -> list[dict[str, np.ndarray]]:
    """Return the outcomes of fits of one epoch, of two, and so on."""
    known = {"early_stopping": False, "tol": -np.inf, **settings}
    return [outcome(draw.fit(draw.estimator(max_iter=k + 1, **known)), draw.X) for k in range(count)]


def in_epochs(draw: WideDraw) -> bool:
    """Whether epochs are the same however many follow."""
    return draw.takes_minibatches and draw.constant_rates


def a_change_is_seen(draw: WideDraw) -> None:
    """Whether the step of the call before is kept or made anew, a later call trains by the current settings."""
    applies(draw.takes_minibatches and not draw.has("early_stopping"))
    applies(draw.parameters.get("class_weight") != "balanced")
    change = dict(CHANGES[draw.number % len(CHANGES)])
    first = draw.fit()
    applies(set(change) <= set(first.get_params()))
    if "class_weight" in change:
        applies(draw.task == "binary")
    twin = pickle.loads(pickle.dumps(first))
    for one in (first, twin):
        one.set_params(**change, warm_start=True)
        draw.fit(one)
        draw.passes(one)
    same(first, twin, draw.X)
    back = {name: value for name, value in draw.estimator().get_params().items() if name in change}
    third = pickle.loads(pickle.dumps(twin))
    for one in (first, third):
        draw.fit(one.set_params(**back))
    same(first, third, draw.X)


def parts_of_any_size_go_on(draw: WideDraw) -> None:
    """Calls with more and fewer rows, by an estimator and by its pickles, whose minibatches are padded otherwise."""
    applies(not draw.rows_meet and draw.takes_minibatches and not draw.has("early_stopping"))
    applies(draw.parameters.get("class_weight") != "balanced" and draw.kind != "pipeline")
    applies(draw.task != "multilabel")
    parts = [slice(0, 5), slice(5, 6), slice(2, 13), slice(0, len(draw.y))]
    weights = None if draw.weights is None else draw.weights + 0.5
    one, two = draw.estimator(max_iter=8), draw.estimator(max_iter=8)
    for part in parts:
        for estimator in (one, two):
            weight = {} if weights is None else {"sample_weight": weights[part]}
            quiet(estimator.partial_fit, take(draw.X, part), draw.y[part], **weight, **draw.classes())
        two = pickle.loads(pickle.dumps(two))
    near(one, two, draw.X)


def averaged_weights_are_the_mean(draw: WideDraw) -> None:
    applies(in_epochs(draw) and not draw.has("optimizer__ema_decay") and draw.kind != "lora")
    applies(draw.kind != "batch")
    each = epochs(draw, 4)
    fitted = draw.fit(
        draw.estimator(max_iter=4, early_stopping=False, tol=-np.inf, callbacks=[WeightAveraging(start=0.5)])
    )
    for name, array in fitted.weights_.items():
        mean = (each[2][f"weight {name}"].astype(np.float64) + each[3][f"weight {name}"]) / 2
        assert np.allclose(array, mean, rtol=1e-5, atol=1e-6), difference(name, array, mean)


def stopping_restores_the_best(draw: WideDraw) -> None:
    applies(in_epochs(draw))
    stopping = EarlyStopping("loss", patience=100)
    fitted = draw.fit(draw.estimator(max_iter=4, early_stopping=False, tol=-np.inf, callbacks=[stopping]))
    best = int(np.argmin(fitted.loss_curve_))
    expected = epochs(draw, 4)[best]
    for name, array in fitted.weights_.items():
        assert np.array_equal(array, expected[f"weight {name}"]), difference(name, array, expected[f"weight {name}"])


def scores_of_epochs_are_those_of_predictions(draw: WideDraw) -> None:
    applies(in_epochs(draw) and draw.validation is not None and not draw.has("class_weight"))
    assert draw.validation is not None
    scorer = "r2" if draw.task == "regression" else "accuracy"
    callbacks = [EpochScoring(scorer, on=part) for part in ("train", "validation")]
    settings = {"early_stopping": False, "tol": -np.inf}
    fitted = draw.fit(draw.estimator(max_iter=3, callbacks=callbacks, **settings))
    metric: Callable[..., float] = r2_score if draw.task == "regression" else accuracy_score
    X, y = draw.validation
    for k, row in enumerate(fitted.history_):
        part = draw.fit(draw.estimator(max_iter=k + 1, **settings))
        expected = metric(draw.y, part.predict(draw.X), sample_weight=draw.weights)
        assert np.isclose(row[f"train_{scorer}"], expected, rtol=1e-5, atol=1e-6), (row, expected)
        assert np.isclose(row[f"validation_{scorer}"], metric(y, part.predict(X)), rtol=1e-5, atol=1e-6)


def a_rate_that_is_found_is_a_rate_that_is_given(draw: WideDraw) -> None:
    applies(draw.takes_minibatches)
    finder = LearningRateFinder(lowest=1e-4, highest=0.1, steps=12)
    found = draw.fit(draw.estimator(callbacks=[finder]))
    rate = found.callbacks_["LearningRateFinder"]["suggestion"]
    same(found, draw.fit(draw.estimator(learning_rate_init=rate)), draw.X)


def an_embedding_is_a_product(draw: WideDraw) -> None:
    """Rows that are looked up are products of one-hot rows with the matrix."""
    applies(draw.kind == "embedding" and not draw.has("optimizer__lazy_rows", "adapters"))
    other = copy.copy(draw)
    other.model = with_products(draw.model)
    other.X = {"a": draw.X["a"], "k": np.eye(12, dtype=np.float32)[draw.X["k"]]}
    if draw.validation is not None:
        X = draw.validation[0]
        other.validation = {"a": X["a"], "k": np.eye(12, dtype=np.float32)[X["k"]]}, draw.validation[1]
    a, b = draw.fit(), other.fit()
    for name, array in a.weights_.items():
        assert np.allclose(array, b.weights_[name], rtol=1e-3, atol=1e-4), difference(name, array, b.weights_[name])
    assert np.allclose(a.loss_curve_, b.loss_curve_, rtol=1e-4, atol=1e-5)


def with_products(model: Any) -> Any:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    node = next(n for n in changed.graph.node if n.op_type == "Gather")
    node.op_type = "MatMul"
    node.input[:] = [node.input[1], node.input[0]]
    shape = onnx.helper.make_tensor_value_info("k", onnx.TensorProto.FLOAT, ["N", 12])
    changed.graph.input[1].CopyFrom(shape)
    return changed


STEERING: dict[str, Callable[[WideDraw], None]] = {
    function.__name__: function
    for function in (
        a_change_is_seen,
        parts_of_any_size_go_on,
        averaged_weights_are_the_mean,
        stopping_restores_the_best,
        scores_of_epochs_are_those_of_predictions,
        a_rate_that_is_found_is_a_rate_that_is_given,
        an_embedding_is_a_product,
    )
}
