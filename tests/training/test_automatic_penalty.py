"""The penalty on weights that ``alpha="auto"`` stands for."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import skew

from onnxtrain_sklearn import MLP, AdamW, Linear, OrtGradientClassifier, OrtGradientRegressor

RNG = np.random.RandomState(0)
X = RNG.normal(size=(400, 3)).astype(np.float32)
LABELS = (X[:, 0] + RNG.normal(size=400) > 0).astype(int)
NUMBERS = 3 * X[:, 0] + RNG.normal(size=400) + 7
STILL = {"learning_rate_init": 0.0, "max_iter": 1, "shuffle": False, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore:Training has not converged")


def squares(estimator):
    return sum(float((array.astype(float) ** 2).sum()) for array in estimator.weights_.values() if array.ndim == 2)


def log_loss_of(classifier, X, y):
    return -np.log(classifier.predict_proba(X.astype(float))[np.arange(len(y)), y]).mean()


@pytest.mark.parametrize("weight", [1.0, 1e-6, 1e6 + 0.5])
@pytest.mark.parametrize("batch_size", ["auto", 50, 1000])
def test_an_epoch_of_labels_has_twice_half_the_squares_over_all_rows(batch_size, weight):
    classifier = OrtGradientClassifier(MLP((5,)), batch_size=batch_size, **STILL)
    classifier.fit(X, LABELS, sample_weight=np.full(400, weight))
    assert_allclose(classifier.loss_, log_loss_of(classifier, X, LABELS) + 2 / 2 * squares(classifier) / 400, rtol=1e-5)


@pytest.mark.parametrize("accumulate", [2, 3])
def test_minibatches_of_a_step_have_the_penalty_of_one(accumulate):
    classifier = OrtGradientClassifier(MLP((5,)), optimizer=AdamW(accumulate=accumulate), batch_size=20, **STILL)
    classifier.fit(X[:360], LABELS[:360])
    assert_allclose(
        classifier.loss_, log_loss_of(classifier, X[:360], LABELS[:360]) + squares(classifier) / 360, rtol=1e-5
    )


@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs"])
@pytest.mark.parametrize("estimator", [OrtGradientClassifier, OrtGradientRegressor])
def test_whole_weights_are_repeated_rows(estimator, optimizer):
    y = LABELS if estimator is OrtGradientClassifier else NUMBERS
    repeats = np.random.RandomState(3).randint(0, 4, 60)
    shared = {
        "optimizer": optimizer,
        "learning_rate_init": 0.1,
        "batch_size": 500,
        "max_iter": 10,
        "tol": -np.inf,
        "random_state": 0,
    }
    weighted = estimator(MLP((4,)), **shared).fit(X[:60], y[:60], sample_weight=repeats)
    repeated = estimator(MLP((4,)), **shared).fit(np.repeat(X[:60], repeats, axis=0), np.repeat(y[:60], repeats))
    unpenalized = estimator(MLP((4,)), alpha=0, **shared).fit(X[:60], y[:60], sample_weight=repeats)
    for name, array in repeated.weights_.items():
        assert_allclose(weighted.weights_[name], array, rtol=1e-4, atol=1e-5)
    assert any(np.abs(unpenalized.weights_[n] - array).max() > 1e-3 for n, array in repeated.weights_.items())


def test_only_ratios_of_other_weights_matter():
    weights = np.random.RandomState(3).uniform(0.5, 2, 400)
    first, *others = (
        OrtGradientClassifier(MLP((4,)), max_iter=5, random_state=0).fit(X, LABELS, sample_weight=factor * weights)
        for factor in (1.0, 1e-9, 1e9)
    )
    for other in others:
        assert_allclose(other.predict_proba(X), first.predict_proba(X), rtol=1e-4)


def test_class_weights_are_weights_of_rows():
    for class_weight in ({0: 1.0, 1: 3.0}, {0: 0.5, 1: 2.0}):
        factors = np.array([class_weight[0], class_weight[1]])
        by_class = OrtGradientClassifier(MLP((4,)), class_weight=class_weight, max_iter=5, random_state=0).fit(
            X, LABELS
        )
        by_row = OrtGradientClassifier(MLP((4,)), max_iter=5, random_state=0)
        by_row.fit(X, LABELS, sample_weight=factors[LABELS])
        assert (by_class.predict_proba(X) == by_row.predict_proba(X)).all()


def test_description_names_the_penalty():
    classifier = OrtGradientClassifier(MLP((5,)), batch_size=50, max_iter=1, random_state=0)
    assert classifier.describe().alpha is None
    classifier.fit(X, LABELS)
    assert_allclose(classifier.describe().alpha, 2 * 50 / 400)
    assert "penalty on weights: alpha=0.25" in str(classifier.describe())
    classifier.partial_fit(X, LABELS)
    assert classifier.describe().alpha == 0
    assert "penalty" not in str(classifier.describe())


def test_numbers_have_a_penalty_of_ten_in_units_of_their_deviation():
    regressor = OrtGradientRegressor(MLP((5,)), **STILL).fit(X, NUMBERS)
    error = np.mean((regressor.predict(X) - NUMBERS) ** 2) / NUMBERS.var()
    assert_allclose(regressor.loss_, error + 10 / 2 * squares(regressor) / 400, rtol=1e-5)


TAILS = RNG.exponential(size=400) ** 1.2  # between 1 and 4
COUNTS = RNG.poisson(np.exp(2 * RNG.normal(size=400)))  # above 4


@pytest.mark.parametrize("weights", [None, RNG.randint(0, 4, 400)], ids=["equal", "repeats"])
@pytest.mark.parametrize(
    "y", [NUMBERS, TAILS, -TAILS, COUNTS, np.column_stack([NUMBERS, TAILS, COUNTS])], ids=["normal", "right", "left",
    "far", "several"]
)  # fmt: skip
def test_heavy_tails_have_the_penalty_times_their_skewness(y, weights):
    repeats = np.ones(400, int) if weights is None else weights
    factors = np.clip(np.abs(skew(np.repeat(y, repeats, axis=0), axis=0)), 1, 4)
    regressor = OrtGradientRegressor(MLP((5,)), batch_size=100, **STILL).fit(X, y, sample_weight=weights)
    rows = np.count_nonzero(repeats)
    assert regressor.describe().alpha == pytest.approx(10 * 100 / rows * np.mean(factors), rel=1e-6)


def test_missing_numbers_do_not_count_in_the_skewness():
    known = np.arange(400) % 3 > 0
    second = np.random.RandomState(4).exponential(size=400)
    found = []
    for numbers in (NUMBERS, np.where(known, second, 1e6)):
        y = np.column_stack([NUMBERS, numbers])
        y[~known, 1] = np.nan
        found.append(OrtGradientRegressor(MLP((5,)), batch_size=400, **STILL).fit(X, y).describe().alpha)
    assert 1.2 < skew(second[known]) < 3.9
    assert found[1] / found[0] == pytest.approx((1 + skew(second[known])) / 2, rel=1e-6)


@pytest.mark.parametrize("weights", [None, np.arange(400) % 3], ids=["equal", "repeats"])
def test_targets_held_out_do_not_count_in_the_skewness(weights):
    repeats = np.ones(400, int) if weights is None else weights
    settings = {"early_stopping": True, "validation_split": np.arange(300, 400), "max_iter": 1, "random_state": 0}
    found, numbers = [], TAILS**0.7
    for factor in (1.0, 1e3):
        y = np.append(numbers[:300], factor * numbers[300:])
        found.append(OrtGradientRegressor(MLP((5,)), batch_size=100, **settings).fit(X, y, sample_weight=weights))
    skewness = skew(np.repeat(numbers[:300], repeats[:300]))
    assert 1 < skewness < 4
    assert found[0].describe().alpha == pytest.approx(10 * 100 / np.count_nonzero(repeats) * skewness, rel=1e-6)
    for name, array in found[0].weights_.items():
        assert_array_equal(found[1].weights_[name], array)


def test_a_heavy_tail_beside_noise_is_followed_less():
    rng = np.random.RandomState(2)
    train, test = rng.normal(size=(2, 200, 10)).astype(np.float32)
    y_train, y_test = (np.exp(part[:, 0] + 1.5 * rng.normal(size=200)) for part in (train, test))
    found = [
        OrtGradientRegressor(alpha=a, random_state=0).fit(train, y_train).score(test, y_test) for a in ("auto", 10)
    ]
    assert found[0] > found[1] + 0.05


@pytest.mark.parametrize(
    ("estimator", "rows", "y"),
    [
        (OrtGradientClassifier(Linear(), **STILL), X, LABELS),
        (OrtGradientClassifier(MLP(()), **STILL), X, LABELS),
        (OrtGradientClassifier(MLP((5,)), loss="hinge", **STILL), X, LABELS),
        (OrtGradientRegressor(MLP((5,)), loss="absolute_error", **STILL), X, NUMBERS),
        (OrtGradientRegressor(MLP((5,)), target_scaling=None, **STILL), X, NUMBERS),
        (OrtGradientClassifier(MLP((5,)).build(3, 1, random_state=0), **STILL), X, LABELS),
    ],
    ids=["linear", "no hidden layer", "another loss", "loss of numbers", "unscaled", "given graph"],
)
def test_other_models_losses_and_rows_have_no_penalty(estimator, rows, y):
    found = estimator.fit(rows, y).loss_
    assert found == estimator.set_params(alpha=0).fit(rows, y).loss_


def test_lbfgs_takes_the_penalty_of_all_rows():
    classifier = OrtGradientClassifier(MLP((3,)), optimizer="lbfgs", max_iter=30, random_state=0).fit(X, LABELS)
    assert_allclose(classifier.loss_, log_loss_of(classifier, X, LABELS) + squares(classifier) / 400, rtol=1e-4)


def test_partial_fit_has_no_penalty():
    auto, none = (OrtGradientClassifier(MLP((5,)), alpha=alpha, random_state=0) for alpha in ("auto", 0))
    for part in (auto, none):
        part.partial_fit(X, LABELS, classes=[0, 1])
    assert auto.loss_ == none.loss_
    assert (auto.predict_proba(X) == none.predict_proba(X)).all()


def test_noisy_labels_of_few_rows_are_not_predicted_with_certainty():
    rng = np.random.RandomState(1)
    train, test = rng.normal(size=(2, 150, 40)).astype(np.float32)
    y_train, y_test = ((part[:, 0] + 1.5 * rng.normal(size=150) > 0).astype(int) for part in (train, test))
    auto, none = (OrtGradientClassifier(alpha=a, random_state=0).fit(train, y_train) for a in ("auto", 0))
    assert log_loss_of(auto, test, y_test) < 0.8 * log_loss_of(none, test, y_test)


def test_another_name_than_auto_is_refused():
    with pytest.raises(ValueError, match="alpha"):
        OrtGradientClassifier(alpha="automatic").fit(X, LABELS)


@pytest.mark.parametrize("weights", [None, RNG.uniform(0.1, 3, 400)], ids=["alike", "weighted"])
def test_penalty_of_squares_has_the_bits_of_its_graph(weights):
    # NumPy computes the penalty of squares; for a share of absolute values, which float32 rounds to 0, the graph does.
    of_numpy, of_graph = (
        OrtGradientClassifier(MLP((8,)), alpha=0.37, l1_ratio=share, max_iter=5, random_state=0)
        .fit(X, LABELS, weights)
        .weights_
        for share in (0.0, 1e-300)
    )
    assert all(np.array_equal(of_numpy[name], of_graph[name]) for name in of_graph)


def test_description_suggests_to_clip_predictions_of_targets_with_outliers():
    y = np.column_stack([NUMBERS, NUMBERS])
    settings = {"batch_size": 400, "max_iter": 1, "random_state": 0}
    assert not OrtGradientRegressor(MLP((5,)), **settings).fit(X, y).describe().targets
    y[7, 1] = -100.0
    deviations = (y[:, 1].mean() + 100) / y[:, 1].std()
    regressor = OrtGradientRegressor(MLP((5,)), **settings).fit(X, y)
    assert f"-100 to {y[:, 1].max():.4g}, up to {deviations:.0f} standard" in regressor.describe().targets
    assert "set clip_predictions=True" in str(regressor.describe())
    assert not OrtGradientRegressor(MLP((5,)), clip_predictions=True, **settings).fit(X, y).describe().targets
