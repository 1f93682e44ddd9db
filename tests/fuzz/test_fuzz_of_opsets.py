"""Drawn graphs that an earlier version misread or refused: see tests/fuzz/opsets.py and kinds.py."""

from __future__ import annotations

import pytest

from tests.fuzz import kinds, opsets
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("number", [32, 36, 42, 50, 53])
def test_seed_trains_as_the_file_does(number, engine):
    outcome = opsets.run(number, engine)
    assert outcome == "right" or (engine == "ort-training" and outcome.startswith("refused UnsupportedOperatorError"))


@pytest.mark.parametrize("number", [11, 68])
def test_seed_of_further_kinds_trains_as_the_file_does(number):
    """Several outputs behind a Loop, whose number of rows inference does not know."""
    assert kinds.run(number, "portable") == "right"
