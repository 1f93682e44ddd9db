"""Fine-tune a trained model to few new rows: :class:`FineTuner`, the settings of the parameter ``finetune``.

A search for the least loss of few rows forgets what the model has learned from many. Fine-tuning therefore pulls the
weights towards an anchor: the old weights, or the old weights with a recalibrated output. Cross-validation on the new
rows chooses the anchor and the strength of the pull.
"""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar

from ._utils.params import COUNT, NOT_NEGATIVE, POSITIVE, Component, OneOf, Range, Rules

__all__ = ["FineTuner"]


class FineTuner(Component):
    r"""Fine-tune a trained model: a full-batch search with a pull towards an anchor.

    .. math:: \min_p \; L(p) + \frac{λ}{2} \sum_j d_j (p_j - a_j)^2

    L is the mean loss of the new rows and a is the anchor. Several anchors are tried: the old weights, and the old
    weights with the output shifted, or scaled and shifted, to fit the new rows best. If the scores are linear in all
    trained weights, zero weights with the best constant output are tried as well. If a column of the new rows is far
    out of the range of a frozen scaler, so are the old weights with those of this column divided by its root mean
    square. The metric d is the mean square of the gradients of single rows, so that the steps do not depend on the
    units of data and weights. If old rows are given, searches for the least loss of new and old rows together are
    added, with several weights for the old rows.

    The candidates are the results for a path of strengths λ, the anchors themselves, and the unchanged model. Each
    candidate is judged by the losses of held-out rows in cross-validation. The result is the mean of the candidates,
    weighted by :math:`e^{-2 z}`, where z is the difference between the candidate's loss and the best loss, in standard
    errors. If the scores are not linear in the weights, only candidates of the best search are averaged. The model does
    not change unless this mean, or otherwise the best recalibration, has a lower loss on the held-out rows. With
    ``X_val``, the candidate with the best score on these data is chosen, or the one with the least loss if the loss is
    for numbers and not the squared error. The attribute ``fine_tuning_`` of the estimator holds the candidates.

    Xuhong, Grandvalet and Davoine, "Explicit inductive bias for transfer learning with convolutional networks", 2018.

    Parameters
    ----------
    anchor : float or "auto", default="auto"
        Strength of the pull. 1 is a strong pull: the first step lowers the loss by about 0.3 %. 0: no pull. "auto":
        choose from 1, 0.1, ..., 1e-8.
    old_weight : float or "auto", default="auto"
        Total weight of the old rows (``X_old`` and ``y_old`` of ``fit``), as a multiple of that of the new rows.
        "auto": choose from 3, 1, 0.3 and 0.1.
    margin : float, default=0.0
        Number of standard errors by which the loss of held-out rows must be lower than the loss of the old model;
        otherwise the model does not change. 1 is the one-standard-error rule.
    new_head : bool, default=False
        Whether to replace the last layer of the model by a new linear layer, for other classes or targets. The new head
        reads the input of the last layer, or the ``output`` of the estimator's
        :class:`~onnxtrain_sklearn.GraphModel`, which may be any tensor inside the graph. First the head is fitted, with
        a penalty; then all weights may be tuned (``tune_body``). Cross-validation chooses the strengths of penalty and
        pull.
    tune_body : bool or "auto", default="auto"
        Whether to tune the weights before a new head after fitting the head, if ``trainable="all"``. "auto": tune them
        unless the graph has convolutions or attention, whose features are general and whose tuning takes long. False:
        compute the features once.
    recalibrate : bool, default=True
        Whether anchors with a recalibrated output are candidates. False: only the old weights, damped or not.
    freeze_preprocessing : bool, default=True
        Whether to freeze scalers, encoders, decompositions and other transformers in a fitted model, if
        ``trainable="all"``.
    cv : int, default=5
        Number of folds, at least 2; not more than rows. If there are 3000 rows or more (fewer if there are more than
        20,000 weights), a single split of some rows replaces cross-validation, because these rows suffice to choose.
    max_iter : int, default=50
        Largest number of iterations of each search.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from onnxtrain_sklearn import FineTuner, OrtGradientRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> old = Ridge().fit(X[:300], y[:300])
    >>> tuned = OrtGradientRegressor(old, finetune=FineTuner(cv=3), random_state=0).fit(X[300:400], y[300:400] + 50)
    >>> tuned.score(X[400:], y[400:] + 50) > old.score(X[400:], y[400:] + 50)
    True
    """

    valid: ClassVar[Rules] = {
        "anchor": (OneOf(("auto",)), NOT_NEGATIVE),
        "old_weight": (OneOf(("auto",)), POSITIVE),
        "margin": (NOT_NEGATIVE,),
        "new_head": (bool,),
        "tune_body": (OneOf(("auto",)), bool),
        "recalibrate": (bool,),
        "freeze_preprocessing": (bool,),
        "cv": (Range(Integral, 2),),
        "max_iter": (COUNT,),
    }

    def __init__(
        self,
        anchor: float | str = "auto",
        *,
        old_weight: float | str = "auto",
        margin: float = 0.0,
        new_head: bool = False,
        tune_body: bool | str = "auto",
        recalibrate: bool = True,
        freeze_preprocessing: bool = True,
        cv: int = 5,
        max_iter: int = 50,
    ) -> None:
        self.anchor = anchor
        self.old_weight = old_weight
        self.margin = margin
        self.new_head = new_head
        self.tune_body = tune_body
        self.recalibrate = recalibrate
        self.freeze_preprocessing = freeze_preprocessing
        self.cv = cv
        self.max_iter = max_iter

    @property
    def strengths(self) -> tuple[float, ...]:
        """The strengths of the pull that are tried, the strongest first."""
        if isinstance(self.anchor, str):
            return tuple(10.0**-power for power in range(9))
        return (float(self.anchor),)

    @property
    def old_weights(self) -> tuple[float, ...]:
        """The weights of the old rows that are tried, the largest first."""
        if isinstance(self.old_weight, str):
            return (3.0, 1.0, 0.3, 0.1)
        return (float(self.old_weight),)
