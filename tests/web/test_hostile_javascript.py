"""Folders and states that are made to do harm, read in JavaScript: no runtime of graphs is needed to refuse them."""

from __future__ import annotations

import json
import random
import subprocess
from typing import Any

import onnx
import onnx.helper
import pytest

from tests.export.test_hostile_states import HOSTILE_TENSORS, tensor_file
from tests.helpers.web import ROOT, required_node


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


def tensor(name="W", outside=True):
    found = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    if outside:
        found.ClearField("float_data")
        found.data_location = onnx.TensorProto.EXTERNAL
        found.external_data.add(key="location", value="../secret.bin")
    return found


def models(outside):
    """Return models that hold a tensor in each place that may have one."""
    one, empty = tensor(outside=outside), onnx.GraphProto(name="g")
    sparse = onnx.SparseTensorProto(values=one, dims=[4])
    constant = onnx.helper.make_node("Constant", [], ["c"], value=one)
    body = onnx.GraphProto(name="body", node=[constant])
    branch = onnx.helper.make_node("If", ["c"], ["y"], then_branch=body)
    attributes = [
        onnx.AttributeProto(name="a", type=onnx.AttributeProto.TENSORS, tensors=[one]),
        onnx.AttributeProto(name="a", type=onnx.AttributeProto.GRAPHS, graphs=[body]),
        onnx.AttributeProto(name="a", type=onnx.AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse),
        onnx.AttributeProto(name="a", type=onnx.AttributeProto.SPARSE_TENSORS, sparse_tensors=[sparse]),
    ]
    function = onnx.FunctionProto(name="f", node=[branch])
    default = onnx.FunctionProto(name="f", attribute_proto=[onnx.AttributeProto(name="a", t=one)])
    graphs = {
        "initializer": onnx.GraphProto(initializer=[tensor(outside=False), one]),
        "constant": onnx.GraphProto(node=[constant]),
        "branch": onnx.GraphProto(node=[branch]),
        "sparse": onnx.GraphProto(sparse_initializer=[sparse]),
        "indices": onnx.GraphProto(sparse_initializer=[onnx.SparseTensorProto(indices=one)]),
        **{f"attribute {i}": onnx.GraphProto(node=[onnx.NodeProto(attribute=[a])]) for i, a in enumerate(attributes)},
    }
    found = {name: onnx.ModelProto(ir_version=10, graph=graph) for name, graph in graphs.items()}
    found["function"] = onnx.ModelProto(graph=empty, functions=[function])
    found["default of a function"] = onnx.ModelProto(graph=empty, functions=[default])
    found["training"] = onnx.ModelProto(graph=empty)
    found["training"].training_info.add(algorithm=graphs["initializer"])
    contents = {name: model.SerializeToString() for name, model in found.items()}
    return contents | {"two graphs": contents["initializer"] + onnx.ModelProto(graph=empty).SerializeToString()}


def loaded(contents, tmp_path):
    """Return what ``Trainer.load`` says of each model, or "runs" where it reaches the runtime."""
    bytes_by_name = json.dumps({name: list(content) for name, content in contents.items()})
    program = f"""
const ort = {{ InferenceSession: {{ create: async () => {{ throw new Error("runs"); }} }} }}, found = {{}};
for (const [name, bytes] of Object.entries({bytes_by_name})) {{
  const content = new Uint8Array(bytes);
  const digest = Buffer.from(await crypto.subtle.digest("SHA-256", content)).toString("hex");
  const manifest = {{
    format: "onnxtrain-sklearn training", version: 1,
    graphs: {{ step: {{ file: "step.onnx" }} }}, files: {{ "step.onnx": {{ sha256: digest }} }},
  }};
  const text = new TextEncoder().encode(JSON.stringify(manifest));
  try {{ await Trainer.load(ort, async (file) => (file === "step.onnx" ? content : text)); }}
  catch (error) {{ found[name] = error.message; }}
}}
console.log(JSON.stringify(found));"""
    return said(program, tmp_path)


def test_graphs_that_keep_weights_in_files_do_not_reach_the_runtime(tmp_path):
    inside, outside = models(False), models(True)
    assert set(loaded(inside, tmp_path).values()) == {"runs"}
    found = loaded(outside, tmp_path)
    assert found.keys() == outside.keys()
    assert {name for name, text in found.items() if not text.startswith("step.onnx keeps weights in another")} == set()


def varint(number):
    found = bytearray()
    while number > 127:
        found.append(number % 128 + 128)
        number //= 128
    return bytes([*found, number])


def test_files_that_are_no_models_do_not_reach_the_runtime(tmp_path):
    whole = models(False)["branch"]
    deep = b""
    for _ in range(200):  # a graph in an attribute of a node of a graph
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            deep = tag + varint(len(deep)) + deep
    wrong = {
        "empty": b"",
        "no graph": b"\x08\x0a",
        "ORT format": b"\x18\x00\x00\x00ORTM" + bytes(64),
        "text": b"<html></html>",
        "long number": b"\xff" * 16,
        "huge length": b"\x3a" + varint(2**60),
        "field 0": b"\x02\x00",
        "deep": b"\x3a" + varint(len(deep)) + deep,
        **{f"cut {i}": whole[:i] for i in range(1, len(whole))},
    }
    found = loaded(wrong, tmp_path)
    assert found.keys() == wrong.keys()
    assert {name for name, text in found.items() if "is no whole model of ONNX" not in text} == set()


def test_only_models_with_inline_weights_reach_the_runtime(tmp_path):
    rng, mutants = random.Random(0), {}
    bases = list(models(True).values())
    for i in range(300):
        content = bytearray(rng.choice(bases))
        for _ in range(rng.choice([1, 1, 2, 3])):
            content[rng.randrange(len(content))] = rng.choice([0, 1, 2, 13, 14, 106, 112, 114, rng.randrange(256)])
        mutants[str(i)] = bytes(content)
    found = loaded(mutants, tmp_path)
    assert found.keys() == mutants.keys()
    passed = [mutants[name] for name, text in found.items() if text == "runs"]
    assert len(passed) > 10
    for content in passed:
        try:
            model = onnx.load_model_from_string(content)
        except Exception:  # the runtime refuses it, too
            continue
        assert "EXTERNAL" not in str(model)
