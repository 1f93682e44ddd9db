"""The whole training loop in numpy and float64, by what the documentation of the parameters says.

The rows of each minibatch are those that the estimator drew, and were recorded. Where training stops, and which epoch
is the best, is decided by the losses and scores that the estimator reports, after these were compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from onnxtrain_sklearn import Linear
from onnxtrain_sklearn.schedules import Progress, Schedule, resolve_schedule
from tests.combinations.draws import Draw
from tests.combinations.networks import Network, Weights
from tests.combinations.recording import RecordedCall
from tests.combinations.steps import STEPS, Memory
from tests.contracts.test_losses import LossCase, single_row


class ReferenceLoop:
    """A run: weights, the memory of the optimizer and the progress go from one call to the next."""

    def __init__(self, draw: Draw, estimator: Any, first: RecordedCall, noise: float = 0.0) -> None:
        self.draw, self.estimator, self.network = draw, estimator, Network(draw.builder)
        self.noise, self.rng = noise, np.random.default_rng(0)
        self.weights: Weights = {n: self._nearly(a) for n, a in first.initial.items()}
        self.memory: dict[str, Memory] = defaultdict(dict)
        self.t = self.averaged = 0
        self.average: Weights = {}
        self.progress = Progress()
        loss = draw.parameters["loss"]
        self.loss = LossCase(loss.name, loss.get_params(), draw.task)
        self.center, self.scale = self._target_scale(first)
        self.columns_center, self.columns_divisor = self._column_scale(first)
        self.seen: set[int] = set()
        self.losses: list[float] = []
        self.scores: list[np.ndarray | None] = []
        self.validation_losses: list[float | None] = []

    def _nearly(self, array: np.ndarray) -> np.ndarray:
        return array * (1 + self.noise * self.rng.normal(size=array.shape))

    # --- what is known of the data ---

    def row_weights(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Return the sample weights, times those of the classes."""
        found = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
        class_weight = self.draw.parameters.get("class_weight")
        if class_weight is None:
            return found
        if class_weight == "balanced":
            totals = {c: found[y == c].sum() for c in np.unique(y).tolist() if found[y == c].sum() > 0}
            class_weight = {c: found.sum() / (len(totals) * total) for c, total in totals.items()}
        return found * np.array([class_weight.get(c, 1.0) for c in y.tolist()])

    def _target_scale(self, first: RecordedCall) -> tuple[Any, Any]:
        draw, method = self.draw, self.draw.parameters["loss"].target_scaling
        centered, self.scaled = getattr(draw.builder, "fit_intercept", True), False
        if draw.task != "regression" or draw.given or not method or not draw.parameters.get("target_scaling", "auto"):
            return 0.0, 1.0
        rows, self.scaled = first.rows, centered
        y, w = draw.encoded(draw.y)[rows], self.row_weights(draw.y, draw.weights)[rows]
        mean = np.average(y, axis=0, weights=w)
        if method == "mean":
            return 0.0, mean if centered else 1.0
        center = mean if centered else np.zeros_like(mean)
        deviation = np.sqrt(np.average((y - center) ** 2, axis=0, weights=w))
        return center, np.where(deviation > 1e-12 * np.abs(y).max(), deviation, 1.0)

    def _column_scale(self, first: RecordedCall) -> tuple[np.ndarray, np.ndarray]:
        """Return what a built network subtracts from its columns, and the powers of two that it divides them by."""
        draw, linear = self.draw, isinstance(self.draw.builder, Linear)
        method, scales = draw.parameters["loss"].target_scaling, draw.parameters.get("target_scaling", "auto")
        unscaled = draw.task == "regression" and not (method and scales)
        penalized = linear and draw.parameters.get("alpha", 0.0) > 0
        X, w = draw.X[first.rows].astype(np.float64), self.row_weights(draw.y, draw.weights)[first.rows]
        size = np.sqrt(np.average(X**2, axis=0, weights=w))
        large = (size >= 2) & (not (draw.given or unscaled or penalized))
        centered = getattr(draw.builder, "fit_intercept", True) and not draw.sparse
        mean = np.average(X, axis=0, weights=w)
        deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
        spread = np.where(deviation > 0, np.maximum(deviation, 1), size) if centered else size
        divisor = 2.0 ** np.floor(np.log2(np.where(large, spread, 1)))
        return np.where(large & centered, np.round(mean / divisor) * divisor, 0), divisor

    def _scaled_rows(self, X: np.ndarray) -> np.ndarray:
        return (X.astype(np.float64) - self.columns_center) / self.columns_divisor

    # --- one call ---

    def follow(self, kind: str, call: RecordedCall) -> None:
        """Train as a call of ``fit`` or ``partial_fit`` did."""
        settings, passes = self.estimator.get_params(), call.passes
        self.call, self.settings = call, settings
        self.seen |= set(call.rows.tolist())
        names = set(call.trained)
        if self.t and names != set(self.trained):  # other parameters: the optimizer starts again
            self._restart()
        self.trained = self.network.trained = list(call.trained)
        averages = settings["optimizer__ema_decay"] is not None
        if averages != bool(self.average) or not averages:
            self.average, self.averaged = {}, 0
        if averages and not self.average:
            self.average = {n: self.weights[n].copy() for n in self.trained}
        group = settings["optimizer__accumulate"]
        steps = -(-len(passes[0]) // group)
        if kind == "fit":
            self.progress.total_steps = self.progress.step + settings["max_iter"] * steps
        elif self.progress.total_steps is None:
            self.progress.total_steps = settings["max_iter"] * steps
        self._train(kind, passes, group)

    def _restart(self) -> None:
        self.memory, self.t, self.average, self.averaged = defaultdict(dict), 0, {}, 0

    def _train(self, kind: str, passes: list[list[np.ndarray]], group: int) -> None:
        settings, call = self.settings, self.call
        watches = bool(settings["early_stopping"]) and kind == "fit"
        best_loss, best_score, idle = math.inf, -math.inf, 0
        best = self._snapshot()
        if watches and self.progress.epoch:
            best_score = call.watched_before
        self.ended = False
        for number, minibatches in enumerate(passes):
            assert not self.ended, f"the run ended after {number} epochs of {len(passes)}"
            loss = self._epoch(minibatches, group)
            self.progress.epoch += 1
            self.progress.samples += sum(map(len, minibatches))
            self.losses.append(loss)
            reported, score = call.losses[number], call.watched[number]
            self.scores.append(self._validation_scores())
            # Other losses of numbers than the squared error are watched too, in the units of the trained targets, which
            # test_early_stopping.py compares.
            by_loss = getattr(settings["loss"], "name", settings["loss"]) not in ("squared_error", None)
            if watches and self._classifies:
                self.validation_losses.append(self._validation_loss())
            else:
                self.validation_losses.append(math.nan if watches and by_loss else None)
            improved = reported <= best_loss - settings["tol"]
            if score is not None:
                improved = score >= best_score + settings["tol"] if watches else improved
                latest = settings["early_stopping"] == "best_epoch" and score == best_score
                if score > best_score or latest:
                    best_score, best = score, self._snapshot()
            best_loss, idle = min(best_loss, reported), 0 if improved else idle + 1
            if kind == "fit" and idle > settings["n_iter_no_change"]:
                self.progress.plateaus, idle = self.progress.plateaus + 1, 0
                schedule = resolve_schedule(settings["learning_rate"])
                stops = schedule.stops_at_plateau(self.progress, settings["learning_rate_init"])
                self.ended = stops and settings["early_stopping"] != "best_epoch"
        if kind == "fit" and not self.ended:
            assert len(passes) == settings["max_iter"], (len(passes), settings["max_iter"])
        if watches and math.isfinite(best_score):
            self.weights, self.average = best

    def _snapshot(self) -> tuple[Weights, Weights]:
        return {n: a.copy() for n, a in self.weights.items()}, {n: a.copy() for n, a in self.average.items()}

    def _epoch(self, minibatches: list[np.ndarray], group: int) -> float:
        losses, total = 0.0, 0.0
        for start in range(0, len(minibatches), group):
            loss, weight = self._step(minibatches[start : start + group])
            losses, total = losses + weight * loss, total + weight
        return losses / total

    def _step(self, minibatches: list[np.ndarray]) -> tuple[float, float]:
        every = self.row_weights(self.draw.y, self.draw.weights)
        weight = sum(every[rows].sum() for rows in minibatches)
        loss, gradients = 0.0, {n: np.zeros_like(self.weights[n]) for n in self.trained}
        for rows in minibatches:
            one, slopes = self._gradients(rows, every[rows])
            share = every[rows].sum() / weight
            loss += share * one
            gradients = {n: g + share * slopes[n] for n, g in gradients.items()}
        loss += self._penalize(gradients, weight)
        self._clip(gradients)
        self._update(gradients)
        return loss, weight

    def _gradients(self, rows: np.ndarray, w: np.ndarray) -> tuple[float, Weights]:
        """Return the weighted mean of the loss over some rows and its slopes; move the running statistics."""
        y = (self.draw.encoded(self.draw.y)[rows] - self.center) / self.scale
        y = y if self.draw.double else single_row(y)
        scores, values = self.network.run(self.weights, self._scaled_rows(self.draw.X[rows]))
        slopes = self.loss.differences(scores.array, y, w, left=1e-6, right=1e-6)
        slopes = self._nearly(np.round(slopes, 9))  # what cancels is zero, also to what takes the sign of it
        scores.backward(slopes, self._nearly)
        self.weights |= self.network.moved
        return self.loss.value(scores.array, y, w), {n: values[n].cotangent for n in self.trained}

    def _penalize(self, gradients: Weights, weight: float) -> float:
        alpha, share = self.settings["alpha"] / weight, self.settings["l1_ratio"]
        total = 0.0
        for name, g in gradients.items():
            p = self.weights[name]
            if p.ndim >= 2:
                total += alpha * (share * np.abs(p).sum() + (1 - share) / 2 * (p * p).sum())
                g += alpha * (share * np.sign(p) + (1 - share) * p)
        return total

    def _clip(self, gradients: Weights) -> None:
        limit = self.settings["optimizer__max_grad_norm"]
        norm = math.sqrt(sum((g * g).sum() for g in gradients.values()))
        if limit is not None and norm > limit:
            for g in gradients.values():
                g *= limit / (norm + 1e-6)

    def _update(self, gradients: Weights) -> None:
        settings, optimizer = self.settings, self.settings["optimizer"]
        rate = settings["learning_rate_init"] * self._factor("learning_rate")
        decay = getattr(optimizer, "weight_decay", 0.0) * self._factor("optimizer__weight_decay_schedule")
        self.progress.step += 1
        self.t += 1
        for name, g in gradients.items():
            rates = rate * self._by_pattern("optimizer__learning_rate_factors", name)
            decays = decay * self._by_pattern("optimizer__weight_decay_factors", name)
            p, memory = self.weights[name], self.memory[name]
            self.weights[name] = STEPS[optimizer.name](optimizer, p, g, memory, self.t, rates, decays)
        if self.average:
            d, self.averaged = settings["optimizer__ema_decay"], self.averaged + 1
            share = (1 - d) / (1 - d**self.averaged)
            for name, old in self.average.items():
                self.average[name] = old + share * (self.weights[name] - old)

    def _factor(self, name: str) -> float:
        schedule: Schedule = resolve_schedule(self.settings[name])
        return schedule.factor(self.progress)

    def _by_pattern(self, attribute: str, name: str) -> float:
        found = 1.0
        for pattern, factor in (self.settings[attribute] or {}).items():
            found = factor if fnmatchcase(name, pattern) else found
        return found

    # --- predictions ---

    @property
    def predicting(self) -> Weights:
        return {**self.weights, **self.average}

    def predictions(self, X: np.ndarray) -> np.ndarray:
        """Return scores, or predicted numbers."""
        scores = self.network.scores(self.predicting, self._scaled_rows(X))
        if self.draw.task != "regression":
            return scores
        numbers = np.exp(scores) if self.loss.loss.link("regression") == "exp" else scores
        numbers = numbers[:, : self.draw.encoded(self.draw.y).shape[1]]  # further scores are not predicted
        return self._clipped(numbers * self.scale + self.center)

    def _clipped(self, numbers: np.ndarray) -> np.ndarray:
        """Clip to the targets that were trained on; a constant one is predicted by a graph that was built for it."""
        seen = self.draw.encoded(self.draw.y)[sorted(self.seen)]
        low, high = seen.min(axis=0), seen.max(axis=0)
        if self.draw.parameters.get("clip_predictions"):
            return np.clip(numbers, low, high)
        return np.where((low == high) & self.scaled, low, numbers)

    def validation_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return X and y of the validation data, given or held out, and their weights."""
        draw = self.draw
        if draw.validation is not None:
            X, y, weights = draw.validation
            return X, y, self.row_weights(y, weights)
        held = np.setdiff1d(np.arange(len(draw.X)), self.call.rows)
        return draw.X[held], draw.y[held], self.row_weights(draw.y, draw.weights)[held]

    @property
    def _classifies(self) -> bool:
        return self.draw.task != "regression"

    def _validation_loss(self) -> float:
        """Return the mean loss on the validation rows, without the penalty."""
        X, y, w = self.validation_rows()
        return self.loss.value(self.predictions(X), self.draw.encoded(y), w)

    def _validation_scores(self) -> np.ndarray | None:
        """Return the lowest and the highest score that rounding admits."""
        if self.call.scores[0] is None:
            return None
        X, y, w = self.validation_rows()
        found, truth = self.predictions(X), self.draw.encoded(y)
        if self.draw.task == "regression":
            return np.full(2, r2(truth, found, w))
        if self.draw.task == "multiclass":
            order = np.sort(found, axis=1)
            right, close = found.argmax(axis=1) == truth.argmax(axis=1), order[:, -1] - order[:, -2] < 1e-3
        else:
            right, close = ((found > 0) == (truth > 0)).all(axis=1), (np.abs(found) < 1e-3).any(axis=1)
        return np.array([np.average(right & ~close, weights=w), np.average(right | close, weights=w)])


def r2(y: np.ndarray, found: np.ndarray, w: np.ndarray) -> float:
    mean = np.average(y, axis=0, weights=w)
    total, rest = (w[:, None] * (y - mean) ** 2).sum(axis=0), (w[:, None] * (y - found) ** 2).sum(axis=0)
    return float(np.mean(np.where(total > 0, 1 - rest / np.where(total > 0, total, 1), rest == 0)))
