"""Trained ONNX graphs: their output before training, and fitted models read from ONNX files."""
