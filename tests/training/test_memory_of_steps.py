"""The memory of training steps: copies of the weights, and how sessions of large steps allocate tensors."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn.datasets import load_digits

from onnxtrain_sklearn import MLP, OrtGradientClassifier, Runtime
from tests.helpers.observed import record_pass_sessions, record_sessions

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, y = load_digits(return_X_y=True)
X = X.astype(np.float32)


@pytest.fixture
def planned(monkeypatch):
    """Return the list that will say, for each session of a pass, whether it plans its memory."""
    return record_pass_sessions(monkeypatch, lambda graph, session: session.get_session_options().enable_mem_pattern)


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (MLP([8]), None, True),
        (MLP([512, 512]), None, False),
        (MLP([512, 512]), {"enable_mem_pattern": True}, True),
    ],
    ids=["small", "large", "as set"],
)
def test_only_small_passes_plan_their_memory(planned, model, options, expected):
    OrtGradientClassifier(model, max_iter=1, batch_size=100, runtime=Runtime(session_options=options)).fit(
        X[:100], y[:100]
    )
    assert planned == [expected]


def test_a_pass_copies_no_weights_beside_those_it_goes_back_to():
    classifier = OrtGradientClassifier(MLP([512, 512]), batch_size=50, random_state=0)
    classifier.partial_fit(X[:100], y[:100], classes=np.unique(y))
    size = sum(weights.nbytes for weights in classifier.weights_.values())
    tracemalloc.start()
    try:
        classifier.partial_fit(X[:100], y[:100])
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()


def test_comparison_with_given_graph_copies_no_parameters(monkeypatch):
    given = OrtGradientClassifier(MLP([512, 512]), max_iter=1, random_state=0).fit(X[:100], y[:100])
    size = sum(weights.nbytes for weights in given.weights_.values())
    found = record_sessions(monkeypatch, lambda graph, *_, **__: len(graph))
    OrtGradientClassifier(given.to_onnx(), max_iter=1).fit(X[:100], y[:100])
    assert len([n for n in found if n > size]) == 2  # of the graph that was read, and of the file as given
