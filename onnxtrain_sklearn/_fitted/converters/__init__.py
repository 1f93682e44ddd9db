"""Converters of fitted scikit-learn estimators that skl2onnx lacks or converts inexactly."""
