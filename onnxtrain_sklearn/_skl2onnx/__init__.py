"""Converters of skl2onnx for the estimators, so that pipelines and ensembles that contain them convert.

A converter has two parts: one declares the types and shapes of the outputs, the other adds nodes and weights to
skl2onnx's container. ``graphs`` holds what all converters share. ``meta_estimators`` converts those of scikit-learn
around the estimators, and ``registration`` enters all of them into skl2onnx's tables through
``_fitted/skl2onnx_bridge``.
"""
