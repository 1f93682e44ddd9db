"""Gradients of random graphs are those of central differences, in whatever way operators are put together.

The other contracts hold each operator alone; here a value is read by several nodes, shapes meet that no case thought
of, and dimensions have names. Along a random direction for each array the gradient is compared with the slope of the
forward graph in float64; where two steps do not agree, at a kink, the graph is left out, and few may be.

``RANDOM_GRAPHS=20000 pytest tests/contracts/test_random_graphs.py`` searches longer, and elsewhere in each run.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.contracts.random_graphs import GENERATORS, sketches
from tests.contracts.references import Erf, Gelu
from tests.helpers.environment import RULES, available_engines
from tests.helpers.sessions import session

EXAMPLES = int(os.environ.get("RANDOM_GRAPHS", "0"))

CASES_ONLY = """
    AffineGrid Bernoulli CenterCropPad Col2Im CumProd DFT DeformConv DequantizeLinear Det DynamicQuantizeLinear EyeLike
    GlobalLpPool GridSample LRN LpPool MaxRoiPool MaxUnpool MeanVarianceNormalization MelWeightMatrix OneHot
    RandomNormalLike RandomUniformLike Range Resize RoiAlign STFT TensorScatter Unique com.microsoft.Inverse
""".split()
NOT_DRAWN: dict[str, str] = dict.fromkeys(CASES_ONLY, "not of one kind with others: only its cases are run")
"""Operators with a gradient that are not drawn, and why."""

MAY_REFUSE = {
    "ort-training": "may be equal or broadcast|needs fixed sizes|must be fixed|not known|of unknown rank",
    "portable": "needs fixed sizes|must be fixed|not known|output_padding is not less than the stride",
}

NO_KERNEL = "NOT_IMPLEMENTED|ValidateOpsetForDomain|Type Error|not supported by|No Op registered"


def opsets_of_graph(engine):
    """Return the opsets that the engine differentiates and the installed onnxruntime reads."""
    newer = [opset for opset in (23, 24) if engine == "portable" and reads(opset)]
    return [13, 17, 18, 21, *newer]


def reads(opset):
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g (float x) => (float y) {{ y = Neg(x) }}'
    try:
        return bool(session(onnx.parser.parse_model(text)))
    except Exception:
        return False


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("engine", available_engines())
def test_gradients_are_the_slopes_of_the_graph(engine):
    seen = Counter()
    strategy = sketches(
        sorted(RULES[engine].keys() & GENERATORS.keys()), opsets_of_graph(engine), full=engine == "portable"
    )

    @settings(
        max_examples=EXAMPLES or 60,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(strategy)
    def check(sketch):
        outcome = compare(sketch, engine)
        seen[outcome] += 1

    check()
    assert seen["right"] >= 0.75 * seen.total(), seen


def compare(sketch, engine):
    """Compare all gradients with slopes; return "right", or why there is nothing to compare."""
    model, names = sketch.model(np.float32), list(sketch.arrays)
    try:
        graph = gradient_graph(model, wrt=names, engine=engine)
    except UnsupportedOperatorError as error:
        if not re.search(MAY_REFUSE[engine], str(error)):
            raise
        return "refused"
    directions = {n: np.random.default_rng(i).normal(size=a.shape) for i, (n, a) in enumerate(sketch.arrays.items())}
    loss, wanted = slopes_of_graph(sketch, directions)
    if wanted is None:
        return "no differences"
    outcome = agree(sketch, graph, np.float32, loss, wanted, directions)
    if engine == "portable" and valid(sketch.model(np.float64)):
        double = gradient_graph(sketch.model(np.float64), wrt=names, engine=engine)
        agree(sketch, double, np.float64, loss, wanted, directions)
    return outcome


def valid(model):
    """Whether all operators have the type."""
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def slopes_of_graph(sketch, directions):
    """Return the loss and its slope along each direction, both None where no evaluator gives some that are sound."""
    model = sketch.model(np.float64, as_inputs=True)
    arrays = {name: array.astype(np.float64) for name, array in sketch.arrays.items()}
    for evaluator in (by_runtime, by_reference):
        try:
            with np.errstate(all="ignore"):
                run = evaluator(model)
                found = sound_slopes(run, arrays, directions)
                if found is not None:
                    return float(run(arrays)), found
        except Exception:  # no kernel in float64; or a fault of ONNX's reference, which has some
            continue
    return None, None


def by_runtime(model):
    run = session(model).run
    return lambda feeds: run(None, feeds)[0]


def by_reference(model):
    run = ReferenceEvaluator(model, new_ops=[Erf, Gelu]).run
    return lambda feeds: run(None, feeds)[0]


def sound_slopes(run, arrays, directions):
    """Return central differences, None near a kink; the smallest step shows what was computed in float32."""
    near, far, noise = (
        {name: slope(run, arrays, name, direction, step) for name, direction in directions.items()}
        for step in (1e-5, 4e-5, 1e-8)
    )
    scale = 1 + max(map(abs, near.values()))
    sound = all(abs(near[n] - far[n]) < 1e-5 * scale and abs(near[n] - noise[n]) < 1e-4 * scale for n in near)
    return near if sound and scale < 1e4 else None


def slope(run, arrays, name, direction, step):
    ends = [float(run({**arrays, name: np.asarray(arrays[name] + h * direction)})) for h in (step, -step)]
    return (ends[0] - ends[1]) / (2 * step)


def agree(sketch, graph, kind, loss, wanted, directions):
    """Hold a gradient graph to the slopes; return "right", or why the installed onnxruntime cannot tell."""
    arrays = {name: array.astype(kind) for name, array in sketch.arrays.items()}
    try:
        given = session(sketch.model(kind))
        run = session(graph)
    except Exception as error:
        if not re.search(NO_KERNEL, str(error)):
            raise
        return "no kernel"
    feeds = {i.name: arrays[i.name] for i in given.get_inputs()}
    value, *gradients = run.run(["loss", *(f"{name}_grad" for name in arrays)], feeds)
    plain = given.run(["loss"], feeds)[0]
    if not np.allclose(plain, loss, 1e-4, 1e-4):
        return "another value"
    np.testing.assert_allclose(value, plain, 1e-4, 1e-4)
    found = {n: float(np.sum(g * directions[n])) for n, g in zip(arrays, gradients, strict=True)}
    scale = 1 + max(float(np.abs(g * directions[n]).sum()) for n, g in zip(arrays, gradients, strict=True))
    for name, gradient in zip(arrays, gradients, strict=True):
        assert gradient.shape == arrays[name].shape
        assert gradient.dtype == kind
        assert abs(found[name] - wanted[name]) < scale * (2e-3 if kind is np.float32 else 1e-5), (
            f"{name}: {found[name]} along a direction in {np.dtype(kind)}, but differences give {wanted[name]}"
        )
    return "right"


def test_every_operator_with_a_gradient_is_drawn():
    missing = {name for proven in RULES.values() for name in proven} - GENERATORS.keys() - NOT_DRAWN.keys()
    assert not missing, "give each a generator in random_graphs.py, or its reason in NOT_DRAWN"
