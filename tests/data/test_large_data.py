"""Data that are mapped from a file are read a minibatch or a chunk at a time: memory does not grow with them."""

from __future__ import annotations

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.processes import run_in_new_process

PROGRAM = """
import threading, time, warnings
import numpy as np
from onnxtrain_sklearn import MLP, OrtGradientClassifier
warnings.simplefilter("ignore")

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

def watch():
    while not ended.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

X = np.memmap(PATH, np.float32, "r", shape=(ROWS, 1000))  # of zeros that take no room in the file
y = np.arange(ROWS) % 2
settings = {"batch_size": 500, "max_iter": 2, "random_state": 0, **SETTINGS}
estimator = OrtGradientClassifier(MLP((20,)), **settings).fit(np.ones((600, 1000), np.float32), y[:600])
estimator.predict_proba(np.ones((10_000, 1000), np.float32))
base, peak, ended = anonymous(), [0.0], threading.Event()
thread = threading.Thread(target=watch)
thread.start()
try:
    estimator.fit(X, y)
    estimator.predict_proba(X)
finally:
    ended.set()
thread.join()
assert peak[0] - base < LIMIT, (peak, base)
"""


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"early_stopping": True, "validation_split": 0.5}], ids=str)
def test_fit_and_predict_of_a_mapped_file_take_little_memory(settings, tmp_path):
    rows, path = 100_000, tmp_path / "X"
    with path.open("wb") as file:
        file.truncate(rows * 4000)  # 400 MB
    program = PROGRAM.replace("PATH", repr(str(path))).replace("ROWS", str(rows))
    run_in_new_process(program.replace("SETTINGS", repr(settings)).replace("LIMIT", "100"))


GRAPH = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] Y) {
    A = Relu (X)  B = Add (A, b)  Y = MatMul (B, W) }"""


def test_prediction_leaves_rows_unchanged():
    model, X = onnx.parser.parse_model(GRAPH), np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    for name, array in {"W": np.ones((3, 1), np.float32), "b": np.ones(3, np.float32)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    given = X.copy()
    X.flags.writeable = False
    estimator = OrtGradientRegressor(model, random_state=0).partial_fit(X, X[:, 0])
    estimator.predict(X)
    assert_array_equal(X, given)


def test_predictions_of_mapped_and_plain_rows_are_equal(tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    estimator = OrtGradientClassifier(MLP((4,)), random_state=0).partial_fit(mapped, X[:, 0] > 0, classes=[False, True])
    assert_array_equal(estimator.predict_proba(mapped), estimator.predict_proba(X))
    assert_array_equal(estimator.predict_proba(mapped[::2]), estimator.predict_proba(X[::2].copy()))
