"""What the installed onnxruntime supports: versions of ONNX, and the locale in which it lower-cases text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import onnx_ir as ir

from . import sessions
from .devices import resolve_device
from .distributions import version


@dataclass(frozen=True)
class Limits:
    """The newest versions of ONNX that an onnxruntime supports.

    Attributes
    ----------
    runtime : str
        Name and version of the onnxruntime, for messages.
    opset, ml_opset : int
        Versions of the default domain and of the domain ai.onnx.ml.
    ir_version : int
        Version of the file format.
    """

    runtime: str
    opset: int
    ml_opset: int
    ir_version: int


OLDEST = {"opset": 21, "ml_opset": 5, "ir_version": 10}
"""The versions that every supported onnxruntime accepts."""


def limits_for(**versions: int) -> Limits:
    """Return what bounds a graph of these versions, named as in :class:`Limits`: :func:`limits`, if it may matter.

    Most graphs have versions that every onnxruntime accepts, and finding out the newest ones takes a quarter of the
    first ``fit`` of a process.
    """
    matters = any(version > OLDEST[name] for name, version in versions.items())
    return limits() if matters else Limits(_runtime_name(), **OLDEST)


def _runtime_name() -> str:
    return f"onnxruntime {version()}"


@cache
def limits() -> Limits:
    """Return what the installed onnxruntime supports, found once per process by loading graphs of one node.

    onnxruntime refuses what is newer than the ONNX release that it was built with, and has no function that tells.
    """
    return Limits(
        runtime=_runtime_name(),
        opset=_newest(OLDEST["opset"], lambda opset: _loads(opset=opset)),
        ml_opset=_newest(OLDEST["ml_opset"], lambda ml_opset: _loads(ml_opset=ml_opset)),
        ir_version=_newest(OLDEST["ir_version"], lambda ir_version: _loads(ir_version=ir_version)),
    )


def _newest(oldest: int, accepts: Callable[[int], bool]) -> int:
    """Return the newest version without a gap since ``oldest``, which every supported onnxruntime accepts."""
    return next(version for version in range(oldest, 1000) if not accepts(version + 1))


def _loads(*, opset: int = 18, ml_opset: int = 3, ir_version: int = 8) -> bool:
    x = ir.val("x", ir.DataType.FLOAT, (1,))
    imports = {"": opset, "ai.onnx.ml": ml_opset}
    return _runs(ir.node("Relu", [x], name="relu"), imports, ir_version)


@cache
def text_locale() -> str | None:
    """Return a locale in which StringNormalizer can lower-case on this machine; None: its default locale."""
    for locale in (None, "C.UTF-8"):
        settings = {"case_change_action": "LOWER"} | ({} if locale is None else {"locale": locale})
        text = ir.val("x", ir.DataType.STRING, (1,))
        if _runs(ir.node("StringNormalizer", [text], settings, name="lower"), {"": 18}, 8):
            return locale
    return None


def _runs(node: ir.Node, imports: dict[str, int], ir_version: int) -> bool:
    """Whether the installed onnxruntime loads a graph of this node; its output has the type and shape of its input."""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    y.name, y.type, y.shape = "y", x.type, x.shape
    model = ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports=imports, name="g"), ir_version=ir_version)
    try:
        sessions.create_session(ir.to_proto(model).SerializeToString(), resolve_device())
    except Exception:  # each release has another class for it
        return False
    return True
