"""Estimators with ``engine="compiled"`` learn the weights that they learn with the portable engine, or say why not."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import warnings

import numpy as np
import onnx
import pytest
import scipy.sparse as sp
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    SGD,
    ConvNet,
    Linear,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLP,
    Runtime,
    TabM,
    clear_cache,
    losses,
)
from onnxtrain_sklearn._compiler import code
from onnxtrain_sklearn._ort.devices import resolve_device
from onnxtrain_sklearn._training import programs, step_choice
from onnxtrain_sklearn.exceptions import RuntimeNotFoundError, UnsupportedOperatorError
from tests.helpers.data import DATA, blobs, line
from tests.helpers.step_options import configured

pytest.importorskip("llvmlite", reason="graphs are compiled by llvmlite")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ROWS = 43
"""The last of five minibatches of ten has three rows."""
TWO, THREE = blobs(ROWS), blobs(ROWS, classes=3)
NUMBER, NUMBERS = line(ROWS), line(ROWS, outputs=3)
POSITIVE = NUMBERS[0], np.abs(NUMBERS[1]) + 0.1
LABELS = THREE[0], np.stack([THREE[1] == 0, THREE[1] > 0, THREE[1] == 1], 1).astype(int)
SHARES = np.random.default_rng(0).uniform(0.2, 3.0, ROWS)
ACTIVATIONS = "identity relu tanh logistic leaky_relu softplus silu mish elu selu gelu".split()
SEVERAL = {"loss": losses.LogLoss(label_smoothing=0.1), "class_weight": "balanced", "alpha": 0.01, "l1_ratio": 0.5}

COLUMNS = THREE[0], np.stack([THREE[1], THREE[1] > 0], 1).astype(int)

CASES = {
    "several columns of classes": (COLUMNS, {"model": MLP((8,))}),
    **{name: (THREE, {"model": MLP((8, 6), activation=name)}) for name in ACTIVATIONS},
    "layer normalization": (THREE, {"model": MLP((8, 6), normalization="layer")}),
    "batch normalization": (THREE, {"model": MLP((8, 6), normalization="batch")}),
    "dropout": (THREE, {"model": MLP((8, 6), dropout=0.3)}),
    "residual": (NUMBER, {"model": MLP((8, 8, 8), residual=True)}),
    "linear": (THREE, {"model": Linear()}),
    "sparse rows": ((sp.random(ROWS, 60, 0.1, "csr", np.float32, 0), THREE[1]), {"model": Linear()}),
    "RealMLP": (THREE, {"model": RealMLP()}),
    "TabM, numbers": (NUMBER, {"model": TabM(3, (8, 8)), "optimizer": SGD()}),  # Adam amplifies gradients near 0
    "TabM": (THREE, {"model": TabM(3, (8, 8))}),
    "two classes": (TWO, {}),
    "labels": (LABELS, {}),
    "numbers": (NUMBERS, {}),
    "focal loss": (TWO, {"loss": losses.Focal()}),
    "hinge": (TWO, {"loss": losses.Hinge()}),
    "squared hinge": (THREE, {"loss": losses.SquaredHinge()}),
    "modified Huber loss": (LABELS, {"loss": losses.ModifiedHuber()}),
    "quantile": (NUMBERS, {"loss": losses.Quantile(0.3)}),
    "Huber loss": (NUMBER, {"loss": "huber"}),
    "gamma": (POSITIVE, {"loss": "gamma"}),
    "Poisson": (POSITIVE, {"loss": "poisson"}),
    "log cosh": (NUMBER, {"loss": "log_cosh"}),
    "sample weights": ((*THREE, SHARES), {}),
    "rows without weight": ((*NUMBER, np.arange(ROWS) % 3 > 0), {}),
    "settings of the loss": (THREE, SEVERAL),
    "settings of the step": (
        NUMBER,
        {
            "optimizer__max_grad_norm": 0.1,
            "optimizer__accumulate": 2,
            "optimizer__ema_decay": 0.9,
        },
    ),
    "schedule": (NUMBER, {"learning_rate": "cosine"}),
    "early stopping": (THREE, {"early_stopping": True, "validation_split": 0.3}),
    "L-BFGS": (NUMBER, {"optimizer": "lbfgs"}),
    "frozen": (THREE, {"trainable": ["layers.1.*", "layers.2.*"]}),
    "one row at a time": (NUMBER, {"batch_size": 1, "max_iter": 1}),
    "all rows": (NUMBER, {"batch_size": ROWS}),
    "fitted network": (NUMBER, {"model": MLPRegressor(hidden_layer_sizes=5, solver="lbfgs", tol=1e3).fit(*NUMBER)}),
    "fitted pipeline": (
        THREE,
        {"model": make_pipeline(StandardScaler(), PCA(3), LogisticRegression()).fit(*THREE)},
    ),
}


def kind_of(data):
    return OrtGradientRegressor if data[1].dtype.kind == "f" else OrtGradientClassifier


def estimator_of(engine, kind=OrtGradientRegressor, **settings):
    given = {"model": MLP((8, 6)), "batch_size": 10, "max_iter": 4, "random_state": 0, "engine": engine, **settings}
    return configured(kind(), **given)


def trained(engine, data, **settings):
    X, y, *shares = data
    return estimator_of(engine, kind_of(data), **settings).fit(X, y, *shares)


def assert_close(ours, theirs, tolerance=2e-5):
    """Assert that weights differ by rounding: each step adds some 1e-7, which Adam amplifies."""
    assert ours.weights_.keys() == theirs.weights_.keys()
    for name, array in theirs.weights_.items():
        np.testing.assert_allclose(ours.weights_[name], array, rtol=0, atol=tolerance * max(abs(array).max(), 1e-2))


def bits(estimator):
    return {name: array.tobytes() for name, array in estimator.weights_.items()}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_portable_engine(name):
    data, settings = CASES[name]
    ours, theirs = (trained(engine, data, **settings) for engine in ("compiled", "portable"))
    assert ours.engine_ == "compiled"
    assert_close(ours, theirs)
    np.testing.assert_allclose(ours.loss_, theirs.loss_, rtol=1e-5)


def loss_of_weights(weights, X, y):
    """Return the mean loss of a network with one hidden layer of tanh, in float64."""
    hidden = np.tanh(X @ weights["layers.0.weight"] + weights["layers.0.bias"])
    return 0.5 * np.mean((hidden @ weights["layers.1.weight"] + weights["layers.1.bias"] - y[:, None]) ** 2)


def test_a_step_goes_along_the_gradient_of_float64():
    X, y = NUMBER
    plain = {"model": MLP((5,), activation="tanh"), "optimizer": SGD(momentum=0.0), "learning_rate_init": 1e-2}
    plain["alpha"] = 0
    estimator = estimator_of("compiled", batch_size=ROWS, max_iter=1, warm_start=True, **plain).fit(X, y)
    before = {name: array.astype(float) for name, array in estimator.weights_.items()}
    after = estimator.fit(X, y).weights_
    factor = None
    for name, array in before.items():
        gradient = np.empty_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = {**before, name: array.copy()}
                moved[name][place] += step
                ends.append(loss_of_weights(moved, X.astype(float), y))
            gradient[place] = (ends[0] - ends[1]) / 2e-5
        factor = factor or float(np.sum((array - after[name]) * gradient) / np.sum(gradient**2))
        np.testing.assert_allclose(array - after[name], factor * gradient, atol=2e-4 * factor * abs(gradient).max())
    assert factor == pytest.approx(1e-2, rel=1e-3) or factor == pytest.approx(2e-2, rel=1e-3)


@pytest.mark.parametrize("name", ["mlp", "keras_mlp", "torch_repeated_dynamo", "torch_folded_dynamo"])
def test_exported_networks(name):
    model = onnx.load(DATA / f"{name}.onnx")
    given, result = (
        [d.dim_value for d in v[0].type.tensor_type.shape.dim] for v in (model.graph.input, model.graph.output)
    )
    rng = np.random.default_rng(0)
    X, y = (rng.standard_normal((ROWS, *sizes[1:])).astype(np.float32) for sizes in (given, result))
    data = X, y[:, 0] if y.shape[1:] == (1,) else y
    before = estimator_of("portable", model=str(DATA / f"{name}.onnx"), max_iter=1, learning_rate_init=1e-30).fit(*data)
    ours, theirs = (trained(engine, data, model=str(DATA / f"{name}.onnx")) for engine in ("compiled", "portable"))
    assert_close(ours, theirs)
    assert any(bits(ours)[key] != value for key, value in bits(before).items())


def test_partial_fit_and_warm_start_go_on():
    for settings in ({}, {"warm_start": True}):
        ours, theirs = (estimator_of(engine, **settings) for engine in ("compiled", "portable"))
        for rows in (slice(None), slice(17), slice(1)):
            for one in (ours, theirs):
                (one.fit if settings else one.partial_fit)(NUMBER[0][rows], NUMBER[1][rows])
            assert_close(ours, theirs)


@pytest.mark.long
def test_a_seed_gives_the_same_bits():
    data, settings = CASES["dropout"]
    first = trained("compiled", data, **settings)
    expected = bits(first)
    assert bits(trained("compiled", data, **settings)) == expected
    assert bits(clone(first).fit(*data)) == expected
    copies = Parallel(2, prefer="threads")(delayed(trained)("compiled", data, **settings) for _ in range(6))
    assert all(bits(one) == expected for one in copies)
    clear_cache()
    assert bits(trained("compiled", data, **settings)) == expected


def test_an_unpickled_estimator_goes_on_as_the_original_does():
    original = estimator_of("compiled").partial_fit(*NUMBER)
    copy = pickle.loads(pickle.dumps(original))
    assert bits(copy) == bits(original)
    assert bits(copy.partial_fit(*NUMBER)) == bits(original.partial_fit(*NUMBER))
    assert copy.engine_ == "compiled"


def without_compiler(monkeypatch):
    for module in (programs, step_choice):
        monkeypatch.setattr(module, "is_installed", lambda: False)


def test_a_pickle_goes_on_without_the_compiler(monkeypatch):
    original = estimator_of("compiled").partial_fit(*NUMBER)
    stored = pickle.dumps(original)
    without_compiler(monkeypatch)
    with pytest.warns(UserWarning, match="compiled"):
        copy = pickle.loads(stored)
    np.testing.assert_array_equal(copy.predict(NUMBER[0]), original.predict(NUMBER[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.partial_fit(*NUMBER)
    assert copy.engine == "auto"
    assert copy.engine_ != "compiled"


IMAGES = np.random.default_rng(0).normal(size=(20, 1, 8, 8)).astype(np.float32), np.arange(20) % 2
REFUSED = {
    "an operator": (IMAGES, {"model": ConvNet()}, UnsupportedOperatorError, "Conv"),
    "activations": (NUMBER, {"runtime": Runtime(checkpoint_activations=True)}, ValueError, "checkpoint_activations"),
    "no compiler": (NUMBER, {}, RuntimeNotFoundError, "llvmlite"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_compile_error_leaves_estimator_unchanged(name, monkeypatch):
    data, settings, kind, reason = REFUSED[name]
    if name == "no compiler":
        without_compiler(monkeypatch)
    estimator = estimator_of("compiled", kind_of(data), **settings)
    before = set(vars(estimator))
    with pytest.raises(kind, match=reason):
        estimator.fit(*data)
    assert set(vars(estimator)) == before
    assert not hasattr(estimator, "weights_")


def test_compiled_code_computes_on_the_cpu():
    device = dataclasses.replace(resolve_device(), name="cuda", providers=("CUDAExecutionProvider",))
    with pytest.raises(ValueError, match="engine='compiled' computes on the CPU, got device='cuda'"):
        programs.require_compiler(device)


def test_a_fitted_estimator_stays_as_it_was_where_a_fit_is_refused(monkeypatch):
    estimator = estimator_of("compiled").fit(*NUMBER)
    before, predicted = bits(estimator), estimator.predict(NUMBER[0])
    without_compiler(monkeypatch)
    with pytest.raises(RuntimeNotFoundError, match="llvmlite"):
        estimator.fit(*NUMBER)
    assert bits(estimator) == before
    np.testing.assert_array_equal(estimator.predict(NUMBER[0]), predicted)


def test_a_search_over_learning_rates():
    rates = {"learning_rate_init": [1e-3, 1e-2]}
    found = [GridSearchCV(estimator_of(engine), rates, cv=2).fit(*NUMBER) for engine in ("compiled", "portable")]
    ours, theirs = (one.cv_results_["mean_test_score"] for one in found)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert found[0].best_estimator_.engine_ == "compiled"


def test_clear_cache_makes_the_next_fit_compile(monkeypatch):
    made, make = [], code.MachineCode
    monkeypatch.setattr(code, "MachineCode", lambda *given: (made.append(0), make(*given))[1])
    clear_cache()
    for _ in range(2):
        trained("compiled", NUMBER)
        assert len(made) == 1
    clear_cache()
    trained("compiled", NUMBER)
    assert len(made) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_runs_and_compiles():
    expected = bits(trained("compiled", NUMBER))
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits
        same = bits(trained("compiled", NUMBER)) == expected
        other = trained("compiled", NUMBER, batch_size=7).engine_ == "compiled"
        os._exit(0 if same and other else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_copy_of_another_engine_loads_no_compiler(monkeypatch):
    stored = pickle.dumps(OrtGradientClassifier(Linear(), max_iter=1).fit(*TWO))
    monkeypatch.setattr(programs, "can_compile", lambda: pytest.fail("loads llvmlite"))
    assert pickle.loads(stored).engine == "auto"
