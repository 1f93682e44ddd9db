"""Clusters, tables and comparisons for the tests of onnxtrain_sklearn.dask."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_regression

from onnxtrain_sklearn import MLP
from onnxtrain_sklearn.dask import DaskOrtGradientClassifier, DaskOrtGradientRegressor, LocalSGD

ONE_SHARD = LocalSGD(7, n_shards=1, outer_learning_rate=1.0, outer_momentum=0.0)
"""Averages of one shard, which change nothing."""

NAMES = [f"x{i}" for i in range(6)]


@contextmanager
def cluster_of(n_workers, **options):
    """Start processes, and yield a client of them."""
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    settings = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL, **options}
    # Workers are forks of a process that has imported all: each would take seconds otherwise. On a busy machine, the
    # scheduler may be silent for longer than connections last.
    known = {"distributed.worker.multiprocessing-method": "forkserver", "distributed.comm.timeouts.tcp": "300 s"}
    with dask.config.set(known):
        context = distributed.utils.get_mp_context()
        context.set_forkserver_preload(
            ["distributed", "dask.dataframe", "onnxtrain_sklearn.dask", "tests.dask.helpers"]
        )
        with (
            distributed.LocalCluster(n_workers=n_workers, **settings) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


def labels(n=1200, n_classes=3):
    X, y = make_classification(n, 6, n_informative=4, n_classes=n_classes, n_clusters_per_class=1, random_state=0)
    return X.astype(np.float32), y


def numbers(n=1200):
    X, y = make_regression(n, 6, noise=1.0, random_state=0)
    return X.astype(np.float32), 100 + 10 * y


def arrays(*given, rows=300):
    """Return Dask arrays in chunks of so many rows."""
    da = pytest.importorskip("dask.array")
    return [da.from_array(one, chunks=(rows, *one.shape[1:])) for one in given]


def frame(X, **columns):
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(X, columns=NAMES[: X.shape[1]]).assign(**columns)


def partitions(*frames):
    """Return a Dask data frame whose partitions are these frames."""
    dd, dask = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask")
    return dd.from_delayed([dask.delayed(one) for one in frames], meta=frames[0][:0], verify_meta=False)


def classifier(model=None, **options):
    return DaskOrtGradientClassifier(model or MLP((8,)), **{"max_iter": 3, "random_state": 0, "tol": 0} | options)


def regressor(model=None, **options):
    return DaskOrtGradientRegressor(model or MLP((8,)), **{"max_iter": 3, "random_state": 0, "tol": 0} | options)


def local(estimator):
    """Return the unfitted local estimator with the same parameters."""
    own = {
        name: one for name, one in estimator.get_params(deep=False).items() if name in estimator._local().get_params()
    }
    return estimator._local(**own)


def same_bits(one, other):
    assert one.weights_.keys() == other.weights_.keys()
    return all(np.array_equal(one.weights_[name], other.weights_[name]) for name in one.weights_)
