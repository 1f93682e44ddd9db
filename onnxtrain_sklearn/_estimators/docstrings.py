"""The docstring section on the attributes of the estimators."""

from __future__ import annotations

import re


def attributes(*, score: str, classes: str = "") -> str:
    """Return the section on attributes.

    Parameters
    ----------
    score : str
        Description of the validation scores.
    classes : str
        The entry of ``classes_``, for a classifier.
    """
    return ATTRIBUTE_SECTION.replace("{classes}\n", classes).replace("{score}", score)


def output_attributes() -> str:
    """Return the section of the estimator of several outputs."""
    text = attributes(score="Mean of the scores of the outputs", classes=OUTPUT_ENTRIES)
    kept = text.replace("n_outputs_ : int\n    Scores a row.", "n_outputs_ : int\n    Number of outputs.")
    entries = re.split(r"\n(?=\S)", kept)
    return "\n".join(entry for entry in entries if not entry.startswith(_OF_ONE_OUTPUT))


_OF_ONE_OUTPUT = ("fine_tuning_ ", "coef_, ")

OUTPUT_ENTRIES = """\
classes_ : dict of str to ndarray, or to a list of them
    Sorted labels of each output with labels.
output_names_ : list of str
    The outputs.
"""

ATTRIBUTE_SECTION = """\
Attributes
----------
{classes}
n_features_in_ : int
    Columns of ``X`` (not for a dict of inputs).
feature_names_in_ : ndarray of str
    Names of the columns, where ``X`` has them.
n_outputs_ : int
    Scores a row.
n_iter_ : int
    Epochs trained, over all calls with ``warm_start`` and ``partial_fit``; an interrupted epoch does not count.
t_ : int
    Rows seen in them.
loss_ : float
    Mean loss of the last epoch, the penalty included.
loss_curve_ : list of float
    Mean loss of each epoch, of the latest 100,000.
history_ : list of dict
    A dict for each epoch: ``epoch``, ``step``, ``loss``, ``learning_rate``, ``seconds``, with validation data
    ``validation_score``, ``validation_loss`` where early stopping watches it, and what callbacks add.
    ``history_.to_frame()`` returns a pandas DataFrame. Of epochs before the latest 10,000 only ``epoch`` and ``loss``
    are kept.
callbacks_ : dict of str to dict
    What callbacks remember, by class.
best_loss_ : float or None
    Least loss of an epoch; None with early stopping.
validation_scores_ : list of float or None
    {score}, or the score that ``scoring`` names, on the validation data after each epoch, of the latest 100,000.
best_validation_score_ : float or None
    Best of these scores; with early stopping that of the best epoch, whose weights are kept.
fine_tuning_ : dict of str to ndarray
    The candidates of fine-tuning, in columns: ``candidate`` names the search ("old", "shifted", "rescaled", "zero",
    "old rows"), ``strength`` that of its pull, infinite for its start, or the weight of the old rows, ``loss`` is that
    of held-out rows, ``gain`` and ``standard_error`` say how far it is below that of the old model, ``share`` is the
    share in the result. With ``X_val``, ``score`` replaces the losses. Plain training has no such attribute.
engine_, device_ : str
    The gradient engine and the device that were used.
model_ : onnx.ModelProto
    The trained inference graph.
coef_, intercept_ : ndarray, or a number
    Of graphs that are one linear layer of ``X``, a fitted linear model among them; others have none. Shapes are
    those of scikit-learn's linear models.
adapters_ : dict of str to ndarray
    The low-rank factors by name, of estimators with ``adapters``.
weights_ : dict of str to ndarray
    Every float parameter by its name in the graph, trained or frozen, and running statistics."""
