"""Losses in which the rows of a minibatch meet, and the same in NumPy, by the scores and targets of all rows."""

from __future__ import annotations

import numpy as np

from onnxtrain_sklearn.losses import Loss


class InfoNCE(Loss):
    def __call__(self, op, scores, y, link):
        every = op.MatMul(scores, op.Transpose(y, perm=[1, 0]))
        own = op.ReduceSum(op.Mul(scores, y), axes=[1], keepdims=True)
        return op.Sub(op.ReduceLogSumExp(every, axes=[1], keepdims=True), own)


def info_nce(s, y):
    every = s @ y.T
    return np.log(np.exp(every).sum(1)) - (s * y).sum(1)


class Cox(Loss):
    """The time of a row is the absolute number, censored where it is negative."""

    def __call__(self, op, scores, y, link):
        time = op.Abs(y)
        at_risk = op.Cast(op.GreaterOrEqual(op.Transpose(time, perm=[1, 0]), time), to=op.dtype)
        event = op.Cast(op.Greater(y, 0.0), to=op.dtype)
        total = op.MatMul(at_risk, op.Exp(scores))
        return op.Mul(event, op.Sub(op.Log(total), scores))


def cox(s, y):
    at_risk = np.abs(y) <= np.abs(y).T
    return ((y > 0) * (np.log(at_risk @ np.exp(s)) - s))[:, 0]


class PairRanking(Loss):
    def __call__(self, op, scores, y, link):
        better = op.Sign(op.Sub(y, op.Transpose(y, perm=[1, 0])))
        margin = op.Mul(better, op.Sub(scores, op.Transpose(scores, perm=[1, 0])))
        return op.ReduceMean(op.Softplus(op.Neg(margin)), axes=[1], keepdims=True)


def pair_ranking(s, y):
    return np.log1p(np.exp(-np.sign(y - y.T) * (s - s.T))).mean(1)


class HardTriplets(Loss):
    def __call__(self, op, scores, y, link):
        same = op.MatMul(y, op.Transpose(y, perm=[1, 0]))
        squares = op.ReduceSum(op.Mul(scores, scores), axes=[1], keepdims=True)
        inner = op.Mul(op.MatMul(scores, op.Transpose(scores, perm=[1, 0])), 2.0)
        distance = op.Sub(op.Add(squares, op.Transpose(squares, perm=[1, 0])), inner)
        farthest = op.ReduceMax(op.Mul(distance, same), axes=[1], keepdims=True)
        nearest = op.ReduceMin(op.Add(distance, op.Mul(same, 1e4)), axes=[1], keepdims=True)
        return op.Softplus(op.Sub(farthest, nearest))


def hard_triplets(s, labels):
    distance = ((s[:, None] - s) ** 2).sum(-1)
    same = labels[:, None] == labels
    return np.log1p(np.exp((distance * same).max(1) - (distance + 1e4 * same).min(1)))


class OfNumberOfRows(Loss):
    """A sum over the rows, written as a mean of losses that are multiplied by their number."""

    def __call__(self, op, scores, y, link):
        error = op.Sub(scores, y)
        return op.Mul(op.Mul(error, error), float(op.shape(scores)[0]))


def of_number_of_rows(s, y):
    return ((s - y) ** 2).mean(1) * len(s)
