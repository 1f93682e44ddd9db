"""The estimator that trains several outputs of a graph together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if

from .._estimators.availability import check_one_pass, is_on, trains_in_minibatches
from .._estimators.base import GraphEstimator
from .._estimators.docstrings import output_attributes
from .._estimators.examples import Call, FitRows, GivenRows
from .._estimators.run import Run
from .._estimators.training_files import TrainingFiles
from .._export.source import ExportSource
from .._optimizers.lbfgs import BaseOptimizer
from .._support.declared import documented
from .._support.typing import MatrixLike
from .._training.loop import Trainer
from ..adapters import LoRA
from ..losses import Loss, LossSource
from ..models import ModelSource
from ..schedules import Schedule
from .export import export_source_of_outputs
from .parameters import OUTPUTS
from .preparation import prepared_outputs
from .results import OutputResults

if TYPE_CHECKING:
    from typing_extensions import Self


@documented(attributes=output_attributes())
class OrtGradientMultiOutput(OutputResults, TrainingFiles, GraphEstimator):
    """Train several outputs of an ONNX graph together, each by a loss of its own.

    Minimizes the sum of the losses, ``sum_j loss_weights[j] * loss_j``; each is the mean over the rows, weighted by
    the sample weights of its output. ``y`` and the predictions are dicts by output: of labels for outputs with a loss
    for classification, of numbers for those with a loss for regression.

    {parameters}
    {attributes}

    See Also
    --------
    OrtGradientClassifier : Train one output for classification.
    OrtGradientRegressor : Train one output for regression.

    Notes
    -----
    A row of weight zero in an output has no label there, and what ``y`` holds for it is not read: rows with some of the
    labels are trained by ``sample_weight={"size": size_is_known}``. With different weights of the outputs, the factor
    of each is fixed for all rows of a call, so that minibatches estimate the sum of the means without bias; the penalty
    is divided by the number of rows with any label.

    ``predict`` returns a dict, so scikit-learn's meta-estimators that read predictions do not apply. Searches and
    cross-validation do, with ``y`` as :class:`Inputs` or as a data frame: they call :meth:`score`.

    Examples
    --------
    >>> import onnx
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientMultiOutput
    >>> graph = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ... net (float[N, 3] X) => (float[N, 3] species, float[N, 1] width)
    ... <float[3, 3] A = {1, 0, 0, 0, 1, 0, 0, 0, 1}, float[3] a = {0, 0, 0}, float[3, 1] B = {0, 0, 0}>
    ... { species = Gemm(X, A, a)  width = MatMul(X, B) }''')
    >>> X, species = load_iris(return_X_y=True)
    >>> X, y = X[:, :3], {"species": species, "width": X[:, 3]}
    >>> estimator = OrtGradientMultiOutput(
    ...     graph, loss={"species": "log_loss", "width": "huber"}, loss_weights={"width": 2.0},
    ...     learning_rate_init=0.05, max_iter=500, tol=1e-3, random_state=0,
    ... ).fit(X, y)
    >>> all(score > 0.9 for score in estimator.output_scores(X, y).values())
    True
    >>> [output.name for output in estimator.to_onnx().graph.output]
    ['species_label', 'species_probabilities', 'width']
    """

    __module__ = "onnxtrain_sklearn"  # the path by which pickles name it

    loss: Any
    loss_weights: Mapping[str, float] | None
    output_kind: Any
    class_axis: int | str | Mapping[str, int | str]
    ignore_label: Any
    class_weight: Any
    classes_: Any
    output: None = None
    finetune: None = None
    declared = OUTPUTS

    def __init__(
        self,
        model: ModelSource = None,
        *,
        loss: Mapping[str, str | Loss | LossSource] | None = None,
        loss_weights: Mapping[str, float] | None = None,
        optimizer: str | BaseOptimizer = "adamw",
        learning_rate_init: float = 0.001,
        learning_rate: str | Schedule = "constant",
        batch_size: int | str = "auto",
        max_iter: int = 200,
        shuffle: bool = True,
        drop_last: bool = False,
        alpha: float = 0.0,
        l1_ratio: float = 0.0,
        max_grad_norm: float | None = None,
        learning_rate_factors: Mapping[str, float] | None = None,
        weight_decay_factors: Mapping[str, float] | None = None,
        weight_decay_schedule: str | Schedule = "constant",
        dropout_schedule: str | Schedule = "constant",
        ema_decay: float | None = None,
        accumulate: int = 1,
        trainable: str | Sequence[str] | Callable[[str, np.ndarray], bool] = "all",
        adapters: LoRA | None = None,
        output_kind: str | Mapping[str, str] = "auto",
        training_mode: bool = False,
        class_axis: int | str | Mapping[str, int | str] = "auto",
        ignore_label: int | float | str | Mapping[str, object] | None = -100,
        class_weight: str | Mapping[str, object] | None = None,
        checkpoint_activations: bool = False,
        sparse_updates: str = "exact",
        tol: float = 1e-4,
        n_iter_no_change: float = 10,
        early_stopping: bool | str = False,
        scoring: Callable[..., float] | None = None,
        validation_fraction: float = 0.1,
        callbacks: Sequence[object] | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = 0,
        engine: str = "auto",
        device: str = "cpu",
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        session_options: Mapping[str, object] | None = None,
    ) -> None:
        self._store(vars())

    def fit(
        self,
        X: MatrixLike,
        y: MatrixLike,
        sample_weight: ArrayLike | Mapping[str, ArrayLike | None] | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: MatrixLike | None = None,
        sample_weight_val: ArrayLike | Mapping[str, ArrayLike | None] | None = None,
        classes: Mapping[str, ArrayLike] | None = None,
    ) -> Self:
        """Train the outputs for up to ``max_iter`` epochs.

        Parameters
        ----------
        X : as in :meth:`OrtGradientRegressor.fit`
        y : dict of str to array-like, Inputs or data frame
            The targets of each output that has a loss, as in :meth:`OrtGradientClassifier.fit` and
            :meth:`OrtGradientRegressor.fit`. A data frame has a column named after each output, or columns that begin
            with its name.
        sample_weight : array-like of shape (n_samples,), or dict of str to array-like, default=None
            Weight of each row in the mean losses of all outputs, or by output, None for one; >= 0. Targets of weight
            zero are not read. None: one.
        X_val, y_val, sample_weight_val : like the ones above, default=None
            Validation data, scored after each epoch; with ``early_stopping`` they replace the split.
        classes : dict of str to array-like, default=None
            All labels of outputs for which ``y`` lacks some, sorted.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data are invalid; the estimator is unchanged.
        ModelError
            The graph cannot be read, or cannot be trained on these data.
        DivergenceError
            The loss became NaN or infinite; the estimator holds the last finite weights.
        """
        known: Any = classes
        training: Any = (X, y, sample_weight)
        rows = FitRows(training, cast(GivenRows, (X_val, y_val, sample_weight_val)), (None, None, None))
        return self._train(rows.call(known, resume=is_on(self.warm_start)))

    @available_if(trains_in_minibatches)
    def partial_fit(
        self,
        X: MatrixLike,
        y: MatrixLike,
        classes: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | Mapping[str, ArrayLike | None] | None = None,
    ) -> Self:
        """Train for one pass over the data, continuing from the last call.

        Parameters
        ----------
        X, y, sample_weight : dict of str to array-like
            As in :meth:`fit`.
        classes : dict of str to array-like, default=None
            All labels of all calls, by output with labels; needed at the first call, optional later.

        Returns
        -------
        self
        """
        check_one_pass(self)
        by_output, known, weights = cast(tuple[Any, Any, Any], (y, classes, sample_weight))
        return self._train(Call(X, by_output, weights, known, resume=True, one_pass=True))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def _export_source(self, run: Run, batch_size: int | None, target: str) -> ExportSource:
        return export_source_of_outputs(self, run, batch_size, target)

    def _prepare(self, call: Call) -> tuple[Run, Trainer]:
        run, trainer = prepared_outputs(self, call)
        return self._announced(run, vars(self).get("_run") if call.resume else None), trainer
