"""Converters of linear projections: ``(X - mean_) @ components_.T``, whitened where that is set."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.random_projection import GaussianRandomProjection

from .context import Converter, Source, of_rows


def _centered(s: Source) -> ir.Value:
    op, model = s.op, s.estimator
    projected = _projected(s, op.Sub(s.x, s.parameter(model, "mean_")))
    if not model.whiten:
        return projected
    variance = s.parameter(model, "explained_variance_")
    return op.Div(projected, op.Max(op.Sqrt(variance), np.float32(np.finfo(np.float64).eps)))


def _uncentered(s: Source) -> ir.Value:
    return _projected(s, s.x)


def _projected(s: Source, x: ir.Value) -> ir.Value:
    return s.op.Gemm(x, s.parameter(s.estimator, "components_"), transB=1)


CONVERTERS: dict[type, Converter] = {
    GaussianRandomProjection: of_rows(_uncentered, lambda model: len(model.components_)),
    IncrementalPCA: of_rows(_centered, lambda model: len(model.components_)),
    NeighborhoodComponentsAnalysis: of_rows(_uncentered, lambda model: len(model.components_)),
    PCA: of_rows(_centered, lambda model: len(model.components_)),
    TruncatedSVD: of_rows(_uncentered, lambda model: len(model.components_)),
}
