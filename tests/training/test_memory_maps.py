"""Estimators whose numbers are mapped from a file: they train on copies, the process lives on, the file stays."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import MLP, Adam, OrtGradientRegressor
from tests.helpers.environment import available_engines
from tests.helpers.processes import run_in_new_process

WIDE = 600
rng = np.random.RandomState(0)
X = rng.normal(size=(40, 600)).astype(np.float32)
y = X[:, :5].sum(axis=1)

NORMALIZED = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 600] X) => (float[N, 1] Y) {
    B, m1, v1 = BatchNormalization <training_mode = 1> (X, s, b, m, v)  H = MatMul (B, V)  Y = MatMul (H, W) }"""


def normalized() -> onnx.ModelProto:
    """Return a graph with more than a megabyte of weights, and running statistics."""
    model = onnx.parser.parse_model(NORMALIZED)
    ones, zeros = np.ones(600, np.float32), np.zeros(600, np.float32)
    weights = {"V": rng.normal(0, 0.01, (600, WIDE)), "W": rng.normal(0, 0.01, (WIDE, 1))}
    arrays = {**weights, "s": ones, "b": zeros, "m": zeros, "v": ones}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


MODELS = {"network": lambda: MLP((WIDE,)), "running statistics": normalized}
CASES = [("network", engine) for engine in available_engines()] + [("running statistics", "auto")]


def fitted_wide(model: str, engine: str) -> OrtGradientRegressor:
    settings = {"optimizer": Adam(max_grad_norm=1.0), "learning_rate_init": 1e-4, "alpha": 1e-3, "batch_size": 20}
    estimator = OrtGradientRegressor(MODELS[model](), engine=engine, random_state=0, **settings)
    return estimator.partial_fit(X, y)


def in_a_child(program: str, folder: Path) -> None:
    """Run ``program``, which finds X, y and the name of the folder, in a process of its own."""
    run_in_new_process(with_data(program, folder))


def with_data(program: str, folder: Path) -> str:
    head = f"""
import sys, joblib, numpy as np
from pathlib import Path
folder = Path({str(folder)!r})
X, y = (np.load(folder / name) for name in ("X.npy", "y.npy"))
"""
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return head + program


def assert_equal(estimator: OrtGradientRegressor, twin: OrtGradientRegressor) -> None:
    assert_array_equal(estimator.predict(X), twin.predict(X))
    for name, array in estimator.weights_.items():
        assert_array_equal(twin.weights_[name], array)


LOADED = """
for one in filter(Path.is_dir, folder.iterdir()):
    for mode in ("r", "r+", "c"):
        estimator = joblib.load(one / "model", mmap_mode=mode)
        estimator.predict(X)
        for _ in range(2):
            estimator.partial_fit(X, y)
        joblib.dump(estimator, one / mode)
"""


@pytest.mark.slow
def test_memory_mapped_estimator_resumes_and_keeps_its_file(tmp_path):
    estimators = {tmp_path / f"{model}-{engine}": fitted_wide(model, engine) for model, engine in CASES}
    for folder, estimator in estimators.items():
        folder.mkdir()
        joblib.dump(estimator, folder / "model")
    before = {folder: (folder / "model").read_bytes() for folder in estimators}
    in_a_child(LOADED, tmp_path)
    for folder, estimator in estimators.items():
        assert (folder / "model").read_bytes() == before[folder]
        estimator.partial_fit(X, y).partial_fit(X, y)
        for mode in ("r", "r+", "c"):
            assert_equal(estimator, joblib.load(folder / mode))


PARALLEL = """
def go_on(estimator):
    return estimator.partial_fit(X, y)
if __name__ == "__main__":
    estimator = joblib.load(folder / "model")
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(go_on)(estimator) for _ in range(2))
    joblib.dump(found, folder / "after")
"""


@pytest.mark.exhaustive
def test_workers_that_are_given_memory_maps_train(tmp_path):
    estimator = fitted_wide("network", "auto")
    assert len(pickle.dumps(estimator._state.parameters)) > 2**20  # from where on joblib maps arrays
    joblib.dump(estimator, tmp_path / "model")
    program = with_data(PARALLEL, tmp_path)  # in an interpreter of its own, as joblib starts others like it
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    estimator.partial_fit(X, y)
    for twin in joblib.load(tmp_path / "after"):
        assert_equal(estimator, twin)


@pytest.mark.slow
def test_rows_that_are_mapped_read_only_train_and_predict(tmp_path):
    in_a_child(
        """
from onnxtrain_sklearn import MLP, OrtGradientRegressor
mapped = [np.load(folder / name, mmap_mode="r") for name in ("X.npy", "y.npy")]
estimators = [OrtGradientRegressor(MLP((5,)), random_state=0) for _ in range(2)]
for estimator, data in zip(estimators, (mapped, (X, y))):
    estimator.partial_fit(*data, sample_weight=data[1] ** 2)
assert (estimators[0].predict(mapped[0]) == estimators[1].predict(X)).all()
""",
        tmp_path,
    )
