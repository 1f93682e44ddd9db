"""Choose how an output is trained and decoded: its :class:`OutputSpec`, its targets and its ``Decoding``.

It holds the parameters for one output: whether it predicts labels or numbers, how ``y`` is encoded, and
how predictions are scored. If several outputs are trained, each has one. The loss, the targets and the number of scores
then determine the decoding, which turns scores into predictions: ``task`` (a word such as "multiclass"), link and
labels. A given graph is run first, to learn whether its output holds scores, probabilities or logarithms.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .._data.declared_targets import declared_targets
from .._data.held_out import accuracy, r2_in_part, r2_of_rows
from .._data.row_weights import (
    given_weights,
    row_weights,
    weighted_positions,
    weighted_shares,
    weights_of_classes,
    weights_of_labels,
    weights_of_masked,
)
from .._data.targets import (
    Classes,
    Targets,
    checked_weights,
    filled_labels,
    label_array,
    label_targets,
    labels_of,
    masked_labels,
    position_targets,
    regression_targets,
    require_labels,
    require_numbers_of_columns,
    require_sorted,
    rows_with_labels,
    soft_accuracy,
    soft_targets,
    sorted_classes,
    validation_accuracy,
    warn_of_empty_rows,
    weigh_labels,
    weighs_labels,
)
from .._fitted.fitted_model import FittedModel, listed
from .._inference.graph import Decoding, has_ensembles
from .._model.declared_targets import Target
from .._model.links import Positions, Task
from .._model.trainable import TrainableModel
from .._ort.devices import Device
from .._pretrained.comparison import (
    ReferenceOutput,
    as_columns,
    reference_output,
    require_column_shape,
    require_target_shape,
    resolve_output_kind,
    run_graph,
)
from .._training.loss_graph import n_classes_of
from .._training.step_parts import StepSettings, TrainedPositions
from .._utils.cache import with_attributes
from .._utils.typing import ClassWeight
from ..exceptions import ModelError, warn
from ..losses import LOSSES, DistributionLoss, Loss, Quantiles, resolve_loss
from ..losses.base import LabelKind, LossOfRows
from ..losses.regression import reconstructs
from .call import EncodedData, FitContext
from .fitted_state import Columns, FittedState
from .parameters import Parameters

IGNORED_BY_DEFAULT = -100
"""The default of ``ignore_label``, as in PyTorch. Users may not know it, so a warning says if it ignores labels."""


@dataclass(frozen=True, eq=False)
class OutputSpec(ABC):
    """The parameters of one output, which predicts labels or numbers: they encode its targets and score it.

    Attributes
    ----------
    loss : str, Loss or block
        The parameter of the estimator.
    output_kind : str
        The content of the output of a given graph, such as "probabilities"; "auto": run the graph to find out.
    class_axis : int or str
    ignore_label : int, float, str or None
    class_weight : dict, list of dicts, "balanced" or None
        ``class_axis``, ``ignore_label`` and ``class_weight`` are for labels; :class:`NumberOutput` keeps the defaults.
    """

    loss: Any
    output_kind: str
    class_axis: int | str = "auto"
    ignore_label: int | float | str | None = None
    class_weight: ClassWeight = None

    classifies: ClassVar[bool]
    default_loss: ClassVar[str]
    """The default loss: with a fitted model, the loss of that model replaces it."""

    @property
    def label_kind(self) -> LabelKind:
        """The content of ``y``: "labels", or the kind of soft labels that the loss declares."""
        targets = self.loss.targets if isinstance(self.loss, Loss) and self.classifies else "labels"
        return "labels" if isinstance(targets, Mapping) else targets

    @property
    def declared(self) -> Mapping[str, Target] | None:
        """The targets that the loss declares by name; None if it takes labels or numbers."""
        return targets_declared_by(self.loss)

    @abstractmethod
    def encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return ``y`` as targets; ``classes`` are the classes of all calls, and None takes those in ``y``."""

    @abstractmethod
    def score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return the score of predictions for validation rows."""


class LabelOutput(OutputSpec):
    """An output that predicts labels: one per row, several per row, or one for each position of a row."""

    classifies = True
    default_loss = "log_loss"

    def encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return the labels as class indices, as indicators, or as shares of the classes."""
        targets = label_targets(y, classes, self.ignore_label)
        mask = targets.label_mask
        if mask is not None and mask.ndim == 1 and self.ignore_label == IGNORED_BY_DEFAULT:
            warn(
                f"y holds ignore_label={self.ignore_label} in {len(mask) - np.count_nonzero(mask)} of "
                f"{len(mask)} rows, which do not count. Set ignore_label=None if it is a class; leave the rows out "
                f"if not."
            )
        return targets

    def score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return the accuracy on validation rows, whose targets are class indices."""
        truth = targets.values
        if targets.soft:
            return soft_accuracy(targets, predicted, weights)
        if targets.has_positions:
            return validation_accuracy(predicted, targets, weights)
        if targets.counts_in_part:
            # the fraction of rows whose labels are all right except ignored ones, weighted by the user's weights
            labels = labels_of(truth, targets.classes) if isinstance(targets.classes, list) else truth
            rows = rows_with_labels(targets)
            given = None if weights is None else given_weights(targets, weights)
            right = (predicted == labels) | ~np.asarray(targets.label_mask)
            return float(np.average(right[rows].all(axis=1), weights=None if given is None else given[rows]))
        if isinstance(targets.classes, list):
            right = (predicted == labels_of(truth, targets.classes)).all(axis=1)
            return float(np.average(right, weights=weights))
        if targets.classes is not None and targets.task != "multilabel":
            truth = targets.classes[truth]
            predicted = predicted.astype(targets.classes.dtype)
        return accuracy(truth.astype(predicted.dtype), predicted, weights)


class NumberOutput(OutputSpec):
    """An output that predicts numbers: one per row, several per row, or rows of several axes."""

    classifies = False
    default_loss = "squared_error"

    def encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return ``y`` as numeric targets."""
        return regression_targets(y, allow_nd=True)

    def score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return R² on validation rows."""
        if targets.label_mask is not None:
            return r2_in_part(targets.values, targets.label_mask, predicted, weights_of_labels(targets, weights))
        return r2_of_rows(targets.values, predicted, weights, are_maps=bool(targets.row_shape))


def is_own_loss(loss: object) -> bool:
    """Return True if ``loss`` is to be an output of the graph: "output", or a name that is none of a loss."""
    return isinstance(loss, str) and loss not in LOSSES


def targets_declared_by(loss: object) -> Mapping[str, Target] | None:
    """Return the targets that a loss declares by name; None if it takes labels or numbers, or is invalid.

    A loss that the graph computes declares none: its targets are inputs of the graph.
    """
    if is_own_loss(loss):
        return {}
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    return known.targets if isinstance(known, Loss) and isinstance(known.targets, Mapping) else None


def takes_y(loss: object) -> bool:
    """Return True if a loss needs ``y``: it has targets, and they are not the rows of X."""
    return targets_declared_by(loss) != {} and not reconstructs(loss)


# The methods that an estimator has depend on its loss and its fitted state.


def require_probabilities(estimator: Parameters) -> bool:
    """Return True if the estimator has ``predict_proba``; else raise AttributeError, as ``available_if`` expects."""
    state: FittedState | None = getattr(estimator, "_state", None)
    loss = estimator.loss
    if not (has_probabilities(loss) if state is None else state.decoding.has_probabilities):
        raise AttributeError(f"predict_proba is not available: loss={loss!r} gives scores without probabilities.")
    return True


def has_probabilities(loss: object) -> bool:
    """Return True if ``loss`` gives probabilities, or if it is invalid, for which ``fit`` raises the error."""
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    return not isinstance(known, Loss) or known.link("binary") != "identity"


def require_distribution(estimator: Parameters) -> bool:
    """Return True if the loss learns a distribution; else raise AttributeError, as ``available_if`` expects."""
    return _require_further(
        estimator, DistributionLoss, "predict_distribution", "a distribution, such as 'gaussian_nll'"
    )


def require_quantiles(estimator: Parameters) -> bool:
    """Return True if the loss learns a distribution or quantiles; else raise AttributeError."""
    what = "a distribution or quantiles, such as 'gaussian_nll' or 'quantiles'"
    return _require_further(estimator, (DistributionLoss, Quantiles), "predict_quantiles", what)


def _require_further(estimator: Parameters, kinds: Any, method: str, what: str) -> bool:
    if (why := why_no_distribution(estimator, kinds, what)) is not None:
        raise AttributeError(f"{method} is not available: {why}")
    return True


def why_no_distribution(estimator: Any, kinds: Any, what: str) -> str | None:
    """Return why an estimator does not predict by a loss of ``kinds``, which learn ``what``; None if it does."""
    loss = estimator.loss
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    learns = isinstance(known, kinds)
    if not estimator.__sklearn_is_fitted__():  # ``fit`` raises the error of an invalid one
        return None if learns or not isinstance(known, Loss) else f"it needs a loss for {what}, got loss={loss!r}."
    learned, several = estimator._learned()
    if isinstance(learned, kinds) and (has_ensembles(learned) or not several):
        return None
    if learns and several and not has_ensembles(known):
        return (
            f"the graph has several members (n_members, n_ensembles, SnapshotEnsemble), of which it gives the mean "
            f"alone: {type(known).__name__} has no of_members."
        )
    if learns:
        return f"the estimator was fitted before it was given loss={loss!r}: fit it again."
    return f"it needs a loss for {what}, got loss={loss!r}."


def takes_negative_numbers(loss: object) -> bool:
    """Return True if ``loss`` takes targets below zero, or if it is invalid, for which ``fit`` raises the error."""
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    try:
        if isinstance(known, Loss) and targets_declared_by(known) is None:
            known.check_targets(np.array([[-1.0]]))
    except ValueError:
        return False
    return True


# Read ``y``: targets and weights, checked against the decoding of an earlier call.


def weighted_targets(
    output_spec: OutputSpec,
    n_rows: int,
    y: ArrayLike,
    sample_weight: ArrayLike | None,
    classes: Classes,
    decoding: Decoding | None,
    *,
    at_positions: bool,
    allow_missing: bool = False,
) -> tuple[Targets, np.ndarray | None]:
    """Return checked targets of ``n_rows`` rows, and their weights, which are None if all are one.

    Targets must match ``decoding``, the decoding of the first call; it is None in the first call itself.
    ``allow_missing`` admits missing numbers in rows of several.
    """
    declared = output_spec.declared
    if declared is not None:
        name = output_spec.loss if isinstance(output_spec.loss, str) else type(output_spec.loss).__name__
        if output_spec.classifies:
            raise ValueError(f"loss={name} takes targets of its own, not labels: train it by OrtGradientRegressor.")
        targets = declared_targets(y, declared, n_rows, None if decoding is None else decoding.declared, name)
        return targets, row_weights(sample_weight, targets, output_spec.class_weight)
    if decoding is not None and decoding.declared is not None:
        raise ValueError("Training began with a loss that takes targets of its own: take it again, or fit anew.")
    kind = output_spec.label_kind
    if kind != "labels":
        targets, sums = soft_targets(y, classes, kind)
        _require_rows(n_rows, targets)
        counts = sums if kind == "counts" else None
        return weighted_shares(targets, counts, sample_weight, output_spec.class_weight)
    has_positions = at_positions or (decoding is not None and decoding.positions is not None)
    if has_positions:
        targets = position_targets(y, classes, output_spec.ignore_label)
    elif allow_missing and not output_spec.classifies:
        targets = regression_targets(y, allow_nd=True, allow_missing=True)
    else:
        targets = output_spec.encode(y, classes)
    _require_rows(n_rows, targets)
    if has_positions:
        return weighted_positions(targets, sample_weight, output_spec.class_weight)
    given = targets
    if weighs_labels(sample_weight) and not reconstructs(output_spec.loss):  # the columns of X have no own weights
        targets, sample_weight = weigh_labels(targets, sample_weight)
    if decoding is None:  # later calls may lack an output, and so may the validation data
        require_numbers_of_columns(targets)
    warn_of_empty_rows(given)

    # y must have the same number of outputs, and of labels per row, as in the first call.
    if decoding is not None and targets.task == "regression" and targets.row_shape != decoding.row_shape:
        shapes = [("n", *(shape or [decoding.n_columns])) for shape in (targets.row_shape, decoding.row_shape)]
        raise ValueError(f"y has shape {shapes[0]}, expected {shapes[1]}, as when training began.")
    if decoding is not None and targets.task == "regression" and targets.n_scores != decoding.n_columns:
        raise ValueError(f"y has {targets.n_scores} output(s), expected {decoding.n_columns}.")
    if decoding is not None and (targets.task == "multilabel") != (decoding.task == "multilabel"):
        expected = "indicators of several labels a row" if decoding.task == "multilabel" else "one label a row"
        raise ValueError(f"y does not hold {expected}, as it did when training began.")
    if targets.label_mask is not None:
        return targets, weights_of_masked(targets, sample_weight, output_spec.class_weight)
    return targets, row_weights(sample_weight, targets, output_spec.class_weight)


def _require_rows(n_rows: int, targets: Targets) -> None:
    if n_rows != len(targets.values):
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows}, y has {len(targets.values)}."
        )


def known_classes(classes: Any, earlier: Classes, *, of_columns: bool) -> Classes:
    """Return ``classes`` sorted, or ``earlier`` classes if ``classes`` is None; raise ValueError if both differ.

    With ``of_columns`` the user must give them in sorted order, because the columns of a given graph or of soft labels
    belong to the classes in that order.
    """
    if classes is None:
        return earlier
    found = sorted_classes(classes)
    if of_columns:
        require_sorted(classes, found)
    if earlier is not None and listed(found) != listed(earlier):
        raise ValueError(f"classes={listed(found)} is not the same as on the last call, {listed(earlier)}.")
    return found if earlier is None else earlier


def require_known_labels(output_spec: OutputSpec, y: ArrayLike, classes: Classes, *, at_positions: bool) -> None:
    """Raise in the first ``partial_fit`` unless all labels are known, because later calls may bring other labels.

    They are known from ``classes``, or from the columns of ``y`` if it holds indicators or soft labels.
    """
    if output_spec.label_kind != "labels":
        return
    found = None if at_positions else masked_labels(y, output_spec.ignore_label)
    if found is not None and classes is None and found[1].any():
        y = filled_labels(*found, None) if found[0].ndim == 2 else found[0][found[1]]
    require_labels(y, classes, classifies=output_spec.classifies, at_positions=at_positions)


def balanced_class_weights(
    output_spec: OutputSpec, sample_weight: ArrayLike | None, targets: Targets
) -> tuple[float, ...] | None:
    """Return the weight of each class that ``class_weight="balanced"`` computes from the targets.

    None for another ``class_weight``, or if rows have several labels.
    """
    one_label = isinstance(targets.classes, np.ndarray) and targets.values.ndim == 1
    if output_spec.class_weight != "balanced" or not one_label:
        return None
    weights = checked_weights(sample_weight, len(targets.values)) * (
        1.0 if targets.label_mask is None else targets.label_mask
    )
    return tuple(weights_of_classes("balanced", targets.classes, targets.values, weights).tolist())


# Rows with a label for each position: recognize them in ``y``, and find the axis of the scores that holds the classes.


def takes_positions(output_spec: OutputSpec, graph: TrainableModel | None, y: ArrayLike) -> bool:
    """Return True if ``y`` has a label for each position of a row.

    It has if ``class_axis`` is set, or if ``y`` has more than two axes. The columns of a matrix ``y`` are positions or
    several labels of a row, depending on the axes of the scores.
    """
    if not output_spec.classifies or sp.issparse(y):
        return False
    if output_spec.label_kind != "labels":
        if output_spec.class_axis != "auto":
            raise ValueError(
                f"class_axis={output_spec.class_axis} is for labels at positions, and the loss takes "
                f"{output_spec.label_kind} of one label a row."
            )
        return False
    if output_spec.class_axis != "auto":
        return True
    if isinstance(y, list | tuple) and (not y or isinstance(y[0], str | bytes | int | float)):
        return False  # a plain list has one axis; np.asarray would copy it
    try:
        shape = getattr(y, "shape", None)
        n_axes = np.asarray(y).ndim if shape is None else len(shape)
    except ValueError:  # the rows of a list differ in length
        n_axes = 2
    if n_axes != 2 or graph is None:
        return n_axes > 2

    # A matrix. Its columns are positions in two cases:
    # - The scores of a row have two or more axes that are, or may be, longer than 1.
    # - The scores of a row have the shape (k, 1) or (1, k), y has k columns, k > 1, and not all labels are 0 or 1.
    # In all other cases the columns are several labels of a row.
    row = graph.output_row
    long = [size for size in row if size != 1]
    if len(row) != 2 or len(long) != 1:
        return len(long) > 1
    labels = label_array(y)
    indicators = masked_labels(labels, None)
    known = labels if indicators is None else labels[indicators[1]]
    return labels.shape[1] > 1 and long[0] in (None, labels.shape[1]) and not np.isin(known, (0, 1)).all()


def require_one_label(*, at_positions: bool) -> None:
    """Raise if the rows of a table in blocks have a label at each position."""
    if at_positions:
        raise ValueError(
            "Labels at positions take all rows at once, and the table has more than buffer_rows. Give arrays, or "
            "blocks whose buffer holds all rows, or one part of the arrays after another to partial_fit."
        )


def positions_of(
    reference: ReferenceOutput | None, graph: TrainableModel, targets: Targets, setting: int | str
) -> Positions:
    """Return the positions of the labels, and the axis of the scores that holds the classes.

    Raise ValueError if the scores do not fit the labels, or if both their first and last axis could hold the classes.
    """
    if reference is None:
        raise ValueError(
            f"y has a label at each of {targets.row_shape} positions, for which the graph must have scores: give an "
            f"ONNX graph, or a builder of your own."
        )
    row, places, declared = reference.row_shape, targets.row_shape, graph.output_row
    ends = {axis: rest for axis, rest in ((-1, row[:-1]), (1, row[1:])) if setting in ("auto", axis)}
    fitting = [axis for axis, rest in ends.items() if rest == places]
    if len(fitting) > 1 and len(declared) == len(row):  # an axis of unknown size cannot hold the classes
        # ``declared`` has no axis of rows: axis 1 of the scores is its axis 0.
        fitting = [axis for axis in fitting if declared[0 if axis == 1 else -1] is not None] or fitting
    if row == places:
        return Positions(len(places), -1)
    if len(fitting) == 1:
        return Positions(len(places), fitting[0])
    shape = ("n", *row)
    if fitting:
        raise ValueError(
            f"The graph's output {reference.name!r} has shape {shape}: both its first axis after the rows and its last "
            f"axis could hold the classes. Choose one by model=GraphModel(..., class_axis=1) or class_axis=-1."
        )
    raise ValueError(
        f"The graph's output {reference.name!r} has shape {shape}, but y has shape {('n', *places)}: labels at "
        f"positions need scores of shape {('n', *places, 'k')} or {('n', 'k', *places)}."
    )


def trained_positions(decoding: Decoding, targets: Targets) -> TrainedPositions | None:
    """Return how a training step reads labels for each position of a row; None if ``y`` has no such labels."""
    if decoding.positions is None or targets.label_weights is None:
        return None
    return TrainedPositions(decoding.positions, targets.row_shape, tuple(targets.label_weights.tolist()))


def ignoring(settings: StepSettings, targets: Targets) -> StepSettings:
    """Return the settings for targets of which some labels of a row may be ignored, or have weights of their own."""
    n_shares = 0 if targets.label_shares is None else targets.n_labels
    ignores = settings.ignores or targets.counts_in_part
    same = (ignores, n_shares) == (settings.ignores, settings.n_shares)
    return settings if same else with_attributes(settings, ignores=ignores, n_shares=n_shares)


# Choose the decoding of the output, and the value that the loss reads.


@dataclass(frozen=True)
class DecodedGraph:
    """The decoding of the trained outputs, and the graph and settings that go with it.

    Attributes
    ----------
    original : TrainableModel
        The graph, marked with the content of its output: scores, probabilities or logarithms.
    graph : TrainableModel
        ``original`` with ``scores`` set to the value that the loss reads, before or after the final activation.
    decoding : Decoding
    settings : StepSettings
    references : tuple of ReferenceOutput or None
        The values of each output of a given graph for some rows of the data; None without a given graph.
    """

    original: TrainableModel
    graph: TrainableModel
    decoding: Decoding
    settings: StepSettings
    references: tuple[ReferenceOutput | None, ...]


class DecodedOutput(NamedTuple):
    """The decoding of one output; the attributes are those of :class:`DecodedGraph`."""

    original: TrainableModel
    graph: TrainableModel
    decoding: Decoding
    reference: ReferenceOutput | None


def choose_decoding(context: FitContext, graph: TrainableModel, examples: EncodedData) -> DecodedGraph:
    """Return the decoding of the graph's output for the loss and the targets, with the settings of the step."""
    config, resumed, fitted = context.config, context.resumed, context.fitted
    output_spec: OutputSpec = context.estimator._output_spec()
    has_known_scores = graph.members is not None or bool(context.head_names)
    if has_known_scores and output_spec.output_kind not in ("auto", "scores"):
        raise ValueError(
            f"output_kind={output_spec.output_kind!r}: the graph of an ensemble (n_members), or with a new head, gives "
            f"scores. Set 'auto'."
        )
    loss = loss_of(output_spec, fitted, graph)
    runs = resumed is None and fitted is None and not has_known_scores
    chosen = choose_output(
        output_spec,
        loss,
        graph,
        examples.targets,
        examples.columns,
        config.device,
        given=context.estimator.model if runs else None,
        earlier=None if resumed is None else resumed.decoding,
        fitted=fitted,
    )
    seed = int(context.rng.randint(2**31 - 1)) if resumed is None else resumed.seed
    positions = trained_positions(chosen.decoding, examples.targets)
    settings = ignoring(config.with_decoding(loss, chosen.decoding, seed, positions), examples.targets)
    return DecodedGraph(chosen.original, chosen.graph, chosen.decoding, settings, (chosen.reference,))


