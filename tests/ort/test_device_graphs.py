"""Graphs for devices: operators of many operands become operators of two; indices are checked before they arrive."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn._ort.devices import OWN_MEMORY, resolve_device
from onnxtrain_sklearn._ort.sessions import create_session, index_sizes
from onnxtrain_sklearn._ort.wrong_kernels import in_pairs
from onnxtrain_sklearn._training import device_step
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.sessions import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
OPERANDS = {name: rng.normal(size=shape).astype(np.float32) for name, shape in
            {"a": (2, 1, 4), "b": (2, 3, 1), "c": (2, 3, 4), "d": (4,)}.items()}  # fmt: skip
SIGNATURE = "(float[2, 1, 4] a, float[2, 3, 1] b, float[2, 3, 4] c, float[4] d) => (float[2, 3, 4] y)"


def parsed(body, signature=SIGNATURE):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {signature} {{ {body} }}')


def paired(model):
    copied = onnx.load_model_from_string(model.SerializeToString())
    assert in_pairs(copied)
    return copied


def operand_counts(graph):
    return [len(node.input) for node in graph.node if node.op_type in ("Sum", "Add", "Max", "Min")]


@pytest.mark.parametrize("operands", ["a, b, c", "c, b, a", "a, b, c, d", "b, d, c, a, d"])
@pytest.mark.parametrize("operator", ["Sum", "Max", "Min"])
def test_results_are_the_same(operator, operands):
    model = parsed(f"s = {operator}({operands}) t = Neg(s) y = {operator}(t, {operands})")
    pairs = paired(model)
    assert set(operand_counts(pairs.graph)) == {2}
    onnx.checker.check_model(pairs, full_check=True)
    assert_array_equal(evaluate(pairs, **OPERANDS)[0], evaluate(model, **OPERANDS)[0])


def test_bodies_of_branches():
    model = parsed(
        """flag = Constant <value_ints = [1]> () yes = Cast <to = 9> (flag) sure = Squeeze(yes)
        y = If (sure) <then_branch = p () => (float[2, 3, 4] u) { u = Sum(a, b, c) },
                       else_branch = q () => (float[2, 3, 4] v) { v = Max(a, b, c) }>"""
    )
    pairs = paired(model)
    branches = [attribute.g for node in pairs.graph.node for attribute in node.attribute if attribute.HasField("g")]
    assert [operand_counts(branch) for branch in branches] == [[2, 2], [2, 2]]
    assert_array_equal(evaluate(pairs, **OPERANDS)[0], evaluate(model, **OPERANDS)[0])


def test_functions_of_a_model():
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18, "own": 1]> g {SIGNATURE} {{ y = own.all(a, b, c) }}'
        '<domain: "own", opset_import: ["": 18]> all (p, q, r) => (s) { s = Sum(p, q, r) }'
    )
    pairs = paired(model)
    assert operand_counts(pairs.functions[0]) == [2, 2]
    assert_array_equal(evaluate(pairs, **OPERANDS)[0], evaluate(model, **OPERANDS)[0])


@pytest.mark.parametrize("body", ["s = Sum(a, b) y = Max(s, c)", "y = Add(a, c)", "s = Sum(c) y = Min(s, b)"])
def test_graphs_without_affected_operators_are_unchanged(body):
    model = parsed(body)
    assert not in_pairs(model)
    assert model == parsed(body)


def test_sessions_on_a_device_get_pairs(monkeypatch):
    model, seen = parsed("y = Sum(a, b, c)"), []
    given = onnxruntime.InferenceSession

    def recorded(content, *more, **how):
        seen.append(operand_counts(onnx.load_model_from_string(content).graph))
        return given(content, *more, **how)

    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    create_session(model.SerializeToString(), resolve_device())
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    create_session(model.SerializeToString(), resolve_device())
    assert seen == [[3], [2, 2]]


LOOKUP = """<ir_version: 8, opset_import: ["": 18]> g (int64[N, 3] words, int32[N] user) => (float[N, 2] y)
    <float[10, 2] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2},
     float[5, 2] users = {1, 2, 3, 4, 5, 4, 3, 2, 1, 0}>
    {
        wide = Cast <to = 7> (words) rows = Gather(table, wide) axes = Constant <value_ints = [1]> ()
        mean = ReduceMean <keepdims = 0> (rows, axes) own = Gather(users, user) y = Add(mean, own)
    }"""


def lookup_rows(n=6):
    return {"words": np.arange(3 * n).reshape(n, 3) % 10, "user": np.arange(n, dtype=np.int32) % 5}


def test_inputs_that_are_indices():
    graph = onnx.parser.parse_model(LOOKUP).graph
    assert index_sizes(graph) == {"words": 10, "user": 5}
    columns = parsed(
        "first = Constant <value_ints = [0]> () column = Gather <axis = 1> (k, first) y = Gather(table, column)",
        "(int64[N, 3] k) => (float[N, 1, 2] y) <float[3, 2] table = {1, 2, 3, 4, 5, 6}>",
    )
    assert index_sizes(columns.graph) == {}


@pytest.mark.parametrize("limit", [2**31, 0], ids=["resident", "minibatches uploaded"])
@pytest.mark.parametrize(("name", "size"), [("words", 10), ("user", 5)])
@pytest.mark.parametrize("wrong", [lambda size: size, lambda size: -size - 1], ids=["above", "below"])
def test_indices_outside_of_a_table_do_not_reach_a_device(wrong, name, size, limit, monkeypatch):
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    monkeypatch.setattr(device_step, "RESIDENT_LIMIT", limit)
    settings = {"engine": "portable", "batch_size": 4, "max_iter": 2, "random_state": 0}
    fitted = OrtGradientRegressor(onnx.parser.parse_model(LOOKUP), **settings)
    rows, targets = lookup_rows(), np.eye(6, 2)
    bad = {key: array.copy() for key, array in rows.items()}
    bad[name][-1] = wrong(size)
    message = f"The index {wrong(size)} is beyond a table of {size} rows .*: indices from 0 to {size - 1} are valid"
    with pytest.raises(ModelError, match=f"'{name}' holds other integers. {message}"):
        fitted.fit(bad, targets)
    fitted.fit(rows, targets)
    before = fitted.weights_
    for call in (lambda: fitted.predict(bad), lambda: fitted.partial_fit(bad, targets)):
        with pytest.raises(ModelError, match=message):
            call()
    for key, array in fitted.weights_.items():
        assert_array_equal(array, before[key])
    bad[name][-1] = -1
    assert np.isfinite(fitted.partial_fit(bad, targets).predict(bad)).all()
