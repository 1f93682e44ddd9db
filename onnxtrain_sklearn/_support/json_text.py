"""JSON that comes from files: nothing in it may raise an error of another class, or be read in two ways."""

from __future__ import annotations

import json
from typing import Any

from ..exceptions import ModelError


def json_object(text: bytes | str, what: str) -> dict[str, Any]:
    """Return the object of JSON in a text; raise ModelError, which begins with ``what``, if it is none."""
    try:
        found = json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_refuse_constant)
    except RecursionError:
        raise ModelError(f"{what} is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ModelError(f"{what} is not valid JSON: {str(error)[:200]}.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{what} must be an object of JSON, got {type(found).__name__}.")
    return found


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} comes twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
