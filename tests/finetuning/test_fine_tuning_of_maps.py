"""Fine-tuning on targets of several axes: which targets tell that rows differ."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import FineTuner, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.environment import each_engine
from tests.helpers.fine_tuning import prepared_trainer
from tests.helpers.graphs import model

NET = model(x="float[N, 4, 3] X", y="float[N, 4, 2] Y", weights="float[3, 2] W = {1, -2, 3, 0.5, 1, 2}")


def rows_with_a_constant_corner(n=60, seed=0):
    """Rows of series whose first target is zero, as a corner of an image often is."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4, 3)).astype(np.float32)
    X[:, 0] = 0
    return X, X @ rng.normal(size=(3, 2)).astype(np.float32)


@each_engine
def test_maps_are_tuned_where_their_corner_is_constant(engine):
    X, y = rows_with_a_constant_corner()
    tuned = OrtGradientRegressor(NET, finetune=FineTuner(cv=3), engine=engine, random_state=0).fit(X[:40], y[:40])
    assert tuned.score(X[40:], y[40:]) > 0.99


def test_labels_at_positions_are_tuned_where_the_first_is_constant():
    X, y = rows_with_a_constant_corner()
    tags = (y[..., 0] > 0).astype(int)
    tuned = OrtGradientClassifier(NET, finetune=FineTuner(cv=3), random_state=0).fit(X[:40], tags[:40])
    assert np.mean(tuned.predict(X[40:])[:, 1:] == tags[40:, 1:]) > 0.9


def test_equal_maps_leave_model_unchanged():
    X, _ = rows_with_a_constant_corner()
    y = np.broadcast_to(np.arange(8.0).reshape(4, 2), (len(X), 4, 2))
    with pytest.warns(UserWarning, match="a single value for all rows"):
        tuned = OrtGradientRegressor(NET, finetune=FineTuner(), random_state=0).fit(X, y)
    assert_allclose(tuned.weights_["W"], [[1, -2], [3, 0.5], [1, 2]])


def test_targets_of_several_pieces_of_the_data_are_those_of_the_rows():
    y = np.arange(4096, dtype=np.float64)  # several times the rows of a piece
    estimator = OrtGradientRegressor(model(x="float[N, 3] X"), finetune=FineTuner(), random_state=0)
    objective = prepared_trainer(estimator, np.eye(3, dtype=np.float32)[y.astype(int) % 3], y)._objective
    assert_array_equal(objective.targets(), y[objective.rows])
