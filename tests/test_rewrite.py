"""Every rewriting rule gives what onnxruntime gives, and a gradient for every parameter that it makes.

Each case is one node with one setting of its attributes. Its graph is run as it is and rewritten, and the gradients of
the rewritten scores, summed under fixed random weights, are compared with central differences in float64.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain_sklearn import _runtime
from onnxtrain_sklearn._gradient.engine import available_engines, differentiate
from onnxtrain_sklearn._graph import protobuf as border
from onnxtrain_sklearn._graph.builder import GraphBuilder
from onnxtrain_sklearn._graph.edits import initializers_to_inputs
from onnxtrain_sklearn._graph.precision import in_dtype
from onnxtrain_sklearn._graph.queries import is_float
from onnxtrain_sklearn._graph.shapes import infer_shapes
from onnxtrain_sklearn._graph.weights import parameters_of
from onnxtrain_sklearn._ml_operators.rewrite import RULES, rewrite
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError

ML = "ai.onnx.ml"
TYPES = {"float32": 1, "float64": 11, "int64": 7, "int32": 6, "bool": 9, "object": 8}
ROWS = 7


def run(model, feeds):
    """Run a model in onnxruntime."""
    return run_proto(border.to_proto(model), feeds)


def run_proto(proto, feeds):
    return _runtime.create_session(proto.SerializeToString(), _runtime.resolve_device()).run(None, feeds)


def lacks_kernel(c, error):
    """Whether this onnxruntime is too old for TreeEnsemble."""
    return c.operator == "TreeEnsemble" and (_runtime.not_implemented(error) or "opset 5" in str(error))


def assert_same(expected, found, tolerance=1e-5):
    """Floats relative to the largest of the output; labels exactly."""
    assert found.shape == expected.shape
    if expected.dtype.kind == "f":
        assert found.dtype == expected.dtype
        scale = max(float(np.abs(expected[np.isfinite(expected)]).max(initial=0)), 1e-6)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(found, expected)


def scalar_of(model, output, feeds):
    """Return a clone that returns the sum of one output under fixed random weights, its inputs of fixed size."""
    result = model.clone()
    graph = result.graph
    y = next(v for v in graph.outputs if v.name == output)
    for value in graph.inputs:
        value.shape = ir.Shape(feeds[value.name].shape)
    sizes = dict(zip([v.name for v in graph.outputs], (np.shape(a) for a in run(model, feeds)), strict=True))[output]
    weights = np.random.default_rng(11).normal(size=sizes).astype(np.float32)
    graph.outputs.clear()
    op = GraphBuilder(graph, prefix="test", constant_nodes=True)
    total = op.ReduceSum(op.Mul(y, weights), keepdims=False)
    total.name, total.shape = "loss", ir.Shape([])
    graph.outputs.append(total)
    ir.passes.common.RemoveUnusedNodesPass()(result)
    return infer_shapes(result)


def central_differences(model, feeds, name, entries, step=1e-6):
    """Return the slope of the scalar along some entries of an initializer, in float64."""
    double = in_dtype(model, ir.DataType.DOUBLE)
    array = double.graph.initializers[name].const_value.numpy().copy()
    initializers_to_inputs(double.graph, [name])
    session = _runtime.create_session(border.to_proto(double).SerializeToString(), _runtime.resolve_device())
    fed = {v.name: feeds[v.name] for v in model.graph.inputs}
    fed = {key: a.astype(np.float64) if a.dtype == np.float32 else a for key, a in fed.items()}
    slopes = []
    for entry in entries:
        ends = []
        for sign in (1, -1):
            moved = array.copy()
            moved[entry] += sign * step
            ends.append(float(session.run(None, {**fed, name: moved})[0]))
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return np.array(slopes)


def assert_gradients(model, output, feeds, engine, tolerance=2e-4, entries=40, only=()):
    """Compare the gradients of an output by the parameters that reach it, all or ``only`` some; return their names."""
    loss = scalar_of(model, output, feeds)
    names = [n for n in parameters_of(loss.graph, loss.graph.outputs[0]) if not only or n in only]
    gradient = differentiate(loss, names, "loss", engine).model
    fed = {v.name: feeds[v.name] for v in gradient.graph.inputs}
    found = dict(zip([v.name for v in gradient.graph.outputs], run(gradient, fed), strict=True))
    for name in names:
        slope = found[f"{name}_grad"]
        assert slope.shape == loss.graph.initializers[name].const_value.numpy().shape, name
        chosen = np.random.default_rng(0).permutation(list(np.ndindex(slope.shape)))[:entries]
        chosen = [tuple(int(i) for i in entry) for entry in chosen]
        expected = central_differences(loss, feeds, name, chosen)
        scale = max(np.abs(expected).max(), np.abs(slope).max(), 1e-2)
        np.testing.assert_allclose([slope[c] for c in chosen], expected, rtol=0, atol=tolerance * scale, err_msg=name)
    return names


@dataclass(frozen=True, eq=False)
class Case:
    """One node; `refused` is part of an error, `parameters` the roles with the shapes expected of them."""

    operator: str
    attributes: dict[str, Any]
    feeds: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    domain: str
    refused: str
    parameters: dict[str, tuple[int, ...]]
    initializers: tuple[str, ...]
    portable_only: bool
    stays: bool
    version: int

    @functools.cached_property
    def proto(self):
        """The graph around the node; the ranks of the outputs are those that a first run shows."""
        ranks = [1] * (len(self.outputs) - 1) + [2]
        if not self.refused:  # faulty attributes can take onnxruntime down
            try:
                ranks = [np.ndim(value) for value in run_proto(self.graph_around({}), self.fed)]
            except Exception as error:
                if not lacks_kernel(self, error):
                    raise
        return self.graph_around({o: [None] * rank for o, rank in zip(self.outputs, ranks, strict=True)})

    def graph_around(self, shapes):
        names = {o: o.partition(":")[0] for o in self.outputs}
        node = onnx.helper.make_node(
            self.operator, list(self.feeds), list(names.values()), self.operator.lower(), domain=self.domain,
            **self.attributes,
        )  # fmt: skip
        declare = onnx.helper.make_tensor_value_info
        inputs = [
            declare(name, TYPES[str(a.dtype)], ["N", *a.shape[1:]] if a.ndim > 1 else a.shape)
            for name, a in self.fed.items()
        ]
        outputs = [declare(name, TYPES[o.partition(":")[2]], shapes.get(o)) for o, name in names.items()]
        held = [onnx.numpy_helper.from_array(self.feeds[name], name) for name in self.initializers]
        opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(ML, self.version)]
        if self.domain not in (ML, ""):
            opsets.append(onnx.helper.make_opsetid(self.domain, 1))
        graph = onnx.helper.make_graph([node], "case", inputs, outputs, held)
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)

    @property
    def fed(self):
        return {name: a for name, a in self.feeds.items() if name not in self.initializers}


CASES: list[Case] = []
LABELED = ("label:int64", "scores:float32")
STRINGS = ("label:object", "scores:float32")


def case(
    operator, *outputs, domain=ML, refused="", parameters=(), initializers=(), portable_only=False, stays=False,
    version=3, x=None, y=None, **attributes,
):  # fmt: skip
    """Add a case. A classifier has labels of integers unless told otherwise, other operators a float output."""
    feeds = {name: a for name, a in (("x", x), ("y", y)) if a is not None}
    if operator.startswith("SVM"):
        attributes.setdefault("kernel_params", [0.0, 0.0, 0.0])
    attributes = {name: a for name, a in attributes.items() if not (isinstance(a, list) and not a)}
    outputs = outputs or (LABELED if operator.endswith("Classifier") else ("y0:float32",))
    CASES.append(
        Case(operator, attributes, feeds, outputs, domain, refused, dict(parameters), initializers, portable_only,
             stays, version)
    )  # fmt: skip


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def flat(*shape, seed=1):
    return normal(*shape, seed=seed).ravel().tolist()


X = normal(ROWS, 3)
WITH_NAN = X.copy()
WITH_NAN[[0, 2, 5], [0, 1, 0]] = np.nan

# --- linear ---

LINEAR = {"coef": (2, 3), "intercept": (2,)}
for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
    case("LinearRegressor", x=X, targets=2, coefficients=flat(2, 3), intercepts=flat(2), post_transform=transform,
         parameters=LINEAR)  # fmt: skip
    case("LinearRegressor", x=X, coefficients=flat(3), intercepts=[0.5], post_transform=transform)
    case("LinearClassifier", x=X, coefficients=flat(3, 3), intercepts=flat(3), classlabels_ints=[4, 2, 7],
         post_transform=transform, multi_class=1, parameters={"coef": (3, 3), "intercept": (3,)})  # fmt: skip
    case("LinearClassifier", x=X, coefficients=[-0.3, 0.4, 0.5, 0.3, -0.4, -0.5], intercepts=[0.2, -0.2],
         classlabels_ints=[0, 1], post_transform=transform, parameters={"coef": (1, 3), "intercept": (1,)})  # fmt: skip
    case("LinearClassifier", x=X, coefficients=[-0.3, 0.4, 0.5, 0.3, -0.4, 0.5], intercepts=[0.2, -0.2],
         classlabels_ints=[0, 1], post_transform=transform, parameters=LINEAR)  # fmt: skip
    case("LinearClassifier", *STRINGS, x=X, coefficients=flat(3), intercepts=[0.2], post_transform=transform,
         classlabels_strings=["no", "yes"])  # fmt: skip
case("LinearClassifier", x=X, coefficients=flat(3), intercepts=[0.2], classlabels_ints=[3], refused="1 rows of weights")
case("LinearClassifier", *STRINGS, x=X, coefficients=flat(3, 3), intercepts=flat(3),
     classlabels_strings=["a", "b", "c"], multi_class=1)  # fmt: skip
case("LinearClassifier", x=X.astype(np.float64), coefficients=flat(3, 3), intercepts=flat(3),
     classlabels_ints=[0, 1, 2])  # fmt: skip
case("LinearClassifier", x=np.arange(21).reshape(7, 3), coefficients=flat(3, 3), intercepts=flat(3),
     classlabels_ints=[0, 1, 2])  # fmt: skip
case("LinearRegressor", x=X, targets=2, coefficients=flat(2, 3), parameters={"coef": (2, 3)})
case("LinearRegressor", x=X, coefficients=flat(3), post_transform="PROBIT", refused="PROBIT")
case("LinearRegressor", x=X, coefficients=flat(2), refused="weights for 2 features, and its input has 3")
case("LinearRegressor", x=X, targets=2, coefficients=flat(3), refused="do not make 2 rows")
case("LinearRegressor", x=X[0], coefficients=flat(3), refused="1 axes instead of 2")
case("LinearRegressor", x=X, targets=2, coefficients=flat(2, 3), intercepts=flat(3), refused="3 intercepts for 2 rows")
case("LinearClassifier", x=X, coefficients=flat(3, 3), intercepts=flat(3), classlabels_ints=[0, 1],
     refused="3 rows of weights for 2 labels")  # fmt: skip

# --- features ---

case("Scaler", x=X, offset=flat(3), scale=flat(3, seed=5), parameters={"offset": (3,), "scale": (3,)})
case("Scaler", x=X, offset=[0.5], scale=[2.0], parameters={"offset": (1,), "scale": (1,)})
case("Scaler", x=np.arange(6).reshape(2, 3), offset=flat(3), scale=flat(3, seed=5))
case("Scaler", x=X, offset=flat(2), scale=flat(3), refused="2 numbers for 3 features")
for norm in ("MAX", "L1", "L2"):
    case("Normalizer", x=X, norm=norm)
    case("Normalizer", x=np.array([[0, 0, 0], [1, -2, 0], [-1, 0, -3]], np.float32), norm=norm)
    case("Normalizer", x=np.array([[0, 0, 0], [1, -2, 0], [4, 0, 3]]), norm=norm)
case("Normalizer", x=X, norm="L3", refused="'L3' is none of")
case("Imputer", x=WITH_NAN, imputed_value_floats=flat(3), replaced_value_float=np.nan, parameters={"imputed": (3,)})
case("Imputer", x=WITH_NAN, imputed_value_floats=[0.7], replaced_value_float=np.nan, parameters={"imputed": (1,)})
case("Imputer", x=np.round(X), imputed_value_floats=flat(3), replaced_value_float=1.0)
case("Imputer", x=np.round(X), imputed_value_floats=flat(2), replaced_value_float=1.0, parameters={"imputed": (1,)})
case("Imputer", "y0:int64", x=np.arange(6).reshape(2, 3), imputed_value_int64s=[9], replaced_value_int64=4, stays=True)
case("Binarizer", x=X, threshold=0.3)
case("Binarizer", x=np.round(X))
for kind in (np.int64, np.float32, np.float64):
    values = np.array([[1.0, 5.0], [2.0, 8.0], [-7.0, 5.0]]).astype(kind) + (0.5 if kind is np.float32 else 0)
    case("OneHotEncoder", x=values, cats_int64s=[5, 1, -6, 2], zeros=1)
case("OneHotEncoder", x=np.array([1, 3, 2]), cats_int64s=[1, 2, 3])
case("OneHotEncoder", x=np.array([1, 3, 2]), cats_int64s=[1, 2, 3, 1])
case("OneHotEncoder", x=np.array([["a", "c"], ["b", "a"]], object), cats_strings=["c", "a"], zeros=1, stays=True)
case("ArrayFeatureExtractor", x=X, y=np.array([2, 0, 2]), initializers=("y",))
case("ArrayFeatureExtractor", x=X, y=np.array([[1]]), initializers=("y",))
case("ArrayFeatureExtractor", x=X[0], y=np.array([[2], [0]]), initializers=("x",))
case("ArrayFeatureExtractor", x=normal(2, 3, 4), y=np.array([3, 1]), initializers=("y",))
case("ArrayFeatureExtractor", "y0:int64", x=np.arange(3), y=np.array([2, 0]), stays=True)
case("FeatureVectorizer", x=X, y=normal(ROWS, 2), inputdimensions=[3, 2])
case("FeatureVectorizer", x=X, y=normal(ROWS, 2), inputdimensions=[2, 4])
case("FeatureVectorizer", x=X, inputdimensions=[3])
case("FeatureVectorizer", x=X, y=normal(ROWS, 2), inputdimensions=[3], refused="1 inputdimensions for 2 inputs")
NUMBERS = {"values": (3,), "default": (1,)}
case("LabelEncoder", x=np.array([[3, 1], [9, 2]]), keys_int64s=[1, 2, 3], values_floats=flat(3), default_float=0.25,
     parameters=NUMBERS)  # fmt: skip
case("LabelEncoder", x=np.array([1.5, np.nan, 7, 0], np.float32), keys_floats=[1.5, 0.0, 7.5], values_floats=flat(3),
     parameters=NUMBERS)  # fmt: skip
case("LabelEncoder", x=np.array(["b", "?", "a"], object), keys_strings=["a", "b", "c"], values_floats=flat(3),
     default_float=1.5, parameters=NUMBERS)  # fmt: skip
case("LabelEncoder", x=np.array([1, 1, 2]), keys_int64s=[1, 2, 1], values_floats=[0.1, 0.2, 0.3],
     parameters={"values": (2,)})  # fmt: skip
case("LabelEncoder", "y0:int64", x=np.array([1.0, 2.0], np.float32), keys_floats=[2.0], values_int64s=[5], stays=True)
case("LabelEncoder", "y0:object", x=np.array([1, 2]), keys_int64s=[2], values_strings=["two"], stays=True)
case("LabelEncoder", "y0:int64", x=np.array(["u", "v"], object), keys_strings=["v"], values_int64s=[3], stays=True)
TENSORS = {
    "values_tensor": onnx.numpy_helper.from_array(normal(3)),
    "default_tensor": onnx.numpy_helper.from_array(np.array([0.5], np.float32)),
}
case("LabelEncoder", x=np.array([[3, 1], [9, 2]]), keys_tensor=onnx.numpy_helper.from_array(np.array([1, 2, 3])),
     version=4, parameters=NUMBERS, **TENSORS)  # fmt: skip
case("LabelEncoder", x=np.array([1.5, np.nan, 7], np.float32), keys_floats=[1.5, np.nan, 8.0], version=4,
     values_floats=flat(3))  # fmt: skip

# --- support vector machines ---

KERNELS = {"LINEAR": [0.0, 0.0, 0.0], "POLY": [0.4, 1.2, 3.0], "RBF": [0.3, 0.0, 0.0], "SIGMOID": [0.2, -0.4, 0.0]}
POLYNOMIALS = {"POLY": [[0.4, 1.2, 2.0], [0.4, 9.0, 1.5]]}
for kernel, first in KERNELS.items():
    roles = {"support_vectors": (4, 3), "dual_coef": (1, 4), "rho": (1,)}
    roles |= {"gamma": (1,)} if kernel != "LINEAR" else {}
    roles |= {"coef0": (1,)} if kernel in ("POLY", "SIGMOID") else {}
    for params in [first, *POLYNOMIALS.get(kernel, [])]:
        machine = {"kernel_type": kernel, "kernel_params": params}
        case("SVMRegressor", x=X, n_supports=4, support_vectors=flat(4, 3), coefficients=flat(4), rho=[0.3],
             parameters=roles, **machine)  # fmt: skip
    case("SVMRegressor", x=X, n_supports=4, support_vectors=flat(4, 3), coefficients=flat(4), rho=[0.3], one_class=1,
         **machine)  # fmt: skip
    for classes, supports in ((2, [2, 3]), (3, [2, 3, 1]), (4, [1, 2, 1, 3])):
        pairs = classes * (classes - 1) // 2
        shared = {
            "x": X, "support_vectors": flat(sum(supports), 3), "coefficients": flat(classes - 1, sum(supports)),
            "rho": flat(pairs, seed=6), "vectors_per_class": supports, "classlabels_ints": [5, 3, 8, 1][:classes],
        }  # fmt: skip
        case("SVMClassifier", **shared, **machine, parameters={"dual_coef": (classes - 1, sum(supports))})
        if kernel in ("LINEAR", "RBF"):
            case("SVMClassifier", **shared, **machine, prob_a=[-1.5, -0.8, -2, -1, -1.2, -3][:pairs],
                 prob_b=flat(pairs, seed=9), parameters={"prob_a": (pairs,), "prob_b": (pairs,)})  # fmt: skip
        for transform in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO") if kernel == "RBF" else ():
            case("SVMClassifier", **shared, **machine, post_transform=transform)
case("SVMRegressor", x=X, n_supports=0, coefficients=flat(3), rho=[0.3], parameters={"coef": (1, 3), "rho": (1,)})
case("SVMRegressor", x=X, n_supports=2, coefficients=flat(2), rho=[0.3], support_vectors=flat(5),
     refused="do not make 2 support vectors")  # fmt: skip
for classes in (2, 3):
    for coefficients in (flat(classes, 3), np.abs(flat(classes, 3)).tolist()):
        for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
            case("SVMClassifier", x=X, coefficients=coefficients, rho=[0.3], classlabels_ints=[6, 4, 9][:classes],
                 post_transform=transform, parameters={"coef": (classes, 3), "rho": (1,)})  # fmt: skip
case("SVMClassifier", *STRINGS, x=X, support_vectors=flat(6, 3), coefficients=flat(2, 6), rho=flat(3),
     vectors_per_class=[2, 2, 2], classlabels_strings=["a", "b", "c"], kernel_type="LINEAR")  # fmt: skip
case("SVMClassifier", x=X, support_vectors=flat(6, 3), coefficients=flat(1, 6), rho=flat(3), kernel_type="LINEAR",
     vectors_per_class=[2, 2, 2], classlabels_ints=[0, 1, 2], refused="do not fit 3 classes and 6 vectors")  # fmt: skip

# --- trees ---


def tree_attributes(weights, trees, *, modes=("BRANCH_LEQ",), missing=False, targets=1, seed=0):
    """Random trees: `trees` lists their depths; a leaf of a tree t has a weight for each target in `targets(t)`."""
    rng = np.random.default_rng(seed)
    lists = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids",
                                   "falsenodeids", "missing_value_tracks_true")}  # fmt: skip
    spoken = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree, depth in enumerate(trees):
        split = {node for node in range(2**depth - 1) if node < 3 or node % 3}
        for node in range(2 ** (depth + 1) - 1):
            if node and (node - 1) // 2 not in split:
                split.discard(node)
                continue
            inner = node in split
            row = [tree, node, rng.integers(3), rng.choice([-0.5, 0.0, 0.5, rng.normal()]) if inner else 0.0,
                   rng.choice(modes) if inner else "LEAF", 2 * node + 1 if inner else 0, 2 * node + 2 if inner else 0,
                   int(rng.integers(2)) if inner and missing else 0]  # fmt: skip
            for values, entry in zip(lists.values(), row, strict=True):
                values.append(entry)
            for target in () if inner else targets(tree) if callable(targets) else range(targets):
                for name, entry in zip(spoken, (tree, node, target, rng.normal()), strict=True):
                    spoken[name].append(entry)
    number = {}  # onnxruntime wants ids below the number of nodes
    for tree, node in zip(lists["treeids"], lists["nodeids"], strict=True):
        number[tree, node] = sum(1 for t, _ in number if t == tree)
    for values, trees in [(lists[n], lists["treeids"]) for n in ("truenodeids", "falsenodeids", "nodeids")] + [
        (spoken["nodeids"], spoken["treeids"])
    ]:
        values[:] = [number[place] for place in zip(trees, values, strict=True)]
    result = {f"nodes_{name}": values for name, values in lists.items()}
    result |= {f"{weights}_{name}": values for name, values in spoken.items()}
    return {
        name: [v.item() if isinstance(v, np.generic) else v for v in values]
        for name, values in result.items()
        if missing or name != "nodes_missing_value_tracks_true"
    }


GRID = np.round(2 * normal(60, 3, seed=2)) / 2
GAPS = GRID.copy()
GAPS[np.random.default_rng(1).uniform(size=GAPS.shape) < 0.2] = np.nan
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
regression = functools.partial(tree_attributes, "target")
classification = functools.partial(tree_attributes, "class")

for modes in (*((mode,) for mode in MODES), MODES):
    for missing in (False, True):
        for values in (GRID, GAPS):
            case("TreeEnsembleRegressor", x=values, n_targets=1, **regression([3, 1, 4], modes=modes, missing=missing))
for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
    for base in ([], [0.7]):
        case("TreeEnsembleRegressor", x=GRID, n_targets=1, aggregate_function=aggregate, base_values=base,
             portable_only=aggregate in ("MIN", "MAX"), **regression([2, 0, 3]))  # fmt: skip
    for base in ([], [0.7, -0.2]):
        case("TreeEnsembleRegressor", x=GRID, n_targets=2, aggregate_function=aggregate, base_values=base,
             portable_only=aggregate in ("MIN", "MAX"), **regression([2, 0, 3], targets=2))  # fmt: skip
for aggregate in ("SUM", "AVERAGE"):
    case("TreeEnsembleRegressor", x=GRID, n_targets=3, aggregate_function=aggregate, base_values=flat(3),
         **regression([2, 2, 3, 1], targets=lambda tree: [tree % 3]))  # fmt: skip
    case("TreeEnsembleRegressor", x=GRID, n_targets=3, aggregate_function=aggregate,
         **regression([2, 2, 3, 1], targets=lambda tree: [0, 2] if tree else [1]))  # fmt: skip
for aggregate in ("MIN", "MAX"):
    for targets in (lambda tree: [tree % 3], lambda tree: [0, 2] if tree else [1]):
        case("TreeEnsembleRegressor", x=GRID, n_targets=3, aggregate_function=aggregate, refused="is not known here",
             **regression([2, 2, 3, 1], targets=targets))  # fmt: skip
for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
    case("TreeEnsembleRegressor", x=GRID, n_targets=2, post_transform=transform, **regression([2, 1], targets=2))
    case("TreeEnsembleRegressor", x=GRID, n_targets=1, post_transform=transform, **regression([2, 1]))
    for base in ([], flat(3)):
        case("TreeEnsembleClassifier", x=GRID, classlabels_int64s=[4, 2, 9], post_transform=transform, base_values=base,
             **classification([2, 3, 1], targets=3))  # fmt: skip
        case("TreeEnsembleClassifier", x=GRID, classlabels_int64s=[4, 2, 9], post_transform=transform, base_values=base,
             **classification([2, 2, 3, 1], targets=lambda tree: [tree % 3]))  # fmt: skip
    for base in ([], [0.4]):
        for target in (0, 1):
            for positive in (False, True):
                one = classification([2, 3, 1], targets=lambda tree, target=target: [target])
                one["class_weights"] = [abs(w) / 4 if positive else w for w in one["class_weights"]]
                case("TreeEnsembleClassifier", x=GRID, classlabels_int64s=[4, 2], post_transform=transform,
                     base_values=base, **one)  # fmt: skip
    case("TreeEnsembleClassifier", x=GRID, classlabels_int64s=[4, 2], post_transform=transform,
         **classification([2, 3, 1], targets=2))  # fmt: skip
case("TreeEnsembleClassifier", *STRINGS, x=GRID, classlabels_strings=["a", "b", "c"],
     **classification([2, 3, 1], targets=3))  # fmt: skip
case("TreeEnsembleClassifier", x=GRID.astype(np.float64), classlabels_int64s=[0, 1, 2],
     **classification([2, 3, 1], targets=3))  # fmt: skip
case("TreeEnsembleClassifier", x=(2 * GRID).astype(np.int64), classlabels_int64s=[0, 1, 2],
     **classification([2, 3, 1], targets=3))  # fmt: skip
case("TreeEnsembleRegressor", x=GRID, n_targets=1, post_transform="PROBIT", refused="PROBIT", **regression([2]))
case("TreeEnsembleClassifier", x=GRID, classlabels_int64s=[4, 2], base_values=[0.1, 0.2], refused="2 base_values for",
     **classification([2, 3], targets=2))  # fmt: skip
TWICE = regression([1])
TWICE = {name: values + values[-1:] if name.startswith("target_") else values for name, values in TWICE.items()}
case("TreeEnsembleRegressor", x=GRID, n_targets=1, refused="two for the same leaf and target", **TWICE)
case("TreeEnsembleRegressor", x=GRID, n_targets=1, refused="target 1 of 1", **regression([1], targets=lambda tree: [1]))
tensor = onnx.numpy_helper.from_array
for aggregate in (0, 1, 2, 3):
    case("TreeEnsemble", x=GRID, version=5, n_targets=2, aggregate_function=aggregate, post_transform=0,
         refused="is not known here" if aggregate > 1 else "", tree_roots=[0, 2],
         nodes_featureids=[0, 1, 2], nodes_splits=tensor(np.array([0.5, -0.5, 0.0], np.float32)),
         nodes_modes=tensor(np.array([0, 1, 5], np.uint8)), nodes_truenodeids=[1, 0, 3], nodes_falsenodeids=[2, 1, 4],
         nodes_trueleafs=[0, 1, 1], nodes_falseleafs=[1, 1, 1], leaf_targetids=[0, 0, 0, 1, 1],
         leaf_weights=tensor(normal(5)), nodes_missing_value_tracks_true=[1, 0, 0])  # fmt: skip

# --- distances, and the rest ---

for metric in ("euclidean", "sqeuclidean"):
    case("CDist", x=X, y=normal(4, 3, seed=8), domain="com.microsoft", metric=metric, initializers=("y",))
    case("CDist", x=X, y=normal(ROWS, 3, seed=8), domain="com.microsoft", metric=metric)
case("CDist", x=X, y=normal(4, 3), domain="com.microsoft", metric="cosine", refused="'cosine' is neither")


def loop(body):
    """The body of a Scan over the rows of a matrix."""
    head = "b (float[M, K] s, float[K] row) => (float[M, K] t, float[M] d) <int64[1] a = {1}, float[1] p = {3}>"
    return onnx.parser.parse_graph(f"{head} {{ t = Identity(s) {body} }}")


for body, stays in (
    ("e = Sub(s, row) d = ReduceSumSquare<keepdims = 0>(e, a)", False),
    ("e = Sub(s, row) g = Abs(e) d = ReduceSum<keepdims = 0>(g, a)", False),
    ("e = Sub(s, row) g = Abs(e) h = Pow(g, p) k = ReduceSum<keepdims = 0>(h, a) d = Identity(k)", False),
    ("e = Sub(s, row) d = MatMul(e, row)", True),
    ("e = Sub(s, row) g = ReduceSumSquare<keepdims = 1>(e, a) d = Squeeze(g, a)", True),
):
    case("Scan", "state:float32", "y0:float32", domain="", x=X, y=normal(4, 3, seed=8), body=loop(body),
         num_scan_inputs=1, initializers=("y",), stays=stays)  # fmt: skip


for rows in (X, np.array([[0, 0, 0], [1, -2, 0]], np.float32)):
    for p in (1, 2):
        case("LpNormalization", domain="", x=rows, p=p, axis=1)
case("Sum", domain="", x=X)
case("Sum", domain="", x=X, y=X[0])


def test_every_rule_has_a_case():
    tested = {(c.domain, c.operator) for c in CASES if not c.refused}
    assert set(RULES) <= tested


def number(c):
    return f"{CASES.index(c)}-{c.operator}"


def covered(c, engine=None):
    """Return the operator with its attributes, the words among their values, and the type of x."""
    kind = c.feeds["x"].dtype if "x" in c.feeds else None
    words = {(name, value) for name, value in c.attributes.items() if isinstance(value, str)}
    return {(c.operator, engine, subject) for subject in (*c.attributes, *words, kind)}


def right(test):
    cases = pytest.mark.parametrize("c", [c for c in CASES if not c.refused], ids=number)
    return pytest.mark.thinned(by=covered)(cases(test))


def original(c):
    """Run the node as it is; TreeEnsemble is newer than some builds of onnxruntime."""
    try:
        return run_proto(c.proto, c.fed)
    except Exception as error:
        if not lacks_kernel(c, error):
            raise
        pytest.skip("this onnxruntime is too old for TreeEnsemble")


def forgets_logistic(c):
    """Whether the installed onnxruntime leaves out the transformation of a single score, as versions before 1.31 do."""
    if c.attributes.get("post_transform") != "LOGISTIC" or _runtime.version() >= "1.31":
        return False
    attributes, weights = c.attributes, c.attributes.get("class_weights", [])
    if c.operator == "TreeEnsembleClassifier":
        return set(attributes["class_ids"]) == {0} and min(weights) >= 0
    single = len(attributes.get("intercepts", [])) == 1 or len(attributes.get("vectors_per_class", [])) == 2
    return c.operator in ("LinearClassifier", "SVMClassifier") and single


@right
def test_values_are_those_of_onnxruntime(c):
    if forgets_logistic(c):
        pytest.skip("this onnxruntime leaves out LOGISTIC")
    wanted = original(c)
    found = run(rewrite(border.load(c.proto)).model, c.fed)
    for expected, value in zip(wanted, found, strict=True):
        assert_same(expected, value)


@right
def test_only_what_finds_leaves_and_strings_is_left(c):
    model = rewrite(border.load(c.proto)).model
    left = {node.op_type for node in model.graph if (node.domain, node.op_type) in RULES}
    strings = any(value.dtype is ir.DataType.STRING for value in model.graph.inputs)
    trees = c.operator.replace("Classifier", "Regressor") if "Tree" in c.operator else ""
    assert left == ({c.operator} if c.stays else {trees} if trees else {"LabelEncoder"} if strings else set())


@pytest.mark.parametrize("c", [c for c in CASES if "Tree" in c.operator and not c.refused], ids=number)
def test_places_of_leaf_values_tell_tree_node_and_target(c):
    rewritten = rewrite(border.load(c.proto))
    role = next(role for role in rewritten.roles if role.role == "leaf_values")
    array = rewritten.model.graph.initializers[role.name].const_value.numpy()
    assert role.places.shape == (*role.shape, 3)
    found = {tuple(place): value for place, value in zip(role.places.reshape(-1, 3).tolist(), array.flat, strict=True)}
    if c.operator == "TreeEnsemble":
        assert sorted(found) == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 3, 1), (1, 4, 1)]
        return
    kind = "class" if "Classifier" in c.operator else "target"
    lists = [c.attributes[f"{kind}_{name}"] for name in ("treeids", "nodeids", "ids", "weights")]
    assert found == {(t, n, i): np.float32(w) for t, n, i, w in zip(*lists, strict=True)}


@right
def test_parameters_hold_the_numbers_of_the_attributes(c):
    rewritten = rewrite(border.load(c.proto))
    shapes = {role.role: role.shape for role in rewritten.roles}
    assert c.parameters.items() <= shapes.items()
    initializers = rewritten.model.graph.initializers
    assert {role.name for role in rewritten.roles} == set(initializers) - set(c.initializers)
    for role in rewritten.roles:
        assert role.node == c.operator.lower()
        assert initializers[role.name].const_value.numpy().shape == role.shape
        assert role.name.endswith(f".{role.role}")


@pytest.mark.proof(operators=lambda c, engine: c.operator)
@pytest.mark.parametrize("engine", available_engines())
@right
def test_gradients_are_those_of_central_differences(c, engine):
    if c.stays:
        pytest.skip("nothing was rewritten")
    original(c)
    rewritten = rewrite(border.load(c.proto))
    floats = [v.name for v in rewritten.model.graph.outputs if is_float(v)]
    output = floats[-1]
    try:
        names = assert_gradients(rewritten.model, output, c.fed, engine)
    except UnsupportedOperatorError:
        assert engine == "ort-training"
        assert c.portable_only
        return
    assert not (engine == "ort-training" and c.portable_only)
    assert set(names) >= {role.name for role in rewritten.roles} or c.attributes.get("one_class")


@pytest.mark.parametrize("c", [c for c in CASES if c.refused], ids=number)
def test_what_has_no_form_is_refused(c):
    """Lists that onnxruntime would read behind are refused when the file is read."""
    with pytest.raises(ModelError, match=rf"{c.refused}|is not valid: .* does not fit") as error:
        rewrite(border.load(c.proto))
    assert f"Node '{c.operator.lower()}' (" in str(error.value)


LINE = {"coefficients": [0.1, -0.2, 0.3], "intercepts": [0.5]}


def graph_of(*nodes, outputs=(("y", 1, ["N", 1]),), held=(), producer="test"):
    declare = onnx.helper.make_tensor_value_info
    inputs = [declare("x", 1, ["N", 3])]
    graph = onnx.helper.make_graph(list(nodes), "several", inputs, [declare(*o) for o in outputs], list(held))
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(ML, 3)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name=producer)


def test_the_given_model_is_left_as_it_is():
    source = border.load(CASES[0].proto)
    before = border.to_proto(source).SerializeToString()
    rewrite(source)
    assert border.to_proto(source).SerializeToString() == before


def test_nodes_of_one_kind_have_parameters_of_their_own():
    first = onnx.helper.make_node("LinearRegressor", ["x"], ["a"], "one", domain=ML, **LINE)
    second = onnx.helper.make_node("LinearRegressor", ["x"], ["b"], "two", domain=ML, **LINE)
    rewritten = rewrite(border.load(graph_of(first, second, onnx.helper.make_node("Mul", ["a", "b"], ["y"], "m"))))
    names = [(role.node, role.name) for role in rewritten.roles]
    assert names == [
        ("one", "linear_regressor.coef"),
        ("one", "linear_regressor.intercept"),
        ("two", "linear_regressor_1.coef"),
        ("two", "linear_regressor_1.intercept"),
    ]


def test_what_nobody_reads_is_not_rewritten():
    faulty = onnx.helper.make_node("LinearRegressor", ["x"], ["z"], "unread", domain=ML, coefficients=[1.0] * 5)
    right = onnx.helper.make_node("LinearRegressor", ["x"], ["y"], "read", domain=ML, **LINE)
    assert {role.node for role in rewrite(border.load(graph_of(faulty, right))).roles} == {"read"}


def test_declared_shapes_that_are_wrong_are_not_believed():
    node = onnx.helper.make_node("LinearRegressor", ["x"], ["y"], "line", domain=ML, **LINE)
    model = rewrite(border.load(graph_of(node, outputs=[("y", 1, ["N", 2])]))).model
    assert model.graph.outputs[0].shape[1] == 1


def test_dictionaries_of_scores_are_read_as_tensors():
    node = onnx.helper.make_node("LinearClassifier", ["x"], ["l", "s"], "c", domain=ML, classlabels_ints=[0, 1],
                                 coefficients=[0.1, -0.2, 0.3, -0.1, 0.2, -0.3], intercepts=[0.5, -0.5])  # fmt: skip
    zipped = onnx.helper.make_node("ZipMap", ["s"], ["y"], "z", domain=ML, classlabels_int64s=[0, 1])
    proto = graph_of(node, zipped)
    mapped = onnx.helper.make_map_type_proto(7, onnx.helper.make_tensor_type_proto(1, []))
    proto.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(mapped))
    expected = np.array([[row[0], row[1]] for row in run_proto(proto, {"x": X})[0]], np.float32)
    model = rewrite(border.load(proto)).model
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert_same(expected, run(model, {"x": X})[0])


@pytest.mark.parametrize("producer", ["skl2onnx", "pytorch"])
def test_numbers_of_formulas_are_no_weights(producer):
    held = [onnx.numpy_helper.from_array(np.array(a, np.float32), name) for name, a in
            {"unity1": 1, "Mu_Mulcst": [0.5], "Ad_Addcst1": [0.3], "coef": [1, 2, 3]}.items()]  # fmt: skip
    body = onnx.parser.parse_graph(
        "g (float[N, 3] x) => (float[N, 3] y) { a = Mul(x, coef) b = Mul(a, Mu_Mulcst) c = Add(b, Ad_Addcst1) "
        "y = Sub(unity1, c) }"
    )
    proto = graph_of(*body.node, outputs=[("y", 1, ["N", 3])], held=held, producer=producer)
    model = rewrite(border.load(proto)).model
    weights = {"coef", "Ad_Addcst1"} if producer == "skl2onnx" else {"coef", "Ad_Addcst1", "unity1", "Mu_Mulcst"}
    assert set(model.graph.initializers) == weights
    assert_same(run_proto(proto, {"x": X})[0], run(model, {"x": X})[0])


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("marks", [False, True])
def test_numbers_that_are_imputed_later_have_no_part_in_gradients(marks, engine):
    scaler = {"offset": [0.5, -1.0, 0.2], "scale": [2.0, 0.5, -1.5]}
    nodes = [onnx.helper.make_node("Scaler", ["x"], ["scaled"], "s", domain=ML, **scaler)]
    if marks:
        nodes.append(onnx.helper.make_node("IsNaN", ["scaled"], ["gap"], "g"))
        nodes.append(onnx.helper.make_node("Where", ["gap", "means", "scaled"], ["y"], "w"))
    else:
        means = {"imputed_value_floats": [0.1, 0.2, 0.3], "replaced_value_float": float("nan")}
        nodes.append(onnx.helper.make_node("Imputer", ["scaled"], ["y"], "i", domain=ML, **means))
    held = [onnx.numpy_helper.from_array(np.array([0.1, 0.2, 0.3], np.float32), "means")] if marks else []
    proto = graph_of(*nodes, outputs=[("y", 1, ["N", 3])], held=held)
    feeds = {"x": np.where(np.arange(X.size).reshape(X.shape) % 4 == 0, np.float32("nan"), X)}
    model = rewrite(border.load(proto)).model
    assert_same(run_proto(proto, feeds)[0], run(model, feeds)[0])
    names = assert_gradients(model, "y", feeds, engine)
    assert set(names) == {"scaler.offset", "scaler.scale", "means" if marks else "imputer.imputed"}


def test_numbers_that_stay_missing_are_scaled_plainly():
    node = onnx.helper.make_node("Scaler", ["x"], ["y"], "s", domain=ML, offset=[0.5], scale=[2.0])
    model = rewrite(border.load(graph_of(node, outputs=[("y", 1, ["N", 3])]))).model
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == ["Sub", "Mul"]


def test_trees_find_the_same_leaves_in_float64():
    attributes = tree_attributes("target", [3, 2])
    node = onnx.helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], "t", domain=ML, n_targets=1, **attributes)
    model = rewrite(border.load(graph_of(node))).model
    double = in_dtype(model, ir.DataType.DOUBLE)
    assert_same(run(model, {"x": GRID})[0].astype(float), run(double, {"x": GRID.astype(float)})[0], tolerance=1e-6)
