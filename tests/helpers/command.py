"""The program ``onnxtrain-sklearn`` as a function of its arguments, which returns the exit status."""

from __future__ import annotations

from onnxtrain_sklearn.__main__ import main

__all__ = ["main"]
