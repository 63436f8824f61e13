"""Metrics, reports and the file of answers."""

import datetime
import decimal
import json
from pathlib import Path

import numpy as np
import pytest

import kbert
from kbert import tasks
from kbert.data import Table
from kbert.experiments import (
    check_submission,
    named_task,
    predict_and_score,
    tune_threshold,
    write_submission,
)
from kbert.experiments.evaluation import answer_lines, write_answers


@pytest.fixture
def make(preset, tokenizer):
    """(kind, answers, labels, settings) -> a task that gives these answers."""
    encoder = kbert.Encoder.from_preset(preset)

    def made(kind, answers, labels=None, **settings):
        named = {} if labels is None else {"labels": labels}
        task = getattr(tasks, kind)(encoder, tokenizer, **named, **settings)
        task.predict = lambda table, **options: answers
        task.score = lambda table, answers: {"accuracy": 0.5}
        return task

    return made


def test_a_report_by_class_and_every_answer(make, tmp_path):
    table = Table({"text": ["a", "b", "c"], "label": ["ham", "spam", "spam"], "extra": [1, 2, 3]})
    task = make("TextClassifier", [{"label": x} for x in ("ham", "ham", "spam")], ["ham", "spam"])
    found = predict_and_score(task, table)
    assert found.confusion == {"matrix": [[1, 0], [1, 1]], "names": ["ham", "spam"]}
    assert "spam          1.0000  0.5000  0.6667        2" in str(found)
    assert str(found).endswith("metric     value\naccuracy  0.5000")
    found.write(tmp_path, "dev", table)
    lines = (tmp_path / "dev_answers.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"text": "b", "expected": "spam", "label": "ham"}
    assert (tmp_path / "dev_report.txt").read_text() == f"{found.text}\n"


def test_ids_of_other_types_are_written_as_text():
    ids = [datetime.date(2026, 1, 2), decimal.Decimal("1.50"), np.int8(3)]
    table = Table({"id": ids, "text": ["a", "b", "c"]})
    lines = answer_lines(kbert.TextClassifier.columns, table, [{"label": "x"}] * 3, expected=False)
    assert [json.loads(line)["id"] for line in lines] == ["2026-01-02", "1.50", 3]


def test_labels_by_index_are_reported_by_name(make):
    table = Table({"text": ["a", "b"], "label": [1, 0]})
    task = make("TextClassifier", [{"label": "spam"}, {"label": "ham"}], ["ham", "spam"])
    assert predict_and_score(task, table).report.accuracy == 1.0


def test_labels_are_looked_at_before_the_work(make):
    task = make("TextClassifier", [], ["ham", "spam"])
    task.predict = lambda table, **options: pytest.fail("was asked")
    with pytest.raises(ValueError, match=r"There is no column 'label' in mail.csv"):
        predict_and_score(task, Table({"text": ["a"]}, source="mail.csv"))


def test_each_of_any_number_of_labels(make):
    table = Table({"text": ["a", "b"], "label": [["x", "y"], []]})
    task = make(
        "TextClassifier", [{"labels": ["x"]}, {"labels": ["x"]}], ["x", "y"], multi_label=True
    )
    found = predict_and_score(task, table)
    assert found.report is None
    assert found.confusion is None
    assert found.text.splitlines()[1].split() == ["x", "0.5000", "1.0000", "0.6667", "1"]
    assert found.text.splitlines()[2].split() == ["y", "0.0000", "0.0000", "0.0000", "1"]


def test_entities_and_words(make):
    table = Table({"words": [["Ann", "sings"], ["Bo"]], "labels": [["B-per", "O"], ["B-per"]]})
    task = make("TokenClassifier", [{"labels": ["B-per", "O"]}, {"labels": ["O"]}], ["O", "B-per"])
    found = predict_and_score(task, table)
    assert found.reports[0].overall["recall"] == 0.5
    assert found.report.confusion.tolist() == [[1, 0], [1, 1]]
    assert found.text.index("entity") < found.text.index("class")


def test_numbers_have_no_report(make, tmp_path):
    table = Table({"first": ["a"], "second": ["b"], "label": [2.0]})
    found = predict_and_score(make("TextRegressor", np.array([1.5], np.float32)), table)
    assert found.text == ""
    found.write(tmp_path, "dev", table)
    assert [path.name for path in tmp_path.iterdir()] == ["dev_answers.jsonl"]
    assert json.loads((tmp_path / "dev_answers.jsonl").read_text()) == {
        "first": "a",
        "second": "b",
        "expected": 2.0,
        "score": 1.5,
    }


def test_answers_of_unlabelled_data(tmp_path):
    columns = tasks.QuestionAnswerer.columns
    table = Table({"id": ["q1"], "question": ["Who?"], "context": ["A long article."]})
    write_answers(tmp_path / "a.jsonl", columns, table, [{"id": "q1", "answer": "A"}])
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {
        "id": "q1",
        "question": "Who?",
        "answer": "A",
    }
    assert answer_lines(columns, table, [{"answer": "é", "n": np.float32(1)}], expected=False) == [
        '{"id": "q1", "question": "Who?", "answer": "é", "n": 1.0}'
    ]


def test_a_threshold_belongs_to_tasks_that_have_one(make):
    with pytest.raises(ValueError, match=r"any number of labels. Received: a TextRegressor"):
        tune_threshold(make("TextRegressor", []), None)


def test_submissions_are_for_glue(tmp_path):
    answers = [{"label": "entailment"}] * 146
    table = Table({"first": ["a"] * 146, "second": ["b"] * 146})
    path = Path(write_submission(named_task("wnli"), table, answers, tmp_path))
    assert path.read_text().splitlines()[:2] == ["index\tprediction", "0\t1"]
    table = Table({"id": [str(i) for i in range(500)], "context": ["a"] * 500})
    path = Path(write_submission(named_task("copa"), table, [{"choice": 1}] * 500, tmp_path))
    assert path.read_text().splitlines()[0] == '{"idx": 0, "label": 1}'
    with pytest.raises(
        ValueError, match=r"requires a task of GLUE or SuperGLUE. Received: classify"
    ):
        check_submission(named_task("classify"), Table({"text": ["a"]}))
    with pytest.raises(ValueError, match=r"has 146 rows. Received: 1 answers"):
        check_submission(named_task("wnli"), Table({"first": ["a"], "second": ["b"]}))
