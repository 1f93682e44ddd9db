"""Relations of estimators of several outputs: those of single ones that apply, and those between outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime

from onnxtrain_sklearn import Inputs, OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor
from tests.combinations import relations
from tests.combinations.outcomes import applies, difference, near, outcome, same
from tests.combinations.several_draws import SeveralDraw, split
from tests.combinations.wide_draws import WIDTH, WideDraw, quiet
from tests.helpers.step_options import configured

SHARED = (
    "refit_begins_anew", "copies_go_on", "pickles_between_calls_do_not_matter", "calls_add_up", "callbacks_only_watch",
    "checkpoints_resume", "training_graphs_go_on", "devices_train_alike", "engines_train_alike",
    "weight_zero_is_absent", "weights_are_repetitions", "size_of_weights_does_not_matter", "groups_are_minibatches",
    "threads_do_not_matter", "states_are_loaded", "a_change_is_seen", "averaged_weights_are_the_mean",
    "stopping_restores_the_best", "a_rate_that_is_found_is_a_rate_that_is_given", "scores_are_those_of_score",
    "best_epoch_is_a_shorter_fit",
)  # fmt: skip
"""Relations that say the same of several outputs."""


def one_output_is_the_single_estimator(draw: SeveralDraw) -> None:
    name = sorted(draw.tasks)[draw.number % len(draw.tasks)]
    applies(not draw.has("early_stopping") and draw.validation is None)
    alone = {"loss": {name: draw.losses[name]}, "loss_weights": None, "class_weight": None, "warm_start": False}
    if name in (draw.parameters.get("class_weight") or {}):
        alone["class_weight"] = {name: draw.parameters["class_weight"][name]}
    known = {n: {name: c[name]} for n, c in draw.classes().items() if name in c}
    one = quiet(draw.estimator(**alone).fit, draw.X, {name: draw.y[name]}, draw.weights, **known)
    own = {n: c[name] for n, c in known.items()}
    other = quiet(draw.single(name).fit, draw.X, draw.y[name], draw.weights, **own)
    first, second = outcome(one, draw.X), outcome(other, draw.X)
    for key, array in second.items():
        found = first.get(key, first.get(f"{key} {name}"))
        assert found is not None, key
        if array.dtype.kind != "f":
            continue  # labels where two are as likely
        assert np.allclose(found.reshape(array.shape), array, rtol=2e-3, atol=2e-3), difference(key, found, array)


def columns_are_outputs(draw: SeveralDraw) -> None:
    """The mean loss over columns is that of as many outputs of one column."""
    suited = [
        name for name, task in draw.tasks.items() if task in ("regression", "multilabel") and draw.sizes[name] > 1
    ]
    applies(bool(suited) and not draw.has("early_stopping") and draw.validation is None)
    applies(draw.parameters["optimizer"].name != "lion")  # the sign of what cancels is that of its rounding
    name = suited[0]
    k, regression = draw.sizes[name], draw.tasks[name] == "regression"
    renamed = [f"column_{j}" for j in range(k)]
    model, apart = (draw.builder.build(WIDTH, k, draw.number) for _ in range(2))
    apart = split(apart, dict.fromkeys(renamed, 1))
    own = {n: v for n, v in draw.parameters.items() if n not in ("loss_weights", "class_weight")}
    kind = OrtGradientRegressor if regression else OrtGradientClassifier
    single = quiet(configured(kind(model, loss=draw.losses[name]), **own).fit, draw.X, draw.y[name], draw.weights)
    losses, shares = dict.fromkeys(renamed, draw.losses[name]), dict.fromkeys(renamed, 1 / k)
    several = configured(OrtGradientMultiOutput(apart, loss=losses, loss_weights=shares), **own)
    y = {one: draw.y[name][:, j] for j, one in enumerate(renamed)}
    known = {} if regression else {"classes": {one: [0, 1] for one in renamed}}
    quiet(several.fit, draw.X, y, draw.weights, **known)
    near(single, several, draw.X, leave_out=("scores", "predict", "predict_proba", "decision_function"))


def targets_of_weight_zero_are_not_read(draw: SeveralDraw) -> None:
    rng = np.random.default_rng(draw.number)
    applies(not draw.has("early_stopping") and draw.validation is None and not draw.has("class_weight"))
    weights = {name: 1.0 * (rng.random(len(draw.y)) < 0.7) for name in draw.tasks}
    applies(all(w.any() for w in weights.values()))
    other = {}
    for name, task in draw.tasks.items():
        missing, array = weights[name] == 0, draw.y[name].copy()
        array = array.astype(object) if task == "multiclass" else array.astype(np.float64)
        array[missing] = None if task == "multiclass" else np.nan
        other[name] = array
    first = draw.fit(sample_weight=weights)
    same(first, draw.fit(sample_weight=weights, y=other), draw.X)


def weights_by_output_are_weights_of_rows(draw: SeveralDraw) -> None:
    applies(draw.weights is not None)
    near(draw.fit(), draw.fit(sample_weight=dict.fromkeys(draw.tasks, draw.weights)), draw.X)


def order_of_outputs_does_not_matter(draw: SeveralDraw) -> None:
    applies(len(draw.tasks) > 1)
    turned = dict(reversed(draw.losses.items()))
    y = Inputs(dict(reversed(draw.y.arrays.items())))
    near(draw.fit(), draw.fit(draw.estimator(loss=turned), y=y), draw.X)


def file_of_outputs_predicts_alike(draw: SeveralDraw) -> None:
    fitted = draw.fit()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    made = fitted.to_onnx().SerializeToString()
    session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: draw.X}), strict=True))
    for name, expected in fitted.predict(draw.X).items():
        array = np.asarray(found.get(f"{name}_label", found.get(name))).reshape(expected.shape)
        if expected.dtype.kind == "f":
            assert np.allclose(array, expected, rtol=1e-5, atol=1e-6), difference(name, array, expected)
        else:
            assert np.array_equal(array, expected), difference(name, array, expected)


def forms_of_targets_are_alike(draw: SeveralDraw) -> None:
    first = draw.fit()
    same(first, draw.fit(y=draw.y.arrays), draw.X)
    same(first, draw.fit(y={name: array.tolist() for name, array in draw.y.arrays.items()}), draw.X)
    same(first, draw.fit(X=draw.X.tolist()), draw.X)


OWN: tuple[Callable[[Any], None], ...] = (
    one_output_is_the_single_estimator, columns_are_outputs, targets_of_weight_zero_are_not_read,
    weights_by_output_are_weights_of_rows, order_of_outputs_does_not_matter, file_of_outputs_predicts_alike,
    forms_of_targets_are_alike,
)  # fmt: skip

OF_SEVERAL: dict[str, Callable[[WideDraw], None]] = {
    **{name: relations.RELATIONS[name] for name in SHARED},
    **{function.__name__: function for function in OWN},
}
"""All relations of several outputs, by name."""
