"""A tokenizer is reused for the call that trained it, and for no other."""

import json
import os

import pytest

from kbert.data import train_or_reuse_tokenizer
from kbert.data.corpus import vocabulary
from kbert.tokenizers import load_tokenizer, save_vocabulary

KINDS = [("wordpiece", 60), ("bpe", 300), ("unigram", 60), ("words", 20), ("words", 0)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"The red fox {n} runs and Jumps." for n in range(50)))
    return path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def trainings(monkeypatch):
    """The sizes that were really trained."""
    sizes = []
    train = vocabulary.tokenizers.train_tokenizer

    def counted(texts, size, **options):
        sizes.append(size)
        return train(texts, size, **options)

    monkeypatch.setattr(vocabulary.tokenizers, "train_tokenizer", counted)
    return sizes


@pytest.mark.parametrize(("kind", "size"), KINDS)
def test_an_equal_call_reuses(text, folder, trainings, kind, size):
    first = train_or_reuse_tokenizer(folder, [text], size, kind=kind)
    again = train_or_reuse_tokenizer(folder, str(text), size, kind=kind)
    for copy in (again, load_tokenizer(folder)):
        assert copy.kind == kind
        assert copy.get_config() == first.get_config()
        assert copy.checksum == first.checksum
    assert trainings == [size]


def test_a_vocabulary_smaller_than_asked_for_is_reused_too(text, folder, trainings):
    assert train_or_reuse_tokenizer(folder, text, 5000).vocabulary_size < 5000
    train_or_reuse_tokenizer(folder, text, 5000)
    assert trainings == [5000]


@pytest.mark.parametrize(
    "changes",
    [
        {"vocabulary_size": 70},
        {"lowercase": False},
        {"on_bad_utf8": "replace"},
        {"kind": "unigram"},
    ],
)
def test_other_settings_train_again(text, folder, trainings, changes):
    settings = {"vocabulary_size": 60}
    train_or_reuse_tokenizer(folder, text, **settings)
    found = train_or_reuse_tokenizer(folder, text, **{**settings, **changes})
    assert len(trainings) == 2
    assert load_tokenizer(folder).checksum == found.checksum


def test_other_text_trains_again(text, folder, trainings):
    before = train_or_reuse_tokenizer(folder, text, 60).checksum
    text.write_text("\n\n".join(["Zebras zoom quickly."] * 50))
    assert train_or_reuse_tokenizer(folder, text, 60).checksum != before
    assert len(trainings) == 2


def test_a_vocabulary_of_unknown_origin_is_not_taken(text, folder, trainings):
    first = train_or_reuse_tokenizer(folder, text, 60).vocabulary
    save_vocabulary([*first[:-1], "strange"], folder / "vocab.txt")
    assert train_or_reuse_tokenizer(folder, text, 60).vocabulary == first
    origin = folder / vocabulary.RECORD
    origin.write_text(origin.read_text()[:30])
    assert train_or_reuse_tokenizer(folder, text, 60).vocabulary == first
    os.remove(origin)
    assert train_or_reuse_tokenizer(folder, text, 60).vocabulary == first
    assert len(trainings) == 4
    assert json.loads(origin.read_text())["vocabulary_size"] == 60


def test_another_kind_of_unknown_origin_is_left_alone(text, folder):
    train_or_reuse_tokenizer(folder, text, 60)
    os.remove(folder / vocabulary.RECORD)
    with pytest.raises(
        ValueError, match=r"can contain only one tokenizer. .*kind unigram, with vocab.txt"
    ):
        train_or_reuse_tokenizer(folder, text, 60, kind="unigram")
    with pytest.raises(
        ValueError, match=r"can contain only one tokenizer. .*kind words, with vocab.txt"
    ):
        train_or_reuse_tokenizer(folder, text, 0, kind="words")
    assert load_tokenizer(folder).kind == "wordpiece"


def test_the_vocabulary_of_finished_shards_stays(text, folder):
    first = train_or_reuse_tokenizer(folder, text, 60)
    (folder / "manifest.json").write_text("{}")
    assert train_or_reuse_tokenizer(folder, text, 60).checksum == first.checksum
    rule = (
        "contains shards that were made with another vocabulary; choose another folder. Received: "
    )
    changes = "vocabulary_size was 60, is 61; lowercase was None, is False$"
    with pytest.raises(ValueError, match=rule + changes):
        train_or_reuse_tokenizer(folder, text, 61, lowercase=False)
    before = text.read_text()
    text.write_text(f"{before}\n\nMore of it.")
    with pytest.raises(ValueError, match=r"made from other data; choose another.*Received: other"):
        train_or_reuse_tokenizer(folder, text, 60)
    text.write_text(before)
    assert load_tokenizer(folder).vocabulary == first.vocabulary
