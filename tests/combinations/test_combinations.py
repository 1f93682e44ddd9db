"""Random combinations of settings train as a loop in numpy does, and runs that must agree do.

``python -m tests.combinations --cases 1000`` runs more of them.
"""

from __future__ import annotations

from itertools import islice

import pytest

from onnxtrain_sklearn._estimators.parameters import CLASSIFIER, REGRESSOR
from tests.combinations import compare, inert, paths, relations
from tests.combinations.draws import drawn
from tests.combinations.run_case import FAMILIES, outcome_of, relation_holds
from tests.combinations.wide_draws import wide_drawn
from tests.helpers.environment import available_engines
from tests.helpers.selection import one_case

engines = pytest.mark.parametrize("engine", available_engines())


@one_case
@engines
@pytest.mark.thinned(by=lambda number, engine: {(engine, number < 2)})
@pytest.mark.parametrize("number", range(6))
def test_random_settings_train_as_the_reference_loop(number, engine):
    refused = [compare.equals_reference(drawn(case, engine)) for case in range(10 * number, 10 * number + 10)]
    assert sum(map(bool, refused)) <= 4, refused


@pytest.mark.thinned(by=lambda number, name: name)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", sorted(paths.PATCHES.keys() - {"usual"}))
def test_paths_of_large_data_train_as_the_reference_does(name, number):
    for case in range(300 + 2 * number, 302 + 2 * number):
        with paths.path(name):
            compare.equals_reference(paths.suited(drawn(case, available_engines()[0]), name))


@pytest.mark.thinned(by=lambda number, name: name)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", relations.RELATIONS)
def test_relation_holds(name, number):
    engine = available_engines()[0]
    cases = range(200 * number, 200 * number + 200)
    assert any(relation_holds(wide_drawn(case, engine), name) for case in cases) or name == "engines_train_alike"


@pytest.mark.long
@pytest.mark.thinned(by=lambda family, name: family)
@pytest.mark.parametrize(("family", "name"), [(f, name) for f in (*FAMILIES,)[1:] for name in FAMILIES[f][1]])
def test_relation_of_several_outputs_or_of_fine_tuning_holds(family, name):
    draw_case, known = FAMILIES[family]
    cases = (draw_case(number, available_engines()[0]) for number in range(60))
    assert any(relation_holds(draw, name, known) for draw in cases) or name.startswith("engines_t")


@pytest.mark.slow
@engines
@pytest.mark.parametrize("number", range(8))
def test_random_case(number, engine):
    outcome_of(1000 + number, engine, relations=3)


def test_every_parameter_is_tried_or_named():
    tried = {name.partition("__")[0] for name in inert.OTHERS} - {"sample_weight"}
    named = {name for names in inert.ELSEWHERE for name in names.split()}
    assert (REGRESSOR | CLASSIFIER).keys() - named == tried - named


@pytest.mark.slow
@pytest.mark.parametrize("name", inert.OTHERS)
def test_no_parameter_is_ignored(name):
    cases = [wide_drawn(number, available_engines()[0]) for number in range(60)]
    chosen = list(islice((draw for draw in cases if not inert.may_be_inert(draw, name)), 3))
    assert chosen
    assert not [str(draw) for draw in chosen if inert.changes_nothing(draw, name)]


@pytest.mark.parametrize(
    ("name", "other"), [("learning_rate_init", 0.02), ("alpha", 0.0), ("optimizer__max_grad_norm", None)]
)
@pytest.mark.long
def test_the_reference_sees_a_setting_that_is_ignored(name, other, monkeypatch):
    """A comparison that cannot fail would prove nothing."""
    draws = [drawn(number) for number in range(100)]
    suited = (d for d in draws if d.parameters.get(name) and "trainable" not in d.parameters and not d.calls)
    assert sum(is_noticed(draw, {name: other}, monkeypatch) for draw in islice(suited, 4)) >= 3


def is_noticed(draw, ignored, monkeypatch):
    """Whether the comparison fails where an estimator trains with other settings than it says."""
    made = draw.estimator(**ignored)
    get_params = made.get_params
    monkeypatch.setattr(
        made, "get_params", lambda deep=True: get_params(deep) | {n: draw.parameters[n] for n in ignored}
    )
    monkeypatch.setattr(draw, "estimator", lambda: made)
    try:
        compare.equals_reference(draw)
    except AssertionError:
        return True
    return False
