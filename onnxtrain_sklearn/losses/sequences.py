"""Losses of sequences that are not aligned with their labels, such as speech and lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from .._model.declared_targets import Target
from .._model.links import Link, Task
from .._utils.params import OneOf, Range, Rules
from ..graph import GraphBuilder
from .base import Loss

IMPOSSIBLE = -1e30
"""The logarithm of the probability 0, finite so that its gradient is 0 and not NaN."""


class CTC(Loss):
    r"""Connectionist temporal classification: minus the log-probability of a row's labels, over all alignments.

    The scores (N, T, C) are those of C classes at T steps, of which one is the blank. ``y`` holds "labels" (N, L), the
    classes in order, with -1 after the last one of a row; with ``lengths=True`` also "lengths" (N,), the number of
    steps of each row, after which its scores do not count. The loss of a row is

    .. math:: -\log \sum_a \prod_t \mathrm{softmax}(s_t)_{a_t}

    over all sequences :math:`a` of T classes that give the labels when repeated classes are merged and then blanks are
    removed. It is not divided by the number of labels. ``predict`` returns the scores.

    A Scan computes the sum forward in time, on the gradient engine "portable", which ``engine="auto"`` then takes.

    Parameters
    ----------
    blank : int, default=0
        The class that stands for no label.
    lengths : bool, default=False
        Whether ``y`` holds the number of steps of each row.

    References
    ----------
    A. Graves, S. Fernández, F. Gomez, J. Schmidhuber, "Connectionist temporal classification: labelling unsegmented
    sequence data with recurrent neural networks", ICML 2006.

    Examples
    --------
    >>> from onnxtrain_sklearn.losses import CTC
    >>> CTC(lengths=True).targets
    {'labels': Target(shape=('N', 'L'), dtype='int64'), 'lengths': Target(shape=('N',), dtype='int64')}
    """

    name = "ctc"
    tasks = frozenset({"regression"})
    valid: ClassVar[Rules] = {"blank": (Range(Integral, 0),), "lengths": (OneOf((True, False)),)}

    def __init__(self, blank: int = 0, lengths: bool = False) -> None:
        self.blank = blank
        self.lengths = lengths

    @property
    def targets(self) -> Mapping[str, Target]:  # type: ignore[override]
        """The targets, of which "lengths" depends on the parameter of that name."""
        labels = {"labels": Target(("N", "L"), "int64")}
        return labels | ({"lengths": Target(("N",), "int64")} if self.lengths else {})

    def check_targets(self, y: Any) -> None:
        labels = y["labels"]
        ends = labels < 0
        if (labels < -1).any() or (labels == self.blank).any():
            raise ValueError(
                f"The labels of a row must be classes other than the blank {self.blank}, and -1 after the last one, "
                f"got {np.unique(labels[(labels < -1) | (labels == self.blank)]).tolist()}."
            )
        if (ends[:, :-1] & ~ends[:, 1:]).any():
            row = int(np.argmax((ends[:, :-1] & ~ends[:, 1:]).any(axis=1)))
            raise ValueError(f"-1 may only follow the last label of a row, but row {row} is {labels[row].tolist()}.")

    def check_scores(self, row: tuple[int, ...], y: Any) -> None:
        if len(row) != 2:
            raise ValueError(f"loss='ctc' takes scores of shape (N, T, C), but the graph's output has {('N', *row)}.")
        labels, (n_steps, n_classes) = y["labels"], row
        if max(labels.max(), self.blank) >= n_classes:
            raise ValueError(
                f"The graph has scores of {n_classes} classes, 0 to {n_classes - 1}, but y['labels'] or the blank goes "
                f"up to {max(labels.max(), self.blank)}."
            )
        steps = y["lengths"] if self.lengths else np.full(len(labels), n_steps)
        if steps.max() > n_steps:
            raise ValueError(f"y['lengths'] goes up to {steps.max()}, but the graph has scores of {n_steps} steps.")
        repeats = ((labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] >= 0)).sum(axis=1)
        needed = np.maximum((labels >= 0).sum(axis=1) + repeats, 1)  # a blank separates equal labels
        if (short := np.flatnonzero(steps < needed)).size:
            raise ValueError(
                f"Row {short[0]} of y needs at least {needed[short[0]]} steps for its labels, but has {steps[short[0]]}"
                f"; so do {len(short)} of {len(labels)} rows. Leave them out."
            )

    def n_scores(self, task: Task, n_targets: int) -> int:
        return n_targets

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: Any, link: Link) -> ir.Value:
        n, n_steps, n_classes = (int(str(d)) for d in op.shape(scores) or ())
        labels = y["labels"]
        width = int(str((op.shape(labels) or (0, 0))[1]))
        present = op.Not(op.Less(labels, 0))
        named = op.Where(present, labels, int(self.blank))

        # The states: a blank before, between and after the labels.
        states = _between(op, op.Cast(named, to=op.dtype), float(self.blank), n, width)
        classes = np.arange(n_classes, dtype=op.dtype.numpy())[None, :, None]
        chosen = op.Cast(op.Equal(op.Unsqueeze(states, axes=[1]), classes), to=op.dtype)
        emitted = op.Transpose(op.MatMul(op.LogSoftmax(scores, axis=-1), chosen), perm=[1, 0, 2])
        # A blank may be skipped between labels that differ.
        if width > 1:
            before, after = op.Slice(named, [0], [width - 1], [1]), op.Slice(named, [1], [width], [1])
            differs = op.Where(op.Equal(before, after), IMPOSSIBLE, np.zeros((), op.dtype.numpy()))
            skips = op.Pad(differs, [0, 1, 0, 0], IMPOSSIBLE)
        else:
            skips = op.constant(np.full((n, 1), IMPOSSIBLE, op.dtype.numpy()))
        skips = _between(op, skips, IMPOSSIBLE, n, width)

        count = 2 * width + 1
        start = np.full((n, count), IMPOSSIBLE, op.dtype.numpy())
        start[:, 0] = 0.0
        scanned = [emitted]
        if self.lengths:
            steps = np.arange(n_steps, dtype=np.int64)[:, None, None]
            scanned.append(op.Less(op.constant(steps), op.Unsqueeze(y["lengths"], axes=[0, 2])))
        body = op.body("ctc")
        alpha = body.input("alpha", op.dtype, (n, count))
        step = body.input("step", op.dtype, (n, count))
        stay = body.input("runs", ir.DataType.BOOL, (n, 1)) if self.lengths else None
        ways = [alpha]
        for by in (1, 2):
            ways.append(body.Pad(body.Slice(alpha, [0], [count - by], [1]), [0, by, 0, 0], IMPOSSIBLE))
        ways[2] = body.Add(ways[2], skips)
        joined = body.Concat(*(body.Unsqueeze(way, axes=[0]) for way in ways), axis=0)
        new = body.Add(body.ReduceLogSumExp(joined, axes=[0], keepdims=False), step)
        new = new if stay is None else body.Where(stay, new, alpha)
        new.dtype, new.shape = op.dtype, ir.Shape([n, count])
        body.graph.outputs.append(new)
        last = op.emit("Scan", op.constant(start), *scanned, outputs=1, body=body.graph, num_scan_inputs=len(scanned))[
            0
        ]
        last.dtype, last.shape = op.dtype, ir.Shape([n, count])

        # Alignments end in the last label or in the blank after it.
        end = op.Mul(op.ReduceSum(op.Cast(present, to=ir.DataType.INT64), axes=[1], keepdims=True), 2)
        place = np.arange(count, dtype=np.int64)[None, :]
        ends = op.Or(op.Equal(end, place), op.Equal(op.Sub(end, 1), place))
        return op.Neg(op.ReduceLogSumExp(op.Where(ends, last, IMPOSSIBLE), axes=[1], keepdims=True))


def _between(op: GraphBuilder, columns: ir.Value, filled: float, n: int, width: int) -> ir.Value:
    """Emit ``columns`` (n, width) with a column of the number ``filled`` before, between and after them."""
    paired = op.Pad(op.Unsqueeze(columns, axes=[2]), [0, 0, 1, 0, 0, 0], filled)
    return op.Pad(op.Reshape(paired, [n, 2 * width]), [0, 0, 0, 1], filled)
