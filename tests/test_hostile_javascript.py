"""Folders and states that are made to do harm, read in JavaScript: no runtime of graphs is needed to refuse them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.helpers.web import ROOT, required_node
from tests.test_hostile_states import HOSTILE_TENSORS, tensor_file


def said(program: str, tmp_path: Any) -> Any:
    module = json.dumps(str(ROOT / "js" / "onnxtrain.mjs"))
    (tmp_path / "x.mjs").write_text(f"import {{ Trainer, readTensors }} from {module};\n{program}")
    done = subprocess.run([required_node(), str(tmp_path / "x.mjs")], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_hostile_files_of_tensors(tmp_path):
    harmless = {"a name twice", "notes that are no texts", "a size that is none", "many axes"}  # in JavaScript
    wrong = {name: content for name, content in HOSTILE_TENSORS.items() if name not in harmless and len(content) < 2000}
    files = {name: list(content) for name, content in wrong.items()}
    files["right"] = list(tensor_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}))
    program = f"""
const found = {{}};
for (const [name, bytes] of Object.entries({json.dumps(files)})) {{
  try {{ found[name] = Object.keys(readTensors(new Uint8Array(bytes))); }}
  catch (error) {{ found[name] = error.message; }}
}}
console.log(JSON.stringify(found));"""
    found = said(program, tmp_path)
    assert found.pop("right") == ["a"]
    assert len(found) > 15
    assert [name for name, text in found.items() if "are no whole file of safetensors" not in text] == []


NAMES = ["../secret.onnx", "..\\secret.onnx", "/etc/passwd", "C:x", "..", "", None, ["a"], "%2e%2e%2fx"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_out_of_the_folder_are_not_read(name, tmp_path):
    manifest = {
        "format": "onnxtrain-sklearn training", "version": 1, "graphs": {"step": {"file": name}},
        "state": {"file": "state.safetensors", "tensors": []}, "files": {str(name): {"sha256": "0"}},
    }  # fmt: skip
    program = f"""
const asked = [];
const text = {json.dumps(json.dumps(manifest))};
const read = async (name) => {{ asked.push(name); return new TextEncoder().encode(text); }};
let message = "";
try {{ await Trainer.load({{}}, read); }} catch (error) {{ message = error.message; }}
console.log(JSON.stringify([asked, message]));"""
    asked, message = said(program, tmp_path)
    assert asked == ["manifest.json"]
    assert "which is not in the folder itself" in message
