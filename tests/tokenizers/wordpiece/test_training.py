"""Vocabulary training: right words, same list every time, budget and coverage."""

import random
from collections import Counter

import pytest

from kbert.tokenizers import (
    SPECIAL_TOKENS,
    WordPieceTokenizer,
    read_vocabulary,
    save_vocabulary,
    train_wordpiece,
)
from kbert.tokenizers.wordpiece.training import count_words

WORDS = "low lower lowest new newer newest wide wider widest run running runner café 東京 ½".split()


def corpus(size: int = 2000, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=12)).capitalize() + "." for _ in range(size)]


def test_pieces_come_in_order_and_round_trip(tmp_path):
    vocabulary = train_wordpiece(corpus(), 80, num_unused=2)
    assert vocabulary[:7] == [*SPECIAL_TOKENS, "[unused0]", "[unused1]"]
    assert len(vocabulary) == len(set(vocabulary)) <= 80
    assert {"low", "lowest", "newer", "cafe", "東", "京", ".", "½"} <= set(vocabulary)
    assert "##東" not in vocabulary  # Chinese characters are words: none ever continues one
    save_vocabulary(vocabulary, tmp_path / "vocab.txt")
    assert read_vocabulary(tmp_path / "vocab.txt") == vocabulary
    tokenizer = WordPieceTokenizer(tmp_path / "vocab.txt")
    whole = [piece for piece in vocabulary[7:] if not piece.startswith("##")]
    assert [[vocabulary[i] for i in row] for row in tokenizer.encode(whole).to_list()] == [
        [piece] for piece in whole
    ]
    assert tokenizer.unk_id not in tokenizer.encode(corpus()).flat_values.numpy()


def test_same_list_for_any_order_and_batching():
    texts = corpus()
    expected = train_wordpiece(texts, 60)
    assert train_wordpiece(reversed(texts), 60) == expected
    assert train_wordpiece([" ".join(texts)], 60) == expected
    assert train_wordpiece((text.encode() for text in texts), 60) == expected


def test_words_are_counted_as_the_tokenizer_sees_them():
    texts = ["Don't STOP, naïve\u200b 東京!", b"st\xffop"]
    assert count_words(texts) == Counter("don ' t stop stop , naive 東 京 !".split())
    cased = count_words(["É é 東京"], lowercase=False, split_chinese=False)
    assert cased == Counter(["É", "é", "東京"])


def test_rare_characters_stay_out_of_the_alphabet():
    texts = [*corpus(), "lowΩer Ω"]
    assert "Ω".lower() in train_wordpiece(texts, 100, character_coverage=1.0)
    covered = train_wordpiece(texts, 100, character_coverage=0.9995)
    assert not [piece for piece in covered if "ω" in piece]
    assert "½" in covered


def test_words_the_tokenizer_cannot_spell_teach_nothing():
    vocabulary = train_wordpiece([*corpus(), *["q" * 201] * 9], 100)
    assert not [piece for piece in vocabulary if "qq" in piece]
    ruled = train_wordpiece([*corpus(), *["─" * 150] * 9], 100)
    assert max(len(piece.encode()) for piece in ruled) <= 258
    WordPieceTokenizer(ruled)


def test_min_frequency():
    texts = [*corpus(), "zebra zebra"]
    assert "zebra" in train_wordpiece(texts, 200, character_coverage=1.0)
    assert "zebra" not in train_wordpiece(texts, 200, character_coverage=1.0, min_frequency=3)


def test_errors():
    with pytest.raises(TypeError, match="one str of 3 characters; put it in a list"):
        train_wordpiece("low", 100)
    with pytest.raises(TypeError, match=r"A text must be a str or bytes. Received: 7"):
        train_wordpiece([7], 100)
    with pytest.raises(ValueError, match=r"requires texts with words. Received: none"):
        train_wordpiece(["", " \u200b"], 100)
    with pytest.raises(ValueError, match=r"words of at most 200 .*: 1 longer words only, .*'aaa"):
        train_wordpiece(["a" * 201], 100)
    with pytest.raises(ValueError, match=r"must be at least \d+: .*Received: 20"):
        train_wordpiece(corpus(), 20)
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]. Received: 0"):
        train_wordpiece(corpus(), 100, character_coverage=0)


def test_progress_is_shown_on_request(capfd):
    train_wordpiece(corpus(50), 60, progress=True)
    assert "counting words" in capfd.readouterr().err
    train_wordpiece(corpus(50), 60)
    assert capfd.readouterr().err == ""
