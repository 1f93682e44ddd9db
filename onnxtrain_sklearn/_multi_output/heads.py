"""Chooses the heads of several outputs, one after the other as that of a single one, and the settings of the step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from .._data.several_targets import SeveralTargets
from .._data.targets import Targets
from .._estimators.examples import Examples, trained_positions
from .._estimators.head_choice import HeadChoice, head_for, of_whole_rows, places_of_labels
from .._estimators.parameters import Parameters
from .._estimators.run import Columns, Run
from .._estimators.step_settings import engine_of, settings_with_head
from .._given.comparison import OwnOutput, own_output, require_own_start, settled
from .._graph.trainable import TrainableModel, with_outputs_of
from .._inference.graph import inference_model
from .._inference.head import Head
from .._inference.predictor import Predictor
from .._runtime import devices
from .._runtime.devices import Device
from .._training.total_loss import OutputLoss, TotalLoss
from .examples import Singles
from .single_estimators import OutputEstimator, loss_weights, naming


@dataclass(frozen=True)
class _Part:
    """The choice for one output: the model with its form settled, that with the loss placed, the head, its numbers."""

    source: TrainableModel
    seen: TrainableModel
    head: Head
    own: OwnOutput | None


def choose_heads(
    estimator: Parameters,
    singles: Singles,
    old: Run | None,
    source: TrainableModel,
    examples: Examples,
    rng: np.random.RandomState,
) -> tuple[HeadChoice, list[OwnOutput | None]]:
    """Return the heads as one, and the output of the given graph for each of them on some rows of the data."""
    device = devices.resolve_device(estimator.device, estimator.providers, estimator.provider_options)
    targets, views, parts = examples.targets, source.views, list[_Part]()
    assert isinstance(targets, SeveralTargets)
    heads = [None] * len(views) if old is None else old.head.parts
    whole = source
    for (name, single), view, head, own in zip(singles.items(), views, heads, targets.parts, strict=True):
        with naming(name):
            view = replace(view, model=whole.model)
            parts.append(_chosen_part(estimator, single, view, head, own, examples.columns, device))
        whole = parts[-1].source
    joined = Head("regression", "identity", targets.n_outputs, parts=tuple(part.head for part in parts))
    model = replace(source, model=whole.model)
    seed = int(rng.randint(2**31 - 1)) if old is None else old.seed
    total = TotalLoss(_losses_of_parts(estimator, singles, parts, targets), targets.has_factors)
    settings = settings_with_head(estimator, total, joined, device, engine_of(estimator, device), seed)
    given, seen = ([getattr(part, which) for part in parts] for which in ("source", "seen"))
    choice = HeadChoice(with_outputs_of(model, given), with_outputs_of(model, seen), joined, settings, None)
    return choice, [part.own for part in parts]


def _chosen_part(
    estimator: Parameters,
    single: OutputEstimator,
    view: TrainableModel,
    head: Head | None,
    targets: Targets,
    columns: Columns,
    device: Device,
) -> _Part:
    loss: Any = single.loss
    loss.check_targets(targets.values)
    own = own_output(estimator.model, view, columns, device) if head is None else None
    positions = places_of_labels(single, head, view, own, targets)
    if own is None:
        assert head is not None
        return _Part(view, *head_for(view, loss, targets, head.n_outputs, positions), None)
    own = own.at(positions) if positions is not None else of_whole_rows(own, targets)
    view, n_columns = settled(view, own, single.output_kind, classifies=is_classifier(single))
    return _Part(view, *head_for(view, loss, targets, n_columns, positions), own)


def _losses_of_parts(
    estimator: Parameters, singles: Singles, parts: list[_Part], targets: SeveralTargets
) -> tuple[OutputLoss, ...]:
    weights, found = loss_weights(estimator), []
    for (name, single), part, own in zip(singles.items(), parts, targets.parts, strict=True):
        head, places, loss = part.head, trained_positions(part.head, own), single.loss
        at_places = () if places is None else (places.axes, places.shape, places.label_weights)
        more = head.task, head.link, head.n_outputs, head.groups, weights[name]
        found.append(OutputLoss(name, loss, *more, *at_places, ignores=own.lacks_labels))  # type: ignore[arg-type, misc]
    return tuple(found)


def require_own_starts(run: Run, owns: list[OwnOutput | None], columns: Columns) -> list[np.ndarray]:
    """Raise if the untrained estimator does not predict what the given graph does, output by output.

    Return the scores of the rows that all outputs have in common.
    """
    scores = []
    rows = min((own.rows for own in owns if own is not None), key=len, default=np.empty(0, np.int64))
    for view, deployed, head, own in zip(run.source.views, run.deployed.views, run.head.parts, owns, strict=True):
        if own is not None:
            graph = inference_model(deployed, run.weights(), head, with_scores=True, in_double=False)
            predictor = Predictor(graph, run.device, run.session_options)
            found = require_own_start(own, view, head, predictor, columns, run.device)
            same = len(rows) == len(found)
            scores.append(found if same else predictor.run(columns, rows, output=-1))
    return scores
