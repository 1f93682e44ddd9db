"""Graphs as `onnx_ir` models: emitting nodes, and the border to protobuf."""