def choose_output(
    output_spec: OutputSpec,
    loss: Loss,
    graph: TrainableModel,
    targets: Targets,
    columns: Columns,
    device: Device,
    *,
    given: Any = None,
    earlier: Decoding | None = None,
    fitted: FittedModel | None = None,
) -> DecodedOutput:
    """Return the decoding of one output of a graph.

    A ``given`` graph is run to learn what its output holds. For another graph, the number of scores is known from the
    decoding of an ``earlier`` call, from a ``fitted`` model, or because the graph was built for the targets.
    """
    loss.check_targets(targets.content)
    reference = None if given is None else reference_output(given, graph, columns, device, len(targets.values))
    if targets.declared is not None:
        return _output_of_declared(output_spec, loss, graph, targets, columns, device, reference)
    if earlier is not None:
        positions = earlier.positions
    else:
        positions = positions_of(reference, graph, targets, output_spec.class_axis) if targets.has_positions else None
    if reference is not None:
        if positions is not None:
            reference = reference.at(positions)
        elif targets.task == "regression":
            if scores_for(loss, targets) == targets.n_scores:
                require_target_shape(reference, targets)
            else:
                require_column_shape(reference.row_shape, reference.name)
        else:
            require_column_shape(reference.row_shape, reference.name)
        kind, classifies = output_spec.output_kind, output_spec.classifies
        if not classifies and scores_for(loss, targets) != targets.n_scores:
            kind = "scores"  # only some of these scores are predictions
        graph, n_scores = resolve_output_kind(graph, reference, kind, classifies=classifies)
    elif earlier is not None:
        n_scores = earlier.n_scores
    elif fitted is not None:
        n_scores = _score_columns(graph, columns, device)
    else:
        n_scores = scores_for(loss, targets)
    return DecodedOutput(graph, *decoding_for(graph, loss, targets, n_scores, positions), reference)


