"""Converters of our own, of estimators that skl2onnx has none for, or a wrong one."""
