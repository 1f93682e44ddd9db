"""Compares a run with its reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxtrain_sklearn.exceptions import DivergenceError, OnnxTrainError
from tests.combinations.draws import Draw
from tests.combinations.recording import RecordedCall, recorded_call
from tests.combinations.reference_loop import ReferenceLoop

TOLERANCE = {False: 2e-3, True: 2e-6}
"""By whether the graph is of float64: the error relative to the size of the numbers."""

NOISE = {False: 1e-6, True: 1e-14}
"""By the same: a relative change of the initial weights, and of each part of each slope, of the size of rounding."""

CHAOTIC = 0.05
"""The sensitivity above which rounding decides what a run comes to: of a hundred cases it is about one."""


def equals_reference(draw: Draw) -> str:
    """Run all calls of a draw and compare each with the reference.

    Returns "" where they are equal, else "refused" with the reason, or "undetermined" where rounding decides.
    """
    estimator, loops = draw.estimator(), []
    for kind, changes in [("fit", {}), *draw.calls]:
        warm = {"warm_start": True} if estimator.__dict__.get("_state") else {}
        estimator.set_params(**changes, **warm)
        try:
            call = recorded_call(draw, estimator, kind)
        except (ValueError, OnnxTrainError) as error:
            if isinstance(error, DivergenceError):
                raise
            return f"refused {type(error).__name__}: {error}"
        loops = loops or [ReferenceLoop(draw, estimator, call, noise) for noise in (0.0, NOISE[draw.double])]
        for loop in loops:
            loop.follow(kind, call)
        check_minibatches(draw, estimator, call, kind)
        if (amplified := sensitivity(*loops)) > CHAOTIC:
            return f"undetermined: rounding changes results by {amplified:.2g} of their size"
        check_results(draw, estimator, loops[0], call, max(TOLERANCE[draw.double], amplified))
    return ""


def sensitivity(loop: ReferenceLoop, other: ReferenceLoop) -> float:
    """Return some times how far two runs are apart that differ by rounding: large rates amplify it.

    The sign of what cancels, which Lion takes, is that of its rounding: the bias before a batch normalization, or that
    of one whose output is shifted back by the next.
    """
    return 4 * max(map(distance, results(loop), results(other)))


def results(loop: ReferenceLoop) -> list[np.ndarray]:
    validation = [loss for loss in loop.validation_losses if loss is not None]
    return [np.asarray(loop.losses), np.asarray(validation), *loop.predicting.values()]


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error relative to the largest number."""
    scale = max(1e-2, float(np.abs(expected).max(initial=0)))
    return float(np.abs(found - expected).max(initial=0)) / scale


def check_minibatches(draw: Draw, estimator: Any, call: RecordedCall, kind: str) -> None:
    """Each epoch goes over the same rows once, in minibatches of one size; those that were held out stay out."""
    parameters, rows = estimator.get_params(deep=False), call.rows
    weighted = np.flatnonzero(ReferenceLoop.row_weights(_Weighing(draw), draw.y, draw.weights))
    splits = bool(parameters["early_stopping"]) and kind == "fit" and draw.validation is None
    held = np.setdiff1d(weighted, rows)
    assert set(rows) <= set(weighted.tolist())
    assert len(held) == (np.ceil(parameters["validation_split"] * len(weighted)) if splits else 0)
    size = 200 if parameters["batch_size"] == "auto" else parameters["batch_size"]
    size = min(size, len(rows))
    for minibatches in call.passes:
        sizes, seen = [len(one) for one in minibatches], np.concatenate(minibatches)
        assert sum(sizes) == len(set(seen.tolist())) == len(rows) - (len(rows) % size if parameters["drop_last"] else 0)
        assert set(seen.tolist()) <= set(rows.tolist())
        assert all(n == size for n in sizes[:-1])
        assert sizes[-1] <= size
        if not parameters["shuffle"] and not splits and len(minibatches) > 1:
            assert np.array_equal(seen, rows[: len(seen)])


class _Weighing:
    def __init__(self, draw: Draw) -> None:
        self.draw = draw


def check_results(draw: Draw, estimator: Any, loop: ReferenceLoop, call: RecordedCall, tolerance: float) -> None:
    double = draw.double
    close(call.losses, loop.losses[-len(call.losses) :], tolerance, "losses")
    assert np.array_equal(estimator.loss_curve_, [row["loss"] for row in estimator.history_])
    if call.scores[0] is not None:
        for score, bounds in zip(call.scores, loop.scores[-len(call.scores) :], strict=True):
            low, high = bounds
            assert low - tolerance * max(1, abs(low)) <= score <= high + tolerance * max(1, abs(high)), (score, bounds)
    found = [row.get("validation_loss") for row in estimator.history_]
    assert [x is None for x in found] == [x is None for x in loop.validation_losses]
    pairs = [(a, b) for a, b in zip(found, loop.validation_losses, strict=True) if a is not None and not np.isnan(b)]
    close([a for a, _ in pairs], [b for _, b in pairs], tolerance, "validation losses")
    for name, array in estimator.weights_.items():
        assert array.dtype == (np.float64 if double else np.float32)
        close(array, loop.predicting[name], tolerance, name)
    assert estimator.n_iter_ == loop.progress.epoch
    assert estimator.t_ == loop.progress.samples
    assert estimator.loss_ == call.losses[-1]
    check_predictions(draw, estimator, loop, tolerance)


def check_predictions(draw: Draw, estimator: Any, loop: ReferenceLoop, tolerance: float) -> None:
    expected, found = loop.predictions(draw.X), estimator.predict(draw.rows(draw.X))
    if draw.task == "regression":
        close(found.reshape(expected.shape), expected, tolerance, "predict")
        return
    gaps = np.abs(expected)
    if draw.task == "multiclass":
        order = np.sort(expected, axis=1)
        gaps = order[:, -1] - order[:, -2]
    sure = gaps.reshape(len(found), -1).min(axis=1) > 1e-2
    assert np.array_equal(found[sure], draw.labels(expected)[sure]), "labels"
    if hasattr(estimator, "decision_function"):
        scores = estimator.decision_function(draw.rows(draw.X))
        close(scores.reshape(expected.shape), expected, tolerance, "decision_function")


def close(found: Any, expected: Any, tolerance: float, what: str) -> None:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    error = distance(found, expected)
    assert error <= tolerance, f"{what}: {error:.3g} of their size: {found.ravel()[:8]} {expected.ravel()[:8]}"
