"""The notebooks run from top to bottom, and are committed without outputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from matplotlib import pyplot
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IN_KERNEL = "quickstart.ipynb"
FILES = ("tests/files/learns_digits_kept.onnx",)  # what notebooks read, from the folder that they are in


@pytest.fixture
def folder(tmp_path):
    """Return a folder beside which there is what the notebooks read."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


@pytest.mark.exhaustive
def test_a_notebook_runs_in_a_kernel(folder):
    notebook = nbformat.read(ROOT / "notebooks" / IN_KERNEL, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.name != IN_KERNEL], ids=lambda p: p.stem)
def test_the_cells_of_a_notebook_run(path, folder, monkeypatch):
    """All other notebooks, in this process: a kernel of its own for each takes seconds to start."""
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    with pyplot.rc_context():
        pyplot.switch_backend("Agg")
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, path.name, "exec"), names)
        pyplot.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_has_no_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.outputs or cell.execution_count for cell in cells if cell.cell_type == "code")
