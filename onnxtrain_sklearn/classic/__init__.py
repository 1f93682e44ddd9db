"""The classic low-level training interfaces of onnxruntime and onnxcustom, on both engines and without PyTorch."""
