"""Copies in all forms: pickles, deep copies, clones, other processes and threads."""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import joblib
import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import scale

from onnxtrain_sklearn import LBFGS, MLP, SGD, Adam, OrtGradientClassifier, OrtGradientRegressor, RMSprop
from onnxtrain_sklearn.exceptions import DeviceError, DivergenceError, OnnxTrainWarning
from onnxtrain_sklearn.schedules import Cosine
from tests.helpers.environment import available_engines
from tests.helpers.gpu import gpu, install_cuda
from tests.helpers.processes import run_in_new_process
from tests.helpers.step_options import configured, with_options

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = make_classification(120, 6, n_informative=6, n_redundant=0, n_classes=3, random_state=0)
X = scale(X).astype(np.float32)

OPTIMIZERS = {
    "sgd": "sgd",
    "momentum": SGD(momentum=0.9, nesterov=True),
    "adam": "adam",
    "adamw": "adamw",
    "rmsprop": RMSprop(momentum=0.5, centered=True),
    "adagrad": "adagrad",
}


def pickled_classifier(**parameters: object) -> OrtGradientClassifier:
    defaults = {"learning_rate_init": 0.02, "max_iter": 4, "batch_size": 16, "random_state": 0}
    return configured(OrtGradientClassifier(), **{"model": MLP((5,))} | defaults | parameters)


def joblib_copy(estimator: OrtGradientClassifier) -> OrtGradientClassifier:
    file = io.BytesIO()
    joblib.dump(estimator, file)
    return joblib.load(io.BytesIO(file.getvalue()))


def pickled(estimator: OrtGradientClassifier, protocol: int) -> OrtGradientClassifier:
    return pickle.loads(pickle.dumps(estimator, protocol=protocol))


