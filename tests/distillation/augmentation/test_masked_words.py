import numpy as np
import pytest

from kbert.distillation.augmentation import masked_words
from kbert.distillation.augmentation.masked_words import MaskedWords
from kbert.distillation.augmentation.neighbours import whole_words
from kbert.inference import Runner


@pytest.fixture(scope="module")
def ids(tokenizer):
    """Texts of several lengths, each of words of one piece."""
    texts = ["the red fox jumps over the lazy dog .", "big cat", "one two three four five " * 3]
    return [row.numpy() for row in tokenizer.encode(texts)]


def reference(model, tokenizer, first, second, place, count):
    """The likeliest words, from the model's own logits for one row."""
    special = {name: getattr(tokenizer, f"{name}_id") for name in ("cls", "sep", "mask")}
    masked = [*first]
    masked[place] = special["mask"]
    row = [special["cls"], *masked, special["sep"]]
    segments = [0] * len(row)
    if second is not None:
        row += [*second, special["sep"]]
        segments += [1] * (len(second) + 1)
    batch = {
        "token_ids": np.array([row]),
        "segment_ids": np.array([segments]),
        "padding_mask": np.ones((1, len(row)), "int32"),
    }
    sequence = model.encode(batch)["sequence"]
    logits = np.asarray(model.masked_lm(sequence, np.array([[place + 1]])))[0, 0]
    own = tokenizer.vocabulary[first[place]]
    words = {n: word for word, n in whole_words(tokenizer).items() if word != own}
    best = sorted(words, key=lambda n: -logits[n])[:count]
    return [words[n] for n in sorted(best)]


@pytest.mark.parametrize("with_original", [True, False])
def test_candidates_are_the_likeliest_whole_words(model, tokenizer, ids, with_original):
    ask = MaskedWords(model, 7, with_original, batch_size=4)
    places = [(text, place) for text in range(2) for place in range(len(ids[text]) - 1)]
    for (text, place), found in zip(places, ask(ids, places), strict=True):
        second = ids[text] if with_original else None
        assert found == reference(model, tokenizer, ids[text], second, place, 7)
    assert ask(ids, []) == []


def test_the_word_itself_pieces_specials_and_marks_are_no_candidates(make_model, tokenizer, ids):
    liked = make_model("[SEP]", "##ing", ".", "7", "fox", "dog", "cat", "king")
    ask = MaskedWords(liked, 3, True, batch_size=4)
    fox, red = ask(ids, [(0, 2), (0, 1)])
    assert fox == sorted(["dog", "cat", "king"], key=tokenizer.token_to_id)
    assert red == sorted(["fox", "dog", "cat"], key=tokenizer.token_to_id)


def test_more_candidates_than_words(model, tokenizer, ids):
    (found,) = MaskedWords(model, 10_000, False, batch_size=2)(ids, [(1, 0)])
    assert set(found) == set(whole_words(tokenizer)) - {"big"}


def test_a_long_text_keeps_its_mask(model, tokenizer):
    text = np.array([tokenizer.token_to_id("fox")] * 90 + [tokenizer.token_to_id("dog")])
    ask = MaskedWords(model, 5, True, batch_size=2)  # a row has 32 tokens
    found = ask([text], [(0, 0), (0, 45), (0, 90)])
    nothing = text[:0]
    for words, (start, place) in zip(found, ((0, 0), (31, 14), (62, 28)), strict=True):
        window = text[start : start + 29]
        assert words == reference(model, tokenizer, window, nothing, place, 5)
    (words,) = ask([text[:20]], [(0, 3)])  # the original loses its end
    assert words == reference(model, tokenizer, text[:20], text[:9], 3, 5)


def test_near_ties_do_not_hang_on_the_batch(make_model, ids, monkeypatch):
    """Logits that are equal but for rounding: who is a candidate is decided by the row alone."""
    tied = make_model(initializer_range=1e-9)
    places = [(text, place) for text in range(3) for place in range(2)]
    alone = MaskedWords(tied, 5, True, 1)(ids, places)
    counted = []
    each = Runner.each

    def count(self, rows, batch_size, **which):
        for index, found in each(self, rows, batch_size, **which):
            counted.append(len(index))
            yield index, found

    monkeypatch.setattr(Runner, "each", count)
    assert MaskedWords(tied, 5, True, 6)(ids, places) == alone
    assert counted == [6] + [1] * 6
    counted.clear()
    MaskedWords(make_model("fox", "dog", "cat"), 2, True, 6)(ids, places)
    assert counted == [6]
    assert not masked_words._is_near(np.array([1.0, 0.5, -np.inf]), 2)
