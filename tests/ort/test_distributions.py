"""Which distributions of onnxruntime are installed: one is right, several that do not fit are refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

from onnxtrain_sklearn._ort import packages
from onnxtrain_sklearn.exceptions import OnnxTrainWarning, RuntimeNotFoundError

ONE = {"onnxruntime": "1.31.1"}
TWO = {"onnxruntime": "1.19.2", "onnxruntime-training": "1.19.2+cu118"}


def test_one_distribution_is_right():
    packages.check_distributions({}, ["1.31.1"])
    packages.check_distributions(ONE, ["1.31.1"])
    packages.check_distributions(ONE, ["1.31.0"])  # built from source
    assert len(packages.installed_distributions()) <= 1
    assert packages.installed_distributions(["numpy", "no-such-distribution"]) == {"numpy": np.__version__}


def test_importable_distributions_of_one_version_warn():
    with pytest.warns(OnnxTrainWarning) as warned:
        packages.check_distributions(TWO, ["1.19.2", "1.19.2"])
    text = str(warned[0].message)
    assert "installed: onnxruntime 1.19.2, onnxruntime-training 1.19.2+cu118. They overwrite" in text
    assert "\n  pip uninstall -y onnxruntime onnxruntime-training\n" in text


@pytest.mark.parametrize(
    ("installed", "imported"),
    [
        ({"onnxruntime": "1.31.1", "onnxruntime-training-cpu": "1.19.2"}, ["1.31.1", "1.31.1"]),
        (TWO, ["1.19.2", "1.31.1"]),  # Python files of the one, the library of the other
        (TWO, ["1.31.1", "1.31.1"]),  # uninstalled in part
        (TWO, []),  # nothing that can be imported
    ],
)
def test_several_distributions_that_do_not_fit_together_are_refused(installed, imported):
    with pytest.raises(RuntimeNotFoundError) as error:
        packages.check_distributions(installed, imported)
    text = str(error.value)
    assert f"Several distributions of onnxruntime are installed: {' '.join(next(iter(installed.items())))}" in text
    assert "a mixture of versions" in text
    assert f"\n  pip uninstall -y {' '.join(installed)}\n" in text
    assert "onnxtrain-sklearn[ort-training]" in text
    assert "onnxtrain-sklearn[portable]" in text


def import_as_if_installed(*versions: str) -> subprocess.CompletedProcess[str]:
    """Import the package where onnxruntime and onnxruntime-gpu seem to be installed, of these versions."""
    program = f"""
from importlib import metadata
version, told = metadata.version, dict(zip(("onnxruntime", "onnxruntime-gpu"), {versions!r}))
def replaced(name):
    if name.startswith("onnxruntime") and name not in told:
        raise metadata.PackageNotFoundError(name)
    return told.get(name) or version(name)
metadata.version = replaced
import onnxtrain_sklearn as package
print(package.OrtGradientRegressor(max_iter=1).fit([[0.0], [1.0]], [0.0, 1.0]).predict([[0.5]]))"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_import_with_several_distributions():
    refused = import_as_if_installed("1.0", onnxruntime.__version__)
    assert refused.returncode == 1
    assert "exceptions.RuntimeNotFoundError: Several distributions of onnxruntime" in refused.stderr
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in refused.stderr


@pytest.mark.exhaustive
def test_import_with_several_distributions_of_one_version():
    taken = import_as_if_installed(onnxruntime.__version__, onnxruntime.__version__)
    assert taken.returncode == 0, taken.stderr
    assert "OnnxTrainWarning: Several distributions of onnxruntime" in taken.stderr
