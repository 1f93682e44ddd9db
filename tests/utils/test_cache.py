"""Stores of compiled graphs and sessions: their bounds, and which sessions may be shared."""

from __future__ import annotations

import pytest

from onnxtrain_sklearn._ort.devices import Device
from onnxtrain_sklearn._ort.sessions import may_be_shared
from onnxtrain_sklearn._utils.cache import Cache


def test_a_store_is_bounded_in_entries_and_in_bytes():
    cache = Cache(3, 100, len)
    for text in ("a", "b", "c", "a", "d"):
        cache.get(text, lambda text=text: text)
    assert len(cache) == 3
    assert cache.get("a", lambda: pytest.fail("it was used last but one")) == "a"
    assert cache.get("b", lambda: "anew") == "anew"  # the least recently used one had gone
    for size in (20, 21, 22, 23, 24):
        cache.get(size, lambda size=size: "x" * size)
    assert cache.held_bytes <= 100
    cache.get("large", lambda: "x" * 26)
    assert cache.get("large", lambda: "another") == "another"  # no entry may take more than a quarter
    cache.clear()
    assert (len(cache), cache.held_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("device", "options", "shared"),
    [
        (Device("cpu", ("CPUExecutionProvider",), ({},)), {"intra_op_num_threads": 1}, True),
        (Device("cpu", ("CPUExecutionProvider",), ({},)), {"enable_profiling": True}, False),
        (Device("cpu", ("CPUExecutionProvider",), ({},)), {"session.save_model_format": "ORT"}, False),
        (Device("cuda", ("CUDAExecutionProvider",), ({"enable_cuda_graph": "1"},)), None, False),
    ],
)
def test_sessions_with_own_state_or_file_are_not_shared(device, options, shared):
    assert may_be_shared(device, options) == shared
