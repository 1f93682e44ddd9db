"""`export_training` as a function, for estimators and for models."""

from __future__ import annotations

import os
from typing import Any

from numpy.typing import ArrayLike

from .._support.typing import MatrixLike
from ..losses import Loss, resolve_loss
from ..models import ModelSource
from .classifier import OrtGradientClassifier
from .regressor import OrtGradientRegressor
from .training_files import TrainingFiles


def export_training(
    model: ModelSource | TrainingFiles,
    folder: str | os.PathLike[str],
    X: MatrixLike | None = None,
    y: ArrayLike | None = None,
    *,
    batch_size: int | None = None,
    form: str = "both",
    target: str = "any",
    loss: str | Loss = "log_loss",
    **parameters: Any,
) -> None:
    """Write a folder of graphs that train a model in any onnxruntime, in any language.

    Parameters
    ----------
    model : OrtGradientClassifier, OrtGradientRegressor, onnx.ModelProto, bytes, path, builder or fitted model
        An estimator, whose :meth:`~OrtGradientClassifier.export_training` is called, or what an estimator takes as
        ``model``.
    folder : str or path
        The folder to write.
    X, y : data as for ``fit``, default=None
        Some rows, for the shapes of the graph and the classes. A fitted estimator needs none.
    batch_size : int, default=None
        Rows of a minibatch; None: those of the estimator.
    form : {"both", "step", "epoch"}, default="both"
        The training graphs to write.
    target : {"any", "web"}, default="any"
        "web": the graphs run on WebGPU too, which lacks float64.
    loss : str or Loss, default="log_loss"
        The loss of a model, which decides between classification and regression.
    **parameters : object
        Further parameters of the estimator that a model gets, such as ``optimizer``.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_diabetes
    >>> from onnxtrain_sklearn import Linear, export_training, load_training
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = Linear().build(n_features=10, n_outputs=1, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_training(model, f"{folder}/linear", X, y, loss="squared_error", optimizer="sgd")
    ...     load_training(f"{folder}/linear").manifest["optimizer"]["name"]
    'sgd'
    """
    if isinstance(model, TrainingFiles):
        if parameters or loss != "log_loss":
            named = [*parameters, *(["loss"] if loss != "log_loss" else [])]
            raise TypeError(f"{named[0]} is a parameter of the estimator: set it there, by set_params.")
        model.export_training(folder, X, y, batch_size=batch_size, form=form, target=target)
        return
    if X is None or y is None:
        raise ValueError("X and y must be some rows of data: the shapes of the graph and the classes follow from them.")
    tasks = resolve_loss(loss).tasks
    if {"regression", "multiclass"} <= tasks:
        raise ValueError(f"{loss!r} is a loss for numbers and for classes: give an estimator in place of the model.")
    kind = OrtGradientRegressor if "regression" in tasks else OrtGradientClassifier
    kind(model, loss=loss, **parameters).export_training(folder, X, y, batch_size=batch_size, form=form, target=target)
