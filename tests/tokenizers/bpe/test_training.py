"""Byte-level BPE training: Hugging Face's merges, the same lists every time."""

import random

import pytest
from tokenizers import ByteLevelBPETokenizer

from kbert.tokenizers import BytePairTokenizer, train_byte_pair, train_tokenizer
from kbert.tokenizers.bpe.training import count_byte_words

WORDS = "low lower lowest new newer newest wide wider widest isn't café 東京 ½ \t".split(" ")


def corpus(size: int = 500, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=12)).capitalize() + "." for _ in range(size)]


def test_merges_are_hugging_faces():
    vocabulary, merges = train_byte_pair(corpus(), 400)
    theirs = ByteLevelBPETokenizer()
    theirs.train_from_iterator(corpus(), vocab_size=395, min_frequency=2, show_progress=False)
    ids = theirs.get_vocab()
    assert vocabulary[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert vocabulary[5:] == sorted(ids, key=ids.get)
    assert {"Ġlowest", "ĠcafÃ©"} <= set(vocabulary)
    tokenizer = BytePairTokenizer(vocabulary, merges)
    expected = [row.ids for row in theirs.encode_batch(corpus())]
    assert [[i - 5 for i in row] for row in tokenizer.encode(corpus()).to_list()] == expected


def test_same_lists_for_any_order_and_batching():
    texts = corpus()
    expected = train_byte_pair(texts, 350)
    assert train_byte_pair(reversed(texts), 350) == expected
    assert train_byte_pair((text.encode() for text in texts), 350) == expected


def test_words_are_counted_as_the_tokenizer_sees_them():
    counts = count_byte_words(["so  so it's", b"s\xffo"], add_prefix_space=True)
    assert counts == {"Ġso": 3, "Ġ": 1, "Ġit": 1, "'s": 1}


def test_special_tokens_and_long_words():
    vocabulary, merges = train_byte_pair(["ab" * 26_000] * 2, 260, special_tokens=["<|endoftext|>"])
    assert vocabulary[0] == "<|endoftext|>"
    assert merges[0] == "a b"
    assert len(vocabulary) == 260
    assert BytePairTokenizer(vocabulary, merges).unk_id == 0


def test_a_tokenizer_for_corpora_keeps_sentences_apart():
    tokenizer = train_tokenizer(corpus(50), 300, kind="bpe")
    sentences = tokenizer.encode(["Low.", "New."])
    assert tokenizer.decode(sentences.flat_values).numpy() == b" Low. New."


def test_errors():
    with pytest.raises(TypeError, match="one str of 3 characters; put it in a list"):
        train_byte_pair("low", 300)
    with pytest.raises(ValueError, match=r"requires texts with words. Received: none"):
        train_byte_pair([""], 300)
    with pytest.raises(ValueError, match=r"must be at least 261: .*Received: 260"):
        train_byte_pair(corpus(), 260)


def test_progress_is_shown_on_request(capfd):
    train_byte_pair(corpus(50), 280, progress=True)
    assert "counting words" in capfd.readouterr().err
    train_byte_pair(corpus(50), 280)
    assert capfd.readouterr().err == ""
