"""Submissions: GLUE's eleven files, proven by reading them back."""

import dataclasses

import numpy as np
import pytest

from kbert.data import read_table, write_glue_submission
from kbert.data.readers import GLUE, glue_task

FILES = {
    "CoLA": "CoLA.tsv",
    "SST-2": "SST-2.tsv",
    "MRPC": "MRPC.tsv",
    "STS-B": "STS-B.tsv",
    "QQP": "QQP.tsv",
    "MNLI": "MNLI-m.tsv",
    "MNLI-mm": "MNLI-mm.tsv",
    "QNLI": "QNLI.tsv",
    "RTE": "RTE.tsv",
    "WNLI": "WNLI.tsv",
    "AX": "AX.tsv",
}


def read(path) -> list[str]:
    table = read_table(path, columns={"id": "index", "prediction": "prediction"})
    assert table["id"] == [str(row) for row in range(len(table))]
    return table["prediction"]


@pytest.mark.parametrize("task", [task for task in FILES if task != "STS-B"])
def test_labels_read_back(tmp_path, monkeypatch, task):
    key = task.lower().replace("-", "")
    rows = min(GLUE[key].test_rows, 200)  # QQP's has 390,965
    monkeypatch.setitem(GLUE, key, dataclasses.replace(GLUE[key], test_rows=rows))
    described = glue_task(task)
    random = np.random.default_rng(0)
    indices = random.integers(0, len(described.labels), described.test_rows)
    path = write_glue_submission(task, [described.labels[i] for i in indices], tmp_path)
    assert path == str(tmp_path / FILES[task])
    written = list(described.values.values())
    assert read(path) == [written[i] for i in indices]
    again = write_glue_submission(task, indices, tmp_path / "again.tsv")
    assert read(again) == read(path)


def test_numbers_for_the_tasks_whose_files_hold_numbers_and_names_for_the_others():
    held = {task: set(glue_task(task).values.values()) for task in FILES if task != "STS-B"}
    assert {task for task, values in held.items() if values == {"0", "1"}} == {
        *("CoLA", "SST-2", "MRPC", "QQP", "WNLI")
    }
    assert held["MNLI"] == held["AX"] == {"entailment", "neutral", "contradiction"}
    assert held["QNLI"] == held["RTE"] == {"entailment", "not_entailment"}


def test_the_sizes_of_the_test_sets():
    sizes = {GLUE[task.lower().replace("-", "")].test_rows for task in FILES}
    assert sizes == {1063, 1821, 1725, 1379, 390965, 9796, 9847, 5463, 3000, 146, 1104}


def test_scores_are_clipped_to_three_decimals(tmp_path):
    answers = np.full(1379, 2.34567, np.float32)
    answers[:3] = -0.2, 5.4, 0.0004
    found = read(write_glue_submission("STS-B", answers, tmp_path))
    assert found[:4] == ["0.000", "5.000", "0.000", "2.346"]


@pytest.mark.parametrize(
    ("task", "answers", "match"),
    [
        ("WNLI", ["entailment"] * 145, "WNLI has 146 rows. Received: 145 answers"),
        ("WNLI", ["entailment"] * 145 + ["yes"], r"answer 145 must be one of .*Received: 'yes'"),
        ("WNLI", [2] * 146, "answer 0 must be one of .* or its index. Received: 2"),
        ("WNLI", [0.5] * 146, "answer 0 must be one of"),
        ("STS-B", [float("nan")] * 1379, "answer 0 must be a finite number. Received: nan"),
        ("STS-B", ["3"] * 1379, "answer 0 must be a finite number. Received: '3'"),
        ("SNLI", [], "to its own tasks only. Received: SNLI"),
    ],
)
def test_bad_answers_raise(tmp_path, task, answers, match):
    with pytest.raises(ValueError, match=match):
        write_glue_submission(task, answers, tmp_path)
    assert not list(tmp_path.iterdir())
