"""The gradient is clipped by its norm, whatever its numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain_sklearn.optimizers import clip_graph
from tests.helpers.sessions import run_in_place


def clip_once(gradients: np.ndarray, max_norm: float) -> tuple[np.ndarray, float]:
    dtype = gradients.dtype
    arrays = {"gradients": gradients, "max_norm": np.array(max_norm, dtype)}
    result = run_in_place(clip_graph(ir.DataType.from_numpy(dtype)), arrays)
    assert result["norm"].dtype == dtype
    return result["gradients"], float(result["norm"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
class TestClip:
    def test_long_gradients_are_scaled(self, dtype: Any) -> None:
        g = np.random.default_rng(0).normal(size=1001).astype(dtype)
        norm = np.sqrt((g.astype(np.float64) ** 2).sum())
        clipped, reported = clip_once(g, 2.0)
        assert reported == pytest.approx(norm, rel=1e-7)
        assert np.allclose(clipped, g * 2 / (norm + 1e-6), rtol=1e-6 if dtype == np.float32 else 1e-14, atol=0)
        assert np.sqrt((clipped.astype(np.float64) ** 2).sum()) == pytest.approx(2, rel=1e-6)

    def test_short_gradients_are_unchanged(self, dtype: Any) -> None:
        g = np.random.default_rng(0).normal(size=101).astype(dtype)
        clipped, norm = clip_once(g, 100.0)
        assert np.array_equal(clipped, g)
        assert norm == pytest.approx(np.linalg.norm(g.astype(np.float64)), rel=1e-7)

    def test_zeros_stay_zeros(self, dtype: Any) -> None:
        clipped, norm = clip_once(np.zeros(7, dtype), 1.0)
        assert np.array_equal(clipped, np.zeros(7))
        assert norm == 0

    def test_many_small_terms_add_up(self, dtype: Any) -> None:
        """A running float32 sum of a million equal squares is off by 1e-3."""
        assert clip_once(np.full(2_000_000, 0.1, dtype), 1.0)[1] == pytest.approx(0.1 * 2_000_000**0.5, rel=1e-6)

    @pytest.mark.parametrize("size", [1e-30, 1e25, 1e37])
    def test_extreme_gradients_neither_vanish_nor_explode(self, dtype: Any, size: float) -> None:
        clipped, norm = clip_once(np.array([3, -4], dtype) * dtype(size), 1.0)
        assert norm == pytest.approx(5 * size, rel=1e-6)
        expected = [0.6, -0.8] if size > 1 else np.array([3, -4]) * size
        assert np.allclose(clipped, expected, rtol=1e-5, atol=0)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_divergence_shows(self, dtype: Any, bad: float) -> None:
        clipped, norm = clip_once(np.array([1, bad, 2], dtype), 1.0)
        assert np.isnan(clipped).all()
        assert not np.isfinite(norm)
