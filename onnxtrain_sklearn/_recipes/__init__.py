"""Estimators for raw tables: preprocessing, a network with its training recipe, and one ONNX file with both."""
