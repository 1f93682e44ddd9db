"""A forward and backward pass over a fixed number of rows: its graph, the buffers that it reads, its session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .._compiler.bound_code import BoundCode
from .._data.batches import BatchBuffers
from .._data.sparse_rows import SparseRows
from .._runtime import sessions
from .._runtime.binding import Array, Binding
from .._runtime.sessions import InferenceSession
from .._runtime.shared_sessions import shared_session
from ..exceptions import warn
from .dropout import UniformNumbers
from .gradient_shapes import in_written_shapes
from .loss_graph import LAZY, PARALLEL_WORK, TARGET, buffer_shape, target_layout
from .programs import PassProgram, PassSource, pass_program

BACKWARD_IN_ORDER: Mapping[str, object] = {
    "enable_mem_pattern": False,
    "execution_order": "PRIORITY_BASED",
    "optimization.disable_specified_optimizers": "GemmActivationFusion;ConvActivationFusion",
}
"""Options by which the nodes run in the order of the graph, so that the backward pass frees values as it goes.

By default onnxruntime computes the gradients of all weights last, and keeps what they read until then. In the order by
priority, nodes that a fusion puts into the forward pass come after all others that could run.
"""


@dataclass(frozen=True, eq=False)
class PassGraph:
    """The gradient graph for a fixed number of rows, and the host arrays that it reads."""

    source: PassSource
    program: PassProgram
    buffers: BatchBuffers
    uniform: UniformNumbers

    def bind(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        gradients: Mapping[str, Array],
        statistics: Mapping[str, Array],
        threads: int = 1,
    ) -> Binding:
        """Bind the graph.

        ``gradients`` and ``statistics`` map names to the arrays for the gradient of each parameter and the next value
        of each running statistic. Inputs that the graph does not have are left out.
        """
        session, moved = self.session(threads), self.source.model.running_statistics
        written = {**outputs, **in_written_shapes(session, {f"{name}_grad": a for name, a in gradients.items()})}
        written |= {moved[name]: array for name, array in statistics.items()}
        names = {value.name for value in session.get_inputs()}
        return Binding(session, {name: array for name, array in inputs.items() if name in names}, written)

    def bind_on_host(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        gradients: Mapping[str, np.ndarray],
        statistics: Mapping[str, np.ndarray],
        threads: int,
    ) -> Binding | BoundCode:
        """Bind the function that the graph is compiled to, or the graph; the arguments are those of :meth:`bind`."""
        if self.program.code is None:
            return self.bind(inputs, outputs, gradients, statistics, threads)
        moved = self.source.model.running_statistics
        written = {**outputs, **{f"{name}_grad": array for name, array in gradients.items()}}
        return BoundCode(self.program.code, inputs, written | {moved[name]: a for name, a in statistics.items()})

    def session(self, threads: int = 1) -> InferenceSession:
        """Return the session of the pass, which other fits may use too."""
        program, settings = self.program, self.source.settings
        device, options = settings.device, settings.session_options
        if program.work >= PARALLEL_WORK:  # its plan of the memory of large tensors leaves gaps, half as much again
            options = {"enable_mem_pattern": False, **(options or {})}
        if settings.checkpoint_activations:
            options = {**BACKWARD_IN_ORDER, **(options or {})}
        if not program.stateless:
            return sessions.create_session(program.graph, device, threads=threads, options=options)
        return shared_session(program.graph, device, threads=threads, options=options, memory=program.memory)


def pass_graph(source: PassSource) -> PassGraph:
    """Return the gradient graph with buffers of its own; the trained parameters are among its inputs."""
    settings, batch, dtype = source.settings, source.batch, source.parameters.vector.dtype
    program = pass_program(source)
    if settings.checkpoint_activations and not program.segments:
        warn("checkpoint_activations=True has no effect: the graph has too few activations to compute any again.")
    trained = source.parameters.names
    if settings.sparse_updates == LAZY and not (program.lookups or any(p.weight in trained for p in program.products)):
        warn(
            "sparse_updates='lazy' has no effect: the graph has no trained matrix whose rows only Gather reads, nor "
            "one that sparse data are multiplied by."
        )
    sparse = {product.input: SparseRows(product.factors) for product in program.products}
    dense = [spec for spec in source.model.inputs if spec.name not in sparse]
    columns = {spec.name: np.zeros(buffer_shape(spec.shape, batch), spec.dtype) for spec in dense}
    layout = target_layout(settings.task, settings.n_outputs, batch, dtype, settings.positions)
    columns[TARGET] = np.zeros(*layout)
    buffers = BatchBuffers(columns, np.ones(batch, dtype), sparse)
    return PassGraph(source, program, buffers, UniformNumbers(program.random, settings.seed))
