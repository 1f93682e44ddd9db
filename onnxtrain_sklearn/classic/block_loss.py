"""Blocks as losses of the estimators, which weight rows and pad minibatches, of which blocks know nothing.

An estimator's loss gives a number for each row; the estimator takes the weighted mean. So a block is built with
reductions that keep the rows. Whether the mean over the rows of that is what the block itself computes is tried on
random numbers before it is used: a block that is no mean over rows is refused.
"""

from __future__ import annotations

from typing import Any


class BlockLoss:
    def __init__(self, block: Any) -> None:
        self.block = block