def _output_of_declared(
    output_spec: OutputSpec,
    loss: Loss,
    graph: TrainableModel,
    targets: Targets,
    columns: Columns,
    device: Device,
    reference: ReferenceOutput | None,
) -> DecodedOutput:
    """Return the decoding of an output whose loss declares its targets, and takes scores of any shape."""
    more: dict[str, Any]
    assert targets.declared is not None
    if graph.own_loss is not None:
        row = score_row(graph, columns, device) if reference is None else reference.row_shape
        losses = _score_columns(graph, columns, device)
        more = {"declared": targets.declared, "n_targets": math.prod(row), "row_shape": row if len(row) > 1 else ()}
        return DecodedOutput(graph, graph, Decoding("regression", "identity", losses, **more), reference)
    if "regression" not in loss.tasks:
        raise ValueError(f"loss={type(loss).__name__} declares its targets by name, so its tasks must be 'regression'.")
    if graph.link == "votes":
        raise ModelError("The graph votes for pairs of classes; a loss with targets of its own takes scores.")
    link = loss.link("regression")
    if reference is not None:
        graph, _ = resolve_output_kind(graph, reference, output_spec.output_kind, classifies=False)
        row = reference.row_shape
    else:
        row = score_row(graph, columns, device)
    graph = graph if graph.link == link else graph.ignoring_activation()
    row = row or (1,)
    loss.check_scores(row, targets.content)
    several_axes = row if len(row) > 1 else ()
    declared = targets.declared.with_scores(row)
    more = {"declared": declared, "distribution": _distribution(loss, graph)}
    decoding = Decoding("regression", link, math.prod(row), row_shape=several_axes, **more)
    return DecodedOutput(graph, graph, decoding, reference)


