"""Callbacks that measure, stop, log, average and look for a rate: what they say is what scikit-learn and numpy say."""

from __future__ import annotations

import io
import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.metrics import f1_score, log_loss, mean_poisson_deviance
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, ConvNet, OrtGradientClassifier, OrtGradientRegressor, TabM
from onnxtrain_sklearn.callbacks import (
    CALLBACKS,
    Callback,
    EarlyStopping,
    EpochScoring,
    GradientStatistics,
    LearningRateFinder,
    MetricLogger,
    SnapshotEnsemble,
    WeightAveraging,
)
from tests.helpers.callbacks import Scores, Writer, net, single_callback
from tests.helpers.data import blobs, line
from tests.helpers.environment import each_engine
from tests.helpers.training import weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs(classes=3)
TRAIN, HELD = slice(None, None, 2), slice(1, None, 2)
VALIDATION = {"X_val": X[HELD], "y_val": Y[HELD]}


def macro(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    return f1_score(y, estimator.predict(X), average="macro", sample_weight=sample_weight)


def stepwise(estimator: Any, measure: Any, epochs: int) -> list[float]:
    """Return what a function of a fitted estimator gives after each epoch."""
    return [
        measure(clone(estimator).set_params(max_iter=i + 1, callbacks=None).fit(X[TRAIN], Y[TRAIN]))
        for i in range(epochs)
    ]


@each_engine
def test_scores_and_losses_of_both_parts_are_those_of_scikit_learn(engine):
    callbacks = [
        EpochScoring(macro),
        EpochScoring("loss"),
        EpochScoring("loss", "train"),
        EpochScoring("accuracy", "train"),
    ]
    estimator = net(*callbacks, model=MLP((6,), dropout=0.3), max_iter=3, engine=engine, alpha=0.5)
    rows = estimator.fit(X[TRAIN], Y[TRAIN], **VALIDATION).history_
    for name, measure in {
        "validation_macro": lambda e: macro(e, X[HELD], Y[HELD]),
        "validation_loss": lambda e: log_loss(Y[HELD], e.predict_proba(X[HELD])),
        "train_loss": lambda e: log_loss(Y[TRAIN], e.predict_proba(X[TRAIN])),
        "train_accuracy": lambda e: e.score(X[TRAIN], Y[TRAIN]),
    }.items():
        assert_allclose([row[name] for row in rows], stepwise(estimator, measure, 3), rtol=1e-5)


def test_the_loss_counts_weights_and_is_in_the_units_that_are_trained():
    X, y = line(n=9000)  # in more than one piece
    weights = np.arange(9000) % 3
    scaled = OrtGradientRegressor(MLP((4,)), callbacks=[EpochScoring("loss", "train")], max_iter=2, random_state=0)
    scaled.fit(X, 50 * y + 7, sample_weight=weights)
    error = np.average((scaled.predict(X) - 50 * y - 7) ** 2, weights=weights)
    deviation = np.average((50 * y + 7 - np.average(50 * y + 7, weights=weights)) ** 2, weights=weights)
    assert_allclose(scaled.history_[-1]["train_loss"], error / deviation, rtol=1e-4)


def test_the_loss_of_a_link_and_of_several_networks():
    X, y = line()
    counts = np.round(np.exp(y))
    poisson = OrtGradientRegressor(MLP((4,)), loss="poisson", callbacks=[EpochScoring("loss", "train")], max_iter=2)
    poisson.set_params(target_scaling=None, random_state=0).fit(X, counts)
    mean = poisson.predict(X)
    assert_allclose(poisson.history_[-1]["train_loss"], np.mean(mean - counts * np.log(mean)), rtol=1e-4)
    members = OrtGradientRegressor(
        TabM(n_members=3, hidden_layer_sizes=(4,)), callbacks=[EpochScoring("loss", "train")]
    )
    members.set_params(max_iter=2, target_scaling=None, random_state=0).fit(X, y)
    assert_allclose(members.history_[-1]["train_loss"], np.mean((members.predict(X) - y) ** 2), rtol=1e-4)
    assert mean_poisson_deviance(counts, mean) > 0


def test_callbacks_without_their_data_or_names_are_refused():
    with pytest.raises(ValueError, match="'validation_loss' needs validation data: set early_stopping=True"):
        net(EpochScoring("loss")).fit(X, Y)
    with pytest.raises(ValueError, match="must be the name of a scorer"):
        net(EpochScoring("loss_", "train")).fit(X, Y)
    with pytest.raises(ValueError, match="monitor='gain' is no entry of history_, which has epoch, step, loss"):
        net(EarlyStopping("gain")).fit(X, Y)
    with pytest.raises(ValueError, match="'on' parameter of EpochScoring"):
        net(EpochScoring("loss", on="test")).fit(X, Y)
    with pytest.raises(TypeError, match="must be the name of a scorer, 'loss' or a function, got 3"):
        net(EpochScoring(3)).fit(X, Y)


@pytest.mark.parametrize("monitor", ["validation_loss", "validation_neg_log_loss", "loss", "train_accuracy"])
@pytest.mark.parametrize("restore", [True, False])
def test_early_stopping_ends_at_the_first_best_epoch_and_the_patience(monitor, restore):
    settings = {"max_iter": 40, "learning_rate_init": 0.3, "n_iter_no_change": np.inf}
    scoring = {"loss": EpochScoring("loss")}.get(monitor, EpochScoring(*reversed(monitor.split("_", 1))))
    seen = [row[monitor] for row in net(scoring, **settings).fit(X[TRAIN], Y[TRAIN], **VALIDATION).history_]
    gains = (
        -np.array(seen) if (monitor.endswith("_loss") and "neg" not in monitor) or monitor == "loss" else np.array(seen)
    )
    best, waited = 0, 0
    for epoch in range(1, 40):
        best, waited = (epoch, 0) if gains[epoch] > gains[best] else (best, waited + 1)
        if waited == 4:
            break
    stopped = net(EarlyStopping(monitor, 4, restore_best=restore), **settings).fit(X[TRAIN], Y[TRAIN], **VALIDATION)
    assert stopped.n_iter_ == epoch + 1
    assert stopped.callbacks_["EarlyStopping"]["epoch"] == best + 1
    kept = best + 1 if restore else epoch + 1
    assert weights_equal(stopped, net(**settings | {"max_iter": kept}).fit(X[TRAIN], Y[TRAIN]))
    assert "weights" not in stopped.callbacks_["EarlyStopping"]


def test_early_stopping_by_a_least_improvement_and_a_direction():
    assert net(EarlyStopping("loss", 2, min_delta=100.0)).fit(X, Y).n_iter_ == 3
    assert net(EarlyStopping("loss", 2, mode="max", restore_best=False)).fit(X, Y).n_iter_ == 3
    passes = net(EarlyStopping("loss", 1, mode="max"))
    for _ in range(3):
        passes.partial_fit(X, Y, classes=[0, 1, 2])
    assert weights_equal(passes, net(max_iter=3, alpha=0).fit(X, Y))


class Mlflow(types.ModuleType):
    """Has the function of MLflow's module."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen: list[Any] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.seen.append((step, metrics))


class Run:
    """Has the method of a run of Weights & Biases; it cannot be copied."""

    def __init__(self) -> None:
        self.seen, self.file = [], io.StringIO()

    def log(self, data: dict[str, float], step: int) -> None:
        self.seen.append((step, data))

    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")


def test_logged_metrics_include_those_of_later_callbacks(monkeypatch):
    module, run, writer = Mlflow("fake_mlflow"), Run(), Writer()
    loggers = [MetricLogger(target) for target in (module, run, writer)]
    fitted = net(*loggers, EpochScoring("accuracy", "train"), max_iter=2).fit(X, Y)
    expected = [{k: v for k, v in row.items() if k not in ("epoch", "step")} for row in fitted.history_]
    assert module.seen == run.seen == [(1, expected[0]), (2, expected[1])]
    assert writer.seen == [(k, v, i + 1) for i, row in enumerate(expected) for k, v in row.items()]
    assert "train_accuracy" in expected[0]
    clone(fitted).fit(X, Y)  # logs to the same
    assert len(module.seen) == len(run.seen) == 4
    monkeypatch.setitem(sys.modules, "fake_mlflow", module)
    assert pickle.loads(pickle.dumps(loggers[0])).target is module


def test_a_function_makes_the_target_where_it_is_needed():
    made = []

    def make():
        made.append(Writer())
        return made[-1]

    logger = MetricLogger(make)
    fitted = net(logger, max_iter=1).fit(X, Y).fit(X, Y)
    assert [len(one.seen) for one in made] == [6]
    assert "_made" not in logger.__getstate__()
    assert len(clone(fitted).fit(X, Y).history_) == 1
    assert len(made) == 2


@pytest.mark.parametrize("target", [3, None, "mlflow"])
def test_logger_without_log_method_is_refused(target):
    with pytest.raises(TypeError, match="target must have a method log_metrics"):
        net(MetricLogger(target)).fit(X, Y)
    with pytest.raises(TypeError, match="target must have a method log_metrics"):
        net(MetricLogger(lambda: target)).fit(X, Y)


@each_engine
def test_norms_of_gradients(engine):
    fitted = net(GradientStatistics(by_parameter=True), max_iter=1, engine=engine, optimizer__max_grad_norm=0.01).fit(
        X, Y
    )
    row = fitted.history_[0]
    norms = [value for name, value in row.items() if name.startswith("gradient_norm/")]
    assert len(norms) == 4
    assert_allclose(np.linalg.norm(norms), row["gradient_norm"], rtol=1e-5)
    assert_allclose(row["gradient_norm"], 0.01, rtol=1e-4)  # clipped
    sgd = {"optimizer": "sgd", "batch_size": 500, "learning_rate_init": 0.5, "max_iter": 1}
    start, end = (net(GradientStatistics(), **sgd | more).fit(X, Y) for more in ({"learning_rate_init": 0.0}, {}))
    moved = np.sqrt(sum(np.sum((end.weights_[n] - w) ** 2) for n, w in start.weights_.items()))
    assert_allclose(end.history_[0]["gradient_norm"], moved / 0.5, rtol=1e-4)
    with pytest.raises(ValueError, match="for training in minibatches on the CPU"):
        OrtGradientRegressor(optimizer="lbfgs", callbacks=[GradientStatistics()]).fit(*line())


def test_the_mean_of_the_weights_of_the_last_epochs():
    scores = Scores()
    fitted = net(scores, WeightAveraging(0.5), max_iter=8).fit(X, Y)
    epochs = [one.weights_ for *_, one in scores.values()[4:8]]
    for name, mean in fitted.weights_.items():
        assert_allclose(mean, np.mean([weights[name] for weights in epochs], axis=0), rtol=1e-5, atol=1e-7)
    with pytest.warns(UserWarning, match="before epoch 4, with which WeightAveraging"):
        net(WeightAveraging(0.5), lambda epoch: epoch.number == 2).fit(X, Y)
    with pytest.raises(ValueError, match="ema_decay both average"):
        net(WeightAveraging(), optimizer__ema_decay=0.9).fit(X, Y)


def test_running_statistics_are_those_of_the_mean():
    model = MLP((6,), normalization="batch")
    settings = {"model": model, "max_iter": 40, "batch_size": 6, "learning_rate_init": 0.05}
    fitted = net(WeightAveraging(0.2), **settings).fit(X, Y)
    weights = fitted.weights_
    hidden = X @ weights["layers.0.weight"]
    assert_allclose(weights["layers.0.normalization.running_mean"], hidden.mean(axis=0), atol=0.4)
    unchanged = net(**settings).fit(X, Y).weights_["layers.0.normalization.running_mean"]
    assert not np.array_equal(unchanged, weights["layers.0.normalization.running_mean"])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_running_statistics_follow_the_weights_by_one_pass(accumulate):
    """Each minibatch moves the statistics once, also if several make a step."""
    name, found = "layers.0.normalization.running_mean", []

    class Refreshing(Callback):
        def end(self, training):
            found.append(training.parameters.view(name).copy())
            training.refresh_statistics()
            found.append(training.parameters.view(name).copy())

    settings = {"batch_size": 20, "shuffle": False, "max_iter": 2, "optimizer__accumulate": accumulate}
    fitted = net(Refreshing(), model=MLP((6,), normalization="batch"), **settings).fit(X, Y)
    node = next(one for one in fitted.to_onnx().graph.node if one.op_type == "BatchNormalization")
    momentum = next((a.f for a in node.attribute if a.name == "momentum"), 0.9)
    hidden = (X @ fitted.weights_["layers.0.weight"]).astype(np.float64)
    expected, after = found
    for start in range(0, len(X), 20):
        expected = momentum * expected + (1 - momentum) * hidden[start : start + 20].mean(axis=0)
    assert_allclose(after, expected, rtol=1e-4, atol=1e-6)


def test_the_rate_is_where_the_loss_falls_fastest():
    finder = LearningRateFinder(1e-5, 10.0, steps=60)
    fitted = net(finder, learning_rate_init=1e-7, warm_start=True).fit(X, Y)
    found = fitted.callbacks_["LearningRateFinder"]
    assert found["rates"][0] < found["suggestion"] < found["rates"][-1]
    assert fitted.history_[0]["learning_rate"] == found["suggestion"]
    assert weights_equal(fitted, net(learning_rate_init=found["suggestion"]).fit(X, Y))  # nothing else has changed
    assert fitted.fit(X, Y).history_[-1]["learning_rate"] == found["suggestion"]
    losses, least = found["losses"], int(np.nanargmin(found["losses"]))
    assert losses[0] > 1.2 * losses[least]
    assert found["suggestion"] <= found["rates"][min(least + 5, 59)]
    with pytest.raises(ValueError, match=r"lowest=2.0 must be less than highest=1.0"):
        net(LearningRateFinder(2.0)).fit(X, Y)


def every_callback(folder: Any) -> list[Any]:
    kinds = [kind for kind in CALLBACKS.values() if kind is not SnapshotEnsemble]  # it excludes WeightAveraging
    return [single_callback(kind, folder) for kind in kinds]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Training ended before epoch")
def test_every_callback_in_all_that_trains(tmp_path):
    fitted = net(*every_callback(tmp_path), max_iter=3, warm_start=True).fit(X, Y).fit(X, Y).partial_fit(X, Y)
    assert {"train_accuracy", "gradient_norm"} < fitted.history_[-1].keys()
    assert [row["epoch"] for row in fitted.history_] == [1, 2, 3, 4, 5, 6, 7]
    twin = pickle.loads(pickle.dumps(fitted))
    assert twin.history_ == fitted.history_
    assert weights_equal(twin.partial_fit(X, Y), fitted.partial_fit(X, Y))
    assert weights_equal(clone(fitted).fit(X, Y), net(*every_callback(tmp_path), max_iter=3).fit(X, Y))
    pipeline = make_pipeline(StandardScaler(), net(*every_callback(tmp_path), max_iter=3))
    grid = {"ortgradientclassifier__alpha": [0.0, 0.1]}
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2, error_score="raise").fit(X, Y)
    assert "train_accuracy" in search.best_estimator_[-1].history_[-1]


def with_callback(kind, folder, **parameters):
    return net(single_callback(kind, folder), max_iter=4, n_iter_no_change=np.inf, **parameters)


def same_predictions(one, other):
    return np.array_equal(one.predict_proba(X), other.predict_proba(X))


@pytest.mark.parametrize("kind", CALLBACKS.values(), ids=lambda kind: kind.__name__)
class TestEachCallback:
    def test_in_a_fit_a_warm_start_and_passes(self, kind, tmp_path):
        fitted = with_callback(kind, tmp_path, warm_start=True).fit(X, Y)
        assert [row["epoch"] for row in fitted.fit(X, Y).history_] == [*range(1, 9)]
        assert [row["epoch"] for row in fitted.partial_fit(X, Y).partial_fit(X, Y).history_] == [*range(1, 11)]
        passes = with_callback(kind, tmp_path / "passes").partial_fit(X, Y, classes=np.unique(Y))
        assert passes.partial_fit(X, Y).n_iter_ == 2
        assert passes.set_params(warm_start=True).fit(X, Y).n_iter_ == 6

    def test_in_copies(self, kind, tmp_path):
        fitted = with_callback(kind, tmp_path / "first").fit(X, Y)
        again = clone(fitted)
        assert same_predictions(again.fit(X, Y), fitted)
        twin = pickle.loads(pickle.dumps(fitted))
        assert same_predictions(twin, fitted)
        assert twin.history_ == fitted.history_
        assert twin.callbacks_.keys() == fitted.callbacks_.keys()
        assert weights_equal(twin.partial_fit(X, Y), fitted.partial_fit(X, Y))
        assert same_predictions(twin, fitted)
        other = with_callback(kind, tmp_path / "second").fit(X, Y)
        assert same_predictions(pickle.loads(pickle.dumps(clone(other))).fit(X, Y), other)

    def test_in_a_pipeline(self, kind, tmp_path):
        pipeline = make_pipeline(StandardScaler(), with_callback(kind, tmp_path)).fit(X, Y)
        alone = with_callback(kind, tmp_path / "alone").fit(StandardScaler().fit_transform(X), Y)
        assert weights_equal(pipeline[-1], alone)

    @pytest.mark.slow
    def test_in_a_search_by_two_processes(self, kind, tmp_path):
        pipeline = make_pipeline(StandardScaler(), with_callback(kind, tmp_path))
        grid = {"ortgradientclassifier__alpha": [0.0, 0.1]}
        search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2, error_score="raise").fit(X, Y)
        best = with_callback(kind, tmp_path / "alone", alpha=search.best_params_["ortgradientclassifier__alpha"])
        assert weights_equal(search.best_estimator_[-1], best.fit(StandardScaler().fit_transform(X), Y))


@pytest.mark.parametrize("kind", CALLBACKS.values(), ids=lambda kind: kind.__name__)
def test_callbacks_are_named_and_clone(kind):
    one = single_callback(kind, "folder")
    assert kind.__module__ == "onnxtrain_sklearn.callbacks"
    assert clone(one).get_params() == one.get_params()
    assert pickle.loads(pickle.dumps(one)).get_params() == one.get_params()


def test_images_and_labels_at_positions_have_a_loss():
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(20, 1, 6, 6)).astype(np.float32), rng.integers(0, 2, 20)
    found = OrtGradientClassifier(ConvNet(), callbacks=[EpochScoring("loss", "train")], max_iter=1, random_state=0)
    found.fit(images, labels)
    assert_allclose(found.history_[0]["train_loss"], log_loss(labels, found.predict_proba(images)), rtol=1e-4)


def test_an_interrupt_leaves_no_copies_of_weights():
    def interrupt(epoch):
        if epoch.number == 5:
            raise KeyboardInterrupt

    held = [EarlyStopping("loss"), SnapshotEnsemble(3)], [WeightAveraging(0.2)]
    for callbacks in held:
        stopped = net(*callbacks, interrupt, n_iter_no_change=np.inf)
        with pytest.warns(UserWarning, match="interrupted"):
            stopped.fit(X, Y)
        remembered = [value for memory in stopped.callbacks_.values() for value in memory.values()]
        assert stopped.n_iter_ == 5
        assert remembered
        assert not any(isinstance(value, np.ndarray | list) and np.size(value[0]) > 1 for value in remembered)
