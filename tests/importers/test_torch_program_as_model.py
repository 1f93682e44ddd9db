"""Programs of ``torch.onnx.export`` as ``model``: taken for the protobuf that they hold, also where they are copied."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx.parser
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
y = X @ np.float32([1, -2, 0.5])


def graph(first=0.3):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] Y)
        <float[3, 1] W = {{{first}, -0.2, 0.1}}> {{ Y = MatMul(X, W) }}"""
    )


class Program:
    """Like ``torch.onnx.ONNXProgram``: a new protobuf at each call, and no way to copy or pickle it."""

    def __init__(self, first=0.3):
        self.first = first

    @property
    def model_proto(self):
        return graph(self.first)

    def __reduce_ex__(self, protocol):
        raise TypeError("a program cannot be pickled")


def regressor(model, **settings):
    return OrtGradientRegressor(model, **{"max_iter": 3, "random_state": 0} | settings)


def test_a_program_is_trained_as_its_protobuf_is():
    program, plain = regressor(Program()).fit(X, y), regressor(graph()).fit(X, y)
    assert_array_equal(program.predict(X), plain.predict(X))
    assert str(regressor(Program()).describe()) == str(regressor(graph()).describe())


@pytest.mark.parametrize("copied", [clone, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("fitted", [False, True])
def test_copies_hold_the_protobuf(copied, fitted):
    original = regressor(Program(), warm_start=True)
    twin = copied(original.fit(X, y) if fitted else original)
    assert isinstance(twin.model, onnx.ModelProto)
    assert isinstance(original.model, Program)
    if fitted and copied is not clone:
        original.fit(X, y)
        assert_array_equal(twin.fit(X, y).predict(X), original.predict(X))
    else:
        assert_array_equal(twin.fit(X, y).predict(X), regressor(graph()).fit(X, y).predict(X))


def test_cross_validation_copies_the_program():
    assert np.isfinite(cross_val_score(regressor(Program()), X, y, cv=2, error_score="raise")).all()


def test_later_calls_go_on_with_the_same_program_and_refuse_another():
    fitted = regressor(Program()).partial_fit(X, y).set_params(model=Program()).partial_fit(X, y)
    with pytest.raises(ModelError, match="to another ModelProto"):
        fitted.set_params(model=Program(0.7)).partial_fit(X, y)


def test_objects_with_other_contents_are_no_programs():
    class Other:
        model_proto = b"bytes"

    with pytest.raises(TypeError, match=r"must be an onnx.ModelProto, .* got Other"):
        regressor(Other()).fit(X, y)
