"""Distributions and quantiles that RealMLP and TabM learn, and those of ensembles, beside SciPy."""

from __future__ import annotations

import pickle

import numpy as np
import onnx_ir as ir
import onnxruntime
import pandas as pd
import pytest
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx import to_onnx
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, OrtGradientRegressor, RealMLPRegressor, TabM, TabMRegressor
from onnxtrain_sklearn._ir.edits import swap_initializers
from onnxtrain_sklearn._recipes import ensemble
from onnxtrain_sklearn.callbacks import SnapshotEnsemble
from onnxtrain_sklearn.graph import GraphBuilder
from onnxtrain_sklearn.losses import LOSSES, Quantiles, Reconstruction
from tests.helpers.environment import each_engine
from tests.helpers.sessions import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 3)).astype(np.float32)
TRUE_MEAN, TRUE_DEVIATION = 20 + 10 * X[:, 0], 1 + 2 * (X[:, 1] > 0)
Y = TRUE_MEAN + TRUE_DEVIATION * RNG.normal(size=400)
DISTRIBUTIONS = ("gaussian_nll", "laplace_nll", "gamma_nll", "negative_binomial")
RECIPES = {
    "realmlp": RealMLPRegressor("td-s", n_ensembles=3, hidden_layer_sizes=(16,), max_iter=4, random_state=0),
    "tabm": TabMRegressor(n_members=3, hidden_layer_sizes=8, max_iter=3, n_ensembles=2, random_state=0),
}


def recipe(name, loss, y=Y, rows=X, **parameters):
    return clone(RECIPES[name]).set_params(loss=loss, **parameters).fit(rows, y)


def targets_of(loss):
    return np.round(np.abs(Y) / 4) + 1 if loss == "negative_binomial" else np.abs(Y) + 1


def moments(loss, location, further, axis=1):
    """Mean and variance of the mixture of members, whose parameters are along an axis, by SciPy."""
    each = LOSSES[loss]().distribution(location.astype(float), further.astype(float))
    return each.mean().mean(axis), each.var().mean(axis) + each.mean().var(axis)


@pytest.mark.parametrize("loss", DISTRIBUTIONS)
@pytest.mark.parametrize("unit", [1.0, 1e-20, 1e25])
def test_members_have_the_mean_and_variance_of_their_mixture(loss, unit):
    has_unit = loss in ("gaussian_nll", "laplace_nll")
    unit = 1.0 if loss == "negative_binomial" else unit
    location, further = RNG.gamma(2, 2, (50, 4, 2)) + 1, RNG.gamma(2, 2, (50, 4, 2)) + 0.1
    arrays = {"location": unit * location, "further": unit * further if has_unit else further}
    values = [ir.val(name, ir.DataType.FLOAT, array.shape) for name, array in arrays.items()]
    graph = ir.Graph(values, [], nodes=[], opset_imports={"": 18}, name="members")
    (found,) = LOSSES[loss]().of_members(GraphBuilder(graph, dtype=ir.DataType.FLOAT), values[0], values[1:])
    graph.outputs.append(found)
    proto = ir.to_proto(ir.Model(graph, ir_version=8))
    (found,) = evaluate(proto, **{name: array.astype(np.float32) for name, array in arrays.items()})
    mean, variance = moments(loss, location, further)
    one = LOSSES[loss]().distribution(mean, found.astype(float) / (unit if has_unit else 1))
    assert_allclose(one.mean(), mean, rtol=1e-5)
    assert_allclose(one.var(), variance, rtol=1e-4)


