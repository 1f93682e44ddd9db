"""What a rule declares to honor is shown by a case: a gradient that is right, and another one without the setting.

The cases are those of the gradient contracts, which hold them to central differences. For each attribute of each rule
there is one in which it is set and in which the gradient is another one where it is left out; each value of a text and
each optional input has a case too.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn import gradient_graph
from tests.contracts import lowered_cases, ort_training_cases, portable_cases
from tests.contracts.gradient_cases import Case, model_of
from tests.contracts.portable_forms import refusal
from tests.contracts.test_known_settings import TABLES
from tests.helpers.environment import RUNTIME_VERSION, available_engines
from tests.helpers.sessions import session

INERT = {
    ("Bernoulli", "dtype"): "what is drawn has no gradient",
    ("Bernoulli", "seed"): "what is drawn has no gradient",
    ("Dropout", "ratio"): "an attribute in opset 11 only, where nothing is dropped",
    ("Dropout", "seed"): "the gradient has the mask of what was drawn",
    ("EyeLike", "dtype"): "what is made has no gradient",
    ("MelWeightMatrix", "output_datatype"): "a step function",
    ("Optional", "type"): "declares what is known",
    ("RandomNormalLike", "dtype"): "what is drawn has no gradient",
    ("RandomNormalLike", "seed"): "what is drawn has no gradient",
    ("RandomUniformLike", "dtype"): "what is drawn has no gradient",
    ("RandomNormalLike", "mean"): "what is drawn has no gradient",
    ("RandomNormalLike", "scale"): "what is drawn has no gradient",
    ("RandomUniformLike", "high"): "what is drawn has no gradient",
    ("RandomUniformLike", "low"): "what is drawn has no gradient",
    ("RandomUniformLike", "seed"): "what is drawn has no gradient",
}
"""Attributes that a gradient does not depend on, and why."""

for operator in ("GRU", "LSTM", "RNN"):
    INERT[operator, "layout"] = "refused by the rule, where it is not the default"
for operator in ("Conv", "ConvTranspose", "DeformConv"):
    INERT[operator, "kernel_shape"] = "the shape of the weights, said again"
for operator, attribute in (("Flatten", "axis"), ("Reshape", "allowzero"), ("Split", "split"), ("Squeeze", "axes")):
    INERT[operator, attribute] = "tells the shape of the output, which the rule reads"
INERT["ConcatFromSequence", "new_axis"] = "tells the shape of the output"
INERT["Hardmax", "axis"] = "steps have no gradient"
INERT["MaxPool", "storage_order"] = "tells how places are counted, not which they are"
INERT["MaxUnpool", "pads"] = "tells the shape of the output, whose elements are counted through"
INERT["Resize", "extrapolation_value"] = "a constant, outside of the image"
INERT["Resize", "keep_aspect_ratio_policy"] = "refused, where it is not the default"
INERT["RoiAlign", "mode"] = "refused by the rule, where it is not the default"
INERT["Shrink", "bias"] = "a constant shift"

BY_NODE_TESTS = {
    "LpPool: auto_pad = SAME_LOWER",
    "LpPool: auto_pad = VALID",
    "Pad: mode = wrap",
}
"""What only ONNX's own tests of the nodes show, which ``test_node_tests.py`` holds the engines to."""

REFUSED = {("ort-training", "dilations")}
"""Attributes that the engine refuses with a reason of its own; Conv and MaxPool have dilations in other cases too."""
CRASHES = {("MaxUnpool", "strides"): "onnxruntime 1.19 to 1.21 write outside their memory where an index is too large"}


def cases(table: str) -> list[Case]:
    if table == "ort-training":
        return list(ort_training_cases.CASES)
    return [*portable_cases.CASES, *lowered_cases.CASES]


def is_refused(table: str, one: Case) -> bool:
    return bool(one.refused if table == "ort-training" else refusal(one))


@functools.cache
def calls(table: str) -> dict[str, list[tuple[Case, str, list[str]]]]:
    """Return where the cases use an operator: the case, the text of the attributes, the inputs."""
    found: dict[str, list[tuple[Case, str, list[str]]]] = {}
    for one in cases(table):
        for operator, attributes, inputs in re.findall(r"([\w.]+)\s*(?:<([^<>]*)>)?\s*\(([^()]*)\)", one.body):
            found.setdefault(operator, []).append((one, attributes, [name.strip() for name in inputs.split(",")]))
    return found


