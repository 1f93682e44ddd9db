"""Operators of ai.onnx.ml, rewritten as operators of the default domain that have gradients."""
