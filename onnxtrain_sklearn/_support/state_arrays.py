"""Arrays of a state by name, with the constants of the graph that they were trained in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class StateArrays(dict[str, np.ndarray]):
    """A dict of arrays that knows which constants the graph has beside them.

    Weights that were trained behind one scale of the inputs predict something else behind another one.

    Attributes
    ----------
    constants : dict or None
        The constants by name, as the manifest of training graphs has them; None: not known.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], constants: Mapping[str, Any] | None) -> None:
        super().__init__(arrays)
        self.constants = constants

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self), self.constants)
