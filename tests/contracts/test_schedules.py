"""What every schedule in the registry must satisfy: its formula, its bounds, no state, scikit-learn's conventions."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from sklearn.base import clone

from onnxtrain_sklearn.schedules import SCHEDULES, Linear, Progress, Schedule, Warmup, resolve_schedule

TOTAL = 400
RUN = [Progress(t, epoch=t // 10, samples=320 * (t // 10), total_steps=TOTAL, plateaus=t // 70) for t in range(500)]


def cosine(progress: Progress, final: float = 0.0, total_steps: int = TOTAL) -> float:
    t = min(progress.step, total_steps)
    return final + (1 - final) / 2 * (1 + math.cos(math.pi * t / total_steps))


def linear_schedule(progress: Progress, final: float = 0.0, total_steps: int = TOTAL) -> float:
    t = min(progress.step, total_steps)
    return (1 - t / total_steps) * 1 + t / total_steps * final


def flat_cos(progress: Progress, final: float = 0.0, total_steps: int = TOTAL, flat: float = 0.5) -> float:
    t = min(progress.step / total_steps, 1.0)
    return 1.0 if t < flat else final + (1 - final) / 2 * (1 + math.cos(math.pi * (t - flat) / (1 - flat)))


def coslog(progress: Progress, total_steps: int = TOTAL, cycles: int = 4) -> float:
    t = min(progress.step / total_steps, 1.0)
    return 0.5 * (1 - math.cos(2 * math.pi * math.log2(1 + (2**cycles - 1) * t)))


def one_cycle(
    progress: Progress,
    total_steps: int = TOTAL,
    warmup_fraction: float = 0.3,
    initial: float = 1 / 25,
    final: float = 1 / 25 / 1e4,
) -> float:
    """PyTorch's definition: cosine annealing through phases that end at pct_start * total - 1 and total - 1."""
    t, begin = min(progress.step, total_steps - 1), 0.0
    phases = [(warmup_fraction * total_steps - 1, initial, 1.0), (total_steps - 1, 1.0, final)]
    for end, low, high in phases:
        if t <= end:
            return high + (low - high) / 2 * (1 + math.cos(math.pi * (t - begin) / (end - begin)))
        begin = end
    raise AssertionError(t)


def warmup(progress: Progress, steps: int = 100, start: float = 0.0, schedule: str = "constant") -> float:
    t = progress.step
    after = asdict(progress) | {"step": max(0, t - steps), "total_steps": TOTAL - steps}
    other = REFERENCES[schedule](Progress(**after), **({"total_steps": TOTAL - steps} if schedule == "cosine" else {}))
    return other * (start + (1 - start) * t / steps if t < steps else 1)


