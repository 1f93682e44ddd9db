"""Read models into onnx-ir and restore what exporters changed."""
