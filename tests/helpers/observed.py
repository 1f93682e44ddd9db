"""Watch a training from inside: its sessions, minibatches and steps, and the kind of step that it took."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn.base import BaseEstimator

from onnxtrain_sklearn._data import inputs
from onnxtrain_sklearn._data.batches import ArrayBatches
from onnxtrain_sklearn._data.columns import InputData
from onnxtrain_sklearn._estimators import fit, predict, streams, streams_predictions
from onnxtrain_sklearn._inference import predictor
from onnxtrain_sklearn._ort import sessions
from onnxtrain_sklearn._training import passes
from onnxtrain_sklearn._training.device_step import DeviceStep
from onnxtrain_sklearn._training.passes import PassGraph
from onnxtrain_sklearn._training.programs import PassParts
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn._training.updates import RowUpdate


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fail the test if a block leaves more threads of Python than it found, or files open, deleted ones among them."""
    threads, files = threading.active_count(), _open_files()
    yield
    assert threading.active_count() <= threads, threading.enumerate()
    # Threads of pyarrow end the reads that an error overtook, and then close the file.
    deadline = time.monotonic() + 10
    while left := _open_files() - files:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def _open_files() -> Counter[str]:
    """Return the names of the open files, on Linux: no pipes or sockets, which a library may open with a thread."""
    names: list[str] = []
    for descriptor in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            if stat.S_ISREG(os.stat(f"/proc/self/fd/{descriptor}").st_mode):
                names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # closed meanwhile, as that of the list itself
            continue
    return Counter(names)


def record_sessions(monkeypatch: pytest.MonkeyPatch, recorded: Callable[..., Any] = lambda *a, **k: a) -> list[Any]:
    """Return a list that gets, for each session that is created, the value of a function of its arguments."""
    found: list[Any] = []
    create = sessions.create_session

    def recording(*arguments: Any, **keywords: Any) -> Any:
        found.append(recorded(*arguments, **keywords))
        return create(*arguments, **keywords)

    monkeypatch.setattr(sessions, "create_session", recording)
    return found


def record_inference_graphs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets the graph of each structure that is built to predict by."""
    found: list[object] = []
    build = predictor.inference_model
    monkeypatch.setattr(predictor, "inference_model", lambda *a, **k: found.append(build(*a, **k)) or found[-1])
    return found


def forbid_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test at the next session that is created."""
    monkeypatch.setattr(sessions, "create_session", lambda *a, **k: pytest.fail("a new session"))


def forbid_dense_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where sparse rows are copied into a dense array."""
    plain = InputData.into

    def into(column: InputData, out: np.ndarray) -> Any:
        assert not column.stays_sparse, "sparse rows are made dense"
        return plain(column, out)

    monkeypatch.setattr(InputData, "into", into)


def record_epochs(monkeypatch: pytest.MonkeyPatch) -> list[list[np.ndarray]]:
    """Return a list that gets, for each epoch, the rows of its minibatches."""
    found: list[list[np.ndarray]] = []
    epoch = ArrayBatches.epoch

    def recording(batches: ArrayBatches, skip: int = 0) -> Any:
        minibatches = list(epoch(batches, skip))
        found.append([one.rows.copy() for one in minibatches])
        return iter(minibatches)

    monkeypatch.setattr(ArrayBatches, "epoch", recording)
    return found


def wrap_passes(monkeypatch: pytest.MonkeyPatch, wrapper: Callable[..., float]) -> None:
    """Compute the gradients of each minibatch by ``wrapper(plain, step, *arguments)``."""
    plain = HostStep.compute_gradients
    monkeypatch.setattr(HostStep, "compute_gradients", lambda step, *arguments: wrapper(plain, step, *arguments))


def wrap_epochs(monkeypatch: pytest.MonkeyPatch, wrapper: Callable[..., Any]) -> None:
    """Train each epoch by ``wrapper(plain, step, *arguments)``."""
    plain = HostStep.train
    monkeypatch.setattr(HostStep, "train", lambda step, *arguments: wrapper(plain, step, *arguments))


def change_predictions(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Predict what a function makes of the predictions."""
    plain = predictor.Predictor.run
    monkeypatch.setattr(predictor.Predictor, "run", lambda *data, **options: change(plain(*data, **options)))


