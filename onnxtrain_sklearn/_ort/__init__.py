"""The border to onnxruntime and llvmlite: what is installed, devices, sessions, and memory bound to them."""
