"""Calls that go on from an earlier one see what was changed since: a loss by its content, a model not at all."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest
from numpy.testing import assert_array_equal
from sklearn.linear_model import Ridge

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor, Runtime
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import Loss
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 3000
rng = np.random.RandomState(0)
X = rng.normal(size=(N, 3)).astype(np.float32)
Y = X.sum(axis=1)
LABELS = (Y > 0).astype(int)
ENGINES = pytest.mark.parametrize("engine", available_engines())


class RowLoss(Loss):
    """Squared error in which each row of the whole batch counts by a factor of its own."""

    tasks = frozenset({"regression"})

    def __init__(self, factors=None, function=None):
        self.factors = factors
        self.function = function

    def __call__(self, op, scores, y, link):
        factors = np.asarray(self.factors if self.function is None else self.function(), np.float32)
        error = op.Sub(scores, y)
        return op.Mul(op.Mul(error, error), factors[:, None])


def schedule_factors(height: float) -> np.ndarray:
    """Return factors whose first and last three are all a repr shows of them."""
    values = np.ones(N)
    values[10:-10] = height
    return values


def warm_regressor(**parameters: object) -> OrtGradientRegressor:
    defaults = {"batch_size": N, "max_iter": 1, "warm_start": True, "shuffle": False, "learning_rate_init": 0.0}
    return OrtGradientRegressor(Linear(), random_state=0, **defaults | parameters)


def closing_over_array(values: np.ndarray):
    return lambda: values


@ENGINES
def test_loss_that_differs_beyond_its_short_repr_is_another(engine):
    assert repr(schedule_factors(1.0)) == repr(schedule_factors(10.0))
    estimator = warm_regressor(engine=engine, loss=RowLoss(schedule_factors(1.0))).fit(X, Y)
    one = estimator.loss_
    ten = estimator.set_params(loss=RowLoss(schedule_factors(10.0))).fit(X, Y).loss_
    assert 8 * one < ten < 11 * one
    assert ten == warm_regressor(engine=engine, loss=RowLoss(schedule_factors(10.0))).fit(X, Y).loss_


def test_a_loss_that_was_changed_in_place_is_another_loss():
    values = schedule_factors(1.0)
    estimator = warm_regressor(loss=RowLoss(values)).fit(X, Y)
    one = estimator.loss_
    values[10:-10] = 10.0
    assert estimator.partial_fit(X, Y).loss_ > 8 * one


def test_loss_with_other_closure_is_another_loss():
    estimator = warm_regressor(loss=RowLoss(function=closing_over_array(schedule_factors(1.0)))).fit(X, Y)
    one = estimator.loss_
    estimator.set_params(loss=RowLoss(function=closing_over_array(schedule_factors(10.0))))
    assert estimator.fit(X, Y).loss_ > 8 * one


@pytest.mark.parametrize(
    "change", [{"runtime": Runtime(session_options={"enable_mem_pattern": False})}, {"alpha": 0.1}]
)
def test_step_is_kept_exactly_for_equal_parameters(change):
    estimator = warm_regressor(loss=RowLoss(schedule_factors(1.0))).fit(X, Y)
    step = estimator._state.live.step
    assert estimator.set_params(loss=RowLoss(schedule_factors(1.0))).fit(X, Y)._state.live.step is step
    assert estimator.set_params(**change).fit(X, Y)._state.live.step is not step


def test_later_calls_name_the_engine_that_differentiated():
    estimator = warm_regressor()
    for call in (estimator.fit, estimator.fit, estimator.partial_fit, estimator.partial_fit):
        assert call(X, Y).engine_ in available_engines()


# -- another model ----------------------------------------------------------------------------------------------------


def started_graph(width: int = 4) -> onnx.ModelProto:
    return MLP((width,)).build(3, 1, np.random.RandomState(0))


OTHERS = {
    "another builder": (lambda: MLP((4,)), lambda: MLP((5,)), r"from MLP\(.*4.* to MLP\(.*5"),
    "none": (lambda: None, lambda: Linear(), r"from None to Linear\(\)"),
    "another graph": (started_graph, lambda: started_graph(5), "to another ModelProto"),
    "other bytes": (
        lambda: started_graph().SerializeToString(),
        lambda: started_graph(5).SerializeToString(),
        "to another bytes",
    ),
    "a graph for a builder": (lambda: MLP((4,)), started_graph, r"from MLP\(.*\) to ModelProto"),
    "another fitted model": (lambda: Ridge().fit(X, Y), lambda: Ridge(9.0).fit(X, -Y), "to another Ridge"),
}


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("case", OTHERS)
def test_another_model_is_refused_and_nothing_changes(case, method):
    make, other, message = OTHERS[case]
    estimator = OrtGradientRegressor(make(), warm_start=True, max_iter=1, random_state=0).fit(X, Y)
    before = estimator.predict(X)
    estimator.set_params(model=other())
    with pytest.raises(ModelError, match=f"(?s)model was changed .*{message}.*warm_start=False"):
        getattr(estimator, method)(X, Y)
    assert_array_equal(estimator.predict(X), before)
    estimator.set_params(warm_start=False).fit(X, Y)  # which begins anew
    assert (estimator.n_iter_, type(estimator.model)) == (1, type(other()))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("case", OTHERS)
def test_an_equal_model_goes_on(case, how):
    make = OTHERS[case][0]
    estimator = OrtGradientRegressor(make(), warm_start=True, max_iter=1, random_state=0).fit(X, Y)
    assert how(estimator).fit(X, Y).n_iter_ == 2
    assert estimator.set_params(model=copy.deepcopy(make())).fit(X, Y).n_iter_ == 2


def test_model_none_equals_its_default_network():
    estimator = OrtGradientRegressor(warm_start=True, max_iter=1).fit(X, Y)
    assert estimator.set_params(model=MLP()).fit(X, Y).n_iter_ == 2


def test_a_builder_that_was_changed_in_place_is_refused():
    estimator = OrtGradientClassifier(MLP((4,)), max_iter=1).fit(X, LABELS)
    estimator.set_params(model__hidden_layer_sizes=(5,))
    with pytest.raises(ModelError, match="model was changed"):
        estimator.partial_fit(X, LABELS)


def test_another_output_is_refused():
    model = started_graph()
    estimator = OrtGradientRegressor(model, warm_start=True, max_iter=1).fit(X, Y)
    estimator.set_params(model__output=model.graph.output[0].name)
    with pytest.raises(ModelError, match=f"output was changed from None to {model.graph.output[0].name}"):
        estimator.fit(X, Y)


def test_a_path_is_the_same_model_however_it_is_given(tmp_path):
    onnx.save(started_graph(), tmp_path / "model.onnx")
    estimator = OrtGradientRegressor(str(tmp_path / "model.onnx"), warm_start=True, max_iter=1).fit(X, Y)
    assert estimator.set_params(model=tmp_path / "model.onnx").fit(X, Y).n_iter_ == 2
