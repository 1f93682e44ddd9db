"""Checks of a run before it is trained: it predicts like the fitted model that was given, and can take the data."""

from __future__ import annotations

from .._data.rounding import warn_of_rounding
from .._data.target_scale import require_in_range, warn_of_equal_targets
from .._fitted.sample import sample_rows
from .._given.ml_files import FittedFile
from .._given.ml_start import started
from .examples import Examples
from .graph_inputs import predictions_on, require_numbers
from .plan import Plan
from .run import Run


def require_equal_start(plan: Plan, run: Run, examples: Examples) -> None:
    """Raise if the graph of a fitted model does not reproduce its predictions; keep some rows for later comparisons."""
    fitted = run.fitted
    if plan.old is not None or fitted is None:
        return
    if isinstance(fitted, FittedFile):
        run.fitted = started(fitted, examples.columns, run.predictions)
        return
    from .._fitted.equivalence import require_equal  # needs much of scikit-learn

    X, splits_words = plan.call.X, fitted.table is not None and fitted.table.splits_words
    rows = X if splits_words else sample_rows(X)  # words may differ in every row
    what = "It is refused, as training would begin from another model: its ONNX form"
    found = predictions_on(plan.estimator, run, rows)
    require_equal(plan.estimator.model, rows, found, what=what, tolerance=1e-4)
    run.sample = sample_rows(X)


def require_fit(plan: Plan, run: Run, examples: Examples) -> None:
    """Raise if the data contain values that the model cannot take; warn if its type rounds them."""
    require_numbers(plan.estimator, run, examples.columns)
    if examples.targets.task == "regression":
        warn_of_rounding(plan.call.y, run.model.dtype, "y")
        if plan.rows.scale is not None:
            require_in_range(plan.rows.scale, examples.targets.values, run.model.dtype)
            warn_of_equal_targets(plan.rows.scale, examples.targets.values, run.model.dtype)
