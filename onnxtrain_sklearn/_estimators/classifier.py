"""The classifier: labels, probabilities and decision function."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if

from .._data.inputs import prediction_type
from .._data.targets import (
    Classes,
    rows_that_count,
    without_missing,
)
from .._fitted.fitted_model import is_estimator
from .._inference.graph import OutputOptions
from .._utils.params import documented
from .._utils.typing import ClassWeight, MatrixLike, Predictions, TableLike
from ..finetuning import FineTuner
from ..losses import Loss, LossBlock
from ..models import resolve_builder
from ..models.given import bare_model, resolve_graph_model
from .base import BaseOrtGradient
from .call import Call, optional_data
from .config import check_partial_fit, is_on, trains_in_minibatches
from .fit import initialize, train
from .outputs import (
    LabelOutput,
    OutputSpec,
    known_classes,
    require_probabilities,
    weighted_targets,
)
from .parameters import CLASSIFIER, attributes, naming_places
from .predict import (
    accuracy_of_labels,
    accuracy_of_several,
    by_label,
    decisions,
    has_one_label,
    typed_labels,
    within_one,
)
from .streams_predictions import predicted_batches, reads_source, score_of_source, scored_targets

if TYPE_CHECKING:
    from typing_extensions import Self


CLASSES_ENTRY = """\
classes_ : ndarray of shape (n_classes,), or list of them
    Sorted labels. With several labels per row: the indices of the labels if they are 0 or 1, else a list with the
    classes of each label.
