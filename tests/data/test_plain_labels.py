"""Labels in plain arrays of whole numbers skip scikit-learn's checks: targets, errors and warnings stay the same."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn._data import targets
from onnxtrain_sklearn._data.targets import class_targets

ROWS = np.arange(60)
PLAIN = {
    "two": ROWS % 2,
    "three": ROWS % 3 - 7,
    "small bytes": (ROWS % 3 + 5).astype(np.int8),
    "gaps": ROWS % 3 * 20,
    "beyond the rows": ROWS % 3 * 100,
    "booleans": ROWS % 2 == 0,
    "bytes": (ROWS % 3).astype(np.uint8),
    "other byte order": (ROWS % 3).astype(">i2"),
    "every second": np.repeat(ROWS % 3, 2)[::2],
    "read-only": np.frombuffer((ROWS % 3).tobytes(), dtype=ROWS.dtype),
    "one label": ROWS * 0,
    "two rows": np.array([0, 1]),
}
OTHERS = {
    "most differ": ROWS,
    "list": (ROWS % 3).tolist(),
    "floats": (ROWS % 3).astype(float),
    "fractions": ROWS / 7,
    "NaN": np.where(ROWS == 3, np.nan, ROWS % 3),
    "texts": (ROWS % 3).astype(str),
    "objects": (ROWS % 3).astype(object),
    "series": pd.Series(ROWS % 3),
    "column": (ROWS % 3)[:, None],
    "indicators": np.stack([ROWS % 2, ROWS % 3 == 0], axis=1),
    "masked": np.ma.masked_array(ROWS % 3, ROWS > 50),
    "none": ROWS[:0],
    "one number": np.array(3),
    "dates": ROWS.astype("datetime64[D]"),
    "complex": ROWS % 3 + 1j,
}


def outcome(y, classes):
    """Return the targets that come of labels, or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = class_targets(y, classes)
            known = None if found.classes is None else [np.asarray(one).tolist() for one in found.classes]
            kind = getattr(found.classes, "dtype", None)
            result = [found.task, found.n_scores, found.values.dtype, found.values.tolist(), known, kind]
        except Exception as error:
            result = [type(error), str(error)]
    return result, [(w.category, str(w.message)) for w in caught]


@pytest.mark.parametrize("classes", [None, np.array([-7, -6, -5, 0, 1, 2]), np.array([0]), [np.arange(3)] * 2], ids=str)
@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS])
def test_targets_are_those_of_all_checks(kind, classes, monkeypatch):
    y = {**PLAIN, **OTHERS}[kind]
    short = outcome(y, classes)
    monkeypatch.setattr(targets, "_quick_classes", lambda y: None)
    assert outcome(y, classes) == short


def test_plain_labels_are_not_checked_by_scikit_learn(monkeypatch):
    expected = {kind: class_targets(y, None).values for kind, y in PLAIN.items() if kind != "one label"}
    monkeypatch.delattr(targets, "type_of_target")
    for kind, values in expected.items():
        assert_array_equal(class_targets(PLAIN[kind], None).values, values)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_labels_are_checked_by_scikit_learn(kind, monkeypatch):
    monkeypatch.setattr(targets, "_label_targets", lambda *_: None)
    monkeypatch.setattr(targets, "type_of_target", lambda *_, **__: 1 / 0)
    with pytest.raises((ZeroDivisionError, ValueError)):
        class_targets(OTHERS[kind], None)
