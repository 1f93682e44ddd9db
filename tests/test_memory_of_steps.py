"""Sessions of large training steps allocate tensors one by one: onnxruntime's plan of their memory leaves gaps."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn._training.pass_graph import PassGraph

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, y = load_digits(return_X_y=True)
X = X.astype(np.float32)


@pytest.fixture
def planned(monkeypatch):
    """Return the list that will say, for each session of a pass, whether it plans its memory."""
    found = []

    def made(self, *arguments, **keywords):
        session = original(self, *arguments, **keywords)
        found.append(session.get_session_options().enable_mem_pattern)
        return session

    original = PassGraph.session
    monkeypatch.setattr(PassGraph, "session", made)
    return found


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
    OrtGradientClassifier(model, max_iter=1, batch_size=100, session_options=options).fit(X[:100], y[:100])
    assert planned == [expected]
