"""The engine `ort-training`: onnxruntime-training's gradient builder, restricted to verified gradients."""
