"""Random numbers that do not depend on which tests ran before."""

from __future__ import annotations

import copy

import numpy as np
import pytest

STATES: dict[int, object] = {}


@pytest.fixture(autouse=True)
def numbers_of_the_module(request: pytest.FixtureRequest) -> None:
    """Let each test begin with the generator of its module in the state that it had after the import."""
    for value in vars(request.module).values():
        if isinstance(value, np.random.Generator):
            state = STATES.setdefault(id(value), copy.deepcopy(value.bit_generator.state))
            value.bit_generator.state = copy.deepcopy(state)
