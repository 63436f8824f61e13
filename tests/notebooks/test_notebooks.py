"""Every notebook runs from top to bottom, at the small size it defines for that purpose.

Those that others build on in this process, one after the other: a kernel for each would import
everything nine times. All of them in kernels of their own are among the slow tests, with one at its
full size. Their stored outputs are looked at here, and made by `make notebooks`.
"""

import base64
import gc
import io
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tests.notebooks import stored
from tests.notebooks.stored import NOTEBOOKS, ROOT

IN_THIS_PROCESS = ("01_pretrain_in_five_minutes", "02_classify_your_texts")
AT_FULL_SIZE = "12_on_several_devices"  # two minutes
# Not run at full size since their code was changed last: they have no outputs.
WITHOUT_OUTPUTS: set[str] = set()
MOST_BYTES = 400_000

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
    return nbformat.read(path, as_version=4)


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
    stored.execute(read(path), folder=folder)


@pytest.mark.slow
def test_a_claim_holds_at_full_size(folder, monkeypatch):
    monkeypatch.delenv("KBERT_NOTEBOOK_SMALL")
    stored.execute(read(ROOT / "notebooks" / f"{AT_FULL_SIZE}.ipynb"), folder=folder)


def outputs(notebook):
    return [x for cell in notebook.cells for x in cell.get("outputs", ())]


def problems(path):
    """What is not as it should be in the file."""
    notebook, text = read(path), path.read_text(encoding="utf-8")
    first = notebook.cells[0].source.split("\n\n")
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    places = {str(ROOT), sys.prefix, str(Path.home()), "/site-packages/"}
    return [
        name
        for name, wrong in {
            "no title": not first[0].startswith("# "),
            "another badge": first[1] != stored.badge(path),
            "no claim": "**Claim.**" not in notebook.cells[0].source,
            "another install cell": code.source != stored.install_cell(path),
            "too large": len(text.encode()) > MOST_BYTES,
            "a path of a machine": any(place in str(outputs(notebook)) for place in places),
            "an error": any(x.output_type == "error" for x in outputs(notebook)),
            "logs": any(x.get("name") == "stderr" for x in outputs(notebook)),
            "metadata of a run": any(cell.metadata for cell in notebook.cells),
        }.items()
        if wrong
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_is_committed(path):
    assert problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_those_of_the_code(path):
    notebook = read(path)
    is_stored = path.stem not in WITHOUT_OUTPUTS
    assert stored.is_current(notebook) is is_stored, "make notebooks"
    assert bool(outputs(notebook)) is is_stored


def test_problems_are_found(tmp_path):
    path = tmp_path / NOTEBOOKS[0].name
    notebook = read(NOTEBOOKS[0])
    stored.write(notebook, path)
    assert problems(path) == []
    notebook.cells[0].source = "A text"
    notebook.cells[1].source += " "
    notebook.cells[1].metadata["execution"] = {}
    notebook.cells[1].outputs = [
        nbformat.v4.new_output("stream", name="stderr", text=f"{ROOT}/kbert"),
        nbformat.v4.new_output("error", ename="E", evalue="x" * MOST_BYTES, traceback=[]),
    ]
    notebook.cells[0].source += "\n\nand nothing else"
    stored.write(notebook, path)
    assert problems(path) == [
        *("no title", "another badge", "no claim", "another install cell", "too large"),
        *("a path of a machine", "an error", "logs", "metadata of a run"),
    ]


def test_outputs_are_of_code_and_not_of_text():
    notebook = read(NOTEBOOKS[0])
    notebook.metadata["kbert"] = {"sources": stored.sources(notebook)}
    assert stored.is_current(notebook)
    notebook.cells[0].source += " More."
    assert notebook.cells[1].id == "install"
    notebook.cells[1].source += " kbert[onnx]"
    assert stored.is_current(notebook)
    notebook.cells[-1].source += "\n"
    assert not stored.is_current(notebook)
    stored.strip(notebook)
    assert "kbert" not in notebook.metadata
    assert not outputs(notebook)


def test_badge_and_install_cell_are_put_in_once(tmp_path):
    path = tmp_path / "10_new.ipynb"
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# New\n\n**Claim.** None.", id="a"),
            nbformat.v4.new_code_cell("1 + 1", id="b"),
        ]
    )
    for _ in range(2):
        stored.furnish(notebook, path)
        title, badge, claim = notebook.cells[0].source.split("\n\n")
        assert (title, claim) == ("# New", "**Claim.** None.")
        assert badge.endswith("/blob/main/notebooks/10_new.ipynb)")
        assert [cell.id for cell in notebook.cells] == ["a", "install", "b"]
    namespace = {}
    exec(TransformerManager().transform_cell(notebook.cells[1].source), namespace)  # does nothing
    assert "%pip install --quiet 'kbert[onnx]'" in notebook.cells[1].source


def test_what_another_run_would_make_differently_is_taken_away(tmp_path):
    figure, axes = plt.subplots()
    axes.plot([0, 1])
    figure.savefig(file := io.BytesIO())
    png = base64.b64encode(file.getvalue()).decode()
    plt.close(figure)
    said = f" 1/2 \b\b\b 2/2\n10 %\r100 %\r\n{tmp_path}/kbert-a1_b2/x {ROOT}/y <A at 0x7f0012ab>"
    new = nbformat.v4.new_output
    cell = nbformat.v4.new_code_cell(
        outputs=[
            new("stream", name="stdout", text=said[:20]),
            new("stream", name="stderr", text="I0000 00:00 port.cc:153] oneDNN"),
            new("stream", name="stdout", text=said[20:]),
            new("display_data", {"image/png": png, "text/plain": "<Figure>"}),
            new("execute_result", {"text/plain": "http://127.0.0.1:43211"}, execution_count=1),
        ],
        metadata={"execution": {"iopub.status.busy": "now"}},
    )
    notebook = nbformat.v4.new_notebook(cells=[cell])
    stored.clean(notebook, tmp_path)
    [cleaned] = notebook.cells
    assert cleaned.metadata == {}
    text, picture, address = cleaned.outputs
    assert text.text == " 2/2\n100 %\n/tmp/kbert/x ./y <A>"
    assert list(picture.data) == ["image/png"]
    assert len(picture.data["image/png"]) < len(png)
    assert address.data == {"text/plain": "http://127.0.0.1:8501"}
