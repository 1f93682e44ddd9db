"""What verbose prints: a line that is written over in a terminal and a notebook, a table elsewhere."""

from __future__ import annotations

import io
import re

import pytest

from onnxtrain_sklearn import RealMLPRegressor
from tests.helpers.callbacks import net
from tests.helpers.data import blobs, line

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()
LINE = r"epoch +\d+/6 \[#* *\] 0:\d\d, 0:\d\d left  loss [\d.]+"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Cell(io.StringIO):
    """The output of a cell of a notebook."""


Cell.__module__ = "ipykernel.iostream"


def lines(output: io.StringIO) -> list[str]:
    """Return the lines, each as often as it was written."""
    return re.split(r"[\r\n]+", output.getvalue().partition("\r")[2].strip("\n"))


@pytest.mark.parametrize("kind", [Terminal, Cell])
def test_a_line_is_written_over(kind, monkeypatch):
    monkeypatch.setattr("sys.stdout", output := kind())
    monkeypatch.setenv("COLUMNS", "200")
    fitted = net(verbose=True).fit(X, Y, X_val=X, y_val=Y)
    shown = lines(output)
    assert all(re.match(LINE + r"  validation [\d.]+  rate 0.02 *$", one) for one in shown)
    assert shown[-1].startswith("epoch 6/6 [####################] ")
    assert f"loss {fitted.loss_:.6g}  validation {fitted.validation_scores_[-1]:.6g}" in shown[-1]
    assert shown[-1].find(" 0:00 left") > 0
    assert output.getvalue().endswith("\n")


def test_the_line_fits_in_the_terminal_and_ends_with_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdout", output := Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(ZeroDivisionError):
        net(lambda epoch: epoch.number == 3 and 1 / 0, verbose=1).fit(X, Y)
    assert max(map(len, lines(output))) == 39
    assert output.getvalue().endswith("\n")


@pytest.mark.parametrize(("verbose", "kind"), [(True, io.StringIO), (2, Terminal)])
def test_elsewhere_there_is_a_table(verbose, kind, monkeypatch):
    monkeypatch.setattr("sys.stdout", output := kind())
    net(verbose=verbose).fit(X, Y)
    table = output.getvalue().splitlines()[-7:]
    assert table[0].split() == ["epoch", "loss", "validation", "rate", "seconds"]
    assert [row.split()[0] for row in table[1:]] == ["1", "2", "3", "4", "5", "6"]
    assert "\r" not in output.getvalue()


def test_passes_are_lines_of_a_table(monkeypatch):
    monkeypatch.setattr("sys.stdout", output := Terminal())
    passes = net(verbose=1).partial_fit(X, Y, classes=[0, 1]).partial_fit(X, Y)
    assert passes.n_iter_ == 2
    assert [row.split()[0] for row in output.getvalue().splitlines()[-3:]] == ["epoch", "1", "2"]


def test_each_fit_prints_own_header(monkeypatch):
    monkeypatch.setattr("sys.stdout", output := Terminal())
    net(verbose=2, warm_start=True, max_iter=2).fit(X, Y).fit(X, Y)
    assert [row.split()[0] for row in output.getvalue().splitlines()[-6:]] == ["epoch", "1", "2", "epoch", "3", "4"]


def test_recipes_and_full_batch_searches_show_progress(monkeypatch):
    monkeypatch.setattr("sys.stdout", output := Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    RealMLPRegressor("td-s", hidden_layer_sizes=(4,), max_iter=6, verbose=1, random_state=0).fit(*line())
    net(verbose=1, optimizer="lbfgs", learning_rate_init=0.001, batch_size="auto").fit(X, Y)
    assert lines(output)[-1].startswith("epoch 6/6 [####################] ")
    assert "rate" not in lines(output)[-1]