REFERENCES: dict[str, Callable[..., float]] = {
    "constant": lambda p: 1.0,
    "invscaling": lambda p, power=0.5: (p.samples + 1) ** -power,
    "adaptive": lambda p, divisor=5.0, min_rate=0: 1 / divisor**p.plateaus,
    "step": lambda p, step_size=1000, gamma=0.1: math.prod([gamma] * (p.step // step_size)),
    "exponential": lambda p, gamma=0.999: math.exp(p.step * math.log(gamma)),
    "cosine": cosine,
    "linear": linear_schedule,
    "flat_cos": flat_cos,
    "coslog4": coslog,
    "one_cycle": one_cycle,
    "warmup": warmup,
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "invscaling": [{}, {"power": 0.25}, {"power": 0}],
    "adaptive": [{}, {"divisor": 2, "min_rate": 1e-3}],
    "step": [{}, {"step_size": 7, "gamma": 0.5}, {"gamma": 1}],
    "exponential": [{}, {"gamma": 0.9}],
    "cosine": [{}, {"final": 0.1}, {"total_steps": 123, "final": 2.0}],
    "linear": [{}, {"final": 0.1}, {"total_steps": 123, "final": 2.0}],
    "flat_cos": [{}, {"final": 0.1, "flat": 0.25}, {"total_steps": 123, "final": 2.0, "flat": 0.0}],
    "coslog4": [{}, {"cycles": 2}, {"total_steps": 123, "cycles": 5}],
    "one_cycle": [{}, {"warmup_fraction": 0.123, "initial": 0.5, "final": 0.01}, {"total_steps": 250}],
    "warmup": [{}, {"steps": 7, "start": 0.5}, {"schedule": "invscaling", "steps": 33}, {"schedule": "cosine"}],
}
EXACT = {"rel_tol": 1e-12, "abs_tol": 1e-15}


def every_schedule() -> list[Any]:
    return [pytest.param(n, s, id=f"{n}-{s}") for n in SCHEDULES for s in SETTINGS.get(n, [{}])]


def test_every_entry_has_a_reference() -> None:
    assert set(REFERENCES) == set(SCHEDULES)


@pytest.mark.parametrize(("name", "settings"), every_schedule())
@pytest.mark.each(by=lambda name, settings: (name, repr(settings)))
def test_equals_the_formula(name: str, settings: dict[str, Any]) -> None:
    schedule = SCHEDULES[name](**settings)
    for progress in RUN:
        expected = REFERENCES[name](progress, **settings)
        assert math.isclose(schedule.factor(progress), expected, **EXACT), progress


@pytest.mark.parametrize(("name", "settings"), every_schedule())
def test_factors_are_finite_and_not_negative(name: str, settings: dict[str, Any]) -> None:
    schedule = SCHEDULES[name](**settings)
    for progress in [*RUN, Progress(10**7, 10**5, 10**10, 10**7, 50), Progress(10**9, 10**6, 10**12, 1, 500)]:
        factor = schedule.factor(progress)
        assert isinstance(factor, (int, float))
        assert 0 <= factor < math.inf


@pytest.mark.parametrize(("name", "settings"), every_schedule())
def test_keeps_no_state_and_leaves_progress_alone(name: str, settings: dict[str, Any]) -> None:
    schedule = SCHEDULES[name](**settings)
    forwards = [schedule.factor(p) for p in RUN]
    before = [asdict(p) for p in RUN]
    assert [schedule.factor(p) for p in reversed(RUN)][::-1] == forwards
    assert [pickle.loads(pickle.dumps(schedule)).factor(p) for p in RUN[::50]] == forwards[::50]
    assert [schedule.stops_at_plateau(p, 0.1) in (True, False) for p in RUN] == [True] * len(RUN)
    assert [asdict(p) for p in RUN] == before
    assert vars(schedule) == SCHEDULES[name](**settings).get_params(deep=False)


@pytest.mark.parametrize(("name", "settings"), every_schedule())
def test_obeys_the_conventions_of_scikit_learn(name: str, settings: dict[str, Any]) -> None:
    kind = SCHEDULES[name]
    schedule = kind(**settings)
    copy = clone(schedule)
    assert copy is not schedule
    assert copy.get_params() == pickle.loads(pickle.dumps(schedule)).get_params() == schedule.get_params()
    assert eval(repr(schedule), {kind.__name__: kind}).get_params() == schedule.get_params()
    assert kind().set_params(**schedule.get_params()).get_params() == schedule.get_params()
    assert resolve_schedule(schedule) is schedule
    assert type(resolve_schedule(name)) is kind


@pytest.mark.parametrize("name", [n for n in SCHEDULES if n != "warmup"])
def test_warm_up_leads_into_every_schedule(name: str) -> None:
    """No jump where the warm-up ends, and from there on the values of the other schedule."""
    steps, other = 50, SCHEDULES[name]()
    for schedule in (Warmup(steps, name), Warmup(steps, other)):
        for progress in RUN:
            later = asdict(progress) | {"step": max(progress.step - steps, 0), "total_steps": TOTAL - steps}
            ramp = min(progress.step / steps, 1)
            assert math.isclose(schedule.factor(progress), ramp * other.factor(Progress(**later)), **EXACT)
        assert schedule.factor(RUN[0]) == 0


@pytest.mark.parametrize(
    ("name", "parameter"), [(n, p) for n, kind in SCHEDULES.items() for p in kind().get_params(deep=False)]
)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), [0.5]])
def test_rejects_values_out_of_range(name: str, parameter: str, value: Any) -> None:
    schedule = SCHEDULES[name](**{parameter: value})
    if isinstance(SCHEDULES[name]().get_params(deep=False)[parameter], str):
        with pytest.raises(TypeError, match="must be a name or a Schedule object"):
            resolve_schedule(schedule)
    else:
        with pytest.raises(ValueError, match=rf"'{parameter}' parameter of {type(schedule).__name__} must be .* Got "):
            resolve_schedule(schedule)


@pytest.mark.parametrize("name", ["cosine", "linear", "one_cycle", "flat_cos", "coslog4"])
def test_unknown_length_asks_for_total_steps(name: str) -> None:
    unknown = Progress(step=3)
    for schedule in (SCHEDULES[name](), Warmup(2, name)):
        with pytest.raises(ValueError, match=r"\(\) does not know how many steps .*: give total_steps"):
            schedule.factor(unknown)
    assert 0 < SCHEDULES[name](total_steps=10).factor(unknown) <= 1
    assert 0 < Warmup(2, SCHEDULES[name](total_steps=10)).factor(unknown) <= 1


def test_a_run_shorter_than_the_warm_up_still_moves() -> None:
    short = Warmup(steps=100, schedule=Linear())
    assert [short.factor(Progress(step=t, total_steps=10)) for t in (0, 5, 9)] == pytest.approx([0, 0.05, 0.09])


def test_registry_holds_schedules() -> None:
    assert all(issubclass(kind, Schedule) for kind in SCHEDULES.values())
