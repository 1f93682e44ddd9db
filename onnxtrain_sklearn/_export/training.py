"""Train exported graphs in Python, as a loop in any other language does.

``load_training`` reads a folder (``folder``) or a file with ``training_info``. It returns a ``Training``, whose
``partial_fit`` encodes rows and targets by the manifest and runs the graph of a step on each minibatch. ``LoopRates``
follows the schedules that the manifest names.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, DTypeLike

from .._data.batches import weighted_rows
from .._data.columns import require_in_memory
from .._data.inputs import Inputs, is_frame
from .._data.targets import (
    Targets,
    checked_weights,
    class_targets,
    joined_targets,
    position_targets,
    regression_targets,
    spread,
)
from .._ir.limits import current_limits, exceeded
from .._ort import devices, sessions
from .._training.randomness import UniformNumbers
from .._utils.atomic_files import whole_file
from .._utils.errors import refusing
from ..exceptions import ModelError, instead_of, nearest
from ..schedules import SCHEDULES, Progress, Schedule
from .folder import TrainingFolder, read_folder
from .state_files import CONSTANTS, StateArrays, state_bytes
from .step_graph import DECAY_FACTOR, DROPOUT_FACTOR, weights_of_rows
from .training_info import read_training_model

if TYPE_CHECKING:
    from typing_extensions import Self


class Training:
    """Training graphs that :func:`load_training` has read, and the state of their training.

    Attributes
    ----------
    manifest : dict
        The description of the graphs: loss, optimizer, classes, inputs and outputs.
    state : dict of str to ndarray
        Weights, optimizer state and number of steps, as ``load_state`` of an estimator takes them.
    loss_curve_ : list of float
        Mean loss of each pass.
    """

    def __init__(self, content: TrainingFolder, shuffle: bool, random_state: int | None) -> None:
        self.manifest = dict(content.manifest)
        self.state: dict[str, np.ndarray] = StateArrays(content.state, self.manifest.get(CONSTANTS))
        self.loss_curve_: list[float] = []
        self._graphs = content.graphs
        self._sessions = dict[str, sessions.InferenceSession]()
        self._rng = np.random.default_rng(random_state) if shuffle else None
        self._draws = int(self.manifest["random"]["draws"])
        with refusing("The schedules that the manifest names cannot be made"):
            self._rates = LoopRates(self.manifest)

    def partial_fit(
        self,
        X: ArrayLike | Mapping[str, ArrayLike],
        y: ArrayLike | Mapping[str, ArrayLike],
        sample_weight: ArrayLike | Mapping[str, ArrayLike | None] | None = None,
        *,
        learning_rate: float | None = None,
    ) -> Self:
        """Train for one epoch.

        After an error or an interrupt (Ctrl-C), all is as before the pass.

        Parameters
        ----------
        X : array-like, or dict of str to array-like
            Rows of the graph's input, or a dict of rows by input; a data frame if the inputs are columns of a table.
        y : array-like, or dict of str to array-like
            Labels or numbers, as the estimator takes them; for several outputs a dict by output.
        sample_weight : array-like of shape (n_samples,), or dict of str to array-like, default=None
            Weight of each row in the mean loss; for several outputs it may be a dict by output. Rows of weight zero
            are in no minibatch.
        learning_rate : float, default=None
            Learning rate of all steps. None: the estimator's schedule, from its progress at the export. Schedules of
            weight decay and dropout always continue.

        Returns
        -------
        self
        """
        own, total = self._rows(X), 0.0
        n_rows = len(next(iter(own.values())))
        inputs = {v.name: (INPUT_TYPES[v.type], v.shape) for v in self._session("step").get_inputs()}
        given, weights, weights_in_loss = loop_targets(self.manifest, inputs, y, sample_weight, n_rows)
        data = own | given
        sizes = {name: len(rows) for name, rows in data.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"X and y have different numbers of rows: {sizes}.")
        with self._rolled_back_on_error():
            minibatches = self._minibatches(weighted_rows(np.arange(n_rows), weights_in_loss)[0])
            self._rates.begin(len(minibatches))
            for rows in minibatches:
                rates = self._rates.next(None if learning_rate is None else float(learning_rate))
                total += float(weights_in_loss[rows].sum()) * self._step(data, weights, rows, rates)
        seen = np.sort(np.concatenate(minibatches))
        self._rates.end(len(seen))
        self.loss_curve_.append(total / float(weights_in_loss[seen].sum()))
        return self

    @contextmanager
    def _rolled_back_on_error(self) -> Iterator[None]:
        """Restore the state, the progress of the schedules and the random numbers if a pass fails."""
        state, draws, progress = self.state, self._draws, replace(self._rates.progress)
        order: Any = None if self._rng is None else self._rng.bit_generator.state
        try:
            yield
        except BaseException:
            self.state, self._draws, self._rates.progress = state, draws, progress
            if self._rng is not None:
                self._rng.bit_generator.state = order
            raise

    def predict(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Any:
        """Return labels or predicted numbers; for several outputs a dict of them by output."""
        found = self._predictions(X)
        if "targets" not in self.manifest:
            return _rows_predicted(self.manifest["task"], next(iter(found.values())))
        facts = self.manifest["targets"]
        return {one["output"]: _rows_predicted(one["task"], found[one["predictions"][0]]) for one in facts}

    def predict_proba(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Any:
        """Return probabilities, or scores if the loss has no probabilities.

        For several outputs, return a dict of those that have labels.
        """
        found = self._predictions(X)
        if "targets" in self.manifest:
            facts = [one for one in self.manifest["targets"] if len(one["predictions"]) > 1]
            if facts:
                return {one["output"]: found[one["predictions"][1]] for one in facts}
        elif len(found) > 1:
            return list(found.values())[1]
        raise AttributeError("predict_proba: these graphs predict numbers, which have no probabilities.")

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file of safetensors, for ``load_state`` of an estimator."""
        with whole_file(Path(path)) as file:
            file.write(state_bytes(self.state, self.manifest.get(CONSTANTS)))

    def _session(self, graph: str) -> sessions.InferenceSession:
        if graph not in self._sessions:
            if graph not in self._graphs:
                raise ModelError(f"There is no {graph}.onnx: export with form='both' or {graph!r} to train in Python.")
            session = sessions.create_session(self._graphs[graph], devices.resolve_device())
            self._require_described(graph, session)
            self._sessions[graph] = session
        return self._sessions[graph]

    def _require_described(self, graph: str, session: sessions.InferenceSession) -> None:
        """Raise ModelError unless a graph has the inputs and outputs that the manifest names."""
        # the names in the manifest that this module uses
        targets: list[Any] = self.manifest.get("targets", [])
        if graph == "predict":
            wanted = list[str]()
            results = [name for one in targets for name in one["predictions"]]
        else:
            state = self.manifest["state"]["tensors"]
            wanted = [name for role, name in self.manifest["inputs"].items() if role != "order"]
            wanted += [one["input"] for one in targets or [self.manifest["target"]]]
            wanted += [one["weight_input"] for one in targets]
            wanted += [*self.manifest["random"]["inputs"], *(one["name"] for one in state)]
            results = [self.manifest["loss_output"], *(one["output"] for one in state)]
        inputs = {value.name: value for value in session.get_inputs()}
        outputs = [value.name for value in session.get_outputs()]
        lacking = [f"input {name!r}" for name in wanted if name not in inputs]
        lacking += [f"output {name!r}" for name in results if name not in outputs]
        if lacking or not outputs:
            raise ModelError(f"The graph {graph!r} has no {[*lacking, 'output'][0]}, which its manifest names.")
        for value in inputs.values():
            if value.type not in INPUT_TYPES or not all(isinstance(size, int) for size in value.shape[1:]):
                raise ModelError(
                    f"The graph {graph!r} has the input {value.name!r} of type {value.type} and shape {value.shape}, "
                    f"which no graph of export_training has."
                )
            numbers = math.prod(size for size in value.shape if isinstance(size, int))
            if not 0 <= 8 * numbers <= current_limits().tensor_bytes:
                told = f"The graph {graph!r} has the input {value.name!r} of the shape {value.shape}"
                raise exceeded(told, "tensor_bytes")
        if graph == "step":
            shape = inputs[self.manifest["inputs"]["sample_weight"]].shape
            batch_size = self.manifest["batch_size"]
            rows = shape[0] if shape else 0
            if rows != batch_size:
                raise ModelError(f"A step takes {rows} rows, but the batch_size of its manifest is {batch_size}.")

    def _step(
        self, data: Mapping[str, np.ndarray], weights: np.ndarray, rows: np.ndarray, rates: Mapping[str, float]
    ) -> float:
        """Train on a minibatch, filled up with rows of weight zero; return its loss."""
        session = self._session("step")
        batch_size = int(self.manifest["batch_size"])
        # Padding repeats a row of the minibatch, so that no further row of an embedding occurs.
        padded = np.concatenate([rows, np.full(batch_size - len(rows), rows[0])])
        own = np.concatenate([weights[rows], np.zeros(batch_size - len(rows))])
        feeds: dict[str, np.ndarray] = {name: array[padded] for name, array in data.items()}
        kinds = {value.name: INPUT_TYPES[value.type] for value in session.get_inputs()}
        weight = self.manifest["inputs"]["sample_weight"]
        feeds[weight] = own.astype(kinds[weight])
        feeds |= {name: np.array(value, kinds[name]) for name, value in rates.items()}
        outputs = {one["output"]: one["name"] for one in self.manifest["state"]["tensors"]}
        names = [self.manifest["loss_output"], *outputs]
        results = sessions.run_session(session, names, feeds | self._random(session, len(rows)) | self.state)
        new = dict(zip(outputs.values(), results[1:], strict=True))
        if np.size(results[0]) != 1:
            raise ModelError(f"The loss of a step must be one number, but it has the shape {np.shape(results[0])}.")
        # A folder may come from an untrusted source: a state that changes its shape would fail steps later.
        for name, array in new.items():
            was = self.state[name]
            if array.shape != was.shape or array.dtype != was.dtype:
                raise ModelError(
                    f"A step makes {array.dtype} {array.shape} of {name!r}, which is {was.dtype} {was.shape}."
                )
        self.state = StateArrays(new, self.manifest.get(CONSTANTS))
        return float(results[0].item())

    def _random(self, session: sessions.InferenceSession, rows: int) -> dict[str, np.ndarray]:
        """Return the random numbers of the next step, the same that the estimator would draw for ``rows`` rows."""
        known = self.manifest["random"]
        if not known["inputs"]:
            return {}
        shapes = {value.name: value.shape for value in session.get_inputs()}
        minibatches = known.get("minibatches")
        if minibatches is None:
            return self._draw(shapes)
        found = {name: np.zeros(shapes[name], np.float32) for name in known["inputs"]}
        # the estimator draws for each minibatch that has a row
        for i in range(-(-rows * minibatches // int(self.manifest["batch_size"]))):
            for name, numbers in self._draw({name: shape[1:] for name, shape in shapes.items()}).items():
                found[name][i] = numbers
        return found

    def _draw(self, shapes: Mapping[str, list[Any]]) -> dict[str, np.ndarray]:
        """Return the numbers of one pass of the estimator, by input."""
        known = self.manifest["random"]
        inputs = [ir.val(name, ir.DataType.FLOAT, shapes[name]) for name in known["inputs"]]
        numbers = UniformNumbers(inputs, known["seed"])
        numbers.draw(self._draws)
        self._draws += 1
        return numbers.buffers

    def _minibatches(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the rows of each minibatch of the next pass over ``rows``, shuffled if asked for."""
        known = self.manifest["hyperparameters"]
        batch_size = int(self.manifest["batch_size"])
        order = rows if self._rng is None else self._rng.permutation(rows)
        # A step takes ``accumulate`` minibatches, and drop_last counts by these. If the batch_size given to the export
        # is no multiple of accumulate, the step is a single minibatch.
        count = int(known.get("accumulate", 1))
        size = batch_size if batch_size % count else batch_size // count
        if known.get("drop_last") and len(rows) > size:
            order = order[: len(rows) - len(rows) % size]
        if not self.manifest["padding"] and len(order) % batch_size:
            raise ValueError(
                f"Rows meet within a minibatch of this graph, so a short one cannot be filled up: give a multiple of "
                f"{batch_size} rows whose weight is not zero, got {len(order)}."
            )
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

    def _predictions(self, X: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, Any]:
        session = self._session("predict")
        wanted = {value.name for value in session.get_inputs()}
        state = {name: array for name, array in self.state.items() if name in wanted}
        outputs = [value.name for value in session.get_outputs()]
        return dict(zip(outputs, sessions.run_session(session, outputs, self._rows(X) | state), strict=True))

    def _rows(self, X: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        """Return the rows of each input, in its type and shape."""
        inputs = [value for value in self._session("predict").get_inputs() if value.name not in self.state]
        return rows_of_inputs(X, inputs)


def _rows_predicted(task: str, found: Any) -> np.ndarray:
    """Return predictions; numbers in one column as a vector, as estimators predict them."""
    rows = np.asarray(found)
    return rows[:, 0] if task == "regression" and rows.shape[1:] == (1,) else rows


def load_training(path: str | os.PathLike[str], *, shuffle: bool = True, random_state: int | None = None) -> Training:
    """Read training graphs, to train them in Python.

    Parameters
    ----------
    path : str or path
        A folder of ``export_training``, or a file of a model of ``to_training_onnx``.
    shuffle : bool, default=True
        Whether each pass takes the rows in another order.
    random_state : int, default=None
        Seed of that order.

    Returns
    -------
    Training
        It trains by ``partial_fit`` and predicts; ``load_state`` of an estimator takes its ``state``.

    Raises
    ------
    ModelError
        The folder or the file is incomplete, changed, or of another version.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier, load_training
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = OrtGradientClassifier(MLP((8,)), batch_size=32, learning_rate_init=0.01, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     classifier.export_training(f"{folder}/iris", X, y)
    ...     training = load_training(f"{folder}/iris", random_state=0)
    >>> for _ in range(30):
    ...     training = training.partial_fit(X, y)
    >>> bool((training.predict(X) == y).mean() > 0.9)
    True
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a folder or a file of training graphs, {instead_of(path)}.")
    if Path(path).is_dir():
        return Training(read_folder(path), shuffle, random_state)
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file or folder {os.fspath(path)}.")
    manifest, graphs, state = read_training_model(path)
    return Training(TrainingFolder(manifest, graphs, state), shuffle, random_state)


LEARNING_RATE = "learning_rate"

SCHEDULE_KEYS = {
    LEARNING_RATE: LEARNING_RATE,
    DECAY_FACTOR: "weight_decay_schedule",
    DROPOUT_FACTOR: "dropout_schedule",
}
"""Keys of the manifest that name a schedule, by the role of the input that takes its values."""


class LoopRates:
    """Learning rates and factors of the steps by the manifest's schedules, which continue from the export."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        known = manifest["hyperparameters"]
        self._initial = float(known["learning_rate_init"])
        self._max_iter = known.get("max_iter")
        self.progress = Progress(**manifest.get("progress", {}))
        self._inputs = {role: manifest["inputs"][role] for role in SCHEDULE_KEYS if role in manifest["inputs"]}
        self._facts = {role: manifest[SCHEDULE_KEYS[role]] for role in self._inputs}
        self._schedules = {role: schedule_of(fact) for role, fact in self._facts.items()}

    def begin(self, steps: int) -> None:
        """Begin a pass of ``steps`` steps; the first pass plans the total, for ``max_iter`` passes like it."""
        if self.progress.total_steps is None and self._max_iter is not None:
            self.progress.total_steps = int(self._max_iter) * steps

    def next(self, learning_rate: float | None) -> dict[str, float]:
        """Return the values for the inputs of the next step by name; a given learning rate replaces its schedule."""
        found = {name: self._factor(role) for role, name in self._inputs.items() if role != LEARNING_RATE}
        rate = self._initial * self._factor(LEARNING_RATE) if learning_rate is None else learning_rate
        self.progress.step += 1
        return {self._inputs[LEARNING_RATE]: rate, **found}

    def end(self, rows: int) -> None:
        """End a pass over ``rows`` rows."""
        self.progress.epoch += 1
        self.progress.samples += rows

    def _factor(self, role: str) -> float:
        schedule = self._schedules[role]
        if schedule is None:
            hint = (
                "give learning_rate" if role == LEARNING_RATE else "train in a loop of your own, which gives the input"
            )
            raise ModelError(
                f"The schedule {self._facts[role]['name']!r} ({SCHEDULE_KEYS[role]}) is not defined by this package, "
                f"so its factors are unknown: {hint}."
            )
        return schedule.factor(self.progress)


def schedule_of(fact: Mapping[str, Any]) -> Schedule | None:
    """Return the schedule that the manifest describes; None for one that this package does not define."""
    kind = SCHEDULES.get(fact["name"])
    if kind is None:
        return None
    found = dict(fact["parameters"])
    for name, value in found.items():
        if isinstance(value, Mapping) and {"name", "parameters"} <= value.keys():
            found[name] = schedule_of(value)
            if found[name] is None:
                return None
    schedule = kind(**found)
    schedule.validate()
    return schedule


# Rows, targets and weights as the inputs of the graphs, by the manifest.


INPUT_TYPES: Mapping[str, np.dtype[Any]] = {
    f"tensor({name})": np.dtype(sessions.ARRAY_TYPES[f"tensor({name})"])
    for name in ("float", "double", "int64", "string")
}
"""The types that inputs of exported graphs have, as NumPy's, by onnxruntime's names."""


class InputNode(Protocol):
    """An input of a graph, as onnxruntime describes it."""

    name: str
    type: str
    shape: list[int | str]


def rows_of_inputs(X: object, inputs: Sequence[InputNode]) -> dict[str, np.ndarray]:
    """Return the rows of each input in its type and shape."""
    require_in_memory(X)
    names = [one.name for one in inputs]
    if not isinstance(X, Mapping):
        columns = {str(name): name for name in X.columns} if is_frame(X) else {}
        if is_frame(X) and columns.keys() >= set(names) and all(one.shape[1:] == [1] for one in inputs):
            X = {name: X[columns[name]] for name in names}  # a table: each column is an input
        else:
            X = {names[0]: X} if len(names) == 1 else dict.fromkeys(columns)
    if X.keys() != set(names):
        raise ValueError(
            f"The graph has the inputs {sorted(names)}: give a dict of arrays, or a data frame with these columns, got "
            f"{sorted(map(str, X))}."
        )
    found = {}
    for one in inputs:
        array = np.asarray(X[one.name], INPUT_TYPES[one.type])
        if array.dtype.kind == "O" and (other := [value for value in array.ravel() if not isinstance(value, str)]):
            raise TypeError(
                f"The input {one.name!r} takes texts, got {other[0]!r}. Write a missing value as the text that stands "
                f"for it."
            )
        found[one.name] = array.reshape(len(array), *(int(size) for size in one.shape[1:]))
    return found


InputFact: TypeAlias = "tuple[DTypeLike, list[int | str]]"
"""The type of NumPy and the shape of an input of a training graph."""

Fact: TypeAlias = "Mapping[str, Any]"
"""An object of the manifest."""

RowValues: TypeAlias = "ArrayLike | Mapping[str, ArrayLike | None] | Inputs"
"""Values of rows, or those of each output by name."""


class LoopTargets(NamedTuple):
    """The arrays of all rows by input, their weights as the graph takes them, and their weights in the loss."""

    arrays: dict[str, np.ndarray]
    weights: np.ndarray
    weights_in_loss: np.ndarray


def loop_targets(
    manifest: Fact, inputs: Mapping[str, InputFact], y: RowValues, sample_weight: RowValues | None, n: int
) -> LoopTargets:
    """Return the targets of ``n`` rows."""
    require_in_memory(y, "y")
    require_in_memory(sample_weight, "sample_weight")
    if "targets" in manifest:
        return _several_targets(manifest["targets"], inputs, y, sample_weight, n)
    if isinstance(y, Mapping | Inputs):
        raise ValueError(f"These graphs have one target, but y is a {type(y).__name__}: give its values alone.")
    if isinstance(sample_weight, Mapping | Inputs):
        kind = type(sample_weight).__name__
        raise ValueError(f"These graphs have one target, but sample_weight is a {kind}: give a number for each row.")
    fact = {**manifest["target"], **{key: manifest[key] for key in ("task", "classes")}}
    values = _encoded_targets(fact, y).values
    weights = checked_weights(sample_weight, n)
    weights_in_loss = weights_of_rows(fact.get("label_weights"), values, weights)
    return LoopTargets({fact["input"]: _as_input(values, inputs[fact["input"]])}, weights, weights_in_loss)


def _several_targets(
    facts: Sequence[Fact], inputs: Mapping[str, InputFact], y: RowValues, sample_weight: RowValues | None, n: int
) -> LoopTargets:
    """Return the targets of several outputs, and the weights of the rows for each of them, as a fit has them."""
    names = [fact["output"] for fact in facts]
    given = _by_output(y, names, "y")
    weights: Mapping[str, Any] = dict.fromkeys(names, sample_weight)
    if isinstance(sample_weight, Mapping | Inputs):
        weights = _by_output({**dict.fromkeys(names), **_arrays_by_name(sample_weight)}, names, "sample_weight")
    found = [_weighted(fact, given[fact["output"]], weights[fact["output"]], n) for fact in facts]
    joined, rows = joined_targets(names, *zip(*found, strict=True))
    counted = np.ones(n) if rows is None else rows
    factors = joined.with_factors(np.flatnonzero(counted)).values[:, joined.values.shape[1] :]
    arrays = {}
    for i, (fact, (own, _)) in enumerate(zip(facts, found, strict=True)):
        arrays[fact["input"]] = _as_input(own.values, inputs[fact["input"]])
        column = factors[:, i] if factors.shape[1] else np.ones(n)
        arrays[fact["weight_input"]] = _as_input(column, inputs[fact["weight_input"]])
    return LoopTargets(arrays, counted, counted)


def _weighted(fact: Fact, y: ArrayLike, sample_weight: ArrayLike | None, n: int) -> tuple[Targets, np.ndarray | None]:
    """Return the target of an output and its weights; values of ``y`` in rows of weight zero are not read."""
    values = np.asarray(y)
    if len(values) != n:
        raise ValueError(f"Output {fact['output']!r}: X has {n} rows and y has {len(values)}.")
    weights = None if sample_weight is None else checked_weights(sample_weight, n)
    rows = np.arange(n) if weights is None or not weights.any() else np.flatnonzero(weights)
    targets = _encoded_targets(fact, values[rows])
    known = fact["label_weights"]
    own = None if weights is None else weights[rows]
    if known is not None:
        own = weights_of_rows(known, targets.values, np.ones(len(rows)) if own is None else own)
        own = None if weights is None and (own == 1).all() else own
    return (targets, own) if len(rows) == n else spread(targets, own, rows, n)


def _encoded_targets(fact: Fact, y: ArrayLike) -> Targets:
    """Return labels as indices or indicators, numbers as they are."""
    if "position" in fact["kind"]:
        ignored = math.nan if fact.get("ignores_nan") else fact.get("ignore_label")
        return position_targets(y, np.array(fact["classes"]), ignored)
    if fact["task"] == "regression":
        return regression_targets(y, allow_nd=True)
    several = fact["task"] == "multioutput"
    return class_targets(y, [np.array(own) for own in fact["classes"]] if several else np.array(fact["classes"]))


def _as_input(values: np.ndarray, known: InputFact) -> np.ndarray:
    """Return the values in the type and the shape that an input takes."""
    kind, shape = known
    return np.ascontiguousarray(values.reshape(len(values), *shape[1:]), kind)


def _by_output(data: object, names: list[str], what: str) -> Mapping[str, Any]:
    """Return data by output; raise if it is not a dict, lacks an output, or names one without a loss."""
    found = _arrays_by_name(data)
    if not isinstance(found, Mapping):
        raise TypeError(f"{what} must be a dict of arrays by output, {names}, got {type(data).__name__}.")
    for name in found:
        if name not in names:
            raise ValueError(f"{what} names {name!r}, an output without a loss.{nearest(str(name), names)}")
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{what} lacks the output(s) {missing}.")
    return found


def _arrays_by_name(data: object) -> Any:
    return data.arrays if isinstance(data, Inputs) else data
