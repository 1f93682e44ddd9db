"""Converters of our own: what their graphs compute, against scikit-learn, on rows that tell wrong ones apart.

That they can be trained, with right gradients, is in contracts/test_fitted_models.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special
from sklearn.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, VotingClassifier, VotingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler, Nystroem, RBFSampler, SkewedChi2Sampler
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.transformed import GAPS, NUMBER, X, outputs, tuned

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


FUNCTIONS = [
    np.abs, np.arcsinh, np.arctan, np.cos, np.cosh, np.exp, np.exp2, np.expm1, np.fabs, np.log, np.log10, np.log1p,
    np.log2, np.negative, np.reciprocal, np.sin, np.sinh, np.sqrt, np.square, np.tan, np.tanh, special.expit,
    special.logit,
]  # fmt: skip


def assert_transforms(transformer, rows=X, fitted_on=X, tolerance=1e-6):
    """Assert that the graph of a transformer gives what scikit-learn gives for rows in float64."""
    transformer.fit(fitted_on)
    expected = transformer.transform(np.array(rows, np.float64))
    assert_allclose(outputs(transformer, rows)[-1], expected, rtol=tolerance, atol=tolerance)


class TestTransformers:
    @pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
    def test_functions(self, function):
        rows = np.abs(X) / 5 + np.float32(0.1)  # within the domains of all
        assert_transforms(FunctionTransformer(function, validate=True), rows, rows)

    def test_functions_of_negative_numbers(self):
        chosen = make_union(*(FunctionTransformer(f) for f in (np.abs, np.square, np.sin, np.expm1, np.arcsinh)))
        assert_transforms(chosen)

    @pytest.mark.parametrize(
        "transformer", [FunctionTransformer(np.sign), FunctionTransformer(np.log, kw_args={"where": True})]
    )
    def test_other_functions(self, transformer):
        model = make_pipeline(transformer, Ridge()).fit(np.abs(X), NUMBER)
        with pytest.raises(ModelError, match=r"of numpy and scipy\.special named absolute, arcsinh") as caught:
            tuned(OrtGradientRegressor, model, np.abs(X), NUMBER)
        named = ", ".join(sorted(function.__name__ for function in FUNCTIONS))
        assert f"named {named}" in str(caught.value)

    def test_max_abs_of_a_row_ignores_sign(self):
        rows = np.concatenate([X, -np.abs(X[:5]), np.zeros((1, 4), np.float32)])
        assert_transforms(Normalizer("max"), rows)

    @pytest.mark.parametrize(
        "clusters",
        [KMeans(3, n_init=1, random_state=0), MiniBatchKMeans(3, n_init=1, random_state=0), BisectingKMeans(3)],
    )
    def test_distances_to_centres(self, clusters):
        assert_transforms(clusters)
        centres = clusters.cluster_centers_.astype(np.float32)
        assert_array_equal(np.diag(outputs(clusters, centres)[-1]), 0.0)

    @pytest.mark.parametrize("settings", [{}, {"strategy": "median"}, {"strategy": "constant", "fill_value": 2.0}])
    @pytest.mark.parametrize("keep_empty_features", [False, True])
    @pytest.mark.filterwarnings("ignore:Skipping features", "ignore:Currently, when `keep_empty_feature:FutureWarning")
    def test_indicators_beside_imputed_values(self, settings, keep_empty_features):
        fitted_on = GAPS.copy()
        fitted_on[:, 1] = np.nan
        fitted_on[:, 2] = X[:, 2]  # so that new gaps in it have no indicator
        imputer = SimpleImputer(add_indicator=True, keep_empty_features=keep_empty_features, **settings)
        assert_transforms(imputer, GAPS, fitted_on)

    @pytest.mark.parametrize(
        "imputer",
        [SimpleImputer(missing_values=-9, add_indicator=True), MissingIndicator(missing_values=-9, features="all"),
         KNNImputer(missing_values=-9)],
    )  # fmt: skip
    def test_gaps_that_a_number_stands_for(self, imputer):
        rows = np.nan_to_num(GAPS, nan=-9)
        assert_transforms(imputer, rows, rows)

    def test_indicators_alone(self):
        fitted_on = np.where(np.arange(4) == 2, X, GAPS)
        assert_transforms(MissingIndicator(error_on_new=False), GAPS, fitted_on)
        assert_transforms(MissingIndicator(features="all"), GAPS, fitted_on)

    def test_indicators_that_raise_for_new_missing_values(self):
        rows = np.where(np.arange(4) == 2, X, GAPS)
        model = make_pipeline(MissingIndicator(), Ridge()).fit(rows, NUMBER)
        with pytest.raises(ModelError, match=r"missing values in columns that had none.*error_on_new=False"):
            tuned(OrtGradientRegressor, model, rows, NUMBER)
        assert_transforms(MissingIndicator(), GAPS, GAPS)  # with missing values in all columns

    @pytest.mark.parametrize("settings", [{}, {"n_neighbors": 1}, {"n_neighbors": 500}, {"add_indicator": True}])
    @pytest.mark.parametrize("keep_empty_features", [False, True])
    def test_gaps_filled_by_neighbors(self, settings, keep_empty_features):
        fitted_on = GAPS[:40].copy()
        fitted_on[:, 1] = np.nan
        fitted_on[:, 3] = np.where(np.arange(40) < 3, X[:40, 3], np.nan)  # fewer donors than neighbors
        imputer = KNNImputer(keep_empty_features=keep_empty_features, **settings)
        assert_transforms(imputer, np.concatenate([GAPS, fitted_on]), fitted_on, tolerance=1e-5)

    @pytest.mark.parametrize(
        ("degree", "extrapolation"),
        [(d, e) for d in (1, 2, 3) for e in ("constant", "linear", "continue", "periodic") if (d, e) != (1, "linear")],
    )
    @pytest.mark.parametrize("settings", [{}, {"knots": "quantile", "include_bias": False}], ids=str)
    def test_splines(self, degree, extrapolation, settings):
        rows = np.concatenate([X, 2 * X, [X.max(axis=0)], [X.min(axis=0)]]).astype(np.float32)
        splines = SplineTransformer(n_knots=4, degree=degree, extrapolation=extrapolation, **settings)
        assert_transforms(splines, rows, X, tolerance=2e-6)

    @pytest.mark.parametrize(
        "settings", [{"extrapolation": "error"}, {"degree": 0}, {"degree": 1, "extrapolation": "linear"}], ids=str
    )
    def test_other_splines(self, settings):
        model = make_pipeline(SplineTransformer(**settings), Ridge()).fit(X, NUMBER)
        with pytest.raises(ModelError, match=r"SplineTransformer\(.*\) has no ONNX form: other settings"):
            tuned(OrtGradientRegressor, model, X, NUMBER)

    @pytest.mark.parametrize("n_quantiles", [2, 7, 64, 80])
    def test_quantiles_on_a_normal_scale(self, n_quantiles):
        fitted_on = np.stack([X[:, 0], np.round(X[:, 1], 1), np.round(X[:, 2]), np.sign(X[:, 3])], axis=1)
        rows = np.concatenate([fitted_on, fitted_on + np.float32(0.013), 2 * fitted_on])
        transformer = QuantileTransformer(n_quantiles=n_quantiles, output_distribution="normal")
        assert_transforms(transformer, rows, fitted_on, tolerance=2e-5)

    @pytest.mark.parametrize("power", range(1, 7))
    def test_tails_of_the_normal_scale(self, power):
        rows = np.linspace(0, 1, 65)[:, None]
        transformer = QuantileTransformer(n_quantiles=65, output_distribution="normal").fit(rows)
        tails = np.array([[10.0**-power], [1 - 10.0**-power]], np.float32)
        expected = special.ndtri(np.float64(tails))
        assert_allclose(outputs(transformer, tails)[-1], expected, rtol=1e-6)

    @pytest.mark.parametrize(
        "transformer",
        [
            RBFSampler(n_components=6, random_state=0), SkewedChi2Sampler(skewedness=9, n_components=5, random_state=0),
            Nystroem(n_components=7, random_state=0), Nystroem(kernel="linear", n_components=3, random_state=0),
            Nystroem(kernel="poly", n_components=7, random_state=0),
            Nystroem(kernel="poly", gamma=0.3, coef0=0.4, degree=2, n_components=7, random_state=0),
            Nystroem(kernel="sigmoid", coef0=0, n_components=4, random_state=0),
        ],
        ids=str,
    )  # fmt: skip
    def test_approximated_kernels(self, transformer):
        assert_transforms(transformer, tolerance=1e-5)

    @pytest.mark.parametrize("settings", [{}, {"sample_steps": 1}, {"sample_steps": 4, "sample_interval": 0.3}])
    def test_additive_kernel(self, settings):
        rows = np.maximum(X, 0)  # which leaves zeros
        assert_transforms(AdditiveChi2Sampler(**settings), rows, rows)


class TestRegressors:
    @pytest.mark.parametrize("metric", ["minkowski", "manhattan"])
    @pytest.mark.parametrize("y", [NUMBER, np.stack([NUMBER, X[:, 0]], axis=1)], ids=["one", "two"])
    @pytest.mark.parametrize("algorithm", ["brute", "kd_tree"])
    def test_neighbors_at_no_distance_count_alone(self, metric, y, algorithm):
        rows = np.concatenate([X, X[:5]])  # five rows twice, with other targets
        model = KNeighborsRegressor(3, weights="distance", metric=metric, algorithm=algorithm)
        model.fit(rows, np.concatenate([y, y[5:10]]))
        assert_allclose(outputs(model, X)[0].reshape(y.shape), model.predict(X), rtol=1e-6)
        assert_allclose(outputs(model, X[:1])[0].ravel(), np.ravel(y[0] + y[5]) / 2, rtol=1e-6)
        model.fit(X, y)  # without ties
        assert_allclose(outputs(model, X / 2)[0].reshape(y.shape), model.predict(X / 2), rtol=1e-4, atol=1e-5)

    def test_written_back_neighbors_are_found_again(self):
        model = KNeighborsRegressor(3, weights="distance", algorithm="kd_tree").fit(X[:40], NUMBER[:40])
        after = tuned(OrtGradientRegressor, model, X[40:], NUMBER[40:], learning_rate_init=0.1, max_iter=20)
        back = after.to_sklearn()
        assert np.abs(back._fit_X - model._fit_X).max() > 0.5
        assert_array_equal(np.asarray(back._tree.data), back._fit_X)
        assert_allclose(back.predict(X), after.predict(X), rtol=1e-4, atol=1e-4)

    def test_weights_of_votes(self):
        parts = [("a", Ridge()), ("b", "drop"), ("c", KNeighborsRegressor())]
        model = VotingRegressor(parts, weights=[1, 7, 4]).fit(X, NUMBER)
        given = model.weights
        assert_allclose(outputs(model, X)[0].ravel(), model.predict(X), rtol=1e-5, atol=1e-5)
        assert model.weights is given

    def test_soft_votes_have_probabilities_however_they_are_transformed(self):
        y = NUMBER > 0
        parts = [("a", LogisticRegression()), ("b", GaussianNB())]
        model = VotingClassifier(parts, voting="soft", weights=[3, 1]).fit(X, y)
        assert model.flatten_transform
        after = tuned(OrtGradientClassifier, model, X, y, learning_rate_init=0.0)
        assert_allclose(after.predict_proba(X), model.predict_proba(X), atol=1e-5)

    @pytest.mark.parametrize(
        "transformer",
        [
            StandardScaler(), StandardScaler(with_mean=False), StandardScaler(with_std=False), MinMaxScaler((-2, 1)),
            MaxAbsScaler(), RobustScaler(), RobustScaler(with_centering=False), PowerTransformer(),
            PowerTransformer(standardize=False), make_pipeline(RobustScaler(), MinMaxScaler()),
            FunctionTransformer(np.sinh, np.arcsinh),
        ],
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize("outputs_of", [1, 2])
    def test_transformed_targets(self, transformer, outputs_of):
        y = np.stack([NUMBER, 3 - X[:, 0]], axis=1)[:, :outputs_of].squeeze()
        model = TransformedTargetRegressor(LinearRegression(), transformer=transformer, check_inverse=False).fit(X, y)
        expected = model.predict(X)
        assert_allclose(outputs(model, X)[0].reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
    @pytest.mark.parametrize("method", ["yeo-johnson", "box-cox"])
    def test_powers_of_targets(self, method, shift):
        y = np.exp(NUMBER / 3) if method == "box-cox" else NUMBER + shift
        model = TransformedTargetRegressor(Ridge(), transformer=PowerTransformer(method)).fit(X, y)
        assert_allclose(outputs(model, X)[0].ravel(), model.predict(X), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("steps", [[PowerTransformer("box-cox", standardize=False)], [StandardScaler(), 0]])
    def test_a_pipeline_of_target_transformers_is_trained(self, steps):
        """Each of its numbers is written back to its own step."""
        steps = [MinMaxScaler((1, 3)) if step == 0 else step for step in steps]
        y = np.exp(NUMBER / 5)
        model = TransformedTargetRegressor(Ridge(), transformer=make_pipeline(*steps)).fit(X, y)
        after = tuned(OrtGradientRegressor, model, X, y + 1, trainable="*.transformer.*", learning_rate_init=0.02)
        back = after.to_sklearn()
        assert len([name for name in after.weights_ if ".transformer." in name]) == (1 if len(steps) == 1 else 4)
        assert np.abs(back.predict(X) - model.predict(X)).max() > 0.01
        assert_allclose(back.predict(X), after.predict(X), rtol=1e-4)

    @pytest.mark.parametrize("exponent", [2.0, 0.0])
    def test_a_box_cox_power_of_two_is_no_exception(self, exponent):
        """Only Yeo and Johnson divide by 2 - lambda; where it divides by zero, there is a logarithm."""
        y = np.exp(NUMBER / 10)
        model = TransformedTargetRegressor(Ridge(), transformer=PowerTransformer("box-cox", standardize=False))
        model.fit(X, y)
        model.transformer_.lambdas_[:] = exponent
        model.regressor_.fit(X, model.transformer_.transform(y[:, None]).ravel())
        if exponent:
            assert_allclose(outputs(model, X)[0].ravel(), model.predict(X), rtol=1e-5)
        else:
            with pytest.raises(ModelError, match="an exponent is next to 0"):
                tuned(OrtGradientRegressor, model, X, y)

    @pytest.mark.parametrize("engine", available_engines())
    def test_a_box_cox_power_of_two_of_features_has_a_gradient(self, engine):
        rows = np.abs(X) + np.float32(0.5)
        model = make_pipeline(PowerTransformer("box-cox", standardize=False), Ridge()).fit(rows, NUMBER)
        model[0].lambdas_[:] = 2.0
        model[1].fit(model[0].transform(rows), NUMBER)
        still = tuned(OrtGradientRegressor, model, rows, NUMBER, learning_rate_init=0.0, max_iter=1, shuffle=False,
                      batch_size=80, engine=engine)  # fmt: skip
        run = still._state
        run.live.step.compute_gradients(80.0)
        found = run.parameters.gradient[run.parameters.span("powertransformer.lambdas")]
        x = rows.astype(np.float64)
        slopes = (2 * x**2 * np.log(x) - x**2 + 1) / 4  # of (x**lambda - 1) / lambda at 2
        wrong = model.predict(x) - NUMBER
        assert_allclose(found, (2 * wrong[:, None] * slopes * model[1].coef_).mean(axis=0), rtol=1e-4, atol=1e-5)

    def test_transformed_targets_of_rows_with_gaps(self):
        inner = HistGradientBoostingRegressor(max_iter=3)
        model = TransformedTargetRegressor(inner, func=np.log, inverse_func=np.exp).fit(GAPS, np.exp(NUMBER))
        after = tuned(OrtGradientRegressor, model, GAPS, np.exp(NUMBER), max_iter=2)
        assert_allclose(after.to_sklearn().predict(GAPS), after.predict(GAPS), rtol=1e-4)

    def test_scale_of_targets_is_written_back_with_its_variance(self):
        model = TransformedTargetRegressor(Ridge(), transformer=StandardScaler()).fit(X, 5 * NUMBER)
        after = tuned(OrtGradientRegressor, model, X, NUMBER, trainable="*.transformer.*", learning_rate_init=0.1)
        scaler = after.to_sklearn().transformer_
        assert scaler.scale_ < model.transformer_.scale_ - 0.1
        assert_allclose(scaler.var_, scaler.scale_**2)
        assert_array_equal(after.to_sklearn().regressor_.coef_, model.regressor_.coef_)

    def test_scale_and_unit_variance_are_distinguished(self):
        model = TransformedTargetRegressor(Ridge(), transformer=StandardScaler()).fit(X, np.resize([1.0, -1.0], 80))
        assert model.transformer_.scale_ == model.transformer_.var_ == 1
        after = tuned(OrtGradientRegressor, model, X, NUMBER, trainable="*.scale")
        assert after.to_sklearn().transformer_.scale_ != 1

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"transformer": QuantileTransformer(n_quantiles=5)}, "inverse of QuantileTransformer"),
            ({"func": np.copy, "inverse_func": np.copy}, "func='copy'"),
        ],
    )
    def test_other_transformations_of_targets(self, settings, text):
        model = TransformedTargetRegressor(Ridge(), **settings).fit(X, NUMBER)
        with pytest.raises(ModelError, match=text):
            tuned(OrtGradientRegressor, model, X, NUMBER)

    def test_processes_are_summed_exactly(self):
        for targets in (NUMBER, np.stack([NUMBER, -NUMBER], axis=1)):
            model = GaussianProcessRegressor(2.0 * kernels.RBF(1e8), alpha=1.0, optimizer=None).fit(X, targets)
            model.alpha_[:] = np.resize([1e6, -1e6], (80, 1)).reshape(80, *[1] * (targets.ndim - 1))
            model.alpha_[50:52] = [[0.01], [0.0]] if targets.ndim > 1 else [0.01, 0.0]
            assert_allclose(outputs(model, X)[0], 0.02, rtol=1e-5)
