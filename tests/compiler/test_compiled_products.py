"""Compiled products of matrices are those of float64, and touch nothing outside their arrays."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from onnxtrain_sklearn._compiler.kernels import TILES, Panel, RegisterTile, tile_of
from onnxtrain_sklearn._compiler.llvm_text import Text
from onnxtrain_sklearn._compiler.products import Matrix, add_product, scratch_elements

binding = pytest.importorskip("llvmlite.binding", reason="products are compiled by llvmlite")

GUARD = 64
ARRAYS = ("%left", "%right", "%bias", "%scratch", "%result")
WITHOUT_AVX512 = "-avx512f,-avx512vl,-avx512bw,-avx512dq,-avx512cd"
NARROW = [(200, 100, 1), (100, 200, 1), (200, 1, 100), (32, 100, 2), (33, 18, 3), (7, 16, 3), (1, 1, 1), (1, 50, 1)]
SIZES = [*NARROW, (64, 50, 10), (32, 20, 100), (1, 30, 130), (2, 300, 65), (49, 70, 97), (9, 8, 7), (17, 40, 48)]
LARGE = [(70, 700, 600), (260, 1030, 130), (300, 520, 64), (20, 600, 10), (9, 9000, 2), (5, 8192, 3), (13, 4097, 1)]
LONG = [(3, 300_000, 17), (5, 300_000, 2), (16, 300_000, 5), (1, 300_000, 1)]


def host_tile():
    return tile_of(binding.get_host_cpu_features().flatten())


@pytest.fixture(params=["host", "+avx2", "none"])
def machine(request):
    """Return a tile, and what the processor is not to use."""
    tile = {"host": host_tile(), "+avx2": TILES["+avx2"], "none": tile_of("")}[request.param]
    other = request.param != "host" and "+avx512f" in binding.get_host_cpu_features().flatten()
    return tile, WITHOUT_AVX512 if other else ""


def compiled(text, features=""):
    """Return the compiled function ``run`` of a text, and what owns it."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    every = ",".join([binding.get_host_cpu_features().flatten(), *filter(None, [features])])
    options = {"cpu": binding.get_host_cpu_name(), "features": every, "opt": 3}
    module = binding.parse_assembly(text)
    module.verify()
    target = binding.Target.from_default_triple().create_target_machine(**options)
    engine = binding.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(engine.get_function_address("run")), engine


def guarded(values):
    """Return an array with NaN around the values, and the part of the values."""
    around = np.full(2 * GUARD + values.size, np.nan, np.float32)
    around[GUARD : GUARD + values.size] = values.ravel()
    return around, around[GUARD : GUARD + values.size]


def text_of(sizes, transposed, bias, tile):
    """Return the function of a product, and how large its array for what is in between is."""
    m, k, n = sizes
    left = Matrix("%left", 1, m) if transposed[0] else Matrix("%left", k, 1)
    right = Matrix("%right", 1, k) if transposed[1] else Matrix("%right", n, 1)
    text = Text()
    add_product(text, tile, sizes, left, right, "%result", "%scratch", "%bias" if bias else None)
    return text.function("run", ARRAYS), scratch_elements(tile, sizes, left, right, bias)


def values(rng, sizes, transposed):
    m, k, n = sizes
    shapes = (k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n), (n,)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def expected(given, transposed, bias):
    """Return the product and the bound of its error, from float64."""
    exact = [one.astype(float) for one in given]
    left, right = (one.T if turn else one for one, turn in zip(exact[:2], transposed, strict=True))
    start = exact[2] * bias
    bound = (left.shape[1] + 1) * np.finfo(np.float32).eps * (abs(left) @ abs(right) + abs(start))
    return left @ right + start, bound


def check(sizes, transposed, bias, machine):
    tile, features = machine
    rng = np.random.default_rng(sum(sizes))
    given = values(rng, sizes, transposed)
    text, between = text_of(sizes, transposed, bias, tile)
    run, _engine = compiled(text, features)
    arrays = [guarded(one) for one in (*given, np.full(between, np.nan), np.full(sizes[0] * sizes[2], np.nan))]
    before = [around.copy() for around, _ in arrays]
    run(*(part.ctypes.data for _, part in arrays))
    wanted, bound = expected(given, transposed, bias)
    got = arrays[-1][1].reshape(wanted.shape)
    assert np.all(abs(got - wanted) <= bound)
    for (around, _), old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(around[:GUARD], old[:GUARD])
        np.testing.assert_array_equal(around[-GUARD:], old[-GUARD:])
    for (around, _), old in zip(arrays[:3], before, strict=False):
        np.testing.assert_array_equal(around, old)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_product_is_that_of_float64(sizes, transposed, bias, machine):
    check(sizes, transposed, bias, machine)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_a_large_product_is_that_of_float64(sizes, transposed, machine):
    check(sizes, transposed, True, machine)


@pytest.mark.long
@pytest.mark.parametrize("transposed", [(False, False), (True, False)])
@pytest.mark.parametrize("sizes", LONG, ids=str)
def test_a_long_sum_keeps_its_digits(sizes, transposed, machine):
    """Added up in order in float32, it would have an error of 1e-5 or more."""
    given = [abs(one) for one in values(np.random.default_rng(0), sizes, transposed)]
    exact, _ = expected(given, transposed, True)
    (m, _, n), (text, between) = sizes, text_of(sizes, transposed, True, machine[0])
    run, _engine = compiled(text, machine[1])
    arrays = [*given, np.zeros(between, np.float32), result := np.zeros((m, n), np.float32)]
    run(*(one.ctypes.data for one in arrays))
    np.testing.assert_allclose(result, exact, rtol=3e-6)


@pytest.mark.parametrize("seed", range(30))
def test_products_of_any_size(seed):
    rng = np.random.default_rng(seed)
    sizes = tuple(int(one) for one in rng.choice([rng.integers(1, 20, 3), rng.integers(1, 150, 3)]))
    check(sizes, rng.random(2) < 0.5, bool(rng.random() < 0.5), (host_tile(), ""))


def test_the_tile_fits_the_processor():
    assert tile_of("+sse2,+avx2,-avx512f,-avx512vl") == TILES["+avx2"]
    assert tile_of("+avx2,+avx512vl").lanes == 16
    assert tile_of("+neon") == RegisterTile(4, 16, 4, False)
    assert tile_of("-avx2").lanes == 4


def test_products_share_their_functions():
    text, right = Text(), Matrix("%bias", 64, 1)
    for left in (Matrix("%left", 20, 1), Matrix("%right", 20, 1)):
        add_product(text, TILES["+avx2"], (32, 20, 64), left, right, "%result", "%scratch")
    whole = text.function("run", ARRAYS)
    name = Panel(4, (8, 8), False).define(Text())
    assert whole.count("define internal") == 1
    assert whole.count(f"call void @{name}(") == 2
