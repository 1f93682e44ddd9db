"""One case of the fuzzer: what number N makes, what is done with it, and what the outcome says.

A case is right if it trains, or if it raises an error that this package or scikit-learn's validation raises on purpose:
one of :mod:`onnxtrain_sklearn.exceptions`, or a ValueError or TypeError by a statement ``raise`` of theirs. Whatever
else comes out, from numpy, onnx, protobuf or onnxruntime, is foreign.
"""

from __future__ import annotations

import ast
import pickle
import random
import re
import traceback
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnxruntime

import onnxtrain_sklearn
from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.exceptions import OnnxTrainError
from tests.fuzz import attacks, files, messages, mutations, settings
from tests.fuzz.seeds import Seed, pick
from tests.helpers.environment import available_engines

OWN = str(Path(onnxtrain_sklearn.__file__).parent)
TOLD = (
    *("sklearn/utils/", "sklearn/base.py", "sklearn/preprocessing/_label.py"),
    "onnxtrain_sklearn/_estimators/training_state.py:seeded",  # which seeds as check_random_state does
)
"""Where scikit-learn validates; numpy's own words come through it for what is no number."""


@dataclass
class FuzzCase:
    """What a number makes."""

    number: int
    engine: str
    seed: str
    model: Any
    X: Any
    y: Any
    weights: Any
    classify: bool
    plan: str
    parameters: dict[str, Any]
    changes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        what = " ".join(self.changes) or "nothing"
        return f"{self.seed} changed by {what}; {self.plan} engine={self.engine} {self.parameters}"


ATTACKED = 1 / 3
"""Share of the cases that are attacked beside what is changed at random."""

PLANS = ["fit"] * 5 + ["partial_fit", "gradient", "gradient", "gradient", "pickle", "twice", "validation"]


def case(number: int, folder: Path, engine: str | None = None) -> FuzzCase:
    """Return case ``number``; files that it needs are written into ``folder``."""
    rng = random.Random(number)
    name, seed = pick(rng)
    engine = engine or rng.choice([*available_engines(), "auto"])
    changes: list[str] = []
    model = _model(rng, random.Random(f"attack {number}"), seed, folder, changes)
    given = isinstance(seed.model, onnx.ModelProto)
    chance = 0.1 if changes else 0.5
    kind = OrtGradientClassifier if seed.classify != (rng.random() < 0.05) else OrtGradientRegressor
    X, y, weights = settings.drawn_data(rng, seed.X, seed.y, chance)
    parameters = settings.drawn_parameters(rng, chance, list(kind().get_params()))
    plan = "gradient" if seed.X is None else rng.choice([p for p in PLANS if given or p != "gradient"])
    classify = kind is OrtGradientClassifier
    return FuzzCase(number, engine, name, model, X, y, weights, classify, plan, parameters, changes)


def _model(rng: random.Random, second: random.Random, seed: Seed, folder: Path, changes: list[str]) -> Any:
    if not isinstance(seed.model, onnx.ModelProto):
        return seed.model
    model = onnx.ModelProto()
    model.CopyFrom(seed.model)
    changes += mutations.mutate(rng, model, rng.choice([0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 3]))
    if second.random() < ATTACKED:
        changes += attacks.attack(second, model)
    form = rng.choice(["proto"] * 12 + ["bytes"] * 3 + ["broken bytes"] * 2 + ["file"] * 2 + ["external"] * 2)
    if form != "proto":
        changes.append(form)
    try:
        if form == "file":
            return files.file_of_model(rng, model, folder)
        if form == "external":
            return files.external(rng, model, folder)
        content = model.SerializeToString()
    except (ValueError, OSError, RecursionError):  # not every mutant can be written
        return model
    if form == "proto":
        return model
    return content if form == "bytes" else messages.bytes_of(rng, content)


