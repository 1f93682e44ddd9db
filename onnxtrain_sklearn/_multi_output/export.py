"""What the training graphs of several outputs are made from: the loss of each, and what its labels weigh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._estimators.export_source import export_source, exported_class_weights, settings_of_step
from .._estimators.parameters import Parameters
from .._estimators.run import Run
from .._export.source import ExportSource, OutputSource
from .._inference.head import Head
from .._training.total_loss import OutputLoss, TotalLoss
from .single_estimators import OutputEstimator, loss_weights, naming, output_estimators


def export_source_of_outputs(estimator: Parameters, run: Run, batch_size: int | None, target: str) -> ExportSource:
    """Return the source of training graphs that go on as ``partial_fit`` would."""
    singles, weights = output_estimators(estimator), loss_weights(estimator)
    known = _losses_before(run) if any(head.positions is not None for head in run.head.parts) else {}
    found = []
    for head, (name, single), balanced in zip(run.head.parts, singles.items(), run.balanced_outputs, strict=True):
        with naming(name):
            loss = _loss_of_output(name, single, head, weights[name], known)
            class_weights = exported_class_weights(single, head, balanced)
        ignored = None if head.positions is None else getattr(single, "ignore_label", None)
        found.append(OutputSource(loss, head, class_weights, ignored))
    return export_source(estimator, run, batch_size, target, tuple(found))


def _losses_before(run: Run) -> Mapping[str, OutputLoss]:
    """Return the losses of the last call by output."""
    total = settings_of_step(run).loss
    assert isinstance(total, TotalLoss)
    return {one.name: one for one in total.outputs}


def _loss_of_output(
    name: str, single: OutputEstimator, head: Head, weight: float, known: Mapping[str, OutputLoss]
) -> OutputLoss:
    loss: Any = single.loss
    at_places = (head.positions, known[name].places, known[name].label_weights) if head.positions is not None else ()
    return OutputLoss(name, loss, head.task, head.link, head.n_outputs, head.groups, weight, *at_places)