def record_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of each chunk that is predicted."""
    found: list[int] = []
    plain = predictor.Predictor.pieces_of

    def recording(*arguments: Any) -> list[slice]:
        pieces = plain(*arguments)
        found.extend(piece.stop - piece.start for piece in pieces)
        return pieces

    monkeypatch.setattr(predictor.Predictor, "pieces_of", recording)
    return found


def takes_plain_rows(estimator: Any, rows: Any) -> bool:
    """Return True if predictions of these rows skip the checks of scikit-learn."""
    return predict.plain_prediction(estimator, rows, 0, with_scores=False) is not None


def predict_with_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no rows skip the checks of scikit-learn."""
    monkeypatch.setattr(predict, "plain_prediction", lambda *_, **__: None)


def forbid_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where scikit-learn checks the rows."""
    monkeypatch.setattr(inputs, "validate_data", lambda *_, **__: pytest.fail("scikit-learn checks the rows"))


def record_validations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the arguments of each check by scikit-learn."""
    found: list[Any] = []
    check = inputs.validate_data
    monkeypatch.setattr(inputs, "validate_data", lambda *a, **k: found.append(a) or check(*a, **k))
    return found


def validate_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scikit-learn check the rows of every fit."""
    monkeypatch.setattr(inputs, "NATIVE_FLOATS", ())


def read_rows(X: Any) -> None:
    """Read the rows of a first fit."""
    inputs.input_columns(BaseEstimator(), X, None, reset=True)


def compare_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train graphs without a comparison of their loss with that of the given file."""
    monkeypatch.setattr(fit, "compare_training", lambda *_: None)


def trained_on_device(estimator: Any) -> bool:
    """Return True if the last step was one in memory of a device."""
    return isinstance(estimator._state.live.step, DeviceStep)


def updates_by_rows(estimator: Any) -> bool:
    """Return True if the last step updated only the rows that occur."""
    found = estimator._state.live.step._updates
    return found is not None and any(isinstance(one, RowUpdate) for group in found.groups for one in group.updates)


def adds_by_rows(estimator: Any) -> bool:
    """Return True if the last step added up gradients of only the rows that occur."""
    return bool(estimator._state.live.step.passes.row_sparse)


def forbid_row_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the gradients of all rows, also of those that do not occur."""
    monkeypatch.setattr(passes, "PassParts", lambda *data, **form: PassParts(*data, **{**form, "adds_rows": False}))


def record_pass_sessions(
    monkeypatch: pytest.MonkeyPatch, recorded: Callable[[onnx.ModelProto, Any], Any] = lambda graph, session: graph
) -> list[Any]:
    """Return a list that gets, for each session of a pass, the value of a function of its graph and of the session."""
    found: list[Any] = []
    create = PassGraph.session

    def recording(passed: PassGraph, *arguments: Any, **keywords: Any) -> Any:
        session = create(passed, *arguments, **keywords)
        found.append(recorded(onnx.load_model_from_string(passed.program.graph), session))
        return session

    monkeypatch.setattr(PassGraph, "session", recording)
    return found


def predict_in_chunks(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Predict in chunks of at most so many ``rows``, ``numbers``, or ``inner`` numbers inside the graph."""
    names = {"rows": "CHUNK_ROWS", "numbers": "CHUNK_NUMBERS", "inner": "INNER_NUMBERS"}
    for name, limit in limits.items():
        monkeypatch.setattr(predictor, names[name], limit)


def predict_in_batches(monkeypatch: pytest.MonkeyPatch, *, rows: int) -> None:
    """Predict a table in files in batches of about so many rows, each a whole number of chunks."""
    monkeypatch.setattr(streams_predictions, "BATCH_ROWS", rows)


def prepare_on_sample(monkeypatch: pytest.MonkeyPatch, *, rows: int, blocks: int) -> None:
    """Prepare the training on a table by about so many of its rows, from so many of its blocks."""
    monkeypatch.setattr(streams, "SAMPLE_ROWS", rows)
    monkeypatch.setattr(streams, "SAMPLE_BLOCKS", blocks)
