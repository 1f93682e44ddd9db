"""The page of examples/web on the site, with the files that it loads, at the paths that it knows.

``make docs WEB=1`` installs onnxruntime-web from npm first. Without it, the site has no such page and no link to it.
"""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
RUNTIME = Path("build", "web", "node_modules", "onnxruntime-web", "dist")
FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
TAG = "browser_page"


def copy(app: Sphinx, exception: Exception | None) -> None:
    """Copy page, module and runtime, and export the digits and the untrained network."""
    if exception is not None or app.builder.name != "html" or not app.tags.has(TAG):
        return
    site = Path(app.outdir)
    for folder in ("examples/web", "js"):
        shutil.copytree(ROOT / folder, site / folder, dirs_exist_ok=True)
    (site / RUNTIME).mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(ROOT / RUNTIME / name, site / RUNTIME / name)
    exported = runpy.run_path(str(ROOT / "examples" / "node" / "make_digits.py"))
    exported["main"](site / "build" / "web" / "page")


def setup(app: Sphinx) -> dict[str, bool]:
    """Declare the tag of the link to the page where the runtime is installed."""
    if all((ROOT / RUNTIME / name).exists() for name in FILES):
        app.tags.add(TAG)
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
