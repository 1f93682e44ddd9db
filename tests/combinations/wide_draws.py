"""Random estimators with models of all kinds and data in all forms, for relations that need no reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    LBFGS,
    MLP,
    AdamW,
    ConvNet,
    Linear,
    LoRA,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLP,
    Runtime,
    TabM,
)
from onnxtrain_sklearn.losses import LOSSES
from onnxtrain_sklearn.schedules import Constant, resolve_schedule
from tests.combinations import draws
from tests.combinations.draws import LABELS, Dice
from tests.helpers.graphs import in_double
from tests.helpers.step_options import configured

WIDTH = 4
MODELS = (
    "mlp", "mlp", "dropout", "batch", "linear", "convnet", "realmlp", "tabm", "onnx", "float64", "pipeline", "lora",
    "probabilities", "two inputs", "embedding", "own builder",
)  # fmt: skip


class OwnBuilder:
    """A builder that is no class of the package."""

    def build(self, n_features: int, n_outputs: int, random_state: Any = None) -> onnx.ModelProto:
        return MLP((3,), "tanh").build(n_features, n_outputs, random_state)


@dataclass
class WideDraw:
    """A case: a model by its kind, parameters and data; ``X`` is what ``fit`` is given."""

    number: int
    kind: str
    task: str
    n_outputs: int
    model: Any
    parameters: dict[str, Any]
    X: Any
    y: np.ndarray
    weights: np.ndarray | None
    validation: tuple[Any, np.ndarray] | None
    changed: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        weights = "" if self.weights is None else f" weights={np.round(self.weights, 3).tolist()}"
        validation = "" if self.validation is None else f" X_val of {len(self.validation[1])}"
        return f"{self.kind} {self.task} {len(self.y)} rows {self.parameters}{weights}{validation} {self.changed}"

    def estimator(self, **changes: Any) -> Any:
        kind = OrtGradientRegressor if self.task == "regression" else OrtGradientClassifier
        return configured(kind(self.model), **self.parameters | changes)

    def fit(self, estimator: Any = None, rows: Any = slice(None), **changes: Any) -> Any:
        """Fit a new estimator, or the given one, to the data with changes of the arguments of ``fit``."""
        estimator = self.estimator() if estimator is None else estimator
        X, y = changes.pop("X", take(self.X, rows)), changes.pop("y", self.y[rows])
        arguments = {"sample_weight": None if self.weights is None else self.weights[rows], **self.more()} | changes
        return quiet(estimator.fit, X, y, **arguments)

    def more(self) -> dict[str, Any]:
        found = {} if self.validation is None else dict(zip(("X_val", "y_val"), self.validation, strict=True))
        return found | self.classes()

    def classes(self) -> dict[str, Any]:
        known = {"binary": np.array([3, 7]), "multiclass": LABELS}
        return {"classes": known[self.task]} if self.task in known and self.kind != "pipeline" else {}

    def passes(self, estimator: Any, count: int = 1) -> Any:
        """Call ``partial_fit`` some times."""
        for _ in range(count):
            quiet(estimator.partial_fit, self.X, self.y, sample_weight=self.weights, **self.classes())
        return estimator

    def part(self, estimator: Any, rows: np.ndarray) -> None:
        """Call ``partial_fit`` with some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        quiet(estimator.partial_fit, take(self.X, rows), self.y[rows], sample_weight=weights, **self.classes())

    @property
    def scorer(self) -> Any:
        """A score that callbacks compute."""
        return "r2" if self.task == "regression" else "accuracy"

    @property
    def takes_minibatches(self) -> bool:
        return not isinstance(self.parameters["optimizer"], LBFGS)

    @property
    def constant_rates(self) -> bool:
        """Whether no schedule changes from step to step."""
        names = ("learning_rate", "optimizer__weight_decay_schedule", "dropout_schedule")
        return all(isinstance(resolve_schedule(self.parameters.get(name, "constant")), Constant) for name in names)

    @property
    def rows_meet(self) -> bool:
        """Whether the result of a minibatch is not the sum of those of its rows, or is random."""
        return self.kind in ("batch", "dropout", "realmlp") or (self.kind == "tabm" and self.model.dropout > 0)

    def has(self, *names: str) -> bool:
        """Whether any of these parameters is another than its default."""
        default = {
            **OrtGradientRegressor().get_params(),
            **OrtGradientClassifier(optimizer=AdamW()).get_params(),
            "tol": -np.inf,
            "alpha": 0.0,  # without the penalty that depends on the rows and on the scale of whole weights
        }
        return any(self.parameters.get(name, default[name]) != default[name] for name in names)


def quiet(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments, **keywords)


