"""Files that hold no model, paths that are no file, and weights beside a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.hostile import fit_once, net, refused

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt", "onnx"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\0", b'{"graph": 3}', b"graph { node { op_tyqe: 1 } }", b"[" * 10000]
)
def test_junk_in_every_format(ending, content, tmp_path):
    path = tmp_path / f"net.{ending}"
    path.write_bytes(content)
    refused(path, rf"(There is no ONNX (model|graph).*net\.{ending}')|(imports no opset)")


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt", "onnx"])
def test_every_format_is_read(ending, tmp_path):
    onnx.save(net(), tmp_path / f"net.{ending}")
    assert_array_equal(fit_once(tmp_path / f"net.{ending}").weights_["W"], fit_once(net()).weights_["W"])


@pytest.mark.parametrize("path", ["n" * 5000, "net\0.onnx", "", "/", "/dev/zero", "/proc/self/mem"])
def test_paths_that_are_no_file(path):
    refused(path, r"There is no (file|ONNX model)|cannot be read")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read all files")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    path.chmod(0)
    refused(path, "cannot be (read|parsed).*PermissionError")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "net.onnx")
    refused(tmp_path / "net.onnx", "There is no file")


def saved(folder: Path, **entries: object) -> Path:
    """Return the path of a model with two weights in a file beside it; ``entries`` say where the second one is."""
    model = net("H = Mul(X, V) Y = MatMul(H, W)", V=np.ones(3, np.float32))
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, folder / "net.onnx")
    model = onnx.load(folder / "net.onnx", load_external_data=False)
    tensor = model.graph.initializer[1]
    if "dims" in entries:
        tensor.dims[:] = entries.pop("dims")
    known = {entry.key: entry.value for entry in tensor.external_data} | {k: str(v) for k, v in entries.items()}
    del tensor.external_data[:]
    for key, value in known.items():
        if value != "None":
            tensor.external_data.add(key=key, value=value)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder / "net.onnx"


def test_weights_beside_the_file_are_read(tmp_path):
    assert_array_equal(fit_once(saved(tmp_path)).weights_["V"].shape, (3,))


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"offset": -1}, "offset is '-1', which is not a number"),
        ({"offset": "x"}, "offset is 'x'"),
        ({"offset": 2**63}, "cannot be read"),
        ({"offset": 10**30}, "offset is '1000000"),
        ({"offset": 4}, "overlap"),
        ({"length": -1}, "length is '-1'"),
        ({"length": 2**40}, r"length is 1,099,511,627,776 bytes, and its shape and type take 12"),
        ({"length": 8}, "length is 8 bytes"),
        ({"length": 2**40, "dims": [2**38]}, "more than the limit tensor_bytes"),
        ({"dims": [2**30], "length": 2**32}, "has 24 bytes, and the weight ends at byte 4,294,967"),
        ({"dims": [2**20], "length": 2**22}, "cannot be read: the file 'weights.bin' has 24 bytes"),
        ({"location": ""}, "cannot be read"),
        ({"location": "n" * 5000}, "cannot be read"),
        ({"location": "a\0b"}, "cannot be read"),
        ({"location": "."}, "cannot be read"),
    ],
)
def test_places_of_weights_that_make_no_sense(entries, match, tmp_path):
    refused(saved(tmp_path, **entries), match)


@pytest.mark.skipif(os.name != "posix", reason="sparse files, links and devices")
@pytest.mark.parametrize(
    "location",
    [
        "../outside.bin",
        "{outside}",
        "link.bin",
        "hard.bin",
        "folder/../../outside.bin",
        "up/outside.bin",
        "/dev/zero",
        "zero",
    ],
)
def test_weights_never_come_from_outside_the_folder(location, tmp_path):
    outside, folder = tmp_path / "outside.bin", tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    outside.write_bytes(np.ones(3, np.float32).tobytes())
    (folder / "link.bin").symlink_to(outside)
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    os.link(outside, folder / "hard.bin")
    path = saved(folder, location=location.format(outside=outside), offset="None", length="None")
    refused(path, "cannot be read")


@pytest.mark.skipif(os.name != "posix", reason="sparse files")
def test_a_file_of_a_terabyte_is_not_read(tmp_path):
    path = saved(tmp_path, location="huge.bin", offset="None", length="None")
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(2**40)
    refused(path, "its length is not given, and 1,099,511,627,776 bytes are there")
    with open(tmp_path / "net.onnx", "wb") as file:
        file.truncate(2**40)
    refused(path, "more than the limit file_bytes")


def test_weights_beside_a_model_that_has_no_folder(tmp_path, monkeypatch):
    path = saved(tmp_path)
    monkeypatch.chdir(tmp_path)  # where they would be found
    for model in (onnx.load(path, load_external_data=False), path.read_bytes()):
        refused(
            model,
            r"'weights.bin' beside .*Give the path of the model's file .*or the result of onnx.load\(path\)",
        )
    assert fit_once(path)


def test_model_with_external_weights_trains_and_exports_whole(tmp_path):
    path = saved(tmp_path)
    fitted = fit_once(path)
    exported = onnx.load_model_from_string(fitted.to_onnx().SerializeToString())
    assert not any(tensor.external_data for tensor in exported.graph.initializer)
    whole = fit_once(onnx.load(path))
    for name, array in whole.weights_.items():
        assert_array_equal(fitted.weights_[name], array)


def test_weights_that_fit_in_float16_alone_are_refused(monkeypatch):
    monkeypatch.setattr("onnxtrain_sklearn._ir.limits.LARGEST_MESSAGE", 100)
    given = net("H = Mul(X, V) Y = MatMul(H, W)", V=np.ones(3, np.float32))
    assert fit_once(given)
    body = "C = Cast<to = 1>(V) S = ReduceSum(C) H = Mul(X, S) Y = MatMul(H, W)"
    half = net(body, V=np.ones(40, np.float16))
    with pytest.raises(ModelError, match=r"bytes in float32, and a protobuf message.*[Ss]plit the model"):
        fit_once(half)
