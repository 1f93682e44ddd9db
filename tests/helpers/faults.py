"""Faults in one part of the package, which a check in another part must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onnxtrain_sklearn._gradient import derivatives
from onnxtrain_sklearn._ir import opsets
from onnxtrain_sklearn._ort import gradient_builder
from onnxtrain_sklearn._pretrained import comparison, ml_conversion
from onnxtrain_sklearn._training import programs


def change_trained_graphs(monkeypatch: pytest.MonkeyPatch, change: Callable[[ir.Model], None]) -> None:
    """Change each graph where it is differentiated to be trained."""
    right = programs.differentiate_own

    def differentiate(graph: ir.Model, *arguments: Any) -> Any:
        change(graph)
        return right(graph, *arguments)

    monkeypatch.setattr(programs, "differentiate_own", differentiate)


def change_gradient_graphs(monkeypatch: pytest.MonkeyPatch, change: Callable[[ir.Model], None]) -> None:
    """Change each graph where the public gradient functions rewrite it."""
    monkeypatch.setattr(derivatives, "use_stable_forms", change)


def change_compared_files(monkeypatch: pytest.MonkeyPatch, change: Callable[[onnx.ModelProto], None]) -> None:
    """Compare each graph with a changed copy of the file, as if the file had been misread."""
    plain_session = comparison.plain_session

    def faulty_session(proto: onnx.ModelProto) -> Any:
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        change(changed)
        return plain_session(changed)

    monkeypatch.setattr(comparison, "plain_session", faulty_session)


def change_text_networks(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Change the network that is read from a file which takes text."""
    right = ml_conversion.trained_output_of

    def read(graph: Any, output: Any) -> Any:
        change(graph)
        return right(graph, output)

    monkeypatch.setattr(ml_conversion, "trained_output_of", read)


def shift_compared_outputs(monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    """Add a number to all outputs that are compared with those of a given file."""
    compared = comparison._compared_outputs

    def moved(*arguments: Any) -> Any:
        return [(what, numbers + shift, expected) for what, numbers, expected in compared(*arguments)]

    monkeypatch.setattr(comparison, "_compared_outputs", moved)


def keep_operators_of_old_opsets(monkeypatch: pytest.MonkeyPatch, newest: int) -> None:
    """Read operators of older opsets as those of ``newest``, though ONNX has changed what they compute."""
    monkeypatch.setattr(opsets, "_changes", lambda *_: False)
    monkeypatch.setattr(opsets, "MIN_OPSET", newest)


def fail_gradient_builder(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """Let the gradient builder of onnxruntime-training raise an error."""

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError(message)

    monkeypatch.setattr(gradient_builder, "build_gradient_graph", fail)
