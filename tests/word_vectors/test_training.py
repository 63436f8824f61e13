"""What each method learns, and that a killed training resumes exactly."""

import numpy as np
import pytest

from kbert.word_vectors import (
    Cbow,
    FastText,
    Glove,
    SkipGram,
    WordVectors,
    train_skip_gram,
    train_word_vectors,
    training,
)
from kbert.word_vectors.training import METHODS
from tests.word_vectors.corpora import KINDS, capitals, stems, topics

NGRAMS = {"shortest_ngram": 3, "longest_ngram": 5, "buckets": 500}
LEARNING = {
    "skip_gram": SkipGram(width=10, epochs=10, batch_size=128, subsample=1, seed=1),
    "cbow": Cbow(width=10, epochs=20, batch_size=64, subsample=1, seed=1),
    "fasttext": FastText(width=10, epochs=10, batch_size=128, subsample=1, seed=1, **NGRAMS),
    "glove": Glove(width=10, epochs=100, batch_size=64, x_max=10, seed=1),
}
QUICK = {
    "skip_gram": SkipGram(width=4, epochs=2, batch_size=32),
    "cbow": Cbow(width=4, epochs=2, batch_size=32),
    "fasttext": FastText(width=4, epochs=2, batch_size=32, **NGRAMS),
    "glove": Glove(width=4, epochs=3, batch_size=16),
}


def test_every_method_is_tested():
    assert [*METHODS] == [*LEARNING] == [*QUICK]
    assert all(METHODS[kind] is type(method) for kind, method in LEARNING.items())


@pytest.mark.parametrize("kind", LEARNING)
def test_words_of_the_same_sentences_come_together(kind):
    vectors = train_word_vectors(topics(), LEARNING[kind], verbose=0)
    assert vectors.words[0] == "the"
    for words in KINDS:
        for word in words:
            near = [other for other, _ in vectors.nearest(word, 4) if other != "the"]
            assert {*near[:3]} == {*words} - {word}


@pytest.mark.parametrize("kind", LEARNING)
def test_planted_analogies(kind):
    changes = {} if kind == "glove" else {"epochs": 15, "batch_size": 512}
    method = LEARNING[kind].replace(width=16, window=4, **changes)
    vectors = train_word_vectors(capitals(), method, verbose=0)
    right = [
        vectors.analogy(f"country{a}", f"capital{a}", f"country{b}", 1)[0][0] == f"capital{b}"
        for a in range(6)
        for b in range(6)
        if a != b
    ]
    assert np.mean(right) >= 0.9


def test_unseen_words_are_near_their_stem(tmp_path):
    vectors = train_word_vectors(stems(), LEARNING["fasttext"], verbose=0)
    vectors.save(tmp_path / "model.bin", "fasttext")
    loaded = WordVectors.load(tmp_path / "model.bin")
    np.testing.assert_allclose(loaded.matrix, vectors.matrix, atol=1e-6)
    for stem in ("walk", "jump", "sing", "cook"):
        for found in (vectors, loaded):
            assert f"{stem}able" not in found
            near = [word for word, _ in found.nearest(f"{stem}able", 20) if not word[-1].isdigit()]
            assert all(word.startswith(stem) for word in near[:3])


@pytest.mark.parametrize("kind", QUICK)
def test_a_seed_decides(kind):
    one, same, other = (
        train_word_vectors(topics(60), QUICK[kind].replace(seed=seed), verbose=0).matrix
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


class Killed(BaseException):
    """Stands for the end of the process."""


def kill_after(monkeypatch, kind, steps):
    """Makes the learners of a method raise behind so many steps."""
    owner = type(QUICK[kind].learner(training.read_corpus(topics(60), 1, True)))
    step, done = owner.step, []

    def counted(self, *arguments):
        step(self, *arguments)
        done.append(1)
        if len(done) == steps:
            raise Killed

    monkeypatch.setattr(owner, "step", counted)
    return done


@pytest.mark.parametrize("kind", QUICK)
def test_a_killed_training_resumes_exactly(kind, monkeypatch, tmp_path):
    monkeypatch.setattr("kbert.word_vectors.negative_sampling._BLOCK", 100)
    whole = train_word_vectors(topics(60), QUICK[kind], verbose=0).matrix
    for seconds in (-1, 1e9):  # a checkpoint before each step; or none
        monkeypatch.setattr(training, "_SECONDS", seconds)
        folder = tmp_path / str(seconds)
        for steps in (5, 1):
            with monkeypatch.context() as patched:
                kill_after(patched, kind, steps)
                with pytest.raises(Killed):
                    train_word_vectors(topics(60), QUICK[kind], model_dir=folder, verbose=0)
            assert (folder / "checkpoint.safetensors").exists() == (seconds < 0)
        found = train_word_vectors(topics(60), QUICK[kind], model_dir=folder, verbose=0)
        np.testing.assert_array_equal(found.matrix, whole)
        with monkeypatch.context() as patched:  # finished: no step is run again
            done = kill_after(patched, kind, 1)
            again = train_word_vectors(topics(60), QUICK[kind], model_dir=folder, verbose=0)
            assert not done
        np.testing.assert_array_equal(again.matrix, whole)


def test_another_training_is_not_resumed(tmp_path):
    def train(texts, method):
        return train_word_vectors(texts, method, model_dir=tmp_path, verbose=0)

    train(topics(60), QUICK["cbow"])
    with pytest.raises(ValueError, match=r"other settings.*Received: width was 4, is 5"):
        train(topics(60), QUICK["cbow"].replace(width=5))
    with pytest.raises(ValueError, match=r"method was 'cbow', is 'skip_gram'"):
        train(topics(60), QUICK["skip_gram"])
    with pytest.raises(ValueError, match=r"corpus was \d+, is \d+"):
        train(topics(61), QUICK["cbow"])
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors"):
        train(topics(60), QUICK["cbow"])


def test_infinite_vectors_are_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"choose a lower `learning_rate`. Received: NaN or inf"):
        train_word_vectors(
            topics(60), QUICK["glove"].replace(learning_rate=1e30), model_dir=tmp_path, verbose=0
        )
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_what_is_no_method():
    with pytest.raises(ValueError, match=r"one of SkipGram, Cbow, FastText, Glove.*: 'cbow'"):
        train_word_vectors(topics(9), "cbow")


def test_the_former_name_warns():
    settings = {"width": 4, "epochs": 2, "subsample": None}
    with pytest.warns(DeprecationWarning, match=r"use train_word_vectors\(texts, SkipGram"):
        found = train_skip_gram(topics(60), **settings, verbose=0)
    wanted = train_word_vectors(topics(60), SkipGram(**settings | {"subsample": 1}), verbose=0)
    np.testing.assert_array_equal(found.matrix, wanted.matrix)
    with (
        pytest.warns(DeprecationWarning, match="is deprecated"),
        pytest.raises(TypeError, match=r"no such argument.*mean: window"),
    ):
        train_skip_gram(topics(60), windows=3)
