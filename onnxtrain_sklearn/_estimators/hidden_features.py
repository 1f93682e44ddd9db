"""Features of a trained network: the values of a hidden layer, by scikit-learn's methods for transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from sklearn.base import TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._data.inputs import prediction_type
from .._inference.predictor import Predictor
from .._ir.edits import swap_initializers
from .._model.batch_axis import trace_rows
from .._model.heads import graph_of_features, has_hidden_layer, narrowest_layer
from .._model.modes import inference_form
from .._model.trainable import TrainableModel
from .._utils.typing import MatrixLike
from ..exceptions import ModelError
from ..losses.regression import reconstructs
from ..models import Linear, resolve_builder
from ..models.given import resolve_graph_model
from .examples import graph_inputs
from .fitted_state import FittedState, sparse_inputs
from .streams_predictions import reads_source

if TYPE_CHECKING:
    from .parameters import Parameters


def has_features(estimator: Parameters) -> bool:
    """Return True if the model has a hidden layer or a named value; else raise AttributeError."""
    state: FittedState | None = vars(estimator).get("_state")
    given = resolve_graph_model(estimator.model)
    if given.features is not None:
        return True
    if state is not None:
        found = (
            state.graph.members is None
            and not state.snapshots
            and has_hidden_layer(_scores(state.graph.model, state.graph.scores))
        )
    else:
        builder = resolve_builder(estimator.model)
        is_linear = isinstance(builder, Linear) or not np.size(getattr(builder, "hidden_layer_sizes", 1))
        found = not is_linear and getattr(builder, "n_members", None) is None
    if not found:
        raise AttributeError(
            "transform is not available: the model has no hidden layer that is certain, or several networks. Name a "
            "value inside the graph: model=GraphModel(..., features=...)."
        )
    return True


class HiddenFeatures(TransformerMixin):
    """The methods of a transformer, for estimators that train one output of a graph."""

    model: Any
    loss: Any
    _state: FittedState

    def transform(self, X: MatrixLike) -> np.ndarray:
        """Return the values of a hidden layer, as features for another model.

        They are the input of the last layer, after its activation; with ``loss="reconstruction"`` the input of the
        narrowest one, the code of an autoencoder. ``GraphModel(model, features="...")`` names another value inside the
        graph. Models without a hidden layer lack this method.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory

        Returns
        -------
        ndarray of shape (n_samples, n_features_out)
            float32 if ``X`` is float32, else float64. Values of more axes are flattened to rows. A data frame after
            ``set_output(transform="pandas")``.

        Raises
        ------
        ModelError
            The named value is not in the graph, or its rows are not those of ``X``.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from onnxtrain_sklearn import MLP, OrtGradientRegressor
        >>> X, y = load_digits(return_X_y=True)
        >>> autoencoder = OrtGradientRegressor(MLP((32, 8, 32)), loss="reconstruction", tol=0.01, random_state=0)
        >>> model = make_pipeline(autoencoder, LogisticRegression(max_iter=1000)).fit(X, y)
        >>> model[:-1].transform(X).shape, model.score(X, y) > 0.8
        ((1797, 8), True)
        """
        check_is_fitted(self)
        if reads_source(X):
            raise TypeError("transform takes rows in memory: read the table first, a block at a time if it is large.")
        state = self._state
        columns = graph_inputs(self, X, state.graph.inputs_of_X, state.fitted, reset=False)
        sparse = sparse_inputs(columns)
        predictor = state.kept_predictor(
            ("features", *self._value_of_features()), sparse, lambda: self._predictor_of_features(state, sparse)
        )
        return predictor.run(columns).astype(prediction_type(X), copy=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        if not hasattr(self, "transform"):
            tags.transformer_tags = None
        return tags

    @available_if(has_features)
    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Return the names of the columns of :meth:`transform`: the name of the class in lower case, and a number.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        ndarray of str objects
        """
        check_is_fitted(self)
        name = type(self).__name__.lower()
        return np.array([f"{name}{i}" for i in range(self._n_features())], object)

    def _n_features(self) -> int:
        """Return the number of columns of :meth:`transform`."""
        # no property: ``dir`` computes all of them
        state = self._state
        (output,) = _features_model(state.graph, {}, *self._value_of_features()).graph.outputs
        width = None if output.shape is None else output.shape[-1]
        if not isinstance(width, int):
            raise ModelError(
                f"The number of features is not known: value {output.name!r} has the shape {output.shape}."
            )
        return width

    def _value_of_features(self) -> tuple[str | None, bool]:
        """Return the name of the value, if it is given, and whether it is the narrowest one by default."""
        return resolve_graph_model(self.model).features, reconstructs(self.loss)

    def _features_model(self) -> ir.Model:
        """Return the inference graph whose only output is the result of :meth:`transform`."""
        state = self._state
        if state.snapshots:
            raise ModelError("transform is for one network, and this estimator averages the snapshots of several.")
        return _features_model(state.deployed, state.weights(), *self._value_of_features())

    def _predictor_of_features(self, state: FittedState, sparse: tuple[str, ...]) -> Predictor:
        model = self._features_model()
        deployed = state.deployed
        return Predictor(
            model,
            state.device,
            state.session_options,
            width=1,
            sparse=sparse,
            rows_meet=lambda: bool(_meeting(deployed, model)),
            whole=state.graph.is_whole,
        )


# scikit-learn wraps these methods for ``set_output`` when the class is made. Around the wrapped methods,
# ``available_if`` still hides them from models without hidden layers.
for _method in ("transform", "fit_transform"):
    setattr(HiddenFeatures, _method, available_if(has_features)(getattr(HiddenFeatures, _method)))


def _features_model(graph: TrainableModel, weights: Any, name: str | None, narrowest: bool) -> ir.Model:
    """Return the inference graph whose output is the features."""
    model = inference_form(graph.model)
    swap_initializers(model.graph, weights)
    scores = _scores(model, graph.scores)
    chosen = narrowest_layer(scores) if narrowest and name is None else name
    found, _ = graph_of_features(model, chosen, scores, setting="features")
    if name is not None and not graph.is_whole and (node := _meeting(graph, found)).startswith("The value"):
        raise ModelError(f"features={name!r} names a value whose first axis is not that of the rows of X ({node}).")
    return found


def _scores(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in model.graph.outputs if value.name == name)


def _meeting(graph: TrainableModel, model: ir.Model) -> str:
    """Return where rows meet or may meet; empty if they do not."""
    return trace_rows(model.graph, [spec.name for spec in graph.inputs_of_X], model.graph.outputs).node
