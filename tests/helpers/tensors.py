"""Files of tensors in the format of safetensors, as another program writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

TYPES = {"float32": "F32", "float64": "F64", "int64": "I64"}


def safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a header of JSON behind its length in eight bytes, and the numbers of the arrays one after the other."""
    header, content = {}, b""
    for name, array in arrays.items():
        place = [len(content), len(content) + array.nbytes]
        header[name] = {"dtype": TYPES[str(array.dtype)], "shape": list(array.shape), "data_offsets": place}
        content += np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content
