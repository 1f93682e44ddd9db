"""What every optimizer in the registry must satisfy, by each executor: its definition, in place, whole and in pieces.

An executor runs the update as training does, over the vectors of parameters and gradients: NumPy, machine code, a
session of onnxruntime, a session with fused kernels, and the graph that is exported. Each is held to the references of
:mod:`tests.helpers.optimizers`, in float64 NumPy; NumPy and machine code to the same bits.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from sklearn.base import clone

from onnxtrain_sklearn._export.step_graph import StepScalars, emit_update
from onnxtrain_sklearn._ir.edits import append_output
from onnxtrain_sklearn._ort import devices, gradient_builder, llvm
from onnxtrain_sklearn._training import update_executors
from onnxtrain_sklearn._training.parameters import FlatParameters, state_slots
from onnxtrain_sklearn._training.step_parts import OptimizerState, Rates, Scheduled
from onnxtrain_sklearn._training.updates import HostUpdates, VectorBindings
from onnxtrain_sklearn.graph import new_graph
from onnxtrain_sklearn.optimizers import LBFGS, OPTIMIZERS, Optimizer, resolve_optimizer
from tests.helpers.optimizers import ROSENBROCK, RULES, SETTINGS, trained_by
from tests.helpers.sessions import session as open_session
from tests.helpers.tuning import tune

SHAPES = {"wide": (5, 9), "tall": (8, 3), "stack": (2, 3, 4), "row": (1, 6), "long": (700,), "number": ()}
STEPS = 50
TYPES = {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}

MINIBATCH = sorted(name for name, kind in OPTIMIZERS.items() if issubclass(kind, Optimizer))
EXECUTORS = ("numpy", "machine code", "session", "fused", "exported")

WAYS = {"numpy": "NumpyUpdate", "machine code": "CompiledUpdate", "session": "Binding", "fused": "Binding"}
"""The classes of the updates that an executor makes."""

Arrays = dict[str, np.ndarray]
Steps = Sequence[tuple[float, Arrays]]


def problem(dtype: str, steps: int = STEPS, seed: int = 0) -> tuple[Arrays, Steps]:
    """Weights and (learning rate, gradients) of some steps; the scale of the gradients spans decades."""
    rng = np.random.default_rng(seed)

    def drawn(draw: Callable[[tuple[int, ...]], Any]) -> Arrays:
        return {name: np.asarray(draw(shape)) for name, shape in SHAPES.items()}

    start = drawn(lambda shape: (0.1 * rng.normal(size=shape)).astype(dtype))
    scale = drawn(lambda shape: np.exp(2 * rng.normal(size=shape)))
    gradients = [drawn(lambda shape: 0.3 + rng.normal(size=shape)) for _ in range(steps)]
    scaled = [{name: (g[name] * scale[name]).astype(dtype) for name in SHAPES} for g in gradients]
    return start, [(0.01 * (1 + i % 3), g) for i, g in enumerate(scaled)]


class Run:
    """Parameters, gradients and state, with the update bound over them by an executor."""

    def __init__(
        self, executor: str, optimizer: Any, start: Arrays, monkeypatch: Any, state: OptimizerState | None = None
    ) -> None:
        dtype = next(iter(start.values())).dtype
        self.parameters = FlatParameters(start, dtype)
        self.state = state or OptimizerState()
        self.state.prepare(state_slots(optimizer, self.parameters), dtype)
        self.kind = ir.DataType.from_numpy(dtype)
        settings: Any = SimpleNamespace(
            optimizer=optimizer, factors={}, scheduled=Scheduled(), device=devices.resolve_device(),
            session_options=None,
        )  # fmt: skip
        monkeypatch.setattr(gradient_builder, "has_gradient_builder", lambda: executor == "fused")
        tune(monkeypatch, least_elements=0)
        monkeypatch.setattr(update_executors.SAVINGS, "suffice", executor == "machine code")
        if executor == "exported":
            self.run = self.exported(settings)
            return
        segments = VectorBindings(settings, self.parameters, np.asarray).segment_updates(optimizer)
        if executor == "session":
            segments = [replace(one, program=replace(one.program, formula=None)) for one in segments]
        slots = self.state.slots
        self.updates = HostUpdates(segments, self.parameters, slots, {}, lazy=False, penalized=False)
        ways = {type(one).__name__ for group in self.updates.groups for one in group.updates}
        if executor in WAYS and optimizer.elementwise:  # not another one in its place
            assert ways == ({WAYS[executor]} if segments[0].program.formula is not None else {"Binding"})
        self.run = lambda rate, t: self.updates.run(Rates(rate), t)

    def exported(self, settings: Any) -> Callable[[float, int], None]:
        """Return the step of the graph that ``export_training`` writes, run on copies."""
        vectors = {"parameters": self.parameters.vector, **self.state.slots}
        shapes = {"gradients": self.parameters.gradient.shape} | {n: v.shape for n, v in vectors.items()}
        inputs = {name: ir.val(name, self.kind, shape) for name, shape in shapes.items()}
        rate, t = (ir.val(name, ir.DataType.DOUBLE, ()) for name in ("rate", "t"))
        op = new_graph([*inputs.values(), rate, t], self.kind, "step")
        old = {name: inputs[name] for name in vectors}
        scalars = StepScalars(rate, t, ir.DataType.DOUBLE)
        new = emit_update(op, settings, self.parameters, old, inputs["gradients"], scalars, {})
        for name, value in new.items():
            append_output(op.graph, op.Identity(value), f"new_{name}", old[name])
        session = open_session(ir.to_proto(ir.Model(op.graph, ir_version=8)))

        def run(rate: float, t: int) -> None:
            feeds = {**vectors, "gradients": self.parameters.gradient, "rate": np.array(rate), "t": np.array(float(t))}
            found = session.run([f"new_{name}" for name in vectors], feeds)
            for vector, value in zip(vectors.values(), found, strict=True):
                vector[...] = value

        return run

    def step(self, rate: float, gradients: Mapping[str, np.ndarray]) -> None:
        for name, g in gradients.items():
            self.parameters.gradient_view(name)[...] = g
        self.state.t += 1
        with np.errstate(all="ignore"):
            self.run(rate, self.state.t)

    def steps(self, steps: Steps) -> Arrays:
        for rate, gradients in steps:
            self.step(rate, gradients)
        return self.parameters.weights()


def expected(name: str, start: Arrays, steps: Steps, settings: Mapping[str, Any]) -> Arrays:
    if name == "adafactor" and settings.get("epsilon_1") is None:
        settings = {**settings, "precision": np.finfo(start["wide"].dtype).eps}
    return {n: trained_by(name, p, [(rate, g[n]) for rate, g in steps], **settings) for n, p in start.items()}


def error(got: Arrays, right: Arrays, start: Arrays) -> float:
    """Return the largest error of an element, relative to the largest move of one in its array, or to 0.01."""
    moves = {n: max(0.01, np.abs(right[n] - start[n]).max()) for n in start}
    return max(float(np.abs(got[n] - right[n]).max() / moves[n]) for n in start)


@cache
def has_fused_kernels() -> bool:
    return gradient_builder.has_gradient_builder()


def is_run_by(executor: str, optimizer: Any, dtype: str) -> bool:
    if executor == "machine code":
        return llvm.is_installed() and optimizer.elementwise
    if executor == "fused":
        return has_fused_kernels() and dtype == "float32" and optimizer.fused() is not None
    return executor != "numpy" or optimizer.elementwise


def matrix(executors: Sequence[str] = EXECUTORS) -> list[Any]:
    """Return every minibatch optimizer with all its settings, in both types, by each executor that runs it."""
    cases = [
        (executor, name, settings, dtype)
        for name in MINIBATCH
        for settings in SETTINGS.get(name, [])  # test_every_entry_has_a_reference_and_settings names a missing one
        for dtype in TYPES
        for executor in executors
        if is_run_by(executor, OPTIMIZERS[name](**settings), dtype)
    ]
    return [pytest.param(*case, id="-".join(map(str, case))) for case in cases]


def once(executor, name, settings, dtype, piece=None) -> list[Any]:
    """Return what a case covers: all settings by each executor, and the types and pieces of each optimizer."""
    return [(executor, name, repr(settings)), (executor, name, dtype), (executor, name, piece)]


def settings_or_executor(executor, name, settings, dtype, piece) -> tuple[str, str]:
    """Return all settings once, and those by default by each executor."""
    return name, repr(settings) if settings else executor


by_executor = pytest.mark.thinned(by=lambda executor, name, settings, dtype: [(executor, name)])


def test_every_entry_has_a_reference_and_settings() -> None:
    assert set(RULES) == set(MINIBATCH) == set(SETTINGS)
    assert set(OPTIMIZERS) - set(MINIBATCH) == {"lbfgs"}


@pytest.mark.parametrize(("executor", "name", "settings", "dtype"), matrix())
@pytest.mark.parametrize("piece", [None, 64], ids=["whole", "pieces"])
@pytest.mark.thinned(by=once)
@pytest.mark.each(by=settings_or_executor)
def test_equals_the_reference(executor, name, settings, dtype, piece, monkeypatch) -> None:
    if piece is not None:
        tune(monkeypatch, piece=piece, block=piece)
    start, steps = problem(dtype)
    run = Run(executor, OPTIMIZERS[name](**settings), start, monkeypatch)
    for number, (rate, gradients) in enumerate(steps, start=1):
        run.step(rate, gradients)
        if number in (1, STEPS):
            right = expected(name, start, steps[:number], settings)
            assert error(run.parameters.weights(), right, start) <= TOLERANCE[dtype]
    for one, g in steps[-1][1].items():
        assert np.array_equal(run.parameters.gradient_view(one), g)


@pytest.mark.skipif(not llvm.is_installed(), reason="machine code needs llvmlite")
@pytest.mark.parametrize(("executor", "name", "settings", "dtype"), matrix(["machine code"]))
@by_executor
def test_machine_code_gives_the_bits_of_numpy(executor, name, settings, dtype, monkeypatch) -> None:
    start, steps = problem(dtype)
    steps = [
        (rate, {n: np.where(np.abs(g) < 0.1, 1e-30, g).astype(dtype) for n, g in all_.items()}) for rate, all_ in steps
    ]
    found = [Run(one, OPTIMIZERS[name](**settings), start, monkeypatch) for one in ("numpy", executor)]
    for run in found:
        run.steps(steps)
    for vector, other in zip(*([r.parameters.vector, *r.state.slots.values()] for r in found), strict=True):
        assert vector.tobytes() == other.tobytes()


@pytest.mark.parametrize(("executor", "name", "settings", "dtype"), matrix(["numpy", "session"]))
@by_executor
def test_each_setting_matters(executor, name, settings, dtype, monkeypatch) -> None:
    """A reference with one parameter back at its default is far off: none is ignored."""
    start, steps = problem(dtype, steps=10)
    right = expected(name, start, steps, settings)
    for parameter, value in settings.items():
        if parameter == "momentum" and settings.get("nesterov"):
            continue
        others = {k: v for k, v in settings.items() if k != parameter}
        assert value == clone(OPTIMIZERS[name](**settings)).get_params()[parameter]
        assert error(expected(name, start, steps, others), right, start) > 100 * TOLERANCE["float32"]


@pytest.mark.parametrize(("executor", "name", "settings", "dtype"), matrix())
@by_executor
def test_continues_where_it_stopped(executor, name, settings, dtype, monkeypatch) -> None:
    start, steps = problem(dtype, steps=12)
    optimizer = OPTIMIZERS[name](**settings)
    straight = Run(executor, optimizer, start, monkeypatch).steps(steps)
    before = Run(executor, optimizer, start, monkeypatch)
    reached = before.steps(steps[:6])
    again, state = pickle.loads(pickle.dumps((optimizer, before.state)))
    after = Run(executor, again, reached, monkeypatch, state).steps(steps[6:])
    for n, array in straight.items():
        assert np.array_equal(after[n], array)


@pytest.mark.parametrize(("executor", "name", "settings", "dtype"), matrix())
@by_executor
def test_states_travel_between_executors(executor, name, settings, dtype, monkeypatch) -> None:
    start, steps = problem(dtype, steps=12)
    optimizer = OPTIMIZERS[name](**settings)
    for first, second in ((executor, "session"), ("session", executor)):
        before = Run(first, optimizer, start, monkeypatch)
        reached = before.steps(steps[:6])
        after = Run(second, optimizer, reached, monkeypatch, before.state).steps(steps[6:])
        assert error(after, expected(name, start, steps, settings), start) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("executor", "name", "settings", "dtype"), matrix(["session", "fused", "exported"]))
@by_executor
def test_numpy_scalars_equal_floats(executor, name, settings, dtype, monkeypatch) -> None:
    """Samplers of hyper-parameters give numpy scalars, of any type."""
    start, steps = problem(dtype, steps=3)
    right = Run(executor, OPTIMIZERS[name](**settings), start, monkeypatch).steps(steps)
    sampled = {k: np.float64(v) if isinstance(v, float) else v for k, v in settings.items()}
    optimizer = resolve_optimizer(OPTIMIZERS[name](**sampled))
    found = Run(executor, optimizer, start, monkeypatch).steps([(np.float64(rate), g) for rate, g in steps])
    for n, array in right.items():
        assert np.array_equal(found[n], array)


@pytest.mark.parametrize(("executor", "name", "settings", "dtype"), matrix())
@by_executor
def test_stays_finite_without_a_gradient(executor, name, settings, dtype, monkeypatch) -> None:
    start, steps = problem(dtype, steps=3)
    still = [(rate, {n: np.zeros_like(array) for n, array in g.items()}) for rate, g in steps]
    reached = Run(executor, OPTIMIZERS[name](**settings), start, monkeypatch).steps(still)
    for n, array in reached.items():
        assert np.isfinite(array).all()
        if not OPTIMIZERS[name](**settings).weight_decay:
            assert np.array_equal(array, start[n])


def rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    a, b = float(x[0]), float(x[1])
    slope = np.array([2 * (a - 1) - 400 * a * (b - a * a), 200 * (b - a * a)])
    return (1 - a) ** 2 + 100 * (b - a * a) ** 2, slope


@pytest.mark.parametrize("name", MINIBATCH)
def test_minimizes_rosenbrock(name: str, monkeypatch) -> None:
    settings, rate, steps = ROSENBROCK.get(name, ({}, 0.002, 5000))
    executor = "numpy" if is_run_by("numpy", OPTIMIZERS[name](), "float32") else "session"
    run = Run(executor, OPTIMIZERS[name](**settings), {"x": np.array([-1.2, 1.0], np.float32)}, monkeypatch)
    x = run.parameters.view("x")
    for _ in range(steps):
        run.step(rate, {"x": rosenbrock(x)[1]})
    assert np.abs(x - 1).max() < 0.1


@pytest.mark.parametrize("name", MINIBATCH)
def test_minimizes_the_distance_of_a_matrix(name: str, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    start, goal = (rng.normal(size=(6, 4)).astype(np.float32) for _ in range(2))
    run = Run("session", OPTIMIZERS[name](weight_decay=0.0), {"w": start}, monkeypatch)
    first, rate = np.linalg.norm(start - goal), 0.5 if name == "adagrad" else 0.1
    for t in range(300):
        run.step(rate * (1 - t / 300), {"w": run.parameters.view("w") - goal})
    assert np.linalg.norm(run.parameters.view("w") - goal) < 0.1 * first


def test_lbfgs_minimizes_rosenbrock() -> None:
    result = LBFGS().minimize(rosenbrock, np.array([-1.2, 1.0]), max_iter=200, tol=1e-8)
    assert result.converged
    assert np.abs(result.vector - 1).max() < 1e-5


def every_optimizer() -> list[Any]:
    return [
        pytest.param(OPTIMIZERS[name](**settings), id=f"{name}-{settings}")
        for name in OPTIMIZERS
        for settings in SETTINGS.get(name, [{}])
    ]


@pytest.mark.parametrize("optimizer", every_optimizer())
def test_obeys_the_conventions_of_scikit_learn(optimizer: Any) -> None:
    copy, kind = clone(optimizer), type(optimizer)
    assert copy is not optimizer
    assert copy.get_params() == pickle.loads(pickle.dumps(optimizer)).get_params() == optimizer.get_params()
    assert eval(repr(optimizer), {kind.__name__: kind}).get_params() == optimizer.get_params()
    assert kind().set_params(**optimizer.get_params()).get_params() == optimizer.get_params()
    assert resolve_optimizer(optimizer) is optimizer
    assert vars(optimizer) == optimizer.get_params()


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, p) for name, kind in OPTIMIZERS.items() for p in kind().get_params()]
)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "0.5"])
def test_rejects_values_out_of_range(name: str, parameter: str, value: object) -> None:
    optimizer = OPTIMIZERS[name](**{parameter: value})
    message = rf"'{parameter}' parameter of {type(optimizer).__name__}.* must be .*{value!r}"
    error: type[Exception] = ValueError
    if parameter == "weight_decay_schedule":
        message = "Unknown weight_decay_schedule '0.5'|weight_decay_schedule must be a name or a Schedule object"
        error = ValueError if isinstance(value, str) else TypeError
    with pytest.raises(error, match=message):
        resolve_optimizer(optimizer)


IN_PYTORCH = {
    "adafactor": "Adafactor",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamw": "AdamW",
    "muon": "Muon",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
}


@pytest.mark.parametrize("name", IN_PYTORCH)
def test_reference_equals_pytorch(name: str) -> None:
    optim = pytest.importorskip("torch.optim")
    torch = pytest.importorskip("torch")
    if not hasattr(optim, IN_PYTORCH[name]):
        pytest.skip(f"this release of PyTorch has no {name}")
    start, steps = problem("float64")
    for settings in SETTINGS[name]:
        kwargs = {k: v for k, v in settings.items() if not k.startswith(("beta_", "epsilon"))}
        if "epsilon" in settings:
            kwargs["eps"] = settings["epsilon"]
        if name.startswith("adam"):
            kwargs["betas"] = (settings.get("beta_1", 0.9), settings.get("beta_2", 0.999))
        if name == "muon":
            kwargs = {"ns_steps" if k == "steps" else k: v for k, v in kwargs.items() if k != "scale"}
            kwargs["adjust_lr_fn"] = settings.get("scale", "match_rms_adamw")
        if name == "adafactor":
            kwargs = {{"clip_threshold": "d"}.get(k, k): v for k, v in kwargs.items() if k != "decay_rate"}
            kwargs |= {"beta2_decay": -settings.get("decay_rate", 0.8)}
            kwargs |= {"eps": (settings.get("epsilon_1"), settings.get("epsilon_2", 1e-3))}
        for n in SHAPES if name != "muon" else ("wide", "tall", "row"):
            p = torch.tensor(start[n].copy(), requires_grad=True)
            optimizer = getattr(optim, IN_PYTORCH[name])([p], lr=1.0, **kwargs)
            for rate, g in steps:
                optimizer.param_groups[0]["lr"] = rate
                p.grad = torch.tensor(g[n])
                optimizer.step()
            right = expected(name, {"wide": start["wide"], n: start[n]}, steps, settings)[n]
            # PyTorch computes the products of Muon in bfloat16
            least = 0.05 if name == "muon" else 1e-12
            assert error({n: p.detach().numpy()}, {n: right}, {n: start[n]}) < least
