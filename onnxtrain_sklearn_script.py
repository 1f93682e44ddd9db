"""The console script ``onnxtrain-sklearn``. It is outside the package, to answer where the package cannot be imported.

Without onnxruntime, and with several distributions of it, importing the package raises an error. The script says why in
a sentence, and ``doctor`` lists what is installed all the same.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata


def main() -> int:
    """Run the command line, and return its exit status."""
    try:
        from onnxtrain_sklearn._cli.program import main as run
    except ImportError as error:
        return _explain(error, sys.argv[1:])
    return run()


def _explain(error: ImportError, arguments: list[str]) -> int:
    """Say why the package cannot be imported; for ``doctor`` with what is installed."""
    text = " ".join(str(error).split())
    print(f"error: {text}", file=sys.stderr)
    if arguments[:1] != ["doctor"]:
        return 1
    found = {
        name: one.version
        for one in metadata.distributions()
        if (name := (one.metadata["Name"] or "").lower()).startswith("onnxruntime")
    }
    machine = {"python": platform.python_version(), "platform": platform.platform()}
    if "--json" in arguments:
        told = {"type": type(error).__name__, "message": text}
        runtime = {"distributions": found, "mixed": len(found) > 1}
        print(json.dumps({"command": "doctor", "succeeded": False, **machine, "onnxruntime": runtime, "error": told}))
    else:
        listed = ", ".join(f"{name} {version}" for name, version in found.items()) or "none"
        print(f"Python {machine['python']} on {machine['platform']}\ndistributions of onnxruntime: {listed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
