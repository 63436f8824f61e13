"""Multiple choice: SWAG, RACE, CODAH and Cosmos QA as published, and what is malformed named."""

import json

import pytest

from kbert.data import read_choices

SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
ARTICLE = {
    "article": "Ann sings well.",
    "questions": ["Ann _ .", "Who sings?"],
    "options": [["sings", "runs", "eats", "sleeps"], ["Bob", "Ann", "Eve", "Al"]],
    "answers": ["A", "B"],
    "id": "high1.txt",
}


def write(path, content) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_swag(tmp_path):
    row = '0,lsmdc,18313,"He bows. She","He bows.",She,gold,"nods, twice.",runs.,sits.,hops.'
    expected = {
        "context": ["He bows."],
        "choices": [["She nods, twice.", "She runs.", "She sits.", "She hops."]],
    }
    table = read_choices(write(tmp_path / "a.csv", f"{SWAG},label\n{row},2\n"), format="swag")
    assert table.columns == {**expected, "label": [2], "id": ["18313"]}
    assert table.place(0).endswith("a.csv, line 2")
    unlabelled = read_choices(write(tmp_path / "b.csv", f"{SWAG}\n{row}\n"), format="swag")
    assert "label" not in unlabelled
    record = {"sent1": "He bows.", "sent2": "She", "label": 2}
    record |= {
        "ending0": "nods, twice.",
        "ending1": "runs.",
        "ending2": "sits.",
        "ending3": "hops.",
    }
    table = read_choices(write(tmp_path / "c.json", json.dumps(record)), format="swag")
    assert table.columns == {**expected, "label": [2]}


RACE = {
    "context": ["Ann sings well."] * 2,
    "choices": [
        ["Ann sings .", "Ann runs .", "Ann eats .", "Ann sleeps ."],
        ["Who sings? Bob", "Who sings? Ann", "Who sings? Eve", "Who sings? Al"],
    ],
    "label": [0, 1],
    "id": ["high1.txt"] * 2,
}


def test_race_as_folders(tmp_path):
    write(tmp_path / "RACE" / "dev" / "high" / "1.txt", ARTICLE)
    write(tmp_path / "RACE" / "dev" / "middle" / "2.txt", {**ARTICLE, "id": "middle2.txt"})
    assert read_choices(tmp_path / "RACE" / "dev" / "high", format="race").columns == RACE
    table = read_choices(tmp_path / "RACE", format="race")
    assert table["id"] == ["high1.txt"] * 2 + ["middle2.txt"] * 2
    assert table.place(3).endswith("2.txt (row 3 of all)")


def test_race_as_lines_of_articles_or_questions(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps(ARTICLE))
    assert read_choices(path, format="race").columns == RACE
    lines = [
        {
            "example_id": ARTICLE["id"],
            "article": ARTICLE["article"],
            "question": ARTICLE["questions"][at],
            "options": ARTICLE["options"][at],
            "answer": ARTICLE["answers"][at],
        }
        for at in range(2)
    ]
    path = write(tmp_path / "b.jsonl", "\n".join(map(json.dumps, lines)))
    table = read_choices(path, format="race")
    assert table.columns == RACE
    assert table.place(1).endswith("b.jsonl, line 2")
    unlabelled = {key: value for key, value in ARTICLE.items() if key != "answers"}
    path = write(tmp_path / "c.jsonl", json.dumps(unlabelled))
    assert "label" not in read_choices(path, format="race")


def test_codah(tmp_path):
    path = write(tmp_path / "a.tsv", 'o\tI am "tired. I\tsleep.\tfly.\train.\tmoo.\t3\n')
    assert read_choices(path, format="codah").columns == {
        "context": ['I am "tired. I'],
        "choices": [["sleep.", "fly.", "rain.", "moo."]],
        "label": [3],
    }


def test_cosmos(tmp_path):
    header = "id,context,question,answer0,answer1,answer2,answer3,label"
    path = write(tmp_path / "a.csv", f'{header}\nx1,"A, b .",Why ?,p,q,r,s,1\n')
    assert read_choices(path, format="cosmos").columns == {
        "context": ["A, b ."],
        "choices": [["Why ? p", "Why ? q", "Why ? r", "Why ? s"]],
        "label": [1],
        "id": ["x1"],
    }


@pytest.mark.parametrize(
    ("format", "name", "content", "match"),
    [
        (
            "codah",
            "a.tsv",
            "o\ta\tb\tc\td\te\n",
            "line 1: a row of CODAH must have 7 columns.*Received: 6",
        ),
        ("codah", "a.tsv", "o\ta\tb\tc\td\te\t4\n", "line 1: the label must be 0 to 3.*'4'"),
        ("cosmos", "a.csv", "id,context\nx,y\n", r"line 2: the row lacks the texts \['question', "),
        ("cosmos", "a.csv", "id,context\n", "holds no rows"),
        ("swag", "a.jsonl", '{"sent1": 3}', "line 1: the row lacks the texts .'sent1'"),
        ("race", "a.txt", "{", "is not an article of RACE"),
        ("race", "a.txt", [], "an article must be a JSON object. Received: list"),
        ("race", "a.txt", {**ARTICLE, "answers": ["A"]}, "the same length: 'questions', 'options'"),
        ("race", "a.txt", {**ARTICLE, "answers": ["A", "E"]}, "question 1 must be one of.*'E'"),
        (
            "race",
            "a.txt",
            {**ARTICLE, "options": [["a"], ["b", "c"]]},
            "RACE must have a string 'article'",
        ),
        ("race", "a.txt", {"article": "x"}, r"Received: \['article'\]"),
        (
            "race",
            "a.jsonl",
            '{"article": "x", "question": "y"}',
            "line 1: an article of RACE must have",
        ),
    ],
)
def test_malformed_rows_are_named(tmp_path, format, name, content, match):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=f"{name}.*{match}"):
        read_choices(path, format=format)


def test_a_label_in_some_rows_only_is_named(tmp_path):
    rows = [{**ARTICLE}, {**ARTICLE}]
    del rows[1]["answers"]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"a.jsonl, line 2: a label must be .*Received: None"):
        read_choices(path, format="race")


def test_unknown_formats_and_empty_folders(tmp_path):
    with pytest.raises(
        ValueError, match=r"format must be one of \['swag', 'race'.*Received: 'arc'"
    ):
        read_choices(tmp_path, format="arc")
    with pytest.raises(FileNotFoundError, match="No file matches"):
        read_choices(tmp_path, format="race")
