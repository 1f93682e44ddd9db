"""Rewrite graphs around kernels of onnxruntime that compute wrong numbers.

On CUDA, ``Sum``, ``Max`` and ``Min`` of three or more operands are wrong where two of the operands are broadcast along
different axes: in 96 of 241 combinations of three shapes, with onnxruntime 1.31. :func:`in_pairs` puts operators of two
operands in their place, which are right.

On processors without VNNI or AMX instructions, products of unsigned and signed bytes saturate. :func:`exact` makes the
signed ones unsigned.

onnxruntime 1.19 ends the process when it loads ExpandDims whose axis is stored as bytes; :func:`with_listed_axes`
stores it as a list of numbers.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..exceptions import ModelError
from .packages import onnxruntime

NodeOwner: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"

PAIRWISE = {"Sum": "Add", "Max": "Max", "Min": "Min"}
"""Operators of any number of operands, and their forms for two operands."""


def in_pairs(proto: onnx.ModelProto) -> bool:
    """Put operators of two operands in place of Sum, Max and Min of more, in the same order, in place.

    Return True if there were any.
    """
    graphs = [graph for outer in (proto.graph, *proto.functions) for graph in graphs_within(outer)]
    found = any(_combines_many(node) for graph in graphs for node in graph.node)
    for graph in graphs if found else ():
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if not _combines_many(node):
                nodes.append(node)
                continue
            result = node.output[0]
            operator = PAIRWISE[node.op_type]
            inputs = list(node.input)
            names = [f"{result}/onnxtrain/{i}" for i in range(len(inputs) - 2)]
            left, outputs = [inputs[0], *names], [*names, result]
            nodes += [
                onnx.helper.make_node(operator, [a, b], [to], name=f"{node.name or result}/onnxtrain/{i}")
                for i, (a, b, to) in enumerate(zip(left, inputs[1:], outputs, strict=True))
            ]
        copies = [copy.deepcopy(node) for node in nodes]  # those of a graph end with their list
        del graph.node[:]
        graph.node.extend(copies)
    return found


def graphs_within(graph: NodeOwner) -> Iterator[NodeOwner]:
    """Return the bodies of loops and branches, the innermost first, and ``graph``."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graphs_within(body)
    yield graph


def _combines_many(node: onnx.NodeProto) -> bool:
    return not node.domain and node.op_type in PAIRWISE and len(node.input) > 2


def with_listed_axes(model: bytes) -> bytes:
    """Return a model in which the axis of each com.microsoft.ExpandDims is a list of numbers, which 1.19 can load.

    Raise ModelError for an axis that is computed, because onnxruntime folds it to bytes.
    """
    if b"ExpandDims" not in model:
        return model
    proto: onnx.ModelProto = onnx.load_model_from_string(model)
    graphs = list(graphs_within(proto.graph))
    held = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
    nodes = [node for graph in graphs for node in graph.node]
    held |= {n.output[0]: a.t for n in nodes if n.op_type == "Constant" for a in n.attribute if a.name == "value"}
    for node in (n for n in nodes if (n.domain, n.op_type) == (_OWN, "ExpandDims")):
        tensor = held.get(node.input[1])
        if tensor is None:
            raise ModelError(
                f"Node {node.name or node.output[0]!r} (com.microsoft.ExpandDims) has an axis that is computed, which "
                f"ends the process in onnxruntime 1.19: make the axis an initializer, or put Unsqueeze in its place."
            )
        numbers = numpy_helper.to_array(tensor).ravel().tolist()
        tensor.ClearField("raw_data")
        tensor.int32_data[:] = numbers
    result: bytes = proto.SerializeToString()
    return result


