"""Gradients of convolutions that are written as matrix products are right, and are written so where they should be.

Each layout makes the rule choose another form. The loss is a sum of the convolution's output under random weights, in
float64 of numpy. It is linear in the input and in the kernel, so central differences along random directions are
exact; one per element would take minutes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn import gradient_graph
from tests.helpers.sessions import session

FORWARD, INPUT, KERNEL = "forward", "input", "kernel"


@dataclass(frozen=True)
class Form:
    """A convolution, and how often operators occur in its gradient graph."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    operators: dict[str, int] = field(hash=False)
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    auto_pad: str = ""
    group: int = 1
    opset: int = 18

    def attributes(self):
        lists = {"strides": self.strides, "dilations": self.dilations, "pads": self.pads}
        texts = [f"{name} = {list(values)}" for name, values in lists.items() if values]
        texts += [f'auto_pad = "{self.auto_pad}"'] * bool(self.auto_pad) + [f"group = {self.group}"]
        return ", ".join(texts)

    def windows(self):
        """Return strides, dilations, and the padding at the beginning and at the end."""
        n = len(self.w) - 2
        strides, dilations = self.strides or (1,) * n, self.dilations or (1,) * n
        begin, end = self.pads[:n] or (0,) * n, self.pads[n:] or (0,) * n
        if self.auto_pad.startswith("SAME"):
            reach = [(k - 1) * d + 1 for k, d in zip(self.w[2:], dilations, strict=True)]
            totals = [
                max((-(-size // s) - 1) * s + r - size, 0)
                for size, s, r in zip(self.x[2:], strides, reach, strict=True)
            ]
            small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
            begin, end = (small, large) if self.auto_pad == "SAME_UPPER" else (large, small)
        return strides, dilations, begin, end


BANDS = {"Conv": 0, "ConvTranspose": 0}
LINES = BANDS | {"Gather": 2, "Slice": 1}  # two passes gather lines of pixels; the kernel is turned around once
STRIDED_LINES = {"Conv": 0, "ConvTranspose": 1, "Gather": 1, "Slice": 0}
WHOLE = BANDS | {"Pad": 0, "Slice": 0, "Gather": 0, "MatMul": 5}  # the matrices are made once for both passes
PIXELS = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "Concat": 1}
TILES = {"Conv": 0, "ConvTranspose": 0, "Gemm": 6, "MatMul": 7}  # three passes share the sums of x, w and g
READS = {"Conv": 0, "ConvTranspose": 0, "Col2Im": 0, "Gemm": 3, "MatMul": 2}  # two products with the constant matrix
FORMS = [
    Form("1x1", (3, 5, 4, 5), (7, 5, 1, 1), {"Conv": 2, "ConvTranspose": 0, "Gemm": 1}),
    Form("1x1, tiny images", (3, 5, 2, 3), (64, 5, 1, 1), READS | {"MatMul": 0}),
    Form("1x1, strided", (3, 5, 5, 4), (64, 5, 1, 1), READS, strides=(2, 2)),
    Form("1x1, padded", (3, 5, 2, 2), (64, 5, 1, 1), {"ConvTranspose": 1, "Gemm": 1}, pads=(1, 0, 0, 1)),
    Form("pixels", (2, 8, 7, 6), (5, 8, 3, 3), PIXELS, pads=(1, 1, 1, 1)),
    Form("pixels, many", (3, 8, 19, 23), (5, 8, 3, 2), {"Conv": 1, "ConvTranspose": 1, "Gemm": 6}, pads=(1, 0, 1, 1)),
    Form("pixels, strided", (3, 8, 13, 12), (4, 8, 3, 2), PIXELS, strides=(2, 3), pads=(0, 1, 2, 0)),
    Form("pixels, dilated", (2, 9, 9, 10), (4, 9, 2, 3), PIXELS, dilations=(3, 2), pads=(2, 1, 0, 3)),
    Form("pixels, 1-D", (3, 8, 40), (5, 8, 4), PIXELS, strides=(1,), pads=(1, 2)),
    Form("pixels, 3-D", (2, 8, 4, 5, 4), (3, 8, 2, 2, 2), PIXELS, pads=(0, 1, 0, 1, 0, 1)),
    Form("upper", (2, 8, 8, 7), (5, 8, 3, 2), PIXELS, auto_pad="SAME_UPPER"),
    Form("lower", (3, 8, 11, 10), (5, 8, 2, 4), PIXELS, strides=(2, 1), auto_pad="SAME_LOWER"),
    Form("no padding", (3, 8, 11, 10), (5, 8, 2, 4), PIXELS, strides=(2, 1), auto_pad="VALID"),
    Form("few channels", (2, 3, 9, 9), (4, 3, 3, 3), {"Conv": 2, "ConvTranspose": 1, "Gemm": 0}),
    Form("few positions", (3, 8, 4, 4), (64, 8, 3, 3), {"Conv": 1, "Col2Im": 1, "Gemm": 2}, pads=(1, 1, 1, 1)),
    Form("few positions, strided", (3, 6, 5, 6), (64, 6, 3, 2), {"Col2Im": 1}, strides=(2, 2), pads=(1, 0, 0, 1)),
    Form("few positions, dilated", (3, 6, 7, 6), (64, 6, 3, 2), {"Col2Im": 1}, dilations=(2, 3), pads=(0, 1, 1, 0)),
    Form("few positions, 1-D", (3, 8, 31), (64, 8, 3), {"Col2Im": 1, "Gemm": 2}, strides=(2,), pads=(0, 1)),
    Form("few positions, 3-D", (2, 4, 3, 2, 3), (64, 4, 2, 1, 2), {"ConvTranspose": 1}, pads=(1, 0, 0, 0, 0, 1)),
    Form("few positions, opset 17", (3, 6, 6, 6), (64, 6, 3, 3), {"ConvTranspose": 1, "Col2Im": 0}, opset=17),
    Form("few reads", (3, 9, 4, 3), (6, 9, 3, 3), READS, pads=(1, 1, 0, 0), strides=(2, 2), opset=13),
    Form("few reads, dilated", (3, 8, 5, 3), (7, 8, 3, 2), READS, dilations=(2, 1), pads=(0, 1, 1, 0)),
    Form("few reads, 1-D", (3, 8, 9), (6, 8, 4), READS, strides=(2,), pads=(0, 1)),
    Form("few reads, 3-D", (2, 8, 3, 2, 2), (6, 8, 2, 3, 2), READS, pads=(1, 1, 0, 0, 1, 0), strides=(2, 1, 2)),
    Form("few reads, a single position", (9, 8, 3, 3), (6, 8, 3, 3), READS),
    Form("few reads, a single image", (1, 8, 3, 3), (6, 8, 2, 2), READS | {"Conv": 1, "Gemm": 2}),
    Form("few reads, 1x1 on more", (3, 5, 3, 3), (6, 5, 1, 1), {"Conv": 2, "ConvTranspose": 0, "MatMul": 0}),
    Form("unread elements", (3, 6, 6, 6), (64, 6, 3, 3), {"Col2Im": 1}, strides=(2, 2)),
    Form("all as patches", (3, 114, 2, 2), (64, 114, 3, 3), READS, pads=(1, 1, 1, 1)),
    Form("all as patches, strided", (2, 128, 5, 8), (65, 128, 3, 3), BANDS | {"Gemm": 3}, strides=(2, 2)),
    Form("all as patches, 1-D", (4, 256, 7), (64, 256, 4), BANDS | {"Gemm": 3}, strides=(2,), pads=(1, 1)),
    Form("large images", (1, 3, 33, 34), (2, 3, 3, 2), {"Conv": 3, "ConvTranspose": 0}, pads=(1, 0, 1, 1)),
    Form("large images, dilated", (1, 2, 36, 35), (3, 2, 2, 3), {"Conv": 3}, dilations=(2, 1), pads=(1, 1, 0, 2)),
    Form("large images, wide padding", (1, 2, 33, 33), (3, 2, 2, 2), {"ConvTranspose": 1}, pads=(2, 2, 2, 2)),
    Form("bands", (3, 4, 6, 7), (4, 1, 3, 3), BANDS | {"MatMul": 6}, pads=(1, 1, 1, 1), group=4),
    Form("bands, wide kernel", (2, 3, 6, 6), (3, 1, 7, 7), BANDS, pads=(3, 3, 3, 3), group=3),
    Form("bands, uneven", (2, 3, 7, 8), (3, 1, 2, 4), BANDS, dilations=(2, 1), pads=(0, 1, 2, 0), group=3),
    Form("bands, gathered", (2, 3, 7, 12), (3, 1, 2, 4), LINES, dilations=(2, 1), pads=(1, 1, 2, 0), group=3),
    Form("bands, gathered, strided", (2, 3, 9, 11), (3, 1, 3, 2), STRIDED_LINES, strides=(2, 3), group=3),
    Form("bands, gathered, cropped", (2, 3, 7, 10), (3, 1, 2, 2), LINES, pads=(2, 2, 0, 0), group=3),
    Form("bands, gathered, 3-D", (2, 3, 4, 3, 9), (3, 1, 2, 3, 2), LINES, pads=(0, 1, 1, 1, 0, 0), group=3),
    Form("bands, strided", (2, 3, 9, 8), (3, 1, 3, 2), {"Conv": 0, "ConvTranspose": 1}, strides=(2, 3), group=3),
    Form("bands, upper", (2, 3, 9, 8), (3, 1, 3, 4), {"Conv": 0}, strides=(2, 1), auto_pad="SAME_UPPER", group=3),
    Form("bands, 1-D", (1, 4, 16), (4, 1, 3), BANDS | {"MatMul": 6}, pads=(8, 8), group=4),
    Form("bands, long, 1-D", (2, 4, 30), (4, 1, 3), {"Conv": 2, "ConvTranspose": 0, "MatMul": 2}, pads=(2, 0), group=4),
    Form("bands, few images", (12, 2, 8, 8), (2, 1, 3, 3), BANDS | {"Slice": 7}, pads=(1, 1, 1, 1), group=2),
    Form("bands, 3-D", (2, 3, 3, 4, 5), (3, 1, 2, 3, 2), BANDS, pads=(0, 1, 1, 1, 1, 0), group=3),
    Form("bands, wide padding", (2, 3, 5, 5), (3, 1, 2, 2), BANDS, pads=(2, 2, 2, 2), group=3),
    Form("bands, longer lines", (2, 3, 4, 20), (3, 1, 3, 3), {"Conv": 1, "ConvTranspose": 1}, group=3),
    Form("whole matrices", (3, 4, 4, 4), (4, 1, 3, 3), WHOLE, pads=(1, 1, 1, 1), group=4),
    Form("whole matrices, wide kernel", (2, 3, 4, 5), (3, 1, 7, 7), WHOLE, pads=(3, 3, 3, 3), group=3),
    Form("whole matrices, uneven", (4, 3, 5, 6), (3, 1, 2, 4), WHOLE, dilations=(2, 1), pads=(0, 1, 2, 0), group=3),
    Form("whole matrices, strided", (3, 3, 8, 7), (3, 1, 3, 2), WHOLE, strides=(3, 2), pads=(1, 0, 0, 1), group=3),
    Form("whole matrices, lower", (3, 3, 5, 5), (3, 1, 3, 4), WHOLE, strides=(2, 1), auto_pad="SAME_LOWER", group=3),
    Form("whole matrices, 1-D", (3, 4, 9), (4, 1, 3), WHOLE, pads=(2, 0), group=4),
    Form("whole matrices, 3-D", (3, 3, 3, 2, 4), (3, 1, 2, 3, 2), WHOLE, pads=(0, 1, 1, 1, 1, 0), group=3),
    Form("whole matrices, wide padding", (2, 3, 3, 3), (3, 1, 2, 2), WHOLE, pads=(2, 2, 2, 2), group=3),
    Form("whole matrices, one image", (1, 3, 4, 4), (3, 1, 3, 3), WHOLE, pads=(1, 1, 1, 1), group=3, opset=13),
    Form("whole matrices, many images", (13, 2, 8, 8), (2, 1, 3, 3), WHOLE, pads=(1, 1, 1, 1), group=2),
    Form("tiles", (8, 16, 4, 4), (16, 16, 3, 3), TILES, pads=(1, 1, 1, 1)),
    Form("tiles, few channels", (8, 8, 4, 4), (8, 8, 3, 3), TILES, pads=(1, 1, 1, 1)),
    Form("tiles, uneven", (3, 20, 7, 5), (47, 20, 3, 3), TILES, pads=(1, 1, 1, 1)),
    Form("tiles, without padding", (3, 40, 8, 10), (41, 40, 3, 3), TILES, opset=13),
    Form("tiles, wide padding", (3, 48, 6, 5), (33, 48, 3, 3), TILES, pads=(2, 2, 2, 2)),
    Form("tiles, padding wider than a tile", (3, 48, 5, 4), (48, 48, 3, 3), TILES, pads=(4, 5, 5, 4)),
    Form("tiles, padding of one side", (3, 36, 7, 8), (34, 36, 3, 3), TILES, pads=(0, 2, 1, 0)),
    Form("tiles, lower", (2, 36, 7, 8), (34, 36, 3, 3), TILES, auto_pad="SAME_LOWER"),
    Form("pairs", (8, 9, 2, 2), (8, 9, 3, 3), TILES, pads=(1, 1, 1, 1)),
    Form("pairs and tiles", (8, 24, 2, 8), (48, 24, 3, 3), TILES, pads=(1, 1, 1, 1)),
    Form("single pixels", (2, 5, 1, 1), (4, 5, 3, 3), TILES | {"Gemm": 10, "MatMul": 3}, pads=(1, 1, 1, 1)),
    Form("a line of pixels", (4, 24, 1, 6), (24, 24, 3, 3), TILES, pads=(1, 1, 1, 1)),
    Form("tiles, 3-D", (4, 20, 3, 5, 4), (25, 20, 3, 3, 3), TILES | {"MatMul": 11}, pads=(1, 0, 1, 1, 1, 1)),
    Form("pairs, 3-D", (4, 9, 2, 1, 2), (8, 9, 3, 3, 3), TILES | {"MatMul": 11}, pads=(1,) * 6),
    Form("a single image", (1, 5, 1, 1), (4, 5, 3, 3), {"MatMul": 1}, pads=(1, 1, 1, 1)),
    Form("too few pairs", (7, 9, 2, 2), (8, 9, 3, 3), READS, pads=(1, 1, 1, 1)),
    Form("too large a kernel for pairs", (8, 256, 2, 2), (257, 256, 3, 3), READS, pads=(1, 1, 1, 1)),
    Form("too few tiles", (7, 16, 4, 4), (16, 16, 3, 3), {"MatMul": 0, "Conv": 1}, pads=(1, 1, 1, 1)),
    Form("too few channels for tiles", (8, 8, 4, 4), (7, 8, 3, 3), {"MatMul": 0, "Conv": 1}, pads=(1, 1, 1, 1)),
    Form("no tiles of strides", (8, 32, 9, 9), (32, 32, 3, 3), {"MatMul": 0, "Conv": 1}, strides=(2, 1)),
    Form("no tiles of dilations", (8, 32, 9, 9), (32, 32, 3, 3), {"MatMul": 0, "Conv": 1}, dilations=(1, 2)),
    Form("no tiles of other kernels", (8, 32, 9, 9), (32, 32, 3, 2), {"MatMul": 0, "Conv": 1}),
    Form("groups", (2, 6, 6, 5), (4, 3, 3, 3), {"Conv": 2, "ConvTranspose": 1}, group=2),
    Form("several kernels a channel", (2, 3, 6, 5), (6, 1, 3, 3), {"Conv": 2, "ConvTranspose": 1}, group=3),
]


def model_of(form, shape, weighting, kind="float"):
    text = f"""<ir_version: 8, opset_import: ["": {form.opset}]>
        convolution ({kind}{list(shape)} x, {kind}{list(form.w)} w, {kind}[{form.w[0]}] b) => ({kind} loss) {{
            y = Conv<{form.attributes()}>(x, w, b) weighted = Mul(y, weighting)
            loss = ReduceSum<keepdims = 0>(weighted) }}"""
    model = onnx.parser.parse_model(text.replace("'", ""))
    array = weighting.astype({"float": np.float32, "double": np.float64, "float16": np.float16}[kind])
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "weighting"))
    return model


