"""Optimizers beyond the contract: validation, the in-place proof, user-written ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain_sklearn import optimizers
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.optimizers import (
    LBFGS,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Optimizer,
    Parameter,
    RMSprop,
    Slot,
    resolve_optimizer,
    update_graph,
)
from tests.helpers.sessions import run_in_place

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def test_public_names_exist() -> None:
    names = "BaseOptimizer MinimizeResult Optimizer UpdateGraph clip_graph resolve_optimizer update_graph".split()
    assert all(hasattr(optimizers, name) for name in [*names, *(kind.__name__ for kind in OPTIMIZERS.values())])


class TestResolveOptimizer:
    def test_names_give_the_defaults(self) -> None:
        for name, kind in OPTIMIZERS.items():
            resolved = resolve_optimizer(name)
            assert type(resolved) is kind
            assert resolved.get_params() == kind().get_params()

    def test_misspelt_name_gets_the_nearest(self) -> None:
        with pytest.raises(ValueError, match=r"optimizer 'adamv'. Did you mean .*'adamw'.*Valid names: .*'lbfgs'"):
            resolve_optimizer("adamv")

    @pytest.mark.parametrize(
        ("thing", "got"),
        [(None, "NoneType"), (1, "int"), (SGD, "the class SGD; give an instance"), (object(), "object")],
    )
    def test_other_things_raise(self, thing: Any, got: str) -> None:
        with pytest.raises(TypeError, match=f"must be a name or an Optimizer object, got {got}"):
            resolve_optimizer(thing)

    @pytest.mark.parametrize(
        ("optimizer", "message"),
        [
            (SGD(momentum=1.0), r"'momentum' parameter of SGD must be a float in the range \[0.0, 1.0\). Got 1.0 "),
            (SGD(dampening=1.5), r"'dampening' parameter of SGD .* \[0.0, 1.0\]. Got 1.5"),
            (Adam(beta_1=1.0), r"'beta_1' parameter of Adam .* \[0.0, 1.0\). Got 1.0"),
            (AdamW(beta_2=1), r"'beta_2' parameter of AdamW .* \[0.0, 1.0\). Got 1 "),
            (AdamW(weight_decay=-0.1), r"'weight_decay' parameter of AdamW .* \[0.0, inf\). Got -0.1"),
            (RMSprop(alpha=1.0), r"'alpha' parameter of RMSprop"),
            (RMSprop(centered="yes"), r"'centered' parameter of RMSprop must be .*bool"),
            (Adagrad(lr_decay=-1e-9), r"'lr_decay' parameter of Adagrad"),
            (LBFGS(history_size=0), r"'history_size' parameter of LBFGS must be an int .* \[1, inf\). Got 0"),
            (LBFGS(max_fun=1.5), r"'max_fun' parameter of LBFGS must be an int"),
        ],
    )
    def test_values_out_of_range_raise(self, optimizer: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            resolve_optimizer(optimizer)

    @pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "dampening": 0.1}])
    def test_nesterov_needs_momentum_without_dampening(self, settings: dict[str, float]) -> None:
        optimizer = SGD(nesterov=True, **settings)
        with pytest.raises(ValueError, match=r"needs momentum in \(0, 1\) and dampening == 0, got SGD\(.*nesterov"):
            resolve_optimizer(optimizer)
        assert resolve_optimizer(SGD(nesterov=True, momentum=0.9)).nesterov  # type: ignore[attr-defined]

    def test_bounds_themselves_are_valid(self) -> None:
        resolve_optimizer(SGD(momentum=0, dampening=1, weight_decay=0))
        resolve_optimizer(Adam(beta_1=0, beta_2=0, epsilon=0))
        resolve_optimizer(LBFGS(history_size=1, max_line_searches=1, max_fun=np.int64(1)))

    def test_constructors_store_and_check_nothing(self) -> None:
        assert Adam(beta_1="nonsense").beta_1 == "nonsense"  # type: ignore[arg-type]

    def test_parameters_of_user_written_ones_are_their_own(self) -> None:
        class Lion(Optimizer):
            def __init__(self, alpha: float = 7.0) -> None:
                self.alpha = alpha

            def update(self, op, p, g, state, k):
                return op.Sub(p, op.Sign(g)), {}

        resolve_optimizer(Lion())

        class Strict(Lion):
            def validate(self) -> None:
                raise ValueError(f"alpha must be below 1, got {self.alpha}.")

        with pytest.raises(ValueError, match="alpha must be below 1, got 7"):
            resolve_optimizer(Strict())


class TestScalars:
    def test_of_the_package_are_floats(self) -> None:
        for kind in OPTIMIZERS.values():
            if issubclass(kind, Optimizer):
                assert all(type(x) is float for x in kind().scalars(0.5, 3).values())

    def test_bias_corrections_are_those_of_float64(self) -> None:
        scalars = Adam().scalars(0.001, 1)
        assert scalars["learning_rate"] == pytest.approx(0.001 * 0.001**0.5 / 0.1, rel=1e-12)
        assert scalars["epsilon"] == pytest.approx(1e-8 * 0.001**0.5, rel=1e-12)
        late = Adam().scalars(0.001, 10**6)
        assert late == {"learning_rate": 0.001, "epsilon": 1e-8}

    def test_adamw_has_those_of_adam_and_the_decay(self) -> None:
        for rate, t in ((0.001, 1), (0.3, 2), (1e-5, 777), (0.0, 10**7)):
            parameters = {"beta_1": 0.8, "beta_2": np.float32(0.99), "epsilon": 1e-7, "weight_decay": np.float32(0.03)}
            found, adam = (update_graph(kind(**parameters), FLOAT).scalars(rate, t) for kind in (AdamW, Adam))
            assert found == {**adam, "decay": rate * float(np.float32(0.03))}
            assert all(type(x) is float for x in found.values())

    def test_names_are_the_inputs_of_the_graph(self) -> None:
        for kind in OPTIMIZERS.values():
            if issubclass(kind, Optimizer):
                graph = update_graph(kind(), FLOAT, parameter=Parameter("w", (3, 4)))
                inputs = [v.name for v in graph.model.graph.inputs]
                assert inputs == ["parameters", "gradients", *graph.slots, *graph.scalars(0.1, 1)]
                assert [v.name for v in graph.model.graph.outputs] == [f"new_{n}" for n in ("parameters", *graph.slots)]


class Custom(Optimizer):
    """Steps written by the tests: ``rule`` gets what ``update`` gets."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, rule: Any = None) -> None:
        self.rule = rule

    def slots(self, p: Parameter) -> dict[str, Slot]:
        return {name: Slot(p.shape) for name in self.names}

    def update(self, op, p, g, state, k):
        return self.rule(op, p, g, state, k["learning_rate"])


