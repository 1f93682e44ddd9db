"""Describe what an estimator trains and what it leaves unchanged, as text, attributes and HTML."""

from __future__ import annotations

import copy
import inspect
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from importlib import metadata
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator

from .._importers.load import load
from .._ir.drawing import BoxLayout, graph_svg
from .._ir.files import without_program
from .._model.constants import tensor_of
from .._model.trainable import TrainableModel
from .._ort.operator_libraries import know_libraries
from .._training.history import EpochRows, History
from .._training.parameters import selected
from .._utils.svg import Numbers, curves_svg
from .._utils.typing import HistoryRow
from .._utils.untrusted_text import printable
from ..exceptions import ModelError
from ..losses import LossSource
from ..models import ModelSource, resolve_builder
from ..optimizers import resolve_optimizer
from ..runtime import resolve_runtime
from .adaptation import adapted
from .config import factors_of
from .fitted_state import FittedState
from .parameters import Parameters
from .source import source_of


@dataclass(frozen=True)
class Entry:
    """One constant of a graph.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : numpy.dtype
    status : {"trained", "frozen", "statistic", "constant"}
        Constants are numbers that were not recognized as weights; they are not in ``weights_``.
    reason : str
        Why it is a weight, or why it is not trained.
    learning_rate_factor, weight_decay_factor : float
        What learning rate and weight decay are multiplied by in its updates.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    status: str
    reason: str
    learning_rate_factor: float = 1.0
    weight_decay_factor: float = 1.0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Description:
    """A summary of what an estimator trains; ``print`` it, or read its attributes.

    Attributes
    ----------
    model : str
        The model that is trained.
    entries : tuple of Entry
        The float constants on which the trained output depends; empty if ``fit`` builds the graph.
    engine : str
        The gradient engine; "auto" if ``fit`` will choose it.
    opset : int or None
    output : str or None
        The trained output, or the names of several.
    loss : str
        The position of the loss in the graph.
    compared : str
        After ``fit`` of an ONNX file: whether its outputs, run by onnxruntime, were compared with those of the graph
        that was read, and the graph that is trained with the one that predicts; what was left out, and why.
    """

    model: str
    entries: tuple[Entry, ...] = ()
    engine: str = "auto"
    opset: int | None = None
    output: str | None = None
    loss: str = ""
    compared: str = ""

    def of(self, status: str) -> tuple[Entry, ...]:
        """Return the entries with a status."""
        return tuple(entry for entry in self.entries if entry.status == status)

    @property
    def n_trained(self) -> int:
        """Number of trained numbers."""
        return sum(entry.size for entry in self.of("trained"))

    def __str__(self) -> str:
        if self.output is None:
            return f"{self.model}: fit builds the graph, sized to the data, and trains what trainable selects of it."
        counts = ", ".join(f"{sum(e.size for e in self.of(s)):,} {what}" for s, what in _COUNTED.items() if self.of(s))
        head = [
            f"{self.model}, opset {self.opset}, engine {self.engine}: {counts}",
            f"output {self.output!r}, loss taken {self.loss}",
        ]
        width = max(len(entry.name) for entry in self.entries)
        lines = [_line(entry, width) for s in _COUNTED for entry in self.of(s)]
        return "\n".join([*head, *lines, *([self.compared] if self.compared else [])])


_COUNTED = {
    "trained": "trained",
    "frozen": "frozen",
    "statistic": "running statistics",
    "constant": "that are no weights",
}


def _line(entry: Entry, width: int) -> str:
    shape = "x".join(map(str, entry.shape)) or "scalar"
    factors = {"learning rate": entry.learning_rate_factor, "weight decay": entry.weight_decay_factor}
    told = "".join(f", {what} times {factor:g}" for what, factor in factors.items() if factor != 1)
    return f"  {entry.status:9} {entry.name:{width}} {shape:>12} {entry.dtype.name}: {entry.reason}{told}"


class Describable(Parameters):
    """An estimator with a method ``describe``."""

    def describe(self) -> Description:
        """Describe what is trained, what stays unchanged, and why.

        Before ``fit``, the description says what would be trained of a given graph or fitted model; after ``fit``, what
        was trained. ``fit`` prints it with ``verbose=1``.

        Returns
        -------
        Description
            ``print`` it, or read its ``entries``: name, shape, dtype, status ("trained", "frozen", "statistic",
            "constant"), reason and factors of every float constant on which the trained output depends. It also holds
            ``n_trained``, ``engine``, ``opset``, ``output``, ``loss`` and ``compared``.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from onnxtrain_sklearn import OrtGradientRegressor
        >>> ridge = Ridge().fit(*load_diabetes(return_X_y=True))
        >>> described = OrtGradientRegressor(ridge, trainable="ridge.coef").describe()
        >>> [(entry.name, entry.status) for entry in described.entries], described.n_trained
        ([('ridge.coef', 'trained'), ('ridge.intercept', 'frozen')], 10)
        """
        return _describe(self)

    def _announced(self, state: FittedState, old: FittedState | None) -> FittedState:
        """Return ``run``; print its description if it is new and the estimator is verbose."""
        if self.verbose and old is None:
            print(printable(str(_of_run(state, self)), keep="\n"))
        return state


def _describe(estimator: Describable) -> Description:
    """Return the description of an estimator, fitted or not."""
    model, state = estimator.model, vars(estimator).get("_state")
    if state is not None:
        return _of_run(state, estimator)
    title = _title(model)
    if resolve_builder(model) is not None:
        return Description(title, engine=estimator.engine)
    joined, mode = isinstance(estimator.loss, LossSource), estimator.training_mode
    several = tuple(estimator.loss) if isinstance(estimator.loss, Mapping) else ()
    know_libraries(resolve_runtime(estimator.runtime).session_options)
    given, _ = source_of(model, estimator.output, joined=joined, training_mode=mode, several=several)
    source, names = selected(adapted(estimator, given, None), estimator.trainable)
    described = _described(source, title, names, source.with_frozen_statistics(names).running_statistics)
    return replace(_with_factors(described, source, estimator), engine=estimator.engine)


def _of_run(state: FittedState, estimator: Describable) -> Description:
    """Return the description of a run of the estimator."""
    title, parameters = _title(estimator.model), state.parameters
    described = _described(state.source, title, parameters.names, parameters.running_statistics)
    return replace(_with_factors(described, state.source, estimator), engine=state.engine, compared=state.compared)


def _with_factors(described: Description, source: TrainableModel, estimator: Describable) -> Description:
    """Return the description with the factors of the trained parameters."""
    factors = factors_of(estimator, source, resolve_optimizer(estimator.optimizer))
    entries = (
        replace(entry, learning_rate_factor=found.rate, weight_decay_factor=found.decay)
        if entry.status == "trained" and (found := factors.get(entry.name))
        else entry
        for entry in described.entries
    )
    return replace(described, entries=tuple(entries))


def _title(model: ModelSource) -> str:
    model = without_program(model)
    if model is None or isinstance(model, str):
        model = resolve_builder(model) or model
    if isinstance(model, str | os.PathLike):
        return repr(os.path.basename(os.fspath(model)))
    return "ONNX graph" if isinstance(model, bytes | onnx.ModelProto) else " ".join(repr(model).split())


def _described(
    source: TrainableModel, title: str, trained: Collection[str], running_statistics: Collection[str]
) -> Description:
    return Description(
        model=title,
        entries=(*_weights(source, trained, running_statistics), *_constants(source)),
        opset=source.model.graph.opset_imports[""],
        output=", ".join(form.output for form in source.forms) or source.output,
        loss="; ".join(f"{_place_of_the_loss(one)} of {one.output!r}" for one in source.views)
        or _place_of_the_loss(source),
    )


def _weights(source: TrainableModel, trained: Collection[str], running_statistics: Collection[str]) -> list[Entry]:
    found, changed = [], {one.matrix for one in source.low_rank}
    for name, array in source.weights().items():
        role = source.roles.get(name, "weight")
        status, reason = ("trained", role) if name in trained else ("frozen", f"{role}, not selected by trainable")
        reason = f"{role}, changed by its low-rank factors" if name in changed else reason
        if name in source.statistics:
            status, reason = "statistic", "moved by training" if name in running_statistics else "stays as it is"
        kept = source.kept.weights.get(name)
        reason += f", kept as {kept.lower()}" if kept else ""
        found.append(Entry(name, array.shape, array.dtype, status, reason))
    return found


def _constants(source: TrainableModel) -> list[Entry]:
    graph = source.model.graph
    made = (value for node in graph.all_nodes() for value in node.outputs)
    values = {value.name: value for value in (*graph.initializers.values(), *made)}
    reasons = {**source.constants, **dict.fromkeys(source.narrow, "a weight of a type that is not trained")}
    for name in (*source.statistics, *source.parameters):
        reasons.pop(name, None)
    return [_constant(values[name], reason) for name, reason in reasons.items()]


def _constant(value: ir.Value, reason: str) -> Entry:
    tensor = tensor_of(value)
    assert tensor is not None
    return Entry(value.name or "", tuple(tensor.shape.numpy()), tensor.dtype.numpy(), "constant", reason)


def _place_of_the_loss(source: TrainableModel) -> str:
    if source.scores == source.output:
        return "on the output"
    link = "votes" if source.link == "votes" else f"final {source.link}"
    return f"on {source.scores!r}, before the {link}"


# The fitted attributes on the course of training: properties that read the history of the run.
#
# So they cannot disagree with each other or with the weights, whenever training ended.


class TrainingRecord:
    """Attributes of an estimator with a run; before the first run they do not exist."""

    @property
    def n_iter_(self) -> int:
        """Epochs trained, over all calls."""
        return self._history("n_iter_").progress.epoch

    @property
    def t_(self) -> int:
        """Rows seen, over all calls."""
        return self._history("t_").progress.samples

    @property
    def loss_(self) -> float:
        """Mean loss of the last epoch; NaN before the first has ended."""
        return self._history("loss_").losses.last()

    @property
    def loss_curve_(self) -> list[float]:
        """Mean loss of each epoch, of the latest 100,000."""
        return self._history("loss_curve_").loss_curve

    @property
    def history_(self) -> EpochRows:
        """A dict for each epoch: epoch, step, loss, learning_rate, seconds, scores, and what callbacks add.

        ``history_.to_frame()`` returns a pandas DataFrame. Of epochs before the latest 10,000 epoch and loss are kept.
        """
        return self._history("history_").rows

    @property
    def callbacks_(self) -> dict[str, dict[str, Any]]:
        """Memories of callbacks, keyed by class; further ones of a class by class and number, ``"EpochScoring 2"``."""
        return copy.deepcopy(self._history("callbacks_").memories)

    @property
    def best_loss_(self) -> float | None:
        """Least mean loss of an epoch; None with early stopping."""
        history = self._history("best_loss_")
        return None if history.early_stopping else history.least_loss

    @property
    def validation_scores_(self) -> list[float] | None:
        """Score after each epoch, of the latest 100,000; None without validation data."""
        return self._history("validation_scores_").validation_scores or None

    @property
    def best_validation_score_(self) -> float | None:
        """Best of the scores, with early stopping that of the best epoch; None without validation data."""
        history = self._history("best_validation_score_")
        return history.best_score if history.scores.size and math.isfinite(history.best_score) else None

    @property
    def fine_tuning_(self) -> dict[str, np.ndarray]:
        """The candidates of fine-tuning, in columns; plain training has none."""
        found = self._history("fine_tuning_").fine_tuning
        if found is None:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute 'fine_tuning_': its model was not fine-tuned."
            )
        return {name: column.copy() for name, column in found.items()}

    def _history(self, name: str) -> History:
        state: Any = vars(self).get("_state")
        if state is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: it is not fitted.")
        history: History = state.history
        return history


# HTML of an estimator in notebooks: scikit-learn's table, links to the documentation, graph and loss curve.
#
# Graph and curves are drawn as SVG by this package, so that they need no library and no network. All text in them is
# escaped: the names of a graph may be anybody's.


PACKAGE, DISTRIBUTION = "onnxtrain_sklearn", "onnxtrain-sklearn"

PAGE = f"api/generated/{PACKAGE}.{{name}}.html"
"""The page of a public class within the site of the documentation."""

MOST_BOXES = 200
"""Boxes up to which a graph is shown; larger ones cannot be read in a page."""

MOST_CURVES = 16
"""Curves that are shown at most, those of the first networks of an ensemble."""


@lru_cache(maxsize=1)
def documentation_url() -> str | None:
    """Return the address of the documentation, as pyproject.toml declares it; None if it declares none."""
    try:
        declared = metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    found = dict(re.split(r"\s*,\s*", entry, maxsplit=1) for entry in declared if "," in entry)
    return found.get("Documentation")


class HtmlRepr(BaseEstimator):
    """An estimator that unfolds in notebooks."""

    _doc_link_module = PACKAGE

    @property
    def _doc_link_template(self) -> str:
        return f"{(documentation_url() or '').rstrip('/')}/{PAGE}"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        return {"name": type(self).__name__}

    def _get_doc_link(self) -> str:
        """Return the address of the page on the class; empty for classes of others, and without documentation."""
        if documentation_url() is None or type(self).__module__.partition(".")[0] != self._doc_link_module:
            return ""
        return self._doc_link_template.format(**self._doc_link_url_param_generator())

    def _repr_html_inner(self) -> str:
        base: Any = super()
        return f"{base._repr_html_inner()}{self._meanings()}{self._pictures()}"

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        base: Any = super()
        bundle: dict[str, str] = base._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += f"{self._meanings()}{self._pictures()}"
        return bundle

    def _meanings(self) -> str:
        """Return what the parameters mean; where there are links to the documentation, scikit-learn says it."""
        declared = getattr(type(self), "declared", {})
        if documentation_url() is not None:
            return ""
        names = [name for name in inspect.signature(type(self)).parameters if name in declared]
        entries = (_entry(name, declared[name].kind, declared[name].text) for name in names)
        return _unfolding("What the parameters mean", f"<dl>{''.join(entries)}</dl>")

    def _pictures(self) -> str:
        """Return the curves and the graph of a fitted estimator, which unfold."""
        rows = getattr(self, "history_", None)
        if rows is None:
            return ""
        return f"{_unfolding('Training', _curve_drawings(rows))}{_unfolding('Graph', _graph(self))}"


def _entry(name: str, kind: str, text: str) -> str:
    """Return what a parameter means, without the marks of reStructuredText."""
    plain = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "").strip()
    return f"<dt><code>{escape(name)}</code>: {escape(kind)}</dt><dd>{escape(plain)}</dd>"


def _unfolding(title: str, content: str) -> str:
    return (
        f"<details><summary>{title}</summary>"
        f'<div style="overflow: auto; max-height: 40em; background: white; color: black">{content}</div></details>'
    )


def _curve_drawings(rows: Iterable[HistoryRow]) -> str:
    """Return the losses and the validation scores in a history."""
    losses: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}
    for row in rows:
        network = f" of network {row['network'] + 1}" if "network" in row else ""
        for found, key, name in (
            (losses, "loss", "loss"),
            (losses, "validation_loss", "validation loss"),
            (scores, "validation_score", "validation score"),
        ):
            if key in row:
                found.setdefault(name + network, []).append(_number_or_nan(row[key]))
    return "".join(curves_svg(_first(curves)) for curves in (losses, scores) if curves)


def _number_or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _first(curves: Mapping[str, Numbers]) -> dict[str, Numbers]:
    return dict(list(curves.items())[:MOST_CURVES])


def _graph(estimator: Any) -> str:
    """Return the graph that predicts."""
    try:
        graph = load(estimator.to_onnx()).graph
    except ModelError as error:  # such as of labels that ONNX has no type for
        return escape(str(error))
    describe = getattr(estimator, "describe", None)
    trained = graph.initializers if describe is None else {entry.name for entry in describe().of("trained")}
    count = len(graph) + len(graph.inputs) + len(graph.outputs)
    if count > MOST_BOXES:
        return (
            f"{count} nodes, inputs and outputs: too many to be read here. displays.plot_graph draws them for Graphviz."
        )
    layout = BoxLayout(graph, trained)
    return graph_svg(layout.boxes, layout.edges)
