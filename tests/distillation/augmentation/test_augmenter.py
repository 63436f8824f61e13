import numpy as np
import pytest

import kbert
from kbert.data import Table, as_table
from kbert.distillation.augmentation import (
    AugmentationSettings,
    Augmenter,
    augment,
    augmenter,
    preview,
)
from kbert.distillation.augmentation.neighbours import whole_words
from kbert.word_vectors import WordVectors

LIKED = ("queen", "king", "moon", "sun")
PLACES = np.array([(row, 0, word) for row in range(4) for word in range(5)])
TEXTS = ["The red fox jumps .", "big  cat , old dog!", "the of", "", "quick foxing 7 days"]


def records(*arguments, **settings):
    made = Augmenter(*arguments, **settings)
    return [record for row in made.rows() for record in made.versions(row)]


def candidates(model, text, **options):
    (row,) = Augmenter(as_table([text]), model, **options).rows()
    (sentence,), (found,) = row.sentences, row.candidates
    return {sentence.word(number): words for number, words in enumerate(found)}


def test_words_get_candidates_of_the_model_or_of_their_vectors(make_model):
    liked = make_model(*LIKED)
    vectors = WordVectors(["foxing", "hunting", "king"], np.array([[1.0, 0], [1, 0.1], [0, 1]]))
    settings = AugmentationSettings(candidates=2)
    found = candidates(liked, "The Fox of king foxing FOXING dogless", settings=settings)
    assert found.pop("Fox") == ["King", "Queen"]
    assert found.pop("king") == ["queen", "moon"]
    own = found["foxing"]
    assert len(own) == 2
    assert [word.upper() for word in own] == found["FOXING"]
    assert len(found["dogless"]) == 2
    options = {"vectors": vectors, "stop_words": {"fox", "of"}}
    given = candidates(liked, "foxing Dogless of fox", settings=settings, **options)
    assert given == {"foxing": ["hunting", "king"], "Dogless": []}


def test_copies_keep_what_stands_around_words_and_are_distinct(model):
    table = as_table((TEXTS, [3, 4, 5, 6, 7]))
    settings = AugmentationSettings(copies=20, candidates=3)
    made = Augmenter(table, model, settings)
    rows = list(made.rows())
    assert [len(row.copies) for row in rows[2:4]] == [0, 0]  # nothing to replace
    for row, text in zip(rows, TEXTS, strict=True):
        texts = [copy.values[0] for copy in row.copies]
        assert len({*texts, text}) == len(texts) + 1 <= 21
        for copy in row.copies:
            (sentence,), (replaced,) = row.sentences, copy.replaced
            assert sentence.replaced(replaced) == copy.values[0]
            assert replaced
            assert all(word in row.candidates[0][n] for n, word in replaced.items())
    assert all(copy.values[0].startswith("The ") for copy in rows[0].copies)
    assert all(" 7 " in copy.values[0] for copy in rows[4].copies)
    found = [record for row in rows for record in made.versions(row)]
    assert {record["label"] for record in found if record["text"].startswith("The")} == {3}
    assert found[0] == {"text": TEXTS[0], "label": 3}


def test_every_word_is_replaced_with_the_probability_by_any_candidate_alike(make_model):
    """6,000 draws: shares within five standard deviations."""
    liked = make_model(*LIKED)
    table = as_table(["fox dog tree book house"] * 4)
    settings = AugmentationSettings(copies=300, candidates=4, replaced_share=0.4)
    made = Augmenter(table, liked, settings)
    found = made._choices(PLACES, np.full(20, 4, "int32"))
    draws = found.size
    assert abs((found >= 0).mean() - 0.4) < 5 * (0.4 * 0.6 / draws) ** 0.5
    chosen = found[found >= 0]
    for candidate in range(4):
        assert abs((chosen == candidate).mean() - 0.25) < 5 * (0.25 * 0.75 / chosen.size) ** 0.5
    # Words are replaced independently of each other, and rows alike are drawn apart.
    both = ((found[0] >= 0) & (found[1] >= 0)).mean()
    assert abs(both - 0.16) < 5 * (0.16 * 0.84 / 300) ** 0.5
    assert len({row.tobytes() for row in found}) == 20
    (first, *_) = made.rows([0])
    assert {word for copy in first.copies for word in copy.replaced[0].values()} == set(LIKED)
    other = Augmenter(table, liked, AugmentationSettings(copies=300, seed=1))
    assert (other._choices(PLACES, np.full(20, 4, "int32")) != found).any(1).all()


def test_shares_at_the_end_of_the_range(make_model):
    liked = make_model("moon", "sun")
    settings = AugmentationSettings(copies=5, candidates=1, replaced_share=1.0)
    assert augment(["fox dog"], liked, **vars(settings))["text"] == ["fox dog", "moon moon"]


