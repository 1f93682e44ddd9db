"""What is unusual about a case: parameters that are not at their defaults, and forms of models and data."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from tests.combinations.draws import Draw

ALWAYS = {"loss", "engine", "optimizer", "learning_rate_init", "max_iter", "random_state"}


def features(draw: Draw) -> set[str]:
    """Return names of what distinguishes a case."""
    given = draw.parameters
    found = {
        name for name, value in given.items() if name not in ALWAYS and value not in (None, "constant", "auto", False)
    }
    found |= {"shuffle=False"} if given.get("shuffle") is False else set()
    found -= {"validation_split", "l1_ratio"} if not given.get("alpha") else {"validation_split"}
    found |= {f"optimizer {given['optimizer'].name}", f"loss {given['loss'].name}", draw.task}
    weights = draw.weights
    found |= set() if weights is None else {"rows of weight zero" if (weights == 0).any() else "sample_weight"}
    named = {
        "ONNX": draw.given,
        "float64": draw.double,
        "X_val": draw.validation is not None,
        "one row": len(draw.y) == 1,
    }
    found |= {name for name, holds in named.items() if holds}
    builder = draw.builder.get_params()
    found |= {f"{builder['normalization']} normalization"} if builder.get("normalization") else set()
    found |= {name for name in ("residual", "parametric_activation") if builder.get(name)}
    return found | {f"then {kind}" for kind, _ in draw.calls} | {f"set {name}" for _, one in draw.calls for name in one}


def pairs(draws: list[Draw]) -> Counter[tuple[str, str]]:
    """Return how often two features come together."""
    return Counter(pair for draw in draws for pair in combinations(sorted(features(draw)), 2))
