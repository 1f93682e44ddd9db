"""The engine `ort-training`: onnxruntime-training's gradient builder, held to what is proven right."""
