"""Schedules beyond the contract: values known from elsewhere, ends, plateaus, warm-up, resolution."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer

from onnxtrain_sklearn import schedules
from onnxtrain_sklearn.schedules import (
    SCHEDULES,
    Adaptive,
    Constant,
    Cosine,
    Exponential,
    InverseScaling,
    Linear,
    OneCycle,
    Progress,
    Schedule,
    StepDecay,
    Warmup,
    resolve_schedule,
)


def factors(schedule: Schedule, steps: int, total: int | None = None) -> list[float]:
    return [schedule.factor(Progress(step=t, total_steps=total)) for t in range(steps)]


def test_public_names_exist() -> None:
    names = {kind.__name__ for kind in SCHEDULES.values()}
    assert all(hasattr(schedules, name) for name in {"Progress", "Schedule", "resolve_schedule", *names})


class TestAgainstScikitLearn:
    def test_inverse_scaling(self) -> None:
        peer = SGDOptimizer([], 0.3, "invscaling", power_t=0.4)
        schedule, progress = InverseScaling(power=0.4), Progress()
        assert 0.3 * schedule.factor(progress) == peer.learning_rate
        for _ in range(20):
            progress.samples += 137
            peer.iteration_ends(progress.samples)
            assert 0.3 * schedule.factor(progress) == pytest.approx(peer.learning_rate, rel=1e-14)

    @pytest.mark.parametrize("rate", [1.0, 0.3, 0.05, 0.001, 2e-5, 4.9e-6, 1e-6, 1e-7])
    def test_adaptive_rates_and_end(self, rate: float) -> None:
        peer, schedule, progress = SGDOptimizer([], rate, "adaptive"), Adaptive(), Progress()
        for _ in range(30):
            assert rate * schedule.factor(progress) == pytest.approx(peer.learning_rate, rel=1e-12)
            progress.plateaus += 1
            ends = peer.trigger_stopping("", False)
            assert schedule.stops_at_plateau(progress, rate) is ends
            if ends:
                break
        else:
            raise AssertionError("scikit-learn went on")

    def test_the_others_end_at_the_first_plateau(self) -> None:
        for name, kind in SCHEDULES.items():
            assert kind().stops_at_plateau(Progress(plateaus=1), 0.1) is (name != "adaptive")
        assert SGDOptimizer([], 0.1, "constant").trigger_stopping("", False)


class TestAdaptive:
    def test_ends_by_the_rate_that_led_to_the_plateau(self) -> None:
        schedule = Adaptive(divisor=10, min_rate=0.01)
        ends = [schedule.stops_at_plateau(Progress(plateaus=k), 0.5) for k in (1, 2, 3)]
        assert ends == [False, False, True]

    def test_min_rate_of_zero_goes_on(self) -> None:
        schedule = Adaptive(min_rate=0)
        assert not any(schedule.stops_at_plateau(Progress(plateaus=k), 0.1) for k in range(1, 400))
        assert schedule.stops_at_plateau(Progress(plateaus=2000), 0.1)


class TestShapes:
    @pytest.mark.parametrize(
        "schedule", [Cosine(), Cosine(final=0.3), Linear(), Linear(final=0.3), Exponential(0.9), StepDecay(10, 0.5)]
    )
    def test_fall_from_one(self, schedule: Schedule) -> None:
        values = factors(schedule, 100, total=80)
        assert values[0] == 1
        assert all(later <= earlier for earlier, later in pairwise(values))
        assert values[-1] < 0.5

    def test_step_decay_falls_at_multiples_only(self) -> None:
        values = factors(StepDecay(step_size=3, gamma=0.5), 8)
        assert values == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]

    def test_known_points(self) -> None:
        assert Cosine(100).factor(Progress(step=50)) == pytest.approx(0.5)
        assert Cosine(100, final=0.5).factor(Progress(step=25)) == pytest.approx(0.5 + 0.25 * (1 + math.sqrt(0.5)))
        assert Linear(100, final=0.5).factor(Progress(step=50)) == 0.75
        assert Exponential().factor(Progress(step=693)) == pytest.approx(0.5, abs=1e-3)
        assert InverseScaling().factor(Progress(samples=1000)) == pytest.approx(0.0316, abs=1e-4)

    @pytest.mark.parametrize("schedule", [Cosine(20, 0.25), Linear(20, 0.25), OneCycle(20, final=0.25)])
    def test_stay_at_the_final_value(self, schedule: Schedule) -> None:
        values = factors(schedule, 60)
        assert values[20:] == [0.25] * 40
        assert values[18] != 0.25

    @pytest.mark.parametrize("kind", [Cosine, Linear, OneCycle])
    def test_own_total_wins(self, kind: type[Schedule]) -> None:
        assert factors(kind(total_steps=30), 50, total=40) == factors(kind(), 50, total=30)
        assert factors(kind(total_steps=30), 50) != factors(kind(), 50, total=40)

    @pytest.mark.parametrize("kind", [Cosine, Linear, OneCycle])
    @pytest.mark.parametrize("total", [1, 2, 3])
    def test_tiny_runs(self, kind: type[Schedule], total: int) -> None:
        assert all(0 <= f <= 1 for f in factors(kind(), 5, total=total))


class TestOneCycle:
    def test_rises_then_falls(self) -> None:
        values = factors(OneCycle(), 100, total=100)
        top = 29
        assert values[0] == pytest.approx(1 / 25)
        assert values[top] == pytest.approx(1)
        assert values[-1] == pytest.approx(1 / 25 / 1e4)
        assert values[: top + 1] == sorted(values[: top + 1])
        assert values[top:] == sorted(values[top:], reverse=True)

    def test_without_a_rise(self) -> None:
        values = factors(OneCycle(warmup_fraction=0.0), 10, total=10)
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx((1 + math.cos(math.pi / 10)) / 2, rel=1e-4)

    def test_equals_pytorch(self) -> None:
        torch = pytest.importorskip("torch")
        for total, fraction in [(100, 0.3), (37, 0.25), (10, 0.05), (2, 0.3)]:
            optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
            peer = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=1.0, total_steps=total, pct_start=fraction, cycle_momentum=False
            )
            for value in factors(OneCycle(warmup_fraction=fraction), total, total=total):
                assert value == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
                optimizer.step()
                if peer.last_epoch < total - 1:
                    peer.step()


def test_cosine_equals_pytorch() -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    peer = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.2)
    for value in factors(Cosine(50, final=0.2), 51):
        assert value == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        peer.step()


class ScheduleRecorder(Schedule):
    """Notes what it is shown."""

    def __init__(self, log: Any = None) -> None:
        self.log = log

    def factor(self, progress: Progress) -> float:
        self.log.append(progress)
        return 0.5

    def stops_at_plateau(self, progress: Progress, learning_rate_init: float) -> bool:
        self.log.append((progress, learning_rate_init))
        return False


class TestWarmup:
    def test_rises_linearly_then_hands_over(self) -> None:
        values = factors(Warmup(steps=4, start=0.2), 7)
        assert values == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1])

    def test_rises_to_where_the_other_begins(self) -> None:
        one_cycle = OneCycle(initial=0.5)
        values = factors(Warmup(steps=10, schedule=one_cycle), 12, total=110)
        assert values[:6] == pytest.approx([0.05 * t for t in range(6)])
        assert values[10:] == factors(one_cycle, 2, total=100)

    def test_the_other_counts_from_the_end_of_the_warm_up(self) -> None:
        log: list[Any] = []
        schedule = Warmup(steps=10, schedule=ScheduleRecorder(log))
        given = Progress(step=25, epoch=3, samples=99, total_steps=50, plateaus=2)
        assert schedule.factor(given) == 0.5
        assert log.pop() == replace(given, step=15, total_steps=40)
        schedule.factor(replace(given, total_steps=None))
        assert log.pop() == replace(given, step=15, total_steps=None)
        assert not schedule.stops_at_plateau(given, 0.1)
        assert log.pop() == (replace(given, step=15, total_steps=40), 0.1)

    def test_nothing_else_in_progress_is_lost(self) -> None:
        log: list[Any] = []
        marked = Progress(**{f.name: i + 1000 for i, f in enumerate(fields(Progress))})
        Warmup(steps=10, schedule=ScheduleRecorder(log)).factor(marked)
        changed = {f.name for f in fields(Progress) if getattr(log[0], f.name) != getattr(marked, f.name)}
        assert changed == {"step", "total_steps"}

    def test_plateaus_are_the_other_schedule_s(self) -> None:
        assert not Warmup(schedule="adaptive").stops_at_plateau(Progress(plateaus=1), 0.1)
        assert Warmup(schedule="cosine").stops_at_plateau(Progress(plateaus=1), 0.1)

    def test_parameters_of_the_other_are_tunable(self) -> None:
        schedule = Warmup(schedule=Cosine()).set_params(schedule__final=0.5, steps=3)
        assert schedule.get_params()["schedule__final"] == 0.5
        assert factors(schedule, 30, total=13)[-1] == 0.5
        copy = clone(schedule)
        assert copy.schedule is not schedule.schedule
        assert copy.get_params()["schedule__final"] == 0.5

    def test_nests(self) -> None:
        schedule = resolve_schedule(Warmup(steps=2, schedule=Warmup(steps=2, schedule=Constant(), start=0.5)))
        assert factors(schedule, 6) == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])

    def test_validates_the_other(self) -> None:
        with pytest.raises(ValueError, match=r"'gamma' parameter of Exponential .* Got 1.5"):
            resolve_schedule(Warmup(schedule=Exponential(gamma=1.5)))
        with pytest.raises(ValueError, match=r"Unknown learning_rate 'cosin'. Did you mean 'cosine'"):
            resolve_schedule(Warmup(schedule="cosin"))


class TestResolveSchedule:
    @pytest.mark.parametrize(
        ("thing", "got"),
        [
            (None, "NoneType"),
            (0.1, "float"),
            (Cosine, "the class Cosine; give an instance"),
            (lambda progress: 1.0, "function"),
        ],
    )
    def test_other_things_raise(self, thing: Any, got: str) -> None:
        with pytest.raises(TypeError, match=f"must be a name or a Schedule object, got {got}"):
            resolve_schedule(thing)

    def test_misspelt_name_gets_the_nearest(self) -> None:
        with pytest.raises(ValueError, match=r"'one_cicle'. Did you mean 'one_cycle'.*Valid names: 'adaptive'"):
            resolve_schedule("one_cicle")

    @pytest.mark.parametrize(
        ("schedule", "message"),
        [
            (Adaptive(divisor=1.0), r"'divisor' parameter of Adaptive must be a float .* \(1.0, inf\). Got 1.0"),
            (StepDecay(step_size=0), r"'step_size' parameter of StepDecay must be an int .* \[1, inf\). Got 0"),
            (StepDecay(gamma=0), r"'gamma' parameter of StepDecay .* \(0.0, 1.0\]. Got 0 "),
            (Exponential(gamma=1.001), r"'gamma' parameter of Exponential .* Got 1.001"),
            (Cosine(total_steps=0), r"'total_steps' parameter of Cosine must be .*\[1, inf\) or None. Got 0"),
            (OneCycle(warmup_fraction=1.0), r"'warmup_fraction' parameter of OneCycle .* \[0.0, 1.0\). Got 1.0"),
            (Warmup(start=1.1), r"'start' parameter of Warmup .* \[0.0, 1.0\]. Got 1.1"),
        ],
    )
    def test_values_out_of_range_raise(self, schedule: Schedule, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            resolve_schedule(schedule)

    def test_numpy_scalars_are_valid(self) -> None:
        schedule = resolve_schedule(Cosine(total_steps=np.int64(10), final=np.float32(0.5)))  # type: ignore[arg-type]
        assert schedule.factor(Progress(step=10)) == 0.5

    def test_user_schedules_are_used_unchanged(self) -> None:
        mine = ScheduleRecorder([])
        assert resolve_schedule(mine) is mine
        assert mine.factor(Progress()) == 0.5


@pytest.mark.parametrize("schedule", [Cosine(), Linear(), OneCycle(), Warmup(5, Cosine())], ids=repr)
def test_plans_are_finished_at_their_last_step(schedule):
    assert not schedule.finished(Progress(step=19, total_steps=20))
    assert schedule.finished(Progress(step=20, total_steps=20))


def test_other_schedules_are_never_finished():
    assert not any(make().finished(Progress(step=10**9)) for make in (Constant, Exponential, InverseScaling, StepDecay))
