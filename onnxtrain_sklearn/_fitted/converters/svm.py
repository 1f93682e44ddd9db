"""Converters of LIBSVM's machines by the operators of ai.onnx.ml, which keep LIBSVM's layout of the numbers.

The operators are rewritten afterwards. Their numbers become parameters there, each of the attribute that is named here.
A positive score of a pair of classes speaks for its first class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import scipy.sparse as sp
from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

from ..._graph.cast_types import FLOAT
from ..._support.typing import Estimator, SparseLike
from .context import Converter, Source, labels, of_rows
from .one_vs_one import decision_of_pairs
from .trees import Attributes

CONVERTED_KERNELS = ("linear", "poly", "rbf", "sigmoid")


def _machine_regression(s: Source) -> ir.Value:
    """The sum of kernels, for detectors of outliers too: their ``offset_`` is the negative of ``intercept_``."""
    model = s.estimator
    attributes = _machine_kernel(model) | _coefficients(model, 1.0) | {"n_supports": len(model.support_vectors_)}
    (score,) = s.ml_operator("SVMRegressor", **attributes)
    _note_attributes(s, score, "same")
    return score


def _machine_classifier(s: Source) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    classes = len(model.classes_)
    label, scores = _machine(s)
    if len(model.probA_) or (classes > 2 and model.decision_function_shape == "ovo"):
        return label, scores
    if classes == 2:  # LIBSVM's first column speaks for the second class
        score = op.Gather(scores, np.array([0]), axis=1)
        return label, op.Concat(op.Neg(score), score, axis=1)
    first = op.Cast(op.Less(scores, 0.0), to=FLOAT)
    return label, decision_of_pairs(op, first, op.Neg(scores), classes)


def _machine(s: Source) -> Sequence[ir.Value]:
    """Return the label that most pairs vote for, and probabilities or the scores of the pairs."""
    model = s.estimator
    names = labels(model)
    kind = "classlabels_strings" if names.dtype.kind == "U" else "classlabels_ints"
    sign = -1.0 if len(names) == 2 else 1.0  # scikit-learn turns the sign of both for two classes
    attributes = _machine_kernel(model) | _coefficients(model, sign) | {"vectors_per_class": model.n_support_.tolist()}
    if len(model.probA_):
        attributes |= {"prob_a": _floats(model.probA_), "prob_b": _floats(model.probB_)}
    label, scores = s.ml_operator("SVMClassifier", outputs=2, **attributes, **{kind: names.tolist()})
    label.dtype = ir.DataType.STRING if names.dtype.kind == "U" else ir.DataType.INT64
    _note_attributes(s, scores, "negated" if len(names) == 2 else "same")
    return label, scores


def _note_attributes(s: Source, value: ir.Value, form: str) -> None:
    """Note which attribute each number of the operator is of; a machine fitted to sparse rows has sparse ones."""
    for role, attribute in (("coef0", "coef0"), ("gamma", "_gamma"), ("prob_a", "_probA"), ("prob_b", "_probB")):
        s.hold(value, role, attribute)
    s.hold(value, "rho", "intercept_", form)
    if not sp.issparse(s.estimator.dual_coef_):
        s.hold(value, "dual_coef", "dual_coef_", form)
        s.hold(value, "support_vectors", "support_vectors_")


def _machine_kernel(model: Estimator) -> Attributes:
    return {
        "kernel_params": [float(model._gamma), float(model.coef0), float(model.degree)],
        "kernel_type": model.kernel.upper(),
        "support_vectors": _floats(model.support_vectors_),
    }


def _coefficients(model: Estimator, sign: float) -> Attributes:
    return {"coefficients": _floats(sign * model.dual_coef_), "rho": _floats(sign * model.intercept_)}


def _floats(numbers: np.ndarray | SparseLike) -> list[float]:
    dense = numbers if isinstance(numbers, np.ndarray) else numbers.toarray()
    floats: list[float] = np.asarray(dense, np.float32).ravel().tolist()
    return floats


def _supports_kernel(model: Estimator) -> bool:
    return model.kernel in CONVERTED_KERNELS


CONVERTERS: dict[type, Converter] = {
    NuSVC: Converter(_machine_classifier, takes=_supports_kernel),
    NuSVR: of_rows(_machine_regression, lambda model: 1, _supports_kernel),
    OneClassSVM: of_rows(_machine_regression, lambda model: 1, _supports_kernel),
    SVC: Converter(_machine_classifier, takes=_supports_kernel),
    SVR: of_rows(_machine_regression, lambda model: 1, _supports_kernel),
}
