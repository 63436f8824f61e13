"""PEGASUS' gap sentences: scores, choices and both sides against loops."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from kbert.data.denoising.gap_sentences import GapSentences, gap_counts, rouge_scores
from kbert.data.denoising.sentences import find_sentences
from tests.data.denoising import plain
from tests.data.denoising.plain import MASK_ID, SEP


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    tokenizer = tokenizer_of(5000)
    tokenizer.token_to_id = {"<mask_1>": 7}.__getitem__
    return tokenizer


def rouge_1_f1(sentence, others):
    """ROUGE-1 F1 of a sentence against the other sentences, from clipped counts."""
    one, rest = collections.Counter(sentence), collections.Counter(others)
    common = sum((one & rest).values())
    precision, recall = common / max(1, len(sentence)), common / max(1, len(others))
    return 2 * precision * recall / (precision + recall) if common else 0.0


def chosen(key, sentences, noise):
    count = len(sentences)
    wanted = min(max(int(np.float32(count) * np.float32(noise.gap_share)), 1), count)
    if noise.selection == "lead":
        return set(range(wanted))
    if noise.selection == "random":
        return set(plain.order(plain.fold(key, 0), count)[:wanted])
    scores = [
        # Rounded: the same fractions may differ in their last bits.
        (round(rouge_1_f1(s, plain.listed(sentences[:n] + sentences[n + 1 :])), 9), n)
        for n, s in enumerate(sentences)
    ]
    return {n for _, n in sorted(scores, reverse=True)[:wanted]}


def sides_of(key, sentences, noise, mask_id):
    source, target = [], []
    gaps = chosen(key, sentences, noise)
    for number, sentence in enumerate(sentences):
        is_kept = plain.chance(plain.fold(plain.fold(key, 1), number), noise.kept_share)
        if number in gaps:
            target += sentence
        source += [mask_id] if number in gaps and not is_kept else sentence
    return [*source, SEP], [*target, SEP]


@pytest.mark.parametrize(
    "options",
    [
        {"selection": "rouge"},
        {"selection": "random"},
        {"selection": "lead"},
        {"gap_share": 0.45, "kept_share": 0.2},
        {"gap_share": 1.0, "sentence_mask": "<mask_1>"},
    ],
    ids=str,
)
def test_rows_are_those_of_a_loop(tokenizer, options):
    noise = GapSentences(max_targets=60, **options)
    # Few ids, so that sentences have tokens in common, and equal scores.
    text, keys, sentences = plain.random_text(noise.text_length(60), vocabulary=40)
    sides = plain.corrupted(noise, text, keys, tokenizer, 60)
    mask_id = 7 if noise.sentence_mask else MASK_ID
    for key, row, found in zip(plain.row_keys(60), sentences, sides, strict=True):
        assert found == sides_of(key, row, noise, mask_id)


def test_scores_are_rouge_times_half_of_the_tokens():
    text, _, sentences = plain.random_text(50, vocabulary=20, seed=5)
    scores = rouge_scores(text, find_sentences(text)).numpy()
    for row, found in zip(sentences, scores, strict=True):
        total = len(plain.listed(row))
        for n, sentence in enumerate(row):
            f1 = rouge_1_f1(sentence, plain.listed(row[:n] + row[n + 1 :]))
            assert found[n] == pytest.approx(f1 * total / 2)
        assert not found[len(row) :].any()


def test_long_targets_are_truncated(tokenizer):
    noise = GapSentences(gap_share=1.0)
    assert noise.target_length(32) == 16
    text, keys, sentences = plain.random_text(31)
    sides = plain.corrupted(noise, text, keys, tokenizer, 32)
    for (_, target), row in zip(sides, sentences, strict=True):
        assert target == [*plain.listed(row), SEP][:16]
    assert max(len(target) for _, target in sides) == 16


def test_gap_counts_are_rounded_down_but_one():
    counts = gap_counts(tf.range(200), 0.3).numpy().tolist()
    assert counts[:8] == [0, 1, 1, 1, 1, 1, 1, 2]
    assert counts[1:] == [max(1, int(np.float32(n) * np.float32(0.3))) for n in range(1, 200)]


def test_other_rows_make_no_difference(tokenizer):
    """The number of sentences of other rows sets the width of tensors, and nothing else."""
    noise = GapSentences(selection="random", kept_share=0.5)
    text, keys, _ = plain.random_text(30, seed=2)
    together = plain.corrupted(noise, text, keys, tokenizer, 31)
    for n in (3, 7, 20):
        alone = plain.Text(*(x[n : n + 1] for x in text))
        assert plain.corrupted(noise, alone, keys[n : n + 1], tokenizer, 31) == [together[n]]


def test_what_is_missing_or_out_of_range_is_refused(tokenizer_of):
    for options, message in [
        ({"gap_share": 0}, "`gap_share` must be a number above 0"),
        ({"selection": "best"}, "`selection` must be one of rouge, random, lead"),
        ({"kept_share": 2}, "`kept_share` must be a number from 0 to 1"),
        ({"max_targets": 1}, "`max_targets` must be .*at least 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            GapSentences(**options)
    other = tokenizer_of(100)
    other.mask_id = None
    with pytest.raises(ValueError, match=r"requires a token that replaces a sentence.*neither"):
        GapSentences().check_tokenizer(other, 64)