def convolution(form, x, w, b):
    """Convolve in float64: for each element of the kernel, the pixels that it reads."""
    strides, dilations, begin, end = form.windows()
    padded = np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    reach = [(k - 1) * d + 1 for k, d in zip(form.w[2:], dilations, strict=True)]
    steps = [(size - r) // s + 1 for size, r, s in zip(padded.shape[2:], reach, strides, strict=True)]
    groups = []
    for pixels, kernel in zip(np.split(padded, form.group, 1), np.split(w, form.group), strict=True):
        total = np.zeros((len(x), len(kernel), *steps))
        for tap in np.ndindex(*form.w[2:]):
            read = (
                slice(i * d, i * d + (n - 1) * s + 1, s)
                for i, d, n, s in zip(tap, dilations, steps, strides, strict=True)
            )
            total += np.einsum("nc...,oc->no...", pixels[(slice(None), slice(None), *read)], kernel[(..., *tap)])
        groups.append(total)
    return np.concatenate(groups, 1) + b.reshape(-1, *[1] * len(steps))


def arrays_of(form):
    rng = np.random.default_rng(len(form.name))
    arrays = {"x": rng.normal(size=form.x), "w": rng.normal(size=form.w), "b": rng.normal(size=form.w[0])}
    weighting = rng.normal(size=convolution(form, **arrays).shape)
    return {name: a.astype(np.float32) for name, a in arrays.items()}, weighting.astype(np.float32), rng


def require_right(form, graph, arrays, weighting, rng):
    """Compare the gradients with central differences along random directions."""
    run = session(graph)
    loss, *gradients = run.run(["loss", "x_grad", "w_grad", "b_grad"], arrays)
    exact = {name: a.astype(np.float64) for name, a in arrays.items()}
    value = lambda moved: float(np.sum(convolution(form, **moved) * weighting))  # noqa: E731
    scale = np.linalg.norm(weighting) * np.linalg.norm(exact["w"])
    np.testing.assert_allclose(loss, value(exact), rtol=1e-4, atol=1e-4 * scale)
    for name, gradient in zip(arrays, gradients, strict=True):
        assert gradient.shape == arrays[name].shape
        for _ in range(4):
            direction = rng.normal(size=gradient.shape) * (rng.random(gradient.shape) < 0.2)
            ahead, behind = ({**exact, name: exact[name] + sign * direction} for sign in (0.5, -0.5))
            expected, found = value(ahead) - value(behind), float(np.sum(gradient * direction))
            tolerance = 1e-5 * np.linalg.norm(gradient) * np.linalg.norm(direction) + 1e-6
            assert abs(found - expected) <= tolerance, (name, found, expected)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_gradients_are_right_in_the_form_that_the_layout_asks_for(form):
    arrays, weighting, rng = arrays_of(form)
    graph = gradient_graph(model_of(form, form.x, weighting), wrt=["x", "w", "b"], engine="portable")
    found = Counter(node.op_type for node in graph.graph.node)
    assert {name: found[name] for name in form.operators} == form.operators
    require_right(form, graph, arrays, weighting, rng)


@pytest.mark.parametrize("unknown", [0, 2])
@pytest.mark.parametrize("form", [FORMS[1], FORMS[4], FORMS[13], FORMS[20], FORMS[26]], ids=lambda form: form.name)
def test_unknown_sizes_take_the_general_rule(form, unknown):
    arrays, weighting, rng = arrays_of(form)
    shape = ["N" if i == unknown else size for i, size in enumerate(form.x)]
    graph = gradient_graph(model_of(form, shape, weighting), wrt=["x", "w", "b"], engine="portable")
    found = Counter(node.op_type for node in graph.graph.node)
    assert found["Col2Im"] == 0
    assert found["ConvTranspose"] == 1
    require_right(form, graph, arrays, weighting, rng)


@pytest.mark.parametrize(
    "form",
    [form for form in FORMS if form.operators.items() >= BANDS.items() and "MatMul" in form.operators],
    ids=lambda form: form.name,
)
def test_products_lose_no_digits(form):
    """Gradients of the loss in the output, the input and the kernel, in float64, and in float32 as near as a sum is."""
    arrays, weighting, _ = arrays_of(form)
    names, found = ["loss", "x_grad", "w_grad", "b_grad"], {}
    for kind, dtype in (("double", np.float64), ("float", np.float32)):
        graph = gradient_graph(model_of(form, form.x, weighting, kind), wrt=["x", "w", "b"], engine="portable")
        found[kind] = session(graph).run(names, {name: a.astype(dtype) for name, a in arrays.items()})
    exact = {name: a.astype(np.float64) for name, a in arrays.items()}
    loss = float(np.sum(convolution(form, **exact) * weighting))
    assert found["double"][0] == pytest.approx(loss, rel=1e-12, abs=1e-11 * float(np.abs(weighting).sum()))
    for near, right in zip(found["float"][1:], found["double"][1:], strict=True):
        assert np.abs(near - right).max() <= 2e-6 * np.abs(right).max()
    direction = np.random.default_rng(0).normal(size=form.x)
    ahead, behind = (convolution(form, **{**exact, "x": exact["x"] + s * direction}) for s in (0.5, -0.5))
    expected = float(np.sum((ahead - behind) * weighting))
    assert float(np.sum(found["double"][1] * direction)) == pytest.approx(expected, rel=1e-10)


def test_no_tiles_of_float16():
    """The sum of four pixels of 20,000 is no number of float16, the convolution with small weights is one."""
    form = next(form for form in FORMS if form.name == "tiles")
    arrays, weighting, _ = arrays_of(form)
    graph = gradient_graph(model_of(form, form.x, weighting, "float16"), wrt=["x", "w"], engine="portable")
    assert "MatMul" not in {node.op_type for node in graph.graph.node}
    arrays = {"x": np.full(form.x, 20000.0), "w": arrays["w"] * 1e-3, "b": arrays["b"]}
    found = session(graph).run(["loss", "x_grad"], {name: array.astype(np.float16) for name, array in arrays.items()})
    assert all(np.isfinite(array).all() for array in found)


def test_a_constant_kernel_keeps_its_convolution():
    form = next(form for form in FORMS if form.name == "all as patches")
    model = model_of(form, form.x, arrays_of(form)[1])
    for wrt, count in (("x", 1), ("w", 0)):
        graph = gradient_graph(model, wrt=wrt, engine="portable")
        assert sum(node.op_type == "Conv" for node in graph.graph.node) == count


def test_names_of_constants_stay_apart():
    """The zero gradient of ``unread`` needs a constant, and the convolution with a bias, once all rules have run."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        convolutions (
            float[3, 4, 2, 2] x, float[4, 1, 3, 3] w, float[4] b, float[3, 4, 2, 2] c, float[3, 4, 2, 2] unread
        ) => (float loss) {
            a = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w, b) y = Add(a, c) z = Floor(unread) s = Add(y, z)
            loss = ReduceSum<keepdims = 0>(s) }""")
    graph = gradient_graph(model, wrt=["x", "w", "b", "c", "unread"], engine="portable")
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 4, 2, 2), "w": (4, 1, 3, 3), "b": (4,), "c": (3, 4, 2, 2), "unread": (3, 4, 2, 2)}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    found = dict(zip(("c", "unread"), session(graph).run(["c_grad", "unread_grad"], feeds), strict=True))
    assert (found["c"] == 1).all()
    assert (found["unread"] == 0).all()