@pytest.mark.parametrize("loss", [*DISTRIBUTIONS, Quantiles([0.2, 0.5, 0.9])], ids=str)
def test_ensemble_of_networks_has_the_moments_of_their_mixture(loss, monkeypatch):
    members = []

    def recorded(each, *rest):
        members.extend(each)
        return assembled(each, *rest)

    assembled = ensemble.assembled
    monkeypatch.setattr(ensemble, "assembled", recorded)
    name = loss if isinstance(loss, str) else "quantiles"
    for y in (targets_of(name), np.column_stack([targets_of(name), 2 * targets_of(name)])):
        members.clear()
        fitted = recipe("realmlp", loss, y, max_iter=30 if name == "negative_binomial" else 4)
        assert len(members) == 3
        graphs = [ir.to_proto(assembled([one], "regression")[0]) for one in members]
        location, further = (np.stack([evaluate(one, X=X)[i] for one in graphs], axis=1) for i in range(2))
        assert_allclose(fitted.predict(X).reshape(400, -1), location.mean(axis=1), rtol=1e-5)
        assert np.ptp(location, axis=1).max() > 1e-3
        if name == "quantiles":
            found = fitted.predict_quantiles(X)
            assert_allclose(found.reshape(400, -1), further.mean(axis=1).reshape(400, -1), rtol=1e-4)
            assert (np.diff(found, axis=-1) > 0).all()
            continue
        mean, variance = moments(loss, location, further)
        found = fitted.predict_distribution(X)
        assert_allclose(found.mean().reshape(mean.shape), mean, rtol=1e-5)
        assert_allclose(found.var().reshape(mean.shape), variance, rtol=1e-3)


@pytest.mark.parametrize("loss", [*DISTRIBUTIONS, Quantiles([0.2, 0.5, 0.9])], ids=str)
@pytest.mark.parametrize("kind", ["TabM", "snapshots"])
def test_members_of_a_graph_are_combined(kind, loss):
    settings = {"loss": loss, "random_state": 0, "learning_rate_init": 0.02, "n_iter_no_change": np.inf}
    name = loss if isinstance(loss, str) else "quantiles"
    if kind == "TabM":
        net = OrtGradientRegressor(TabM(n_members=3, hidden_layer_sizes=(8,), dropout=0.0), max_iter=3, **settings)
    else:
        net = OrtGradientRegressor(MLP((8,)), max_iter=6, callbacks=[SnapshotEnsemble(2)], **settings)
    net.fit(X, targets_of(name))
    graph, weights = net._state.deployed, net._state.weights()
    if kind == "snapshots":
        from onnxtrain_sklearn._estimators.fitted_state import predicting_model

        graph, weights = predicting_model(net._state)
    model = graph.model.clone()
    swap_initializers(model.graph, weights)
    (scores,) = evaluate(ir.to_proto(model), X=X)
    assert scores.shape == (400, 3 if kind == "TabM" else 2, 3 if name == "quantiles" else 2)
    scale = net._state.decoding.target_scale
    unit, center = (1.0, 0.0) if scale is None else (scale.scale[0], scale.center[0])
    softplus = np.logaddexp(0, scores.astype(float))
    if name == "quantiles":
        median = scores[..., 0].astype(float)
        each = np.stack([median - softplus[..., 1], median, median + softplus[..., 2]], axis=-1)
        assert_allclose(net.predict_quantiles(X), center + unit * each.mean(axis=1), rtol=1e-4)
        return
    location, further = scores[..., 0].astype(float), softplus[..., 1] + 1e-3
    if loss in ("gamma_nll", "negative_binomial"):
        location = unit * np.exp(location)
    else:
        location, further = center + unit * location, unit * further
    mean, variance = moments(loss, location, further)
    found = net.predict_distribution(X)
    assert_allclose(found.mean(), mean, rtol=1e-5)
    assert_allclose(found.var(), variance, rtol=1e-3)
    assert_allclose(net.predict(X, return_std=True)[1], np.sqrt(variance), rtol=1e-3)