def settings() -> Iterator[tuple[str, str, str]]:
    for table in ("lowerings", "ort-training", "rules"):  # the others are held by the cases of what reads them
        for operator, known in TABLES[table].items():
            names = [name for name, values in known.values.items() if len(values) != 1]  # one: the default
            names = [name for name in names if (operator, name) not in INERT]
            yield from ((table, operator, name) for name in names if (table, name) not in REFUSED)


def gradients(one: Case, opset: int, engine: str, without: tuple[str, str] | None = None) -> list[np.ndarray]:
    """Return the gradients of a case under random weights, the attribute ``without`` left out of its operator."""
    arrays = {**one.arrays, "weighting": np.ones((), np.float32)}
    probe = _without(model_of(one, opset, one.arrays, arrays["weighting"], "inputs"), without)
    probe.graph.output.append(onnx.ValueInfoProto(name="y"))
    y = session(probe).run(["y"], {i.name: arrays[i.name].copy() for i in probe.graph.input})[0]
    arrays["weighting"] = np.random.default_rng(0).normal(size=y.shape).astype(np.float32)
    model = _without(model_of(one, opset, one.arrays, arrays["weighting"], "inputs"), without)
    graph = gradient_graph(model, wrt=one.names, engine=engine)
    feeds = {i.name: arrays[i.name].copy() for i in graph.graph.input}
    return session(graph).run([f"{name}_grad" for name in one.names], feeds)


def _without(model: onnx.ModelProto, left_out: tuple[str, str] | None) -> onnx.ModelProto:
    for node in _nodes(model.graph):
        for one in [a for a in node.attribute if (node.op_type, a.name) == left_out]:
            node.attribute.remove(one)
    return model


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


def matters(one: Case, opset: int, engine: str, operator: str, attribute: str) -> bool | None:
    """Whether the gradient is another one without the attribute, None where this runtime cannot run the case."""
    try:
        given = gradients(one, opset, engine)
    except Exception:
        return None
    try:
        other = gradients(one, opset, engine, (operator, attribute))
    except Exception:  # it cannot be left out, or the shapes of the case are those that it makes
        return True
    pairs = list(zip(given, other, strict=True))
    return any(a.shape != b.shape or not np.allclose(a, b, 1e-3, 1e-4, equal_nan=True) for a, b in pairs)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("table", "operator", "attribute"), settings())
def test_a_case_shows_that_the_value_of_an_attribute_matters(table, operator, attribute):
    engine = "ort-training" if table == "ort-training" else "portable"
    if engine == "ort-training" and "ort-training" not in available_engines():
        pytest.skip("needs onnxruntime-training")
    if (operator, attribute) in CRASHES and RUNTIME_VERSION.startswith(("1.19", "1.20", "1.21")):
        pytest.skip(CRASHES[operator, attribute])
    met = calls(table).get(operator, [])
    own = [one for one, text, _ in met if not is_refused(table, one) and re.search(rf"\b{attribute} =", text)]
    assert own, "no case sets it"
    found = []
    forms = {(id(one), opset): (one, opset) for one in own for opset in (one.opsets[-1], one.opsets[0])}
    for setter, opset in forms.values():
        found.append(matters(setter, opset, engine, operator, attribute))
        if found[-1]:
            return
    if set(found) == {None}:
        pytest.skip("this runtime cannot run the cases that set it")
    raise AssertionError("the gradient is the same without it in all cases that set it")


@pytest.mark.parametrize("table", TABLES)
def test_each_value_and_each_input_has_a_case(table):
    assert set(missing(table)) <= BY_NODE_TESTS


def missing(table: str) -> Iterator[str]:
    for operator, known in TABLES[table].items():
        met = calls(table).get(operator, [])
        for name, values in known.values.items():
            shown = {value for _, text, _ in met for value in re.findall(rf'\b{name} = "(\w+)"', text)}
            shown |= {default_of(operator, name)} if values else set()
            yield from (f"{operator}: {name} = {v}" for v in values - shown)
        if known.inputs < sys.maxsize:  # it is not variadic
            given = {i for one, _, inputs in met if not is_refused(table, one) for i, x in enumerate(inputs) if x}
            yield from (f"{operator}: input {i}" for i in range(known.inputs) if i not in given)


def default_of(operator: str, name: str) -> str:
    return onnx.defs.get_schema(operator).attributes[name].default_value.s.decode()
