"""What losses of distributions and quantiles predict of each row, beside SciPy, in memory and in ONNX files."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx import to_onnx
from sklearn.datasets import load_diabetes, load_linnerud
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, Linear, OrtGradientMultiOutput, OrtGradientRegressor, TabM
from onnxtrain_sklearn.callbacks import SnapshotEnsemble
from onnxtrain_sklearn.losses import FurtherPrediction, GaussianNLL, Loss, Quantiles, Target
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(5)
GROUP = np.repeat(np.arange(3), 60)
GROUPS = np.eye(3, dtype=np.float32)[GROUP]
Y = np.ceil(RNG.gamma(2.0, size=180) * np.array([4.0, 9.0, 25.0])[GROUP])
EXACT = {"optimizer": "lbfgs", "max_iter": 500, "tol": 1e-10, "alpha": 0.0, "random_state": 0}
SLOW_END = {
    "optimizer": "adam",
    "learning_rate_init": 0.05,
    "learning_rate": "cosine",
    "max_iter": 600,
    "tol": 0,
    "n_iter_no_change": 800,
}
DISTRIBUTIONS = {
    "gaussian_nll": scipy.stats.norm,
    "laplace_nll": scipy.stats.laplace,
    "negative_binomial": scipy.stats.nbinom,
    "gamma_nll": scipy.stats.gamma,
}


def fitted(loss, y=Y, **parameters):
    return OrtGradientRegressor(**{"model": Linear(), "loss": loss, **EXACT, **parameters}).fit(GROUPS, y)


def most_likely(loss, own):
    """The distribution of the kind with the largest likelihood, as SciPy finds it."""
    if loss in ("gaussian_nll", "laplace_nll"):
        return DISTRIBUTIONS[loss](*DISTRIBUTIONS[loss].fit(own))
    if loss == "gamma_nll":
        shape, _, scale = scipy.stats.gamma.fit(own, floc=0)
        return scipy.stats.gamma(shape, scale=scale)

    def negative(p):
        r, mean = np.exp(p)
        return -scipy.stats.nbinom.logpmf(own, r, r / (r + mean)).sum()

    found = scipy.optimize.minimize(negative, np.log([1.0, own.mean()]), method="Nelder-Mead", tol=1e-10)
    r, mean = np.exp(found.x)
    return scipy.stats.nbinom(r, r / (r + mean))


@each_engine
@pytest.mark.parametrize("loss", DISTRIBUTIONS)
def test_distribution_is_the_most_likely_one_of_each_group(loss, engine):
    settings = {}
    if loss == "laplace_nll":  # its kinks keep L-BFGS from converging
        settings = SLOW_END | {"max_iter": 800}
    net = fitted(loss, engine=engine, **settings)
    found = net.predict_distribution(GROUPS)
    assert found.dist.name == DISTRIBUTIONS[loss].name
    expected = [most_likely(loss, Y[g == GROUP]) for g in range(3)]
    tolerance = 0.02 if loss == "laplace_nll" else 3e-3
    assert_allclose(found.std(), np.array([one.std() for one in expected])[GROUP], rtol=tolerance)
    assert_allclose(found.mean(), np.array([one.mean() for one in expected])[GROUP], rtol=tolerance)
    mean, deviation = net.predict(GROUPS, return_std=True)
    assert_array_equal(mean, net.predict(GROUPS))
    assert mean.dtype == deviation.dtype == np.float32
    assert_allclose(deviation, found.std(), rtol=1e-6)
    levels = [0.05, 0.5, 0.8]
    values = net.predict_quantiles(GROUPS, levels)
    assert values.shape == (180, 3)
    assert_allclose(values, np.column_stack([found.ppf(level) for level in levels]), rtol=1e-6)
    assert_array_equal(net.predict_quantiles(GROUPS), net.predict_quantiles(GROUPS, [0.1, 0.5, 0.9]))


@pytest.mark.parametrize(("center", "unit"), [(0.0, 1.0), (5e3, 10.0), (-7.0, 1e-3)])
def test_numbers_follow_the_unit_of_the_targets(center, unit):
    plain, moved = fitted("gaussian_nll"), fitted("gaussian_nll", center + unit * Y)
    assert_allclose(
        moved.predict(GROUPS, return_std=True)[1], unit * plain.predict(GROUPS, return_std=True)[1], rtol=1e-3
    )
    quantiles = Quantiles([0.2, 0.5, 0.7, 0.9])
    values = fitted(quantiles, center + unit * Y, **SLOW_END).predict_quantiles(GROUPS)
    assert (np.diff(values, axis=1) > 0).all()
    scaled = (values - center) / unit
    for j, level in enumerate(quantiles.quantiles):
        for g in range(3):
            own = np.sort(Y[g == GROUP])
            # between the order statistics beside the quantile
            low, high = np.quantile(own, [level - 0.03, level + 0.03])
            assert low - 0.3 <= scaled[g == GROUP, j].min() <= scaled[g == GROUP, j].max() <= high + 0.3


@pytest.mark.parametrize("loss", [*DISTRIBUTIONS, Quantiles([0.25, 0.5, 0.75])])
def test_onnx_file_and_pickle_predict_the_same(loss):
    X, y = load_linnerud(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    both = y[:, :2]
    for targets in (both[:, 0], both):
        net = OrtGradientRegressor(Linear(), loss=loss, max_iter=40, learning_rate_init=0.05, random_state=0)
        net.fit(X, targets)
        session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
        numbers, further = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
        assert_array_equal(numbers.reshape(targets.shape), net.predict(X.astype(np.float32)))
        name = session.get_outputs()[1].name
        again = pickle.loads(pickle.dumps(net))
        if isinstance(loss, Quantiles):
            assert name == "quantiles"
            assert_array_equal(further, net.predict_quantiles(X.astype(np.float32)))
            assert further.shape == (*targets.shape, 3)
            assert_array_equal(further[..., 1], net.predict(X.astype(np.float32)))
            assert_array_equal(net.predict_quantiles(X, [0.75, 0.25]), net.predict_quantiles(X)[..., [2, 0]])
            assert_array_equal(again.predict_quantiles(X), net.predict_quantiles(X))
        else:
            assert name == ("scale" if loss in ("gaussian_nll", "laplace_nll") else "dispersion")
            location, own = net.predict(X), further.reshape(targets.shape).astype(float)
            factors = {"gaussian_nll": (1, 0, 0), "laplace_nll": (2, 0, 0), "negative_binomial": (0, 1, 1)}
            squared, mean, product = factors.get(loss, (0, 0, 1))
            expected = np.sqrt(squared * own**2 + mean * location + product * own * location**2)
            assert_allclose(net.predict(X, return_std=True)[1], expected, rtol=1e-5)
            assert_array_equal(again.predict(X, return_std=True), net.predict(X, return_std=True))


@pytest.mark.parametrize(
    ("loss", "changed"),
    [(GaussianNLL(), {"loss__min_scale": 5.0}), (Quantiles(), {"loss__quantiles": [0.2, 0.5, 0.8]})],
)
def test_parameters_set_after_a_fit_change_no_prediction(loss, changed):
    net = OrtGradientRegressor(Linear(), loss=loss, max_iter=3, random_state=0).fit(GROUPS, Y)
    before = net.predict_quantiles(GROUPS)
    again = pickle.loads(pickle.dumps(net.set_params(**changed)))
    assert_array_equal(again.predict_quantiles(GROUPS), before)


def two_outputs():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] A, float[N, 1] B) {
        A = MatMul(X, A_weight) B = MatMul(X, B_weight) }"""
    )
    for name in ("A_weight", "B_weight"):
        array = RNG.normal(size=(3, 1)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


class Exponent(Loss):
    """A loss of one score for a target, which predicts more."""

    tasks = frozenset({"regression"})

    def __call__(self, op, scores, y, link):
        return op.Abs(op.Sub(scores, y))

    def further_predictions(self, op, scores):
        return {"exponent": FurtherPrediction([op.Exp(scores)], "none")}


class NamedExponent(Exponent):
    targets = {"number": Target(("N", 1))}  # noqa: RUF012

    def __call__(self, op, scores, y, link):
        return op.Abs(op.Sub(scores, y["number"]))


@pytest.mark.parametrize(("loss", "y"), [(Exponent(), Y), (NamedExponent(), {"number": Y[:, None]})])
def test_losses_of_one_score_predict_more(loss, y):
    net = OrtGradientRegressor(Linear(), loss=loss, max_iter=3, random_state=0).fit(GROUPS, y)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.get_outputs()[1].name == "exponent"
    numbers, further = session.run(None, {session.get_inputs()[0].name: GROUPS})
    assert_allclose(further, np.exp(numbers), rtol=1e-5)
    several = OrtGradientMultiOutput(two_outputs(), loss={"A": Exponent(), "B": "squared_error"}, max_iter=1)
    found, weights = several.fit(GROUPS, {"A": Y, "B": Y}).predict(GROUPS), several.weights_
    for name in "AB":
        assert_allclose(found[name], (GROUPS @ weights[f"{name}_weight"])[:, 0], rtol=1e-5)
    median = fitted(Quantiles([0.5]), max_iter=3)
    assert_array_equal(median.predict_quantiles(GROUPS)[:, 0], median.predict(GROUPS))


@pytest.mark.parametrize("targets", [Y, np.c_[Y, 5.0 - 2.0 * Y]], ids=["one", "two"])
def test_quantiles_are_clipped_like_their_median(targets):
    learner = {"loss": Quantiles([0.1, 0.5, 0.75]), "max_iter": 20, "random_state": 0}
    free = OrtGradientRegressor(Linear(), **learner).fit(GROUPS, targets)
    clipped = OrtGradientRegressor(Linear(), clip_predictions=True, **learner).fit(GROUPS, targets)
    far = 20.0 * RNG.normal(size=(50, 3))
    found, low, high = clipped.predict_quantiles(far), targets.min(axis=0), targets.max(axis=0)
    expected = np.clip(free.predict_quantiles(far), low[..., None], high[..., None])
    assert_allclose(found, expected, rtol=1e-6)
    assert (found != free.predict_quantiles(far)).any()
    assert_array_equal(found[..., 1], clipped.predict(far))


class Alone(GaussianNLL):
    """A distribution that ensembles do not combine."""

    of_members = Loss.of_members


@pytest.mark.parametrize(("model", "callbacks"), [(TabM(2, hidden_layer_sizes=(4,)), None), (Linear(), "snapshots")])
def test_losses_without_ensembles_predict_the_mean_alone(model, callbacks):
    learner = {"max_iter": 6, "n_iter_no_change": np.inf, "random_state": 0}
    callbacks = [SnapshotEnsemble(2)] if callbacks else None
    net = OrtGradientRegressor(model, loss=Alone(), callbacks=callbacks, **learner).fit(GROUPS, Y)
    assert not hasattr(net, "predict_quantiles")
    with pytest.raises(AttributeError) as raised:
        net.predict_distribution(GROUPS)
    assert "several members" in str(raised.value.__cause__)
    with pytest.raises(ValueError, match=r"several members.* Alone has no of_members"):
        net.predict(GROUPS, return_std=True)
    assert len(net.to_onnx().graph.output) == 1
    assert net.predict(GROUPS).shape == (180,)


@pytest.mark.parametrize("place", ["a weight", "an input"])
def test_names_of_outputs_may_be_taken(place):
    names = "X, quantiles, b" if place == "a weight" else "quantiles, W, b"
    x, weights, bias = names.split(", ")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] {x}) => (float[N, 3] Y) {{ Y = Gemm({names}) }}"""
    )
    arrays = {weights: RNG.normal(size=(3, 3)), bias: np.zeros(3)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    net = OrtGradientRegressor(model, loss="quantiles", max_iter=2).fit(GROUPS, Y)
    assert_array_equal(net.predict_quantiles(GROUPS)[:, 1], net.predict(GROUPS))
    assert net.to_onnx().graph.output[1].name == "predict/quantiles"


def test_gamma_loss_is_the_density_of_scipy():
    net = fitted("gamma_nll")
    density = net.predict_distribution(GROUPS).logpdf(Y)
    assert_allclose(net.loss_, np.mean(-density - np.log(Y)), rtol=1e-5)


@pytest.mark.long
def test_intervals_cover_their_share_of_rows_that_are_held_out():
    X, y = load_diabetes(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
    for loss in ("gaussian_nll", "gamma_nll"):
        net = OrtGradientRegressor(Linear(), loss=loss, optimizer="lbfgs", tol=1e-4, random_state=0).fit(X, y)
        low, high = net.predict_quantiles(X_test, [0.1, 0.9]).T
        assert 0.7 < np.mean((low < y_test) & (y_test < high)) < 0.9
        assert (
            -net.predict_distribution(X_test).logpdf(y_test).mean()
            < -scipy.stats.norm(y.mean(), y.std()).logpdf(y_test).mean()
        )


def test_converters_of_scikit_learn_pipelines_take_the_prediction_alone():
    X, y = load_diabetes(return_X_y=True)
    X = X.astype(np.float32)
    pipeline = make_pipeline(
        StandardScaler(), OrtGradientRegressor(MLP((4,)), loss="gaussian_nll", max_iter=3, random_state=0)
    ).fit(X, y)
    session = onnxruntime.InferenceSession(
        to_onnx(pipeline, X[:1], target_opset=18).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (numbers,) = session.run(None, {session.get_inputs()[0].name: X})
    assert_allclose(numbers.ravel(), pipeline.predict(X), rtol=1e-5, atol=1e-3)
    assert len(pipeline.predict(X, return_std=True)) == 2


def test_what_a_loss_does_not_learn_is_refused():
    plain = OrtGradientRegressor(Linear(), max_iter=2)
    for net in (plain, plain.fit(GROUPS, Y)):
        assert not hasattr(net, "predict_distribution")
        assert not hasattr(net, "predict_quantiles")
    with pytest.raises(AttributeError) as raised:
        plain.predict_distribution(GROUPS)
    assert "needs a loss for a distribution, such as 'gaussian_nll', got loss='squared" in str(raised.value.__cause__)
    with pytest.raises(ValueError, match=r"return_std=True .* needs a loss for a distribution, .* got loss='squared_e"):
        plain.predict(GROUPS, return_std=True)
    with pytest.raises(ValueError, match="fitted before it was given loss='gaussian_nll': fit it again"):
        plain.set_params(loss="gaussian_nll").predict(GROUPS, return_std=True)
    quantiles = OrtGradientRegressor(Linear(), loss=Quantiles([0.1, 0.5]), max_iter=2).fit(GROUPS, Y)
    assert not hasattr(quantiles, "predict_distribution")
    with pytest.raises(
        ValueError, match=r"was not trained for the quantiles \[0.9\]: .* Quantiles\(\[0.1, 0.5, 0.9\]\)"
    ):
        quantiles.predict_quantiles(GROUPS, [0.1, 0.9])
    assert_array_equal(
        quantiles.predict_quantiles(GROUPS, np.float32([0.5, 0.1])), quantiles.predict_quantiles(GROUPS)[:, ::-1]
    )
    for wrong in ([0.0, 0.5], [1.5], 0.5, [], "median", [[0.5]], [np.nan]):
        with pytest.raises(ValueError, match="numbers between 0 and 1"):
            quantiles.predict_quantiles(GROUPS, wrong)
    with pytest.raises(ValueError, match="positive"):
        OrtGradientRegressor(loss="gamma_nll").fit(GROUPS, Y - Y.min())
    graph = Linear().build(3, 1, random_state=0)
    several = OrtGradientMultiOutput(graph, loss={graph.graph.output[0].name: "squared_error"})
    assert not hasattr(several, "predict_quantiles")
    assert hasattr(OrtGradientRegressor(loss="gaussian_nll"), "predict_quantiles")
    with pytest.raises(NotFittedError):
        OrtGradientRegressor(loss="gaussian_nll").predict_distribution(GROUPS)


@pytest.mark.parametrize("loss", ["negative_binomial", "gamma_nll"])
def test_distributions_beyond_the_type_are_refused(loss):
    x = np.linspace(0, 1, 50)[:, None]
    net = OrtGradientRegressor(Linear(), loss=loss, optimizer="lbfgs", tol=1e-3, target_scaling=None)
    net.fit(x, 1 + np.round(9 * x[:, 0]))
    weights = {name: np.zeros_like(array) for name, array in net.weights_.items()}
    (matrix,) = (array for array in weights.values() if array.ndim == 2)
    matrix.ravel()[:] = [1.0, 1.0]  # the logarithm of the mean, and about the dispersion, are x
    net.load_state(weights)
    near, far = np.array([[0.0], [80.0], [88.0], [100.0]]), np.array([[0.0], [100.0]])
    with np.errstate(over="ignore"):
        mean = net.predict(near)
    assert np.isfinite(mean[:3]).all()
    assert np.isinf(mean[3])
    expected = np.exp(80.0) * np.sqrt(np.log1p(np.exp(80.0)) + 1e-3)
    assert_allclose(net.predict(near[:2], return_std=True)[1][1], expected, rtol=1e-4)
    for call in (
        lambda: net.predict(far, return_std=True),
        lambda: net.predict_distribution(far),
        lambda: net.predict_quantiles(far),
    ):
        with pytest.raises(ValueError, match=r"prediction of 1 of 2 targets, such as of row 1, is beyond the largest"):
            call()
    wide = near[:3].astype(np.float32)  # a mean of 1.7e38 whose deviation is ten times as large
    with pytest.raises(ValueError, match=r"standard deviation of 1 of 3 targets, such as of row 2, .* of float32"):
        net.predict(wide, return_std=True)
    assert np.isfinite(net.predict_distribution(wide).std()).all()


@each_engine
@pytest.mark.parametrize("loss", [*DISTRIBUTIONS, Quantiles([0.25, 0.5, 0.75])])
def test_files_of_distributions_name_the_way_to_train_further(loss, engine):
    net = OrtGradientRegressor(Linear(), loss=loss, engine=engine, max_iter=3, tol=0, random_state=0)
    written = net.fit(GROUPS, Y).to_onnx()
    message = r"scores for y with 1 column\(s\), but the graph's output has 1 .* go on with the estimator that wrote it"
    with pytest.raises(ValueError, match=message):
        OrtGradientRegressor(written, loss=loss, engine=engine).fit(GROUPS, Y)
    again = pickle.loads(pickle.dumps(net)).partial_fit(GROUPS, Y)
    assert again.loss_ < net.loss_