COPIES = {
    "pickle": lambda e: pickle.loads(pickle.dumps(e)),
    **{f"pickle of protocol {n}": partial(pickled, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "deepcopy": copy.deepcopy,
    "joblib": joblib_copy,
}


def assert_equal_histories(a: OrtGradientClassifier, b: OrtGradientClassifier) -> None:
    assert_array_equal(a.predict_proba(X), b.predict_proba(X))
    for name, array in a.weights_.items():
        assert_array_equal(array, b.weights_[name])
    assert a.loss_curve_ == b.loss_curve_
    assert (a.n_iter_, a.t_) == (b.n_iter_, b.t_)


@pytest.mark.parametrize("how", COPIES)
def test_copies_predict_the_same_bits(how):
    fitted = pickled_classifier().fit(X, y)
    twin = COPIES[how](fitted)
    assert_equal_histories(fitted, twin)
    assert_array_equal(fitted.decision_function(X), twin.decision_function(X))
    assert twin.to_onnx() == fitted.to_onnx()
    assert repr(twin) == repr(fitted)


@pytest.mark.thinned(by=lambda how, optimizer: {how, optimizer})
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_copies_go_on_as_if_they_had_never_been_made(optimizer, how):
    settings = {
        "optimizer": with_options(OPTIMIZERS[optimizer], max_grad_norm=1.0),
        "learning_rate": Cosine(),
        "max_iter": 8,
    }
    straight = pickled_classifier(**settings)
    for _ in range(3):
        straight.partial_fit(X, y, classes=[0, 1, 2])
    twin = COPIES[how](straight)
    for _ in range(3):
        straight.partial_fit(X, y)
        twin.partial_fit(X, y)
    assert_equal_histories(straight, twin)


W, V = (", ".join(map(str, np.round(np.sin(np.arange(n)), 3))) for n in (24, 12))
DROPPING = onnx.parser.parse_model(
    f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, 6] X) => (float[N, 3] Y)
    <float[6, 4] W = {{{W}}}, float[4, 3] V = {{{V}}}, float r = {{0.4}}, bool yes = {{1}}>
    {{ H = MatMul(X, W) R = Relu(H) D, m = Dropout(R, r, yes) E = Dropout(D, , yes) Y = MatMul(E, V) }}"""
)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("optimizer", ["adam", LBFGS()])
def test_dropout_continues_after_pickling(optimizer, engine):
    settings = {"optimizer": optimizer, "max_iter": 3, "batch_size": 50, "random_state": 0, "warm_start": True}
    straight = OrtGradientClassifier(DROPPING, engine=engine, **settings).fit(X, y)
    twin, third = pickle.loads(pickle.dumps(straight)), copy.deepcopy(straight)
    assert_equal_histories(straight.fit(X, y), twin.fit(X, y))
    third._state.optimizer_state.draws = 0
    assert not np.array_equal(third.fit(X, y).weights_["W"], straight.weights_["W"])


def calls_of_several_sizes(number: int) -> list[np.ndarray]:
    """Return the rows of each call of ``partial_fit``."""
    rng = np.random.default_rng(number)
    return [rng.permutation(len(X))[:size] for size in (7, 3, 12, 1, *rng.integers(1, 40, 5), 120, 2)]


NETWORKS = {"plain": MLP((9, 7)), "dropout": MLP((9, 7), dropout=0.4), "masks of a graph": DROPPING}
STEPS = {"minibatches": {"batch_size": 8}, "whole": {"batch_size": "auto"}, "groups": {"optimizer__accumulate": 2}}


@pytest.mark.thinned(by=lambda settings, network, engine: {(network, engine), settings})
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("settings", STEPS)
def test_calls_of_several_sizes_go_on_as_if_there_had_been_no_copy(settings, network, engine):
    """The padding of a minibatch, by which sums are rounded and masks are drawn, is that of the calls before."""
    straight = pickled_classifier(model=NETWORKS[network], engine=engine, **STEPS[settings])
    twin, copies = clone(straight), [COPIES["pickle"], copy.deepcopy, joblib_copy]
    for i, rows in enumerate(calls_of_several_sizes(0)):
        straight.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
        twin = copies[i % 3](twin).partial_fit(X[rows], y[rows], classes=[0, 1, 2])
        assert_equal_histories(straight, twin)


def test_settings_changed_after_a_pickle_are_as_without_one():
    straight = pickled_classifier(model=NETWORKS["dropout"], batch_size="auto").fit(X[:50], y[:50])
    twin = pickle.loads(pickle.dumps(straight))
    changes = [{"alpha": 0.1}, {"trainable": "*weight"}, {"batch_size": 4}, {"optimizer__max_grad_norm": 0.1}]
    for change, rows in zip(changes, calls_of_several_sizes(1), strict=False):
        straight.set_params(**change).partial_fit(X[rows], y[rows])
        twin = pickle.loads(pickle.dumps(twin)).set_params(**change).partial_fit(X[rows], y[rows])
        assert_equal_histories(straight, twin)


def test_a_warm_start_goes_on_exactly_from_a_pickle():
    straight = pickled_classifier(warm_start=True, early_stopping=True, max_iter=3).fit(X, y)
    twin = pickle.loads(pickle.dumps(straight))
    assert_equal_histories(straight.fit(X, y), twin.fit(X, y))
    assert straight.validation_scores_ == twin.validation_scores_


def test_copy_trains_independently():
    fitted = pickled_classifier().fit(X, y)
    expected, rng_state = fitted.predict_proba(X), fitted._state.rng.get_state()[1].copy()
    for how in COPIES.values():
        how(fitted).partial_fit(X, y)
    assert_array_equal(fitted.predict_proba(X), expected)
    assert_array_equal(fitted._state.rng.get_state()[1], rng_state)


def test_a_generator_shared_with_the_parameters_stays_shared():
    fitted = pickled_classifier(random_state=np.random.RandomState(3)).partial_fit(X, y, classes=[0, 1, 2])
    twin = pickle.loads(pickle.dumps(fitted))
    assert twin.random_state is twin._state.rng
    assert_equal_histories(fitted.partial_fit(X, y), twin.partial_fit(X, y))


def test_unfitted_estimators_and_graphs_as_parameters_are_copied():
    graph = MLP((5,)).build(6, 3, 0)
    estimator = OrtGradientClassifier(graph, optimizer=LBFGS(), trainable=["layers.1.*"], max_iter=5)
    for how in COPIES.values():
        twin = how(estimator)
        assert twin.model == graph
        assert_array_equal(twin.fit(X, y).predict(X), clone(estimator).fit(X, y).predict(X))


def test_a_clone_is_not_fitted():
    fitted = pickled_classifier().fit(X, y)
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)
    assert_equal_histories(clone(fitted).fit(X, y), fitted)


def test_a_pickle_is_little_more_than_weights_and_optimizer_state():
    graph = MLP((300, 200)).build(100, 3, 0)
    numbers = sum(np.prod(initializer.dims) for initializer in graph.graph.initializer)
    wide = np.random.RandomState(0).normal(size=(50, 100))
    fitted = OrtGradientClassifier(MLP((300, 200)), optimizer="adam", max_iter=2).fit(wide, np.arange(50) % 3)
    before = len(pickle.dumps(fitted))
    assert before < 4.2 * 4 * numbers  # the graph's initial weights, the weights now, two moments
    fitted.predict_proba(wide)
    fitted.decision_function(wide)
    assert len(pickle.dumps(fitted)) == before  # no session, no cache
    plain = OrtGradientClassifier(MLP((300, 200)), optimizer="sgd", max_iter=2).fit(wide, np.arange(50) % 3)
    assert len(pickle.dumps(plain)) < 2.2 * 4 * numbers


def test_errors_are_pickled_whole():
    error = pickle.loads(pickle.dumps(DivergenceError("too high", [1.0, 2.0])))
    assert (str(error), error.loss_curve) == ("too high", [1.0, 2.0])


# -- threads ----------------------------------------------------------------------------------------------------------


def raced(call: object, n: int = 8) -> list[np.ndarray]:
    """Return what ``call`` returns in each of ``n`` threads that start at once."""
    barrier = Barrier(n)

    def start(_: int) -> np.ndarray:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(start, range(n)))


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_threads_predict_at_once(method):
    fitted = pickled_classifier().fit(X, y)
    expected = getattr(copy.deepcopy(fitted), method)(X)
    for estimator in (fitted, pickle.loads(pickle.dumps(fitted))):  # its first prediction is raced
        for result in raced(lambda e=estimator: getattr(e, method)(X)):
            assert_array_equal(result, expected)


@pytest.mark.slow
def test_threads_train_separate_estimators():
    expected = pickled_classifier(max_iter=10).fit(X, y).predict_proba(X)
    for result in raced(lambda: pickled_classifier(max_iter=10).fit(X, y).predict_proba(X), 4):
        assert_array_equal(result, expected)


# -- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_process_predicts_the_same_and_goes_on(tmp_path):
    fitted = pickled_classifier(optimizer="adam").fit(X, y)
    (tmp_path / "estimator.pickle").write_bytes(pickle.dumps(fitted))
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    program = """
import pickle, sys, warnings
from pathlib import Path
import numpy as np
warnings.simplefilter("error")
folder = Path(sys.argv[1])
estimator = pickle.loads((folder / "estimator.pickle").read_bytes())
X, y = np.load(folder / "X.npy"), np.load(folder / "y.npy")
np.save(folder / "before.npy", estimator.predict_proba(X))
np.save(folder / "after.npy", estimator.partial_fit(X, y).predict_proba(X))
"""
    run_in_new_process(program, str(tmp_path))
    assert_array_equal(np.load(tmp_path / "before.npy"), fitted.predict_proba(X))
    assert_array_equal(np.load(tmp_path / "after.npy"), fitted.partial_fit(X, y).predict_proba(X))


@pytest.mark.exhaustive
def test_joblib_workers_find_the_results_of_one_process():
    grid = {"optimizer": [Adam()], "learning_rate_init": [1e-4, 0.02]}
    both = [GridSearchCV(pickled_classifier(), grid, cv=2, n_jobs=n, error_score="raise").fit(X, y) for n in (1, 2)]
    assert both[0].best_params_["learning_rate_init"] == 0.02
    assert_array_equal(both[0].cv_results_["mean_test_score"], both[1].cv_results_["mean_test_score"])
    assert_array_equal(both[0].predict(X), both[1].predict(X))
    fitted = both[1].best_estimator_
    assert_array_equal(cross_val_score(fitted, X, y, n_jobs=2, cv=2), cross_val_score(fitted, X, y, cv=2))


@pytest.mark.slow
def test_fitted_estimators_travel_to_workers():
    fitted = OrtGradientRegressor(MLP((4,)).build(6, 1, 0), max_iter=2).fit(X, y)
    results = joblib.Parallel(n_jobs=2)(joblib.delayed(fitted.predict)(part) for part in (X[:60], X[60:]))
    assert_array_equal(np.concatenate(results), fitted.predict(X))
    assert isinstance(fitted.model, onnx.ModelProto)


def test_pickle_without_an_attribute_takes_its_default():
    fitted = pickled_classifier().fit(X, y)
    content = fitted.__getstate__()
    for name in ("history", "optimizer_state", "snapshots"):
        del content["_state"]["state"][name]
    twin = object.__new__(OrtGradientClassifier)
    twin.__setstate__(content)
    assert_array_equal(twin.predict_proba(X), fitted.predict_proba(X))
    assert (twin.n_iter_, twin.loss_curve_) == (0, [])
    assert twin.partial_fit(X, y).n_iter_ == 1
    assert fitted.n_iter_ == 4


# -- other machines ---------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """A pickle of an estimator that was fitted on a GPU, by an engine that is not here."""
    fitted = pickled_classifier(optimizer="adam").fit(X, y)
    twin = copy.deepcopy(fitted)
    fitted.device = fitted.device_ = "cuda:1"
    fitted.engine = "ort-training"
    fitted._state.device = gpu(1)
    monkeypatch.setattr("onnxtrain_sklearn._training.programs.available_engines", lambda: ("portable",))
    return pickle.dumps(fitted), twin


def test_gpu_pickle_resumes_without_a_gpu(elsewhere):
    data, twin = elsewhere
    with pytest.warns(OnnxTrainWarning) as warned:
        loaded = pickle.loads(data)
    texts = [str(w.message) for w in warned]
    assert len(texts) == 2
    assert "was trained on CUDAExecutionProvider, which" in texts[0]
    assert "goes on with device='cpu'" in texts[0]
    assert "was trained by the engine 'ort-training'" in texts[1]
    assert "goes on with engine='auto'" in texts[1]
    assert (loaded.device, loaded.device_, loaded.engine) == ("cpu", "cpu", "auto")
    assert_array_equal(loaded.predict_proba(X), twin.predict_proba(X))
    assert_equal_histories(loaded.partial_fit(X, y), twin.partial_fit(X, y))


@pytest.mark.filterwarnings("ignore:This OrtGradientClassifier was trained by the engine")
def test_gpu_pickle_resumes_where_cuda_does_not_start(elsewhere, monkeypatch):
    data, twin = elsewhere

    def not_started(index):
        raise DeviceError(f"CUDA device {index} could not be started")

    install_cuda(monkeypatch, not_started)
    with pytest.warns(OnnxTrainWarning, match="was trained on CUDAExecutionProvider, .* goes on with device='cpu'"):
        loaded = pickle.loads(data)
    assert (loaded.device, loaded.device_) == ("cpu", "cpu")
    assert_array_equal(loaded.predict_proba(X), twin.predict_proba(X))


@pytest.mark.filterwarnings("ignore:This OrtGradientClassifier was trained by the engine")
def test_loading_starts_the_gpu_that_an_estimator_was_trained_on(elsewhere, monkeypatch):
    """A prediction is often the first thing that a process does: nothing else would have started CUDA."""
    started = []
    install_cuda(monkeypatch, started.append)
    loaded = pickle.loads(elsewhere[0])
    assert started == [1]
    assert (loaded.device, loaded.device_) == ("cuda:1", "cuda:1")
    assert loaded._state.device.provider_options == ({"device_id": "1", "use_tf32": "0"}, {})


def test_unfitted_copy_resolves_its_device_in_fit():
    loaded = pickle.loads(pickle.dumps(pickled_classifier(device="cuda")))
    assert loaded.device == "cuda"
    with pytest.raises(DeviceError, match="device='cuda' needs CUDAExecutionProvider"):
        loaded.fit(X, y)
