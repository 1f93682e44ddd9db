"""What every optimizer in the registry must satisfy: PyTorch's definition, in place, whole and in pieces.

The references are PyTorch's documented pseudo-code in float64 numpy. The update graphs are run as training runs them:
every new vector is bound over the old one.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from sklearn.base import clone

from onnxtrain_sklearn.optimizers import LBFGS, OPTIMIZERS, Optimizer, UpdateGraph, resolve_optimizer, update_graph

P = 1003
STEPS = 50
TYPES = {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "sgd": [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.8, "dampening": 0.5},
    ],
    "adam": [
        {},
        {"weight_decay": 0.1},
        {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.01},
        {"beta_1": 0.0, "beta_2": 0.0},
    ],
    "adamw": [{}, {"weight_decay": 0.0}, {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.01, "weight_decay": 1.0}],
    "rmsprop": [
        {},
        {"alpha": 0.9, "epsilon": 0.01, "weight_decay": 0.1},
        {"momentum": 0.9},
        {"centered": True},
        {"alpha": 0.9, "momentum": 0.5, "centered": True, "epsilon": 0.01, "weight_decay": 0.1},
    ],
    "adagrad": [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "epsilon": 0.01, "weight_decay": 0.1}],
    "lion": [{}, {"weight_decay": 0.1}, {"beta_1": 0.5, "beta_2": 0.8}],
}

Reference = Callable[..., np.ndarray]


def sgd(p, steps, momentum=0.0, nesterov=False, dampening=0.0, weight_decay=0.0):
    b = None
    for lr, g in steps:
        g = g + weight_decay * p
        if momentum:
            b = g if b is None else momentum * b + (1 - dampening) * g
            g = g + momentum * b if nesterov else b
        p = p - lr * g
    return p


def adam(p, steps, beta_1=0.9, beta_2=0.999, epsilon=1e-8, weight_decay=0.0):
    m = v = np.zeros_like(p)
    for t, (lr, g) in enumerate(steps, start=1):
        g = g + weight_decay * p
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        p = p - lr * (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - beta_2**t)) + epsilon)
    return p


def adamw(p, steps, beta_1=0.9, beta_2=0.999, epsilon=1e-8, weight_decay=0.01):
    m = v = np.zeros_like(p)
    for t, (lr, g) in enumerate(steps, start=1):
        p = p - lr * weight_decay * p
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        p = p - lr * (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - beta_2**t)) + epsilon)
    return p


def rmsprop(p, steps, alpha=0.99, epsilon=1e-8, momentum=0.0, centered=False, weight_decay=0.0):
    v = average = b = np.zeros_like(p)
    for lr, g in steps:
        g = g + weight_decay * p
        v = alpha * v + (1 - alpha) * g**2
        average = alpha * average + (1 - alpha) * g
        b = momentum * b + g / (np.sqrt(v - average**2 if centered else v) + epsilon)
        p = p - lr * b
    return p


def adagrad(p, steps, lr_decay=0.0, initial_accumulator_value=0.0, epsilon=1e-10, weight_decay=0.0):
    total = np.full_like(p, initial_accumulator_value)
    for t, (lr, g) in enumerate(steps, start=1):
        g = g + weight_decay * p
        total = total + g**2
        p = p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(total) + epsilon)
    return p


def lion(p, steps, beta_1=0.9, beta_2=0.99, weight_decay=0.0):
    m = np.zeros_like(p)
    for lr, g in steps:
        p = p - lr * (np.sign(beta_1 * m + (1 - beta_1) * g) + weight_decay * p)
        m = beta_2 * m + (1 - beta_2) * g
    return p


REFERENCES: dict[str, Reference] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "lion": lion,
}
MINIBATCH = sorted(name for name, kind in OPTIMIZERS.items() if issubclass(kind, Optimizer))


class Vectors:
    """One optimizer's vectors with its update graph bound over them."""

    def __init__(
        self,
        graph: UpdateGraph,
        session: Any,
        start: np.ndarray,
        state: Mapping[str, np.ndarray] | None = None,
        t: int = 0,
        piece: int | None = None,
    ) -> None:
        self.t, self.graph, dtype = t, graph, start.dtype
        slots = state or {name: np.full_like(start, value) for name, value in graph.slots.items()}
        self.vectors = {name: v.copy() for name, v in {"parameters": start, **slots}.items()}
        self.gradients = np.zeros_like(start)
        self.scalars = {
            name: np.zeros((), np.int64 if isinstance(value, int) else dtype)
            for name, value in graph.coefficients(0.1, 1).items()
        }
        size = piece or len(start)
        self._session = session
        self._bindings = [self._bind(slice(i, i + size)) for i in range(0, len(start), size)]

    @property
    def state(self) -> dict[str, np.ndarray]:
        return {name: v for name, v in self.vectors.items() if name != "parameters"}

    def step(self, learning_rate: float, gradients: np.ndarray) -> None:
        self.t += 1
        self.gradients[:] = gradients
        for name, value in self.graph.coefficients(learning_rate, self.t).items():
            self.scalars[name][()] = value
        for binding in self._bindings:
            self._session.run_with_iobinding(binding)

    def run(self, steps: Sequence[tuple[float, np.ndarray]]) -> np.ndarray:
        for learning_rate, gradients in steps:
            self.step(learning_rate, gradients)
        return self.vectors["parameters"]

    def _bind(self, piece: slice) -> Any:
        binding = self._session.io_binding()
        arrays = {name: v[piece] for name, v in self.vectors.items()}
        for name, a in (arrays | {"gradients": self.gradients[piece]} | self.scalars).items():
            binding.bind_input(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)
        for name, a in arrays.items():
            binding.bind_output(f"new_{name}", "cpu", 0, a.dtype, a.shape, a.ctypes.data)
        return binding