# Integer products that are exact on every processor.
#
# Without VNNI or AMX instructions, onnxruntime multiplies unsigned by signed bytes with an instruction that adds two
# products in 16 bits, where they saturate: ``255 * 127 + 255 * 127`` becomes 32767, without an error. Two unsigned
# bytes have another kernel, which is exact, and so have two signed ones. A small product, computed once per process,
# tells whether the runtime saturates; where it does, graphs hold unsigned weights. These are the signed ones with 128
# added to them and to their zero point: the same numbers, for every runtime. To weights that are inputs or computed,
# nodes add it.
#
# onnxruntime's own option for it, ``session.x64quantprecision``, is not used. It does not help graphs that are
# exported, weights that are inputs, or sessions without optimization, and graphs of two signed bytes no longer load.


VARIABLE = "ONNXTRAIN_SKLEARN_INTEGER_PRODUCTS"
"""Environment variable that replaces the probe; its values are the keys of :data:`KINDS`."""

KINDS = {"exact": False, "saturating": True}

_OWN = "com.microsoft"
_TRACES = (b"uantize", b"Integer", b"QLinear", b"QGemm", b"QAttention")
"""Parts of the names of all operators that multiply integers, or that onnxruntime makes such products of."""


class _Weights(NamedTuple):
    """Inputs of an operator: integers that it multiplies by, their zero points, and the activations; None: unsigned."""

    places: tuple[tuple[int, int], ...]
    activations: int | None


_PRODUCTS: dict[tuple[str, str], _Weights] = {
    ("", "ConvInteger"): _Weights(((1, 3),), 0),
    ("", "MatMulInteger"): _Weights(((1, 3),), 0),
    ("", "QLinearConv"): _Weights(((3, 5),), 0),
    ("", "QLinearMatMul"): _Weights(((3, 5),), 0),
    (_OWN, "DynamicQuantizeLSTM"): _Weights(((1, 9), (2, 11)), None),
    (_OWN, "DynamicQuantizeMatMul"): _Weights(((1, 3),), None),
    (_OWN, "MatMulIntegerToFloat"): _Weights(((1, 5),), 0),
    (_OWN, "QAttention"): _Weights(((1, 7),), 0),
    (_OWN, "QGemm"): _Weights(((3, 5),), 0),
    (_OWN, "QLinearConv"): _Weights(((3, 5),), 0),
}
_TYPES_OF_RESULTS = {("Cast", "to"), ("QuantizeLinear", "output_dtype")}
_ZEROS_OF_RESULTS = {"QuantizeLinear": 2, "QGemm": 8}
"""Input with the zero point of an operator's result; operators that begin with QLinear have it at 7, before a bias."""


def saturate() -> bool:
    """Return True if products of unsigned and signed bytes saturate, by the environment or else by the runtime."""
    given = os.environ.get(VARIABLE)
    if not given:
        return _probe()
    if given not in KINDS:
        raise ValueError(f"{VARIABLE} must be one of {list(KINDS)} or not set, got {given!r}.")
    return KINDS[given]


