"""Every notebook runs from top to bottom, at the small size it defines for that purpose.

Those that others build on in this process, one after the other: a kernel for each would import
everything nine times. All of them in kernels of their own are among the slow tests.
"""

import gc
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IN_THIS_PROCESS = ("01_pretrain_in_five_minutes", "02_classify_your_texts")

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where a notebook runs."""
    for name, value in [
        ("KBERT_NOTEBOOK_SMALL", "1"),
        ("TMPDIR", str(tmp_path)),
        ("PYTHONPATH", str(ROOT)),
    ]:
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plt.close("all")
    gc.collect()  # its graphs hold each other


def read(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = [cell for cell in notebook.cells if cell.get("outputs")]
    assert not outputs, "commit notebooks without output"
    return notebook


@pytest.mark.parametrize(
    "path", [p for p in NOTEBOOKS if p.stem in IN_THIS_PROCESS], ids=lambda p: p.stem
)
def test_notebook_runs_and_holds_its_claim(path, folder):
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(read(path).cells):
        if cell.cell_type == "code":
            source = TransformerManager().transform_cell(cell.source)
            exec(compile(source, f"{path.name}[{number}]", "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_in_a_kernel(path, folder):
    NotebookClient(read(path), timeout=300, kernel_name="python3").execute(cwd=str(folder))
