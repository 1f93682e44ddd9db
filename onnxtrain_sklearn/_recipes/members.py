"""Training of the networks of a recipe: each has rows held out, a preprocessing, and a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .._estimators.scoring import Scoring
from .._inference.predictor import PredictionGraph, prediction_graph
from .._runtime.devices import Device
from .assembly import Member, assembled
from .examples import TableExamples
from .folds import validation_folds
from .preprocessing import Preprocessing, fit_preprocessing
from .scaling import SCALINGS

Network: TypeAlias = Any
"""An :class:`OrtGradientClassifier` or :class:`OrtGradientRegressor`; their attributes are set by ``fit``."""


@dataclass(frozen=True)
class MemberRecipe:
    """How a member is made.

    Attributes
    ----------
    scaling : str
        Name of the scaling of numbers.
    drops_constants : bool
        Whether columns of one value are left out.
    network : callable
        Returns the estimator to train, given the preprocessing, the number of rows and a seed.
    """

    scaling: str
    drops_constants: bool
    network: Callable[[Preprocessing, int, int], Network]


@dataclass(frozen=True)
class MemberTraining:
    """How a member is trained.

    Attributes
    ----------
    early_stopping : bool or str
        That of the network, where rows are held out.
    scoring : str, callable or None
        The score on these rows, as the network takes it.
    fit : callable
        Fits the network, given X, y and further arguments.
    """

    early_stopping: bool | str
    scoring: Scoring | None
    fit: Callable[[Network, Any, Any, dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class PreparedMember:
    """A network before its training, the preprocessing before it, and the rows to train and to validate it on."""

    network: Network
    preprocessing: Preprocessing
    rows: np.ndarray
    held: np.ndarray


@dataclass(frozen=True, eq=False)
class TrainedMembers:
    """The trained networks, the graph of all of them, the preprocessing whose inputs it takes, and what ended early."""

    networks: list[Network]
    graph: PredictionGraph
    preprocessing: Preprocessing
    interrupted: KeyboardInterrupt | None


def prepared_members(
    recipe: MemberRecipe,
    examples: TableExamples,
    n_members: int,
    validation_fraction: float | None,
    rng: np.random.RandomState,
) -> Iterator[PreparedMember]:
    """Yield the members one after the other, each with a preprocessing that is fitted to its own rows."""
    for rows, held in validation_folds(examples.used, examples.labels, n_members, validation_fraction, rng):
        own, table = np.random.RandomState(rng.randint(2**31 - 1)), examples.table.rows(rows)
        scaling, drops = SCALINGS[recipe.scaling], recipe.drops_constants
        prepared = fit_preprocessing(table, examples.categorical, scaling, own, drops_constants=drops)
        yield PreparedMember(recipe.network(prepared, len(rows), own.randint(2**31 - 1)), prepared, rows, held)


def train_members(
    members: Iterable[PreparedMember], training: MemberTraining, examples: TableExamples, device: Device
) -> TrainedMembers:
    """Train the members one after the other; an interrupt ends the training if one has begun."""
    interrupted, begun = None, list[PreparedMember]()
    try:
        for member in members:
            _train_member(member, training, examples, device, begun)
    except KeyboardInterrupt as error:
        interrupted = error
        begun = [one for one in begun if hasattr(one.network, "n_iter_")]
        if not begun:
            raise
    models = [Member(one.preprocessing, one.network._run.graph_to_predict()) for one in begun]
    model, networks = assembled(models, examples.targets.task, examples.classes), [one.network for one in begun]
    return TrainedMembers(networks, prediction_graph(model), begun[0].preprocessing, interrupted)


def _train_member(
    member: PreparedMember,
    training: MemberTraining,
    examples: TableExamples,
    device: Device,
    begun: list[PreparedMember],
) -> None:
    """Train a member; it is among ``begun`` before its training begins, so that an interrupt does not lose it."""
    network, prepared = member.network, member.preprocessing
    X, y, weights = examples.prepared(prepared, member.rows, device)
    settings: dict[str, Any] = {"sample_weight": weights}
    if len(member.held):
        names, parts = ("X_val", "y_val", "sample_weight_val"), examples.prepared(prepared, member.held, device)
        settings |= dict(zip(names, parts, strict=True))
        network.set_params(early_stopping=training.early_stopping, scoring=training.scoring)
    if examples.classes is not None:
        settings["classes"] = examples.classes
    begun.append(member)
    training.fit(network, X, y, settings)
