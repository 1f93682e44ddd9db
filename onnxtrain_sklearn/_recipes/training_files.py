"""Training graphs of recipes: the untrained networks, with the preprocessing of the table in front of them.

``untrained_networks`` prepares the networks as ``fit`` would, and stops before training. ``source_of_networks`` makes
of them the source from which ``_export`` writes graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_consistent_length

from .._data.targets import Targets, weights_of_classes
from .._estimators.files import export_source, untrained_state
from .._export.several_networks import name_in_network
from .._export.source import ExportSource
from .._ort import devices
from .._utils.typing import ClassWeight, MatrixLike
from .ensemble import Network, TableExamples
from .preprocessing import Preprocessing
from .raw_table import categorical_columns, read_table, warn_of_columns


@dataclass(frozen=True, eq=False)
class UntrainedNetwork:
    """An untrained network, its preprocessing, and the matrix and targets of the rows that ``fit`` would train on."""

    network: Network
    preprocessing: Preprocessing
    matrix: np.ndarray
    values: np.ndarray


def untrained_networks(recipe: Any, X: MatrixLike, y: ArrayLike) -> Iterator[UntrainedNetwork]:
    """Yield the networks of a recipe as they are before training."""
    table = read_table(recipe, X, reset=True)
    warn_of_columns(table, recipe.categorical_features)
    targets = recipe._encode(y)
    check_consistent_length(table.columns[0], targets.values)
    examples = TableExamples(table, categorical_columns(table, recipe.categorical_features), targets, None)
    weights, device = _class_weights_by_label(recipe, targets), devices.resolve_device(recipe.device)
    for member in recipe._members(examples):
        if weights:
            member.network.set_params(class_weight=weights)
        matrix, values, _ = examples.prepared(member.preprocessing, member.rows, device)
        yield UntrainedNetwork(member.network, member.preprocessing, matrix, values)


def source_of_networks(estimator: str, networks: Sequence[UntrainedNetwork], target: str) -> ExportSource:
    """Return the source of the training graphs of all networks."""
    sources, batch = list[ExportSource](), None
    for one in networks:
        state = untrained_state(one.network, one.matrix, one.values)
        sources.append(export_source(one.network, state, batch, target))
        batch = sources[0].parts.batch  # one graph trains all networks on the same minibatch
    matrices = [source.parts.model.inputs[0].name for source in sources]
    if len(networks) > 1:
        matrices = [name_in_network(name, number) for number, name in enumerate(matrices)]
    # the graph in front, from the columns of the table to the input of each network
    op = networks[0].preprocessing.new_graph()
    for one, matrix in zip(networks, matrices, strict=True):
        result = op.Identity(one.preprocessing.emit(op))
        result.name = matrix
        op.graph.outputs.append(result)
    front = ir.Model(op.graph, ir_version=8)
    first, *others = (replace(source, front=front) for source in sources)
    return replace(first, facts={**first.facts, "estimator": estimator}, others=tuple(others))


def _class_weights_by_label(recipe: Any, targets: Targets) -> ClassWeight:
    """Return the class weights as numbers by label: those of "balanced" are counted before rows are held out."""
    given, classes = getattr(recipe, "class_weight", None), targets.classes
    if given is None or not isinstance(classes, np.ndarray) or targets.task == "multilabel":
        return given  # for several labels, the export of the network raises the error
    found = weights_of_classes(given, classes, targets.values, np.ones(len(targets.values)))
    return dict(zip(classes.tolist(), found.tolist(), strict=True))
