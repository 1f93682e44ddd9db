"""A process with a limit of memory: MemoryError, with the reason, and no crash."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from onnxtrain_sklearn import GraphModel, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn._ort.sessions import not_loaded, not_run
from onnxtrain_sklearn._utils.errors import refusing
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.helpers.hostile import X, net, y
from tests.helpers.selection import one_case

PROGRAM = """
import resource, sys, warnings
import numpy as np
from onnxtrain_sklearn import OrtGradientRegressor
from tests.helpers.hostile import X, y
warnings.simplefilter("ignore")
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[2]) * 2**20,) * 2)
try:
    OrtGradientRegressor(sys.argv[1], max_iter=1, batch_size=4, random_state=0).fit(X, y)
    print("fitted")
except MemoryError as error:
    print("MemoryError", error)
"""


@one_case
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and a limit of address space")
@pytest.mark.parametrize(("megabytes", "lacking"), [(20, "the file"), (150, "a model with weights")])
@pytest.mark.long
def test_limited_process_raises_memory_error(megabytes, lacking, tmp_path):
    """With 20 MB protobuf called the file broken; with 150 MB it ended the process."""
    width = 3_000_000
    model = net(
        "A = MatMul(X, V) Y = MatMul(A, W)", V=np.zeros((3, width), np.float32), W=np.zeros((width, 1), np.float32)
    )
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "x.onnx"), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"MemoryError There is not enough memory for {lacking}")


@pytest.mark.parametrize("make", [not_loaded, not_run])
def test_errors_of_the_runtime(make):
    for words in ("std::bad_alloc", "Failed to allocate memory for requested buffer of size 1"):
        assert isinstance(make(RuntimeError(words)), MemoryError)
    assert not isinstance(make(RuntimeError("bad graph")), MemoryError)


def test_a_memory_error_of_a_library_stays_one():
    told = r"There is not enough memory\. The graph cannot be read\."
    with pytest.raises(MemoryError, match=told), refusing("The graph cannot be read"):
        raise MemoryError


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", ["portable", "auto"])
def test_a_dropout_ratio_that_is_computed_from_a_weight(engine):
    """It is a constant of training, as a ratio in an initializer is; predictions do without it."""
    body = "T = Constant<value=bool {1}>() R = ReduceSum<keepdims=0>(P) H = Dropout(X, R, T) Y = MatMul(H, W)"
    shares, settings = np.array([0.1, 0.2], np.float32), {"max_iter": 3, "random_state": 0, "engine": engine}
    computed = OrtGradientRegressor(GraphModel(net(body, P=shares), training_mode=True), **settings).fit(X, y)
    assert list(computed.weights_) == ["W"]
    np.testing.assert_allclose(computed.predict(X), (X @ computed.weights_["W"]).ravel(), rtol=1e-5, atol=1e-6)
    given = net(body.replace("R = ReduceSum<keepdims=0>(P) ", ""), R=np.float32(0.3))
    same = OrtGradientRegressor(GraphModel(given, training_mode=True), **settings).fit(X, y)
    np.testing.assert_allclose(same.weights_["W"], computed.weights_["W"], rtol=1e-5)
    scalar = net(
        body.replace("Y = MatMul(H, W)", "Z = MatMul(H, W) Y = ReduceSum<keepdims=0>(Z)"), out="float Y", P=shares
    )
    with pytest.raises(UnsupportedOperatorError, match="Dropout"):
        gradient_graph(scalar, wrt=["P"], engine=engine)
