"""Neighbouring sentences: which rows a corpus gives, and what an embedder learns from them."""

import collections
import json

import keras
import numpy as np
import pytest

import kbert
from kbert.data import neighbours
from tests.harness import tiny_config

TEXT = "A one. B two. C three. D four. E five.\n\nF six. G seven.\n\nH eight.\n"


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


def rows_of(table):
    return list(zip(*table.columns.values(), strict=True))


def test_pairs_stay_inside_documents(corpus):
    table = neighbours(corpus)
    assert list(table.columns) == ["first", "second"]
    assert [a[0] + b[0] for a, b in rows_of(table)] == ["AB", "BC", "CD", "DE", "FG"]


def test_negatives_are_the_nearest_that_are_no_neighbours(corpus):
    table = neighbours(corpus, negatives=2)
    initials = ["".join(text[0] for text in texts) for texts in table["negatives"]]
    assert initials == ["CD", "DE", "EA", "BA", ""]


def test_both_sides_and_json_lines(corpus, tmp_path):
    path = tmp_path / "corpus.jsonl"
    with path.open("w") as file:
        for text in TEXT.strip().split("\n\n"):
            file.write(json.dumps({"body": text}) + "\n")
    table = neighbours(path, field="body", both_sides=True)
    assert list(table.columns) == ["previous", "text", "next"]
    assert [a[0] + b[0] + c[0] for a, b, c in rows_of(table)] == ["ABC", "BCD", "CDE"]
    assert neighbours(corpus, both_sides=True).columns == table.columns


def test_equal_neighbours_are_skipped(tmp_path):
    path = tmp_path / "song.txt"
    path.write_text("La.\nLa.\nOh.\nLa.\n")
    assert rows_of(neighbours(path)) == [("La.", "Oh."), ("Oh.", "La.")]
    assert rows_of(neighbours(path, both_sides=True)) == [("La.", "Oh.", "La.")]


def test_a_sample_is_uniform_and_in_the_corpus_order(corpus):
    everything = rows_of(neighbours(corpus))
    counts = collections.Counter()
    for seed in range(500):
        sample = rows_of(neighbours(corpus, max_rows=2, seed=seed))
        assert sample == [row for row in everything if row in sample]
        counts.update(sample)
    assert sum(counts.values()) == 1000
    assert all(150 < counts[row] < 250 for row in everything)  # 200, deviation 11
    assert rows_of(neighbours(corpus, max_rows=9)) == everything


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"negatives": -1}, r"negatives must be at least 0.*Received: negatives=-1"),
        ({"max_rows": 0}, r"max_rows at least 1 or None.*max_rows=0"),
        ({"both_sides": True, "negatives": 1}, r"negatives require pairs.*both_sides=True"),
    ],
    ids=["negatives", "max_rows", "both"],
)
def test_arguments_out_of_range(corpus, arguments, message):
    with pytest.raises(ValueError, match=message):
        neighbours(corpus, **arguments)


def test_a_corpus_without_neighbours(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("One.\n\nTwo.\n")
    with pytest.raises(ValueError, match=r"at least 2 sentences, .* Received: no such document"):
        neighbours(path)
    path.write_text("One. Two.\n")
    with pytest.raises(ValueError, match="at least 3 sentences"):
        neighbours(path, both_sides=True)


@pytest.mark.slow
def test_an_embedder_learns_which_sentence_is_next(tmp_path):
    words = ["fox", "dog", "cat", "house", "river", "tree"]
    colours = ["red", "blue", "green", "old", "big", "small"]
    draw = np.random.default_rng(0)
    documents = [
        f"the {words[i]}\n{colours[i]} it was\n" + "and so on\nit was\n" * (i % 2)
        for i in draw.integers(0, 6, 96)
    ]
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(documents))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = kbert.WordPieceTokenizer(
        [*special, "the", "it", "was", "and", "so", "on", *words, *colours]
    )
    keras.utils.set_random_seed(0)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, dropout=0.0)
    task = kbert.tasks.TextEmbedder(kbert.Encoder(config), tokenizer)
    held_out = [(f"the {a}", f"{b} it was") for a, b in zip(words, colours, strict=True)]
    before = task.evaluate(held_out, verbose=0)["recall_at_1"]
    task.fit(neighbours(path, negatives=2), epochs=4, batch_size=16, learning_rate=3e-3, verbose=0)
    assert task.evaluate(held_out, verbose=0)["recall_at_1"] == 1.0 > before
