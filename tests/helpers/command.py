"""The program ``onnxtrain-sklearn`` as a function of its arguments, which returns the exit status."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from onnxtrain_sklearn.__main__ import main

__all__ = [
    "interrupt_epoch",
    "main",
    "predict_pieces",
    "refuse_whole_pipelines",
    "shift_file_predictions",
    "shorten_demo",
    "train_from_blocks",
    "write_files",
]


def shorten_demo(epochs: int) -> int:
    """Let the demo train for so many epochs; return how many they were."""
    from onnxtrain_sklearn._cli import demo

    before: int = demo.DEMO_SETTINGS["max_iter"]
    demo.DEMO_SETTINGS["max_iter"] = epochs
    return before


def shift_file_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``demo`` and ``train`` read other numbers from the file that they wrote than the estimator predicts."""
    from onnxtrain_sklearn._cli import demo, train

    run = demo._run
    monkeypatch.setattr(demo, "_run", lambda path, X: run(path, X) + 1)
    monkeypatch.setattr(train, "prediction_difference", lambda *arguments: 0.5)


def refuse_whole_pipelines(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let ``train`` fail where it converts the steps before the network."""
    from onnxtrain_sklearn._cli import train

    def refuse(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(train, "whole_graph", refuse)


def predict_pieces(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let ``predict`` read pieces of so many rows, and predict chunks of as many."""
    from onnxtrain_sklearn._cli import predict

    monkeypatch.setattr(predict, "ROWS", rows)
    monkeypatch.setattr(predict, "PIECE_ROWS", rows)


def write_files(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let ``predict`` write files of about so many rows into a folder."""
    from onnxtrain_sklearn._cli import predict

    monkeypatch.setattr(predict, "FILE_ROWS", rows)


def train_from_blocks(monkeypatch: pytest.MonkeyPatch, *, above: int, sample: int) -> None:
    """Let ``train`` read larger tables in blocks, and look at a sample of so many rows."""
    from onnxtrain_sklearn._cli import rows

    monkeypatch.setattr(rows, "MOST_ROWS", above)
    monkeypatch.setattr(rows, "SAMPLE_ROWS", sample)


def interrupt_epoch(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Send SIGINT where ``train`` shows an epoch."""
    from onnxtrain_sklearn._cli import console

    def interrupt(shown: Any, epoch: Any) -> None:
        if epoch.number == number:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(console.EpochProgress, "__call__", interrupt)
