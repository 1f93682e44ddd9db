"""Tables of Arrow as X, and data frames that hold no rows yet."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import Inputs, OrtGradientClassifier, RealMLPClassifier, TabMRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class TableOfArrow:
    """What is read of a ``pyarrow.Table``."""

    def __init__(self, frame):
        self._frame = frame
        self.column_names = list(frame.columns)
        self.columns = [frame[name].to_numpy() for name in frame.columns]

    def __len__(self):
        return len(self._frame)

    def to_pandas(self):
        return self._frame


class Lazy:
    """What is read of a lazy frame of polars."""

    columns = ("a", "b")

    def collect(self):
        raise AssertionError


def rows():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60), "kind": rng.choice(list("xyz"), 60)})
    return frame, (frame["a"] > 0).to_numpy().astype(int)


@pytest.mark.parametrize("kind", ["like", "real"])
@pytest.mark.parametrize(
    "estimator",
    [
        RealMLPClassifier(n_ensembles=1, max_iter=1, random_state=0),
        TabMRegressor(2, hidden_layer_sizes=8, max_iter=1, random_state=0),
    ],
)
def test_tables_of_arrow_are_read_as_data_frames_by_recipes(estimator, kind):
    frame, y = rows()
    table = TableOfArrow(frame) if kind == "like" else pytest.importorskip("pyarrow").Table.from_pandas(frame)
    trained = estimator.fit(table, y)
    assert_array_equal(trained.feature_names_in_, ["a", "b", "kind"])
    expected = trained.predict(frame)
    assert_array_equal(trained.predict(table), expected)
    assert_array_equal(estimator.fit(frame, y).predict(frame), expected)


def test_tables_of_arrow_are_x_of_other_estimators_and_of_inputs():
    frame, y = rows()
    table = TableOfArrow(frame[["a", "b"]])
    trained = OrtGradientClassifier(max_iter=1, random_state=0).fit(table, y)
    assert_array_equal(trained.feature_names_in_, ["a", "b"])
    assert_array_equal(trained.predict(table), trained.predict(frame[["a", "b"]]))
    assert_array_equal(Inputs(table, {"size": ["a", "b"]})["size"], frame[["a", "b"]])


@pytest.mark.parametrize("estimator", [RealMLPClassifier(), OrtGradientClassifier()])
def test_lazy_frame_error_names_the_collecting_call(estimator):
    with pytest.raises(TypeError, match=r"X is a Lazy, which holds no rows yet\. Give X\.collect\(\)\."):
        estimator.fit(Lazy(), rows()[1])
