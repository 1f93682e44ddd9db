"""``python -m onnxtrain_sklearn``: the command line."""

from __future__ import annotations

import sys

from ._cli.program import main

if __name__ == "__main__":
    sys.exit(main())
