"""The forward and backward pass that a training step begins with, over all rows of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from .._graph.first_products import take_first_products
from .._graph.protobuf import from_bytes
from .._training.dropout import FACTOR
from .._training.loss_graph import LAZY, TARGET, WEIGHT, ir_type, training_graph
from .._training.programs import PassSource, pass_program
from .looked_up_rows import return_occurring_columns, return_rows_added_up
from .minibatch_groups import PassRoles, pass_of_group
from .source import ExportSource


@dataclass(frozen=True, eq=False)
class StepPass:
    """The graph of a pass.

    Attributes
    ----------
    model : onnx_ir.Model
    random : tuple of str
        Its inputs for uniform random numbers.
    drops : bool
        Whether it reads a factor of dropout.
    occurs : mapping of str to str
        Of the matrices whose rows are updated only where they occur: the outputs that say which.
    """

    model: ir.Model
    random: tuple[str, ...]
    drops: bool
    occurs: Mapping[str, str]


def step_pass(source: ExportSource) -> StepPass:
    """Return the pass over the minibatches of a step."""
    parts = source.parts
    settings, rows = replace(parts.settings, engine="portable"), parts.batch // source.minibatches
    lazy = settings.sparse_updates == LAZY
    program = pass_program(PassSource(parts.model, settings, parts.parameters, parts.frozen, rows, adds_rows=lazy))
    inputs = [value.name or "" for value in program.random]
    random, model = tuple(name for name in inputs if name != FACTOR), from_bytes(program.graph)
    occurs, kind = dict[str, str](), ir_type(parts.parameters.vector.dtype)
    if lazy:
        graph = training_graph(parts.model, settings, parts.frozen, rows)
        products = take_first_products(graph, parts.sparse)
        occurs |= return_occurring_columns(model, products, parts.parameters.names, kind)
    occurs |= return_rows_added_up(model, program.lookups, kind)
    if source.minibatches > 1:
        model = pass_of_group(model, _roles_in_pass(source, random, occurs), source.minibatches)
    return StepPass(model, random, FACTOR in inputs, occurs)


def _roles_in_pass(source: ExportSource, random: tuple[str, ...], occurs: Mapping[str, str]) -> PassRoles:
    own, layout = source.parts.model, source.parts.parameters
    by_row = (*(spec.name for spec in own.inputs), TARGET, WEIGHT)
    statistics = {name: own.running_statistics[name] for name in layout.running_statistics}
    return PassRoles(by_row, WEIGHT, random, statistics, frozenset(occurs.values()))
