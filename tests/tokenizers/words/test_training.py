"""Vocabularies of words: the most frequent ones, the same list every time."""

import random
from collections import Counter

import pytest

from kbert.tokenizers import train_tokenizer, train_words
from kbert.tokenizers.words.training import count_spaced_words

WORDS = "the The sun . , shone café 東京 Ω ω a b c".split()


def corpus(size: int = 300, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, range(1, 14), k=12)) for _ in range(size)]


def expected(texts: list[str]) -> list[str]:
    counts = Counter(word for text in texts for word in text.split())
    return ["</S>", "<S>", "<UNK>", *sorted(counts, key=lambda w: (-counts[w], w.encode()))]


@pytest.mark.parametrize("size", [0, 4, 9, 16, 5000])
def test_the_most_frequent_words(size):
    texts = [*corpus(), "z y x"]  # as frequent: in the order of their bytes
    assert train_words(texts, size) == expected(texts)[: size or None]
    tokenizer = train_tokenizer(texts, size, kind="words")
    assert tokenizer.kind == "words"
    assert tokenizer.vocabulary == train_words(texts, size)


def test_same_list_for_any_order_and_batching():
    texts = corpus()
    found = train_words(texts, 10)
    assert train_words(reversed(texts), 10) == found
    assert train_words([" ".join(texts)], 10) == found
    assert train_words((text.encode() for text in texts), 10) == found


def test_words_are_counted_as_the_tokenizer_sees_them():
    counts = count_spaced_words(["So so\u3000so , ", b"s\xffo so."])
    assert counts == Counter({"so": 3, "So": 1, ",": 1, "so.": 1})


def test_words_that_have_an_id_already_have_no_other():
    texts = ["<S> the <UNK> <unk> </S> !!!MAXTERMID"] * 2
    assert train_words(texts) == ["</S>", "<S>", "<UNK>", "<unk>", "the"]


def test_errors():
    with pytest.raises(ValueError, match=r"requires texts with words. Received: none"):
        train_words([" ", "<S>"])
    for size in (3, -1):
        with pytest.raises(ValueError, match=f"must include a word besides .*Received: {size}"):
            train_words(corpus(), size)
    with pytest.raises(TypeError, match="one str of 3 characters; put it in a list"):
        train_words("low")
    with pytest.raises(ValueError, match=r"words do not support lowercase. .*kind='words'"):
        train_tokenizer(corpus(), 10, kind="words", lowercase=True)
    with pytest.raises(ValueError, match=r"one of wordpiece, .*Received: 'letters'"):
        train_tokenizer(corpus(), 10, kind="letters")
