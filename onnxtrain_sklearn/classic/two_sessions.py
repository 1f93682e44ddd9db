"""Training agent for an onnxruntime without one: a session for the forward pass and one for the backward pass.

The forward session returns the outputs and the activations that the backward pass reads; a state object keeps these and
the inputs. So passes are independent of each other, and their backward passes may run in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from .._graph.protobuf import to_proto
from .._runtime import objects as runtime
from .._runtime.devices import Device
from .vjp import split


@dataclass
class PassState:
    """Values by name that a backward pass reads; filled by the forward pass, cleared by the backward pass."""

    values: dict[str, runtime.OrtValue] = field(default_factory=dict)


class TwoSessions:
    """Run the graph of :func:`~.vjp.vjp_graph` as onnxruntime-training's agent does.

    Parameters
    ----------
    model : onnx_ir.Model
    inputs, outputs, gradients : list of str
        The order in which values are given and returned.
    device : Device
    options : onnxruntime.SessionOptions or None
    run_options : onnxruntime.RunOptions or None
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: Sequence[str],
        outputs: Sequence[str],
        gradients: Sequence[str],
        device: Device,
        options: object,
        run_options: object,
    ) -> None:
        forward, backward, activations = split(model, outputs)
        self._inputs, self._gradients, self._count = list(inputs), list(gradients), len(outputs)
        self._seeds = [f"{name}_grad" for name in outputs if f"{name}_grad" in {v.name for v in model.graph.inputs}]
        self._forward_outputs = list(dict.fromkeys([*outputs, *activations]))
        self._read = {v.name for v in forward.graph.inputs}, {v.name for v in backward.graph.inputs}
        self._memory, self._run_options = device.memory, run_options
        self._forward, self._backward = (
            runtime.session(to_proto(part).SerializeToString(), device, options) for part in (forward, backward)
        )

    def run_forward(
        self, feeds: runtime.OrtValueVector, fetches: runtime.OrtValueVector, state: PassState, cache: object = None
    ) -> None:
        """Store the outputs in ``fetches`` and the values that the backward pass needs in ``state``."""
        given = dict(zip(self._inputs, feeds, strict=True))
        found = self._run(self._forward, self._read[0], given, self._forward_outputs, fetches)
        runtime.fill(fetches, found[: self._count])
        state.values = {**given, **dict(zip(self._forward_outputs, found, strict=True))}

    def run_backward(self, grads: runtime.OrtValueVector, fetches: runtime.OrtValueVector, state: PassState) -> None:
        """Store the gradients in ``fetches`` and clear the state."""
        given = {**state.values, **dict(zip(self._seeds, grads, strict=True))}
        runtime.fill(fetches, self._run(self._backward, self._read[1], given, self._gradients, fetches))
        state.values = {}

    def _run(
        self,
        session: Any,
        read: Collection[str | None],
        given: Mapping[str, runtime.OrtValue],
        outputs: Sequence[str],
        held: runtime.OrtValueVector,
    ) -> list[runtime.OrtValue]:
        feeds = {name: value for name, value in given.items() if name in read}
        return runtime.run(session, feeds, outputs, list(held), self._run_options, memory=self._memory)
