"""The training step in the host's memory: pass, accumulation, and the stages that :data:`~.step_parts.STAGES` orders.

Passes and stages read and write the same flat vectors in place. :class:`~.passes.HostPasses` computes loss and
gradient, by sessions or machine code. :class:`~.updates.HostUpdates` computes the optimizer's update, by NumPy, machine
code or sessions. Pass and update are separate graphs because an update inside the gradient graph would overwrite
weights that the backward pass still needs.

Vectors and buffers are bound before the first step, so that steps allocate nothing, except arrays for sparse data, for
gradients of rows, for padding and row weights, and copies of running statistics. Devices have their own step,
:mod:`.device_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from .._data.batches import BatchBuffers, Batches, Minibatch
from .._model.precision import in_dtype
from .._model.trainable import TrainableModel
from .._ort import sessions
from ..optimizers import Optimizer
from .parameters import FlatParameters, state_slots
from .passes import HostPasses
from .programs import COMPILED
from .step_parts import OptimizerState, Rates, Scheduled, StepParts, StepSettings
from .updates import (
    GradientStage,
    HostAccumulation,
    HostAverage,
    HostClipping,
    HostPenalty,
    HostUpdates,
    VectorBindings,
    WeightStage,
)


@dataclass(frozen=True)
class StepKind:
    """The kind of a step.

    Attributes
    ----------
    passes, update : str
        Who runs the passes, and who updates the parameters: constants of :mod:`.step_choice`.
    reason : str
        The reason for this choice.
    """

    passes: str
    update: str
    reason: str

    def __str__(self) -> str:
        return f"passes by {self.passes}, updates {self.update}: {self.reason}"


class TrainingStep(Protocol):
    """The interface of a training step for the epoch loop.

    Attributes
    ----------
    parameters : FlatParameters
        The trained parameters: the host's copy.
    optimizer_state : OptimizerState
        The host's copy.
    batch_size : int
        Rows of a full minibatch.
    engine : str
        ``"compiled"`` where machine code runs the graph, else the engine that differentiated it.
    kind : StepKind or None
        Who runs passes and updates, and why.
    in_host_memory : bool
        Whether the host's arrays are trained in place. Then ``train`` yields the loss of a step before the step changes
        the weights, and ``parameters.gradient`` is the gradient of the last step.
    """

    parameters: FlatParameters
    optimizer_state: OptimizerState
    batch_size: int
    engine: str
    kind: StepKind | None
    in_host_memory: ClassVar[bool]

    def train(
        self,
        batches: Batches,
        next_rates: Callable[[], Rates],
        after: Callable[[float], bool] | None = None,
        skip: int = 0,
    ) -> Iterator[tuple[float, float]]:
        """Take the steps of one epoch; yield, for each, the sum of its weights and its loss.

        A step on the host yields before its update, one on a device after several steps, often a whole epoch.

        ``after`` is called with the loss after each update, when the host's copies are up to date; it may change them,
        and ends the epoch if it returns True. The first ``skip`` minibatches are left out.
        """

    def synchronize(self) -> None:
        """Bring the host's copies of parameters and optimizer state up to date."""

    def reload(self) -> None:
        """Read the host's copies again, which a callback or a restored state has changed."""

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step."""

    def remote_state(self) -> dict[str, Any]:
        """Return further state for a checkpoint, besides parameters and optimizer state: that of a cluster's shards."""

    def restore_remote(self, stored: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`remote_state` returned."""


class OneProcess:
    """A step that runs in this process alone, so that its state consists of parameters and optimizer state."""

    def remote_state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def restore_remote(self, stored: Mapping[str, Any]) -> None:
        """Do nothing."""


class HostStep(OneProcess):
    """A training step in the host's memory, which runs minibatch by minibatch.

    Attributes
    ----------
    passes : HostPasses
    program : PassProgram
        The gradient graph of a full minibatch.
    settings, parameters, optimizer_state, batch_size, engine, kind
        As in :class:`TrainingStep`.
    """

    in_host_memory: ClassVar[bool] = True

    def __init__(self, parts: StepParts) -> None:
        settings, parameters = parts.settings, parts.parameters
        self.settings, self.batch_size = settings, parts.batch_size
        self.parameters, self.optimizer_state = parameters, parts.optimizer_state
        self.kind: StepKind | None = None
        self.passes = HostPasses(parts)
        self.program = self.passes.program
        self.engine = self.program.engine
        bindings = VectorBindings(settings, parameters, np.asarray)
        self._accumulation = HostAccumulation(bindings, parameters) if settings.accumulate > 1 else None

        # The stages in their order: those that change the gradients run before the loss is yielded, the others after.
        self._gradient_stages: list[GradientStage] = []
        self._weight_stages: list[WeightStage] = []
        self._updates: HostUpdates | None = None
        for stage in parts.stages:
            if stage == "penalty":
                self._gradient_stages.append(HostPenalty(bindings, parameters, settings))
            elif stage == "clipping":
                self._gradient_stages.append(HostClipping(bindings, parameters))
            elif stage == "update":
                assert isinstance(settings.optimizer, Optimizer)
                segments = bindings.segment_updates(settings.optimizer)
                parts.optimizer_state.prepare(state_slots(settings.optimizer, parameters), parameters.vector.dtype)
                lazy = settings.lazy_rows
                penalized = "penalty" in parts.stages
                self._updates = HostUpdates(
                    segments,
                    parameters,
                    parts.optimizer_state.slots,
                    self.passes.row_sparse,
                    lazy=lazy,
                    penalized=penalized,
                )
                self._weight_stages.append(self._updates)
            elif stage == "average":
                assert settings.ema_decay is not None
                self._weight_stages.append(HostAverage(bindings, parameters, parts.optimizer_state, settings.ema_decay))

    def train(
        self,
        batches: Batches,
        next_rates: Callable[[], Rates],
        after: Callable[[float], bool] | None = None,
        skip: int = 0,
    ) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one epoch; before its update, yield the sum of its weights and its loss."""
        # Per step: compute the gradients, yield the loss, update when the caller asks for the next loss. While this
        # generator waits, the weights are those that gave the loss: the trainer copies them if the loss is finite
        # (``KeptWeights``), and abandons the epoch before the update if not. ``in_host_memory`` promises this order.
        if self._updates is not None:  # the number of steps need not be exact: it says whether compiling pays
            self._updates.prepare((batches.n_minibatches or 0) // self.settings.accumulate)
        if self._accumulation is None:
            for minibatch in batches.epoch(skip):
                weight = self.load(minibatch)
                del minibatch  # free the window of a stream that the minibatch may hold
                rates = next_rates()
                loss = self.compute_gradients(weight, rates.dropout_factor)
                yield weight, loss
                self.update(rates)
                if after is not None and after(loss):
                    return
            return

        # Take one step for each group of minibatches, by the mean of their gradients.
        minibatches = batches.epoch(skip)
        while group := list(islice(minibatches, self.settings.accumulate)):
            rates = next_rates()
            total, loss = sum(one.weight for one in group), 0.0
            self.passes.begin()
            for i, one in enumerate(group):
                self.load(one)
                share = one.weight / total if total > 0 else 0.0
                loss += share * self.passes.run(rates.dropout_factor)
                self._accumulation.add(i, len(group), share)
            for stage in self._gradient_stages:
                loss += stage.run(total)
            del one, group  # free the window of a stream that the minibatches may hold
            yield total, loss
            self.update(rates)
            if after is not None and after(loss):
                return

    def load(self, minibatch: Minibatch) -> float:
        """Write a minibatch into the buffers of the pass for its number of rows, which runs next; return its weight."""
        minibatch.fill(self.passes.select(len(minibatch.rows)))
        return minibatch.weight

    def select(self, n_rows: int) -> BatchBuffers:
        """Return the buffers of the pass that runs next, which is for ``n_rows`` rows; the caller writes them."""
        buffers = self.passes.select(n_rows)
        buffers.forget()
        return buffers

    def compute_gradients(self, weight: float, dropout: float = 1.0) -> float:
        """Compute the gradients of the minibatch in the buffers, with penalty and clipping; return its loss.

        The loss includes the penalty. The penalty is divided by ``weight``, the sum of the weights of the minibatch, or
        of all rows for L-BFGS. Scheduled dropout ratios are multiplied by ``dropout``.
        """
        if self.passes.row_sparse:
            self.passes.begin()
        loss = self.passes.run(dropout)
        for stage in self._gradient_stages:
            loss += stage.run(weight)
        return loss

    def loss(self) -> float:
        """Return the loss of the minibatch in the buffers, without the penalty; its gradients are overwritten."""
        self.passes.begin()
        return self.passes.run(1.0)

    def update(self, rates: Rates) -> None:
        """Update the parameters by the gradients, and their average by the parameters."""
        self.optimizer_state.t += 1
        for stage in self._weight_stages:
            stage.run(rates, self.optimizer_state.t)

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step."""
        self.optimizer_state.reset(state_slots(self.settings.optimizer, self.parameters))

    def synchronize(self) -> None:
        """Do nothing, because the host's arrays are trained in place."""

    def reload(self) -> None:
        """Do nothing, because the host's arrays are trained in place."""


def in_trainable_type(
    graph: TrainableModel, settings: StepSettings, names: Sequence[str], sparse: Collection[str] = ()
) -> TrainableModel:
    """Return ``graph``, or its float32 form if the engine lacks float64 kernels for its gradients.

    Inputs named in ``sparse`` are given as sparse matrices.
    """
    if graph.dtype == np.float32:
        return graph
    if settings.engine == COMPILED:
        return as_float32(graph)
    weights = graph.weights()
    plain = replace(settings, accumulate=1, ema_decay=None, scheduled=Scheduled())
    trained = FlatParameters(
        {n: weights[n] for n in names}, graph.dtype, {n: weights[n] for n in graph.running_statistics}
    )
    # There is no list of available kernels, so make a small step to see whether onnxruntime opens its sessions.
    try:
        HostStep(StepParts(graph, plain, trained, {}, OptimizerState(), batch_size=graph.batch or 2, sparse=sparse))
    except Exception as error:
        if not sessions.not_implemented(error):
            raise
        return as_float32(graph)
    return graph


def as_float32(graph: TrainableModel) -> TrainableModel:
    """Return the float32 form of a float64 model."""
    double, single = np.dtype(np.float64), np.dtype(np.float32)
    inputs = tuple(replace(spec, dtype=single) if spec.dtype == double else spec for spec in graph.inputs)
    return replace(graph, model=in_dtype(graph.model, ir.DataType.FLOAT), inputs=inputs, dtype=single)
