"""Exported training graphs by onnxruntime's C API: examples/cpp, built and run where its header and its library are."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from sklearn.base import clone

from tests.helpers.web import HEADERS, PACKAGES, ROOT
from tests.web.test_web import exported

INSTALLED = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/include", "/usr/local/include")


def header() -> Path:
    """Return the folder of onnxruntime_c_api.h, which ONNXRUNTIME_INCLUDE names; skip the test where there is none."""
    given = os.environ.get("ONNXRUNTIME_INCLUDE")
    for folder in map(Path, [given] if given else [HEADERS, *INSTALLED]):
        if (folder / "onnxruntime_c_api.h").exists():
            return folder
    pytest.skip("needs onnxruntime_c_api.h: make test-web, or name its folder in ONNXRUNTIME_INCLUDE")


def libraries() -> dict[Path, str]:
    """Return the libraries of the Python package and of that of npm, with their versions."""
    found = dict.fromkeys(
        (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), onnxruntime.__version__
    )
    package = PACKAGES / "onnxruntime-node"
    for path in package.glob(f"bin/napi-v*/linux/{'x64' if platform.machine() == 'x86_64' else 'arm64'}/libonnx*.so.1"):
        found[path] = json.loads((package / "package.json").read_text())["version"]
    return found


def library(folder: Path, include: Path) -> Path:
    """Return a library that has the functions of the header, under the name that programs load."""
    text = (include / "onnxruntime_c_api.h").read_text()
    needed = int(re.search(r"#define ORT_API_VERSION (\d+)", text)[1])
    found = [path for path, version in libraries().items() if int(version.split(".")[1]) >= needed]
    if not found:
        pytest.skip(f"needs the library of onnxruntime 1.{needed} or newer as a file: make test-web")
    (folder / "libonnxruntime.so.1").symlink_to(found[0])
    return folder / "libonnxruntime.so.1"


def test_five_epochs_in_cpp_give_the_weights_of_python(tmp_path):
    compiler = shutil.which("c++") or pytest.skip("needs a C++ compiler")
    include = header()
    built = library(tmp_path, include)
    program = [
        str(ROOT / "examples" / "cpp" / "digits.cpp"),
        str(built),
        f"-Wl,-rpath,{tmp_path}",
        "-o",
        str(tmp_path / "digits"),
    ]
    subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(include), *program], check=True)
    model, X, y = exported(tmp_path / "example")
    command = [str(tmp_path / "digits"), str(tmp_path / "example"), "in-order"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    twin = clone(model).partial_fit(X, y, classes=range(10)).load_state(tmp_path / "example" / "trained.safetensors")
    for _ in range(5):
        model.partial_fit(X, y, classes=range(10))
    for name, array in model.weights_.items():
        np.testing.assert_allclose(twin.weights_[name], array, rtol=0, atol=1e-5)
    assert twin._state.optimizer_state.t == model._state.optimizer_state.t == 5 * 57
    assert float(re.search(r"accuracy (\S+)", said)[1]) == pytest.approx(model.score(X, y), abs=1.5e-3)
