"""Random fine-tunings of trained models, with old rows and without, and what holds of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxtrain_sklearn import FineTuner
from onnxtrain_sklearn.exceptions import DivergenceError
from onnxtrain_sklearn.losses import LOSSES
from tests.combinations import draws, relations
from tests.combinations.draws import Dice
from tests.combinations.outcomes import applies, difference, outcome, same
from tests.combinations.wide_draws import WIDTH, WideDraw, fitted
from tests.helpers.environment import available_engines

SHARED = (
    "file_predicts_alike", "forms_of_data_are_alike",
    "weight_zero_is_absent", "size_of_weights_does_not_matter", "threads_do_not_matter",
)  # fmt: skip
"""Relations that say the same of fine-tuning."""


@dataclass
class TunedDraw(WideDraw):
    """A case: ``old`` are the rows and targets that the model was trained on, where ``fit`` is given them."""

    old: tuple[np.ndarray, np.ndarray] | None = None

    def __str__(self) -> str:
        return f"{super().__str__()}{'' if self.old is None else f' X_old of {len(self.old[0])}'}"

    def more(self) -> dict[str, Any]:
        old = {} if self.old is None else dict(zip(("X_old", "y_old"), self.old, strict=True))
        return super().more() | old

    @property
    def takes_minibatches(self) -> bool:
        return False


def tuned_drawn(number: int, engine: str = "portable") -> TunedDraw:
    """Return case ``number``."""
    dice, rng = Dice(number), np.random.default_rng(number)
    task, n = dice.one("regression", "binary", "multiclass"), dice.one(13, 21, 34)

    def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(count, WIDTH)).astype(np.float32)
        noise = 0.3 * rng.normal(size=count)
        score = X[:, 0] - 2 * X[:, 1] * (X[:, 2] > 0) + noise
        if task == "regression":
            return X, (3 * score + 2).astype(np.float32)
        if task == "binary":
            return X, np.where(score > 0, 7, 3)
        return X, draws.LABELS[np.digitize(score, [-1.5, 0, 1.5])]

    old, (X, y) = rows(60), rows(n)
    model = fitted(dice, *old, task)
    if dice.chance(0.3):
        X = X + np.float32(dice.one(0.5, 2.0))
    tuner = FineTuner(
        dice.one("auto", "auto", 0.0, 1e-3), old_weight=dice.one("auto", 0.5), margin=dice.one(0.0, 0.0, 1.0),
        recalibrate=dice.chance(0.8), freeze_preprocessing=dice.chance(0.8), cv=dice.one(2, 3, 5),
        max_iter=dice.one(2, 10), new_head=dice.chance(0.15),
    )  # fmt: skip
    parameters = {
        "loss": LOSSES["huber" if task == "regression" and dice.chance(0.3) else "squared_error"]()
        if task == "regression"
        else LOSSES["log_loss"](),
        "engine": engine, "finetune": tuner, "random_state": number,
    }  # fmt: skip
    if task != "regression" and dice.chance(0.3):
        parameters["class_weight"] = "balanced"
    validation = rows(12) if dice.chance(0.25) else None
    given = old if dice.chance(0.4) and not tuner.new_head else None
    weights = draws.drawn_weights(dice, rng, n)
    return TunedDraw(number, "pipeline", task, 1, model, parameters, X, y, weights, validation, {}, given)


def predictions(estimator: Any, X: np.ndarray) -> np.ndarray:
    return np.asarray(getattr(estimator, "predict_proba", estimator.predict)(X), np.float64)


def engines_tune_alike(draw: TunedDraw) -> None:
    """Searches with a strong pull come to the same losses; others that have not converged depend on rounding."""
    applies("ort-training" in available_engines() and not draw.parameters["finetune"].new_head)
    tables = [draw.fit(draw.estimator(engine=engine)).fine_tuning_ for engine in ("portable", "ort-training")]
    first, second = (
        dict(zip(zip(t["candidate"], t["strength"], strict=True), t["score" if "score" in t else "loss"], strict=True))
        for t in tables
    )
    applies(first.keys() == second.keys())
    for key, loss in first.items():
        separable = key[0] == "rescaled" and draw.task != "regression"  # no scale of the scores has the least loss
        if key[1] >= 0.01 and not separable:
            assert np.isclose(loss, second[key], rtol=2e-3, atol=2e-3), (key, loss, second[key])


def a_great_margin_keeps_the_model(draw: TunedDraw) -> None:
    applies(not draw.parameters["finetune"].new_head and draw.validation is None)
    tuner = FineTuner(**draw.parameters["finetune"].get_params() | {"margin": 1e9})
    kept = predictions(draw.fit(draw.estimator(finetune=tuner)), draw.X)
    expected = predictions(draw.model, draw.X)
    applies(kept.shape == expected.shape)
    assert np.allclose(kept, expected, rtol=1e-4, atol=1e-4), difference("predictions", kept, expected)


def shares_are_of_candidates(draw: TunedDraw) -> None:
    found = draw.fit().fine_tuning_
    share = np.asarray(found["share"]) if "share" in found else None
    applies(share is not None)
    assert share is not None
    assert np.isclose(share.sum(), 1)
    assert (share >= 0).all()


def pickles_predict_and_go_on(draw: TunedDraw) -> None:
    first = draw.fit()
    twin = pickle.loads(pickle.dumps(first))
    same(first, twin, draw.X)
    for one in (first, twin):
        draw.passes(one)
    same(first, twin, draw.X)


def new_rows_are_fitted_no_worse(draw: TunedDraw) -> None:
    """Without folds to choose by, a search without a pull lowers the loss of its rows."""
    applies(not draw.parameters["finetune"].new_head and draw.old is None and draw.validation is None)
    applies(draw.task == "regression" and draw.parameters["loss"].name == "squared_error")
    tuner = FineTuner(0.0, recalibrate=False, cv=2, max_iter=10)
    estimator = draw.fit(draw.estimator(finetune=tuner))
    weights = np.ones(len(draw.y)) if draw.weights is None else draw.weights

    def loss(model: Any) -> float:
        return float(np.average((np.ravel(model.predict(draw.X)) - draw.y) ** 2, weights=weights))

    assert loss(estimator) <= loss(draw.model) * (1 + 1e-4) + 1e-6


def old_rows_of_a_file_are_those_of_the_model(draw: TunedDraw) -> None:
    """A second fine-tuning begins from the given model, not from the first."""
    first = draw.fit()
    before = outcome(first, draw.X)
    again = draw.fit(first)
    for name, array in outcome(again, draw.X).items():
        assert np.array_equal(array, before[name]), difference(name, array, before[name])


def epochs_end_finite(draw: TunedDraw) -> None:
    try:
        found = draw.fit()
    except DivergenceError:
        return
    assert np.isfinite(predictions(found, draw.X)).all()
    assert all(np.isfinite(array).all() for array in found.weights_.values())


OWN: tuple[Callable[[Any], None], ...] = (
    engines_tune_alike,
    a_great_margin_keeps_the_model, shares_are_of_candidates, pickles_predict_and_go_on, new_rows_are_fitted_no_worse,
    old_rows_of_a_file_are_those_of_the_model, epochs_end_finite,
)  # fmt: skip

OF_TUNING: dict[str, Callable[[WideDraw], None]] = {
    **{name: relations.RELATIONS[name] for name in SHARED},
    **{function.__name__: function for function in OWN},
}
"""All relations of fine-tuning, by name."""
