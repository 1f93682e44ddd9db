"""skops stores fitted estimators without pickle: what is loaded predicts the same and goes on training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxtrain_sklearn import LBFGS, MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor, losses, schedules

skops_io = pytest.importorskip("skops.io")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(word=np.array(["red", "blue"])[Y])
OBJECTS = {"optimizer": SGD(momentum=0.9), "learning_rate": schedules.InverseScaling(), "loss": losses.Focal()}
GIVEN = Linear().build(4, 2, random_state=0)


def stored_net(model=None, **parameters):
    return OrtGradientClassifier(model, **{"max_iter": 2, "random_state": 0} | parameters)


def linear_net():
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)


def skops_table():
    columns = make_column_transformer((StandardScaler(), list("abcd")), (OneHotEncoder(), ["word"]))
    return make_pipeline(columns, LogisticRegression()).fit(FRAME, Y)


CASES = {
    "builder": (lambda: stored_net(MLP((3,))), X, Y),
    "default": (lambda: stored_net(random_state=None), X, Y),
    "objects": (lambda: stored_net(**OBJECTS), X, Y),
    "generator": (lambda: stored_net(random_state=np.random.RandomState(0)), X, Y),
    "given": (lambda: stored_net(GIVEN), X, Y),
    "bytes": (lambda: stored_net(GIVEN.SerializeToString()), X, Y),
    "scaled in a pipeline": (lambda: make_pipeline(StandardScaler(), stored_net()), X, Y),
    "strings": (lambda: stored_net(), X, np.array(["no", "yes"])[Y]),
    "labels": (lambda: stored_net(), X, np.c_[Y, 1 - Y]),
    "several labels": (lambda: stored_net(), X, np.array(["no", "yes"])[np.c_[Y, 1 - Y]]),
    "early stopping": (lambda: stored_net(early_stopping=True, validation_fraction=0.3), X, Y),
    "fitted": (lambda: stored_net(linear_net()), X, Y),
    "trees": (lambda: stored_net(GradientBoostingClassifier(n_estimators=2).fit(X, Y)), X, Y),
    "table": (lambda: stored_net(skops_table()), FRAME, Y),
    "lbfgs": (lambda: OrtGradientRegressor(Linear(), optimizer=LBFGS(), max_iter=2, random_state=0), X, X[:, 0]),
}


def loaded(estimator):
    stored = skops_io.dumps(estimator)
    types = skops_io.get_untrusted_types(data=stored)
    known = ("onnxtrain_sklearn.", "numpy.", "onnx.", "sklearn.", "pandas.", "builtins.frozenset")
    assert all(name.startswith(known) for name in types), types
    return skops_io.loads(stored, trusted=types)


@pytest.mark.parametrize("case", CASES)
def test_what_is_loaded_predicts_and_goes_on(case):
    make, data, target = CASES[case]
    fitted = make().fit(data, target)
    twin = loaded(fitted)
    assert_array_equal(twin.predict(data), fitted.predict(data))
    last, own = (e[-1] if hasattr(e, "steps") else e for e in (twin, fitted))
    assert last.loss_curve_ == own.loss_curve_
    assert last.to_onnx() == own.to_onnx()
    if hasattr(own, "partial_fit") and not own.early_stopping:
        for estimator in (last, own):
            estimator.partial_fit(data, target)
        for name, array in own.weights_.items():
            assert_array_equal(last.weights_[name], array)


def test_a_fitted_model_comes_back_from_what_is_loaded():
    fitted = stored_net(linear_net(), learning_rate_init=0.1).fit(X, Y)
    assert_array_equal(loaded(fitted).to_sklearn(X)[-1].coef_, fitted.to_sklearn()[-1].coef_)


def test_nothing_is_loaded_without_trust():
    with pytest.raises(skops_io.exceptions.UntrustedTypesFoundException):
        skops_io.loads(skops_io.dumps(stored_net().fit(X, Y)))
