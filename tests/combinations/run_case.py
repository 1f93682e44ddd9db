"""One case by its number: the comparison with the reference, and some relations."""

from __future__ import annotations

import random
from collections import Counter

from onnxtrain_sklearn.exceptions import DivergenceError, OnnxTrainError
from tests.combinations.compare import equals_reference
from tests.combinations.draws import drawn
from tests.combinations.outcomes import NotApplicable
from tests.combinations.relations import RELATIONS
from tests.combinations.wide_draws import WideDraw, wide_drawn


def outcome_of(number: int, engine: str, relations: int) -> Counter[str]:
    """Return what was compared, by name and number; raise where numbers differ."""
    refusal = equals_reference(drawn(number, engine))
    found = Counter({"refused" if refusal else "equal to the reference": 1})
    draw, chosen = wide_drawn(number, engine), random.Random(number).sample(sorted(RELATIONS), len(RELATIONS))
    for name in chosen:
        if found.total() <= relations and relation_holds(draw, name):
            found[name] += 1
    return found


def relation_holds(draw: WideDraw, name: str) -> bool:
    """Whether a relation holds; False where it says nothing about the case, or the case is refused."""
    try:
        RELATIONS[name](draw)
    except NotApplicable:
        return False
    except (ValueError, OnnxTrainError) as error:
        if isinstance(error, DivergenceError):
            raise
        return False
    except AssertionError as error:
        raise AssertionError(f"{name} of {draw}: {error}") from error
    return True
