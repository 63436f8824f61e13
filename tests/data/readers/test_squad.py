"""SQuAD: 1.1, 2.0, test files, answers that are not where they should be, and broken files."""

import gzip
import json
import logging
import unicodedata

import pytest

from kbert.data import read_squad

CONTEXT = "Ann sings. Bob and Ann sing."


def question(identifier="q1", answers=(("Ann", 0),), **more) -> dict:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identifier, "question": "Who?", "answers": found, **more}


def write(path, *questions, context=CONTEXT) -> str:
    content = json.dumps(
        {"data": [{"title": "T", "paragraphs": [{"context": context, "qas": list(questions)}]}]}
    ).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_answers_and_no_answer(tmp_path, name):
    path = write(
        tmp_path / name,
        question(answers=[("Ann", 0), ("Bob and Ann", 11)]),
        question("q2", [], is_impossible=True, plausible_answers=[{"text": "Bob"}]),
        question("q3", is_impossible=False),
    )
    table = read_squad(path)
    assert table.columns == {
        "id": ["q1", "q2", "q3"],
        "question": ["Who?"] * 3,
        "context": [CONTEXT] * 3,
        "answers": [["Ann", "Bob and Ann"], [], ["Ann"]],
        "answer_starts": [[0, 11], [], [0]],
    }
    assert table.place(1) == f"row 1 of {path}"


def test_a_test_file_has_no_answers(tmp_path):
    asked = {"id": "q1", "question": "Who?"}
    assert set(read_squad(write(tmp_path / "a.json", asked)).columns) == {
        *("id", "question", "context")
    }
    path = write(tmp_path / "b.json", asked, question("q2"))
    with pytest.raises(
        ValueError, match=r"b.json, question q1: 'answers' is missing, but other questions"
    ):
        read_squad(path)


@pytest.mark.parametrize(
    ("text", "start", "nearest"),
    [
        ("Ann", 17, 19),
        ("Ann", 20, 19),
        ("Ann", 9, 0),
        ("Ann", -3, 0),
        ("Ann", 400, 19),
        ("Bob", 0, 11),
    ],
)
def test_a_wrong_start_moves_to_the_nearest_occurrence(tmp_path, caplog, text, start, nearest):
    path = write(tmp_path / "a.json", question(answers=[(text, start)]))
    with caplog.at_level(logging.WARNING):
        assert read_squad(path)["answer_starts"] == [[nearest]]
    assert "a.json: 1 answers did not begin at their answer_start and were moved: q1" in caplog.text


def test_an_answer_that_is_nowhere_raises_or_is_counted(tmp_path, caplog):
    path = write(tmp_path / "a.json", question("q1", [("Eve", 0)]), question("q2"))
    with pytest.raises(
        ValueError, match=r"question q1: the answer does not occur in its context.*'Eve'"
    ):
        read_squad(path)
    with caplog.at_level(logging.WARNING):
        assert read_squad(path, on_error="count")["id"] == ["q2"]
    assert "1 questions are skipped" in caplog.text
    assert "q1" in caplog.text


def test_several_files(tmp_path):
    write(tmp_path / "a.json", question("q1"))
    write(tmp_path / "b.json", question("q2"))
    assert read_squad(tmp_path / "*.json")["id"] == ["q1", "q2"]
    write(tmp_path / "c.json", question("q1"))
    with pytest.raises(
        ValueError, match=r"ids must be unique. Received: 'q1' in .*a.json .* and .*c.json"
    ):
        read_squad(tmp_path / "*.json")


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        (question(is_impossible=True), "q1: a question must either have answers or be impossible"),
        (question(answers=[], is_impossible=False), "is_impossible=False and 0 answers"),
        (question(answers=[("", 0)]), "q1: an answer must have a string 'text', not empty"),
        (question(answers=[("Ann", "0")]), "q1: an answer must have a string 'text', not empty"),
        (
            {"id": "q1", "question": "Who?", "answers": "Ann"},
            "q1: an answer must have a string 'text'",
        ),
        ({"id": 1, "question": "Who?", "answers": []}, "a question must have the strings 'id' and"),
        ("Who?", "a question must have the strings 'id' and 'question'. Received: Who?"),
    ],
)
def test_broken_questions_are_named(tmp_path, broken, match):
    with pytest.raises(ValueError, match=f"a.json.*{match}"):
        read_squad(write(tmp_path / "a.json", broken))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"data": [\n{"paragraphs"', "line 2 is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "a list 'data' here. Received: list"),
        ('{"questions": []}', r"a list 'data' here. Received: \['questions'\]"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "a paragraph must have a string 'context'"),
        ('{"data": []}', "holds no questions"),
        ("", "is empty"),
    ],
)
def test_broken_files_are_named(tmp_path, content, match):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"a.json.*{match}"):
        read_squad(path)


def test_unknown_policy_raises(tmp_path):
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'count'"):
        read_squad(tmp_path / "a.json", on_error="skip")


def test_an_answer_in_another_unicode_form_is_told_so(tmp_path):
    context = unicodedata.normalize("NFD", "Das Café ist zu.")
    answers = ((unicodedata.normalize("NFC", "Café"), 4),)
    path = write(tmp_path / "a.json", question(answers=answers), context=context)
    message = r"does not occur in its context as written.*in NFC, the context in NFD"
    with pytest.raises(ValueError, match=message):
        read_squad(path)
