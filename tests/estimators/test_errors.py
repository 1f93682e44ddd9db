"""Every wrong argument is told in words that help, and leaves the estimator as it was."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ShuffleSplit

from onnxtrain_sklearn import MLP, SGD, AdamW, GraphModel, Linear, Runtime
from onnxtrain_sklearn.exceptions import DeviceError, ModelError, UnsupportedOperatorError
from onnxtrain_sklearn.losses import Focal, Hinge
from onnxtrain_sklearn.optimizers import Slot
from onnxtrain_sklearn.schedules import Cosine, StepDecay
from tests.helpers.refusals import WEIGHTS, X, assert_unchanged_by, fresh, parsed, y

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
FIXED = "a = Gemm(X, W, b) z = Reshape(a, shape)"
CUBE = "by = Constant <value_ints = [-1, 2, 2]> () a = MatMul(X, W) z = Reshape(a, by)"
LINEAR = parsed("z = Gemm(X, W, b)")
FOREIGN = parsed("p = Constant <value_ints = [0, 0, 0, 0]> () a = Gemm(X, W, b) z = com.microsoft.Pad(a, p)")
FOREIGN.opset_import.add(domain="com.microsoft", version=1)

PARAMETERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # the graph
    "no ONNX": ({"model": b"no ONNX at all"}, ModelError, "no ONNX model|not an ONNX model"),
    "truncated": ({"model": LINEAR.SerializeToString()[:-30]}, ModelError, "truncated"),
    "empty": ({"model": b""}, ModelError, "empty"),
    "no file": ({"model": "there/is/none.onnx"}, ModelError, "no file 'there/is/none.onnx'"),
    "no parameter": ({"model": parsed("z = Neg(X)", "float[N,4] z")}, ModelError, "no parameter to train"),
    "output": ({"model": GraphModel(LINEAR, "Z")}, ModelError, "output='Z' is no output of the .*Valid names: 'z'"),
    "operator": (
        {"model": FOREIGN},
        UnsupportedOperatorError,
        r"\(com.microsoft.Pad\) cannot be differentiated.*Freeze the parameters before",
    ),
    "rows": (
        {"model": parsed(FIXED, "float[M,3] z", shape=np.array([1, -1]), **WEIGHTS)},
        ModelError,
        "gives 1 output rows for 13 input rows.*dynamic batch axis",
    ),
    "rows fixed inside": (
        {"model": parsed(FIXED, "float[8,1] z", shape=np.array([8, 1]), **WEIGHTS)},
        ModelError,
        "does not run on the data.*constant shape in a Reshape.*dynamic batch axis",
    ),
    "one number": (
        {"model": parsed("a = Gemm(X, W, b) z = ReduceMean <keepdims = 0> (a)", "float z")},
        ModelError,
        "a single number for 13 input rows",
    ),
    "rank": (
        {"model": parsed(CUBE, "float[N,2,2] z", W=np.ones((4, 4)))},
        ModelError,
        r"shape \('n', 2, 2\); it must be \(n,\), \(n, 1\) or \(n, k\)",
    ),
    "columns": (
        {"model": parsed("z = MatMul(X, W)", "float[N,3] z", W=np.ones((4, 3)))},
        ValueError,
        r"output has 3 column\(s\), but y has 2 classes",
    ),
    "several inputs": (
        {"model": parsed("a = Add(X, V) z = Gemm(a, W, b)", inputs="float[N,4] X, float[N,4] V")},
        TypeError,
        "2 inputs: 'X', 'V'. Give X as a dict of arrays by input name, .* got ndarray",
    ),
    "an unfitted model": ({"model": LogisticRegression()}, NotFittedError, "This LogisticRegression instance is not"),
    "no model": ({"model": 3}, TypeError, "ONNX file, a fitted scikit-learn model.*got int"),
    "a builder's class": ({"model": MLP}, TypeError, r"a graph builder such as MLP\(\)"),
    "activation": ({"model": MLP(activation="rellu")}, ValueError, "'activation' .* Did you mean 'relu'"),
    "initialization": ({"model": Linear(initialization="he")}, ValueError, "'initialization' .* Got 'he'"),
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
    "engine misspelt": ({"engine": "compile"}, ValueError, "Unknown engine 'compile'. Did you mean 'compiled'"),
    "device": ({"device": "gpu"}, ValueError, "Unknown device 'gpu'.*'cuda'"),
    "no cuda": ({"device": "cuda"}, DeviceError, "device='cuda' needs CUDAExecutionProvider.*use device='cpu'"),
    "device and providers": (
        {"device": "cuda", "runtime": Runtime(providers=["CPUExecutionProvider"])},
        ValueError,
        "device='cuda' is none of providers=.*name CUDAExecutionProvider",
    ),
    "provider": ({"runtime": Runtime(providers=["NoExecutionProvider"])}, DeviceError, "NoExecutionProvider"),
    "session option": (
        {"runtime": Runtime(session_options={"intra_threads": 1})}, ValueError, "Unknown session option 'intra_threads'"
    ),
    "runtime": ({"runtime": {"intra_op_num_threads": 1}}, TypeError, "runtime must be a Runtime or None, got dict"),
    "runtime class": ({"runtime": Runtime}, TypeError, r"got the class Runtime; give an instance: Runtime\(\)"),
    # numbers
    "learning_rate_init type": ({"learning_rate_init": "0.1"}, TypeError, "'learning_rate_init' .* a float .*'0.1'"),
    "learning_rate_init sign": ({"learning_rate_init": -0.1}, ValueError, r"in the range \[0.0, inf\). Got -0.1"),
    "learning_rate_init NaN": ({"learning_rate_init": np.nan}, ValueError, "'learning_rate_init' .* Got nan"),
    "learning_rate_init infinite": ({"learning_rate_init": np.inf}, ValueError, "'learning_rate_init' .* Got inf"),
    "batch_size type": ({"batch_size": 2.5}, TypeError, "'batch_size' .* Got 2.5"),
    "batch_size word": ({"batch_size": "all"}, ValueError, r"'auto' or an int in .* or None. Got 'all'"),
    "batch_size zero": ({"batch_size": 0}, ValueError, "'batch_size' .* Got 0"),
    "max_iter type": ({"max_iter": 3.0}, TypeError, r"'max_iter' .* an int in the range \[1, inf\). Got 3.0"),
    "max_iter zero": ({"max_iter": 0}, ValueError, "'max_iter' .* Got 0"),
    "alpha type": ({"alpha": None}, TypeError, "'alpha' .* Got None"),
    "alpha sign": ({"alpha": -1.0}, ValueError, "'alpha' .* Got -1.0"),
    "alpha NaN": ({"alpha": np.nan}, ValueError, "'alpha' .* Got nan"),
    "l1_ratio type": ({"l1_ratio": "half"}, TypeError, "'l1_ratio' .* Got 'half'"),
    "l1_ratio range": ({"l1_ratio": 1.5}, ValueError, r"'l1_ratio' .* a float in the range \[0.0, 1.0\]. Got 1.5"),
    "max_grad_norm type": ({"optimizer": AdamW(max_grad_norm="1")}, TypeError, "'max_grad_norm' .* Got '1'"),
    "max_grad_norm zero": ({"optimizer": AdamW(max_grad_norm=0.0)}, ValueError, r"range \(0.0, inf\) or None. Got 0.0"),
    "max_grad_norm NaN": ({"optimizer": AdamW(max_grad_norm=np.nan)}, ValueError, "'max_grad_norm' .* Got nan"),
    "tol type": ({"tol": "small"}, TypeError, "'tol' .* a float .* Got 'small'"),
    "tol NaN": ({"tol": np.nan}, ValueError, "'tol' .* Got nan"),
    "n_iter_no_change type": ({"n_iter_no_change": 1.5}, TypeError, "'n_iter_no_change' .* Got 1.5"),
    "n_iter_no_change zero": ({"n_iter_no_change": 0}, ValueError, "'n_iter_no_change' .* or inf. Got 0"),
    "validation_split type": (
        {"early_stopping": True, "validation_split": "a tenth"}, TypeError, "'validation_split' .* Got 'a tenth'",
    ),
    "validation_split range": (
        {"early_stopping": True, "validation_split": 1.0}, ValueError, r"in the range \(0.0, 1.0\) or .* Got 1.0",
    ),
    "random_state": ({"random_state": "seed"}, ValueError, "cannot be used to seed"),
    "class_weight": ({"class_weight": "equal"}, ValueError, "class_weight"),
    "class_weight labels": ({"class_weight": {7: 1.0}}, ValueError, r"\[3, 5\], are not in class_weight"),
    "class_weight sign": ({"class_weight": {3: -1.0, 5: 1.0}}, ValueError, "must contain non-negative numbers"),
    "class_weight zero": ({"class_weight": {3: 0.0, 5: 0.0}}, ValueError, "sum of sample_weight is zero"),
}  # fmt: skip


@pytest.mark.parametrize("case", PARAMETERS)
def test_wrong_parameters_of_an_unfitted_estimator(case):
    parameters, error, message = PARAMETERS[case]
    estimator = fresh(**parameters)
    assert_unchanged_by(estimator, lambda: estimator.fit(X, y), error, message)
    assert not hasattr(estimator, "classes_")


@functools.cache
def after_partial_fit():
    return fresh().fit(X, y).partial_fit(X, y).predict_proba(X)


@pytest.mark.thinned(by=lambda case: set(PARAMETERS[case][0]))
@pytest.mark.parametrize("case", PARAMETERS)
def test_wrong_parameters_set_on_a_fitted_estimator(case):
    parameters, error, message = PARAMETERS[case]
    estimator = fresh().fit(X, y)
    original = {name: estimator.get_params()[name] for name in parameters}
    estimator.set_params(**parameters)
    assert_unchanged_by(estimator, lambda: estimator.fit(X, y), error, message)
    ignored = {"model", "early_stopping", "random_state"} & set(parameters)  # settled when training began
    if not ignored and "columns" not in case:
        assert_unchanged_by(estimator, lambda: estimator.partial_fit(X, y), error, message)
    estimator.set_params(**original).partial_fit(X, y)
    assert_array_equal(estimator.predict_proba(X), after_partial_fit())


def test_error_while_the_step_is_made_leaves_the_optimizer_as_it_was():
    class Failing(AdamW):
        calls, last = 0, math.inf

        def slots(self, parameters):
            return {**super().slots(parameters), "further": Slot(parameters.shape)}

        def update(self, op, p, g, state, k):
            new, slots = super().update(op, p, g, {n: v for n, v in state.items() if n != "further"}, k)
            return new, {**slots, "further": op.Mul(state["further"], 0.5)}

        def scalars(self, learning_rate, t):
            Failing.calls += 1
            if Failing.calls > Failing.last:
                raise MemoryError("no memory for the step")
            return super().scalars(learning_rate, t)

    expected = fresh().partial_fit(X, y, classes=[3, 5]).partial_fit(X, y).predict_proba(X)
    fresh(optimizer=Failing()).partial_fit(X, y, classes=[3, 5])
    n_calls = Failing.calls  # the proof that updates run in place, the making of the step, and the steps
    assert n_calls >= 4
    for last in range(n_calls):
        estimator = fresh().partial_fit(X, y, classes=[3, 5])
        Failing.calls, Failing.last = 0, last
        estimator.set_params(optimizer=Failing())
        try:
            estimator.partial_fit(X, y)
        except MemoryError:
            estimator.set_params(optimizer="adamw").partial_fit(X, y)  # with the moments of the first call
            assert_array_equal(estimator.predict_proba(X), expected)


def test_optimizer_not_in_place_is_refused_without_change():
    class Late(AdamW):
        def update(self, op, p, g, state, k):
            new, slots = super().update(op, p, g, state, k)
            return new, {name: op.Add(value, op.Mul(p, 0.0)) for name, value in slots.items()}

    estimator, twin = fresh().fit(X, y), fresh().fit(X, y)
    estimator.set_params(optimizer=Late())
    assert_unchanged_by(estimator, lambda: estimator.partial_fit(X, y), ModelError, "written over it")
    estimator.set_params(optimizer="adamw").partial_fit(X, y)
    assert_array_equal(estimator.predict_proba(X), twin.partial_fit(X, y).predict_proba(X))


def test_random_generator_is_restored_on_error():
    generator = np.random.RandomState(0)
    state = generator.get_state()[1].copy()
    with pytest.raises(ValueError, match="X_val has 3 features"):
        fresh(random_state=generator, early_stopping=True).fit(X, y, X_val=X[:, :3], y_val=y)
    assert_array_equal(generator.get_state()[1], state)


def test_random_generator_of_splitter_is_restored_on_error():
    generator = np.random.RandomState(0)
    split = ShuffleSplit(random_state=generator)
    estimator = fresh(validation_split=split, early_stopping=True, callbacks=[lambda epoch: 1 / 0])
    with pytest.raises(ZeroDivisionError):
        estimator.fit(X, y)
    assert_array_equal(generator.uniform(size=700), np.random.RandomState(0).uniform(size=700))


def test_nothing_is_printed_by_the_runtime_when_it_fails(capfd):
    estimator = fresh(model=PARAMETERS["rows fixed inside"][0]["model"])
    with pytest.raises(ModelError):
        estimator.fit(X, y)
    assert capfd.readouterr() == ("", "")
