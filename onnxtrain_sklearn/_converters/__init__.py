"""Converters of our own, in the place of those of skl2onnx that lose the gradient, or the model."""
