"""The settings of a training step, by the parameters of the estimator: for training, and for training graphs.

They are known in two parts: most with the head, those about parameters by name once the graph is known.
"""

from __future__ import annotations

from .._gradient.engine import choose_engine
from .._graph.trainable import TrainableModel
from .._inference.head import Head
from .._runtime.devices import Device
from .._support.frozen import with_attributes
from .._training.compiled_pass import COMPILED, require_compiler
from .._training.loss_graph import Scheduled, StepSettings, TrainedPositions
from .._training.total_loss import TotalLoss
from ..losses import Loss
from ..optimizers import resolve_optimizer
from .factors import factors_of, require_schedulable, sparse_updates_of
from .parameters import Parameters


def settings_with_head(
    estimator: Parameters,
    loss: Loss | TotalLoss,
    head: Head,
    device: Device,
    engine: str,
    seed: int,
    positions: TrainedPositions | None = None,
) -> StepSettings:
    """Return the settings that need no graph; ``positions``: None for whole rows."""
    return StepSettings(
        loss=loss,
        task=head.task,
        link=head.link,
        n_outputs=head.n_outputs,
        groups=head.groups,
        positions=positions,
        optimizer=resolve_optimizer(estimator.optimizer),
        alpha=float(estimator.alpha),
        l1_ratio=float(estimator.l1_ratio),
        max_grad_norm=None if estimator.max_grad_norm is None else float(estimator.max_grad_norm),
        engine=engine,
        device=device,
        accumulate=int(estimator.accumulate),
        ema_decay=None if estimator.ema_decay is None else float(estimator.ema_decay),
        session_options=estimator.session_options,
        seed=seed,
        checkpoint_activations=bool(estimator.checkpoint_activations),
        sparse_updates=sparse_updates_of(estimator, device),
    )


def settings_with_graph(
    estimator: Parameters, settings: StepSettings, source: TrainableModel, scheduled: Scheduled
) -> StepSettings:
    """Return the settings with those that depend on the parameters of the graph."""
    factors = factors_of(estimator, source, settings.optimizer)
    require_schedulable(scheduled, settings.optimizer)
    return with_attributes(settings, factors=factors, scheduled=scheduled)


def engine_of(estimator: Parameters, device: Device) -> str:
    """Return the name of the engine; activations are computed again by the portable one."""
    if estimator.engine == COMPILED:
        require_compiler(device)
        _require_all_activations(estimator)
        return COMPILED
    chosen = choose_engine(estimator.engine, [COMPILED])
    if not estimator.checkpoint_activations:
        return chosen
    if chosen == "ort-training":
        _require_all_activations(estimator)
    return "portable"


def _require_all_activations(estimator: Parameters) -> None:
    """Raise if activations are to be computed again, which neither ort-training nor compiled code does."""
    if estimator.checkpoint_activations:
        raise ValueError(
            f"checkpoint_activations=True needs the portable engine, and engine={estimator.engine!r} keeps all "
            "activations. Set engine='auto' or 'portable'."
        )
