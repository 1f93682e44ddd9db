"""ONNX graphs as machine code: their nodes become loops in LLVM's assembly language."""
