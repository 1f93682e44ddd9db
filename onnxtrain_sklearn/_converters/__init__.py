"""Converters of our own: of estimators for which skl2onnx has none, or one that loses the model or its gradient."""
