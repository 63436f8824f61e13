"""`make quickstart` at a small size: every stage runs, and a second start goes on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.quickstart import make_task

pytestmark = pytest.mark.tensorflow
ROOT = Path(__file__).parents[2]
SMALL = (
    "--sources=docs:email,docs:unittest,docs:asyncio",
    "--vocabulary_size=1000",
    "--sequence_length=32",
    "--batch_size=16",
    "--held_out_share=0.3",
    "--train_steps=40",
)


def start(folder: Path, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pipelines.quickstart", *SMALL, "--output_dir=out", *flags],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "KBERT_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)},
        timeout=300,
    )


def quickstart(folder: Path) -> str:
    done = start(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_all_stages_then_again(tmp_path):
    said = quickstart(tmp_path)
    stages = re.findall(r"^\[\d\] (.+)$", said, re.MULTILINE)
    table = said[said.index("-" * 72) :]
    assert len(stages) == 6
    assert all(f"\n{stage} " in table for stage in stages)
    # The served model gives the answers of the one in memory.
    blocks = said.split("fill the masks\n")[1].split("[6]")
    answers = re.findall(r"^      (.+)$", blocks[0], re.MULTILINE)
    assert answers
    assert answers == re.findall(r"^      (.+)$", blocks[1], re.MULTILINE)
    first, last = (
        float(re.search(rf"loss of the {which} step +([\d.]+)", said)[1])
        for which in ("first", "last")
    )
    assert last < first
    assert (tmp_path / "out" / "serving" / "1" / "saved_model.pb").exists()
    assert json.loads((tmp_path / "out" / "preset" / "kbert.json").read_text())["encoder"]

    # Nothing is trained twice, and what is evaluated, asked and exported is the trained model.
    again = quickstart(tmp_path)
    for line in ("loss of the last step", "held-out masked-token accuracy"):
        assert re.search(rf"{line} +[\d.]+", again)[0] == re.search(rf"{line} +[\d.]+", said)[0]
    assert answers == re.findall(r"^      (.+)$", again.split("[6]")[1], re.MULTILINE)
    assert (tmp_path / "out" / "serving" / "2" / "saved_model.pb").exists()

    other = start(tmp_path, "--model=bert-mini")
    assert other.returncode == 1
    assert "Received: model: bert-tiny before, bert-mini now" in other.stderr
    assert "Traceback" not in other.stderr


def test_it_trains_encoders_alone():
    with pytest.raises(ValueError, match=r"trains a BERT. Received: --model=elmo-small"):
        make_task("elmo-small", tokenizer=None, learning_rate=1e-3, train_steps=9)
