"""Training graphs as files that any onnxruntime trains."""