"""


@documented(attributes=attributes(score="Accuracy", classes=CLASSES_ENTRY))
@naming_places
@dataclass(kw_only=True, eq=False, repr=False)
class OrtGradientClassifier(ClassifierMixin, BaseOrtGradient):
    """Train an ONNX graph for classification, by gradient descent on its own weights.

    {parameters}
    {attributes}

    See Also
    --------
    OrtGradientRegressor : The same for regression.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = OrtGradientClassifier(MLP((16,)), learning_rate_init=0.02, max_iter=500, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True
    >>> [output.name for output in classifier.to_onnx().graph.output]
    ['label', 'probabilities']
    """

    __module__ = "onnxtrain_sklearn"  # pickles refer to the class by this path

    loss: str | Loss | LossBlock = "log_loss"
    ignore_label: int | float | str | None = -100
    class_weight: ClassWeight = None

    declared = CLASSIFIER
    _output_kinds = ("auto", "scores", "probabilities")

    def fit(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        X_old: MatrixLike | None = None,
        y_old: ArrayLike | None = None,
        sample_weight_old: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Train the graph for up to ``max_iter`` epochs.

        Parameters
        ----------
        X, y, sample_weight, X_val, y_val, sample_weight_val, X_old, y_old, sample_weight_old, groups : array-like
            As in :meth:`OrtGradientRegressor.fit`, but ``y`` holds labels, or names their column: one label per row,
            several labels per row, or one label for each position of a row, (n_samples, ...), for which the graph has
            scores. If the loss declares it (``LogLoss(targets="probabilities")`` or "counts"), ``y`` holds soft labels,
            one column per class.
        classes : array-like of shape (n_classes,), or list of them, default=None
            All labels, if ``y`` lacks some: for example, a graph with ten scores is trained on rows of four classes.
            The scores belong to the labels in sorted order. None: the labels in ``y``.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError, ModelError, DivergenceError
            As in :meth:`OrtGradientRegressor.fit`.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from onnxtrain_sklearn import Linear, OrtGradientClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> few = y < 4
        >>> head = Linear().build(n_features=64, n_outputs=10, random_state=0)
        >>> classifier = OrtGradientClassifier(head, tol=0.1, n_iter_no_change=2, random_state=0)
        >>> classifier = classifier.fit(X[few], y[few], classes=range(10))
        >>> classifier.predict_proba(X).shape
        (1797, 10)
        """
        resumes = is_on(self.warm_start) and hasattr(self, "_state")
        known = _known_classes(self, classes, self.classes_ if resumes else None)
        validation = optional_data("val", X_val, y_val, sample_weight_val)
        old_rows = optional_data("old", X_old, y_old, sample_weight_old)
        resume = is_on(self.warm_start)
        return train(
            self, Call(X, y, sample_weight, known, validation, resume=resume, old_rows=old_rows, groups=groups)
        )

    def initialize(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        classes: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Prepare the estimator for training, as :meth:`fit` does, without taking a step.

        The graph is built for the data, its weights are drawn, scales and classes are determined, and the optimizer is
        in its initial state: ``t_`` is 0, and the estimator predicts with the initial weights. :meth:`partial_fit`, and
        :meth:`fit` with ``warm_start``, continue from there. :meth:`load_training_state` can load the state of another
        process, because equal data, parameters and ``random_state`` give the same graph.

        Parameters
        ----------
        X, y, sample_weight, groups : as for :meth:`fit`
        classes : array-like of shape (n_classes,), or list of them, default=None
            All labels, where ``y`` may lack some; None: those in ``y``.

        Returns
        -------
        self

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import MLP, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> trained, other = (OrtGradientClassifier(MLP((8,)), random_state=0).initialize(X, y) for _ in range(2))
        >>> other.t_
        0
        >>> trained = trained.partial_fit(X, y)
        >>> other = other.load_training_state(trained.training_state())
        >>> bool((other.predict_proba(X) == trained.predict_proba(X)).all())
        True
        """
        return initialize(self, Call(X, y, sample_weight, _known_classes(self, classes, None), groups=groups))

    @available_if(trains_in_minibatches)
    def partial_fit(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train for one pass over the data, continuing from the last call.

        Parameters
        ----------
        X, y, sample_weight : array-like
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), or list of them, default=None
            All labels of all calls; needed at the first call, optional later. A fitted model knows its classes. With
            several labels per row, a list with the classes of each label.

        Returns
        -------
        self
        """
        check_partial_fit(self)
        known = _known_classes(self, classes, self.classes_ if hasattr(self, "_state") else None)
        return train(self, Call(X, y, sample_weight, known, resume=True, one_epoch=True))

    def predict(self, X: TableLike) -> Predictions:
        """Predict labels.

        Parameters
        ----------
        X : as in :meth:`fit`
            From a source, the columns of ``feature_names_in_`` are read.

        Returns
        -------
        ndarray of shape (n_samples,), or (n_samples, n_labels) of indicators or labels
            With a label for each position of a row, an array in the shape of ``y``. For a source, a
            ``pyarrow.RecordBatchReader``, which reads and predicts a batch at a time, in the order of the rows. Its
            column is ``prediction``; with several labels per row, its columns are ``prediction_0``, ...
        """
        if reads_source(X):
            return predicted_batches(self, "predict", X)
        labels = self._predict(X)  # raises if it is not fitted
        return typed_labels(self._state.decoding, labels)

    @available_if(require_probabilities)
    def predict_proba(self, X: TableLike) -> Predictions | list[np.ndarray]:
        """Predict probabilities.

        Parameters
        ----------
        X : as in :meth:`predict`

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or a list of them
            In the order of ``classes_``. For several binary labels per row, one column per label: the probability
            that it is 1. For several labels of other kinds, a list with one array per label. With a label at each
            position of a row, (n_samples, ..., n_classes). For a source, a ``pyarrow.RecordBatchReader`` with a column
            for each class, named by its label, or ``0_red``, ``0_blue``, ... with several labels per row that are not
            binary.

        Notes
        -----
        For float32 ``X`` the probabilities are the outputs of the graph of :meth:`to_onnx`, clipped to 1, because its
        sigmoid may round to 1.0000001. For other ``X`` the last activation is computed in float64 from the same scores.
        Rows then rank as by :meth:`decision_function`, even if float32 cannot distinguish their probabilities: it has
        no numbers between 1 - 6e-8 and 1.
        """
        if reads_source(X):
            return predicted_batches(self, "predict_proba", X)
        number_type = prediction_type(X)
        numbers = self._predict(X, output=1, with_scores=number_type is np.float64)
        decoding = self._state.decoding
        numbers = within_one(decoding.link, numbers).astype(np.result_type(number_type, numbers), copy=False)
        return by_label(decoding, numbers)

    def decision_function(self, X: TableLike) -> Predictions | list[np.ndarray]:
        """Return the scores: logits for the likelihood losses, margins for the hinge losses.

        Parameters
        ----------
        X : as in :meth:`predict`

        Returns
        -------
        ndarray of shape (n_samples,) for two classes, else (n_samples, n_classes), or a list of them
            A list if a row has several labels that are not binary. With a label at each position of a row,
            (n_samples, ...) for two classes, else (n_samples, ..., n_classes). float32 if ``X`` and the graph are, else
            float64. For a source, the columns are named as by :meth:`predict_proba`; two classes have one column, named
            by the second class.

        Notes
        -----
        For an ensemble in one graph (a builder with ``n_members``) these are the scores of the mean probabilities:
        their logarithms for several classes, their log-odds for two classes and for labels. Without probabilities
        (hinge) they are the mean of the members' scores.
        """
        if reads_source(X):
            return predicted_batches(self, "decision_function", X)
        scores = self._predict(X, output=-1, with_scores=True)  # raises if it is not fitted
        return decisions(self._state.decoding, scores, X)

    def score(self, X: TableLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy.

        Parameters
        ----------
        X, y, sample_weight : array-like
            As in :meth:`fit`; a source is read a batch at a time.

        Returns
        -------
        float
            The fraction of rows whose label is right; with several labels per row, all of them must be. With a label at
            each position of a row, the fraction of the labels that are right. Labels to ignore do not count. If ``y``
            holds soft labels, as in :meth:`fit`, the mean share of the predicted class.
        """
        if reads_source(X):
            return score_of_source(self, X, y, sample_weight)
        y = scored_targets(self, y, sample_weight)
        if hasattr(self, "_state") and self._state.graph.is_whole:
            y, sample_weight = without_missing(y, sample_weight)
        predicted = self.predict(X)  # raises if it is not fitted
        output_spec = self._output_spec()
        if output_spec.label_kind != "labels" and np.ndim(y) == 2 and np.shape(y)[1] > 1:
            unweighted = replace(output_spec, class_weight=None)
            n_rows = len(predicted)
            targets, weights = weighted_targets(
                unweighted, n_rows, y, sample_weight, self.classes_, None, at_positions=False
            )
            return output_spec.score(predicted, targets, weights)
        if self._state.decoding.positions is None:
            y, predicted, sample_weight = rows_that_count(y, predicted, sample_weight, self.ignore_label)
        if has_one_label(self._state.decoding):
            return accuracy_of_labels(y, predicted, sample_weight)
        return accuracy_of_several(self._state.decoding, y, predicted, self.ignore_label, sample_weight)

    def to_onnx(
        self,
        *,
        zipmap: bool | str = False,
        raw_scores: bool = False,
        adapter: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> onnx.ModelProto:
        """Return the trained inference graph.

        The options and the names of the outputs are those of skl2onnx, except that its default is ``zipmap=True``.

        Parameters
        ----------
        zipmap : bool or "columns", default=False
            Form of the probabilities. False: ``label``, and ``probabilities`` of shape (n_samples, n_classes).
            True: ``output_label``, and ``output_probability``, a list of one dict per row from label to probability.
            "columns": ``output_label``, and for every class an output of shape (n_samples,): ``i0``, ``i1``, ... for
            integer labels, ``sno``, ``syes``, ... for strings.
        raw_scores : bool, default=False
            Whether the values of :meth:`decision_function` replace the probabilities, one column per class; for two
            classes the columns are the negated and the original value.
        adapter : bool, default=False
            Whether the graph is the given model, in which what was trained are inputs with defaults, for the files of
            :meth:`save_adapter`. False: low-rank factors are merged into the matrices of the given graph.
        path : str or path, default=None
            File to write the graph to as well. A model above 2 GiB, whose weights no ModelProto can hold, needs it: its
            weights go to a file ``<path>.data`` beside it, and the returned ModelProto refers to that file.

        Returns
        -------
        onnx.ModelProto
            A graph without training-only operators; it imports only the opset domains that it uses. Labels are
            strings, int64 (also for booleans), or double for floats. A loss without probabilities (hinge) gives
            ``scores`` instead, of shape (n_samples, 1) for two classes unless an option asks for one column per class.
            The predictions are those of :meth:`predict`, :meth:`decision_function` and, for float32 ``X``,
            :meth:`predict_proba`; for other ``X`` the probabilities are those of ``predict_proba`` in float32.

        Raises
        ------
        ValueError
            An option has an invalid value.
        ModelError
            The labels do not suit an option: the dicts cannot have keys such as 0.5. Or the model has more than 2 GiB,
            and ``path`` is missing.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from onnxtrain_sklearn import Linear, OrtGradientClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = OrtGradientClassifier(Linear(), optimizer="lbfgs", tol=1e-2, random_state=0).fit(X, y)
        >>> [output.name for output in classifier.to_onnx(zipmap="columns").graph.output]
        ['output_label', 'i0', 'i1', 'i2']
        """
        if not isinstance(zipmap, bool) and zipmap != "columns":
            raise ValueError(f"zipmap must be False, True or 'columns', got {zipmap!r}.")
        if not isinstance(raw_scores, bool):
            raise ValueError(f"raw_scores must be True or False, got {raw_scores!r}.")
        return self._exported(OutputOptions(zipmap, raw_scores), adapter=adapter, path=path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags

    def _output_spec(self) -> OutputSpec:
        given: Any = resolve_graph_model(self.model)
        is_empty = isinstance(self.class_weight, Mapping) and not self.class_weight  # all classes weigh the same
        weights = None if is_empty else self.class_weight
        other = isinstance(self.finetune, FineTuner) and self.finetune.new_head  # a head for other classes
        if self.class_weight is None and is_estimator(given.graph) and not other:
            from .._fitted.objective import class_weight_of  # imports a third of scikit-learn

            weights = class_weight_of(given.graph)
        return LabelOutput(self.loss, given.output_kind, given.class_axis, self.ignore_label, weights)


def _known_classes(estimator: BaseOrtGradient, classes: ArrayLike | None, earlier: Classes) -> Classes:
    is_graph = resolve_builder(estimator.model) is None and not is_estimator(bare_model(estimator.model))
    is_soft = estimator._output_spec().label_kind != "labels"
    return known_classes(classes, earlier, of_columns=is_graph or is_soft)