def open_session(model: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def compiled(optimizer: Optimizer, dtype: str = "float32", fused: bool = False) -> tuple[UpdateGraph, Any]:
    graph = update_graph(optimizer, TYPES[dtype], fused=fused)
    return graph, open_session(graph.model)


@cache
def has_fused_kernels() -> bool:
    try:
        compiled(OPTIMIZERS["adam"](), fused=True)
    except Exception:
        return False
    return True


def variants_of_optimizers() -> list[Any]:
    """Every minibatch optimizer with all its settings, plain in both types and fused where there is a kernel."""
    forms = [("float32", False), ("float64", False)] + [("float32", True)] * has_fused_kernels()
    cases = [
        (name, settings, dtype, fused)
        for name in MINIBATCH
        for settings in SETTINGS.get(name, [{}])
        for dtype, fused in forms
        if not fused or OPTIMIZERS[name](**settings).fused() is not None
    ]
    return [pytest.param(*c, id=f"{c[0]}-{c[1]}-{c[2]}-{'fused' if c[3] else 'plain'}") for c in cases]


def problem(dtype: str, steps: int = STEPS, seed: int = 0) -> tuple[np.ndarray, list[tuple[float, np.ndarray]]]:
    """A start and (learning rate, gradients) of some steps; the scale of the gradients spans decades."""
    rng = np.random.default_rng(seed)
    start = (0.1 * rng.normal(size=P)).astype(dtype)
    scale = np.exp(2 * rng.normal(size=P))
    gradients = [(scale * (0.3 + rng.normal(size=P))).astype(dtype) for _ in range(steps)]
    return start, [(0.01 * (1 + i % 3), g) for i, g in enumerate(gradients)]


def in_float64(steps: Sequence[tuple[float, np.ndarray]]) -> list[tuple[float, np.ndarray]]:
    return [(lr, g.astype(np.float64)) for lr, g in steps]


def error(got: np.ndarray, expected: np.ndarray, start: np.ndarray) -> float:
    """The largest error of an element, relative to the largest move of one."""
    return float(np.abs(got - expected).max() / np.abs(expected - start).max())


def test_every_entry_has_a_reference() -> None:
    assert set(REFERENCES) == set(MINIBATCH)
    assert set(OPTIMIZERS) - set(MINIBATCH) == {"lbfgs"}


@pytest.mark.parametrize(("name", "settings", "dtype", "fused"), variants_of_optimizers())
@pytest.mark.parametrize("piece", [None, 256], ids=["whole", "pieces"])
def test_equals_the_reference(name: str, settings: dict[str, Any], dtype: str, fused: bool, piece: int | None) -> None:
    graph, session = compiled(OPTIMIZERS[name](**settings), dtype, fused)
    assert graph.elementwise
    start, steps = problem(dtype)
    vectors = Vectors(graph, session, start, piece=piece)
    expected = REFERENCES[name](start.astype(np.float64), in_float64(steps), **settings)
    for number, (learning_rate, gradients) in enumerate(steps, start=1):
        vectors.step(learning_rate, gradients)
        if number == 1:
            first = REFERENCES[name](start.astype(np.float64), in_float64(steps[:1]), **settings)
            assert error(vectors.vectors["parameters"], first, start) <= TOLERANCE[dtype]
    assert error(vectors.vectors["parameters"], expected, start) <= TOLERANCE[dtype]
    assert np.array_equal(vectors.gradients, steps[-1][1])


@pytest.mark.parametrize(("name", "settings", "dtype", "fused"), variants_of_optimizers())
def test_each_setting_matters(name: str, settings: dict[str, Any], dtype: str, fused: bool) -> None:
    """A reference with one parameter back at its default is far off: none is ignored."""
    start, steps = problem(dtype)
    reference = REFERENCES[name]
    start, steps = start.astype(np.float64), in_float64(steps)
    expected = reference(start, steps, **settings)
    for parameter, value in settings.items():
        if parameter == "momentum" and settings.get("nesterov"):
            continue
        others = {k: v for k, v in settings.items() if k != parameter}
        assert value == clone(OPTIMIZERS[name](**settings)).get_params()[parameter]
        assert error(reference(start, steps, **others), expected, start) > 100 * TOLERANCE["float32"]


@pytest.mark.parametrize(("name", "settings", "dtype", "fused"), variants_of_optimizers())
def test_continues_where_it_stopped(name: str, settings: dict[str, Any], dtype: str, fused: bool) -> None:
    graph, session = compiled(OPTIMIZERS[name](**settings), dtype, fused)
    start, steps = problem(dtype)
    half = STEPS // 2
    before = Vectors(graph, session, start)
    reached = before.run(steps[:half])
    again, other_session = compiled(pickle.loads(pickle.dumps(OPTIMIZERS[name](**settings))), dtype, fused)
    after = Vectors(again, other_session, reached, before.state, before.t)
    straight = Vectors(graph, session, start).run(steps)
    assert np.array_equal(after.run(steps[half:]), straight)


@pytest.mark.parametrize("name", MINIBATCH)
@pytest.mark.parametrize(("first", "second"), [(False, False)] + [(False, True), (True, False)] * has_fused_kernels())
def test_states_travel_between_plain_and_fused(name: str, first: bool, second: bool) -> None:
    start, steps = problem("float32")
    half = STEPS // 2
    for settings in SETTINGS.get(name, [{}]):
        optimizer = OPTIMIZERS[name](**settings)
        expected = REFERENCES[name](start.astype(np.float64), in_float64(steps), **settings)
        before = Vectors(*compiled(optimizer, fused=first), start)
        reached = before.run(steps[:half])
        after = Vectors(*compiled(optimizer, fused=second), reached, before.state, before.t)
        assert after.graph.slots == before.graph.slots
        assert error(after.run(steps[half:]), expected, start) <= TOLERANCE["float32"]


@pytest.mark.parametrize(("name", "settings", "dtype", "fused"), variants_of_optimizers())
def test_numpy_scalars_are_as_good_as_floats(name: str, settings: dict[str, Any], dtype: str, fused: bool) -> None:
    """Samplers of hyper-parameters give numpy scalars, of any type."""
    start, steps = problem(dtype, steps=3)
    expected = Vectors(*compiled(OPTIMIZERS[name](**settings), dtype, fused), start).run(steps)
    sampled = {k: np.float64(v) if isinstance(v, float) else v for k, v in settings.items()}
    optimizer = resolve_optimizer(OPTIMIZERS[name](**sampled))
    rates = [(np.float64(lr), g) for lr, g in steps]
    assert np.array_equal(Vectors(*compiled(optimizer, dtype, fused), start).run(rates), expected)


@pytest.mark.parametrize(("name", "settings", "dtype", "fused"), variants_of_optimizers())
def test_stays_finite_without_a_gradient(name: str, settings: dict[str, Any], dtype: str, fused: bool) -> None:
    start, steps = problem(dtype, steps=3)
    still = [(lr, np.zeros_like(g)) for lr, g in steps]
    reached = Vectors(*compiled(OPTIMIZERS[name](**settings), dtype, fused), start).run(still)
    if not OPTIMIZERS[name](**settings).weight_decay:
        assert np.array_equal(reached, start)
    assert np.isfinite(reached).all()


ROSENBROCK: dict[str, tuple[dict[str, Any], float, int]] = {
    "sgd": ({"momentum": 0.9}, 3e-4, 5000),
    "adam": ({}, 0.02, 2500),
    "adamw": ({}, 0.02, 2500),
    "rmsprop": ({"momentum": 0.5}, 0.002, 5000),
    "adagrad": ({}, 0.5, 4000),
}
"""Settings, learning rate and steps, where they are not these: none, 0.002 and 5000."""


def rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    a, b = float(x[0]), float(x[1])
    slope = np.array([2 * (a - 1) - 400 * a * (b - a * a), 200 * (b - a * a)])
    return (1 - a) ** 2 + 100 * (b - a * a) ** 2, slope


@pytest.mark.parametrize("name", MINIBATCH)
def test_minimizes_rosenbrock(name: str) -> None:
    settings, rate, steps = ROSENBROCK.get(name, ({}, 0.002, 5000))
    vectors = Vectors(*compiled(OPTIMIZERS[name](**settings)), np.array([-1.2, 1.0], np.float32))
    x = vectors.vectors["parameters"]
    for _ in range(steps):
        vectors.step(rate, rosenbrock(x)[1])
    assert np.abs(x - 1).max() < 0.1


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
    with pytest.raises(ValueError, match=message):
        resolve_optimizer(optimizer)


IN_PYTORCH = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad"}


@pytest.mark.parametrize("name", IN_PYTORCH)
def test_reference_equals_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    start, steps = problem("float64")
    for settings in SETTINGS.get(name, [{}]):
        kwargs = {"eps" if k == "epsilon" else k: v for k, v in settings.items() if not k.startswith("beta_")}
        if name.startswith("adam"):
            kwargs["betas"] = (settings.get("beta_1", 0.9), settings.get("beta_2", 0.999))
        p = torch.tensor(start.copy(), requires_grad=True)
        optimizer = getattr(torch.optim, IN_PYTORCH[name])([p], lr=1.0, **kwargs)
        for rate, g in steps:
            optimizer.param_groups[0]["lr"] = rate
            p.grad = torch.tensor(g)
            optimizer.step()
        assert error(REFERENCES[name](start, steps, **settings), p.detach().numpy(), start) < 1e-12
