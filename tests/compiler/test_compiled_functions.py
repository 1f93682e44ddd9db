"""Functions written as instructions have the errors that they state, on all ranges, at any width."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from scipy import special

from onnxtrain_sklearn._compiler import elementwise
from onnxtrain_sklearn._compiler.elementwise import FUNCTIONS, supported
from onnxtrain_sklearn._compiler.llvm_text import Text
from onnxtrain_sklearn._ort.llvm import MachineCode

pytest.importorskip("llvmlite", reason="functions are compiled by llvmlite")

GREATEST, LEAST, LEAST_NORMAL = 3.4028235e38, 1e-45, 2.0**-126
EDGES = (0.0, np.inf, np.nan, GREATEST, LEAST, LEAST_NORMAL, 1.0, 0.5)
"""Where formulas change, results overflow or become subnormal: every number near them is tried."""
TURNS = (
    *(88.72284, 89.4, 88.376, -87.336, -103.97, -104.5, -17.0, 0.85, 4.0, 0.34657, 0.17329, 0.5, -0.25, -1.0, 8.6),
    *(1e-30, np.pi, 710 * np.pi, 2.0**45, 2.0**75, 2.0**105),
)


def expit(x):
    small = np.exp(-np.abs(x))  # SciPy's own rounds 1 + exp(-x), which is not exact enough for x far below zero
    return np.where(x < 0, small, 1.0) / (1.0 + small)


EXACT = {
    "cos": (np.cos, 1.25),
    "erf": (special.erf, 1.0),
    "exp": (np.exp, 1.0),
    "expm1": (np.expm1, 1.45),
    "log": (np.log, 1.0),
    "log1p": (np.log1p, 1.35),
    "sigmoid": (expit, 1.0),
    "sin": (np.sin, 1.25),
    "softplus": (lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))), 1.75),
    "tanh": (np.tanh, 1.95),
}
"""The function in float64, and the largest error in units of the last place."""


def gelu_by_tanh(x):
    return 0.5 * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


SELU = 1.6732632423543772, 1.0507009873554805
SIMPLE = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0.0, 1.0),
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.where(x < 0, 0.0, x),
    "Round": np.round,
    "Sign": np.sign,
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "Sqrt": np.sqrt,
    "LeakyRelu": lambda x, alpha=0.01: np.where(x < 0, alpha * x, x),
    "Elu": lambda x, alpha=1.0: np.where(x < 0, alpha * np.expm1(x), x),
    "Selu": lambda x, alpha=SELU[0], gamma=SELU[1]: gamma * np.where(x < 0, alpha * np.expm1(x), x),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0),
    "Gelu": lambda x, approximate="none": x * (gelu_by_tanh(x) if approximate == "tanh" else special.ndtr(x)),
    "Mish": lambda x: x * np.tanh(EXACT["softplus"][0](x)),
}
CANCELLING = ("Gelu", "Hard", "Mish")
"""Functions that lose digits where they are near zero: their absolute error counts."""
ATTRIBUTES = [
    ("Gelu", {"approximate": "tanh"}),
    ("LeakyRelu", {"alpha": 0.3}),
    ("Elu", {"alpha": 2.5}),
    ("Selu", {"alpha": 1.5, "gamma": 0.5}),
]


def values(function, x, width=16, **attributes):
    """Return the results for numbers, computed so many at a time."""
    given = np.append(x, np.ones(-len(x) % width, np.float32))
    result = np.empty_like(given)
    text = Text()
    source = text.value("load ptr, ptr %arrays")
    target = text.value(f"load ptr, ptr {text.value('getelementptr ptr, ptr %arrays, i64 1')}")
    with text.loop(len(given), width) as loop:
        one = function(text, text.load(source, loop.index, width), width, **attributes)
        text.store(one, target, loop.index, width)
    arrays = (ctypes.c_void_p * 2)(given.ctypes.data, result.ctypes.data)
    MachineCode(text.function("run", ["%arrays"]))(ctypes.cast(arrays, ctypes.c_void_p))
    return result[: len(x)]


def neighbors(number, count):
    """Return the float32 numbers on both sides of one."""
    return (np.float32(number).view(np.int32) + np.arange(-count, count, dtype=np.int32)).view(np.float32)


@pytest.fixture(scope="module")
def samples():
    """Return numbers of every size and sign, most of them where functions bend."""
    random = np.random.default_rng(0)
    edges = np.array([*EDGES, *(-edge for edge in EDGES)], np.float32)
    sizes = random.integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    bends = np.concatenate([random.uniform(-110, 110, 200_000), random.normal(size=200_000)]).astype(np.float32)
    return np.concatenate([edges, sizes, bends, *(neighbors(turn, 2000) for turn in TURNS)])


def errors(result, expected):
    """Return errors in units of the last place of float32; infinite where a result is wrongly NaN or infinite."""
    rounded = expected.astype(np.float32)
    exponents = np.frexp(np.where(np.isfinite(expected), expected, 1.0))[1]
    errors = np.ldexp(np.abs(result - expected), 24 - np.maximum(exponents, -125))
    right = (rounded == result) | (np.isnan(rounded) & np.isnan(result))
    return np.where(np.isfinite(rounded) & np.isfinite(result), errors, np.where(right, 0.0, np.inf))


@pytest.mark.parametrize("name", EXACT)
@np.errstate(all="ignore")
def test_error_is_that_of_rounding(name, samples):
    exact, limit = EXACT[name]
    result = values(getattr(elementwise, name), samples)
    found = errors(result, exact(samples.astype(np.float64)))
    worst = int(found.argmax())
    assert found[worst] <= limit, (samples[worst], result[worst])


@pytest.mark.parametrize("name", ["exp", "sigmoid", "softplus"])
def test_subnormal_results_are_rounded(name):
    x = np.linspace(-104.5, -87.0, 50_000, dtype=np.float32)
    exact = EXACT[name][0](x.astype(np.float64))
    subnormal = exact < LEAST_NORMAL
    assert np.abs(values(getattr(elementwise, name), x) - exact)[subnormal].max() < 0.76 * 2.0**-149


@pytest.mark.parametrize("name", ["erf", "expm1", "log1p", "sin", "tanh"])
def test_zeros_and_subnormals_keep_their_sign(name):
    x = np.array([0.0, -0.0, LEAST, -LEAST, 1e-39, -1e-39], np.float32)
    result = values(getattr(elementwise, name), x)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(x))
    np.testing.assert_allclose(result, EXACT[name][0](x.astype(np.float64)), rtol=0, atol=2.0**-149)


def test_angle_near_a_multiple_of_a_quarter_of_a_turn():
    x = np.array([16367173 * 2.0**72, 16367173 * -(2.0**72)], np.float32)  # no other is as near to one
    np.testing.assert_allclose(values(elementwise.cos, x), np.cos(x.astype(np.float64)), rtol=1e-7)


def test_exponential_overflows_where_rounding_does():
    x = neighbors(88.72284, 20)
    expected = np.exp(x.astype(np.float64))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.isinf(values(elementwise.exp, x)), np.isinf(expected.astype(np.float32)))
    assert 0 < np.isinf(values(elementwise.exp, x)).sum() < len(x)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("exp", [-np.inf, np.inf, np.nan], [0.0, np.inf, np.nan]),
        ("expm1", [-np.inf, np.inf, np.nan], [-1.0, np.inf, np.nan]),
        ("log", [0.0, -0.0, -LEAST, -1.0, -np.inf, np.inf, np.nan], [-np.inf] * 2 + [np.nan] * 3 + [np.inf, np.nan]),
        ("log1p", [-1.0, -1.0000001, -np.inf, np.inf, np.nan], [-np.inf, np.nan, np.nan, np.inf, np.nan]),
        ("sigmoid", [-np.inf, np.inf, np.nan, 0.0], [0.0, 1.0, np.nan, 0.5]),
        ("softplus", [-np.inf, np.inf, np.nan, GREATEST], [0.0, np.inf, np.nan, GREATEST]),
        ("tanh", [-np.inf, np.inf, np.nan], [-1.0, 1.0, np.nan]),
        ("erf", [-np.inf, np.inf, np.nan], [-1.0, 1.0, np.nan]),
        ("sin", [-np.inf, np.inf, np.nan], [np.nan] * 3),
        ("cos", [-np.inf, np.inf, np.nan, 0.0], [np.nan, np.nan, np.nan, 1.0]),
    ],
)
def test_special_values(name, given, expected):
    result = values(getattr(elementwise, name), np.array(given, np.float32))
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


@pytest.mark.parametrize("name", [*FUNCTIONS, "expm1", "log1p"])
def test_width_changes_no_bit(name, samples):
    function, x = FUNCTIONS.get(name) or getattr(elementwise, name), samples[::37]
    expected = values(function, x)
    for width in (1, 4):
        result = values(function, x, width)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(np.signbit(result)[~np.isnan(x)], np.signbit(expected)[~np.isnan(x)])


@pytest.mark.parametrize(("name", "attributes"), [*((name, {}) for name in SIMPLE), *ATTRIBUTES])
@np.errstate(all="ignore")
def test_operators_are_those_of_numpy(name, attributes, samples):
    x = samples[
        np.isfinite(samples) | np.isnan(samples) if name in {"Gelu", "HardSwish", "Mish", "Softsign"} else slice(None)
    ]
    expected = SIMPLE[name](x.astype(np.float64), **attributes).astype(np.float32)
    result = values(FUNCTIONS[name], x, **attributes)
    np.testing.assert_allclose(result, expected, rtol=4e-7, atol=3e-7 if name.startswith(CANCELLING) else 3e-45)
    exact = name in {"Abs", "Ceil", "Floor", "Neg", "Relu", "Reciprocal", "Round", "Sign", "Sqrt"}
    assert not exact or np.array_equal(result, expected, equal_nan=True)


def test_every_function_is_tested():
    assert {name.lower() for name in FUNCTIONS} <= {*(name.lower() for name in SIMPLE), *EXACT}


def test_names_no_library():
    for function in FUNCTIONS.values():
        text = Text()
        function(text, "0.0", 16)
        declared = [line for line in text.function("run", []).splitlines() if line.startswith("declare")]
        instructions = ("fma", "fabs", "copysign", "sqrt", "floor", "ceil", "roundeven")
        assert all(line.split("@llvm.")[1].split(".")[0] in instructions for line in declared)


def test_processors_without_fma_are_not_supported():
    assert supported("+avx2,+fma,-avx512f", "x86_64")
    assert not supported("+avx2,-fma,+fma4", "AMD64")
    assert supported("", "arm64")
    assert supported("", "aarch64")
