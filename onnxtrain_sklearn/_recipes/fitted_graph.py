"""The graph of a fitted recipe: it predicts, is given away by ``to_onnx``, and is what pickles hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from .._estimators.copies import resumed_device
from .._inference.predictor import Predictor, prediction_graph
from .._runtime import sessions
from .._runtime.devices import Device
from .._support.typing import MatrixLike
from .preprocessing import Preprocessing
from .raw_table import read_table


class FittedGraph(BaseEstimator):
    """An estimator that predicts by one graph, which takes the columns of a raw table."""

    _graph: bytes
    _inputs: Preprocessing
    _device: Device
    _predictors: dict[int, Predictor]

    def _predict(self, X: MatrixLike, output: int) -> np.ndarray:
        """Return an output of the graph for the rows of a table."""
        check_is_fitted(self)
        table = read_table(self, X, reset=False)
        rows = len(table)
        # onnxruntime multiplies one row alone by another kernel, whose last bit differs: two rows are as any others.
        columns = self._inputs.columns(table.rows(np.zeros(2, int)) if rows == 1 else table)
        key = sessions.forks()
        if key not in self._predictors:
            graph = vars(self).get("_prediction") or prediction_graph(ir.from_proto(self.to_onnx()))
            self._predictors[key] = Predictor(graph, self._device, None, width=self._inputs.width)
        return self._predictors[key].run(columns, output=output)[:rows]

    def to_onnx(self) -> onnx.ModelProto:
        """Return the graph that predicts from the raw table.

        Returns
        -------
        onnx.ModelProto
            Preprocessing, networks and their mean. A table of numbers is one input ``X`` of shape (N, n_features);
            missing numbers are NaN. A table with text has an input of shape (N, 1) for each column, by its name: text
            as strings, all others as float32; missing text is the empty string. The outputs are those of
            :meth:`predict`: ``variable`` for regression, ``label`` and ``probabilities`` for classification.
        """
        check_is_fitted(self)
        return onnx.load_model_from_string(self._graph)

    @property
    def model_(self) -> onnx.ModelProto:
        """The graph that predicts, as ``to_onnx()`` returns it."""
        return self.to_onnx()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        kept = {name: value for name, value in state.items() if name != "_prediction"}  # the bytes are in _graph
        return {**kept, "_predictors": {}} if "_predictors" in kept else kept

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy; if its device is missing, it continues on the CPU."""
        super().__setstate__(state)
        if "_device" in vars(self):
            self._device = resumed_device(self, self._device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_graph")
