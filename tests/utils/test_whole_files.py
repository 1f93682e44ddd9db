"""Folders are written as a whole, and what a process that was killed left of them is removed."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from onnxtrain_sklearn import Linear, OrtGradientRegressor, export_training
from onnxtrain_sklearn._utils.atomic_files import whole_folder

X = np.ones((4, 2), np.float32)


def fitted():
    return OrtGradientRegressor(Linear(), random_state=0).partial_fit(X, X[:, 0])


def test_folders_of_killed_exports_are_removed(tmp_path):
    writers = [whole_folder(tmp_path / "f[1]") for _ in range(2)]  # which never come to their end
    for writer in writers:
        (writer.__enter__() / "step.onnx").write_bytes(b"half")
    left = sorted(tmp_path.iterdir())
    assert len(left) == 2
    for path in (left[0] / "step.onnx", left[0]):
        os.utime(path, (time.time() - 3600,) * 2)
    model = fitted()
    for _ in range(2):
        export_training(model, tmp_path / "f[1]")
        # somebody may be writing the other one
        assert {path.name for path in tmp_path.iterdir()} == {"f[1]", left[1].name}
    assert (tmp_path / "f[1]" / "manifest.json").exists()


def test_an_error_leaves_the_folder_that_was_there(tmp_path, monkeypatch):
    model = fitted()
    export_training(model, tmp_path / "f")
    before = {path.name: path.read_bytes() for path in (tmp_path / "f").iterdir()}
    path_class = type(tmp_path)
    rename = path_class.rename

    def failing(self, target):
        if target.name == "f" and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise OSError("no rename")
        return rename(self, target)

    monkeypatch.setattr(path_class, "rename", failing)
    with pytest.raises(OSError, match="no rename"):
        export_training(model, tmp_path / "f")
    assert {path.name for path in tmp_path.iterdir()} == {"f", "failed"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "f").iterdir()} == before


@pytest.mark.skipif(os.name != "posix", reason="needs links to folders")
def test_a_link_goes_on_to_lead_to_the_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    export_training(fitted(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "manifest.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}
