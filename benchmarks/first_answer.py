"""From the start of a process to its first answer: seconds and memory, in turns with peers.

Each row is a process of its own: `import tensorflow` alone, a classifier of MiniLM-L6 and of
MPNet-base that loads and answers one text (on TensorFlow, on JAX, from an ONNX folder), the same
weights in transformers and sentence-transformers, a help page, and a step of pretraining. Medians
of the rounds; memory is the largest peak (RSS).

`python -m benchmarks.first_answer [--rounds 5] [--mpnet FOLDER] [--python baseline=PYTHON
kbert=PYTHON jax=PYTHON onnx=PYTHON peers=PYTHON] [--row NAME …]`

An environment with more packages in it imports more: scikit-learn and pandas alone change the
seconds of `import tensorflow`. So each group of rows takes an interpreter of its own: `baseline`
has what the first row is to be measured with, `kbert` what `pip install kbert` brings, `jax`,
`onnx` and `peers` what their names say. What is not named runs where this program runs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = "a gripping story , told with wit ."

TENSORFLOW = "import tensorflow"
CLASSIFIER = """
from kbert import TextClassifier
task = TextClassifier.from_preset({folder!r}, labels=2, new_head=True)
print(task.predict([{text!r}], verbose=0))
"""
EMBEDDER = """
from kbert import TextEmbedder
print(TextEmbedder.from_preset({folder!r}).predict([{text!r}], verbose=0))
"""
EXPORTED = """
from kbert.export import load_exported
print(load_exported({folder!r}).predict([{text!r}]))
"""
TRANSFORMERS = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({folder!r})
model = AutoModelForSequenceClassification.from_pretrained({folder!r}).eval()
with torch.inference_mode():
    print(model(**tokenizer([{text!r}], return_tensors="pt")).logits)
"""
SENTENCE_TRANSFORMERS = """
from sentence_transformers import SentenceTransformer
print(SentenceTransformer({folder!r}, device="cpu").encode([{text!r}]))
"""
EXPORT = """
from kbert import TextClassifier
task = TextClassifier.from_preset({folder!r}, labels=2, new_head=True)
task.export({path!r}, format="onnx")
"""
PROGRAM = """
import sys
try:
    from kbert.pipelines.{name} import run
except ModuleNotFoundError:  # a checkout
    from pipelines.{name} import run
sys.argv = {arguments!r}
try:
    run()
except SystemExit as end:  # absl ends a help page with status 1
    sys.exit(end.code if {name!r} == "pretrain" else 0)
"""
STEP = ["--model=bert-tiny", "--steps=1", "--batch_size=8", "--sequence_length=128"]


def program(name: str, *arguments: str) -> str:
    return PROGRAM.format(name=name, arguments=[name, *arguments])


def rows(minilm: str, mpnet: str | None, folder: Path) -> dict[str, tuple[str, str, str]]:
    """Group, Keras' backend and program of each row."""
    onnx, shards = (os.fspath(folder / name) for name in ("onnx", "shards"))
    step = program("pretrain", f"--data_dir={shards}", f"--model_dir={folder}/@RUN", *STEP)
    found = {
        "import tensorflow": ("baseline", "tensorflow", TENSORFLOW),
        "import tensorflow, environment of kbert": ("kbert", "tensorflow", TENSORFLOW),
        "kbert-predict --help": ("kbert", "tensorflow", program("predict", "--help")),
        "kbert-pretrain, one step of bert-tiny": ("kbert", "tensorflow", step),
        "kbert, ONNX": ("onnx", "tensorflow", EXPORTED.format(folder=onnx, text=TEXT)),
    }
    for name, folder in {"MiniLM": minilm, "MPNet": mpnet}.items():
        if folder:
            write = {"folder": folder, "text": TEXT}
            found |= {
                f"kbert, {name}": ("kbert", "tensorflow", CLASSIFIER.format(**write)),
                f"kbert on JAX, {name}": ("jax", "jax", CLASSIFIER.format(**write)),
                f"transformers, {name}": ("peers", "torch", TRANSFORMERS.format(**write)),
                f"kbert's embedder, {name}": ("kbert", "tensorflow", EMBEDDER.format(**write)),
                f"sentence-transformers, {name}": (
                    "peers",
                    "torch",
                    SENTENCE_TRANSFORMERS.format(**write),
                ),
            }
    return found


def measure(python: str, backend: str, code: str) -> tuple[float, float, float]:
    """Seconds by the clock, CPU seconds and the largest memory in MB of a process."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
    }
    # Elsewhere what is installed counts, not the checkout.
    environment["PYTHONPATH"] = os.fspath(ROOT) if python == sys.executable else ""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            [python, "-c", code],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            cwd=tempfile.gettempdir(),
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            message = errors.read().decode(errors="replace")[-2000:]
            missing = "ModuleNotFoundError: " in message or "ImportError: " in message
            raise (ImportError if missing else RuntimeError)(message)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main(arguments: Sequence[str] | None = None) -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--rounds", type=int, default=5)
    reader.add_argument("--mpnet", help="a folder of MPNet-base's weights and tokenizer")
    reader.add_argument("--python", nargs="*", default=[], metavar="GROUP=PYTHON")
    reader.add_argument("--row", nargs="*", help="rows that begin like this")
    flags = reader.parse_args(arguments)
    pythons = dict(pair.split("=", 1) for pair in flags.python)
    if unknown := pythons.keys() - {"baseline", "kbert", "jax", "onnx", "peers"}:
        reader.error(
            f"--python is for baseline, kbert, jax, onnx, peers. Received: {sorted(unknown)}"
        )

    from benchmarks._fine_tuning_runs import weights_folder

    minilm = os.fspath(weights_folder())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = os.fspath(ROOT / "docs" / "benchmarks.md")
        shards = f"--output_dir={folder / 'shards'}"
        # In processes of their own: a child's peak contains that of its parent when it forked.
        for code in (
            EXPORT.format(folder=minilm, path=os.fspath(folder / "onnx")),
            program("prepare_corpus", f"--input={text}", f"--vocabulary={minilm}", shards),
        ):
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        chosen = rows(minilm, flags.mpnet, folder)
        if flags.row:
            chosen = {n: row for n, row in chosen.items() if n.startswith(tuple(flags.row))}
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in chosen}
        for turn in range(flags.rounds + 1):
            for name in list(found):
                group, backend, code = chosen[name]
                code = code.replace("@RUN", f"run{turn}")  # every run trains in a new folder
                try:
                    value = measure(pythons.get(group, sys.executable), backend, code)
                except ImportError as error:
                    print(f"{name} is left out: {str(error).strip().splitlines()[-1]}")
                    del found[name]
                    continue
                if turn:  # the first round warms the file cache
                    found[name].append(value)
    base = None
    print(f"{'':42} {'seconds':>8} {'CPU':>6} {'ratio':>6} {'MB':>6}")
    for name, values in found.items():
        seconds, cpu = (statistics.median(value[i] for value in values) for i in (0, 1))
        base = base or seconds
        memory = max(value[2] for value in values)
        print(f"{name:42} {seconds:8.2f} {cpu:6.2f} {seconds / base:6.2f} {memory:6.0f}")


if __name__ == "__main__":
    main()
