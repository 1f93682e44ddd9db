"""Objects compared by content: what a repr shortens or rounds, and what has no repr of its own."""

from __future__ import annotations

import copy
import functools
import threading
from collections import OrderedDict, deque

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LinearRegression

from onnxtrain_sklearn import MLP, Adam, losses
from onnxtrain_sklearn._utils.cache import content


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: object) -> None:
        self.a = a


class Box:
    def __init__(self, value: object) -> None:
        self.value = value


class Marked(list):
    pass


def long_array(at: int | None = None) -> np.ndarray:
    array = np.zeros(5000)
    if at is not None:
        array[at] = 1.0
    return array


def marked(items: list[int], mark: int) -> Marked:
    result = Marked(items)
    result.mark = mark
    return result


def closing_over(values: list[int]):
    return lambda: values


def network(width: int) -> object:
    return MLP((width,), "tanh").build(3, 2, np.random.RandomState(0))


PAIRS = {
    "numbers": (lambda: 1, lambda: 2),
    "types of numbers": (lambda: 1, lambda: 1.0),
    "types of numpy": (lambda: np.float32(1), lambda: np.float64(1)),
    "not a number": (lambda: float("nan"), lambda: 1.0),
    "signs of zero": (lambda: 0.0, lambda: -0.0),
    "arrays longer than their repr": (long_array, lambda: long_array(2500)),
    "numbers closer than their repr": (lambda: np.array([0.1]), lambda: np.array([0.1 + 1e-12])),
    "types of arrays": (lambda: np.zeros(3, np.float32), lambda: np.zeros(3, np.int32)),
    "shapes": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "arrays of objects": (lambda: np.array(["a", None], object), lambda: np.array(["a", 1], object)),
    "masks": (lambda: np.ma.array([1, 2], mask=[0, 1]), lambda: np.ma.array([1, 2], mask=[1, 0])),
    "lists": (lambda: [1, [2]], lambda: [1, [3]]),
    "attributes of lists": (lambda: marked([1], 1), lambda: marked([1], 2)),
    "tuples and lists": (lambda: [1], lambda: (1,)),
    "dicts": (lambda: {"a": long_array()}, lambda: {"a": long_array(2500)}),
    "ordered dicts": (lambda: OrderedDict(a=1), lambda: OrderedDict(a=2)),
    "sets": (lambda: {1, "a"}, lambda: {1, "b"}),
    "deques": (lambda: deque([1]), lambda: deque([2])),
    "partial functions": (lambda: functools.partial(max, 1), lambda: functools.partial(max, 2)),
    "objects": (lambda: Box(long_array()), lambda: Box(long_array(2500))),
    "slots": (lambda: Slotted([1]), lambda: Slotted([2])),
    "parameters of estimators": (lambda: Adam(beta_1=0.9), lambda: Adam(beta_1=0.8)),
    "classes": (lambda: losses.SquaredError(), lambda: losses.LogLoss()),
    "sparse matrices": (lambda: sp.eye(5, format="csr"), lambda: sp.csr_matrix(np.eye(5) * 2)),
    "graphs": (lambda: network(3), lambda: network(4)),
    "generators": (lambda: np.random.RandomState(0), lambda: np.random.RandomState(1)),
    "fitted models": (lambda: LinearRegression().fit([[0], [1]], [0, 1]), lambda: LinearRegression()),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_content_is_equal_and_other_content_is_not(name):
    make, other = PAIRS[name]
    assert content(make()) == content(make())
    assert content(make()) != content(other())
    assert content(copy.deepcopy(make())) == content(make())


def test_functions_are_equal_to_themselves():
    values = [1]
    function = closing_over(values)
    assert content(function) == content(function)
    assert content(function) != content(closing_over(values))
    before = content(function)
    values.append(2)
    assert content(function) != before


def test_bound_methods_are_equal_where_their_owners_are():
    assert content(Box(1).__init__) == content(Box(1).__init__)
    assert content(Box(1).__init__) != content(Box(2).__init__)


def test_content_is_a_snapshot():
    array = np.zeros(3)
    before = content(Box(array))
    array[0] = 1
    assert content(Box(array)) != before


def test_objects_that_cannot_be_looked_into_are_equal_to_themselves():
    lock = threading.Lock()
    assert content(Box(lock)) == content(Box(lock))
    assert content(Box(lock)) != content(Box(threading.Lock()))


def test_objects_that_hold_each_other_come_to_an_end():
    def ring(mark):
        first, second = Box(None), Box(mark)
        first.value, second.next = second, first
        return first

    assert content(ring(1)) == content(ring(1))
    assert content(ring(1)) != content(ring(2))
    doubled = [0]
    for _ in range(100):
        doubled = [doubled, doubled]
    assert content(doubled) == content(doubled)


def test_deeply_nested_objects_equal_nothing():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert content(deep) != content(deep)