def test_nothing_hangs_on_what_is_computed_together(model, monkeypatch):
    table = as_table(TEXTS * 2)
    settings = AugmentationSettings(copies=6, candidates=5)
    made = Augmenter(table, model, settings, batch_size=32)
    whole = list(made.rows())
    expected = [record for row in whole for record in made.versions(row)]
    for batch_size, chunk in ((1, 256), (3, 2)):
        monkeypatch.setattr(augmenter, "CHUNK", chunk)
        assert records(table, model, settings, batch_size=batch_size) == expected
    parts = [row for numbers in ([7], [3, 2]) for row in made.rows(numbers)]
    assert parts == [whole[7], whole[3], whole[2]]


def test_both_texts_of_a_pair(model):
    table = Table({"first": ["red fox"] * 2, "second": ["big dog", "the"], "label": [0.5, 1.0]})
    made = Augmenter(table, model, AugmentationSettings(copies=40, candidates=3))
    first, second = made.rows()
    for text in range(2):
        assert any(copy.replaced[text] for copy in first.copies)
    assert any(all(copy.replaced) for copy in first.copies)
    assert {copy.values[1] for copy in second.copies} == {"the"}
    pairs = [copy.values for copy in first.copies]
    assert len(set(pairs)) == len(pairs)
    assert ("red fox", "big dog") not in pairs


def test_tagged_words_keep_their_tags(model):
    table = Table({"words": [["Big", "foxing", "U.N.", "of"]], "labels": [["A", "B", "C", "O"]]})
    found = records(table, model, AugmentationSettings(copies=10, candidates=3))
    assert len(found) > 3
    for record in found:
        assert record["labels"] == ["A", "B", "C", "O"]
        assert len(record["words"]) == 4
        assert record["words"][2:] == ["U.N.", "of"]


def test_a_model_without_segments_and_with_other_pieces(make_model):
    texts = ["red fox jumps over the lazy dog"] * 3
    tokenizer = kbert.tokenizers.train_tokenizer(iter(texts), 300, kind="bpe")
    config = make_model().encoder.config.replace(
        num_segments=0, vocabulary_size=300, pooler_activation=None
    )
    model = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer, next_sentence=False)
    made = Augmenter(as_table(texts[:1]), model, AugmentationSettings(candidates=3))
    assert not made.with_original
    assert made.identity()["with_original"] is False
    (row,) = made.rows()
    # Pieces that begin a word, without the blank that they stand for.
    assert {word for each in row.candidates[0] for word in each} < set(whole_words(tokenizer))
    assert all(len(each) == 3 for each in row.candidates[0])
    both = AugmentationSettings(candidates=3, with_original=True)
    assert Augmenter(as_table(texts[:1]), model, both).with_original


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question": ["a"], "context": ["b"]}, "would move the answers .*question, context"),
        ({"context": ["a"], "choices": [["b"]], "label": [0]}, "would move the answers"),
        ({"label": ["a"]}, r"texts \(text\), pairs .* can be augmented. Received: .* label"),
        ({"first": ["a"]}, "can be augmented. Received"),
        ({"text": []}, "must have rows. Received: a table without any"),
    ],
)
def test_tables_of_other_kinds_are_refused(model, columns, message):
    with pytest.raises(ValueError, match=message):
        augment(Table(columns), model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"copies": 0}, "`copies` must be a whole number of at least 1. Received: 0"),
        ({"candidates": True}, "`candidates` must be a whole number"),
        ({"replaced_share": 1.5}, "`replaced_share` must be a number above 0 and at most 1"),
        ({"seed": -1}, "`seed` must be a whole number from 0"),
        ({"shards": 2}, "`shards` requires `output_dir`"),
    ],
)
def test_settings_are_checked(model, settings, message):
    with pytest.raises(ValueError, match=message):
        augment(["a fox"], model, **settings)


def test_only_a_model_that_fills_masks(model):
    with pytest.raises(
        ValueError, match=r"kbert.tasks.Pretraining with a masked-LM head\. Received: a Encoder"
    ):
        augment(["a fox"], model.encoder)


def test_a_look_at_copies(make_model):
    made = Augmenter(
        Table({"first": ["red fox"], "second": ["the dog"]}, source="pairs.tsv", lines=[2]),
        make_model(*LIKED),
        AugmentationSettings(candidates=2),
    )
    shown = preview(made)
    assert shown.startswith("pairs.tsv, line 2\n  red fox | the dog\n  1: ")
    assert "fox: king, queen" in shown
    assert "[king]" in shown
    assert "words per second" in shown
    assert "3.0 replaceable per row" in shown
