"""The engine `portable`: reverse-mode differentiation that emits standard ONNX operators."""
