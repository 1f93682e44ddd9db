"""Graphs as onnx-ir models: queries, edits, opsets, files, limits, shapes."""