def _distribution(loss: Loss, graph: TrainableModel) -> Loss | None:
    """Return a copy of a loss that predicts more than the prediction, out of reach of ``set_params``; else None."""
    predicts_more = type(loss).further_predictions is not Loss.further_predictions
    return copy.deepcopy(loss) if predicts_more and (graph.members is None or has_ensembles(loss)) else None


def scores_for(loss: Loss, targets: Targets) -> int:
    """Return the number of scores per row that the loss takes; raise if targets of this shape need one per target."""
    if targets.task not in loss.tasks:  # ``decoding_for`` refuses the task; a loss is for a label, not for several
        return targets.n_scores
    found = loss.n_scores(targets.task, targets.n_scores)
    if found != targets.n_scores and targets.row_shape:
        expected = "one label a row" if targets.has_positions else "y of shape (n,) or (n, k)"
        raise ValueError(
            f"loss={type(loss).__name__} takes {expected}, not rows of shape {targets.row_shape}: it needs {found} "
            f"scores for {targets.n_scores} {'classes' if targets.has_positions else 'targets'}."
        )
    return found


def loss_of(output_spec: OutputSpec, fitted: FittedModel | None, graph: TrainableModel) -> Loss:
    """Return the loss of an output. For a fitted model, the default is the loss that this model minimizes."""
    if graph.own_loss is not None:
        return LossOfRows()
    follows = isinstance(output_spec.loss, str) and output_spec.loss == output_spec.default_loss
    return resolve_loss(fitted.loss if follows and fitted is not None else output_spec.loss, graph.joined)


