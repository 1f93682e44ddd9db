"""The program ``onnxtrain-sklearn`` as a function of its arguments, which returns the exit status."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from onnxtrain_sklearn.__main__ import main

__all__ = ["interrupt_epoch", "main", "refuse_whole_pipelines", "shift_file_predictions", "shorten_demo"]


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


def interrupt_epoch(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Send SIGINT where ``train`` shows an epoch."""
    from onnxtrain_sklearn._cli import console

    def interrupt(shown: Any, epoch: Any) -> None:
        if epoch.number == number:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(console.EpochProgress, "__call__", interrupt)
