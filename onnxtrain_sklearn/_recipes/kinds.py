"""Classification and regression on raw tables, and their training graphs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.utils.validation import check_consistent_length

from .._data.inputs import prediction_type
from .._data.targets import Targets, class_targets, regression_targets, weights_of_classes
from .._estimators.training_files import export_source, untrained_state
from .._export.epoch_graph import name_in_network
from .._export.folder import require_known_form, training_folder, write_folder
from .._export.source import ExportSource
from .._model.activation import Task
from .._ort import devices
from .._utils.errors import refusing
from .._utils.typing import ClassWeight, MatrixLike
from .base import BaseRecipe
from .members import Network, TableExamples
from .preprocessing import Preprocessing
from .tables import categorical_columns, read_table, warn_of_columns

# Training graphs of recipes: the network as it is before training, behind the preprocessing of the table.


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
        state = untrained_state(one.network, one.matrix, one.values)
        sources.append(export_source(one.network, state, batch, target))
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


# Classification and regression on raw tables: targets and predictions.


class ClassifierRecipe(ClassifierMixin, RecipeTrainingFiles):
    """A classifier of raw tables."""

    class_weight: ClassWeight
    _task: Task

    def predict(self, X: MatrixLike) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : as in :meth:`fit`
            Categories that ``fit`` has not seen count as missing.

        Returns
        -------
        ndarray of shape (n_samples,), or (n_samples, n_labels) of 0 and 1
        """
        return np.asarray(self._predict(X, 0)).astype(self.classes_.dtype)

    def predict_proba(self, X: MatrixLike) -> np.ndarray:
        """Predict probabilities.

        Parameters
        ----------
        X : as in :meth:`predict`

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``. For several labels a row, the probability of each that it is 1.

        Notes
        -----
        For float32 ``X`` these are the outputs of the graph of :meth:`to_onnx`. For other ``X`` they are float64, and
        those of classes are divided by their sum in it, which metrics such as the log loss require to be 1.
        """
        numbers = self._predict(X, 1).astype(prediction_type(X), copy=False)
        sums_to_one = numbers.dtype != np.float32 and self._task != "multilabel"
        return numbers / numbers.sum(axis=1, keepdims=True) if sums_to_one else numbers

    def _encode(self, y: ArrayLike) -> Targets:
        targets = class_targets(y, None)
        if targets.task == "multioutput":
            raise ValueError(
                f"{type(self).__name__} takes one label a row, or several that are 0 or 1; y holds several of other "
                f"classes. Wrap it in sklearn.multioutput.MultiOutputClassifier."
            )
        return targets

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class RegressorRecipe(MultiOutputMixin, RegressorMixin, RecipeTrainingFiles):
    """A regressor of raw tables."""

    def predict(self, X: MatrixLike) -> np.ndarray:
        """Predict numbers.

        Parameters
        ----------
        X : as in :meth:`fit`
            Categories that ``fit`` has not seen count as missing.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
        """
        numbers = self._predict(X, 0).astype(prediction_type(X), copy=False)
        return numbers.ravel() if self.n_outputs_ == 1 else numbers

    def _encode(self, y: ArrayLike) -> Targets:
        return regression_targets(y)
