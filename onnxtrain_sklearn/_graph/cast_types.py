"""Element types as the numbers that the attribute ``to`` of a Cast holds."""

from __future__ import annotations

import onnx_ir as ir

DOUBLE = int(ir.DataType.DOUBLE)
FLOAT = int(ir.DataType.FLOAT)
INT32 = int(ir.DataType.INT32)
INT64 = int(ir.DataType.INT64)
