"""Scikit-learn's common checks of the estimator of several outputs, whose y and predictions they take as columns."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.estimator_checks import estimator_checks_generator

from onnxtrain_sklearn import OrtGradientMultiOutput
from onnxtrain_sklearn.graph import GraphBuilder

LOSSES = {"first": "squared_error", "second": "squared_error"}


def two_outputs(n_features: int):
    x = ir.val("X", ir.DataType.FLOAT, ("N", n_features))
    op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="g"), constant_nodes=True)
    for name in LOSSES:
        arrays = np.zeros((n_features, 1), np.float32), np.zeros(1, np.float32)
        weight, bias = (op.parameter(f"{name}.{i}", array) for i, array in enumerate(arrays))
        found = op.Add(op.MatMul(x, weight), bias)
        found.name, found.dtype, found.shape = name, ir.DataType.FLOAT, ir.Shape(["N", 1])
        op.graph.outputs.append(found)
    return ir.to_proto(ir.Model(op.graph, ir_version=8))


class Columns(MultiOutputMixin, RegressorMixin, OrtGradientMultiOutput):
    """A linear graph of two outputs, made in ``fit``; a single column is the target of both."""

    __module__ = __name__

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None):
        if y is None:
            return super().fit(X, y)
        columns = np.asarray(y)
        columns = columns.reshape(len(columns), -1)
        self._is_single = columns.shape[1] == 1
        columns = np.column_stack([columns, columns])[:, :2] if self._is_single else columns[:, :2]
        shape = (X if hasattr(X, "shape") else np.asarray(X)).shape
        self.model = two_outputs(shape[1] if len(shape) > 1 else 1)
        return super().fit(X, dict(zip(LOSSES, columns.T, strict=True)), sample_weight)

    def predict(self, X: ArrayLike) -> np.ndarray:
        found = np.column_stack(list(super().predict(X).values()))
        return found[:, 0] if self._is_single else found

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        return RegressorMixin.score(self, X, y, sample_weight)

    @property
    def partial_fit(self):
        raise AttributeError("the graph is made in fit")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output, tags.regressor_tags.poor_score = True, True
        return tags


OWN = {
    "check_estimators_overwrite_params": "the class of this test makes its graph in fit",
    "check_dont_overwrite_parameters": "the class of this test makes its graph in fit",
    "check_regressor_multioutput": "the class of this test predicts two columns",
}
CHECKS = estimator_checks_generator(
    Columns(loss=LOSSES, max_iter=20, learning_rate_init=0.05, random_state=0), expected_failed_checks=OWN, mark="xfail"
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_common_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_numbers_alone_have_no_scores_of_classes():
    model = OrtGradientMultiOutput(two_outputs(2), loss=LOSSES, max_iter=1)
    for one in (model, model.fit(np.eye(2, dtype=np.float32), dict.fromkeys(LOSSES, np.arange(2.0)))):
        assert not hasattr(one, "decision_function")
        assert not hasattr(one, "predict_proba")
