"""Training graphs of recipes: the network as it is before training, behind the preprocessing of the table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_consistent_length

from .._data.targets import Targets, weights_of_classes
from .._estimators.export_source import export_source, untrained_run
from .._export.folder import require_known_form, training_folder, write_folder
from .._export.networks import name_in_network
from .._export.source import ExportSource
from .._runtime import devices
from .._support.refusal import refusing
from .._support.typing import ClassWeight, MatrixLike
from .base import BaseRecipe
from .examples import TableExamples
from .members import Network
from .preprocessing import Preprocessing
from .raw_table import categorical_columns, read_table, warn_of_columns


class RecipeTrainingFiles(BaseRecipe):
    """A recipe that is trained in any onnxruntime."""

    def export_training(
        self,
        folder: str | os.PathLike[str],
        X: MatrixLike,
        y: ArrayLike,
        *,
        form: str = "both",
        target: str = "any",
    ) -> None:
        """Write a folder of graphs that train this model in any onnxruntime, in any language.

        The graphs take rows of the table, texts among them, and hold the preprocessing, which is fitted to ``X``, and
        the network as it is before training. The manifest names the schedules of the recipe, which
        :func:`load_training` follows. The estimator stays as it is.

        Parameters
        ----------
        folder : str or path
            The folder to write. One that holds an earlier export is replaced as a whole.
        X, y : data as for :meth:`fit`
            All rows but those that ``validation_fraction`` holds out shape the preprocessing.
        form : {"both", "step", "epoch"}, default="both"
            The training graphs to write.
        target : {"any", "web"}, default="any"
            What the graphs are to run on. "web": also on WebGPU in browsers, which lacks float64.

        Raises
        ------
        ModelError
            A column has the name of a tensor of the state.
        FileExistsError
            The folder holds other files.

        Notes
        -----
        A loop elsewhere trains to its last epoch: no rows are held out, and no best epoch is kept. What
        :func:`load_training` reads predicts from the table, also with a state that was trained elsewhere (``state``).

        With ``n_ensembles``, a step trains all networks on the same minibatch, each as it would be alone.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> from onnxtrain_sklearn import RealMLPClassifier, load_training
        >>> X = pd.DataFrame({"petals": [3, 4, 5, 6] * 25, "color": ["red", "blue", "white", "red"] * 25})
        >>> y = ["rose", "iris", "rose", "tulip"] * 25
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RealMLPClassifier("td-s", max_iter=20, random_state=0).export_training(f"{folder}/flowers", X, y)
        ...     training = load_training(f"{folder}/flowers", random_state=0)
        >>> for _ in range(20):
        ...     training = training.partial_fit(X, y)
        >>> bool((training.predict(X) == y).all())
        True
        """
        require_known_form(form, target)
        twin = clone(self)
        twin.check_declared()
        networks = list(untrained_networks(twin, X, y))
        with refusing("The training graphs cannot be made"):
            content = training_folder(_source_of_networks(type(self).__name__, networks, target), form)
        write_folder(content, folder)


@dataclass(frozen=True, eq=False)
class UntrainedNetwork:
    """A network that ``fit`` trains, the preprocessing, and matrix and targets of the trained rows."""

    network: Network
    preprocessing: Preprocessing
    matrix: np.ndarray
    values: np.ndarray


def untrained_networks(recipe: BaseRecipe, X: MatrixLike, y: ArrayLike) -> Iterator[UntrainedNetwork]:
    """Yield the networks of a recipe as they are before training."""
    table = read_table(recipe, X, reset=True)
    warn_of_columns(table, recipe.categorical_features)
    targets = recipe._encode(y)
    check_consistent_length(table.columns[0], targets.values)
    examples = TableExamples(table, categorical_columns(table, recipe.categorical_features), targets, None)
    weights, device = _class_weights_by_label(recipe, targets), devices.resolve_device(recipe.device)
    for member in recipe._members(examples):
        if weights:
            member.network.set_params(class_weight=weights)
        matrix, values, _ = examples.prepared(member.preprocessing, member.rows, device)
        yield UntrainedNetwork(member.network, member.preprocessing, matrix, values)


def _source_of_networks(estimator: str, networks: Sequence[UntrainedNetwork], target: str) -> ExportSource:
    """Return what the training graphs of all networks are made from; steps have the rows of the first one's."""
    sources, batch = list[ExportSource](), None
    for one in networks:
        run = untrained_run(one.network, one.matrix, one.values)
        sources.append(export_source(one.network, run, batch, target))
        batch = sources[0].parts.batch
    matrices = [source.parts.model.inputs[0].name for source in sources]
    if len(networks) > 1:
        matrices = [name_in_network(name, number) for number, name in enumerate(matrices)]
    front = _front([one.preprocessing for one in networks], matrices)
    first, *others = (replace(source, front=front) for source in sources)
    return replace(first, facts={**first.facts, "estimator": estimator}, others=tuple(others))


def _class_weights_by_label(recipe: BaseRecipe, targets: Targets) -> ClassWeight:
    given, classes = getattr(recipe, "class_weight", None), targets.classes
    if given is None or not isinstance(classes, np.ndarray) or targets.task == "multilabel":
        return given  # those of several labels are refused, as those of the network
    found = weights_of_classes(given, classes, targets.values, np.ones(len(targets.values)))
    return dict(zip(classes.tolist(), found.tolist(), strict=True))


def _front(each: Sequence[Preprocessing], matrices: Sequence[str]) -> ir.Model:
    """Return the graph from the columns of the table to the inputs of the networks."""
    op = each[0].new_graph()
    for prepared, matrix in zip(each, matrices, strict=True):
        result = op.Identity(prepared.emit(op))
        result.name = matrix
        op.graph.outputs.append(result)
    return ir.Model(op.graph, ir_version=8)
