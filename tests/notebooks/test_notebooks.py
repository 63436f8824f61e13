"""Every notebook runs from top to bottom, at the small size it defines for that purpose."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


@pytest.mark.tensorflow
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebook_runs_and_holds_its_claim(path, monkeypatch, tmp_path):
    monkeypatch.setenv("KBERT_NOTEBOOK_SMALL", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "commit notebooks without output"
    )
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
