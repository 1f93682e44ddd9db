"""Settings that must be in place before scikit-learn and SciPy are imported."""

from __future__ import annotations

import os

# scikit-learn's common checks skip those of the array API unless SciPy was imported with it.
os.environ["SCIPY_ARRAY_API"] = "1"
