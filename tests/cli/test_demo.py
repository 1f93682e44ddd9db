"""The demo: what it writes, what it prints, and how it ends."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest

from tests.helpers.command import main, shift_file_predictions, shorten_demo

# Earlier versions of matplotlib call pyparsing by names of before.
pytestmark = pytest.mark.filterwarnings("ignore:.* deprecated.* use :DeprecationWarning")

DATA = ["breast_cancer", "diabetes"]
EPOCHS = 5
PROGRAM = f"""
import sys
from tests.helpers.command import main, shorten_demo
shorten_demo({EPOCHS})
sys.exit(main(["demo", *sys.argv[1:]]))"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Run the demo in a process of its own, for some epochs, with all warnings but deprecations as errors."""
    folder = tmp_path_factory.mktemp("demo") / "made" / "by" / "it"
    arguments = [
        "-W",
        "error",
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        PROGRAM,
        "--output",
        str(folder),
        "--data",
        *DATA,
    ]
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder, result


@pytest.mark.exhaustive
def test_demo_writes_models_and_a_picture(demo):
    folder, _ = demo
    assert {path.name for path in folder.iterdir()} == {"breast_cancer.onnx", "diabetes.onnx", "loss_curves.png"}
    for path in folder.glob("*.onnx"):
        onnx.checker.check_model(onnx.load(path), full_check=True)
    assert (folder / "loss_curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_demo_prints_the_table_and_the_comparison(demo):
    _, result = demo
    assert result.stderr == ""
    for name in ("OrtGradientClassifier", "MLPClassifier", "OrtGradientRegressor", "MLPRegressor"):
        assert result.stdout.count(name) == 1
    assert result.stdout.count("predictions are equal to predict's") == len(DATA)


@pytest.fixture
def short_demo():
    before = shorten_demo(EPOCHS)
    yield
    shorten_demo(before)


@pytest.mark.slow
@pytest.mark.usefixtures("short_demo")
def test_demo_goes_on_without_matplotlib(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["demo", "--output", str(tmp_path), "--data", "diabetes"]) == 0
    said = capsys.readouterr().out
    assert "needs matplotlib" in said
    assert "predictions are equal to predict's" in said
    assert [path.name for path in tmp_path.iterdir()] == ["diabetes.onnx"]


@pytest.mark.slow
@pytest.mark.usefixtures("short_demo")
def test_demo_fails_if_file_predictions_differ(tmp_path, monkeypatch, capsys):
    shift_file_predictions(monkeypatch)
    assert main(["demo", "--output", str(tmp_path), "--data", "diabetes"]) == 1
    assert "DIFFERENT FROM" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert "onnxruntime" in capsys.readouterr().out


def test_a_command_is_required(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "demo" in capsys.readouterr().err
