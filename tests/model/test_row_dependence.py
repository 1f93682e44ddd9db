"""Random graphs: where the analysis says that rows do not meet, onnxruntime finds that they do not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import rows


@pytest.mark.parametrize("part", range(8))
def test_rows_analyzed_as_independent_are_independent(part):
    found = Counter(rows.run(number) for number in range(part * 20, part * 20 + 20))
    assert not [outcome for outcome in found if outcome.startswith("wrong")]
    assert min(found["meet"], found["apart"]) > 0  # both are found
