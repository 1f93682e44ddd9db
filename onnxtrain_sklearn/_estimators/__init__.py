"""The estimators: scikit-learn's conventions around a training run, and the plug-in for skl2onnx."""
