"""Every wrong argument is told in words that help, and leaves the estimator as it was."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from onnxtrain_sklearn import LBFGS, MLP, SGD, AdamW, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import DeviceError, ModelError, UnsupportedOperatorError
from onnxtrain_sklearn.losses import Focal, Hinge, Huber, Quantile
from onnxtrain_sklearn.schedules import Cosine, StepDecay

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.RandomState(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
y = np.array([3, 5])[(X[:, 0] > 0).astype(int)]


WEIGHTS = {"W": rng.normal(size=(4, 1)), "b": np.zeros(1)}
FIXED = "a = Gemm(X, W, b) z = Reshape(a, shape)"
CUBE = "by = Constant <value_ints = [-1, 2, 2]> () a = MatMul(X, W) z = Reshape(a, by)"


def graph(nodes: str, output: str = "float[N,1] z", inputs: str = "float[N,4] X", **arrays: Any) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 18]> net ({inputs}) => ({output}) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, array in (arrays or WEIGHTS).items():
        array = np.asarray(array)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


LINEAR = graph("z = Gemm(X, W, b)")
FOREIGN = graph("p = Constant <value_ints = [0, 0, 0, 0]> () a = Gemm(X, W, b) z = com.microsoft.Pad(a, p)")
FOREIGN.opset_import.add(domain="com.microsoft", version=1)

PARAMETERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # the graph
    "no ONNX": ({"model": b"no ONNX at all"}, ModelError, "no ONNX model|not an ONNX model"),
    "truncated": ({"model": LINEAR.SerializeToString()[:-30]}, ModelError, "truncated"),
    "empty": ({"model": b""}, ModelError, "empty"),
    "no file": ({"model": "there/is/none.onnx"}, ModelError, "no file 'there/is/none.onnx'"),
    "no parameter": ({"model": graph("z = Neg(X)", "float[N,4] z")}, ModelError, "no parameter to train"),
    "output": ({"model": LINEAR, "output": "Z"}, ModelError, "output='Z' is no output of the graph.*Valid names: 'z'"),
    "operator": (
        {"model": FOREIGN},
        UnsupportedOperatorError,
        r"\(com.microsoft.Pad\) cannot be differentiated.*Freeze the parameters before",
    ),
    "rows": (
        {"model": graph(FIXED, "float[M,3] z", shape=np.array([1, -1]), **WEIGHTS)},
        ModelError,
        "gives 1 output rows for 13 input rows.*dynamic batch axis",
    ),
    "rows fixed inside": (
        {"model": graph(FIXED, "float[8,1] z", shape=np.array([8, 1]), **WEIGHTS)},
        ModelError,
        "does not run on the data.*constant shape in a Reshape.*dynamic batch axis",
    ),
    "one number": (
        {"model": graph("a = Gemm(X, W, b) z = ReduceMean <keepdims = 0> (a)", "float z")},
        ModelError,
        "a single number for 13 input rows",
    ),
    "rank": (
        {"model": graph(CUBE, "float[N,2,2] z", W=np.ones((4, 4)))},
        ModelError,
        r"shape \('n', 2, 2\); it must be \(n,\), \(n, 1\) or \(n, k\)",
    ),
    "columns": (
        {"model": graph("z = MatMul(X, W)", "float[N,3] z", W=np.ones((4, 3)))},
        ValueError,
        r"output has 3 column\(s\), but y has 2 classes",
    ),
    "several inputs": (
        {"model": graph("a = Add(X, V) z = Gemm(a, W, b)", inputs="float[N,4] X, float[N,4] V")},
        TypeError,
        "2 inputs: 'X', 'V'. Give X as a dict of arrays by input name, .* got ndarray",
    ),
    "an unfitted model": ({"model": LogisticRegression()}, NotFittedError, "This LogisticRegression instance is not"),
    "no model": ({"model": 3}, TypeError, "ONNX file, a fitted scikit-learn model.*got int"),
    "a builder's class": ({"model": MLP}, TypeError, r"a graph builder such as MLP\(\)"),
    "activation": ({"model": MLP(activation="rellu")}, ValueError, "Unknown activation 'rellu'. Did you mean 'relu'"),
    "initialization": ({"model": Linear(initialization="he")}, ValueError, "Unknown initialization 'he'"),
    "hidden layers": ({"model": MLP((5, 0))}, ValueError, "hidden_layer_sizes"),
    # what is trained
    "trainable": ({"trainable": "layers.0.wait"}, ValueError, "no parameter.*Did you mean 'layers.0.weight'"),
    "trainable glob": ({"trainable": ["layers.1.*", "layer.*"]}, ValueError, "'layer.*' matches no parameter"),
    "trainable function": ({"trainable": lambda name, array: False}, ValueError, "selects no parameter"),
    "trainable nothing": ({"trainable": []}, ValueError, "empty list"),
    "trainable number": ({"trainable": 3}, TypeError, "trainable must"),
    "trainable numbers": ({"trainable": [3]}, TypeError, "trainable must hold names or glob patterns, got 3"),
    # names
    "loss": ({"loss": "logloss"}, ValueError, "Unknown loss 'logloss'. Did you mean 'log_loss'"),
    "loss of regression": ({"loss": "huber"}, ValueError, "Huber is not for binary targets.*'log_loss'"),
    "loss class": ({"loss": Hinge}, TypeError, "loss must be a name or a Loss object"),
    "loss none": ({"loss": None}, TypeError, "loss must be a name or a Loss object, got NoneType"),
    "loss parameter": ({"loss": Focal(-1.0)}, ValueError, r"'gamma' parameter of Focal .* Got -1.0 "),
    "optimizer": ({"optimizer": "adma"}, ValueError, "Unknown optimizer 'adma'. Did you mean 'adam'"),
    "optimizer class": ({"optimizer": SGD}, TypeError, "optimizer must be a name or an Optimizer object"),
    "optimizer parameter": ({"optimizer": SGD(momentum=1.5)}, ValueError, "'momentum' parameter of SGD must be"),
    "nesterov": ({"optimizer": SGD(nesterov=True)}, ValueError, "nesterov=True"),
    "schedule": ({"learning_rate": "cosin"}, ValueError, "Unknown learning_rate 'cosin'. Did you mean 'cosine'"),
    "schedule class": ({"learning_rate": Cosine}, TypeError, "learning_rate must be a name or a Schedule object"),
    "schedule parameter": ({"learning_rate": StepDecay(gamma=2.0)}, ValueError, "'gamma' parameter of StepDecay"),
    "engine": ({"engine": "ort"}, ValueError, "Unknown engine 'ort'.*Valid names: .*'auto'.*'ort-training'"),
    "device": ({"device": "gpu"}, ValueError, "Unknown device 'gpu'.*'cuda'"),
    "no cuda": ({"device": "cuda"}, DeviceError, "device='cuda' needs CUDAExecutionProvider.*use device='cpu'"),
    "provider": ({"providers": ["NoExecutionProvider"]}, DeviceError, "NoExecutionProvider"),
    "session option": ({"session_options": {"intra_threads": 1}}, ValueError, "Unknown session option 'intra_threads'"),
    # numbers
    "learning_rate_init type": ({"learning_rate_init": "0.1"}, TypeError, "learning_rate_init must .*float, not str"),
    "learning_rate_init sign": ({"learning_rate_init": -0.1}, ValueError, "learning_rate_init == -0.1, must be >= 0"),
    "learning_rate_init NaN": ({"learning_rate_init": np.nan}, ValueError, "learning_rate_init must be finite"),
    "learning_rate_init infinite": ({"learning_rate_init": np.inf}, ValueError, "learning_rate_init must be finite"),
    "batch_size type": ({"batch_size": 2.5}, TypeError, "batch_size must be .*int, not float"),
    "batch_size word": ({"batch_size": "all"}, ValueError, "batch_size must be 'auto' or an integer >= 1, got 'all'"),
    "batch_size zero": ({"batch_size": 0}, ValueError, "batch_size == 0, must be >= 1"),
    "max_iter type": ({"max_iter": 3.0}, TypeError, "max_iter must be .*int, not float"),
    "max_iter zero": ({"max_iter": 0}, ValueError, "max_iter == 0, must be >= 1"),
    "alpha type": ({"alpha": None}, TypeError, "alpha must be .*float, not NoneType"),
    "alpha sign": ({"alpha": -1.0}, ValueError, "alpha == -1.0, must be >= 0"),
    "alpha NaN": ({"alpha": np.nan}, ValueError, "alpha must be finite"),
    "l1_ratio type": ({"l1_ratio": "half"}, TypeError, "l1_ratio must be .*float, not str"),
    "l1_ratio range": ({"l1_ratio": 1.5}, ValueError, "l1_ratio == 1.5, must be <= 1"),
    "max_grad_norm type": ({"max_grad_norm": "1"}, TypeError, "max_grad_norm must be .*float, not str"),
    "max_grad_norm zero": ({"max_grad_norm": 0.0}, ValueError, "max_grad_norm == 0.0, must be > 0"),
    "max_grad_norm NaN": ({"max_grad_norm": np.nan}, ValueError, "max_grad_norm must be finite"),
    "tol type": ({"tol": "small"}, TypeError, "tol must be .*float, not str"),
    "tol NaN": ({"tol": np.nan}, ValueError, "tol must be a number, got nan"),
    "n_iter_no_change type": ({"n_iter_no_change": 1.5}, TypeError, "n_iter_no_change must be .*int, not float"),
    "n_iter_no_change zero": ({"n_iter_no_change": 0}, ValueError, "n_iter_no_change == 0, must be >= 1"),
    "validation_fraction type": (
        {"early_stopping": True, "validation_fraction": "a tenth"}, TypeError, "validation_fraction must be .*float",
    ),
    "validation_fraction range": (
        {"early_stopping": True, "validation_fraction": 1.0}, ValueError, "validation_fraction == 1.0, must be < 1",
    ),
    "random_state": ({"random_state": "seed"}, ValueError, "cannot be used to seed"),
    "class_weight": ({"class_weight": "equal"}, ValueError, "class_weight"),
    "class_weight labels": ({"class_weight": {7: 1.0}}, ValueError, r"\[3, 5\], are not in class_weight"),
    "class_weight sign": ({"class_weight": {3: -1.0, 5: 1.0}}, ValueError, "must not hold negative weights"),
    "class_weight zero": ({"class_weight": {3: 0.0, 5: 0.0}}, ValueError, "sum of sample_weight is zero"),
}  # fmt: skip


def bad(array: np.ndarray, value: float) -> np.ndarray:
    array = array.astype(np.float64)
    array[7, ...] = value
    return array


DATA: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "NaN in X": ({"X": bad(X, np.nan), "y": y}, ValueError, "Input X contains NaN"),
    "infinite X": ({"X": bad(X, np.inf), "y": y}, ValueError, "Input X contains infinity"),
    "X too large": ({"X": bad(X, 1e300), "y": y}, ValueError, "too large for float32"),
    "flat X": ({"X": X[:, 0], "y": y}, ValueError, "Expected 2D array, got 1D array"),
    "no rows": ({"X": X[:0], "y": y[:0]}, ValueError, r"0 sample\(s\)"),
    "no features": ({"X": X[:, :0], "y": y}, ValueError, r"0 feature\(s\)"),
    "words in X": ({"X": pd.DataFrame({"a": ["x", "y"] * 30}), "y": y}, ValueError, "could not convert string"),
    "complex X": ({"X": X + 1j, "y": y}, ValueError, "Complex data not supported"),
    "mixed names": ({"X": pd.DataFrame(X, columns=["a", "b", 0, 1]), "y": y}, TypeError, "Feature names"),
    "dict for a builder": ({"X": {"X": X}, "y": y}, TypeError, "A dict of inputs needs a graph that names them"),
    "no y": ({"X": X, "y": None}, ValueError, "requires y to be passed"),
    "short y": ({"X": X, "y": y[:-1]}, ValueError, "inconsistent numbers of samples: X has 60, y has 59"),
    "empty y": ({"X": X, "y": []}, ValueError, "at least 2 classes"),
    "NaN in y": ({"X": X, "y": bad(y, np.nan)}, ValueError, "Input y contains NaN"),
    "infinite y": ({"X": X, "y": bad(y, np.inf)}, ValueError, "Input y contains infinity"),
    "continuous y": ({"X": X, "y": X[:, 0]}, ValueError, "Unknown label type: continuous"),
    "one class": ({"X": X, "y": np.ones(60)}, ValueError, r"at least 2 classes in y, got 1 class: \[1.0\]"),
    "mixed y": ({"X": X, "y": np.array([1, "a"] * 30, dtype=object)}, ValueError, "Unknown label type"),
    "dates": ({"X": X, "y": np.array([50, 51] * 30, "M8[Y]")}, ValueError, "no labels of type datetime64"),
    "tables a row": ({"X": X, "y": np.c_[y, y + 1][:, :, None]}, ValueError, "Unknown label type"),
    "indicators": ({"X": X, "y": np.c_[y, y]}, ValueError, r"must be 0 or 1, got \[3, 5\] in y"),
    "short weights": ({"X": X, "y": y, "sample_weight": np.ones(59)}, ValueError, r"\(59,\), expected \(60,\)"),
    "negative weights": ({"X": X, "y": y, "sample_weight": -np.ones(60)}, ValueError, "Negative values"),
    "no weight": ({"X": X, "y": y, "sample_weight": np.zeros(60)}, ValueError, "non-zero|is zero"),
    "NaN weights": ({"X": X, "y": y, "sample_weight": np.full(60, np.nan)}, ValueError, "NaN"),
    "huge weights": ({"X": X, "y": y, "sample_weight": np.full(60, 1e200)}, ValueError, r"1e\+200: scale them"),
    "tiny weights": ({"X": X, "y": y, "sample_weight": np.full(60, 1e-200)}, ValueError, "1e-200: scale them"),
    "X_val alone": ({"X": X, "y": y, "X_val": X}, ValueError, "X_val and y_val belong together"),
    "y_val alone": ({"X": X, "y": y, "y_val": y}, ValueError, "X_val and y_val belong together"),
    "labels of y_val": (
        {"X": X, "y": y, "X_val": X, "y_val": y + 1}, ValueError, r"not among the classes: \[4, 6\].*are \[3, 5\]",
    ),
    "features of X_val": ({"X": X, "y": y, "X_val": X[:, :3], "y_val": y}, ValueError, "X_val has 3 features"),
    "short y_val": ({"X": X, "y": y, "X_val": X, "y_val": y[:9]}, ValueError, "X_val has 60, y_val has 9"),
    "weights of X_val": (
        {"X": X, "y": y, "X_val": X, "y_val": y, "sample_weight_val": np.ones(3)}, ValueError, r"\(3,\), expected",
    ),
}  # fmt: skip


def fresh(**parameters: Any) -> OrtGradientClassifier:
    return OrtGradientClassifier(
        **{"model": MLP((3,)), "max_iter": 2, "batch_size": 16, "random_state": 0} | parameters
    )


def assert_unchanged_by(
    estimator: OrtGradientClassifier, call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """``call`` raises; attributes, predictions and the training that follows are as if it had not been made."""
    before = dict(vars(estimator))
    fitted = hasattr(estimator, "classes_")
    expected = estimator.predict_proba(X) if fitted else None
    with pytest.raises(error, match=re.compile(message, flags=re.DOTALL)):
        call()
    assert vars(estimator) == before
    if fitted:
        assert_array_equal(estimator.predict_proba(X), expected)


@pytest.mark.parametrize("case", PARAMETERS)
def test_wrong_parameters_of_an_unfitted_estimator(case):
    parameters, error, message = PARAMETERS[case]
    estimator = fresh(**parameters)
    assert_unchanged_by(estimator, lambda: estimator.fit(X, y), error, message)
    assert not hasattr(estimator, "classes_")


@functools.cache
def after_partial_fit():
    return fresh().fit(X, y).partial_fit(X, y).predict_proba(X)


@functools.cache
def after_warm_start():
    return fresh(warm_start=True).fit(X, y).fit(X, y).predict_proba(X)


@pytest.mark.parametrize("case", PARAMETERS)
def test_wrong_parameters_set_on_a_fitted_estimator(case):
    parameters, error, message = PARAMETERS[case]
    estimator = fresh().fit(X, y)
    original = {name: estimator.get_params()[name] for name in parameters}
    estimator.set_params(**parameters)
    assert_unchanged_by(estimator, lambda: estimator.fit(X, y), error, message)
    ignored = {"model", "output", "early_stopping", "random_state"} & set(parameters)  # settled when training began
    if not ignored and "columns" not in case:
        assert_unchanged_by(estimator, lambda: estimator.partial_fit(X, y), error, message)
    estimator.set_params(**original).partial_fit(X, y)
    assert_array_equal(estimator.predict_proba(X), after_partial_fit())


TOLD_OTHERWISE = {"no features", "words in X", "empty y", "one class", "dates", "dict for a builder"}
"""Where a fitted estimator has something else to say: it knows features, classes and inputs."""


@pytest.mark.parametrize("case", DATA)
def test_wrong_data(case):
    data, error, message = DATA[case]
    unfitted = fresh()
    assert_unchanged_by(unfitted, lambda: unfitted.fit(**data), error, message)
    estimator = fresh(warm_start=True).fit(X, y)
    estimator.set_params(warm_start=False)
    assert_unchanged_by(estimator, lambda: estimator.fit(**data), error, message)
    estimator.set_params(warm_start=True)
    if case not in TOLD_OTHERWISE:
        assert_unchanged_by(estimator, lambda: estimator.fit(**data), error, message)
    assert_array_equal(estimator.fit(X, y).predict_proba(X), after_warm_start())


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_wrong_data_for_predictions(method):
    estimator = fresh().fit(X, y)
    call = getattr(estimator, method)
    for data, error, message in (
        (X[:, :3], ValueError, "X has 3 features, but OrtGradientClassifier is expecting 4"),
        (bad(X, np.nan), ValueError, "NaN"),
        (bad(X, 1e300), ValueError, "too large for float32"),
        (X[0], ValueError, "Expected 2D array, got 1D array"),
        (np.array([["a"] * 4]), ValueError, "could not convert string to float|dtype='numeric'"),
    ):
        assert_unchanged_by(estimator, lambda data=data: call(data), error, message)


def test_wrong_calls_of_partial_fit():
    first = fresh()
    assert_unchanged_by(first, lambda: first.partial_fit(X, y), ValueError, "classes must be passed on the first call")
    assert_unchanged_by(first, lambda: first.partial_fit(X, None, classes=[3, 5]), ValueError, "requires y")
    assert_unchanged_by(first, lambda: first.partial_fit(X, y, classes=[3, 4]), ValueError, r"not among .*: \[5\]")
    assert_unchanged_by(
        first, lambda: first.partial_fit(X, y, classes=["a", "b"]), ValueError, r"not among .*: \[3, 5\]"
    )
    assert_unchanged_by(first, lambda: first.partial_fit(X, y, classes=[3]), ValueError, "at least 2 classes")
    later, twin = fresh().partial_fit(X, y, classes=[3, 5]), fresh().partial_fit(X, y, classes=[3, 5])
    for call, message in (
        (lambda: later.partial_fit(X, y + 1), r"not among the classes: \[4, 6\].*are \[3, 5\]"),
        (lambda: later.partial_fit(X, y, classes=[3, 6]), r"classes=\[3, 6\] is not the same as on the last call"),
        (lambda: later.partial_fit(X[:, :2], y), "X has 2 features"),
        (lambda: later.partial_fit(X, np.c_[y == 3, y == 5]), "does not hold one label a row"),
    ):
        assert_unchanged_by(later, call, ValueError, message)
    assert_array_equal(later.partial_fit(X, y).predict_proba(X), twin.partial_fit(X, y).predict_proba(X))


def test_partial_fit_refuses_what_needs_all_data():
    estimator = fresh(class_weight="balanced").fit(X, y)
    assert_unchanged_by(
        estimator, lambda: estimator.partial_fit(X, y), ValueError, "class_weight='balanced' needs all data"
    )
    estimator = fresh(early_stopping=True).fit(X, y)
    assert_unchanged_by(estimator, lambda: estimator.partial_fit(X, y), ValueError, "does not support early_stopping")
    with pytest.raises(AttributeError, match="no attribute 'partial_fit'") as caught:
        _ = fresh(optimizer=LBFGS()).partial_fit
    assert "takes all data at once" in str(caught.value.__cause__)


def test_targets_out_of_the_range_of_a_loss():
    estimator = OrtGradientRegressor(loss="poisson")
    with pytest.raises(ValueError, match="Poisson needs targets that are not negative, got 1 of 60"):
        estimator.fit(X, np.r_[-1, np.ones(59)])
    with pytest.raises(ValueError, match="Gamma needs targets that are positive, got 1 of 60"):
        estimator.set_params(loss="gamma").fit(X, np.r_[0, np.ones(59)])
    assert not hasattr(estimator, "n_features_in_")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("log_loss", "LogLoss is not for regression targets.*'squared_error'"),
        (Huber(0.0), r"'delta' parameter of Huber must be .* Got 0.0 "),
        (Quantile(1.0), r"'quantile' parameter of Quantile must be .* Got 1.0 "),
        (Quantile("half"), "Got 'half'"),
    ],
)
def test_losses_of_a_regressor(loss, message):
    with pytest.raises(ValueError, match=message):
        OrtGradientRegressor(loss=loss).fit(X, X[:, 0])


def test_targets_of_a_regressor():
    for target, message in (
        (["a"] * 60, "numbers for regression"),
        (np.ones((60, 2, 2)), "dim 3"),
        (bad(y, np.nan), "Input y contains NaN"),
        (bad(y, 1e300), "too large for float32"),
    ):
        with pytest.raises(ValueError, match=message):
            OrtGradientRegressor().fit(X, target)
    fitted = OrtGradientRegressor(max_iter=1).fit(X, X[:, :2])
    with pytest.raises(ValueError, match=r"y has 1 output\(s\), expected 2"):
        fitted.partial_fit(X, y)
    with pytest.raises(ValueError, match=r"y_val has 1 output\(s\), expected 2"):
        fitted.fit(X, X[:, :2], X_val=X, y_val=y)


def test_later_targets_are_of_the_kind_of_the_first():
    one = np.arange(60) % 3
    several = np.eye(3, dtype=int)[one]
    for first, other, message in ((one, several, "one label a row"), (several, one, "indicators of several labels")):
        estimator = fresh().fit(X, first)
        for call in (
            lambda e=estimator, later=other: e.partial_fit(X, later),
            lambda e=estimator, y=first, later=other: e.fit(X, y, X_val=X, y_val=later),
        ):
            assert_unchanged_by(estimator, call, ValueError, f"does not hold {message}")


INPUTS = graph(
    "p = MatMul(X, W) e = Gather(b, kind) s = Add(p, e) z = Identity(s)", inputs="float[N,4] X, int64[N,1] kind"
)
KINDS = np.zeros((60, 1), int)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"X": X}, ValueError, r"has the inputs \['X', 'kind'\], X holds \['X'\]"),
        ({"X": X, "kind": KINDS, "more": X}, ValueError, "X holds .*'more'"),
        ({"X": X, "kind": KINDS[:5]}, ValueError, "same number of rows, got {'X': 60, 'kind': 5}"),
        ({"X": X[:, :2], "kind": KINDS}, ValueError, "X has 2 features, but the graph's input 'X' takes rows"),
        ({"X": X, "kind": KINDS + 0.5}, ValueError, "takes int64"),
        ({"X": bad(X, np.nan), "kind": KINDS}, ValueError, r"X\['X'\] contains NaN"),
        ({"X": X, "kind": KINDS + 9}, ModelError, "does not run on the data.*out of data bounds"),
    ],
)
def test_dicts_of_inputs(data, error, message):
    estimator = OrtGradientRegressor(INPUTS, max_iter=1)
    before = dict(vars(estimator))
    with pytest.raises(error, match=message):
        estimator.fit(data, y)
    assert vars(estimator) == before


def test_an_optimizer_that_cannot_run_in_place_is_refused_before_anything_changes():
    class Late(AdamW):
        def update(self, op, parameters, gradients, state, coefficients):
            new, slots = super().update(op, parameters, gradients, state, coefficients)
            return new, {name: op.Add(value, op.Mul(parameters, 0.0)) for name, value in slots.items()}

    estimator, twin = fresh().fit(X, y), fresh().fit(X, y)
    estimator.set_params(optimizer=Late())
    assert_unchanged_by(estimator, lambda: estimator.partial_fit(X, y), ModelError, "written over it")
    estimator.set_params(optimizer="adamw").partial_fit(X, y)
    assert_array_equal(estimator.predict_proba(X), twin.partial_fit(X, y).predict_proba(X))


def test_a_generator_given_as_random_state_is_put_back_too():
    generator = np.random.RandomState(0)
    state = generator.get_state()[1].copy()
    with pytest.raises(ValueError, match="X_val has 3 features"):
        fresh(random_state=generator, early_stopping=True).fit(X, y, X_val=X[:, :3], y_val=y)
    assert_array_equal(generator.get_state()[1], state)


def test_nothing_is_printed_by_the_runtime_when_it_fails(capfd):
    estimator = fresh(model=PARAMETERS["rows fixed inside"][0]["model"])
    with pytest.raises(ModelError):
        estimator.fit(X, y)
    assert capfd.readouterr() == ("", "")
