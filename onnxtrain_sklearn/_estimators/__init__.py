"""The estimators: scikit-learn's interface to a training run, and the plug-in for skl2onnx."""
