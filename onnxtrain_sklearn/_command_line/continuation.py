"""Going on with a stored estimator of this package, alone or at the end of a pipeline, from its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._estimators.base import BaseOrtGradient
from .._support.typing import Estimator, FrameLike
from .command import UsageError
from .console import Console
from .progress import epochs_shown
from .settings import apply_settings
from .sources import ModelOption, fitted_columns, own_estimator
from .table_pipeline import is_table_pipeline
from .tables import MISSING_TEXT, as_numbers_and_text
from .trained import Rows, Trained


def continue_training(
    source: ModelOption, rows: Rows, validation: Rows | None, settings: Mapping[str, object], console: Console
) -> Trained:
    """Train a stored estimator from its weights and with its settings; the steps before it stay as they are."""
    whole, net = source.model, own_estimator(source.model)
    _require_continuable(source.text, net)
    select, columns = fitted_columns(source, rows.frame)
    written_here = is_table_pipeline(whole)

    def prepare(frame: FrameLike) -> Any:
        return as_numbers_and_text(select(frame)) if written_here else select(frame)

    def encoded(frame: FrameLike) -> Any:
        return prepare(frame) if whole is net else whole[:-1].transform(prepare(frame))

    apply_settings(net, dict(settings))
    for_now: dict[str, object] = {} if "warm_start" in settings else {"warm_start": True}
    held = {}
    if validation is not None:
        for_now["early_stopping"] = True
        held = {"X_val": encoded(validation.frame), "y_val": validation.y}
    earlier = int(getattr(net, "n_iter_", 0)) if for_now.get("warm_start", net.warm_start) else 0
    with _set_for_now(net, for_now), epochs_shown(net, console, earlier):
        net.fit(encoded(rows.frame), rows.y, **held)
    return Trained(whole, net, prepare, columns, MISSING_TEXT if written_here else "nan", earlier)


def _require_continuable(text: str, net: Estimator) -> None:
    if isinstance(net, BaseOrtGradient):
        return
    name = type(net).__name__
    known = {"RealMLP": "realmlp", "TabM": "tabm"}
    if recipe := next((known[prefix] for prefix in known if name.startswith(prefix)), None):
        raise UsageError(f"{text}: each fit of a {name} begins anew. Train another with --model {recipe}.")
    raise UsageError(
        f"{text}: a {name} has several targets, and train takes one --target. Go on in Python, by fit() with "
        f"warm_start=True."
    )


@contextmanager
def _set_for_now(estimator: Estimator, parameters: Mapping[str, object]) -> Iterator[None]:
    before = {name: getattr(estimator, name) for name in parameters}
    estimator.set_params(**parameters)
    try:
        yield
    finally:
        estimator.set_params(**before)
