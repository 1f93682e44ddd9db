"""Base classes of the recipes: parameters, ``fit``, ``predict`` and exports of an estimator that takes raw tables.

``fit`` reads the table (``raw_table``), lets ``ensemble`` train the networks, each with a ``preprocessing`` of its own,
and keeps the graph of all of them, which ``predict`` runs and ``to_onnx`` returns. Beside it, a pickle holds the
preprocessing, which reads tables, and up to 64 rows of the training data, for ``feature_importances_``. A recipe
(``realmlp``, ``tabm``) chooses the scaling of numbers, the network and its training settings.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .._data.columns import require_in_memory
from .._data.held_out import (
    RowsToSplit,
    ValidationSplit,
    is_share,
    naming_validation_data,
    r2_by_number,
    require_group_reader,
    share_of_blocks,
)
from .._data.inputs import prediction_type
from .._data.row_weights import given_weights, row_weights, weights_of_masked
from .._data.targets import (
    Targets,
    label_targets,
    regression_targets,
    require_numbers_of_columns,
    rows_that_count,
    rows_with_labels,
    warn_of_empty_rows,
)
from .._estimators.call import generator_of, optional_data
from .._estimators.distributions import PredictsDistributions
from .._estimators.fit import Snapshot, raise_or_warn
from .._estimators.outputs import LabelOutput, NumberOutput, OutputSpec
from .._estimators.parameters import SHARED, CallbackSupportMixin, DeclaredEstimator
from .._estimators.pickling import resumed_device
from .._estimators.predict import accuracy_of_labels, within_one
from .._estimators.scoring import Scoring
from .._estimators.streams import opened_source, raise_for_block, rows_in_buffer, sizes_of_blocks
from .._estimators.streams_predictions import Batching, predicted_batches, reads_source, score_of_source, scored_targets
from .._export.folder import training_folder, write_folder
from .._export.graphs import require_known_form
from .._fitted.skl2onnx_bridge import register_waiting
from .._inference.graph import Decoding
from .._inference.predictor import PredictionGraph, Predictor, prediction_graph
from .._model.links import Link, Task
from .._ort import sessions
from .._ort.devices import Device
from .._training.history import EpochRows
from .._utils.errors import refusing
from .._utils.params import COUNT, POSITIVE, Declaration, Instance, OneOf, Range, RowChoice, declare
from .._utils.typing import ClassWeight, MatrixLike, Predictions, TableLike, Validation
from ..losses import LOSSES, Loss, SquaredError, resolve_loss
from ..losses.regression import reconstructs
from ..runtime import Runtime
from .ensemble import (
    MemberRecipe,
    MemberTasks,
    MemberTraining,
    Network,
    Place,
    PreparedMember,
    RecipeExamples,
    TableExamples,
    ValidationRows,
    epochs_of,
    exported_networks,
    prepared_members,
    train_members,
    untrained_networks,
)
from .importances import SAMPLE_ROWS, EffectSource
from .preprocessing import Preprocessing, Scaling
from .raw_table import CategoricalFeatures, categorical_columns, read_table, warn_of_columns
from .streams import BlockExamples, check_columns, with_categories

if TYPE_CHECKING:
    from typing_extensions import Self


MOST_HELD_OUT = 0.5
"""Largest share of the rows in ``validation_split``."""

LOSSES_OF_NUMBERS = tuple(
    name
    for name, kind in LOSSES.items()
    if "regression" in kind.tasks and not isinstance(kind().targets, Mapping) and not reconstructs(name)
)

DEFAULT_SCORING: Mapping[Task, Scoring] = {"binary": "accuracy", "multiclass": "accuracy", "multilabel": "neg_log_loss"}
"""Scores of held-out rows by task, for ``scoring=None``; a regressor uses R².

Several labels take the log loss: their accuracy counts rows whose labels are all right, and with many labels these are
too few to compare epochs."""


# fmt: off
@dataclass(kw_only=True, eq=False, repr=False)
class RecipeParameters(DeclaredEstimator):
    """The parameters that all recipes share; a recipe adds those of its network and of its training."""

    n_ensembles: int | str = declare(1, Declaration("int", """
