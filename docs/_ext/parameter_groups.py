"""Pages of the estimators show their parameters in groups, each with a heading.

The docstrings list parameters one after the other, as numpydoc wants it.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

GROUPS = {
    "Model": "model loss trainable adapters variant embedding hidden_layer_sizes linear_part "
    "monotonic_cst mini n_members n_ensembles",
    "Training": "optimizer learning_rate_init learning_rate batch_size max_iter shuffle drop_last alpha l1_ratio "
    "dropout dropout_schedule label_smoothing weight_decay tol n_iter_no_change early_stopping scoring "
    "validation_split time_limit warm_start callbacks random_state",
    "Data and targets": "loss_weights ignore_label class_weight target_scaling clip_predictions categorical_features",
    "Fine-tuning": "finetune",
    "Runtime": "engine device runtime verbose",
    "Cluster": "client averaging checkpoint timeout",
}
"""The parameters of each group, in the order of the page."""

ESTIMATOR = re.compile(r"onnxtrain_sklearn\.(dask\.Dask)?(OrtGradient|RealMLP|TabM)(Classifier|Regressor|MultiOutput)")
FIELD = ":Parameters:"
ITEM = re.compile(r"    \*\*(\w+)\*\* : ")

logger = logging.getLogger(__name__)


def grouped(items: dict[str, list[str]]) -> list[str]:
    """Return the lines of the parameters below the headings of their groups; those of no group come last."""
    lines: list[str] = []
    left = dict(items)
    for group, names in {**GROUPS, "Others": " ".join(items)}.items():
        found = [left.pop(name) for name in names.split() if name in left]
        if found:
            lines += [f"    .. rubric:: {group}", "", *(line for item in found for line in item)]
    return lines


def group_parameters(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Put the parameters of an estimator into groups, in the lines that numpydoc made."""
    if what != "class" or not ESTIMATOR.fullmatch(name) or FIELD not in lines:
        return
    start = lines.index(FIELD) + 1
    after = (i for i in range(start, len(lines)) if lines[i].strip() and not lines[i].startswith("    "))
    stop = next(after, len(lines))
    items: dict[str, list[str]] = {}
    entry: list[str] = []
    for line in lines[start:stop]:
        if found := ITEM.match(line):
            entry = items.setdefault(found[1], [])
        entry.append(line)
    known = {one for names in GROUPS.values() for one in names.split()}
    if missing := items.keys() - known:
        logger.warning("parameters of %s that GROUPS of %s lacks: %s", name, Path(__file__).name, sorted(missing))
    lines[start:stop] = ["", *grouped(items)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Run after numpydoc."""
    app.connect("autodoc-process-docstring", group_parameters, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
