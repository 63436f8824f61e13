"""The kernel's own rules: long words, Chinese characters, what a word is."""

import pytest
import tensorflow as tf

from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from kbert.tokenizers.wordpiece.kernel import WordPieceKernel, space_words

VOCABULARY = [*SPECIAL_TOKENS, "a", "##a", "é", "##é", "東", "##京", "京", "!", "#", "b"]
CASED = WordPieceTokenizer(VOCABULARY, lowercase=False)


@pytest.mark.parametrize("letter", ["a", pytest.param("é", marks=pytest.mark.slow), "東"])
def test_words_over_200_characters_are_unknown(letter):
    vocabulary = dict.fromkeys([*SPECIAL_TOKENS, "a", letter, "##" + letter])
    tokenizer = WordPieceTokenizer(list(vocabulary), lowercase=False, split_chinese=False)
    texts = [letter * 200, letter * 201, f"a {letter * 201} {letter}", letter * 900]
    assert [len(row) for row in tokenizer.encode(texts).to_list()] == [200, 1, 3, 1]
    out = tokenizer.encode_with_offsets(texts, "character")
    assert out["starts"].to_list()[1:] == [[0], [0, 2, 204], [0]]
    assert out["ends"].to_list()[1:] == [[201], [1, 203, 205], [900]]
    assert out["word_index"].to_list()[2] == [0, 1, 2]


def test_the_limit_counts_words_not_texts():
    text = "a!" * 300 + "a" * 200 + "!" + "a" * 201
    ids = CASED.encode([text, "a " * 500]).to_list()
    assert len(ids[0]) == 600 + 200 + 1 + 1
    assert ids[0][-1] == CASED.unk_id
    assert len(ids[1]) == 500


def test_chinese_characters_stay_together_on_request():
    whole = WordPieceTokenizer(VOCABULARY, split_chinese=False)
    out = whole.encode_with_offsets(["東京! a#b", "", "a\u3000東"], "character")
    assert [[VOCABULARY[i] for i in row] for row in out["token_ids"].to_list()] == [
        ["東", "##京", "!", "a", "#", "b"],
        [],
        ["a", "東"],
    ]
    assert out["starts"].to_list() == [[0, 1, 2, 4, 5, 6], [], [0, 2]]
    assert out["word_index"].to_list() == [[0, 0, 1, 2, 3, 4], [], [0, 1]]
    assert [VOCABULARY[i] for i in CASED.encode("東京").numpy()] == ["東", "京"]


@pytest.mark.parametrize("split_chinese", [True, False])
def test_space_words_finds_the_words_of_the_kernel(split_chinese):
    """Training counts the words of `space_words`, encoding those of the kernel."""
    below = [code for code in range(0x3100) if chr(code).isprintable()]
    blocks = (0x3400, 0x4DBF, 0x4DC0, 0x4E00, 0x9FFF, 0xA000, 0xF900, 0xFAFF, 0xFE10, 0xFF01)
    planes = (0x1F600, 0x20000, 0x2A6DF, 0x2A700, 0x2B740, 0x2CEAF, 0x2F800, 0x2FA1D)
    texts = [f"a{chr(code)}b" for code in (*below, *blocks, *planes)]
    kernel = WordPieceKernel(VOCABULARY, 1, split_chinese)
    ids, _, _ = kernel(tf.constant(texts))
    begins = ids.with_flat_values(tf.cast(kernel.word_starts(ids), tf.int32))
    spaced = [text.decode().split() for text in space_words(texts, split_chinese).numpy()]
    assert tf.reduce_sum(begins, axis=1).numpy().tolist() == [len(words) for words in spaced]
