"""Settings of NumPy for floating-point errors belong to a thread, and stay as they are."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from onnxtrain_sklearn._utils.errors import ignores_float_errors


def test_errors_are_ignored_in_the_function_alone():
    divided = ignores_float_errors(lambda x: x / np.zeros(1))
    with np.errstate(all="raise"):
        assert np.isinf(divided(np.ones(1))).all()
        with pytest.raises(FloatingPointError):
            np.ones(1) / np.zeros(1)


def test_threads_keep_their_settings():
    """One thread is in the function while another enters and leaves it."""
    inside, left, found = threading.Event(), threading.Event(), {}
    wait = ignores_float_errors(lambda: (inside.set(), left.wait(10)))
    pause = ignores_float_errors(lambda: None)

    def first():
        with np.errstate(all="raise"):
            wait()
            found["first"] = np.geterr()["divide"]

    def second():
        inside.wait(10)
        with np.errstate(all="print"):
            pause()
            found["second"] = np.geterr()["divide"]
        left.set()

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": "raise", "second": "print"}
