"""The page of examples/web, opened in Chromium as a person would: it trains, draws, recognizes, saves and loads.

`make test-web` runs it where Chromium is installed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from tests.helpers.web import PACKAGES, PUPPETEER, ROOT, chromium, required_node


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def required_browser() -> str:
    found = chromium()
    if found is None or not PUPPETEER.exists():
        pytest.skip("needs Chromium and packages of npm: make test-web")
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("provider", ["wasm", "webgpu"])
def test_five_epochs_in_a_browser_give_the_weights_of_python(provider, tmp_path):
    """WebGPU here is SwiftShader, which computes on the processor: the graphs and their results are what is tested."""
    browser = required_browser()
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    model = OrtGradientClassifier(
        MLP((32,)), batch_size=600 if provider == "webgpu" else 32, shuffle=False, random_state=0
    )
    page, root = tmp_path / "root" / "build" / "web" / "page", tmp_path / "root"
    model.export_training(page / "digits", X, y, target="web" if provider == "webgpu" else "any")
    X.tofile(page / "X.float32")
    y.astype(np.int32).tofile(page / "y.int32")
    (root / "build" / "web" / "node_modules").symlink_to(PACKAGES)
    for name in ("js", "examples"):
        (root / name).symlink_to(ROOT / name)
    state = tmp_path / "trained.safetensors"
    with served(root) as address:
        url = f"{address}/examples/web/index.html?inorder&provider={provider}"
        driver = [required_node(), str(ROOT / "tests" / "helpers" / "browser.mjs"), str(PUPPETEER), browser, url]
        command = [*driver, str(state), str(tmp_path / "page.png")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "missing" in found:
        pytest.skip(found["missing"])
    assert found["errors"] == []
    if provider == "wasm":  # after 285 steps, not 15
        assert found["told"][1].startswith("This is a 1")  # the stroke that was drawn
    twin = clone(model).partial_fit(X, y, classes=range(10)).load_state(state)
    for _ in range(5):
        model.partial_fit(X, y, classes=range(10))
    for name, array in model.weights_.items():
        np.testing.assert_allclose(twin.weights_[name], array, rtol=0, atol=1e-5)
    assert f"{100 * model.score(X, y):.1f} %" in found["told"][0]
