"""Dropout whose masks the host draws: what is dropped, how often, and what cannot be."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from scipy.stats import kstest

from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ir.shapes import infer_shapes
from onnxtrain_sklearn._training.randomness import UniformNumbers, expose_dropout
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError


def exposed(body, opset=18, kind="float", outputs="y", weights="float r = {0.25}, bool yes = {1}, bool no = {0}"):
    """Return the model after the rewrite, and its random inputs."""
    listed = ", ".join(f"{'bool' if name == 'm' else kind}[N, 3] {name}" for name in outputs)
    model = ir.from_proto(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": {opset}]> g ({kind}[400, 3] x, bool mode) => ({listed}) '
            f"<{weights}> {{ {body} }}"
        )
    )
    return model, expose_dropout(infer_shapes(model))


def run_dropout(model, inputs, draw=0, seed=1, mode=True, kind=np.float32):
    numbers = UniformNumbers(inputs, seed)
    numbers.draw(draw)
    session = onnxruntime.InferenceSession(to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = numbers.buffers | {"x": np.full((400, 3), 3.0, kind), "mode": np.array(mode)}
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


@pytest.mark.parametrize("opset", [12, 13, 18, 21])
@pytest.mark.parametrize(("node", "ratio"), [("Dropout(x, r, yes)", 0.25), ("Dropout(x, , yes)", 0.5)])
def test_a_share_is_dropped_and_the_rest_scaled(node, ratio, opset):
    model, inputs = exposed(f"y, m = {node}", opset, outputs="ym")
    y, kept = run_dropout(model, inputs)
    np.testing.assert_allclose(y, np.where(kept, 3 / (1 - ratio), 0), rtol=1e-6)
    assert abs(1 - kept.mean() - ratio) < 4 * np.sqrt(ratio * (1 - ratio) / 1200)
    assert "Dropout" not in {node.op_type for node in model.graph}


def test_masks_differ_by_draw_seed_and_node():
    model, inputs = exposed("y = Dropout(x, r, yes) z = Dropout(x, r, yes)", outputs="yz")
    kept = [run_dropout(model, inputs, draw, seed) for draw, seed in [(0, 1), (1, 1), (0, 2), (0, 1)]]
    masks = [tuple(a.ravel()) for pair in kept[:3] for a in pair]
    assert len(set(masks)) == 6
    np.testing.assert_array_equal(kept[0], kept[3])


def numbers_of(draws, shape=(500, 7), seed=3):
    """Return the random numbers of many draws, a row for each."""
    numbers = UniformNumbers([], seed)
    numbers.buffers = {"u": np.zeros(shape, np.float32)}
    rows = []
    for draw in range(draws):
        numbers.draw(draw)
        rows.append(numbers.buffers["u"].ravel().copy())
    return np.array(rows)


def test_random_numbers_are_uniform_and_independent():
    rows = numbers_of(60)
    assert rows.min() >= 0
    assert rows.max() < 1
    assert kstest(rows.ravel(), "uniform").pvalue > 1e-3
    for lag in (1, 2, 4, 7):  # within a draw, along and across the rows of a buffer
        assert abs(np.corrcoef(rows[:, lag:].ravel(), rows[:, :-lag].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(rows[1:].ravel(), rows[:-1].ravel())[0, 1]) < 0.01


def test_a_ratio_between_the_steps_of_the_random_bits_is_met():
    """2 ** -18 of the numbers are below 2 ** -18, though sixteen bits alone are below it or not."""
    smallest = numbers_of(4000, shape=(1,))[:, 0]
    assert len(np.unique(smallest * 2**16 % 1)) == 256
    assert np.all(smallest * 2**24 % 1 == 0)


def test_doubles_are_dropped_like_floats():
    model, inputs = exposed("y = Dropout(x, r, yes)", kind="double")
    single = run_dropout(*exposed("y = Dropout(x, r, yes)"))[0]
    y = run_dropout(model, inputs, kind=np.float64)[0]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, single, rtol=1e-6)


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_may_be_computed(mode):
    model, inputs = exposed("t = Not(mode) u = Not(t) y, m = Dropout(x, r, u)", outputs="ym")
    y, kept = run_dropout(model, inputs, mode=mode)
    assert kept.all() != mode
    np.testing.assert_allclose(y, np.where(kept, 4 if mode else 3, 0), rtol=1e-6)


@pytest.mark.parametrize(("node", "opset"), [("Dropout(x, r, no)", 18), ("Dropout(x, r)", 18), ("Dropout(x)", 11)])
def test_dropout_of_rate_zero_stays(node, opset):
    model, inputs = exposed(f"y = {node}", opset, weights="float r = {0.25}, bool no = {0}")
    assert not inputs
    assert [node.op_type for node in model.graph] == ["Dropout"]


@pytest.mark.parametrize("ratio", [1.0, -0.5, 2.0])
def test_a_share_that_is_none_is_refused(ratio):
    with pytest.raises(ModelError, match=rf"drops a share of {ratio}; it must be at least 0 and below 1"):
        exposed("y = Dropout(x, r, yes)", weights=f"float r = {{{ratio}}}, bool yes = {{1}}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("n = NonZero(x) f = Cast<to = 1>(n) t = Transpose(f) y = Dropout(t, r, yes)", "cannot be inferred"),
        (
            """y = If (mode) <then_branch = t () => (float[400, 3] a) { a = Dropout(x, r, yes) },
                             else_branch = u () => (float[400, 3] b) { b = Identity(x) }>""",
            "it is in a subgraph",
        ),
    ],
)  # fmt: skip
def test_a_mask_that_cannot_be_drawn_is_refused(body, reason):
    with pytest.raises(UnsupportedOperatorError, match=rf"\(Dropout\) cannot be trained: .*{reason}.*evaluation mode"):
        exposed(body)
