"""Graphs as onnx-ir models: the builder, queries and edits, the border to protobuf, the graph that is trained."""
