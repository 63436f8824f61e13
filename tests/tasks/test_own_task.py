"""A task that kbert does not have, in one file outside of it, through all programs.

It is trained, previewed, measured, asked, saved, loaded, exported, and taught to a smaller student.
"""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.core import registry
from kbert.tasks import Task
from pipelines import distill, evaluate, finetune, predict
from tests.pipelines.conftest import call, preset, tokenizer  # noqa: F401
from tests.processes import LIGHT, ROOT

pytestmark = pytest.mark.tensorflow

FILE = Path(__file__).parent / "ordinal.py"
MODULE = f"--task_module={FILE}"
WORDS = "red blue green".split()  # grade 0, 1, 2 where they stand in a text


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A CSV file whose columns have names of their own."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(72):
        words = ["the", WORDS[number % 3], *rng.choice(["fox", "dog", "king", "tree"], 2)]
        lines.append(f"{number % 3},{' '.join(words)}\n")
    path = tmp_path_factory.mktemp("graded") / "graded.csv"
    path.write_text("stars,review\n" + "".join(lines))
    return path


DATA = ("--text_column=review", "--label_column=stars")
OPTIONS = ("--levels=3", "--max_length=16", "--batch_size=8", "--learning_rate=2e-2")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, call, graded, preset):  # noqa: F811
    """What kbert-finetune made."""
    folder = tmp_path_factory.mktemp("own") / "out"
    data = (f"--train={graded}", "--dev_share=0.25", f"--preset={preset}", *DATA)
    more = ("--epochs=14", f"--output_dir={folder}", f"--export_dir={folder}-served")
    call(finetune, MODULE, "--task=ordinal", *data, *OPTIONS, *more)
    return folder


def test_it_is_one_short_file_of_public_names():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("kbert"):
            _, *subpackages = node.module.split(".")
            assert len(subpackages) == 1
            assert subpackages[0] in kbert.__all__
            module = importlib.import_module(node.module)
            public = getattr(module, "__all__", dir(module))
            assert {alias.name for alias in node.names} <= set(public)
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr == "__init__"


def test_it_learns_and_is_kept(run_dir):
    result = json.loads((run_dir / "results.json").read_text())
    assert result["metric"] == "kappa"
    assert result["dev"]["kappa"] > 0.9
    assert result["settings"]["levels"] == 3
    saved = json.loads((run_dir / "preset" / "kbert.json").read_text())["task"]
    assert (saved["kind"], saved["module"], saved["levels"]) == ("ordinal", "ordinal", 3)
    task = Task.from_preset(run_dir / "preset")
    assert type(task) is registry.get("task", "ordinal")
    assert (task.levels, task.max_length) == (3, 16)
    answers = task.predict(["the red fox", "the green dog"], verbose=0)
    assert [answer["grade"] for answer in answers] == [0, 2]


def test_it_is_previewed(call, graded, preset, tmp_path, capsys):  # noqa: F811
    data = (f"--train={graded}", "--dev_share=0.25", f"--preset={preset}", *DATA)
    call(
        finetune, MODULE, "--task=ordinal", *data, *OPTIONS, "--dry_run", f"--output_dir={tmp_path}"
    )
    out = capsys.readouterr().out
    assert "ordinal: Ordinal; examples: train 54, dev 18" in out
    assert f"{graded}, line 2: 0\n  [CLS] the red " in out
    assert "s per step" in out
    assert not list(tmp_path.iterdir())


def test_it_is_measured_with_its_report(call, run_dir, graded, tmp_path, capsys):  # noqa: F811
    arguments = (f"--preset={run_dir / 'preset'}", f"--data={graded}", *DATA)
    call(evaluate, MODULE, *arguments, f"--output_dir={tmp_path}")
    out = capsys.readouterr().out
    assert "kappa" in out
    assert "class      precision  recall" in out
    assert json.loads((tmp_path / "metrics.json").read_text())["kappa"] > 0.9
    first = json.loads((tmp_path / "test_answers.jsonl").read_text().splitlines()[0])
    assert first["text"].startswith("the red")
    assert (first["expected"], first["grade"]) == ("0", 0)


def test_it_answers_a_file(call, run_dir, tmp_path):  # noqa: F811
    (tmp_path / "texts.txt").write_text("the blue king\nthe green tree\n")
    output = tmp_path / "answers.jsonl"
    call(predict, MODULE, f"--preset={run_dir / 'preset'}", f"--input={tmp_path / 'texts.txt'}",
         f"--output={output}")  # fmt: skip
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(answer["text"], answer["grade"]) for answer in answers] == [
        ("the blue king", 1),
        ("the green tree", 2),
    ]


def test_it_is_served(run_dir):
    model = tf.saved_model.load(f"{run_dir}-served/1")
    found = model.signatures["grade"](text=tf.constant(["the red fox", "the green fox"]))
    assert found["grade"].numpy().tolist() == [0, 2]
    task = Task.from_preset(run_dir / "preset")
    wanted = [answer["above"] for answer in task.predict(["the red fox", "the green fox"])]
    np.testing.assert_allclose(found["above"].numpy(), wanted, atol=1e-5)


@pytest.mark.slow
def test_it_teaches_a_smaller_student(call, run_dir, graded, tmp_path, capsys):  # noqa: F811
    arguments = (f"--teacher={run_dir / 'preset'}", "--set=intermediate_size=16", "--epochs=2")
    arguments += (
        "--init=random",
        "--first_epochs=1",
        "--batch_size=8",
        "--learning_rate=1e-2",
        *DATA,
    )
    data = (f"--train={graded}", "--dev_share=0.25", f"--output_dir={tmp_path / 'small'}")
    call(distill, MODULE, "--recipe=tinybert-task", "--task=ordinal", *data, *arguments)
    assert "kappa" in capsys.readouterr().out
    student = Task.from_preset(tmp_path / "small" / "preset")
    assert type(student) is registry.get("task", "ordinal")
    assert (student.levels, student.max_length) == (3, 16)
    compared = json.loads((tmp_path / "small" / "comparison.json").read_text())
    assert compared["metric"] == "kappa"


def test_a_folder_does_not_import_its_module(run_dir):
    code = f"import kbert; kbert.tasks.Task.from_preset({str(run_dir / 'preset')!r})"
    run = [sys.executable, "-c", LIGHT + code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
    assert "of the class Task. Received: a ordinal in" in done.stderr
    assert "defines it, ordinal (programs: --task_module)" in done.stderr


@pytest.mark.slow
def test_it_is_exported_from_jax(run_dir, tmp_path):
    code = (
        "from kbert import tasks\n"
        "from kbert.core import late\n"
        f"late.user_module({str(FILE)!r})\n"
        f"task = tasks.Task.from_preset({str(run_dir / 'preset')!r})\n"
        f"print(task.export({str(tmp_path)!r}))"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    model = tf.saved_model.load(str(tmp_path / "1"))
    found = model.signatures["grade"](text=tf.constant(["the red fox", "the green fox"]))
    assert found["grade"].numpy().tolist() == [0, 2]
