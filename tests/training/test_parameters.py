"""The flat vector of parameters, and which of them are trained."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from onnxtrain_sklearn import AdamW
from onnxtrain_sklearn._training.parameters import Factors, FlatParameters, owned, select_trainable, vector_segments
from onnxtrain_sklearn._training.step_parts import OptimizerState

WEIGHTS = {
    "b0": np.arange(3.0),
    "W0": np.arange(6.0).reshape(2, 3) + 10,
    "scale": np.array(7.0),
    "conv": np.arange(8.0).reshape(2, 2, 2, 1) + 20,
}


def flat_parameters(dtype=np.float32):
    return FlatParameters(WEIGHTS, np.dtype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_come_first(dtype):
    parameters = flat_parameters(dtype)
    assert parameters.names == ("W0", "conv", "b0", "scale")
    np.testing.assert_array_equal(parameters.vector, [*range(10, 16), *range(20, 28), 0, 1, 2, 7])
    assert parameters.vector.dtype == parameters.gradient.dtype == dtype
    assert parameters.penalized == slice(0, 14)
    assert not parameters.gradient.any()


def test_views_share_the_memory():
    parameters = flat_parameters()
    for name, array in WEIGHTS.items():
        for view, vector in (
            (parameters.view(name), parameters.vector),
            (parameters.gradient_view(name), parameters.gradient),
        ):
            assert view.shape == array.shape
            assert np.shares_memory(view, vector)
            assert view.flags.c_contiguous
    parameters.view("b0")[1] = -5
    parameters.vector[-1] = 99
    parameters.gradient_view("scale")[...] = 3
    assert parameters.vector[15] == -5
    assert parameters.weights()["scale"] == 99
    assert parameters.gradient[-1] == 3


def test_views_cover_the_vector_once():
    parameters = flat_parameters()
    for i, name in enumerate(parameters.names):
        parameters.view(name)[...] = i
    sizes = [WEIGHTS[name].size for name in parameters.names]
    np.testing.assert_array_equal(parameters.vector, np.repeat(range(4), sizes))


def test_weights_are_copied_in_and_out():
    given = {name: array.copy() for name, array in WEIGHTS.items()}
    parameters = FlatParameters(given, np.dtype(np.float32))
    given["W0"][...] = 0
    parameters.weights()["W0"][...] = 0
    np.testing.assert_array_equal(parameters.view("W0"), WEIGHTS["W0"])


def test_neighbors_share_a_segment():
    weights = {"a": np.ones(2), "b": np.ones((2, 3)), "c": np.ones(4), "d": np.ones((1, 5)), "e": np.ones(1)}
    factors = {"a": Factors(0.1), "d": Factors(2.0), "e": Factors(0.1)}
    parameters = FlatParameters(weights, np.float32, groups=factors)
    assert parameters.names == ("b", "d", "c", "a", "e")
    assert [(s.part.start, s.part.stop, s.factors.rate) for s in vector_segments(parameters, factors, AdamW())] == [
        (0, 6, 1.0), (6, 11, 2.0), (11, 15, 1.0), (15, 18, 0.1),
    ]  # fmt: skip
    assert parameters.penalized == slice(0, 11)


def test_foreign_and_read_only_arrays_are_copied(tmp_path):
    plain = np.arange(6.0)
    assert owned(plain) is plain
    np.save(tmp_path / "array.npy", plain)
    read_only = plain.copy()
    read_only.flags.writeable = False
    others = [np.load(tmp_path / "array.npy", mmap_mode=mode) for mode in ("r", "r+", "c")]
    for array in [*others, read_only, plain[::2], plain[1:]]:
        copied = owned(array)
        assert type(copied) is np.ndarray
        assert copied.flags.carray
        assert not np.shares_memory(copied, array)
        np.testing.assert_array_equal(copied, array)


def test_unpickled_arrays_share_no_memory():
    weights = {"W": np.ones((300, 300), np.float32)}
    parts = FlatParameters(weights, np.dtype(np.float32)), OptimizerState(3, {"m": np.ones(7)}, 2)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(parts, protocol=5, buffer_callback=buffers.append)
    parameters, state = pickle.loads(data, buffers=buffers)
    parameters.vector[:] = 2
    state.slots["m"][:] = 2
    assert (parts[0].vector == 1).all()
    assert (parts[1].slots["m"] == 1).all()
    assert (state.t, state.draws) == (3, 2)


def test_no_parameters():
    parameters = FlatParameters({}, np.dtype(np.float32))
    assert (parameters.vector.shape, parameters.names, parameters.penalized) == ((0,), (), slice(0, 0))


def test_pickle_keeps_values_and_order():
    parameters = flat_parameters()
    parameters.gradient[...] = 1
    copy = pickle.loads(pickle.dumps(parameters))
    assert copy.names == parameters.names
    np.testing.assert_array_equal(copy.vector, parameters.vector)
    copy.view("b0")[...] = 5
    assert (copy.vector[14:17] == 5).all()


SHAPES = {"layers.0.weight": (2, 3), "layers.0.bias": 3, "layers.1.weight": (3, 1), "layers.1.bias": 1, "w[0]": 2}
NAMES = {name: np.zeros(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(
    ("trainable", "chosen"),
    [
        ("all", list(NAMES)),
        ("layers.1.bias", ["layers.1.bias"]),
        ("layers.1.*", ["layers.1.weight", "layers.1.bias"]),
        (["*.bias", "layers.0.weight"], ["layers.0.weight", "layers.0.bias", "layers.1.bias"]),
        (("layers.?.weight",), ["layers.0.weight", "layers.1.weight"]),
        ("layers.[1-9].bias", ["layers.1.bias"]),
        ("w[0]", ["w[0]"]),
        (["layers.0.bias", "layers.0.*", "layers.0.bias"], ["layers.0.weight", "layers.0.bias"]),
        (lambda name, array: array.ndim == 2, ["layers.0.weight", "layers.1.weight"]),
        (lambda name, array: name.startswith("w"), ["w[0]"]),
    ],
)
def test_selection(trainable, chosen):
    assert select_trainable(NAMES, trainable) == chosen


def test_a_parameter_may_be_named_all():
    assert select_trainable({"all": np.zeros(2), "b": np.zeros(1)}, ["all"]) == ["all"]


@pytest.mark.parametrize(
    ("trainable", "error", "message"),
    [
        ("layer.1.weight", ValueError, r"'layer.1.weight' matches no parameter.*Did you mean '.*layers.1.weight'"),
        (["*.bias", "head.*"], ValueError, r"trainable='head\.\*' matches no parameter.*Valid names: 'layers.0.bias'"),
        ("LAYERS.1.*", ValueError, "matches no parameter"),
        ([], ValueError, "trainable is an empty list: name at least one parameter, or 'all'"),
        (lambda name, array: False, ValueError, "the function returned False for layers.0.weight, layers.0.bias"),
        ([1], TypeError, "must hold names or glob patterns, got 1 of type int"),
        (None, TypeError, "trainable must be 'all', names or glob patterns, or a function, got None"),
        (True, TypeError, "trainable must be 'all', names or glob patterns, or a function, got True"),
        (dict, TypeError, "trainable must be .all., names or glob patterns, or a function, got <class .dict.>"),
    ],
)
def test_errors(trainable, error, message):
    with pytest.raises(error, match=message):
        select_trainable(NAMES, trainable)


def test_the_function_cannot_change_the_weights():
    weights = {"W": np.ones((2, 2))}

    def greedy(name, array):
        array[...] = 0
        return True

    assert select_trainable(weights, greedy) == ["W"]
    assert weights["W"].all()
