"""The estimators: scikit-learn's interface to a training run, and their converters for skl2onnx."""
