"""The trainable graph: its parameters, scores, modes and heads."""