def score_row(graph: TrainableModel, columns: Columns, device: Device) -> tuple[int, ...]:
    """Return the shape of a row of the scores of a member; run the graph unless it declares the shape."""
    declared = graph.output_row
    sizes = tuple(size for size in declared if size is not None)
    if not declared or len(sizes) < len(declared):
        sizes = _scores_of_three_rows(graph, columns, device).shape[1:]
    return sizes if graph.members is None else sizes[1:]


def _score_columns(graph: TrainableModel, columns: Columns, device: Device) -> int:
    """Return the number of scores per row, determined by running the graph on three rows of the data."""
    return int(as_columns(_scores_of_three_rows(graph, columns, device), graph.scores).shape[1])


def _scores_of_three_rows(graph: TrainableModel, columns: Columns, device: Device) -> np.ndarray:
    model = graph.model.clone()
    keep = next(v for v in model.graph.outputs if v.name == graph.scores)
    model.graph.outputs.clear()
    model.graph.outputs.append(keep)
    last = len(next(iter(columns.values()))) - 1
    return run_graph(model, columns, np.array([0, last, 0]), device, batch=graph.batch)


def decoding_for(
    graph: TrainableModel, loss: Loss, targets: Targets, n_scores: int, positions: Positions | None
) -> tuple[TrainableModel, Decoding]:
    """Return the model, with ``scores`` before or after its final activation as the loss requires, and the decoding."""
    of_pairs = graph.link == "votes"  # one-vs-one: a score for each pair of classes
    wanted = scores_for(loss, targets)
    if wanted != targets.n_scores and n_scores != wanted:
        exported = n_scores == targets.n_scores and type(loss).further_predictions is not Loss.further_predictions
        advice = " A file of to_onnx() holds predictions, not these scores: go on with the estimator that wrote it"
        raise ValueError(
            f"loss={type(loss).__name__} takes {wanted} scores for y with {targets.n_scores} "
            f"{'column(s)' if targets.task == 'regression' else 'classes'}, but the graph's output has {n_scores} "
            f"column(s).{f'{advice} (pickle, partial_fit, warm_start).' if exported else ''}"
        )
    if wanted != targets.n_scores:
        task: Task = targets.task
    else:
        task = _trained_task(targets, n_classes_of(n_scores) if of_pairs and n_scores > 1 else n_scores)
    n_targets = None if wanted == targets.n_scores else targets.n_scores
    task_of_label: Task = "multiclass" if task == "multioutput" else task
    if task_of_label not in loss.tasks:
        valid = ", ".join(repr(name) for name, kind in LOSSES.items() if task_of_label in kind.tasks)
        raise ValueError(f"loss={type(loss).__name__} is not for {task} targets. Losses for them: {valid}.")
    if n_targets is None and loss.n_scores(task_of_label, n_scores) != n_scores:
        if task == "multioutput":
            raise ValueError(f"loss={type(loss).__name__} takes one label a row, and y has several columns of labels.")
        raise ValueError(
            f"loss={type(loss).__name__} takes {wanted} score(s) for these labels, but the graph's output has "
            f"{n_scores} column(s)."
        )
    link, more = loss.link(task_of_label), dict[str, Any]()
    if task == "regression":
        graph = graph if graph.link == link else graph.ignoring_activation()
        graph = graph if n_targets is None else graph.ignoring_activation()
        more = {"row_shape": targets.row_shape, "n_targets": n_targets, "distribution": _distribution(loss, graph)}
        return graph, Decoding(task, link, n_scores, **more)
    if of_pairs:
        if targets.soft:
            raise ModelError(
                "The graph votes for pairs of classes, which are trained on the rows of their two classes alone, and "
                "the rows of soft labels have shares of all: take one label a row."
            )
        return graph, Decoding(task, "identity", n_scores, targets.classes)
    if link == "ordinal":
        require_numbers_in_order(targets.classes)
    more = {"positions": positions, "soft": targets.soft, "n_targets": n_targets}
    if graph.link not in ("sigmoid", "softmax"):
        return graph.ignoring_activation(), Decoding(task, link, n_scores, targets.classes, **more)
    if task == "multioutput":
        raise ValueError(
            f"The graph ends in a {graph.link}, which cannot model several labels of several classes each; let it end "
            f"in the scores of all classes."
        )
    if graph.link == "softmax" and task != "multiclass":
        raise ValueError(
            f"The graph ends in a softmax over {n_scores} column(s), which cannot model {task} targets; use sigmoid."
        )
    # A likelihood loss takes the link that the graph has; a hinge loss keeps its own, the identity.
    link = graph.link if link in ("sigmoid", "softmax") else link  # type: ignore[assignment]
    return graph, Decoding(task, link, n_scores, targets.classes, **more)


