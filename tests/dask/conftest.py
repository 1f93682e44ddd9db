"""A cluster of two processes that the tests share; those that kill workers start their own."""

from __future__ import annotations

import pytest

from tests.dask.helpers import cluster_of


@pytest.fixture(scope="session")
def client():
    with cluster_of(2) as client:
        yield client
