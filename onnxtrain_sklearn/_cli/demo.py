"""``demo``: train on three data sets beside scikit-learn's MLP.

Both sides get the same data, network, optimizer, batch size and stopping rule, and search the same learning rates. The
command prints scores and times, writes each trained model as ONNX, and compares its predictions in onnxruntime.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._ort import devices, sessions
from ..models import MLP
from .console import Command, Console, Outcome

HIDDEN_UNITS = {"digits": 64, "breast_cancer": 16, "diabetes": 16}
DEMO_SETTINGS: dict[str, Any] = {"batch_size": 64, "max_iter": 60, "alpha": 0.0, "random_state": 0}
LEARNING_RATES = [0.001, 0.003, 0.01]


@dataclass(frozen=True)
class Split:
    """Rows to search and train on, and rows held out; a regression target is in units of its standard deviation."""

    X_train: np.ndarray
    X_test: np.ndarray
    y_train: np.ndarray
    y_test: np.ndarray

    @property
    def is_classification(self) -> bool:
        return self.y_train.dtype.kind != "f"


@dataclass(frozen=True)
class Result:
    """A data set, the two searches that were fitted on it, and scikit-learn's network at our best learning rate."""

    name: str
    split: Split
    ours: GridSearchCV
    theirs: GridSearchCV
    peer: MLPClassifier | MLPRegressor


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--data", nargs="+", choices=HIDDEN_UNITS, default=list(HIDDEN_UNITS), help="default: all")


def _demo(options: argparse.Namespace, console: Console) -> Outcome:
    options.output.mkdir(parents=True, exist_ok=True)
    console.say(f"Searching learning rates {LEARNING_RATES} by 3-fold cross-validation, then training with the best.")
    results = [_search(name) for name in options.data]
    for line in ("", *_format_table(results), ""):
        console.say(line)
    equal = [_export(result, options.output / f"{result.name}.onnx", console) for result in results]
    _draw(results, options.output / "loss_curves.png", console)
    records = []
    for result in results:
        searches = {"ours": result.ours, "sklearn": result.theirs}
        test = result.split.X_test, result.split.y_test
        records.append(
            {
                "data": result.name,
                "test_score": {name: search.score(*test) for name, search in searches.items()},
                "seconds": {name: _seconds(search) for name, search in searches.items()},
                "best": result.ours.best_params_,
            }
        )
    return Outcome({"results": records}, [], all(equal))


def _search(name: str) -> Result:
    """Search the learning rate of both networks on a data set."""
    split, hidden = _load(name), HIDDEN_UNITS[name]
    ours: BaseEstimator
    if split.is_classification:
        ours = OrtGradientClassifier(MLP((hidden,)), optimizer="adam", **DEMO_SETTINGS)
        theirs = MLPClassifier(hidden_layer_sizes=(hidden,), solver="adam", **DEMO_SETTINGS)
    else:
        ours = OrtGradientRegressor(MLP((hidden,)), optimizer="adam", **DEMO_SETTINGS)
        theirs = MLPRegressor(hidden_layer_sizes=(hidden,), solver="adam", **DEMO_SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # some of the rates are too small on purpose
        found = [_fit(estimator, split) for estimator in (ours, theirs)]
        # The curves of both are drawn at one learning rate, and scikit-learn's best one may be another.
        peer = clone(found[1].best_estimator_).set_params(**found[0].best_params_).fit(split.X_train, split.y_train)
    return Result(name, split, found[0], found[1], peer["net"])


def _load(name: str) -> Split:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    stratify = y if y.dtype.kind == "i" else None
    X_train, X_test, y_train, y_test = train_test_split(X.astype(np.float32), y, stratify=stratify, random_state=0)
    if stratify is None:
        mean, deviation = y_train.mean(), y_train.std()
        y_train, y_test = (y_train - mean) / deviation, (y_test - mean) / deviation
    return Split(X_train, X_test, y_train, y_test)


def _fit(estimator: BaseEstimator, split: Split) -> GridSearchCV:
    pipeline = Pipeline([("scale", StandardScaler()), ("net", estimator)])
    search = GridSearchCV(pipeline, {"net__learning_rate_init": LEARNING_RATES}, cv=3, error_score="raise")
    return search.fit(split.X_train, split.y_train)


def _format_table(results: Sequence[Result]) -> list[str]:
    head = f"{'data':<14} {'score':<9} {'estimator':<23} {'rate':>5} {'on test rows':>15} {'seconds':>10} {'speed':>7}"
    lines = [head, "-" * len(head)]
    for result in results:
        measure = "accuracy" if result.split.is_classification else "R²"
        ratio = _seconds(result.theirs) / _seconds(result.ours)
        lines += [
            f"{result.name:<14} {measure:<9} {_result_columns(result.ours, result.split)} {ratio:>6.1f}x",
            f"{'':<24} {_result_columns(result.theirs, result.split)} {1.0:>6.1f}x",
        ]
    return lines


def _result_columns(search: GridSearchCV, split: Split) -> str:
    net = search.best_estimator_["net"]
    score = search.score(split.X_test, split.y_test)
    return f"{type(net).__name__:<23} {net.learning_rate_init:>5} {score:>15.3f} {_seconds(search):>10.1f}"


def _seconds(search: GridSearchCV) -> float:
    """Return the time of all fits of a search and of the last one on all rows."""
    return float(np.sum(search.cv_results_["mean_fit_time"]) * search.n_splits_ + search.refit_time_)


def _export(result: Result, path: Path, console: Console) -> bool:
    """Write the trained graph, run the file by onnxruntime alone, and say whether it predicts the same."""
    pipeline = result.ours.best_estimator_
    path.write_bytes(pipeline["net"].to_onnx().SerializeToString())
    X = pipeline["scale"].transform(result.split.X_test)
    reloaded = _run(path, X)
    equal = np.array_equal(reloaded.ravel(), pipeline["net"].predict(X).ravel())
    verdict = "equal to" if equal else "DIFFERENT FROM"
    console.say(
        f"{path} ({path.stat().st_size:,} bytes): in onnxruntime its {len(X)} predictions are {verdict} predict's."
    )
    return equal


def _run(path: Path, X: np.ndarray) -> np.ndarray:
    """Return the first output (of a classifier the labels) of a model file."""
    session = sessions.create_session(path.read_bytes(), devices.resolve_device())
    return np.asarray(session.run(None, {session.get_inputs()[0].name: X})[0])


def _draw(results: Sequence[Result], path: Path, console: Console) -> None:
    """Draw the losses of both networks at the same learning rate."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.say("The picture of the loss curves needs matplotlib: pip install matplotlib.")
        return
    figure = Figure(figsize=(4 * len(results), 3.2), layout="constrained")
    for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        ours = result.ours.best_estimator_["net"]
        scale = 1.0 if result.split.is_classification else 2.0  # scikit-learn halves the squared error
        for net, factor in ((ours, 1.0), (result.peer, scale)):
            axes.plot(np.arange(1, net.n_iter_ + 1), factor * np.array(net.loss_curve_), label=type(net).__name__)
        title = f"{result.name}, learning rate {ours.learning_rate_init}"
        axes.set(title=title, xlabel="epoch", ylabel="training loss", yscale="log")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)
    console.say(f"{path}: the loss curves.")


DEMO = Command(_demo_arguments, _demo)
