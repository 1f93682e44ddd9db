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
from tests.helpers.tensors import safetensors
from tests.helpers.web import PACKAGES, PUPPETEER, ROOT, chromium, required_node

ROW = ",".join(["0.5"] * 64)
BROUGHT = {
    "rows-empty.csv": ("", "rows-empty.csv is empty."),
    "rows-text.csv": (
        f"{ROW},4\n{ROW.replace('0.5', 'dark', 1)},4",
        'Line 2 of rows-text.csv holds "dark", which is no number.',
    ),
    "rows-short.csv": ("0.5,1", "Line 1 of rows-short.csv has 2 cells: give 64 numbers and the label."),
    "rows-gap.csv": (f"{ROW},4\n,{ROW}", 'Line 2 of rows-gap.csv holds "", which is no number.'),
    "rows-large.csv": (f"1{ROW},4", "Line 1 of rows-large.csv holds numbers outside 0 to 1."),
    "rows-label.csv": (f"{ROW},11", "Line 1 of rows-label.csv has the label 11, which is no digit."),
    "rows-good.csv": (
        f"{','.join(['pixel'] * 64)},digit\n{ROW},4\n{ROW},5\n",
        "2 rows were added to 1817: train again to learn them.",
    ),
    "empty.safetensors": (
        "",
        "These 0 bytes are no whole file of safetensors with floats and int64: Error: the header is not whole.",
    ),
    "other.safetensors": (
        None,
        "The state has parameters of shape [2], the graphs have [2410]: it belongs to another model.",
    ),
}
"""Files that a visitor may bring, and what the page says of them, or how that begins."""


def brought(folder: Path) -> list[str]:
    for name, (content, _) in BROUGHT.items():
        file = safetensors({"parameters": np.zeros(2, np.float32)}) if content is None else content.encode()
        (folder / name).write_bytes(file)
    return [str(folder / name) for name in BROUGHT]


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
        command = [*driver, str(state), str(tmp_path / "page.png"), *brought(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "missing" in found:
        pytest.skip(found["missing"])
    assert found["errors"] == []
    if provider == "wasm":  # after 285 steps, not 15
        assert found["told"][1].startswith("This is a 1")  # the stroke that was drawn
    assert found["told"][2:] == [
        "Your 0 is among 1817 digits, 20 times: train again to learn it.",
        "The state is loaded: training goes on from it.",
        *(message for _, message in BROUGHT.values()),
    ]
    twin = clone(model).partial_fit(X, y, classes=range(10)).load_state(state)
    for _ in range(5):
        model.partial_fit(X, y, classes=range(10))
    for name, array in model.weights_.items():
        np.testing.assert_allclose(twin.weights_[name], array, rtol=0, atol=1e-5)
    assert f"{100 * model.score(X, y):.1f} %" in found["told"][0]
