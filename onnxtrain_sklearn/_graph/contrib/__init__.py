"""Operators that onnxruntime's optimizers write (com.microsoft), lowered to standard operators."""
