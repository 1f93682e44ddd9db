"""Train several outputs on a table that is read in blocks.

:class:`OutputsStream` collects from all rows what the first step needs: the statistics of a :class:`Stream` for each
output, and the mean weight of each output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from .._data.targets import SeveralTargets, Targets, checked_weights, joined_targets
from .._estimators.fitted_state import FittedState
from .._estimators.outputs import OutputSpec, known_classes
from .._estimators.scoring import rows_of
from .._estimators.streams import (
    Part,
    Stream,
    add_targets,
    block_parts,
    mask_of_rows,
    named_block,
    require_counted_labels,
    taken_part,
    targets_of,
)
from ..losses import Loss
from .fit import by_output, naming, targets_of_output, weights_by_output

MORE_ROWS = 1024
"""Most rows that are added to the sample for an output that has no target in it."""


@dataclass
class OutputsStream(Stream):
    """The blocks of a call that trains several outputs, with statistics of the targets in all their rows.

    Attributes
    ----------
    output_spec : dict of str to OutputSpec
    outputs : dict of str to Stream
        The statistics of the targets of each output.
    alike : bool
        True if all outputs give equal weights to the rows.
    mean_weights : dict of str to float
        The mean weight of the rows to train on, by output; row weights are multiplied by class weights.
    missing_labels : dict of str to int
        The number of rows to train on that lack a target, by output.
    """

    outputs: dict[str, Stream] = field(default_factory=dict)
    alike: bool = True
    mean_weights: dict[str, float] = field(default_factory=dict)
    missing_labels: dict[str, int] = field(default_factory=dict)
    _first_blocks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.block_means = None  # outputs differ in their means, so blocks are mixed by their order in the table
        for name, spec in self.output_spec.items():
            self.outputs[name] = Stream(None, [], 0, 0, self.rng, output_spec=spec)
            self.missing_labels[name] = 0

    def _weights(self, y: Any, sample_weight: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return targets and row weights by output; class weights of zero make row weights zero."""
        targets = by_output(y, self.output_spec, "y")
        given = weights_by_output(sample_weight, self.output_spec)
        found, n_rows = {}, len(next(iter(targets.values())))
        for name, spec in self.output_spec.items():
            with naming(name):
                if len(targets[name]) != n_rows:
                    raise ValueError(f"y has {len(targets[name])} rows, and {n_rows} for another output.")
                weights = np.array(checked_weights(given[name], n_rows), np.float64)
                rows = np.flatnonzero(weights)  # targets of rows of weight zero are not read
                if len(rows):
                    weights[rows] *= mask_of_rows(spec, rows_of(targets[name], rows), weights[rows])
                found[name] = weights
        return targets, found

    def counted(self, y: Any, sample_weight: Any) -> np.ndarray:
        """Return a mask of the rows whose weight is above zero for any output."""
        weights = list(self._weights(y, sample_weight)[1].values())
        return np.asarray(np.sum(weights, axis=0) > 0)

    def add(self, i: int, y: Any, sample_weight: Any, known: Any, *, trains: bool) -> None:
        """Add the targets of block ``i`` to the statistics; ``known`` are classes by output that are known before."""
        targets, weights = self._weights(y, sample_weight)
        each = list(weights.values())
        counted = np.any([own > 0 for own in each], axis=0)
        if trains:
            self.alike &= all(np.array_equal(own, each[0]) for own in each[1:])
        given = weights_by_output(sample_weight, self.output_spec)
        for (name, own), classes in zip(weights.items(), self._classes(known), strict=True):
            if trains:
                self.missing_labels[name] += int(np.count_nonzero(counted & (own == 0)))
                if own.any():
                    self._first_blocks.setdefault(name, i)
            # Rows whose class has the weight zero are included, because their labels are classes too.
            rows = np.flatnonzero(checked_weights(given[name], len(own)))
            if len(rows):
                facts, spec = self.outputs[name], self.output_spec[name]
                with naming(name):
                    add_targets(
                        facts,
                        spec,
                        rows_of(targets[name], rows),
                        own[rows],
                        classes,
                        facts.labels_by_block,
                        trains=trains,
                    )

    def _classes(self, known: Any) -> list[Any]:
        """Return the known classes of each output; ``known`` is a dict by output, or None."""
        given = known if isinstance(known, Mapping) else {}
        found = []
        for name in self.output_spec:
            with naming(name):
                found.append(known_classes(given.get(name), None, of_columns=True))
        return found

    def known_classes(self, resumed: FittedState) -> Any:
        """Return the classes of an earlier call, by output."""
        return {name: part.classes for name, part in zip(self.output_spec, resumed.decoding.parts, strict=True)}

    def complete(self, known: Any) -> None:
        """Complete the statistics after the targets of all blocks were added; read targets again if weights differ."""
        self.alike &= all(spec.class_weight is None for spec in self.output_spec.values())
        for name in self.output_spec:
            if name not in self._first_blocks:
                raise ValueError(f"Output {name!r}: none of the rows to train on has a positive weight.")
        if self.alike:
            return
        totals = dict.fromkeys(self.output_spec, 0.0)
        given = dict(zip(self.output_spec, self._classes(known), strict=True))
        classes = {name: own.classes if given[name] is None else given[name] for name, own in self.outputs.items()}
        read = targets_of(self.source)
        for i in self.training_blocks:
            with named_block(self.source, i):
                targets, weights = self._weights(*read(i))
                for name, own in weights.items():
                    if own.any():
                        spec = self._spec(name)
                        found = targets_of_output(
                            spec, len(own), targets[name], own, classes[name], None, allow_missing=False
                        )[1]
                        totals[name] += float(own.sum() if found is None else found.sum())
        self.mean_weights = {name: total / self.n_rows for name, total in totals.items()}

    def _spec(self, name: str) -> OutputSpec:
        """Return the specification of an output, with balanced class weights that are computed from all rows."""
        spec: OutputSpec = self.output_spec[name]
        return replace(spec, class_weight=self.outputs[name].class_weight(spec.class_weight))

    def sample(self, sizes: Sequence[int]) -> list[Part]:
        """Return a sample of the rows, for which graph and step are prepared, with some targets of each output."""
        parts = super().sample(sizes)
        held = {name for _, y, weights in parts for name, own in self._weights(y, weights)[1].items() if own.any()}
        for name in self.output_spec:
            if name not in held:
                part = block_parts(self.source, self._first_blocks[name])
                rows = np.flatnonzero(self._weights(*part[1:])[1][name])
                parts.append(taken_part(part, rows[:MORE_ROWS]))
        return parts

    def encoder(
        self, estimator: Any, state: FittedState, loss: Any, *, ignores: bool
    ) -> Callable[[int, Any, Any], tuple[Targets, np.ndarray | None]]:
        """Return a function that encodes and checks ``(n_rows, y, sample_weight)`` of a block."""
        specs = {name: self._spec(name) for name in self.output_spec}
        decodings = dict(zip(specs, state.decoding.parts, strict=True))

        def encoded(n_rows: int, y: Any, sample_weight: Any) -> tuple[Targets, np.ndarray | None]:
            targets, weights = self._weights(y, sample_weight)
            found = []
            for (name, spec), one in zip(specs.items(), loss.outputs, strict=True):
                decoding = decodings[name]
                given = cast("np.ndarray | None", weights[name])
                # Leave out weights that are all one if outputs give equal weights. Otherwise their factor is needed.
                given = None if self.alike and (weights[name] == 1).all() else given
                with naming(name):
                    own = targets_of_output(
                        spec,
                        n_rows,
                        targets[name],
                        given,
                        decoding.classes,
                        decoding,
                        may_lack_labels=True,
                        allow_missing=False,
                    )
                    require_counted_labels(own[0], ignores=one.ignores)
                    cast("Loss", spec.loss).check_targets(own[0].values)
                found.append(own)
            joined, row_weights = joined_targets(list(specs), *zip(*found, strict=True), alike=self.alike)
            whole: SeveralTargets = joined.with_factors(np.arange(n_rows), self.mean_weights)
            return whole, row_weights

        return encoded

    def balanced_outputs(self, classes: Sequence[Any]) -> tuple[tuple[float, ...] | None, ...]:
        """Return the class weights of each output with ``class_weight="balanced"``, and None for other outputs."""
        found = list[tuple[float, ...] | None]()
        for (name, spec), own in zip(self.output_spec.items(), classes, strict=True):
            weights = self.outputs[name].class_weight("balanced")
            is_balanced = spec.class_weight == "balanced" and isinstance(weights, dict)
            found.append(tuple(weights.get(label, 1.0) for label in np.asarray(own).tolist()) if is_balanced else None)
        return tuple(found)
