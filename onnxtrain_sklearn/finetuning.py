"""Fine-tune a trained model to few new rows: the settings of the parameter ``finetune``.

:class:`FineTuner` holds them. A search for the least loss of few rows forgets what the model has learned from many.
Fine-tuning therefore pulls the weights towards an anchor, the old weights or the old weights with a recalibrated
output, and chooses the anchor and the strength of the pull by cross-validation on the new rows.
"""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar

from ._utils.params import COUNT, NOT_NEGATIVE, POSITIVE, Component, OneOf, Range, Rules

__all__ = ["FineTuner"]


class FineTuner(Component):
    r"""Fine-tune a trained model: a full-batch search with a pull towards an anchor.

    .. math:: \min_p \; L(p) + \frac{λ}{2} \sum_j d_j (p_j - a_j)^2

    L is the mean loss of the new rows and a the anchor: the old weights, or the old weights with the output shifted, or
    scaled and shifted, to fit the new rows best; where the scores are linear in all trained weights, also zero weights
    with the best constant output; where a column of the new rows is far out of the range of a frozen scaler, also the
    old weights divided by how far, behind each column. The metric d is the mean square of the gradients of single rows,
    so that the steps do not depend on the units of data and weights. Where old rows are given, searches for the least
    loss of new and old rows together, the latter with several weights, take part.

    The results for a path of strengths λ, the anchors themselves, and the unchanged model are candidates. Each is
    judged by the losses of the rows held out in turn. The result is the mean of the candidates, weighted by
    :math:`e^{-2 z}`, where z is the difference of its loss to that of the best one in standard errors. Where the scores
    are not linear in the weights, only candidates of the best search are averaged. The model stays as it is unless this
    mean, or else the best recalibration, has a lower loss on the held-out rows. With ``X_val``, the candidate that
    scores best on these data is taken, or, of losses of numbers other than the squared error, that of the least loss.
    The attribute ``fine_tuning_`` of the estimator holds the candidates.

    Xuhong, Grandvalet and Davoine, "Explicit inductive bias for transfer learning with convolutional networks", 2018.

    Parameters
    ----------
    anchor : float or "auto", default="auto"
        Strength of the pull. 1 is a strong pull: the first step lowers the loss by about 0.3 %. 0: no pull. "auto":
        choose from 1, 0.1, ..., 1e-8.
    old_weight : float or "auto", default="auto"
        Weight of all old rows together (``X_old`` and ``y_old`` of ``fit``), as a multiple of that of the new rows.
        "auto": choose from 3, 1, 0.3 and 0.1.
    margin : float, default=0.0
        Number of standard errors by which the loss of held-out rows must be lower than that of the old model; otherwise
        the old model stays. With 1, the one-standard-error rule, a change must prove itself.
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
        Number of folds, at least 2; not more than rows. Of 3000 rows and more, fewer for more than 20,000 weights,
        some are held out once instead, and some are trained on: they suffice to choose.
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
