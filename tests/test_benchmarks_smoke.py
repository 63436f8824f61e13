"""Benchmarks of encoder-decoders run on tiny models, and resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]


def run(name: str, *words: str) -> str:
    """Returns what a benchmark prints."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--smoke", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_denoising_resumes_cell_by_cell(tmp_path):
    words = ["one", "two", "red", "dogs", "run", "in", "the", "park", "men"]
    for split, number in (("train", 60), ("val", 8), ("test_2016_flickr", 8)):
        for language in ("en", "de"):
            lines = (" ".join(words[(i + j) % 9] for j in range(4)) for i in range(number))
            text = "".join(f"{line} {language}.\n" for line in lines)
            (tmp_path / f"{split}.{language}").write_text(text, encoding="utf-8")
    output = tmp_path / "results"
    arguments = ["--data", str(tmp_path), "--output_dir", str(output), "--only", "none", "mass"]
    first = run("denoising", *arguments, "--pairs", "1000")
    assert "| pairs | none | mass |" in first
    kept = {path: path.read_bytes() for path in (output / "results").iterdir()}
    names = {json.loads(content)["key"]["name"] for content in kept.values()}
    assert names == {"none-1000", "pretraining-mass", "mass-1000"}
    again = run("denoising", *arguments, "--pairs", "1000")
    assert "seed 0 …" in first
    assert "seed 0 …" not in again
    assert kept == {path: path.read_bytes() for path in (output / "results").iterdir()}


@pytest.mark.parametrize("model", ["bart-base", "t5-small"])
def test_contenders_compute_the_same(model):
    pytest.importorskip("keras_hub")
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    table = run("encoder_decoders", "--models", model)
    for title in ("float32, training step", "float32, greedy", "float32, beams of 4"):
        assert title in table
    shared = 3 if model == "bart-base" else 2  # contenders with transformers' weights
    assert table.count("| loss ") == shared
    assert table.count("100.0% of the tokens equal") == 2 * (shared + 1)  # kbert's also by XLA
