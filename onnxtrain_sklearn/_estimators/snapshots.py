"""Networks that predict by the weights of several moments of their training."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .._graph.fake_quantization import holds_fakes
from .._graph.low_rank import merged
from .._graph.trainable import TrainableModel
from .._inference.ensemble import ensemble_of
from .._inference.head import Head
from .._training.parameters import FlatParameters


class RunOfMembers(Protocol):
    """What is needed of a run; ``snapshots`` are buffers of its parameters."""

    source: TrainableModel
    head: Head
    frozen: dict[str, np.ndarray]
    parameters: FlatParameters
    snapshots: tuple[np.ndarray, ...]

    @property
    def deployed(self) -> TrainableModel: ...
    def weights(self) -> dict[str, np.ndarray]: ...


def predicting_model(run: RunOfMembers) -> tuple[TrainableModel, dict[str, np.ndarray]]:
    """Return the graph that predicts, and its weights: those of the run, or of each of its snapshots."""
    if not run.snapshots:
        return run.deployed, run.weights()
    return ensemble_of(run.deployed, [_weights_at(run, buffer) for buffer in run.snapshots])


def _weights_at(run: RunOfMembers, buffer: np.ndarray) -> dict[str, np.ndarray]:
    ordered = run.source.weights({**run.frozen, **run.parameters.with_buffer(buffer).prediction_views()})
    return run.source.kept.rounded(merged(ordered, run.source.low_rank))


def require_single_scores(run: RunOfMembers) -> None:
    """Raise ValueError where the mean of several copies of a graph is not made."""
    source, head = run.source, run.head
    reasons = {
        "its graph has several outputs": bool(head.parts),
        "its labels are at positions of a row": head.positions is not None,
        "its targets have several axes": bool(head.row_shape),
        "its graph is an ensemble already": source.members is not None,
        "its classes are chosen by votes or by a threshold": source.link == "votes" or source.choice is not None,
        "its file keeps weights in a narrow type": bool(source.kept.weights),
        "its graph is quantized": holds_fakes(source.model),
        "it trains low-rank factors": bool(source.low_rank),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"SnapshotEnsemble is for one network with a score a target or class, but {reason}.")
