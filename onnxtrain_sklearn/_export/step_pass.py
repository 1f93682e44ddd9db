"""The forward and backward pass that a training step begins with, over all rows of the step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from .._graph.protobuf import from_bytes
from .._training.dropout import FACTOR
from .._training.loss_graph import TARGET, WEIGHT
from .._training.programs import PassSource, pass_program
from .minibatch_groups import PassRoles, pass_of_group
from .source import ExportSource


@dataclass(frozen=True, eq=False)
class StepPass:
    """The graph of a pass, its inputs for uniform random numbers, and whether it reads a factor of dropout."""

    model: ir.Model
    random: tuple[str, ...]
    drops: bool


def step_pass(source: ExportSource) -> StepPass:
    """Return the pass over the minibatches of a step."""
    parts = source.parts
    settings, rows = replace(parts.settings, engine="portable"), parts.batch // source.minibatches
    program = pass_program(PassSource(parts.model, settings, parts.parameters, parts.frozen, rows))
    inputs = [value.name or "" for value in program.random]
    random, model = tuple(name for name in inputs if name != FACTOR), from_bytes(program.graph)
    if source.minibatches > 1:
        model = pass_of_group(model, _roles_in_pass(source, random), source.minibatches)
    return StepPass(model, random, FACTOR in inputs)


def _roles_in_pass(source: ExportSource, random: tuple[str, ...]) -> PassRoles:
    own, layout = source.parts.model, source.parts.parameters
    by_row = (*(spec.name for spec in own.inputs), TARGET, WEIGHT)
    return PassRoles(by_row, WEIGHT, random, {name: own.running_statistics[name] for name in layout.running_statistics})
