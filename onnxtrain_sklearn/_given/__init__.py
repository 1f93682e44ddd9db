"""Given ONNX graphs: what they compute before training, and what their files say of a fitted model."""
