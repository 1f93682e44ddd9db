"""The converters of this package by the class of the estimator."""

from __future__ import annotations

from ..._support.typing import Estimator
from . import (
    boosting,
    calibration,
    encoders,
    ensembles,
    forests,
    gaussian_process,
    generative,
    kernel_approximation,
    linear,
    multioutput,
    neighbors,
    networks,
    one_vs_one,
    outlier_detection,
    points,
    preprocessing,
    projections,
    scalers,
    svm,
    transformed_target,
)
from .context import Converter

CONVERTERS: dict[type, Converter] = {
    **boosting.CONVERTERS,
    **calibration.CONVERTERS,
    **encoders.CONVERTERS,
    **ensembles.CONVERTERS,
    **forests.CONVERTERS,
    **gaussian_process.CONVERTERS,
    **generative.CONVERTERS,
    **kernel_approximation.CONVERTERS,
    **linear.CONVERTERS,
    **multioutput.CONVERTERS,
    **neighbors.CONVERTERS,
    **networks.CONVERTERS,
    **one_vs_one.CONVERTERS,
    **outlier_detection.CONVERTERS,
    **points.CONVERTERS,
    **preprocessing.CONVERTERS,
    **projections.CONVERTERS,
    **scalers.CONVERTERS,
    **svm.CONVERTERS,
    **transformed_target.CONVERTERS,
}
"""The converters by class; each comes before the one of skl2onnx."""


def converter_of(estimator: Estimator) -> Converter | None:
    """Return the converter for an estimator, None where that of skl2onnx is used."""
    found = CONVERTERS.get(type(estimator))
    return found if found is not None and found.takes(estimator) else None