class WithMemory(Custom):
    names = ("memory",)


class TestInPlaceProof:
    def test_reading_old_parameters_after_writing_raises(self) -> None:
        def rule(op, p, g, state, rate):
            return op.Sub(p, op.Mul(g, rate)), {"memory": op.Add(state["memory"], op.Mul(p, p))}

        with pytest.raises(ModelError, match=r"WithMemory.update reads 'parameters' in node .*on the way to its new"):
            update_graph(WithMemory(rule), FLOAT)

    def test_reading_old_state_after_writing_raises(self) -> None:
        def rule(op, p, g, state, rate):
            return op.Sub(p, op.Mul(state["memory"], rate)), {"memory": op.Add(state["memory"], g)}

        with pytest.raises(ModelError, match="reads 'memory'"):
            update_graph(WithMemory(rule), FLOAT)

    def test_keeping_the_old_parameters_raises(self) -> None:
        with pytest.raises(ModelError, match="reads 'parameters'"):
            update_graph(WithMemory(lambda op, p, g, s, rate: (op.Sub(p, op.Mul(g, rate)), {"memory": p})), FLOAT)

    def test_writer_that_reads_other_elements_raises(self) -> None:
        with pytest.raises(ModelError, match="reads 'parameters'"):
            update_graph(Custom(lambda op, p, g, s, rate: (op.CumSum(p, 0), {})), FLOAT)

    def test_reading_on_the_way_is_right(self) -> None:
        def rule(op, p, g, state, rate):
            new = op.Sub(p, op.Mul(g, rate))
            return new, {"memory": op.Add(state["memory"], op.Mul(new, new))}

        p, g, m = (np.arange(1, 6, dtype=np.float32) * k for k in (1, 2, 3))
        arrays = {"parameters": p, "gradients": g, "memory": m, "learning_rate": np.array(0.5, np.float32)}
        got = run_in_place(update_graph(WithMemory(rule), FLOAT).model, arrays)
        assert np.array_equal(got["parameters"], p - g / 2)
        assert np.array_equal(got["memory"], m + (p - g / 2) ** 2)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_one_value_may_serve_two_results(self, dtype: Any) -> None:
        def rule(op, p, g, state, rate):
            new = op.Add(op.Sub(p, op.Mul(g, rate)), op.Mul(state["memory"], 0.0))
            return new, {"memory": new}

        p, g = np.array([1, 2, 3], dtype), np.array([2, 2, 4], dtype)
        arrays = {"parameters": p, "gradients": g, "memory": p * 0, "learning_rate": np.array(0.5, dtype)}
        got = run_in_place(update_graph(WithMemory(rule), ir.DataType.from_numpy(np.dtype(dtype))).model, arrays)
        assert np.array_equal(got["parameters"], [0, 1, 1])
        assert np.array_equal(got["memory"], [0, 1, 1])

    def test_results_may_be_inputs(self) -> None:
        class Remember(WithMemory):
            def update(self, op, p, g, state, k):
                return p, {"memory": g}

        p, g = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
        arrays = {"parameters": p, "gradients": g, "memory": p * 0, "learning_rate": np.array(0.5, np.float32)}
        got = run_in_place(update_graph(Remember(), FLOAT).model, arrays)
        assert np.array_equal(got["parameters"], p)
        assert np.array_equal(got["memory"], g)

    @pytest.mark.parametrize("state", [{}, {"memory": None, "memroy": None}])
    def test_state_must_be_returned_as_declared(self, state: dict[str, Any]) -> None:
        def rule(op, p, g, slots, rate):
            new = op.Sub(p, op.Mul(g, rate))
            return new, dict.fromkeys(state, op.Add(slots["memory"], g))

        with pytest.raises(ModelError, match=r"WithMemory.update must return .* the state \['memory'\], got"):
            update_graph(WithMemory(rule), FLOAT)