def take(X: Any, rows: Any) -> Any:
    return {name: array[rows] for name, array in X.items()} if isinstance(X, dict) else X[rows]


def wide_drawn(number: int, engine: str = "portable") -> WideDraw:
    """Return case ``number``."""
    dice, rng = Dice(number), np.random.default_rng(number)
    kind = dice.one(*MODELS)
    if engine != "portable" and kind in ("batch", "convnet"):
        kind = "mlp"
    tasks = {"pipeline": draws.TASKS[:3], "probabilities": draws.TASKS[1:3]}
    task = dice.one(*tasks.get(kind, draws.TASKS))
    n = dice.one(13, 21, 34)
    loss, settings = draws.drawn_loss(dice, task, draws.OF_ONE_SCORE)
    if kind == "pipeline":  # others are for other links
        loss, settings = ("huber" if task == "regression" else "log_loss"), {}
    outputs = dice.one(1, 1, 2)
    y = draws.drawn_targets(rng, task, n, loss, outputs)
    n_outputs = {"regression": outputs, "multilabel": max(2, outputs), "multiclass": 4, "binary": 1}[task]
    X = inputs(kind, rng, n)
    weights = draws.drawn_weights(dice, rng, n)
    validation = None
    if dice.chance(0.3):
        validation = inputs(kind, rng, 8), draws.drawn_targets(rng, task, 8, loss, outputs)
    model = made_model(kind, dice, rng, X, y, task, n_outputs, number)
    parameters = {
        "loss": LOSSES[loss](**settings),
        "engine": engine,
        **wide_parameters(dice, kind, task, number, engine),
    }
    if parameters.get("early_stopping") and validation is None:
        parameters["validation_split"] = 0.4
        if task != "regression" and min(np.unique(y, return_counts=True)[1]) < 5:
            del parameters["early_stopping"]
    draw = WideDraw(number, kind, task, n_outputs, model, parameters, X, y, weights, validation)
    draw.changed = {n: v for n, v in dice.one(*draws.CHANGES).items() if n != "trainable"}
    if dice.chance(0.4) and (validation is not None or parameters.get("early_stopping")):
        parameters["scoring"] = dice.one(*SCORINGS[task])
    return draw


def mean_distance(estimator: Any, X: Any, y: np.ndarray) -> float:
    """Return a score by a function of the user's own."""
    return -float(np.mean(np.asarray(estimator.predict(X)) != np.asarray(y)))


SCORINGS: dict[str, tuple[Any, ...]] = {
    "regression": ("r2", "neg_mean_absolute_error", mean_distance),
    "binary": ("balanced_accuracy", "f1_macro", mean_distance),
    "multiclass": ("balanced_accuracy", "f1_macro", mean_distance),
    "multilabel": ("f1_macro", "accuracy", mean_distance),
}
"""What early stopping may watch, by task."""


def inputs(kind: str, rng: np.random.Generator, n: int) -> Any:
    X = rng.normal(size=(n, WIDTH)).astype(np.float32)
    if kind == "two inputs":
        return {"a": X, "b": rng.normal(size=(n, 2)).astype(np.float32)}
    if kind == "embedding":
        return {"a": X, "k": rng.integers(12, size=n)}
    return rng.normal(size=(n, 4, 4)).astype(np.float32) if kind == "convnet" else X


def made_model(
    kind: str, dice: Dice, rng: np.random.Generator, X: Any, y: np.ndarray, task: str, k: int, number: int
) -> Any:
    plain = MLP(
        dice.one((4,), (3, 4)), dice.one("tanh", "relu", "softplus"), normalization=dice.one(None, None, "layer")
    )
    simple: dict[str, Callable[[], Any]] = {
        "mlp": lambda: plain,
        "dropout": lambda: MLP((6,), "tanh", dropout=0.4),
        "batch": lambda: MLP((4,), dice.one("tanh", "relu"), normalization="batch"),
        "linear": lambda: Linear(fit_intercept=dice.chance(0.7)),
        "convnet": lambda: ConvNet(2),
        "realmlp": lambda: RealMLP(dice.one("td", "td-s"), (4, 4)),
        "tabm": lambda: TabM(n_members=3, hidden_layer_sizes=(4,), dropout=dice.one(0.0, 0.2)),
        "onnx": lambda: plain.build(WIDTH, k, number),
        "lora": lambda: plain.build(WIDTH, k, number),
        "float64": lambda: in_double(plain.build(WIDTH, k, number)),
        "probabilities": lambda: with_activation(plain.build(WIDTH, k, number), "Sigmoid" if k == 1 else "Softmax"),
        "two inputs": lambda: of_two_inputs(rng, k),
        "embedding": lambda: with_embedding(rng, k),
        "own builder": OwnBuilder,
        "pipeline": lambda: fitted(dice, X, y, task),
    }
    return simple[kind]()