def require_numbers_in_order(classes: Classes) -> None:
    """Raise unless the classes are numbers, because the alphabetical order of strings may not be their real order."""
    if not isinstance(classes, np.ndarray) or classes.dtype.kind not in "biuf":
        raise ValueError(
            f"loss='ordinal' takes labels in order, so they must be numbers: texts such as {listed(classes)} would be "
            f"in alphabetical order. Encode them, such as by scikit-learn's OrdinalEncoder(categories=[...])."
        )


def _trained_task(targets: Targets, n_scores: int) -> Task:
    """Return the task for targets and a number of scores; two classes with two scores are trained as multiclass."""
    if targets.task == "binary" and n_scores == 2:
        return "multiclass"
    if n_scores != targets.n_scores:
        what = {"regression": "outputs", "multilabel": "labels"}.get(targets.task, "classes")
        count = targets.n_scores if targets.classes is None else len(targets.classes)
        known = targets.task in ("binary", "multiclass") and count < n_scores
        hint = " If y lacks some of the classes, name them all: fit(X, y, classes=...)." if known else ""
        raise ValueError(
            f"The graph's output has {n_scores} column(s), but y has {count} {what}.{hint} A trained model gets a new "
            f"last layer, for other {what}, by finetune=FineTuner(new_head=True)."
        )
    return targets.task
