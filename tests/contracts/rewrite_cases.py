"""One node each, with one setting of its attributes, for the rules that rewrite operators of ai.onnx.ml."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxtrain_sklearn._ort import sessions
from tests.helpers.differences import run_proto

ML = "ai.onnx.ml"
TYPES = {"float32": 1, "float64": 11, "int64": 7, "int32": 6, "bool": 9, "object": 8}
ROWS = 7


def lacks_kernel(c, error):
    """Whether this onnxruntime is too old for TreeEnsemble."""
    return c.operator == "TreeEnsemble" and (sessions.not_implemented(error) or "opset 5" in str(error))


@dataclass(frozen=True, eq=False)
class Rewrite:
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


CASES: list[Rewrite] = []
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
        Rewrite(operator, attributes, feeds, outputs, domain, refused, dict(parameters), initializers, portable_only,
             stays, version)
    )  # fmt: skip


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def flat(*shape, seed=1):
    return normal(*shape, seed=seed).ravel().tolist()


X = normal(ROWS, 3)
WITH_NAN = X.copy()
WITH_NAN[[0, 2, 5], [0, 1, 0]] = np.nan

# linear.

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

# features.

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

# support vector machines.

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


# trees.


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
        case("TreeEnsembleRegressor", x=GRID, n_targets=3, aggregate_function=aggregate, refused="is not supported",
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
         refused="is not supported" if aggregate > 1 else "", tree_roots=[0, 2],
         nodes_featureids=[0, 1, 2], nodes_splits=tensor(np.array([0.5, -0.5, 0.0], np.float32)),
         nodes_modes=tensor(np.array([0, 1, 5], np.uint8)), nodes_truenodeids=[1, 0, 3], nodes_falsenodeids=[2, 1, 4],
         nodes_trueleafs=[0, 1, 1], nodes_falseleafs=[1, 1, 1], leaf_targetids=[0, 0, 0, 1, 1],
         leaf_weights=tensor(normal(5)), nodes_missing_value_tracks_true=[1, 0, 0])  # fmt: skip

# distances, and the rest.

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