@pytest.mark.long
@each_engine
@pytest.mark.parametrize("name", RECIPES)
def test_deviations_follow_those_of_the_data(name, engine):
    settings = {"learning_rate_init": 0.01, "hidden_layer_sizes": 32} if name == "tabm" else {"batch_size": 32}
    fitted = recipe(name, "gaussian_nll", engine=engine, max_iter=40, **settings)
    mean, deviation = fitted.predict(X, return_std=True)
    assert_array_equal(mean, fitted.predict(X))
    assert np.corrcoef(mean, TRUE_MEAN)[0, 1] > 0.9
    large = X[:, 1] > 0
    assert 1.6 < deviation[large].mean() / deviation[~large].mean() < 4.5
    low, high = fitted.predict_quantiles(X, [0.1, 0.9]).T
    assert_allclose([low, high], np.array(fitted.predict_distribution(X).interval(0.8)), rtol=1e-6)
    assert 0.7 < np.mean((low < Y) & (high > Y)) < 0.92


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("loss", ["gaussian_nll", "gamma_nll", Quantiles([0.2, 0.5, 0.9])], ids=str)
def test_file_pickle_and_converters_of_recipes_agree(name, loss):
    fitted = recipe(name, loss, targets_of("gamma_nll"))
    proto = fitted.to_onnx()
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers, further = session.run(None, {"X": X})
    assert_array_equal(numbers.ravel(), fitted.predict(X))
    again = pickle.loads(pickle.dumps(fitted))
    outputs = [value.name for value in proto.graph.output]
    if isinstance(loss, Quantiles):
        assert outputs == ["variable", "quantiles"]
        assert_array_equal(further, fitted.predict_quantiles(X))
        assert_array_equal(fitted.predict_quantiles(X, [0.9]), further[:, 2:])
        assert not hasattr(fitted, "predict_distribution")
    else:
        assert outputs == ["variable", "scale" if loss == "gaussian_nll" else "dispersion"]
        own = LOSSES[loss]().distribution(numbers.ravel().astype(float), further.ravel().astype(float))
        assert_allclose(fitted.predict_distribution(X).std(), own.std())
        assert isinstance(own.dist, type(scipy.stats.norm) if loss == "gaussian_nll" else type(scipy.stats.gamma))
    assert_array_equal(again.predict_quantiles(X), fitted.predict_quantiles(X))
    assert clone(fitted).loss is not None
    pipeline = make_pipeline(StandardScaler(), clone(fitted)).fit(X, targets_of("gamma_nll"))
    converted = to_onnx(pipeline, X[:1], target_opset=18)
    (alone,) = onnxruntime.InferenceSession(converted.SerializeToString()).run(None, {"X": X})
    assert_allclose(alone.ravel(), pipeline.predict(X), rtol=1e-4)


def test_columns_may_have_the_names_of_outputs():
    frame = pd.DataFrame({"scale": X[:, 0], "variable": np.where(X[:, 1] > 0, "a", "b")})
    fitted = recipe("realmlp", "gaussian_nll", rows=frame)
    assert fitted.predict(frame, return_std=True)[1].shape == (400,)
    assert [value.name for value in fitted.to_onnx().graph.input] == ["scale", "variable"]


def test_losses_that_learn_no_distribution():
    plain = recipe("realmlp", "huber")
    assert [value.name for value in plain.to_onnx().graph.output] == ["variable"]
    assert not hasattr(plain, "predict_quantiles")
    with pytest.raises(ValueError, match="return_std=True is not available: it needs a loss for a distribution"):
        plain.predict(X, return_std=True)
    assert hasattr(RealMLPRegressor(loss="gaussian_nll"), "predict_distribution")
    for wrong in ("log_loss", "cox", "reconstruction", Reconstruction(), None):
        with pytest.raises(ValueError, match="loss"):
            RealMLPRegressor(loss=wrong).fit(X, Y)
    with pytest.raises(ValueError, match="linear_part=True needs loss='squared_error'"):
        RealMLPRegressor(loss="huber", linear_part=True).fit(X, Y)
    with pytest.raises(ValueError, match="positive"):
        RealMLPRegressor(loss="gamma_nll").fit(X, Y - 100)
    with pytest.raises(ValueError, match=r"not trained for the quantiles \[0.7\]"):
        recipe("realmlp", Quantiles()).predict_quantiles(X, [0.7])
