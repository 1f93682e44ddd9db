"""Rules of parameters: a value that was accepted once decides about no other value, type or rule."""

from __future__ import annotations

from numbers import Integral, Real
from types import SimpleNamespace

import numpy as np
import pytest

from onnxtrain_sklearn import Adam, OrtGradientRegressor
from onnxtrain_sklearn._utils.params import COUNT, Levels, OneOf, Range, Sizes, check_parameters, copied, registered
from onnxtrain_sklearn.exceptions import InvalidParameterError
from onnxtrain_sklearn.losses import LOSSES, Huber, Loss
from onnxtrain_sklearn.models import MODELS
from onnxtrain_sklearn.optimizers import OPTIMIZERS
from onnxtrain_sklearn.schedules import SCHEDULES


@pytest.mark.parametrize(
    ("allowed", "valid", "invalid"),
    [
        ((COUNT,), 1, 1.0),
        ((bool,), True, 1),
        ((Range(Real, 0),), 0, -1),
        ((Range(Real, 0),), 1e300, np.nan),
        ((OneOf(("auto",)), COUNT), "auto", "off"),
        ((Sizes(),), [3, 4], [3, 0]),
        ((Levels(),), (0.1, 0.5), (0.5, 0.1)),
        ((Range(Integral, 0, 4), None), None, "None"),
    ],
)
def test_accepted_values_are_distinguished(allowed, valid, invalid):
    for _ in range(2):
        check_parameters(SimpleNamespace(size=valid), {"size": allowed})
        with pytest.raises(InvalidParameterError, match="size"):
            check_parameters(SimpleNamespace(size=invalid), {"size": allowed})


def test_the_same_value_under_other_rules():
    for low in range(3):  # a tuple of rules that is gone must not lend its address to the next
        check_parameters(SimpleNamespace(size=low), {"size": (Range(Integral, low),)})
        with pytest.raises(InvalidParameterError):
            check_parameters(SimpleNamespace(size=low), {"size": (Range(Integral, low + 1),)})


def test_a_list_that_changes_is_checked_again():
    sizes = [3]
    check_parameters(SimpleNamespace(sizes=sizes), {"sizes": (Sizes(),)})
    sizes.append(0)
    with pytest.raises(InvalidParameterError):
        check_parameters(SimpleNamespace(sizes=sizes), {"sizes": (Sizes(),)})


REGISTRIES = {"optimizer": OPTIMIZERS, "loss": LOSSES, "learning_rate": SCHEDULES, "model": MODELS}


@pytest.mark.parametrize("parameter", REGISTRIES)
def test_name_in_capitals_suggests_the_component(parameter):
    X = np.eye(4)
    for name in REGISTRIES[parameter]:
        estimator = OrtGradientRegressor(**{parameter: name.upper()})
        with pytest.raises(InvalidParameterError, match=rf"Did you mean '{name}'\?"):
            estimator.fit(X, X[:, 0])


def test_subclass_with_inherited_name_replaces_no_class():
    class Steeper(Huber):
        pass

    assert registered(Loss, {"__name__": __name__, "Steeper": Steeper, "Loss": Loss, "one": 1}) == {}


def test_copies_of_parameters_share_no_state():
    optimizer, factors = Adam(0.8), {"a": 1.0}
    copies = copied(optimizer), copied(factors), copied("adam")
    assert copies[0] is not optimizer
    assert copies[0].beta_1 == 0.8
    assert copies[1] is not factors
    assert copies[1:] == (factors, "adam")
