"""The table of epochs that ``verbose`` prints."""

from __future__ import annotations

from .history import History


def print_epoch(history: History, learning_rate: float | None, seconds: float) -> None:
    """Print the line of the last epoch, below the head of the table before the first one."""
    epoch = history.progress.epoch
    if epoch == 1:
        print(f"{'epoch':>6} {'loss':>12} {'validation':>12} {'rate':>12} {'seconds':>9}")
    score = f"{history.scores.last():12.6f}" if history.scores.size else f"{'':>12}"
    rate = f"{'':>12}" if learning_rate is None else f"{learning_rate:12.3g}"
    print(f"{epoch:6d} {history.losses.last():12.6f} {score} {rate} {seconds:9.2f}")
