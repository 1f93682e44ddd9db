"""Losses of times until an event, some of which are right-censored."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from .._model.declared_targets import Target
from .._model.links import Link, Task
from .._utils.params import OneOf, Rules
from ..graph import GraphBuilder
from .base import Loss

EMPTY = -1e30
"""The logarithm of an empty sum, finite so that its gradient is 0 and not NaN."""


class Cox(Loss):
    r"""Partial likelihood of Cox's proportional hazards; ``predict`` returns the logarithm of the relative hazard.

    ``y`` holds "time" and "event": True if the event happened at that time, False if the row was only seen until then
    (censored). With scores :math:`s`, weights :math:`w` of mean one, and the rows :math:`R_i` that are still at risk at
    the time of row i, the loss of a row with an event is

    .. math:: \log \sum_{j \in R_i} w_j e^{s_j} - s_i,

    and that of a censored row is 0. Of d events at one time, Efron's method takes the mean, over k = 0, ..., d - 1, of
    this logarithm after the fraction k / d of the events' own sum is taken away; Breslow's leaves it. The loss is minus
    the logarithm of the partial likelihood, divided by the number of rows.

    Only the order of the times matters. Rows meet: the rows at risk are those of the minibatch. Take large ones, or all
    rows by ``optimizer="lbfgs"``. Adding a number to all scores changes nothing, so an intercept stays where it began.

    Parameters
    ----------
    ties : {"efron", "breslow"}, default="efron"
        What to do with events at the same time.

    References
    ----------
    D. R. Cox, "Regression models and life-tables", Journal of the Royal Statistical Society B 34, 1972.

    B. Efron, "The efficiency of Cox's likelihood function for censored data", JASA 72, 1977, for ties; with weights as
    in R's ``survival::coxph``.

    J. L. Katzman et al., "DeepSurv", BMC Medical Research Methodology 18, 2018, for networks.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> time, end = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2.0, size=500)
    >>> y = {"time": np.minimum(time, end), "event": time <= end}
    >>> net = OrtGradientRegressor(Linear(), loss="cox", optimizer="lbfgs", tol=1e-4).fit(X, y)
    >>> net.coef_.round() + 0.0
    array([1., 0.], dtype=float32)
    """

    name = "cox"
    tasks = frozenset({"regression"})
    mixes_rows = True
    targets = MappingProxyType({"time": Target(), "event": Target(dtype="bool")})
    valid: ClassVar[Rules] = {"ties": (OneOf(("efron", "breslow")),)}

    def __init__(self, ties: str = "efron") -> None:
        self.ties = ties

    def n_scores(self, task: Task, n_targets: int) -> int:
        return 1

    def check_targets(self, y: Any) -> None:
        if not y["event"].any():
            raise ValueError("No row of y has an event: without events the times say nothing. Check y['event'].")
        times = np.unique(y["time"])
        if len(np.unique(times.astype(np.float32))) < len(times):
            raise ValueError(
                "Different times in y['time'] are equal in float32, and only their order matters: give their ranks, "
                "scipy.stats.rankdata(time, method='dense')."
            )

    def check_scores(self, row: tuple[int, ...], y: Any) -> None:
        if row != (1,):
            raise ValueError(f"loss='cox' takes one score a row, (N, 1), but the graph's output has {('N', *row)}.")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: Any, link: Link) -> ir.Value:
        n = int(str((op.shape(scores) or (0,))[0]))
        time = y["time"]
        event = op.Unsqueeze(y["event"], axes=[1])
        own, other = op.Unsqueeze(time, axes=[1]), op.Unsqueeze(time, axes=[0])
        log_weight = op.Log(op.Max(op.Reshape(y["sample_weight"], [1, n]), 1e-30))
        hazard = op.Add(op.Reshape(scores, [1, n]), log_weight)
        at_risk = op.Not(op.Less(other, own))
        log_risk = _log_sum(op, at_risk, hazard)
        if self.ties == "efron":
            tied = op.And(op.And(op.Equal(own, other), op.Unsqueeze(y["event"], axes=[0])), event)
            log_tied = _log_sum(op, tied, hazard)
            among = op.Cast(tied, to=op.dtype)
            count = op.Max(op.ReduceSum(among, axes=[1], keepdims=True), 1.0)
            place = np.arange(n, dtype=np.int64)
            before = op.Cast(op.Less(place[None, :], op.constant(place[:, None])), to=op.dtype)
            share = op.Div(op.ReduceSum(op.Mul(among, before), axes=[1], keepdims=True), count)
            # the logarithm of the risk without a share of that of the tied events, at most (d - 1) / d of it
            left = op.Sub(1.0, op.Mul(share, op.Exp(op.Min(op.Sub(log_tied, log_risk), 0.0))))
            log_risk = op.Div(op.MatMul(among, op.Add(log_risk, op.Log(left))), count)
        return op.Where(event, op.Sub(log_risk, scores), op.Mul(scores, 0.0))


def _log_sum(op: GraphBuilder, among: ir.Value, logs: ir.Value) -> ir.Value:
    """Emit the logarithm of the sum of exp(logs) over the columns of each row that are ``among``."""
    return op.ReduceLogSumExp(op.Where(among, logs, EMPTY), axes=[1], keepdims=True)
