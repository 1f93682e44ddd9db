"""Random settings of an estimator with data that they fit: the same number draws the same case."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import scipy.sparse as sp

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor, Runtime, schedules
from onnxtrain_sklearn.losses import LOSSES
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer
from tests.combinations.steps import STEPS
from tests.combinations.tape import ACTIVATIONS
from tests.contracts import test_losses
from tests.helpers.graphs import in_double
from tests.helpers.optimizers import SETTINGS
from tests.helpers.step_options import configured
from tests.helpers.training import NEVER

TASKS = ("regression", "binary", "multiclass", "multilabel")
LABELS = np.array(["ant", "bee", "cat", "dog"])


@dataclass
class Draw:
    """A case: what an estimator is given.

    ``given``: the graph is given as ONNX, not by its builder. ``double``: it is of float64.
    """

    number: int
    task: str
    builder: MLP | Linear
    parameters: dict[str, Any]
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    given: bool = False
    double: bool = False
    validation: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    sparse: bool = False

    def __str__(self) -> str:
        form = f"{'ONNX' if self.given else 'builder'}{' float64' if self.double else ''}"
        weights = "" if self.weights is None else f" weights={np.round(self.weights, 3).tolist()}"
        validation = "" if self.validation is None else f" X_val of {len(self.validation[0])}"
        return (
            f"{self.task} {self.builder!r} as {form}, X {self.X.shape} {self.parameters}{weights}{validation} "
            f"then {self.calls}"
        )

    def rows(self, X: np.ndarray) -> Any:
        """Return rows as the estimator takes them."""
        return sp.csr_matrix(X) if self.sparse else X

    @property
    def n_outputs(self) -> int:
        """Scores a row."""
        if self.task == "multiclass":
            return len(LABELS)
        k = self.y.shape[1] if self.y.ndim == 2 else 1
        return self.parameters["loss"].n_scores(self.task, k)

    def model(self) -> onnx.ModelProto | MLP | Linear:
        if not self.given:
            return self.builder
        proto = self.builder.build(self.X.shape[1], self.n_outputs, self.number)
        return in_double(proto) if self.double else proto

    def estimator(self, **changes: Any) -> OrtGradientClassifier | OrtGradientRegressor:
        kind = OrtGradientRegressor if self.task == "regression" else OrtGradientClassifier
        return configured(kind(self.model()), **self.parameters | changes)

    def fit_arguments(self) -> dict[str, Any]:
        """Return the keywords of ``fit`` beside X and y."""
        names = ("X_val", "y_val", "sample_weight_val")
        more = {} if self.validation is None else dict(zip(names, self.validation, strict=True))
        more |= {name: self.rows(X) for name, X in more.items() if name == "X_val"}
        return {"sample_weight": self.weights, **self.classes(), **more}

    def classes(self) -> dict[str, Any]:
        known = {"binary": np.array([3, 7]), "multiclass": LABELS}
        return {"classes": known[self.task]} if self.task in known else {}

    def encoded(self, y: np.ndarray) -> np.ndarray:
        """Return targets as columns of numbers, one for each score."""
        if self.task == "multiclass":
            return (y[:, None] == LABELS) * 1.0
        return (y[:, None] == 7) * 1.0 if self.task == "binary" else y.reshape(len(y), -1).astype(np.float64)

    def labels(self, scores: np.ndarray) -> np.ndarray:
        """Return the labels that scores stand for."""
        if self.task == "multiclass":
            return LABELS[scores.argmax(axis=1)]
        return (scores > 0) * 1 if self.task == "multilabel" else np.array([3, 7])[(scores[:, 0] > 0) * 1]


class Dice(random.Random):
    """Draws from a seed."""

    def chance(self, p: float) -> bool:
        return self.random() < p

    def one(self, *options: Any) -> Any:
        return self.choice(options)


def drawn(number: int, engine: str = "portable") -> Draw:
    """Return case ``number``."""
    dice, rng = Dice(number), np.random.default_rng(number)
    task = dice.one(*TASKS)
    builder = drawn_builder(dice, engine)
    given = dice.chance(0.5)
    n, width = dice.one(1, 2, 3, 5, 8, 13, 21, 34), dice.one(1, 2, 3, 5)
    loss, settings = drawn_loss(dice, task)
    outputs = dice.one(1, 1, 2, 3)
    draw = Draw(
        number, task, builder, {"loss": LOSSES[loss](**settings)},
        drawn_rows(rng, n, width), drawn_targets(rng, task, n, loss, outputs),
        drawn_weights(dice, rng, n), given, given and engine == "portable" and dice.chance(0.5),
    )  # fmt: skip
    if dice.chance(0.3):
        rows, m = drawn_rows(rng, 6, width), 6
        y = drawn_targets(rng, task, m, loss, outputs)
        draw.validation = (rows, y, drawn_weights(dice, rng, m) if dice.chance(0.4) else None)
    draw.parameters |= {"engine": engine, **drawn_parameters(dice, draw, engine)}
    draw.calls = drawn_calls(dice, draw.parameters)
    return draw


def drawn_builder(dice: Dice, engine: str) -> MLP | Linear:
    if dice.chance(0.15):
        return Linear(fit_intercept=dice.chance(0.7))
    sizes = dice.one((4,), (4,), (3, 4), (4, 4), ())
    normalization = dice.one(None, None, None, "layer", "batch" if engine == "portable" else "layer")
    activation = dice.one(*ACTIVATIONS, "tanh", "relu", "relu")
    residual, parametric = dice.chance(0.2), dice.chance(0.2)
    return MLP(
        sizes, activation, normalization=normalization, residual=residual, parametric_activation=parametric
    )  # fmt: skip


# Labels in no order and plain targets: the reference loop trains no others. tests/losses does.
OF_ONE_SCORE = (
    "log_loss hinge squared_hinge modified_huber focal dice squared_error absolute_error huber quantile poisson gamma "
    "tweedie log_cosh elastic epsilon_insensitive"
).split()
NAMES = [*OF_ONE_SCORE, "gaussian_nll", "laplace_nll", "quantiles", "negative_binomial"]


def drawn_loss(dice: Dice, task: str, names: Sequence[str] = NAMES) -> tuple[str, dict[str, float]]:
    name = dice.one(*(name for name in names if task in LOSSES[name].tasks))
    return name, dice.one({}, *test_losses.VARIANTS.get(name, []))


def drawn_rows(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    return rng.normal(size=(n, width)).astype(np.float32)


def drawn_targets(rng: np.random.Generator, task: str, n: int, loss: str, outputs: int) -> np.ndarray:
    if task == "regression":
        positive = LOSSES[loss]().link("regression") == "exp"
        y = rng.exponential(size=(n, outputs)) + 0.1 if positive else 3 * rng.normal(size=(n, outputs)) + 2
        return y.astype(np.float32) if outputs > 1 else y[:, 0].astype(np.float32)
    if task == "multilabel":
        return rng.integers(2, size=(n, max(2, outputs)))
    return LABELS[rng.integers(4, size=n)] if task == "multiclass" else np.array([3, 7])[rng.integers(2, size=n)]


def drawn_weights(dice: Dice, rng: np.random.Generator, n: int) -> np.ndarray | None:
    kind = dice.one("none", "none", "real", "zeros", "integers")
    if kind == "none":
        return None
    weights = rng.uniform(0.2, 3, size=n) if kind == "real" else rng.integers(1, 4, size=n).astype(np.float64)
    if kind == "zeros" and n > 2:
        weights[rng.permutation(n)[: n // 3]] = 0
    return weights


def drawn_parameters(dice: Dice, draw: Draw, engine: str) -> dict[str, Any]:
    """Return parameters of the loop and of the step; each is left at its default in a part of the cases."""
    optimizer = drawn_optimizer(dice)
    found: dict[str, Any] = {
        "optimizer": optimizer,
        "learning_rate_init": dice.one(0.003, 0.01, 0.03),
        "max_iter": dice.one(1, 2, 3, 5),
        "batch_size": dice.one("auto", 1, 2, 4, 5, 8, 100),
        "tol": NEVER,
        "alpha": 0.0,
        "random_state": draw.number,
    }
    decays = "weight_decay" in optimizer.get_params()
    options: dict[str, Any] = {
        "shuffle": lambda: False,
        "learning_rate": lambda: drawn_schedule(dice),
        "optimizer__weight_decay_schedule": lambda: drawn_schedule(dice) if decays else "constant",
        "alpha": lambda: dice.one(0.1, 3.0),
        "l1_ratio": lambda: dice.one(0.3, 1.0),
        "optimizer__max_grad_norm": lambda: dice.one(0.01, 0.3, 5.0),
        "optimizer__ema_decay": lambda: dice.one(0.5, 0.9, 0.0),
        "optimizer__accumulate": lambda: dice.one(2, 3, 50),
        "optimizer__learning_rate_factors": lambda: drawn_factors(dice, draw),
        "optimizer__weight_decay_factors": lambda: drawn_factors(dice, draw) if decays else None,
        "trainable": lambda: drawn_patterns(dice, draw),
        "early_stopping": lambda: dice.one(True, "best_epoch"),
        "validation_split": lambda: dice.one(0.3, 0.5),
        "tol": lambda: dice.one(0.0, 0.01, 0.3),
        "n_iter_no_change": lambda: dice.one(1, 2),
        "runtime": lambda: Runtime(checkpoint_activations=True) if engine == "portable" else None,
    }
    if draw.task == "regression":
        options |= {"target_scaling": lambda: None, "clip_predictions": lambda: True}
    elif draw.task != "multilabel":
        options |= {"class_weight": lambda: drawn_class_weight(dice, draw)}
    found |= {name: option() for name, option in options.items() if dice.chance(0.35)}
    found |= {"drop_last": True} if draw.number % 3 == 1 else {}
    if found.get("early_stopping") and draw.validation is None:
        found["validation_split"] = 0.4
        if len(draw.X) < 13:
            del found["early_stopping"]
    return found


def drawn_optimizer(dice: Dice) -> Optimizer:
    name = dice.one(*sorted(STEPS))
    settings = dict(dice.one(*SETTINGS[name]))
    if name in ("adagrad", "adam", "adamw", "rmsprop"):  # else rounding decides the steps of tiny gradients
        settings["epsilon"] = 0.01
    return OPTIMIZERS[name](**settings)


def drawn_schedule(dice: Dice) -> Any:
    return dice.one(
        "cosine", "linear", "one_cycle", "flat_cos", "coslog4", "invscaling", "adaptive",
        schedules.StepDecay(step_size=2, gamma=0.5), schedules.Exponential(gamma=0.9), schedules.Cosine(total_steps=5),
        schedules.Warmup(3), schedules.Warmup(2, "cosine"), schedules.Adaptive(2.0),
    )  # fmt: skip


def names_of(draw: Draw) -> list[str]:
    return [one.name for one in draw.builder.build(2, 2, 0).graph.initializer if "running" not in one.name]


def drawn_factors(dice: Dice, draw: Draw) -> dict[str, float]:
    name = dice.one(*names_of(draw))
    return dice.one({"*": 0.5}, {"*weight": 2.0, name: 0.25}, {name: 0.0}, {name: 3.0, "*": 1.5})


def drawn_patterns(dice: Dice, draw: Draw) -> list[str]:
    name = dice.one(*names_of(draw))
    return dice.one([name], ["*weight"], [name, names_of(draw)[-1]])


def drawn_class_weight(dice: Dice, draw: Draw) -> Any:
    if draw.task == "binary":
        return dice.one("balanced", {3: 0.5, 7: 2.0}, {3: 4.0})
    return dice.one("balanced", {"ant": 3.0, "bee": 0.5}, {"cat": 0.0})


CHANGES: tuple[dict[str, Any], ...] = (
    {}, {}, {"learning_rate_init": 0.02}, {"alpha": 0.5}, {"batch_size": 3}, {"max_iter": 2},
    {"optimizer__max_grad_norm": 0.1}, {"optimizer__accumulate": 2}, {"optimizer__ema_decay": 0.8},
    {"optimizer__ema_decay": None}, {"learning_rate": "cosine"}, {"early_stopping": False}, {"shuffle": False},
    {"optimizer__learning_rate_factors": {"*": 0.3}}, {"l1_ratio": 0.7, "alpha": 0.2}, {"trainable": "*bias"},
)  # fmt: skip
"""Parameters that are set between calls."""


def drawn_calls(dice: Dice, parameters: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the later calls, each with parameters that are set before it."""
    kinds = ("fit",) if parameters.get("early_stopping") else ("fit", "partial_fit")
    return [(dice.one(*kinds), dice.one(*CHANGES)) for _ in range(dice.one(0, 0, 1, 2))]