Number of models to train. Each holds out other rows, and one graph averages their predictions.""", (COUNT,)))
    validation_split: ValidationSplit | None = declare(0.2, Declaration("float, array-like, splitter or None", """
The rows that each model holds out if ``fit`` gets no ``X_val``. The epoch with the best score on them or the least loss
is kept (``scoring``). A float: this share of the rows, at most one half, other rows for each model. Indices of rows, or
a mask of all rows that is True for those held out. A splitter of scikit-learn, such as ``GroupShuffleSplit()``, which
reads the ``groups`` of ``fit``: the last of its splits counts for the first model, the one before it for the second,
and so on; of ``TimeSeriesSplit()`` the last one for all. Rows in neither part of a split are left out. A table of more
than ``buffer_rows`` rows needs a float. None: no rows are held out, and {unvalidated}.""",
        (Range(Real, 0, MOST_HELD_OUT, closed="right"), RowChoice(), None)))
    scoring: str | Callable[..., float] | None = declare(None, Declaration("str, callable or None", """
Score on the rows held out: the name of a scorer of scikit-learn (``"neg_mean_absolute_error"``, for classes
``"neg_log_loss"`` or ``"roc_auc"``), or a function ``(estimator, X, y) -> float`` of a network and its preprocessed
rows. Higher is better. None: {score}."""))
    time_limit: float | None = declare(None, Declaration("float or None", """
Seconds after which the fit ends with the networks trained so far, each with its best epoch. Each network of an ensemble
has an equal share of the time left, and the first one takes at least one step. How far training comes depends on the
machine. On a device, training ends after an epoch, not within it. None: no limit.""", (POSITIVE, None)))

    # Only some recipes have these two parameters. Declared here, they keep the same position in all signatures.
    label_smoothing: float | str = field(default=0.0, init=False)
    class_weight: ClassWeight = field(default=None, init=False)

    categorical_features: CategoricalFeatures = declare("from_dtype", Declaration('"from_dtype", list or None', """
The columns that are categories: a list of names or indices, or a mask of all columns. "from_dtype": columns of text,
booleans and pandas categories. None: no column."""))
    random_state: int | np.random.RandomState | None = declare(None, Declaration("int, RandomState or None", """
