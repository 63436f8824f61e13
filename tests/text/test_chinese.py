"""Chinese words: what a segmenter cuts is what masks hide."""

import sys

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.masking.masking import mask_rows
from kbert.data.masking.phrases import read_phrases
from kbert.data.masking.schemes import MASKING_SCHEMES
from kbert.text import chinese_lexicon
from kbert.text.chinese import segmenter

SENTENCE = "使用语言模型来预测下一个词的概率"
CUT = "使用 语言 模型 来 预测 下 一个 词 的 概率".split()


def cut(text):
    assert text == SENTENCE
    return CUT


def test_jieba_cuts_the_example():
    pytest.importorskip("jieba")
    assert segmenter()(SENTENCE) == CUT
    assert chinese_lexicon([SENTENCE]) == chinese_lexicon([SENTENCE], segment=cut)


def test_words_of_the_example_are_masked_whole():
    """Of BERT's characters only whole words are hidden, each word at times, and all of it."""
    tokenizer = kbert.WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(SENTENCE))]
    )
    words = chinese_lexicon([SENTENCE], segment=cut)
    assert sorted(words) == sorted(word for word in CUT if len(word) > 1)
    ids = tokenizer.encode([SENTENCE]).to_list()[0]
    assert len(ids) == len(SENTENCE) == 16
    rows = tf.tile(tf.constant([[2, *ids, 3]], tf.int32), [500, 1])
    in_text = tf.tile(tf.constant([[False, *[True] * 16, False]]), [500, 1])
    hidden = {}
    for masking in ("phrase", "whole_word"):
        masked = mask_rows(
            MASKING_SCHEMES[masking],
            tf.cast(tf.range(500) * 7919, tf.uint64),
            rows,
            in_text,
            tf.fill([500], 18),
            tokenizer=tokenizer,
            masked_share=0.3,
            columns=6,
            replacement=(1.0, 0.0),
            phrases=read_phrases(words, tokenizer) if masking == "phrase" else None,
        )
        hidden[masking] = (masked["token_ids"].numpy() == tokenizer.mask_id)[:, 1:-1]
    ends = np.cumsum([len(word) for word in CUT])
    for word, end in zip(CUT, ends, strict=True):
        share = hidden["phrase"][:, end - len(word) : end].mean(axis=1)
        assert set(share) == {0.0, 1.0}, word
        if len(word) > 1:  # and characters alone are hidden without a lexicon
            assert 0.5 in hidden["whole_word"][:, end - len(word) : end].mean(axis=1)


def test_a_lexicon_is_counted_and_ordered():
    texts = ["模型 语言 的 model AI模型", "语言 词 模型 语言 概率"]
    assert chinese_lexicon(texts, segment=str.split) == ["语言", "模型", "概率"]
    assert chinese_lexicon(texts, segment=str.split, min_count=2) == ["语言", "模型"]
    with pytest.raises(ValueError, match="`min_count` must be at least 1"):
        chinese_lexicon(texts, segment=str.split, min_count=0)


def test_a_missing_segmenter_is_told(monkeypatch):
    segmenter.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(ImportError, match=r"^Cutting Chinese words needs .*kbert\[chinese\]'"):
        chinese_lexicon([SENTENCE])
    segmenter.cache_clear()
