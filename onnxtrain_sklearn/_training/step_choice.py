"""Choose the kind of a step: who runs its passes, where the parameters are updated, and why."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TypeAlias

import numpy as np

from .._data.batches import Batches
from .._ort.llvm import features, is_installed
from ..exceptions import UnsupportedOperatorError
from ..optimizers import LBFGS
from .device_step import DeviceStep
from .history import History
from .programs import COMPILED, PARALLEL_WORK, PassSize, is_supported
from .rows_meet import where_rows_meet
from .step import HostStep, StepKind, TrainingStep
from .step_parts import StepParts
from .trainer import FullBatchTrainer, Trainer, TrainerSettings

DEVICE, SESSION, CODE = "a session on the device", "a session", "machine code"
"""Values of ``StepKind.passes``: who runs a pass."""

ON_DEVICE, ON_HOST, FULL_BATCH = "on the device", "on the host", "by SciPy"
"""Values of ``StepKind.update``: where or by whom weights are updated; on the host, each segment has its executor."""


@dataclass(frozen=True, eq=False)
class Situation:
    """The arguments of the conditions in :data:`STEP_KINDS`.

    Attributes
    ----------
    parts : StepParts
    passes : int
        Number of passes that a new training run plans, one for each minibatch; 0 for a call that continues a run.
    began_compiled : bool
        Whether the call continues a run that began with compiled passes. Such a call keeps them, unless an
        earlier row of the table decides, so that the bits do not depend on interruptions.
    """

    parts: StepParts
    passes: int
    began_compiled: bool

    @property
    def is_full_batch(self) -> bool:
        """True if the optimizer takes all rows at once."""
        return not self.parts.settings.optimizer.takes_minibatches

    @cached_property
    def session_step(self) -> HostStep:
        """The step whose passes a session runs; the size of its graph shows how much time compiling would save."""
        return HostStep(self.parts)

    @property
    def rows_meet(self) -> bool:
        """True if the result of a row depends on others of its minibatch."""
        return where_rows_meet(self.parts.graph, self.parts.settings) is not None

    @property
    def is_too_short(self) -> bool:
        """True if the run is too short for compiling to pay off."""
        return not self.began_compiled and not pays(self.session_step.program.size, self.passes)


StepKindRule: TypeAlias = "tuple[Callable[[Situation], object], str, str, str]"

# The first row whose condition holds decides, so rows that would hold too come later. Where the order is free, cheap
# conditions come first: those that need no graph; ``is_too_short`` differentiates the graph, which tells whether
# compiling pays; ``auto_compiles`` loads the compiler, which takes a tenth of a second.
STEP_KINDS: Sequence[StepKindRule] = (
    (lambda s: s.is_full_batch and s.parts.settings.engine == COMPILED, CODE, FULL_BATCH, "engine='compiled'"),
    (lambda s: s.is_full_batch, SESSION, FULL_BATCH, "L-BFGS keeps its vectors on the host"),
    (lambda s: s.parts.settings.device.memory, DEVICE, ON_DEVICE, "the device has memory of its own"),
    (lambda s: s.parts.settings.engine == COMPILED, CODE, ON_HOST, "engine='compiled'"),
    (lambda s: s.parts.settings.checkpoint_activations, SESSION, ON_HOST, "checkpoint_activations is set"),
    (lambda s: s.parts.settings.engine != "auto", SESSION, ON_HOST, "the engine is given"),
    (lambda s: s.parts.settings.session_options, SESSION, ON_HOST, "session_options are given"),
    (lambda s: s.parts.settings.device.providers != ("CPUExecutionProvider",), SESSION, ON_HOST, "a provider is given"),
    (lambda s: s.parts.sparse, SESSION, ON_HOST, "the rows are sparse"),
    (lambda s: s.parts.parameters.vector.dtype != np.float32, SESSION, ON_HOST, "float64 is not compiled"),
    (lambda s: s.is_too_short, SESSION, ON_HOST, "compiling would take longer than it saves"),
    # If rows meet, minibatches are not padded, so that a shorter one would be compiled in the midst of training.
    (lambda s: s.rows_meet, SESSION, ON_HOST, "rows of a minibatch meet"),
    (lambda s: not auto_compiles(), SESSION, ON_HOST, "llvmlite is not installed, or not measured on this processor"),
    (lambda s: s.began_compiled, CODE, ON_HOST, "the training began with it"),
    (lambda s: True, CODE, ON_HOST, "the planned passes save more time than compiling takes"),
)


def new_step(parts: StepParts, passes: int = 0, *, compiled: bool = False) -> TrainingStep:
    """Return the step that :data:`STEP_KINDS` chooses; if "auto" fails to compile the graph, a session runs it.

    Parameters
    ----------
    parts : StepParts
    passes : int, default=0
        Number of planned passes, one for each minibatch; 0 for a call that continues a run.
    compiled : bool, default=False
        Whether the run that is continued began with compiled passes.
    """
    situation = Situation(parts, passes, compiled)
    kind = next(StepKind(*row[1:]) for row in STEP_KINDS if row[0](situation))
    step: HostStep | DeviceStep
    if kind.passes == DEVICE:
        step = DeviceStep(parts)
    elif kind.passes == CODE:
        try:
            step = HostStep(replace(parts, settings=replace(parts.settings, engine=COMPILED)))
        except (UnsupportedOperatorError, ImportError, OSError, RuntimeError):  # an unsupported graph, broken llvmlite
            if parts.settings.engine == COMPILED:
                raise
            step = situation.session_step
            kind = StepKind(SESSION, ON_HOST, "the graph cannot be compiled")
    else:
        step = situation.session_step
    step.kind = kind
    return step


def new_trainer(
    settings: TrainerSettings,
    step: TrainingStep,
    batches: Batches,
    history: History,
    validate: Callable[[], float] | None = None,
) -> Trainer:
    """Return the trainer for ``step``: L-BFGS on all rows at once, or epochs of minibatches."""
    if isinstance(step, HostStep) and isinstance(step.settings.optimizer, LBFGS):
        return FullBatchTrainer(step.settings.optimizer, settings, step, batches, history, validate)
    return Trainer(settings, step, batches, history, validate)


# Does compiling pay off? This is computed, not measured, so that a seed gives the same bits in every run.


NODE, ELEMENT = 5e-7, 1.2e-10
"""Seconds that a pass saves for each node of the gradient graph, and for each element that it computes.

