"""Numbers, texts and operators that mutations draw from."""

from __future__ import annotations

import onnx
import onnx.helper
import onnx.numpy_helper

NUMBERS = [0, 1, -1, 2, 3, 7, 8, 16, 255, 10**6, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan")]
WORDS = [
    "",
    "x",
    "X",
    "Y",
    "W",
    "X_grad",
    "W_grad",
    "b_grad",
    "onnxtrain/y",
    "onnxtrain/loss",
    "loss",
    "label",
    "predict/Gather",
    "gradient/constant",
    "train/constant",
    "probabilities",
    "variable",
    "zero",
    "by_column/MatMul",
    "é",
    "a\0b",
    "a b",
    "../x",
    "/",
    "{}",
    "%s",
    "n" * 3000,
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "own",
    "ai.onnx.training",
    "ai.onnx.preview.training",
    "com.microsoft.nchwc",
]


OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
