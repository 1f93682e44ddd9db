"""The function ``export_training``, for estimators and models with one or several trained outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._estimators.base import GraphEstimator
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._utils.typing import MatrixLike
from ..losses import Loss, resolve_loss
from ..models import ModelLike
from .estimator import OrtGradientMultiOutput


def export_training(
    model: ModelLike | GraphEstimator,
    folder: str | os.PathLike[str],
    X: MatrixLike | None = None,
    y: MatrixLike | None = None,
    *,
    batch_size: int | None = None,
    form: str = "both",
    target: str = "any",
    loss: str | Loss | Mapping[str, str | Loss] = "log_loss",
    **parameters: Any,
) -> None:
    """Write a folder of graphs that train a model in any onnxruntime, in any language.

    Parameters
    ----------
    model : estimator, onnx.ModelProto, bytes, path, builder or fitted model
        An estimator of this package, whose method ``export_training`` is called, or a model that an estimator takes as
        ``model``.
    folder : str or path
        The folder to write.
    X, y : data as for ``fit``, default=None
        Some rows, from which the shapes of the graph and the classes follow. A fitted estimator needs none.
    batch_size : int, default=None
        Rows of a minibatch; None: the estimator's batch size.
    form : {"both", "step", "epoch"}, default="both"
        The training graphs to write.
    target : {"any", "web"}, default="any"
        Where the graphs must run. "web" includes WebGPU, which lacks float64.
    loss : str, Loss, or dict of str to str or Loss, default="log_loss"
        The loss for a model, which decides between classification and regression. If ``loss`` and ``y`` are dicts by
        output, these outputs are trained together, as by :class:`~onnxtrain_sklearn.OrtGradientMultiOutput`.
    **parameters : object
        Further parameters of the estimator that is made for a model, such as ``optimizer``.

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
    if isinstance(model, GraphEstimator):
        if parameters or loss != "log_loss":
            named = [*parameters, *(["loss"] if loss != "log_loss" else [])]
            raise TypeError(f"{named[0]} is a parameter of the estimator: set it there, by set_params.")
        model.export_training(folder, X, y, batch_size=batch_size, form=form, target=target)
        return
    if X is None or y is None:
        raise ValueError("X and y must be some rows of data: the shapes of the graph and the classes follow from them.")
    _estimator_for(model, loss, parameters).export_training(
        folder, X, y, batch_size=batch_size, form=form, target=target
    )


def _estimator_for(model: ModelLike, loss: str | Loss | Mapping[str, str | Loss], parameters: Any) -> GraphEstimator:
    if isinstance(loss, Mapping):
        return OrtGradientMultiOutput(model, loss=loss, **parameters)
    tasks = resolve_loss(loss).tasks
    if {"regression", "multiclass"} <= tasks:
        raise ValueError(f"{loss!r} is a loss for numbers and for classes: give an estimator in place of the model.")
    kind = OrtGradientRegressor if "regression" in tasks else OrtGradientClassifier
    return kind(model, loss=loss, **parameters)
