"""Random estimators of several outputs that share a body, each with a task and a loss of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from onnxtrain_sklearn import (
    MLP,
    GraphModel,
    Inputs,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
)
from onnxtrain_sklearn.losses import LOSSES
from tests.combinations import draws
from tests.combinations.draws import LABELS, Dice
from tests.combinations.wide_draws import WIDTH, WideDraw, wide_parameters
from tests.helpers.step_options import configured

KNOWN = {"binary": np.array([3, 7]), "multiclass": LABELS}


@dataclass
class SeveralDraw(WideDraw):
    """A case: ``tasks``, ``losses`` and ``sizes`` (columns of scores) by output; ``y`` is what ``fit`` is given."""

    tasks: dict[str, str] = field(default_factory=dict)
    losses: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    builder: Any = None

    def __str__(self) -> str:
        return f"{self.tasks} {super().__str__()}"

    def estimator(self, **changes: Any) -> Any:
        return configured(OrtGradientMultiOutput(self.model), **{"loss": self.losses, **self.parameters} | changes)

    def single(self, name: str, **changes: Any) -> Any:
        """Return the estimator that trains one output."""
        kind = OrtGradientRegressor if self.tasks[name] == "regression" else OrtGradientClassifier
        own = {n: value for n, value in self.parameters.items() if n not in ("loss_weights", "class_weight")}
        if name in (self.parameters.get("class_weight") or {}):
            own["class_weight"] = self.parameters["class_weight"][name]
        single = kind(GraphModel(self.model, name), loss=self.losses[name])
        return configured(single, **own | changes)

    def classes(self) -> dict[str, Any]:
        known = {name: KNOWN[task] for name, task in self.tasks.items() if task in KNOWN}
        return {"classes": known} if known else {}

    @property
    def rows_meet(self) -> bool:
        return self.kind in ("batch", "dropout")

    @property
    def scorer(self) -> Any:
        return mean_score


def mean_score(estimator: Any, X: Any, y: Any) -> float:
    """Return a score of predictions that has no ties."""
    found = estimator.predict(X)
    return -float(np.mean([np.mean(np.asarray(found[name]) != np.asarray(y[name])) for name in found]))


def several_drawn(number: int, engine: str = "portable") -> SeveralDraw:
    """Return case ``number``."""
    dice, rng = Dice(number), np.random.default_rng(number)
    kind = dice.one("onnx", "onnx", "dropout", "batch" if engine == "portable" else "onnx")
    n, tasks = dice.one(13, 21, 34), [dice.one(*draws.TASKS) for _ in range(dice.one(1, 2, 2, 3))]
    named = {f"output_{i}": task for i, task in enumerate(tasks)}
    columns = {name: 2 if task == "multilabel" else dice.one(1, 1, 2) for name, task in named.items()}
    losses = {name: draws.drawn_loss(dice, task, draws.OF_ONE_SCORE) for name, task in named.items()}

    def targets(rows: int) -> Inputs:
        made = {o: draws.drawn_targets(rng, task, rows, losses[o][0], columns[o]) for o, task in named.items()}
        return Inputs(made)

    sizes = {o: {"multiclass": 4, "binary": 1}.get(task, columns[o]) for o, task in named.items()}
    X, y = rng.normal(size=(n, WIDTH)).astype(np.float32), targets(n)
    weights = draws.drawn_weights(dice, rng, n)
    validation = (rng.normal(size=(8, WIDTH)).astype(np.float32), targets(8)) if dice.chance(0.3) else None
    builders = {
        "onnx": MLP(
            dice.one((4,), (3, 4)), dice.one("tanh", "relu", "softplus"), normalization=dice.one(None, "layer")
        ),
        "dropout": MLP((6,), "tanh", dropout=0.4),
        "batch": MLP((4,), dice.one("tanh", "relu"), normalization="batch"),
    }
    model = split(builders[kind].build(WIDTH, sum(sizes.values()), number), sizes)
    parameters = {"engine": engine, **wide_parameters(dice, kind, "multilabel", number, engine)}
    if dice.chance(0.5):
        parameters["loss_weights"] = {dice.one(*named): dice.one(0.2, 3.0)}
    if dice.chance(0.3) and (labels := [o for o, task in named.items() if task in KNOWN]):
        own = dice.one(*labels)
        parameters["class_weight"] = {own: dice.one("balanced", {KNOWN[named[own]][0]: 3.0})}
    if parameters.get("early_stopping") and validation is None:
        parameters["validation_split"] = 0.4
    found = {o: LOSSES[name](**settings) for o, (name, settings) in losses.items()}
    changed = {o: v for o, v in dice.one(*draws.CHANGES).items() if o != "trainable"}
    return SeveralDraw(
        number, kind, "several", len(named), model, parameters, X, y, weights, validation, changed, named, found, sizes,
        builders[kind],
    )  # fmt: skip


def split(model: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """Let a graph return groups of the columns of its output."""
    graph, given = model.graph, model.graph.output[0].name
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([*sizes.values()], np.int64), "sizes"))
    graph.node.append(onnx.helper.make_node("Split", [given, "sizes"], [*sizes], axis=1, name="parts"))
    del graph.output[:]
    for name, size in sizes.items():
        graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", size]))
    return model
