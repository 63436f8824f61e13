"""Help, a wrong flag and a missing file are answered without TensorFlow and Keras."""

import subprocess
import sys

import pytest

from tests.pipelines.test_flags import PROGRAMS
from tests.processes import ROOT
from tests.waiting import PATIENCE

BLOCKED = """
import sys
for name in ("tensorflow", "tensorflow_text", "keras", "jax", "torch", "sklearn", "scipy"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
from pipelines.{name} import run; run()
"""
# A file or a folder that is not there, beside what else must be given.
MISSING = {
    "augment": "--task=classify --train=nowhere.csv --preset=bert-tiny --output_dir=out",
    "convert": "--from=./nowhere --to=out",
    "distill": "--recipe=distilbert --teacher=./nowhere --data_dir=shards",
    "evaluate": "--preset=bert-tiny --data=nowhere.csv",
    "export": "--preset=./nowhere --output_dir=out",
    "finetune": "--task=classify --train=nowhere*.csv --preset=bert-tiny --output_dir=out",
    "prepare_corpus": "--input=nowhere.txt --vocabulary_size=100 --output_dir=out",
    "pretrain": "--model_dir=out --init_preset=./nowhere",
    "prune": "--model=./nowhere --output_dir=out --layers=0",
    "word_vectors": "--input=nowhere.txt --output=words.bin",
    **dict.fromkeys(
        ("embed", "fill_mask", "generate", "predict", "translate"),
        "--preset=bert-tiny --input=nowhere.txt --output=-",
    ),
}


def call(name: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", BLOCKED.format(name=name), f"kbert-{name}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_help(name):
    code, out, errors = call(name, "--help")
    assert code == 1, errors  # absl's status after help
    assert "flags:" in out
    assert errors == ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unknown_flag(name):
    code, out, errors = call(name, "--batchsize=3")
    assert code == 1
    assert "Unknown command line flag 'batchsize'" in out + errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("name", MISSING)
def test_what_is_not_there(name):
    code, _, errors = call(name, *MISSING[name].split())
    assert code == 1
    last = errors.splitlines()[-1]
    assert last.startswith(f"kbert-{name.replace('_', '-')}: ")
    assert "nowhere" in last
    assert "Traceback" not in errors
