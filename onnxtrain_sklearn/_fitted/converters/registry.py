"""Which estimators have a converter of ours."""

from __future__ import annotations

from ..._support.typing import Estimator
from . import (
    calibration,
    ensembles,
    gaussian_process,
    generative,
    kernel_approximation,
    linear,
    multioutput,
    neighbors,
    networks,
    outlier_detection,
    preprocessing,
    projections,
    scalers,
    transformed_target,
)
from .context import Converter

CONVERTERS: dict[type, Converter] = {
    **calibration.CONVERTERS,
    **outlier_detection.CONVERTERS,
    **ensembles.CONVERTERS,
    **kernel_approximation.CONVERTERS,
    **preprocessing.CONVERTERS,
    **linear.CONVERTERS,
    **neighbors.CONVERTERS,
    **multioutput.CONVERTERS,
    **gaussian_process.CONVERTERS,
    **generative.CONVERTERS,
    **networks.CONVERTERS,
    **projections.CONVERTERS,
    **scalers.CONVERTERS,
    **transformed_target.CONVERTERS,
}
"""The converters of our own by class; they come before skl2onnx's."""


def converter_of(estimator: Estimator) -> Converter | None:
    """Return the converter for an estimator, None where it is left to skl2onnx."""
    found = CONVERTERS.get(type(estimator))
    return found if found is not None and found.takes(estimator) else None
