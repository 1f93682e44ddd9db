"""Operators that onnxruntime's optimizers write, in ONNX's own."""
