"""The recipes of docs/guide/serving.md: MLflow serves where it is installed; the names of the others are compared."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "serving.md"
TYPES = {"tensor(float)": ("TYPE_FP32", "FP32"), "tensor(string)": ("TYPE_STRING", "BYTES")}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """Return the commands of the page as lists of arguments."""
    return [shlex.split(line) for block in blocks("bash") for line in re.split(r"\n(?=\w)", block.replace("\\\n", ""))]


def requests() -> list[dict]:
    return [json.loads(command[-1]) for command in commands() if command and command[0] == "curl"]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Return a session of the file that the page writes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("served")
        patch.chdir(folder)
        exec("\n".join(blocks("python")), {})
        opened = onnxruntime.InferenceSession("rooms.onnx", providers=["CPUExecutionProvider"])
        opened.folder = folder
        yield opened


@pytest.mark.slow
def test_triton_configuration_names_inputs_and_outputs_of_the_file(session):
    pytest.importorskip("pandas")
    [text] = blocks("text")
    declared = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ (.*?) \]', text)
    assert declared == [
        (value.name, TYPES[value.type][0], ", ".join("-1" if size == "N" else str(size) for size in value.shape))
        for value in (*session.get_inputs(), *session.get_outputs())
    ]


@pytest.mark.slow
def test_requests_hold_the_inputs_of_the_file(session):
    to_mlflow, to_triton = requests()
    listed = {one["name"]: one for one in to_triton["inputs"]}
    for value in session.get_inputs():
        one = listed.pop(value.name)
        assert one["datatype"] == TYPES[value.type][1]
        assert np.reshape(one["data"], one["shape"]).tolist() == to_mlflow["inputs"].pop(value.name)
    assert not listed
    assert not to_mlflow["inputs"]


@pytest.mark.slow
def test_mlflow_serves_the_file(session, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.chdir(session.folder)
    code = "\n".join(["import onnx", *blocks("py")])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    serve, request = commands()[0], requests()[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        serve[serve.index("--port") + 1] = str(free.getsockname()[1])
    address = f"http://127.0.0.1:{serve[serve.index('--port') + 1]}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # MLflow calls uvicorn by its name
    command = [sys.executable, "-m", *serve]
    with subprocess.Popen(command, start_new_session=True, env={**os.environ, "PATH": path}) as server:
        try:
            until = time.monotonic() + 300
            while True:
                try:
                    urllib.request.urlopen(f"{address}/ping", timeout=10)
                    break
                except (urllib.error.URLError, OSError):
                    assert server.poll() is None, "the server ended"
                    assert time.monotonic() < until, "the server does not answer"
                    time.sleep(0.5)
            call = urllib.request.Request(
                f"{address}/invocations", json.dumps(request).encode(), {"Content-Type": "application/json"}
            )
            answer = json.load(urllib.request.urlopen(call, timeout=60))["predictions"]
        finally:
            stop(server)
    feeds = {name: np.array(rows) for name, rows in request["inputs"].items()}
    feeds = {name: rows.astype(np.float32 if rows.dtype.kind == "f" else object) for name, rows in feeds.items()}
    label, probabilities = session.run(None, feeds)
    assert answer["label"] == label.tolist()
    np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-6)


def stop(server: subprocess.Popen) -> None:
    """End the server and the processes that it started."""
    if hasattr(os, "killpg"):
        os.killpg(server.pid, signal.SIGTERM)
    else:
        server.terminate()
    server.wait(timeout=30)
