"""The pipeline that ``train`` puts before a network: imputation, scaling and one-hot encoding of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .._support.typing import Estimator
from .console import Console
from .progress import epochs_shown
from .tables import as_numbers_and_text, text_columns, warn_of_row_names
from .trained import Rows, Trained

if TYPE_CHECKING:
    import pandas

STEP_NAMES = ("table_columns", "network")
"""Names of its steps, by which a stored one is known: it takes missing text as an empty string."""


def is_table_pipeline(model: object) -> bool:
    """Whether a stored model is a pipeline that ``train`` wrote."""
    return isinstance(model, Pipeline) and tuple(name for name, _ in model.steps) == STEP_NAMES


def train_table_pipeline(estimator: Estimator, rows: Rows, validation: Rows | None, console: Console) -> Trained:
    frame = as_numbers_and_text(rows.frame)
    columns = _preprocessing(frame)
    X = columns.fit_transform(frame)
    held = {}
    if validation is not None:
        held = {"X_val": columns.transform(as_numbers_and_text(validation.frame)), "y_val": validation.y}
    with epochs_shown(estimator, console):
        estimator.fit(X, rows.y, **held)
    names = list(frame.columns)
    return Trained(
        Pipeline([*zip(STEP_NAMES, (columns, estimator), strict=True)]),
        estimator,
        lambda table: as_numbers_and_text(table[names]),
        names,
    )


def _preprocessing(frame: pandas.DataFrame) -> Any:
    """Return the transformer of a table: missing numbers become the median, numbers are scaled, text is encoded."""
    texts = text_columns(frame)
    numbers = [name for name in frame.columns if name not in texts]
    for name in numbers:
        if frame[name].isna().all():
            raise ValueError(
                f"Column {name!r} holds no value in the rows to train on: leave it out by --drop {name!r}."
            )
    warn_of_row_names(frame)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    if not texts:
        return scaled
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
    return ColumnTransformer([("numbers", scaled, numbers), ("texts", encoder, texts)][not numbers :])
