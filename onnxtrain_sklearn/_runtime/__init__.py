"""The border to onnxruntime: what is installed, what it supports, devices, sessions, and memory bound to them."""
