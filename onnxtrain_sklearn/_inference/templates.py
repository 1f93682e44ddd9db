"""Inference graphs as bytes, made from templates that the fits of a process share.

A template is the inference graph of a structure with zeros in place of its weights. Every graph is made from one, also
the first: a graph whose form depended on a weight would predict wrongly at once, not only where the template is used
again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from .._graph.edits import initializers_to_inputs
from .._graph.fake_quantization import holds_fakes, requantized
from .._graph.protobuf import fill_initializers, to_proto
from .._graph.random_nodes import is_stateless
from .._graph.reweighted import form_of
from .._graph.structure import structure
from .._graph.trainable import TrainableModel
from .._support.cache import Cache
from .._support.content import content
from .._support.frozen import with_attributes
from .graph import inference_model
from .head import Head
from .placeholders import fill_places, numbers_of_targets, places, with_placeholders
from .predictor import PredictionGraph, prediction_graph

LARGEST_WEIGHTS = 2**24
"""Bytes of weights from which on a graph is made without a template, which would hold them for a moment."""


@dataclass(frozen=True, eq=False)
class _Template:
    """An inference graph in protobuf whose weights have no values; ``places`` are nodes by number of the head."""

    proto: Any
    graph: PredictionGraph
    places: Mapping[str, str]


_templates: Cache[_Template] = Cache(128, 2**25, lambda template: template.proto.ByteSize() + 2**14)


def filled_graph(
    model: TrainableModel,
    weights: Mapping[str, np.ndarray],
    head: Head,
    *,
    with_scores: bool = False,
    live: Collection[str] = (),
) -> PredictionGraph:
    """Return the inference graph with ``weights``; those that ``live`` names are inputs and need no values."""
    if holds_fakes(form_of(model.model)) and not live:  # what is predicted is what the file gives, with integers
        return prediction_graph(requantized(_made(model, weights, head, with_scores, live)))
    if sum(array.nbytes for array in weights.values()) > LARGEST_WEIGHTS:
        return prediction_graph(_made(model, weights, head, with_scores, live))
    key = (structure(model.model, weights), _form(model), _head_key(head), with_scores, tuple(live))
    template = _templates.get(key, lambda: _template(model, weights, head, with_scores, live))
    proto = type(template.proto)()
    proto.CopyFrom(template.proto)
    fill_initializers(proto, weights)
    fill_places(proto, template.places, head, model.dtype)
    return replace(template.graph, content=proto.SerializeToString())


def _made(
    model: TrainableModel, weights: Mapping[str, np.ndarray], head: Head, with_scores: bool, live: Collection[str]
) -> ir.Model:
    graph = inference_model(model, weights, head, with_scores=with_scores)
    initializers_to_inputs(graph.graph, list(live))
    return graph


def _template(
    model: TrainableModel, weights: Mapping[str, np.ndarray], head: Head, with_scores: bool, live: Collection[str]
) -> _Template:
    zeros = {name: np.zeros(array.shape, array.dtype) for name, array in weights.items()}
    graph = _made(model, zeros, with_placeholders(head), with_scores, live)
    proto = to_proto(graph)
    for tensor in proto.graph.initializer:
        if tensor.name in zeros:
            tensor.ClearField("raw_data")
    found = places(graph.graph, head, model.dtype, {node.name for node in model.model.graph})
    holds_numbers = bool(found) or not {*live} >= zeros.keys()  # of one fit
    is_shared = not holds_numbers and is_stateless(graph.graph)
    return _Template(proto, replace(prediction_graph(graph), content=b"", is_shared=is_shared), found)


def _form(model: TrainableModel) -> tuple[object, ...]:
    """Return what :func:`inference_model` reads of a model beside its graph."""
    activation = tuple(model.activation.values())
    return model.output, *activation, model.choice, model.members, model.dtype.str, model.inputs, model.joined


def _head_key(head: Head) -> object:
    """Return the content of the head without the numbers that are filled in, but with which of them there are."""
    return content(with_attributes(head, target_scale=None, target_range=None)), tuple(numbers_of_targets(head))