def with_activation(proto: onnx.ModelProto, operator: str) -> onnx.ModelProto:
    name = proto.graph.output[0].name
    proto.graph.node.append(onnx.helper.make_node(operator, [name], ["probabilities"]))
    proto.graph.output[0].name = "probabilities"
    return proto


def literal(array: np.ndarray) -> str:
    return "{" + ", ".join(repr(float(x)) for x in array.ravel()) + "}"


def of_two_inputs(rng: np.random.Generator, k: int) -> onnx.ModelProto:
    W, V = rng.normal(size=(WIDTH, k)), rng.normal(size=(2, k))
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, {WIDTH}] a, float[N, 2] b) => (float[N, {k}] Y)
        <float[{WIDTH}, {k}] W = {literal(W)}, float[2, {k}] V = {literal(V)}, float[{k}] c = {literal(np.zeros(k))}>
        {{ p = MatMul(a, W) q = MatMul(b, V) s = Add(p, q) t = Add(s, c) Y = Identity(t) }}"""
    )


def with_embedding(rng: np.random.Generator, k: int) -> onnx.ModelProto:
    W, T = rng.normal(size=(WIDTH, k)), rng.normal(size=(12, k))
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, {WIDTH}] a, int64[N] k) => (float[N, {k}] Y)
        <float[{WIDTH}, {k}] W = {literal(W)}, float[12, {k}] T = {literal(T)}>
        {{ p = MatMul(a, W) q = Gather(T, k) Y = Add(p, q) }}"""
    )


def fitted(dice: Dice, X: np.ndarray, y: np.ndarray, task: str) -> Any:
    net = dice.chance(0.5)
    if task == "regression":
        last: Any = MLPRegressor(hidden_layer_sizes=(3,), max_iter=3, random_state=0) if net else Ridge()
    else:
        last = MLPClassifier(hidden_layer_sizes=(3,), max_iter=3, random_state=0) if net else LogisticRegression()
    return quiet(make_pipeline(StandardScaler(), last).fit, X, y)


def wide_parameters(dice: Dice, kind: str, task: str, number: int, engine: str) -> dict[str, Any]:
    """Return parameters that suit any model."""
    optimizer: Any = draws.drawn_optimizer(dice)
    second = dice.chance(0.08)
    if second:
        optimizer = LBFGS()
    found: dict[str, Any] = {
        "optimizer": optimizer,
        "learning_rate_init": dice.one(0.003, 0.01, 0.03),
        "max_iter": dice.one(2, 3, 4),
        "batch_size": dice.one("auto", 4, 5, 8, 100),
        "tol": -np.inf,
        "alpha": 0.0,
        "random_state": number,
    }
    decays = "weight_decay" in optimizer.get_params()
    options: dict[str, Any] = {
        "shuffle": lambda: False,
        "learning_rate": lambda: draws.drawn_schedule(dice),
        "alpha": lambda: dice.one(0.1, 3.0),
        "l1_ratio": lambda: dice.one(0.3, 1.0),
        "early_stopping": lambda: dice.one(True, "best_epoch"),
        "tol": lambda: dice.one(0.0, 0.01),
        "n_iter_no_change": lambda: dice.one(1, 2),
        "runtime": lambda: Runtime(checkpoint_activations=True) if engine == "portable" else None,
    }
    if not second:
        options |= {
            "optimizer__max_grad_norm": lambda: dice.one(0.01, 0.3, 5.0),
            "optimizer__weight_decay_schedule": lambda: draws.drawn_schedule(dice) if decays else "constant",
            "dropout_schedule": lambda: draws.drawn_schedule(dice),
            "optimizer__ema_decay": lambda: dice.one(0.5, 0.9),
            "optimizer__accumulate": lambda: dice.one(2, 3),
            "optimizer__learning_rate_factors": lambda: dice.one({"*": 0.5}, {"*": 2.0}),
            "optimizer__weight_decay_factors": lambda: {"*": 0.5} if decays else None,
        }
    if kind == "embedding" and not second:
        options["optimizer__lazy_rows"] = lambda: True
    if task == "regression":
        options |= {"target_scaling": lambda: None, "clip_predictions": lambda: True}
    elif task != "multilabel":
        options["class_weight"] = lambda: dice.one("balanced", {3: 0.5, 7: 2.0} if task == "binary" else {"ant": 3.0})
    found |= {name: option() for name, option in options.items() if dice.chance(0.3)}
    if kind == "lora":
        found["adapters"] = LoRA(rank=2, alpha=dice.one(2.0, 8.0))
    if kind == "pipeline":
        found["finetune"] = None
    return found
