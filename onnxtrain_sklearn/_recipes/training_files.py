"""Training graphs of recipes: the network as it is before training, behind the preprocessing of the table."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length

from .._data.targets import Targets, weights_of_classes
from .._estimators.export_source import export_source, untrained_run
from .._export.folder import TRAINING_FORMS, training_folder, write_folder
from .._export.source import TARGETS
from .._runtime import devices
from .._support.refusal import refusing
from .._support.typing import MatrixLike
from ..exceptions import ModelError
from .base import BaseRecipe
from .examples import TableExamples
from .folds import validation_folds
from .preprocessing import Preprocessing, fit_preprocessing
from .raw_table import categorical_columns, read_table, warn_of_text_columns
from .scaling import SCALINGS


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
            There are several networks (``n_ensembles``), or a column has the name of a tensor of the state.
        FileExistsError
            The folder holds other files.

        Notes
        -----
        A loop elsewhere trains to its last epoch: no rows are held out, and no best epoch is kept. What
        :func:`load_training` reads predicts from the table, also with a state that was trained elsewhere (``state``).

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
        if form not in TRAINING_FORMS:
            raise ValueError(f"form must be one of {', '.join(map(repr, TRAINING_FORMS))}, got {form!r}.")
        if target not in TARGETS:
            raise ValueError(f"target must be one of {', '.join(map(repr, TARGETS))}, got {target!r}.")
        twin = clone(self)
        twin.check_declared()
        if twin.n_ensembles != 1:
            raise ModelError(
                f"Training graphs hold one network, and n_ensembles={twin.n_ensembles}: set n_ensembles=1, and export "
                f"each of them with a random_state of its own."
            )
        network, prepared, matrix, values = untrained_network(twin, X, y)
        with refusing("The training graphs cannot be made"):
            run = untrained_run(network, matrix, values)
            front = _front(prepared, run.model.inputs[0].name)
            source = export_source(network, run, None, target)
            facts = {**source.facts, "estimator": type(self).__name__}
            content = training_folder(replace(source, facts=facts, front=front), form)
        write_folder(content, folder)


def untrained_network(
    recipe: BaseRecipe, X: MatrixLike, y: ArrayLike
) -> tuple[Any, Preprocessing, np.ndarray, np.ndarray]:
    """Return the network that ``fit`` trains, the preprocessing, and matrix and targets of the trained rows."""
    table = read_table(recipe, X, reset=True)
    warn_of_text_columns(table, recipe.categorical_features)
    targets = recipe._encode(y)
    check_consistent_length(table.columns[0], targets.values)
    examples = TableExamples(table, categorical_columns(table, recipe.categorical_features), targets, None)
    rng = check_random_state(recipe.random_state)
    rows, _ = next(iter(validation_folds(examples.used, examples.labels, 1, recipe.validation_fraction, rng)))
    own = np.random.RandomState(rng.randint(2**31 - 1))
    scaling, drops = SCALINGS[recipe._scaling], recipe._drops_constants
    prepared = fit_preprocessing(table.rows(rows), examples.categorical, scaling, own, drops_constants=drops)
    network = recipe._network(prepared, len(rows), own.randint(2**31 - 1))
    if weights := _class_weights_by_label(recipe, targets):
        network.set_params(class_weight=weights)
    matrix, values, _ = examples.prepared(prepared, rows, devices.resolve_device(recipe.device))
    return network, prepared, matrix, values


def _class_weights_by_label(recipe: BaseRecipe, targets: Targets) -> dict[Any, float] | None:
    given, classes = getattr(recipe, "class_weight", None), targets.classes
    if given is None or not isinstance(classes, np.ndarray):
        return None
    found = weights_of_classes(given, classes, targets.values, np.ones(len(targets.values)))
    return dict(zip(classes.tolist(), found.tolist(), strict=True))


def _front(prepared: Preprocessing, matrix: str) -> ir.Model:
    """Return the graph from the columns of the table to the input of the network."""
    op = prepared.new_graph()
    result = op.Identity(prepared.emit(op))
    result.name = matrix
    op.graph.outputs.append(result)
    return ir.Model(op.graph, ir_version=8)
