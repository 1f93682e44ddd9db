"""The table of operators in the documentation says what the engines of this environment do."""

from __future__ import annotations

import onnx
import pytest

from tests.contracts import coverage
from tests.helpers.environment import ENGINES

DATA = coverage.read_coverage()


@pytest.mark.exhaustive
@pytest.mark.parametrize("engine", ENGINES)
def test_coverage_table_equals_the_proven_cases(engine):
    if engine not in coverage.provable(DATA) or onnx.defs.onnx_opset_version() != DATA["opset"]:
        pytest.skip("the table was proven with newer packages")
    written = DATA["engines"][engine]["operators"]
    assert written.keys() == coverage.operators_by_page().keys()
    ranks = {name: ranks_of(coverage.prove_quickly(engine, name)) for name in written}
    worse = [name for name in written if any(n < w for n, w in zip(ranks[name], ranks_of(written[name]), strict=True))]
    assert not worse, f"{worse} were differentiated when the table was made; if they cannot be: {coverage.COMMAND}"
    better = [name for name in written if ranks[name] != ranks_of(written[name])]
    newer = coverage.runtime(engine) != DATA["engines"][engine]["runtime"]
    assert newer or not better, f"{better} are differentiated now, which the table does not say: {coverage.COMMAND}"


def ranks_of(entry):
    return [coverage.ORDER.index(entry[form]) for form in ("fixed", "dynamic")]


def test_page_shows_the_data():
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.coverage_page(DATA)


def test_counts_add_up():
    written = DATA["engines"]["portable"]["operators"]
    assert len(written) > 150
    assert coverage.LEFT_OUT.keys() <= written.keys()
    right = sum(entry["dynamic"] == coverage.RIGHT for entry in written.values())
    assert f"{right} of {len(written)} (" in coverage.coverage_page(DATA)