def normalized(op, p, g, state, rate):
    return op.Sub(p, op.Div(op.Mul(g, rate), op.ReduceL2(g, keepdims=False))), {}


class Whole(Custom):
    elementwise = False


class TestElementwise:
    def test_reduction_in_an_elementwise_update_raises(self) -> None:
        with pytest.raises(ModelError, match=r"Custom.update emits ReduceL2, .* Set elementwise = False"):
            update_graph(Custom(normalized), FLOAT)

    def test_reduction_over_a_parameter_is_run_in_its_shape(self) -> None:
        graph = update_graph(Whole(normalized), FLOAT, parameter=Parameter("w", (1, 2)))
        assert not graph.elementwise
        p, g = np.array([[1, 2]], np.float32), np.array([[3, 4]], np.float32)
        arrays = {"parameters": p, "gradients": g, "learning_rate": np.array(10, np.float32)}
        assert np.allclose(run_in_place(graph.model, arrays)["parameters"], [[-5, -6]])

    def test_update_of_a_parameter_without_its_shape_raises(self) -> None:
        with pytest.raises(ModelError, match=r"Whole.update is not elementwise: .* the shape of a parameter"):
            update_graph(Whole(normalized), FLOAT)

    def test_new_parameters_of_another_shape_raise(self) -> None:
        broken = Whole(lambda op, p, g, s, rate: (op.ReduceMean(p, axes=[0], keepdims=True), {}))
        with pytest.raises(ModelError, match=r"returns 'parameters' of shape \[1, 3\], and it has \[2, 3\]"):
            update_graph(broken, FLOAT, parameter=Parameter("w", (2, 3)))

    @pytest.mark.parametrize(
        ("slots", "message"),
        [
            ({"memory": 0.0}, r"must return Slot objects by name"),
            ({"my/memory": Slot((2, 3))}, r"a slot 'my/memory': take another name"),
            ({"gradients": Slot((2, 3))}, r"a slot 'gradients': take another name"),
            ({"learning_rate": Slot((2, 3))}, r"a scalar and an array of the name 'learning_rate'"),
        ],
    )
    def test_slots_that_cannot_be_stored_raise(self, slots: Any, message: str) -> None:
        class Odd(Whole):
            def slots(self, p: Parameter) -> dict[str, Slot]:
                return slots

        with pytest.raises(ModelError, match=message):
            update_graph(Odd(normalized), FLOAT, parameter=Parameter("w", (2, 3)))

    def test_elementwise_slots_of_another_shape_raise(self) -> None:
        class Odd(Custom):
            def slots(self, p: Parameter) -> dict[str, Slot]:
                return {"memory": Slot((1,))}

        with pytest.raises(ModelError, match=r"An elementwise optimizer has slots of the parameter's shape"):
            update_graph(Odd(normalized), FLOAT)


class TestFused:
    @pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), SGD(weight_decay=0.1), Adam(weight_decay=0.1), RMSprop()])
    def test_only_where_the_kernel_does_the_same(self, optimizer: Optimizer) -> None:
        assert optimizer.fused() is None
        assert {n.domain for n in update_graph(optimizer, FLOAT, fused=True).model.graph} == {""}

    @pytest.mark.parametrize("optimizer", [SGD(), Adam(), AdamW(), AdamW(weight_decay=0.0)])
    def test_kernels_are_for_float32(self, optimizer: Optimizer) -> None:
        def domains(dtype: ir.DataType, fused: bool) -> set[str]:
            return {n.domain for n in update_graph(optimizer, dtype, fused=fused).model.graph}

        assert "com.microsoft" in domains(FLOAT, True)
        assert domains(DOUBLE, True) == domains(FLOAT, False) == {""}
        assert update_graph(optimizer, FLOAT, fused=True).slots == update_graph(optimizer, FLOAT).slots


def test_centered_rmsprop_survives_a_constant_gradient() -> None:
    """There v - a² is zero but for rounding, and PyTorch's root of it is NaN."""
    graph = update_graph(RMSprop(alpha=0.5, centered=True, epsilon=1e-3), FLOAT)
    arrays = {"parameters": np.zeros(500, np.float32), "gradients": np.linspace(0.1, 5, 500, dtype=np.float32)}
    arrays |= {name: np.zeros(500, np.float32) for name in graph.slots}
    for _ in range(40):
        arrays["learning_rate"] = np.array(0.001, np.float32)
        arrays = run_in_place(graph.model, arrays)
    assert np.isfinite(arrays["parameters"]).all()
    assert np.all(arrays["variance"] >= 0)
