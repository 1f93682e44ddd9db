"""The engine `portable`: a reverse pass of our own that emits plain ONNX operators."""
