"""One case by its number: the comparison with the reference, and some relations of estimators of each kind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from onnxtrain_sklearn.exceptions import DivergenceError, OnnxTrainError
from tests.combinations.compare import equals_reference
from tests.combinations.draws import drawn
from tests.combinations.outcomes import NotApplicable
from tests.combinations.relations import RELATIONS
from tests.combinations.several_draws import several_drawn
from tests.combinations.several_relations import OF_SEVERAL
from tests.combinations.tuned_draws import OF_TUNING, tuned_drawn
from tests.combinations.wide_draws import WideDraw, wide_drawn

Relation = Callable[[WideDraw], None]

FAMILIES: dict[str, tuple[Callable[[int, str], WideDraw], Mapping[str, Relation]]] = {
    "": (wide_drawn, RELATIONS),
    " of several outputs": (several_drawn, OF_SEVERAL),
    " of fine-tuning": (tuned_drawn, OF_TUNING),
}
"""Random estimators and what holds of them, by what is added to the names of the relations."""


def outcome_of(number: int, engine: str, relations: int) -> Counter[str]:
    """Return what was compared, by name and number; raise where numbers differ."""
    differs = equals_reference(drawn(number, engine))
    found = Counter({differs.partition(" ")[0].rstrip(":") if differs else "equal to the reference": 1})
    for family, (draw_case, known) in FAMILIES.items():
        draw, chosen = draw_case(number, engine), random.Random(number).sample(sorted(known), len(known))
        holding = (name for name in chosen if relation_holds(draw, name, known))
        found.update(f"{name}{family}" for name in islice(holding, relations))
    return found


def relation_holds(draw: WideDraw, name: str, known: Mapping[str, Relation] = RELATIONS) -> bool:
    """Whether a relation holds; False where it says nothing about the case, or the case is refused."""
    try:
        known[name](draw)
    except NotApplicable:
        return False
    except (ValueError, OnnxTrainError) as error:
        if isinstance(error, DivergenceError):
            raise
        return False
    except AssertionError as error:
        raise AssertionError(f"{name} of {draw}: {error}") from error
    return True
