"""Training of the networks of a recipe: each has rows held out, a preprocessing, and a seed of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from .._estimators.scoring import Scoring
from .._graph.protobuf import to_proto
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
    early_stopping : bool or str
        That of the network, where rows are held out.
    scoring : str, callable or None
        The score on these rows, as the network takes it.
    network : callable
        Returns the estimator to train, given the preprocessing, the number of rows and a seed.
    fit : callable
        Fits it, given X, y and further arguments.
    """

    scaling: str
    drops_constants: bool
    early_stopping: bool | str
    scoring: Scoring | None
    network: Callable[[Preprocessing, int, int], Network]
    fit: Callable[[Network, Any, Any, dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class TrainedMembers:
    """The trained networks, the graph of all of them, the preprocessing whose inputs it takes, and what ended early."""

    networks: list[Network]
    graph: bytes
    preprocessing: Preprocessing
    interrupted: KeyboardInterrupt | None


def train_members(
    recipe: MemberRecipe,
    examples: TableExamples,
    device: Device,
    n_members: int,
    validation_fraction: float | None,
    rng: np.random.RandomState,
) -> TrainedMembers:
    """Train the members one after the other; an interrupt ends the training if one has begun."""
    interrupted, trained = None, list[tuple[Preprocessing, Network]]()
    try:
        for split in validation_folds(examples.used, examples.labels, n_members, validation_fraction, rng):
            _add_member(trained, recipe, examples, split, device, np.random.RandomState(rng.randint(2**31 - 1)))
    except KeyboardInterrupt as error:
        interrupted = error
        trained = [(prepared, network) for prepared, network in trained if hasattr(network, "n_iter_")]
        if not trained:
            raise
    members = [Member(prepared, ir.from_proto(network.to_onnx())) for prepared, network in trained]
    graph, networks = assembled(members, examples.classes), [network for _, network in trained]
    return TrainedMembers(networks, to_proto(graph).SerializeToString(), members[0].preprocessing, interrupted)


def _add_member(
    trained: list[tuple[Preprocessing, Network]],
    recipe: MemberRecipe,
    examples: TableExamples,
    split: tuple[np.ndarray, np.ndarray],
    device: Device,
    rng: np.random.RandomState,
) -> None:
    """Train a member of the ensemble on the first rows of ``split``, and validate it on the others.

    It is among ``trained`` before its training begins, so that an interrupt does not lose it.
    """
    rows, held = split
    own, scaling = examples.table.rows(rows), SCALINGS[recipe.scaling]
    prepared = fit_preprocessing(own, examples.categorical, scaling, rng, drops_constants=recipe.drops_constants)
    network = recipe.network(prepared, len(rows), rng.randint(2**31 - 1))
    X, y, weights = examples.prepared(prepared, rows, device)
    settings: dict[str, Any] = {"sample_weight": weights}
    if len(held):
        names, parts = ("X_val", "y_val", "sample_weight_val"), examples.prepared(prepared, held, device)
        settings |= dict(zip(names, parts, strict=True))
        network.set_params(early_stopping=recipe.early_stopping, scoring=recipe.scoring)
    if examples.classes is not None:
        settings["classes"] = examples.classes
    trained.append((prepared, network))
    recipe.fit(network, X, y, settings)