@cache
def _probe() -> bool:
    """Return True if the runtime computes a product of extreme bytes wrongly, in one row or in several."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level, settings.intra_op_num_threads, settings.inter_op_num_threads = 4, 1, 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(_product().SerializeToString(), settings, providers=providers)
    rows = np.full((5, 64), 255, np.uint8)
    found = [session.run(["product"], {"rows": part})[0] for part in (rows[:1], rows)]
    return any((part != 255 * 127 * 64).any() for part in found)


def _product() -> onnx.ModelProto:
    """Return a graph that multiplies rows of 64 bytes by a matrix of the largest ones."""
    rows = helper.make_tensor_value_info("rows", TensorProto.UINT8, ["N", 64])
    product = helper.make_tensor_value_info("product", TensorProto.INT32, ["N", 16])
    weights = numpy_helper.from_array(np.full((64, 16), 127, np.int8), "weights")
    node = helper.make_node("MatMulInteger", ["rows", "weights"], ["product"], name="product")
    graph = helper.make_graph([node], "probe", [rows], [product], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def exact(model: bytes) -> bytes:
    """Return a model whose integer products are exact here: itself, or one with unsigned weights."""
    if not any(trace in model for trace in _TRACES) or not saturate():
        return model
    proto = onnx.load_model_from_string(model)
    return proto.SerializeToString() if make_exact(proto) else model


def make_exact(proto: onnx.ModelProto) -> bool:
    """Put unsigned weights in place of signed ones, in place, if products saturate here.

    Return True if there were any.
    """

    def is_quantized(node: onnx.NodeProto) -> bool:
        return node.op_type == "QuantizeLinear" or (node.domain, node.op_type) in _PRODUCTS

    graphs = list(graphs_within(proto.graph))
    if not any(is_quantized(node) for graph in graphs for node in graph.node) or not saturate():
        return False
    return _Signed(proto, graphs).replace()


class _Signed:
    """The signed bytes of a model that are multiplied with unsigned ones.

    ``found`` has, for each signed tensor by name, weights and zero points, the nodes that read it and at which input.
    """

    def __init__(self, proto: onnx.ModelProto, graphs: list[NodeOwner]) -> None:
        self.graph, self.graphs = proto.graph, graphs
        self.nodes = [node for graph in graphs for node in graph.node]
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in node.input:
                self.readers[name].append(node)
        ends = [value for graph in graphs for value in (*graph.input, *graph.output)]
        self.fixed = {value.name for value in ends}
        self.declared = [*ends, *(value for graph in graphs for value in graph.value_info)]
        self.kinds = {value.name: value.type.tensor_type.elem_type for value in self.declared}
        self.constants = {t.name: t for graph in graphs for t in graph.initializer if t.name not in self.fixed}
        for node in self.nodes:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.name == "value":
                    self.constants[node.output[0]] = attribute.t
        self.kinds |= {name: tensor.data_type for name, tensor in self.constants.items()}
        self.taken = {*self.kinds, *self.makers, *self.readers}
        self.found: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        self.offset = ""

    def replace(self) -> bool:
        """Replace all of them; return True if there were any."""
        for node in self.nodes:
            if node.op_type == "QuantizeLinear":
                self._note_pair(node)
        paired = {id(node) for places in self.found.values() for node, _ in places}
        for node in self.nodes:
            weights = _PRODUCTS.get((node.domain, node.op_type))
            # Two signed bytes have an exact kernel.
            if weights is not None and not (
                weights.activations is not None and self._is_signed(node, weights.activations)
            ):
                for place, zero in weights.places:
                    self._note_weights(node, place, zero)
            elif node.op_type == "DequantizeLinear" and id(node) not in paired:
                self._note_weights(node, 0, 2)
        computed = {name: places for name, places in self.found.items() if name not in self.constants}
        for name, places in self.found.items():
            if name in self.constants:
                self._make_unsigned(name, places)
        if computed:
            for graph in self.graphs:
                self._compute_unsigned(graph, computed)
        return bool(self.found)

    def _is_signed(self, node: onnx.NodeProto, place: int) -> bool:
        return len(node.input) > place and self._kind_of(node.input[place]) == TensorProto.INT8

    def _kind_of(self, name: str) -> int:
        """Return the type of a value: as declared, else that of the zero point or operand of its producer."""
        while name not in self.kinds:
            maker = self.makers.get(name)
            if maker is None or not maker.input:
                return TensorProto.UNDEFINED
            if maker.op_type == "DynamicQuantizeLinear":
                return TensorProto.UINT8
            for attribute in maker.attribute:
                if (maker.op_type, attribute.name) in _TYPES_OF_RESULTS and attribute.i:
                    return int(attribute.i)
            zero = _ZEROS_OF_RESULTS.get(maker.op_type, 7 if maker.op_type.startswith("QLinear") else 0)
            if zero >= len(maker.input):
                return TensorProto.UINT8
            name = maker.input[zero]
        return int(self.kinds[name])

    def _note_weights(self, node: onnx.NodeProto, place: int, zero: int) -> None:
        """Record weights and their zero point; a missing zero point becomes 128."""
        if not self._is_signed(node, place):
            return
        if not (len(node.input) > zero and node.input[zero]) and not self._add_zero(node, place, zero):
            return
        self._note(node, place)
        self._note(node, zero)

    def _add_zero(self, node: onnx.NodeProto, place: int, zero: int) -> bool:
        """Add a signed zero point, which is made unsigned with the weights; False if its shape is not known."""
        shape: tuple[int, ...] = ()
        if node.op_type == "DequantizeLinear":
            if node.input[1] not in self.constants:
                return False
            shape = tuple(self.constants[node.input[1]].dims)
        name = self._free(f"{node.input[place]}_zero_point")
        self.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.int8), name))
        self.constants[name] = self.graph.initializer[-1]
        node.input.extend([""] * (zero + 1 - len(node.input)))
        node.input[zero] = name
        self.readers[name].append(node)
        if node.op_type == "ConvInteger" and not node.input[2]:  # onnxruntime 1.19 ends the process without it
            node.input[2] = self._free(f"{node.input[0]}_zero_point")
            self.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.uint8), node.input[2]))
        return True

    def _note_pair(self, node: onnx.NodeProto) -> None:
        """Record the zero points of a QuantizeLinear and of its readers, if all of them are DequantizeLinear."""
        readers = self.readers[node.output[0]]
        both = [node, *readers]
        held = all(self._is_signed(one, 2) and one.input[2] in self.constants for one in both)
        if not held or node.output[0] in self.fixed or any(one.op_type != "DequantizeLinear" for one in readers):
            return
        for one in both:
            self._note(one, 2)
        for attribute in node.attribute:
            if attribute.name == "output_dtype" and attribute.i == TensorProto.INT8:
                attribute.i = TensorProto.UINT8
        self._declare_unsigned(node.output[0])

    def _note(self, node: onnx.NodeProto, place: int) -> None:
        self.found.setdefault(node.input[place], []).append((node, place))

    def _make_unsigned(self, name: str, places: list[tuple[onnx.NodeProto, int]]) -> None:
        """Give these places unsigned numbers: the constant itself where nothing else reads it, else a copy."""
        tensor = self.constants[name]
        array = numpy_helper.to_array(tensor).view(np.uint8) ^ np.uint8(128)
        if len(self.readers[name]) == len(places):
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            self._declare_unsigned(name)
            return
        unsigned = self._free(f"{name}_unsigned")
        self.graph.initializer.append(numpy_helper.from_array(array, unsigned))
        for node, place in places:
            node.input[place] = unsigned

    def _compute_unsigned(self, graph: NodeOwner, computed: dict[str, list[tuple[onnx.NodeProto, int]]]) -> None:
        """Give the nodes of a graph unsigned numbers, which it computes before the first that reads them."""
        nodes: list[onnx.NodeProto] = []
        made: dict[str, str] = {}
        for node in graph.node:
            for name, places in computed.items():
                for place in (place for reader, place in places if reader is node):
                    if name not in made:
                        wide, moved, made[name] = (
                            self._free(f"{name}_{kind}") for kind in ("wide", "moved", "unsigned")
                        )
                        nodes += [
                            helper.make_node("Cast", [name], [wide], name=wide, to=TensorProto.INT32),
                            helper.make_node("Add", [wide, self._offset()], [moved], name=moved),
                            helper.make_node("Cast", [moved], [made[name]], name=made[name], to=TensorProto.UINT8),
                        ]
                    node.input[place] = made[name]
            nodes.append(node)
        if made:
            copies = [copy.deepcopy(node) for node in nodes]  # those of a graph end with their list
            del graph.node[:]
            graph.node.extend(copies)

    def _offset(self) -> str:
        """Return the name of the constant 128 of the outermost graph."""
        if not self.offset:
            self.offset = self._free("offset_of_unsigned")
            self.graph.initializer.append(numpy_helper.from_array(np.array(128, np.int32), self.offset))
        return self.offset

    def _declare_unsigned(self, name: str) -> None:
        for value in self.declared:
            if value.name == name:
                value.type.tensor_type.elem_type = TensorProto.UINT8

    def _free(self, base: str) -> str:
        count, name = 0, base
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name
