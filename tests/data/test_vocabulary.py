"""A vocabulary is reused for the call that trained it, and for no other."""

import json
import os

import pytest

from kbert.data import train_or_reuse_vocabulary, vocabulary
from kbert.tokenizers import read_vocabulary, save_vocabulary


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"The red fox {n} runs and Jumps." for n in range(50)))
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out" / "vocab.txt"


@pytest.fixture
def trainings(monkeypatch):
    """The sizes that were really trained."""
    sizes = []
    train = vocabulary.tokenizers.train_wordpiece

    def counted(texts, size, **options):
        sizes.append(size)
        return train(texts, size, **options)

    monkeypatch.setattr(vocabulary.tokenizers, "train_wordpiece", counted)
    return sizes


def test_an_equal_call_reuses(text, path, trainings):
    first = train_or_reuse_vocabulary(path, [text], 60)
    assert train_or_reuse_vocabulary(path, str(text), 60) == first == read_vocabulary(path)
    assert trainings == [60]


def test_a_vocabulary_smaller_than_asked_for_is_reused_too(text, path, trainings):
    assert len(train_or_reuse_vocabulary(path, text, 5000)) < 5000
    train_or_reuse_vocabulary(path, text, 5000)
    assert trainings == [5000]


@pytest.mark.parametrize(
    "changes", [{"vocabulary_size": 70}, {"lowercase": False}, {"on_bad_utf8": "replace"}]
)
def test_other_settings_train_anew(text, path, trainings, changes):
    settings = {"vocabulary_size": 60}
    train_or_reuse_vocabulary(path, text, **settings)
    found = train_or_reuse_vocabulary(path, text, **{**settings, **changes})
    assert len(trainings) == 2 and read_vocabulary(path) == found


def test_other_text_trains_anew(text, path, trainings):
    before = train_or_reuse_vocabulary(path, text, 60)
    text.write_text("\n\n".join(["Zebras zoom quickly."] * 50))
    assert train_or_reuse_vocabulary(path, text, 60) != before
    assert len(trainings) == 2


def test_a_vocabulary_of_unknown_origin_is_not_taken(text, path, trainings):
    first = train_or_reuse_vocabulary(path, text, 60)
    save_vocabulary([*first[:-1], "strange"], path)
    assert train_or_reuse_vocabulary(path, text, 60) == first
    origin = path.with_name("vocab.origin.json")
    origin.write_text(origin.read_text()[:30])
    assert train_or_reuse_vocabulary(path, text, 60) == first
    os.remove(origin)
    assert train_or_reuse_vocabulary(path, text, 60) == first
    assert len(trainings) == 4 and json.loads(origin.read_text())["vocabulary_size"] == 60


def test_the_vocabulary_of_finished_shards_stays(text, path):
    first = train_or_reuse_vocabulary(path, text, 60)
    path.with_name("manifest.json").write_text("{}")
    assert train_or_reuse_vocabulary(path, text, 60) == first
    with pytest.raises(
        ValueError, match=r"holds shards .*Differing: \['lowercase: True, now False"
    ):
        train_or_reuse_vocabulary(path, text, 60, lowercase=False)
    assert read_vocabulary(path) == first
