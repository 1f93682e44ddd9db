"""Node, packages of npm and a browser, where the tests of JavaScript find them.

The environment variable ONNXTRAIN_WEB names the folder that ``python -m tests.web`` sets up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("ONNXTRAIN_WEB", "build/web")).resolve()
PACKAGES = FOLDER / "node_modules"
RUNTIMES = {"onnxruntime-node": "dist/index.js", "onnxruntime-web": "dist/ort.node.min.js"}
PUPPETEER = PACKAGES / "puppeteer-core" / "lib" / "esm" / "puppeteer" / "puppeteer-core.js"
TYPESCRIPT = PACKAGES / "typescript" / "bin" / "tsc"
OTHERS = {"deno": ("@deno/*/deno", "run", "-A"), "bun": ("@oven/bun-*/bin/bun", "run")}
HEADERS = FOLDER / "include"
OLDEST_NODE = 18
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
DOWNLOADED = (
    "ms-playwright/chromium-*/chrome-linux*/chrome",
    "ms-playwright/chromium_headless_shell-*/chrome-*/*headless*shell",
    "puppeteer/chrome/*/chrome-linux64/chrome",
    "puppeteer/chrome-headless-shell/*/*/chrome-headless-shell",
)


def node(folder: Path = FOLDER) -> str | None:
    """Return the program of Node, of the machine or of ``folder``; None where there is none that is new enough."""
    return next((found for found in _programs(folder) if _version_of_node(found) >= OLDEST_NODE), None)


def _programs(folder: Path) -> Iterator[str]:
    for found in (shutil.which("node"), shutil.which("node", path=str(folder / "python" / "bin"))):
        if found is not None:
            yield found


def _version_of_node(program: str) -> int:
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
        return int(text.removeprefix("v").split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def chromium(folder: Path = FOLDER) -> str | None:
    """Return the program of a browser: the one CHROMIUM names, of the machine, downloaded earlier, of ``folder``."""
    if os.environ.get("CHROMIUM"):
        return os.environ["CHROMIUM"]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    downloaded = (str(path) for pattern in DOWNLOADED for path in sorted(cache.glob(pattern)))
    own = folder / "chromium" / "chromium"
    found = (*map(shutil.which, BROWSERS), *downloaded, str(own) if own.exists() else None)
    return next((program for program in found if program is not None), None)


def required_node() -> str:
    """Return the program of Node; skip the test where there is none."""
    found = node()
    if found is None:
        pytest.skip("needs Node: make test-web")
    return found


def engine(name: str) -> list[str]:
    """Return the command that runs a module in Node, Deno or Bun; skip the test where it is not there."""
    if name == "node":
        return [required_node()]
    pattern, *options = OTHERS[name]
    found = sorted(PACKAGES.glob(pattern))
    if not found:
        pytest.skip(f"needs {name}: make test-web")
    return [str(found[0]), *options]


def module(runtime: str) -> str:
    """Return the path of a runtime that npm installed; skip the test where it is not."""
    path = PACKAGES / runtime / RUNTIMES[runtime]
    if not path.exists():
        pytest.skip(f"needs the npm package {runtime}: make test-web")
    return str(path)


def in_node(folder: Path, program: str, runtime: str = "onnxruntime-node") -> list[str]:
    """Run lines of JavaScript, which have ``ort`` and ``file(name)`` of the folder; return what they print.

    Where the folder has training graphs, in ``graphs``, they have ``trainer`` too, whose state is written at the end.
    """
    head = f"""
import * as ort from {json.dumps(module(runtime))};
import {{ readFile, writeFile }} from "node:fs/promises";
import {{ Trainer, generator }} from {json.dumps(str(ROOT / "js" / "onnxtrain.mjs"))};
const file = async (name) => readFile({json.dumps(str(folder))} + "/" + name);
const floats = async (name) => new Float32Array(new Uint8Array(await file(name)).buffer);
"""
    end = ""
    if (folder / "graphs").exists():
        head += 'const trainer = await Trainer.load(ort, (name) => file("graphs/" + name));\n'
        end = f"await writeFile({json.dumps(str(folder / 'trained.safetensors'))}, trainer.saveState());"
    (folder / "program.mjs").write_text(head + program + end)
    command = [required_node(), str(folder / "program.mjs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