def run_case(one: FuzzCase) -> str:
    """Do what the case plans; return "trained" or "refused", or "foreign", "wrong" with the reason behind it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrong = _gradient(one) if one.plan == "gradient" else _train(one)
    except Exception as error:
        if allowed(error):
            return f"refused {type(error).__name__}: {str(error)[:300]}"
        return f"foreign {''.join(traceback.format_exception(error, limit=-12))[-6000:][:4500]}"
    return f"wrong {wrong}" if wrong else "trained"


def _gradient(one: FuzzCase) -> str:
    if not isinstance(one.model, onnx.ModelProto):
        return _train(one)
    rng = random.Random(one.number)
    if one.model.graph.output and rng.random() < 0.7:
        _reduce(one.model.graph)
    names = [v.name for v in (*one.model.graph.initializer, *one.model.graph.input)] or ["x"]
    wrt = rng.sample(names, min(len(names), rng.choice([1, 2, 5])))
    of = rng.choice([None, None, *(v.name for v in one.model.graph.output)])
    before = one.model.SerializeToString()
    graph = gradient_graph(one.model, wrt=wrt, of=of, engine=one.engine)
    if one.model.SerializeToString() != before:
        return "the model was changed"
    missing = {f"{name}_grad" for name in wrt} - {v.name for v in graph.graph.output}
    if missing:
        return f"no outputs {missing}"
    if _runs(one.model) and not _runs(graph):
        return "the graph runs in onnxruntime, that with its gradients does not"
    return ""


def _reduce(graph: onnx.GraphProto) -> None:
    """Put the sum of the first output before it."""
    nodes = [onnx.helper.make_node("ReduceSum", [graph.output[0].name], ["fuzz_sum"], keepdims=0)]
    graph.node.extend(nodes)
    graph.output.insert(
        0, onnx.helper.make_tensor_value_info("fuzz_sum", graph.output[0].type.tensor_type.elem_type, [])
    )


MOST_NUMBERS = 2**16
"""Numbers that a graph is fed at most, whatever it declares."""


def _runs(model: onnx.ModelProto) -> bool:
    """Whether onnxruntime loads a graph, and runs it on ones.

    A dimension of a drawn graph is called after its size, as N3 is, which others of the graph must fit: some kernels do
    not look whether they do.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {value.name: _ones(value) for value in session.get_inputs()}
        if sum(array.size for array in feeds.values()) <= MOST_NUMBERS:  # a million steps take what time they take
            session.run(None, feeds)
    except Exception:
        return False
    return True


def _ones(value: Any) -> np.ndarray:
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(bool)": bool}
    return np.ones([d if isinstance(d, int) else _size(d) for d in value.shape], kinds[value.type])


def _size(name: str | None) -> int:
    digits = re.search(r"\d+$", name or "")
    return min(int(digits[0]), 9) if digits else 2


def _train(one: FuzzCase) -> str:
    kind = OrtGradientClassifier if one.classify else OrtGradientRegressor
    known = {"max_iter": 2, "batch_size": 5, "random_state": 0, "engine": one.engine, "model": one.model}
    estimator = kind(**known).set_params(**one.parameters)
    if one.plan == "partial_fit" and hasattr(estimator, "partial_fit"):
        more = {"classes": [0, 1, 2]} if one.classify and one.number % 2 else {}
        estimator.partial_fit(one.X, one.y, **more).partial_fit(one.X, one.y, sample_weight=one.weights)
    elif one.plan == "validation":
        estimator.fit(one.X, one.y, one.weights, X_val=one.X, y_val=one.y)
    else:
        estimator.fit(one.X, one.y, sample_weight=one.weights)
    if one.plan == "twice":
        estimator.set_params(**one.parameters | {"warm_start": True}).fit(one.X, one.y)
    if one.plan == "pickle":
        estimator = pickle.loads(pickle.dumps(estimator))
    return _sane(estimator, one)


def _sane(estimator: Any, one: FuzzCase) -> str:
    """Return what is wrong with a fitted estimator; "" for nothing."""
    predicted = estimator.predict(one.X)
    rows = np.shape(one.y)[0] if np.ndim(one.y) else len(predicted)
    if len(predicted) != rows:
        return f"{len(predicted)} predictions for {rows} rows"
    if not np.isfinite(estimator.loss_):
        return f"loss_ is {estimator.loss_}"
    if one.classify and isinstance(estimator.classes_, np.ndarray) and predicted.ndim == 1:
        if not np.isin(predicted, estimator.classes_).all():
            return "a class that is none"
        if hasattr(estimator, "predict_proba"):
            p = estimator.predict_proba(one.X)
            if np.isfinite(p).all() and not ((p >= 0) & (p <= 1)).all():
                return "probabilities out of [0, 1]"
    onnx.checker.check_model(estimator.to_onnx())
    return ""


# whose error.


def allowed(error: BaseException) -> bool:
    """Whether an error is one that a user of this package may see."""
    if isinstance(error, OnnxTrainError):
        return True
    if not isinstance(error, ValueError | TypeError | MemoryError) or isinstance(error, UnicodeError) or not str(error):
        return False
    frames = list(traceback.walk_tb(error.__traceback__))
    last, line = frames[-1]
    path = last.f_code.co_filename
    if any(_is_validation(frame.f_code) for frame, _ in frames):
        return True
    return (path.startswith(OWN) or "/sklearn/" in path) and line in raises(path)


def _is_validation(code: CodeType) -> bool:
    return any(told in f"{code.co_filename}:{code.co_name}" for told in TOLD)


@cache
def raises(path: str) -> frozenset[int]:
    """Return the lines of a module's ``raise`` statements."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Raise))
    return frozenset(line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
