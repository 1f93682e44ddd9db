"""L-BFGS: its minimum, its limits, its callback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize

from onnxtrain_sklearn.optimizers import LBFGS, MinimizeResult


def quadratic(curvature: np.ndarray, solution: np.ndarray) -> Any:
    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        assert x.dtype == np.float64
        gap = x - solution
        return float(gap @ (curvature * gap)) / 2, curvature * gap

    return objective


class TestLBFGS:
    curvature, solution = np.geomspace(1, 100, 20), np.linspace(-1, 1, 20)

    def minimize(self, optimizer: LBFGS | None = None, start: Any = None, **settings: Any) -> MinimizeResult:
        start = np.zeros(20) if start is None else start
        objective = settings.pop("objective", quadratic(self.curvature, self.solution))
        return (optimizer or LBFGS()).minimize(objective, start, **{"max_iter": 200, "tol": 1e-8} | settings)

    def test_finds_the_minimum(self) -> None:
        result = self.minimize()
        assert result.converged
        assert np.allclose(result.vector, self.solution, atol=1e-3)
        assert result.loss < 1e-6
        assert 0 < result.n_iter < 200

    def test_float32_start_is_neither_used_nor_changed(self) -> None:
        start = np.zeros(20, np.float32)
        assert self.minimize(start=start).vector.dtype == np.float64
        assert np.array_equal(start, np.zeros(20))

    def test_float32_objective_converges(self) -> None:
        exact = quadratic(self.curvature, self.solution)

        def rounded(x: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = exact(x)
            return float(np.float32(1 + loss)), gradient.astype(np.float32).astype(np.float64)

        result = self.minimize(objective=rounded, tol=1e-4)
        assert result.converged
        assert np.allclose(result.vector, self.solution, atol=1e-2)

    def test_tol_bounds_the_gradient(self) -> None:
        loose, tight = self.minimize(tol=1.0), self.minimize(tol=1e-2)
        for result, tol in [(loose, 1.0), (tight, 1e-2)]:
            assert "GRADIENT" in result.message
            assert np.abs(self.curvature * (result.vector - self.solution)).max() <= tol
        assert loose.n_iter < tight.n_iter

    def test_limits_end_it_unconverged(self) -> None:
        few = self.minimize(max_iter=3)
        assert (few.converged, few.n_iter) == (False, 3)
        assert "ITERATIONS" in few.message
        assert not self.minimize(LBFGS(max_fun=4)).converged

    def test_history_size_is_used(self) -> None:
        assert self.minimize(LBFGS(history_size=1)).n_iter > self.minimize(LBFGS(history_size=20)).n_iter

    def test_settings_reach_scipy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: dict[str, Any] = {}
        original = scipy.optimize.minimize
        monkeypatch.setattr(scipy.optimize, "minimize", lambda *args, **kw: seen.update(kw) or original(*args, **kw))
        self.minimize(LBFGS(history_size=3, max_line_searches=7, max_fun=99), max_iter=5, tol=0.1)
        assert seen["method"] == "L-BFGS-B"
        assert seen["options"] == {"maxcor": 3, "maxls": 7, "maxfun": 99, "maxiter": 5, "gtol": 0.1}

    def test_callback_sees_each_iteration(self) -> None:
        seen: list[tuple[np.ndarray, float]] = []
        result = self.minimize(callback=lambda vector, loss: seen.append((vector.copy(), loss)))
        assert len(seen) == result.n_iter
        assert np.array_equal(seen[-1][0], result.vector)
        assert seen[-1][1] == result.loss
        losses = [loss for _, loss in seen]
        assert losses == sorted(losses, reverse=True)
        objective = quadratic(self.curvature, self.solution)
        assert all(loss == objective(vector)[0] for vector, loss in seen)

    def test_callback_ends_lbfgs(self) -> None:
        result = self.minimize(callback=lambda vector, loss: loss < 50)
        assert (result.converged, result.loss < 50) == (False, True)
        assert result.n_iter < self.minimize().n_iter

    def test_errors_pass_through(self) -> None:
        def broken(vector: np.ndarray, loss: float) -> bool:
            raise ArithmeticError("mine")

        with pytest.raises(ArithmeticError, match="mine"):
            self.minimize(callback=broken)

    def test_nan_is_not_convergence(self) -> None:
        result = self.minimize(objective=lambda x: (np.nan, np.full_like(x, np.nan)))
        assert not result.converged
        assert np.isnan(result.loss)
