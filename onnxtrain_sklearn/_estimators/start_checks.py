"""Checks of a run before it is trained: it predicts like the fitted model that was given, and can take the data."""

from __future__ import annotations

import numpy as np

from .._data.rounding import warn_of_rounding
from .._data.target_scale import require_in_range, warn_of_equal_targets
from .._fitted.sample import sample_rows
from .._given.comparison import require_own_start
from .._given.ml_files import FittedFile
from .._given.ml_start import started
from ..exceptions import warn
from .examples import Examples
from .graph_inputs import graph_inputs, predictions_on, require_numbers
from .head_choice import HeadChoice
from .plan import Plan
from .run import Run

_GIVE = "Otherwise give another model, or none: a network is trained then."


def own_scores(plan: Plan, run: Run, chosen: HeadChoice, examples: Examples) -> list[np.ndarray]:
    """Raise if the untrained estimator does not predict what the given graph does; return its scores of some rows."""
    if chosen.own is None:
        return []
    predictor = run.plain_predictor()
    return [require_own_start(chosen.own, chosen.seen, run.head, predictor, examples.columns, run.device)]


def require_equal_start(plan: Plan, run: Run, examples: Examples) -> None:
    """Raise if the graph of a fitted model does not reproduce its predictions; keep some rows for later comparisons."""
    fitted = run.fitted
    if plan.old is not None or fitted is None:
        return
    if isinstance(fitted, FittedFile):
        columns = examples.columns
        if fitted.table is not None:  # of which training takes the encoded columns
            columns = graph_inputs(plan.estimator, plan.call.X, run.source.inputs, fitted, reset=False)
        run.fitted = started(fitted, plan.estimator.model, columns, run.predictions)
        return
    from .._fitted.equivalence import require_equal  # both need much of scikit-learn
    from .._fitted.refusals import where_float32_is_coarse
    from .._fitted.ties import tied_rows

    X, splits_words = plan.call.X, fitted.table is not None and fitted.table.splits_words
    rows = X if splits_words else sample_rows(X)  # words may differ in every row
    what = "It is refused, as training would begin from another model: its ONNX form"
    found = predictions_on(plan.estimator, run, rows)
    share, step = tied_rows(plan.estimator.model, rows)
    ties = f"{share:.0%} of the rows have training points at equal distances where n_neighbors of {step} ends"
    whole = "models of neighbors within a radius count all of them."
    advice = f"{ties}, and which of them count depends on their order; {whole}" if share else ""
    advice = advice or where_float32_is_coarse(plan.estimator.model)
    doubles = any(spec.dtype == "float64" for spec in run.deployed.inputs)
    require_equal(
        plan.estimator.model, rows, found, what=what, tolerance=1e-4, reads_float64=doubles, advice=f"{advice} {_GIVE}"
    )
    if share:
        warn(f"{ties}: which of them count depends on their order, so predictions of such rows may differ.")
    run.sample = sample_rows(X)


def require_fit(plan: Plan, run: Run, examples: Examples) -> None:
    """Raise if the data contain values that the model cannot take; warn if its type rounds them."""
    require_numbers(plan.estimator, run, examples.columns)
    if examples.targets.task == "regression":
        warn_of_rounding(plan.call.y, run.model.dtype, "y")
        if plan.rows.scale is not None:
            require_in_range(plan.rows.scale, examples.targets.values, run.model.dtype)
            warn_of_equal_targets(plan.rows.scale, examples.targets.values, run.model.dtype)
