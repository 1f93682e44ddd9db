"""Scikit-learn estimators that train any ONNX graph."""

__version__ = "0.1.0"