Seeds the rows held out, the initial weights, the order of the rows and dropout."""))
    callbacks: Sequence[object] | None = declare(None, SHARED["callbacks"])
    verbose: bool | int = declare(0, SHARED["verbose"])
    engine: str = declare("auto", SHARED["engine"])
    device: str = declare("cpu", SHARED["device"])
    runtime: Runtime | None = declare(None, SHARED["runtime"])
# fmt: on


class BaseRecipe(CallbackSupportMixin, RecipeParameters, ABC):
    """Base class of the recipes; :class:`ClassifierRecipe` and :class:`RegressorRecipe` add targets and predictions.

    An estimator derives from one of these two and from a class with the parameters of its network, which sets
    ``_scaling`` (of numbers), ``_drops_constants`` (True: columns of a single number are left out) and
    ``_early_stopping`` (that of its networks). It implements :meth:`_network`.
    """

    _scaling: ClassVar[type[Scaling]]
    _drops_constants: ClassVar[bool]
    _early_stopping: ClassVar[bool | str]
    _watches_loss: bool = False  # True: the loss of held-out rows chooses the epoch by default
    _linear_part: bool | str = False  # "auto": where it can be fitted
    classes_: np.ndarray
    n_outputs_: int
    loss_curves_: list[list[float]]
    callbacks_: list[dict[str, Any]]
    _task: Task
    _distribution: Loss | None
    _effects: EffectSource
    _importances: np.ndarray | None
    _graph: bytes
    _inputs: Preprocessing
    _device: Device
    _session_options: Mapping[str, object] | None
    _predictors: dict[tuple[int, str], Predictor]
    _epochs: list[dict[str, Any]]

    @abstractmethod
    def _encode(self, y: ArrayLike) -> Targets:
        """Return the targets as class indices or numbers."""

    @abstractmethod
    def _network(self, preprocessing: Preprocessing, n_rows: int) -> Network:
        """Return the estimator to train on ``n_rows`` rows of the preprocessed table."""

    def fit(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit the preprocessing and train the networks.

        After an error the estimator is as it was before. After an interrupt (Ctrl-C) it keeps the weights reached so
        far; members of an ensemble that were not begun are left out.

        Parameters
        ----------
        X : data frame, table of Arrow or array-like of shape (n_samples, n_features), or source
            Numbers, categories, and, of data in memory, dates and times; None, NaN, the missing values of pandas and
            empty text are missing. Of a time, the network reads the days since the first one in training, year, month,
            day of the week, hour, and the last three on circles; times with a zone are read in UTC. Tables in files, by
            path, pattern or folder, and other sources that :class:`RowBlocks` reads, need not fit into memory.
        y : array-like of shape (n_samples,), or str or list of str
            Targets; for several numbers, or labels that are 0 or 1, of shape (n_samples, n_outputs). Those missing
            (NaN) beside others of their row do not count. Of a table in files, the name of the target column, or a list
            of names; None for :class:`RowBlocks`, which holds it.
        sample_weight : array-like of shape (n_samples,), or str, default=None
            Weight of each row in the loss and in the validation score, >= 0; None: one. The preprocessing counts all
            rows alike, but those of weight 0 not at all. Of a table in files, the name of its column.
        X_val, y_val, sample_weight_val : like X, y and sample_weight, in memory, default=None
            Rows on which each network is scored after each epoch, in place of ``validation_split``.
        groups : array-like of shape (n_samples,), default=None
            The group of each row, which a splitter reads, such as ``validation_split=GroupShuffleSplit()``.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data are invalid.
        DivergenceError
            The loss, weights, optimizer state or validation predictions became NaN or infinite.
        """
        self.check_declared()
        before = Snapshot(self)
        try:
            tasks = MemberTasks(self)
            validation = optional_data("val", X_val, y_val, sample_weight_val)
            interrupted = tasks.run(lambda: self._fit((X, y, sample_weight), validation, groups, tasks))
        except BaseException:
            before.restore()
            raise
        if interrupted is not None:
            raise_or_warn(interrupted, self)
        return self

    def _fit(
        self, rows: tuple[Any, Any, Any], validation: Validation | None, groups: ArrayLike | None, tasks: MemberTasks
    ) -> KeyboardInterrupt | None:
        """Read the data, train, and set the fitted attributes; return the interrupt that ended training early."""
        X, y, sample_weight = rows
        with ExitStack() as resources:
            source = opened_source(X, y, sample_weight, resources)
            if source is None and y is None:
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
            of_source = getattr(source, "validation_split", None)
            choice = self.validation_split if of_source is None else of_source
            if is_share(choice) and choice > MOST_HELD_OUT:
                raise ValueError(f"validation_split must be at most {MOST_HELD_OUT}, got {choice}.")
            choice = None if validation is not None else choice
            require_group_reader(groups, choice)
            examples: RecipeExamples
            sizes = None if source is None else sizes_of_blocks(source)
            in_buffer = None if sizes is None else rows_in_buffer(source, sizes)
            if sizes is not None and in_buffer is None:
                if choice is not None:
                    choice = share_of_blocks(choice)
                examples = BlockExamples(self, source, sizes)
            else:
                if in_buffer is not None:
                    X, y, sample_weight = in_buffer
                    X = with_categories(source, X)
                try:
                    examples = self._table(X, y, sample_weight, groups)
                    return self._train(examples, choice, validation, tasks)
                except (ValueError, TypeError) as error:
                    if sizes is not None:
                        raise_for_block(error, self._block_checks(source, sizes))
                    raise
            return self._train(examples, choice, validation, tasks)

    def _block_checks(self, source: Any, sizes: Sequence[int]) -> Iterator[Callable[[], object]]:
        """Yield functions that check the blocks of a source one by one; all rows of it are in memory."""
        yield lambda: BlockExamples(self, source, sizes)  # reads the targets of all blocks
        yield from (partial(check_columns, self, source, i) for i, size in enumerate(sizes) if size)

    def _table(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None, groups: Any) -> TableExamples:
        """Return the rows of a table in memory, with their targets, weights and groups."""
        table = read_table(self, X, reset=True)
        categorical = categorical_columns(table, self.categorical_features)
        warn_of_columns(table, self.categorical_features)
        targets = self._encode(y)
        check_consistent_length(table.columns[0], targets.values)
        weights = self._row_weights(sample_weight, targets)
        if targets.counts_in_part:
            warn_of_empty_rows(targets)
            filled = np.zeros(len(targets.values))
            filled[rows_with_labels(targets)] = 1.0
            weights = filled if weights is None else weights * filled
        return TableExamples(table, categorical, targets, weights, RowsToSplit(X, y, groups))

    def _row_weights(self, sample_weight: ArrayLike | None, targets: Targets) -> np.ndarray | None:
        """Return the weights of rows with those of their classes; the networks count the labels that rows lack."""
        if targets.counts_in_part:
            return given_weights(targets, weights_of_masked(targets, sample_weight, self.class_weight))
        return row_weights(sample_weight, targets, self.class_weight)

    def _train(
        self,
        examples: RecipeExamples,
        choice: ValidationSplit | None,
        validation: Validation | None,
        tasks: MemberTasks,
    ) -> KeyboardInterrupt | None:
        """Train the networks and set the fitted attributes; ``choice`` says which rows are held out from each."""
        place = Place.of(self)
        if self.scoring is not None and choice is None and validation is None:
            raise ValueError(
                f"scoring={self.scoring!r} needs rows that are held out: set validation_split, 0.2 for example, or "
                f"give X_val and y_val."
            )
        recipe = self._for_rows(examples.total_rows)
        # The authors of both recipes choose the epoch by the accuracy. On few rows held out it moves in large steps.
        by_loss = recipe._watches_loss and examples.task != "multilabel"  # whose default score is a loss
        default = None if by_loss else DEFAULT_SCORING.get(examples.task)
        scoring = default if self.scoring is None else self.scoring
        count = int(recipe.n_ensembles)
        training = MemberTraining(
            self._early_stopping,
            scoring,
            partial(tasks.fit, count=count),
            self._validation_rows(validation, examples),
            partial(tasks.is_over, count),
            recipe._mixes_linear(examples, held_out=choice is not None or validation is not None),
        )
        trained = train_members(recipe._members(examples, choice), training, examples, place)
        # Set all fitted attributes at once: an error or an interrupt before this line leaves none of them behind.
        networks = trained.networks
        effects = EffectSource(trained.places, *examples.sample(SAMPLE_ROWS), examples.task, networks[0].engine_)
        vars(self).update(
            _graph=trained.graph.content,
            _prediction=trained.graph,
            _inputs=trained.preprocessing,
            _device=place.device,
            _session_options=place.session_options,
            _predictors={},
            _epochs=epochs_of(networks),
            _effects=effects,
            _importances=None,
            n_outputs_=networks[0].n_outputs_,
            n_iter_=max(network.n_iter_ for network in networks),
            loss_curves_=[network.loss_curve_ for network in networks],
            validation_scores_=[network.validation_scores_ for network in networks],
            callbacks_=[network.callbacks_ for network in networks],
            engine_=networks[0].engine_,
            device_=networks[0].device_,
        )
        if examples.classes is not None:
            self.classes_, self._task = examples.classes, examples.task
        else:
            self._distribution = networks[0]._state.decoding.distribution
        return trained.interrupted

    def _mixes_linear(self, examples: RecipeExamples, *, held_out: bool) -> bool:
        """Return True if a linear model is mixed with each network; raise if it is asked for and cannot be fitted."""
        needs = {
            "held-out rows: set validation_split, 0.2 for example, or give X_val and y_val": held_out,
            "a table of at most buffer_rows rows": isinstance(examples, TableExamples),
            "one label a row": examples.task != "multilabel",
            "loss='squared_error'": self._has_linear_loss(),
            "monotonic_cst=None": getattr(self, "monotonic_cst", None) is None,
            "targets without missing numbers": not (
                isinstance(examples, TableExamples) and examples.targets.counts_in_part
            ),
        }
        missing = [need for need, met in needs.items() if not met]
        if self._linear_part is True and missing:
            raise ValueError(f'linear_part=True needs {missing[0]}. Or set linear_part="auto" or False.')
        return bool(self._linear_part) and not missing

    def _has_linear_loss(self) -> bool:
        """Return True if a linear model minimizes the loss of the networks."""
        return True

    def _validation_rows(self, validation: Validation | None, examples: RecipeExamples) -> ValidationRows | None:
        """Return the function that prepares the rows of ``X_val`` for a network, with their targets and weights."""
        if validation is None:
            return None
        X, y, sample_weight = validation

        def prepare(preprocessing: Preprocessing, place: Place) -> Validation:
            with naming_validation_data():
                require_in_memory(X)
                table = read_table(self, X, reset=False)
                weights = sample_weight
                if self.class_weight is not None:
                    weights = self._row_weights(sample_weight, label_targets(y, examples.classes, None))
                matrix = preprocessing.transform(table, place.device, place.session_options)
            return matrix, y, weights

        return prepare

    def _for_rows(self, n_rows: int) -> Self:
        """Return a recipe in which the parameters that depend on the number of rows are known."""
        return self

    def _members(self, examples: RecipeExamples, choice: ValidationSplit | None) -> Iterator[PreparedMember]:
        """Yield the networks to train, with the rows that ``choice`` holds out."""

        def network(preprocessing: Preprocessing, n_rows: int, seed: int) -> Network:
            shared = {name: getattr(self, name) for name in ("verbose", "engine", "device", "runtime")}
            return self._network(preprocessing, n_rows).set_params(random_state=seed, **shared)

        recipe = MemberRecipe(self._scaling, self._drops_constants, network)
        return prepared_members(recipe, examples, int(self.n_ensembles), choice, generator_of(self, examples.parts))

    @property
    def history_(self) -> EpochRows:
        """A dict for each epoch of each network: the keys of a network's history, and ``network``, its number."""
        if "loss_curves_" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'history_': it is not fitted.")
        return EpochRows(map(dict, self._epochs))

    @property
    def feature_importances_(self) -> np.ndarray:
        """Mean absolute effects of the columns, of shape (n_features,); their sum is one."""
        if "_effects" not in vars(self):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute 'feature_importances_': it is not fitted."
            )
        found = self._importances
        if found is None:
            found = self._importances = self._effects.importances(self._graph, self._inputs)
        return np.array(found)

    def export_training(
        self,
        folder: str | os.PathLike[str],
        X: MatrixLike,
        y: ArrayLike,
        *,
        form: str = "both",
        target: str = "any",
        groups: ArrayLike | None = None,
    ) -> None:
        """Write a folder of graphs that train this model in any onnxruntime, in any language.

        The graphs take rows of the table, texts among them, and hold the preprocessing, which is fitted to the training
        rows of ``X``, and the network as it is before training. The manifest names the schedules of the recipe, which
        :func:`load_training` follows. The estimator stays as it is.

        Parameters
        ----------
        folder : str or path
            The folder to write. One that holds an earlier export is replaced as a whole.
        X, y : data as for :meth:`fit`
            The preprocessing is fitted without the rows that ``validation_split`` holds out.
        form : {"both", "step", "epoch"}, default="both"
            The training graphs to write.
        target : {"any", "web"}, default="any"
            What the graphs are to run on. "web": also on WebGPU in browsers, which lacks float64.
        groups : array-like of shape (n_samples,), default=None
            As for :meth:`fit`.

        Raises
        ------
        ModelError
            A column has the name of a tensor of the state.
        FileExistsError
            The folder holds other files.

        Notes
        -----
        A loop elsewhere trains on all rows that it is given, to its last epoch: it keeps no best epoch, and no linear
        model is mixed with the networks (``linear_part`` of RealMLP). ``load_training(folder).predict(table)`` predicts
        from the table; set its ``state`` to one that was trained elsewhere.

        With ``n_ensembles``, a step trains all networks on the same minibatch, each as it would be alone.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> from onnxtrain_sklearn import RealMLPClassifier, load_training
        >>> X = pd.DataFrame({"petals": [3, 4, 5, 6] * 25, "color": ["red", "blue", "white", "red"] * 25})
        >>> y = ["rose", "iris", "rose", "tulip"] * 25
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RealMLPClassifier("td-s", max_iter=20, random_state=0).export_training(f"{folder}/flowers", X, y)
        ...     training = load_training(f"{folder}/flowers", random_state=0)
        >>> for _ in range(20):
        ...     training = training.partial_fit(X, y)
        >>> bool((training.predict(X) == y).all())
        True
        """
        require_known_form(form, target)
        twin = clone(self)  # reading the table sets n_features_in_ and feature_names_in_
        twin.check_declared()
        if getattr(twin, "linear_part", False) is True:
            raise ValueError(
                "linear_part=True needs held-out rows, which exported training graphs do not have: set "
                'linear_part="auto" or False to export the networks alone.'
            )
        require_group_reader(groups, twin.validation_split)
        networks = list(untrained_networks(twin, RowsToSplit(X, y, groups)))
        with refusing("The training graphs cannot be made"):
            content = training_folder(exported_networks(type(self).__name__, networks, target), form)
        write_folder(content, folder)

    def _predict(self, X: MatrixLike, output: int) -> np.ndarray:
        """Return an output of the graph, by its index, for the rows of a table."""
        check_is_fitted(self)
        return self._run(X, self._predictor(), output)

    def _run(self, X: MatrixLike, predictor: Predictor, output: int = 0) -> np.ndarray:
        """Return an output of a graph that takes the table, for its rows."""
        table = read_table(self, X, reset=False)
        rows = len(table)
        # onnxruntime multiplies a single row by another kernel, which may differ in the last bit. Predicting the row
        # twice gives it the bits that it has among other rows.
        columns = self._inputs.columns(table.rows(np.zeros(2, int)) if rows == 1 else table)
        return predictor.run(columns, output=output)[:rows]

    def _predictor(self) -> Predictor:
        return self._predictor_of(
            "predict", lambda: vars(self).get("_prediction") or prediction_graph(ir.from_proto(self.to_onnx()))
        )

    def _predictor_of(self, values: str, graph: Callable[[], PredictionGraph]) -> Predictor:
        """Return the predictor of a graph that takes the table; ``values`` names what it computes."""
        key = sessions.forks(), values  # a forked process cannot use the sessions of its parent
        if key not in self._predictors:
            self._predictors[key] = Predictor(graph(), self._device, self._session_options, width=self._inputs.width)
        return self._predictors[key]

    def _batching(self) -> Batching:
        """Return the facts on which predictions in batches depend; the rows of a table do not meet."""

        def chunk_rows(X: MatrixLike, method: str) -> tuple[int, int]:
            table = read_table(self, X, reset=False)
            return self._predictor().chunk_rows(self._inputs.columns(table)), len(table.names)

        numbers = not hasattr(self, "classes_")
        output_spec: OutputSpec = NumberOutput(None, "auto") if numbers else LabelOutput(None, "auto")
        kind: Task = "regression" if numbers else self._task
        decoding = Decoding(kind, "identity", self.n_outputs_, None if numbers else self.classes_)
        return Batching(output_spec, decoding, self._graph, 0, chunk_rows, lambda: None)

    def to_onnx(self) -> onnx.ModelProto:
        """Return the graph that predicts from the raw table.

        Returns
        -------
        onnx.ModelProto
            Preprocessing, networks and their mean. A table of numbers is one input ``X`` of shape (N, n_features);
            missing numbers are NaN. A table with text or times has an input of shape (N, 1) for each column, by its
            name: text as strings, times as int64 nanoseconds since 1970 in UTC, all others as float32. Missing text is
            the empty string, a missing time the least int64. The outputs are those of
            :meth:`predict`: ``variable`` for regression, ``label`` and ``probabilities`` for classification.
        """
        check_is_fitted(self)
        return onnx.load_model_from_string(self._graph)

    @property
    def model_(self) -> onnx.ModelProto:
        """The graph that predicts, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        kept = {name: value for name, value in state.items() if name != "_prediction"}  # the bytes are in _graph
        return {**kept, "_predictors": {}} if "_predictors" in kept else kept

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy; if its device is missing, it continues on the CPU."""
        super().__setstate__(state)
        register_waiting()  # where skl2onnx was imported meanwhile, it can convert the loaded estimator
        if "_device" in vars(self):
            self._device = resumed_device(self, self._device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_graph")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class ClassifierRecipe(ClassifierMixin, BaseRecipe):
    """Base class of the classifiers of raw tables."""

    class_weight: ClassWeight = declare(None, Declaration('dict, list of dicts, "balanced" or None', """
Weights of the classes, a dict from labels to weights, which multiply ``sample_weight``. "balanced": inversely
proportional to the weight of the class in ``y``. If a row has several labels: a list with a dict for each, or
"balanced"; the row gets the product of the weights of its labels."""))  # fmt: skip

    def predict(self, X: TableLike) -> Predictions:
        """Predict labels.

        Parameters
        ----------
        X : as in :meth:`fit`
            Categories that ``fit`` has not seen count as missing. Of a source, the columns of ``feature_names_in_`` are
            read.

        Returns
        -------
        ndarray of shape (n_samples,), or (n_samples, n_labels) of 0 and 1
            For a source, a ``pyarrow.RecordBatchReader``, which reads and predicts a batch at a time, in the order of
            the rows, with the column ``prediction``, or ``prediction_0``, ... for several labels a row.
        """
        if reads_source(X):
            return predicted_batches(self, "predict", X)
        return np.asarray(self._predict(X, 0)).astype(self.classes_.dtype)

    def predict_proba(self, X: TableLike) -> Predictions:
        """Predict probabilities.

        Parameters
        ----------
        X : as in :meth:`predict`

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``. For several labels a row, the probability of each that it is 1. For a source,
            a ``pyarrow.RecordBatchReader`` with a column for each, named by its label.

        Notes
        -----
        For float32 ``X`` these are the outputs of the graph of :meth:`to_onnx`, whose sigmoid may round to 1.0000001:
        here it is 1. For other ``X`` they are float64, and the probabilities of a row are divided by their sum, which
        metrics such as the log loss require to be 1.
        """
        if reads_source(X):
            return predicted_batches(self, "predict_proba", X)
        check_is_fitted(self)
        link: Link = "softmax" if self._task == "multiclass" else "sigmoid"
        numbers = within_one(link, self._predict(X, 1)).astype(prediction_type(X), copy=False)
        sums_to_one = numbers.dtype != np.float32 and self._task != "multilabel"
        return numbers / numbers.sum(axis=1, keepdims=True) if sums_to_one else numbers

    def score(self, X: TableLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy: the share of rows with the right label; of several labels, all must be right.

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`
            A source is read a batch at a time.

        Returns
        -------
        float
        """
        if reads_source(X):
            return score_of_source(self, X, y, sample_weight)
        y = scored_targets(self, y, sample_weight)
        predicted = np.asarray(self.predict(X))
        return accuracy_of_labels(*rows_that_count(y, predicted, sample_weight, None))

    def _encode(self, y: ArrayLike) -> Targets:
        targets = label_targets(y, None, None)
        if targets.task == "multioutput":
            raise ValueError(
                f"{type(self).__name__} takes one label a row, or several that are 0 or 1; y holds several of other "
                f"classes. Wrap it in sklearn.multioutput.MultiOutputClassifier."
            )
        return targets

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class RegressorRecipe(PredictsDistributions, MultiOutputMixin, RegressorMixin, BaseRecipe):
    """Base class of the regressors of raw tables."""

    loss: str | Loss = declare("squared_error", Declaration("str or Loss", """
The loss of the networks: a name in :data:`onnxtrain_sklearn.losses.LOSSES` or an object. "gaussian_nll" and others
learn a distribution of each target, ``Quantiles([0.1, 0.5, 0.9])`` quantiles. With any other loss than the squared
error, the loss of the held-out rows chooses the epoch, and there is no ``linear_part``.""",
        (OneOf(LOSSES_OF_NUMBERS), Instance(Loss, "a loss"))))  # fmt: skip

    def predict(self, X: TableLike, return_std: bool = False) -> Predictions:
        """Predict numbers.

        Parameters
        ----------
        X : as in :meth:`fit`
            Categories that ``fit`` has not seen count as missing. Of a source, the columns of ``feature_names_in_`` are
            read.
        return_std : bool, default=False
            Whether to return the standard deviation of :meth:`predict_distribution` too, as a second array. It needs a
            loss for a distribution, such as ``"gaussian_nll"``, and a table in memory.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            For a source, a ``pyarrow.RecordBatchReader``, which reads and predicts a batch at a time, in the order of
            the rows, with the column ``prediction``, or ``prediction_0``, ... for several numbers a row.
        """
        if return_std:
            return self._with_deviation(X)
        if reads_source(X):
            return predicted_batches(self, "predict", X)
        return self._in_rows(self._predict(X, 0), X)

    def _in_rows(self, numbers: np.ndarray, X: Any) -> np.ndarray:
        numbers = numbers.astype(prediction_type(X), copy=False)
        return numbers.ravel() if self.n_outputs_ == 1 else numbers

    def _has_linear_loss(self) -> bool:
        return type(resolve_loss(self.loss)) is SquaredError

    def _learned(self) -> tuple[Loss | None, bool]:
        return self._distribution, len(self.loss_curves_) > 1 or hasattr(self, "n_members")

    def _with_further(self, X: Any) -> tuple[np.ndarray, dict[str, np.ndarray], Loss | None, Any]:
        names = self._predictor().outputs
        location, *others = (self._predict(X, output) for output in range(len(names)))
        further = dict(zip(names[1:], others, strict=True))
        return self._in_rows(location, X), further, self._distribution, np.float32

    def score(self, X: TableLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return R², the coefficient of determination; for several numbers a row, the mean of their R².

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`
            A source is read a batch at a time.

        Returns
        -------
        float
        """
        if reads_source(X):
            return score_of_source(self, X, y, sample_weight)
        y = scored_targets(self, y, sample_weight)
        if (found := r2_by_number(y, sample_weight, lambda: np.asarray(self.predict(X)))) is not None:
            return found
        return float(super().score(X, y, sample_weight))

    def _encode(self, y: ArrayLike) -> Targets:
        if reconstructs(self.loss):
            raise ValueError("A recipe predicts y: take OrtGradientRegressor for a loss that reconstructs X.")
        targets = regression_targets(y, allow_missing=True)
        require_numbers_of_columns(targets)
        return targets


_CLASSES = """\
classes_ : ndarray of shape (n_classes,)
    Sorted labels; if a row has several labels, their indices.
"""

_ATTRIBUTES = """\
n_features_in_ : int
    Number of columns of ``X``.
feature_names_in_ : ndarray of str
    Names of the columns, if ``X`` has them.
feature_importances_ : ndarray of shape (n_features,)
    Mean absolute effect of each column on the prediction, by integrated gradients over 64 rows of the training data;
    the sum is one. The effect of a cell compares its value with the median or the most frequent category of the column.
    For a classifier, it is the effect on the probability of the predicted class. The importances are computed when they
    are first read, and the estimator keeps these rows. They tell what the model uses, not what the score
    depends on: see :func:`sklearn.inspection.permutation_importance`.
n_outputs_ : int
    Number of scores of a row.
n_iter_ : int
    Number of epochs trained.
loss_curves_, validation_scores_ : list of list of float
    Mean loss of each epoch, and score on the rows held out: a list for each network.
history_ : list of dict
    A dict for each epoch: ``network`` (its number), ``epoch``, ``loss``, ``validation_score``, ``seconds`` and others.
    ``history_.to_frame()`` returns a pandas DataFrame.
callbacks_ : list of dict
    The memories of the callbacks, by the name of their class: a dict for each network.
engine_, device_ : str
    The gradient engine and the device that were used.
model_ : onnx.ModelProto
    The graph that :meth:`to_onnx` returns."""

FOR_CLASSES: Mapping[str, str] = {
    "attributes": f"Attributes\n----------\n{_CLASSES}{_ATTRIBUTES}",
    "score": 'the accuracy; for several labels a row "neg_log_loss"',
}
"""Texts of a classifier's documentation, by the names in braces that they replace."""

FOR_NUMBERS: Mapping[str, str] = {"attributes": f"Attributes\n----------\n{_ATTRIBUTES}", "score": "R²"}
"""The same for a regressor."""
