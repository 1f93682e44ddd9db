"""The gradient of every node among ONNX's own tests is right, or refused.

Each test of a node with a floating-point input and output is differentiated with respect to each such input, by both
engines, and compared with central differences (``node_tests.py`` says how, and what is done about kinks).
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.contracts.node_test_models import node_tests, without_repetitions
from tests.contracts.node_tests import FAILS, REFUSED, RIGHT, UNCHECKED, WRONG, outcomes
from tests.helpers.environment import RULES, available_engines

PARTS = 12

NOT_CHECKED = {
    "AveragePool": "onnxruntime 1.19 computes other values with ceil_mode, or fails",
    "Bernoulli": "draws at random",
    "Cast": "onnxruntime 1.19 overflows in other types than the reference",
    "CastLike": "onnxruntime takes no numbers of less than eight bits, nor the others of ml_dtypes, from Python",
    "DequantizeLinear": "as CastLike",
    "Dropout": "draws at random",
    "FlexAttention": "onnxruntime 1.19 has no product of transposed matrices in float64",
    "MeanVarianceNormalization": "what runtimes add to the deviation differs",
    "OneHot": "its depth, a number of floating point there, tells a size",
    "Range": "of bfloat16, which onnxruntime does not compute",
    "ReduceL2": "onnxruntime 1.19 computes it in float32, too coarsely",
    "ReduceMax": "onnxruntime 1.19 fails on values without elements",
    "Resize": "onnxruntime computes other values than the test, with align_corners to a size of one",
    "ReverseSequence": "onnxruntime 1.19 leaves parts of its output unwritten",
    "Unique": "its tests are at ties, where the shape of its output changes",
}
"""Operators of which some test cannot be compared, and why."""

NO_ELEMENTS = {"test_slice_start_out_of_bounds"}
"""Tests whose gradient does not run on onnxruntime 1.19, whose Expand makes a value of a shape without elements."""

NOT_A_NUMBER = (
    "nan_robustness fullymasked negative_offset_structural_empty mode3_softmax_precision gqa_rank4_mask".split()
)
"""Parts of the names of expanded tests in which a softmax has nothing to choose from: their graphs replace the NaN that
it gives, and the gradient keeps it. The operator itself, Attention, has no NaN.
"""


def excused(operator: str, name: str, outcome: str, reason: str) -> bool:
    if outcome == WRONG and reason.startswith(FAILS) and name in NO_ELEMENTS:
        return True
    if outcome == WRONG:
        return "nan along" in reason and "_expanded" in name and any(part in name for part in NOT_A_NUMBER)
    return outcome in (RIGHT, REFUSED) or (outcome == UNCHECKED and operator in NOT_CHECKED)


def part_of(part: int) -> dict[str, list]:
    return {name: tests for i, (name, tests) in enumerate(sorted(node_tests().items())) if i % PARTS == part}


@pytest.mark.exhaustive
@pytest.mark.proof(operators=lambda engine, part: part_of(part))
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("part", range(PARTS))
def test_gradient_is_right_or_refused(engine, part, request):
    only = request.config.getoption("--operator")
    found = [
        (operator, test.name, input_name, outcome, reason)
        for operator, tests in part_of(part).items()
        if only in (None, operator)
        for test in (tests if only else without_repetitions(tests))
        for input_name, outcome, reason in outcomes(test, engine)
    ]
    left = [entry for entry in found if not excused(entry[0], entry[1], entry[3], entry[4])]
    assert not left, "\n".join(": ".join(entry) for entry in left)
    if only:
        return
    counts = Counter(entry[3] for entry in found)
    assert counts[RIGHT] > (20 if engine == "portable" else 0), counts
    assert counts[UNCHECKED] < 0.25 * sum(counts.values()), counts


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rule", "message"), [("Tanh", "differences say"), ("Softmax", "differences say")])
def test_a_wrong_rule_shows(monkeypatch, rule, message):
    """The comparison finds a gradient that is one part in fifty too large."""
    known = RULES["portable"][rule]

    def enlarged(r):
        return [lambda: r.op.Mul(known.rule(r)[0](), 1.02)]

    monkeypatch.setitem(RULES["portable"], rule, type(known)(enlarged, known.attributes))
    results = [result for test in node_tests()[rule] for result in outcomes(test, "portable")]
    assert any(outcome == WRONG and message in reason for _, outcome, reason in results)
    assert not any(reason.startswith(FAILS) for _, _, reason in results)
