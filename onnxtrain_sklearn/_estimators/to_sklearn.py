"""``to_sklearn``: a copy of the fitted model that was given, with the trained numbers written into it."""

from __future__ import annotations

from typing import Any, cast

from .._fitted.fitted_model import sample_rows
from .._given.ml_files import FittedFile
from .._utils.typing import Estimator, MatrixLike
from ..exceptions import ModelError
from ..models.given import bare_model
from .examples import predictions_on
from .fitted_state import FittedState


def trained_estimator(estimator: Any, state: FittedState, X: MatrixLike | None) -> Any:
    """Return a copy of the fitted model with the numbers of ``state``; both predict the same on rows of data."""
    if state.fitted is None or isinstance(state.fitted, FittedFile):
        raise ModelError(
            "to_sklearn() needs model= to be a fitted scikit-learn estimator; this one was built or given as ONNX. "
            "Use to_onnx()."
        )
    if state.head.target_range is not None and state.head.target_range.clips:
        raise ModelError(
            "clip_predictions=True: scikit-learn's model does not clip what it predicts. Use to_onnx(), or set "
            "clip_predictions=False and train on."
        )
    if state.snapshots:
        raise ModelError("to_sklearn() gives one model, and a SnapshotEnsemble predicts by several: use to_onnx().")
    if X is None and state.live.sample is None:
        raise ValueError(
            "to_sklearn() compares both models on rows of data, and a pickled estimator holds none: give "
            "some rows, to_sklearn(X)."
        )
    from .._fitted.equivalence import require_equal  # both need much of scikit-learn
    from .._fitted.write_back import write_back

    rows = state.live.sample if X is None else sample_rows(X)
    result = write_back(
        cast("Estimator", bare_model(estimator.model)), state.fitted.origins, state.source.weights(), state.weights()
    )
    found = predictions_on(estimator, state, rows)
    doubles = any(spec.dtype == "float64" for spec in state.deployed.inputs)
    require_equal(
        result, rows, found, what="Take to_onnx(), as the trained graph", tolerance=1e-5, reads_float64=doubles
    )
    return result
