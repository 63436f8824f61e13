"""Patterns to sources: files, globs, folders, other formats."""

import pytest

from kbert.text import documents, open_sources


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "b.txt").write_text("B one. B two.\n\nB three.")
    (tmp_path / "a.txt").write_text("A one.")
    (tmp_path / "c.jsonl").write_text('{"text": "C one."}')
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "d.txt").write_text("D one.")
    return tmp_path


def names(sources) -> list[str]:
    return [source.name.rsplit("/", 1)[1] for source in sources]


def test_patterns_give_each_file_once_in_a_fixed_order(corpus):
    assert names(open_sources(f"{corpus}/*.txt")) == ["a.txt", "b.txt"]
    assert names(open_sources([f"{corpus}/b.txt", f"{corpus}/*"])) == ["a.txt", "b.txt", "c.jsonl"]
    assert names(open_sources(f"{corpus}/**/*.txt")) == ["a.txt", "b.txt", "d.txt"]
    assert names(open_sources(corpus / "a.txt")) == ["a.txt"]


def test_a_name_with_brackets_is_a_name_first(corpus):
    (corpus / "[ab].txt").write_text("brackets")
    assert names(open_sources(f"{corpus}/[ab].txt")) == ["[ab].txt"]


def test_documents_are_lists_of_sentences(corpus):
    assert list(documents([f"{corpus}/*.txt", f"{corpus}/c.jsonl"])) == [
        ["A one."],
        ["B one.", "B two."],
        ["B three."],
        ["C one."],
    ]


def test_what_cannot_be_opened(corpus):
    with pytest.raises(FileNotFoundError, match=r"No file matches. Received: '.*/\*\.text'"):
        open_sources(f"{corpus}/*.text")
    with pytest.raises(ValueError, match=r"such as .*/\*\.txt. Received: the folder"):
        open_sources(str(corpus))
    (corpus / "x.docx").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"plain or \.gz, or a Parquet.*Received: .*x\.docx"):
        open_sources(f"{corpus}/x.docx")
    with pytest.raises(ValueError, match="No sources"):
        open_sources([])


def test_identity_changes_with_the_file(corpus):
    before = [source.identity() for source in open_sources(f"{corpus}/*.txt")]
    assert before == [source.identity() for source in open_sources(f"{corpus}/*.txt")]
    (corpus / "a.txt").write_text("A one. And more.")
    assert before != [source.identity() for source in open_sources(f"{corpus}/*.txt")]
