"""Every reader on input that no one meant: a table, or a ValueError that names the file."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from kbert.data import read_choices, read_conll, read_conllu, read_glue, read_squad

READERS = {
    "glue": ("a.tsv", lambda path: read_glue("SST-2", path)),
    "glue pairs": ("a.tsv", lambda path: read_glue("STS-B", path, on_error="count")),
    "conll": ("a.conll", read_conll),
    "conllu": ("a.conllu", read_conllu),
    "squad": ("a.json", read_squad),
    "swag": ("a.csv", lambda path: read_choices(path, format="swag")),
    "codah": ("a.tsv", lambda path: read_choices(path, format="codah")),
    "cosmos": ("a.jsonl", lambda path: read_choices(path, format="cosmos")),
    "race article": ("a.txt", lambda path: read_choices(path, format="race")),
    "race lines": ("a.jsonl", lambda path: read_choices(path, format="race")),
}
GZIPPED = {name: (f"{file}.gz", read) for name, (file, read) in READERS.items()}


def check(folder, reader, content: bytes) -> None:
    file, read = reader
    path = folder / file
    path.write_bytes(content)
    try:
        table = read(str(path))
    except ValueError as error:
        message = str(error)
    else:
        assert len(table) > 0
        return
    assert str(path) in message


@pytest.mark.parametrize("reader", [*READERS.values(), *GZIPPED.values()], ids=[*READERS, *GZIPPED])
@settings(deadline=None, max_examples=25)
@given(
    content=st.one_of(
        st.binary(max_size=40),
        st.text(alphabet='# \t\n\r,"01.-_{}[]aé\u2028', max_size=60).map(str.encode),
    )
)
def test_any_bytes(tmp_path_factory, reader, content):
    check(tmp_path_factory.mktemp("any"), reader, content)


KEYS = st.sampled_from(
    "data paragraphs context qas id question answers text answer_start is_impossible article"
    " questions options answer label sent1 sent2 ending0 answer0".split()
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just("A")
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)
QUESTION = st.fixed_dictionaries(
    {"id": st.just("q"), "question": st.just("Who?")},
    optional={"answers": JSON, "is_impossible": JSON},
)
PARAGRAPH = st.fixed_dictionaries(
    {"context": st.just("Ann"), "qas": st.lists(QUESTION | JSON, max_size=2)}
)
ARTICLE = st.fixed_dictionaries({"paragraphs": st.lists(PARAGRAPH, max_size=2)})
SQUAD = st.fixed_dictionaries({"data": st.lists(ARTICLE, max_size=2)})
RACE = st.fixed_dictionaries(
    {"article": st.just("Ann sings.")},
    optional=dict.fromkeys(("questions", "question", "options", "answers", "answer", "id"), JSON),
)


@pytest.mark.parametrize("name", ["squad", "race article", "race lines", "cosmos"])
@settings(deadline=None, max_examples=80)
@given(value=JSON | SQUAD | RACE)
def test_any_json(tmp_path_factory, name, value):
    check(tmp_path_factory.mktemp("json"), READERS[name], json.dumps(value).encode())
