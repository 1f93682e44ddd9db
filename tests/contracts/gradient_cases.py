"""Cases of gradients: a fragment around one operator, and the graph that it becomes.

A case has a body that computes `y` from its inputs; what is differentiated is the sum of `y` under fixed random
weights, so that a transposed, unreduced or misplaced gradient shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx.parser

TYPES = {"float32": "float", "float64": "double", "int64": "int64", "int32": "int32", "uint8": "uint8", "bool": "bool"}
MATRIX = (2, 3)
CUBE = (2, 3, 4)
IMAGE = (2, 2, 4, 5)


@dataclass(frozen=True)
class Case:
    """A fragment around one operator; `refused` and `dynamic` are parts of errors, empty where it is right."""

    operator: str
    body: str
    arrays: dict[str, np.ndarray] = field(hash=False)
    refused: str = ""  # in every form
    dynamic: str = ""  # where the first dimension of x is symbolic
    wrt: tuple[str, ...] = ()
    opsets: tuple[int, ...] = (18,)
    fed: tuple[str, ...] = ()  # integers that are inputs rather than initializers
    reference: str = ""  # another body of the same value, where neither evaluator computes this one in float64

    @property
    def names(self) -> list[str]:
        return list(self.wrt) or [name for name, array in self.arrays.items() if array.dtype.kind == "f"]


def draw(rng, values):
    if isinstance(values, tuple):
        return rng.normal(size=values).astype(np.float32)
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def positive(*shape):
    return np.random.default_rng(7).uniform(0.3, 2.0, size=shape).astype(np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def bools(*values):
    return np.array(values, dtype=bool)


def adding_to(cases):
    """Return the function that adds a case, its arrays given as their values or as the shape of random ones."""

    def case(operator, body, *, refused="", dynamic="", opsets=(18,), wrt=(), fed=(), reference="", **arrays):
        rng = np.random.default_rng(len(cases))
        drawn = {name: draw(rng, values) for name, values in arrays.items()}
        body = body.replace("<>", "")
        cases.append(Case(operator, body, drawn, refused, dynamic, tuple(wrt), tuple(opsets), tuple(fed), reference))

    return case


def in_type(case, kind):
    """Return the case with the declarations inside its bodies in float64 where it is run in that."""
    if kind is not np.float64:
        return case
    return replace(case, body=case.body.replace("float[", "double[").replace("Empty<dtype = 1>", "Empty<dtype = 11>"))


def operators(case):
    """Return the operators of a case's body, those of other domains as in ``com.microsoft.Inverse``."""
    return set(re.findall(r"((?:[a-z]\w*\.)*[A-Z]\w+)\s*[<(]", case.body))


def extra_opset(one):
    """Return the opset of the forms beside that with all arrays as inputs; None for a case of old opsets only."""
    opset = 18 if 18 in one.opsets else max(one.opsets)
    return opset if opset >= 18 else None


def model_of(case, opset, arrays, weighting, form):
    """Return the model `inputs -> loss` around the body, with the weights of y as its last input."""
    dims = {name: [str(d) for d in array.shape] for name, array in arrays.items()}
    if form == "dynamic":
        dims["x"][0] = "N"
    domains = {"": opset} | {name.rpartition(".")[0]: 1 for name in operators(case) if "." in name}
    imports = ", ".join(f'"{domain}": {version}' for domain, version in domains.items())
    head = f"<ir_version: 8, opset_import: [{imports}]> case ("
    signature = ", ".join(declaration(name, a, dims[name]) for name, a in arrays.items())
    start = store(case, onnx.parser.parse_model(f"{head}{signature}) => (float y) {{ {case.body} }}"), arrays, form)
    weights = declaration("weighting", weighting, dims_of_y(start, weighting))
    kind = "float" if form == "float64" else TYPES[weighting.dtype.name]
    end = "loss = Cast<to = 1>(total)" if form == "float64" else "loss = Identity(total)"
    model = onnx.parser.parse_model(
        f"{head}{signature}, {weights}) => ({kind} loss) {{ {case.body} "
        f"weighted = Mul(y, weighting) total = ReduceSum<keepdims = 0>(weighted) {end} }}"
    )
    return store(case, model, arrays, form)


def store(case, model, arrays, form):
    """Turn inputs of the model into initializers."""
    kept = {"dynamic": {"x"}, "initializers": set()}.get(form, {n for n in arrays if is_float(arrays[n])})
    names = arrays.keys() - kept - set(case.fed)
    inputs = [i for i in model.graph.input if i.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(arrays[name], name) for name in names)
    return model


def is_float(array):
    return array.dtype.kind == "f"


def declaration(name, array, dims):
    return f"{TYPES[array.dtype.name]}{'[' + ','.join(dims) + ']' if dims else ''} {name}"


def dims_of_y(model, weighting):
    """Return the dimensions that the weights of y are declared with: its own names where it has some."""
    model.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output[0].type.tensor_type.shape.dim
    names = ["" if "unk__" in d.dim_param else d.dim_param for d in inferred] or [""] * weighting.ndim
    return [name or str(size) for name, size in zip(names, weighting.shape, strict=False)]
