"""Low-rank adapters (LoRA) of an estimator: choose the matrices, add the factors to the graph, save them to a file."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .._importers.quantization import is_held_as_integers, requantized
from .._inference.graph import OutputOptions, inference_model
from .._ir.edits import initializers_with_defaults
from .._model.given_inputs import in_layout_of_file
from .._model.packed_examples import unpacked
from .._model.precision import narrowed
from .._model.trainable import TrainableModel
from .._model.weights import factors_of_matrices
from .._ort.objects import write_adapter
from .._training.parameters import matches
from ..adapters import matrices_of, with_low_rank, without_low_rank
from ..exceptions import ModelError, nearest
from ..models import resolve_builder
from .fitted_state import FittedState
from .parameters import Parameters


def adapted(estimator: Parameters, graph: TrainableModel, rng: np.random.RandomState | None) -> TrainableModel:
    """Return the graph with the estimator's low-rank factors added. ``rng`` draws their initial values."""
    lora = estimator.adapters
    if lora is None:
        return graph
    lora.validate()
    if resolve_builder(estimator.model) is not None:
        raise ValueError(
            "adapters are for a trained model: a fitted scikit-learn model or an ONNX graph with weights. This model "
            "is built for the data, and its matrices would stay random; leave adapters=None."
        )
    matrices = matrices_of(graph)
    initializers = graph.model.graph.initializers
    in_place_of_integers = (
        "a low-rank change that is merged into them would be rounded. Leave adapters=None, which trains quantized "
        "weights themselves, or take the float model that the file was made from."
    )
    if not matrices:
        integers = [name for name in graph.weights() if is_held_as_integers(initializers[name])]
        if integers:
            raise ValueError(
                f"adapters change float matrices, and the file holds {integers[0]!r} as integers: "
                f"{in_place_of_integers}"
            )
        raise ValueError(
            "adapters change the matrices that a Gemm, MatMul or Conv of the graph multiplies by, and this graph has "
            "none: leave adapters=None, which trains its parameters themselves."
        )

    # The matrices that ``targets`` selects, in the order of the graph.
    patterns = ["*"] if lora.patterns == ["all"] else lora.patterns
    for pattern in patterns:
        if any(matches(name, pattern) for name in matrices):
            continue
        other = next((name for name in graph.weights() if matches(name, pattern)), None)
        if other is not None and is_held_as_integers(initializers[other]):
            raise ValueError(
                f"targets: {pattern!r} matches {other!r}, which the file holds as integers: {in_place_of_integers}"
            )
        what = "no parameter" if other is None else f"{other!r}, and no matrix"
        raise ValueError(
            f"targets: {pattern!r} matches {what} that a Gemm, MatMul or Conv of the graph multiplies by."
            f"{nearest(pattern, matrices)}"
        )
    names = [name for name in matrices if any(matches(name, pattern) for pattern in patterns)]
    return with_low_rank(graph, names, int(lora.rank), float(lora.alpha) / lora.rank, rng)


def adapters_of(estimator: object) -> dict[str, np.ndarray]:
    """Return a copy of the low-rank factors of a fitted estimator by name."""
    state: FittedState | None = vars(estimator).get("_state")
    if state is None or not state.graph.low_rank:
        name = type(estimator).__name__
        raise AttributeError(f"{name!r} object has no attribute 'adapters_': it trained no adapters.")
    weights = state.prediction_weights()
    factors = factors_of_matrices(state.graph.low_rank)
    return {name: array for name, array in weights.items() if name in factors}


def save_adapter(state: FittedState, path: str | os.PathLike[str]) -> None:
    """Write the factors and the other trained parameters to an ``.onnx_adapter`` file."""
    _require_one_network(state)
    weights = state.prediction_weights()
    parameters = state.parameters
    arrays = {name: weights[name] for name in (*parameters.names, *parameters.running_statistics)}
    for one in state.graph.low_rank:
        last = one.factors[1]
        # A runtime adds the product of the factors without a scale, so multiply the scale into the last factor.
        arrays[last] = (one.scale * arrays[last].astype(np.float64)).astype(arrays[last].dtype)
    write_adapter(path, arrays)


def _require_one_network(state: FittedState) -> None:
    if state.snapshots:
        raise ModelError(
            "An adapter is for one network, and a SnapshotEnsemble predicts by several: use to_onnx() without adapter."
        )


def adaptable_graph(state: FittedState, options: OutputOptions) -> ir.Model:
    """Return the inference graph of the given model, in which the trained values are inputs with defaults."""
    if state.deployed.inputs != state.graph.inputs:
        raise ModelError("adapter=True needs a model that takes numbers, and this one encodes text. Use to_onnx().")
    _require_one_network(state)
    changes = state.graph.low_rank
    parameters = state.parameters
    open_graph = unpacked(state.deployed)
    if changes:
        rank = len(state.prediction_weights()[changes[0].right])
        open_graph = with_low_rank(
            without_low_rank(unpacked(state.graph)), [one.matrix for one in changes], rank, 1.0, None
        )
    model = inference_model(open_graph, open_graph.weights(), state.decoding, form=options)
    axes = {one.left: 1 for one in changes} | {one.right: 0 for one in changes}
    free = {name: axes.get(name) for name in (*parameters.names, *parameters.running_statistics)}
    initializers_with_defaults(model.graph, free)
    in_layout_of_file(requantized(model), state.graph.layout)
    kept = state.graph.kept
    return narrowed(model, replace(kept, weights={n: kind for n, kind in kept.weights.items() if n not in free}))