``python benchmarks/engine_families.py --compiled`` compares them with measured savings.
"""


LOADING, COMPILING, COMPILING_NODE = 0.1, 0.05, 7e-4
"""Seconds that it takes to load the compiler, to compile a graph, and each of its nodes."""


MARGIN = 3.0
"""A fit must be expected to save this multiple of the seconds above, because it may end early."""


LIKELY_EPOCHS = 200
"""Largest number of epochs in the estimate, as ``max_iter`` is often far more than a fit needs; ignored if all epochs
are planned."""


def pays(size: PassSize, passes: int) -> bool:
    """Return True if compiling pays: the ``passes`` save ``MARGIN`` times the time that it takes.

    It never does for graphs that a session would run on all cores. The answer depends only on the graph and on
    ``passes``, not on the number of threads or on earlier compilations of the process: a seed must always give the same
    bits.
    """
    saved = passes * (NODE * size.nodes + ELEMENT * size.elements)
    return size.work < PARALLEL_WORK and saved >= MARGIN * (LOADING + COMPILING + COMPILING_NODE * size.nodes)


def auto_compiles() -> bool:
    """Return True if ``engine="auto"`` may compile a graph in this environment; loads the compiler."""
    return is_installed() and is_measured()


@cache
def is_measured() -> bool:
    """Return True if compiled code can run on this kind of processor, and was measured on it."""
    try:
        known = {"+avx2", "+avx512vl"}.intersection(features().split(","))
        return bool(known) and platform.machine().lower() in {"x86_64", "amd64"} and is_supported()
    except (ImportError, OSError, RuntimeError):  # a broken or old llvmlite
        return False
