"""Which estimators have a converter of ours."""

from __future__ import annotations

from typing import Any

from . import calibration, detectors, ensembles, expansions, features, linear, nearest, outputs, processes, targets
from .source import Converter

CONVERTERS: dict[type, Converter] = {
    **calibration.CONVERTERS,
    **detectors.CONVERTERS,
    **ensembles.CONVERTERS,
    **expansions.CONVERTERS,
    **features.CONVERTERS,
    **linear.CONVERTERS,
    **nearest.CONVERTERS,
    **outputs.CONVERTERS,
    **processes.CONVERTERS,
    **targets.CONVERTERS,
}
"""The converters of our own by class; they come before skl2onnx's."""


def converter_of(estimator: Any) -> Converter | None:
    """Return the converter for an estimator, None where it is left to skl2onnx."""
    found = CONVERTERS.get(type(estimator))
    return found if found is not None and found.takes(estimator) else None
