"""T5's span corruption: sizes, masks, sentinels, and that both sides restore the text."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from kbert.data.denoising.noise import make_noise
from kbert.data.denoising.spans import SpanCorruption, span_counts, span_sizes
from tests.data.denoising import plain
from tests.data.denoising.plain import SEP


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return plain.with_sentinels(tokenizer_of(6000), 400)


def counts(length, share, mean):
    """Masked tokens and spans of `random_spans_noise_mask`, whose numbers are float32."""
    length = max(length, 2)
    masked = round(float(np.float32(length) * np.float32(share)))
    masked = min(max(masked, 1), length - 1)
    spans = max(round(float(np.float32(masked) / np.float32(mean))), 1)
    return masked, spans


def helper(inputs_length, share, mean):
    """`random_spans_helper`, whose numbers are float64: text tokens, inputs, targets."""

    def sides(length):
        masked = round(length * share)
        spans = round(masked / mean)
        return length - masked + spans + 1, masked + spans + 1

    length = inputs_length - 1
    while sides(length + 1)[0] <= inputs_length:
        length += 1
    inputs, targets = sides(length)
    if share == 0.5 and targets > inputs:
        length, targets = length - 1, targets - 1
    return length, targets


def test_published_sizes():
    # Raffel et al. 2020: 568 tokens of text become 512 tokens of input and 114 targets.
    noise = SpanCorruption()
    assert (noise.text_length(512), noise.target_length(512)) == (568, 114)
    masked, spans = span_counts(568, 0.15, 3.0)
    assert (masked[568], spans[568]) == (85, 28)
    assert 568 - 85 + 28 + 1 == 512


@pytest.mark.parametrize("sequence_length", [64, 128, 256, 512, 1024, 2048])
def test_usual_sizes_are_those_of_the_original(sequence_length):
    assert span_sizes(sequence_length, 0.15, 3.0) == helper(sequence_length, 0.15, 3.0)


@pytest.mark.parametrize(("share", "mean"), [(0.15, 3), (0.15, 8), (0.5, 3), (0.3, 10), (0.15, 1)])
def test_sizes_are_those_of_the_original_if_both_of_its_roundings_agree(share, mean):
    equal = 0
    for sequence_length in range(8, 600):
        length, _ = helper(sequence_length, share, mean)
        while length - counts(length, share, mean)[0] + counts(length, share, mean)[1] + 1 > (
            sequence_length
        ):
            length -= 1
        targets = sum(counts(length, share, mean)) + 1
        assert span_sizes(sequence_length, share, mean) == (length, targets)
        equal += (length, targets) == helper(sequence_length, share, mean)
    assert equal > 500


@pytest.mark.parametrize("share", [0.01, 0.15, 0.3, 0.5, 0.75])
@pytest.mark.parametrize("mean", [3.0, 4.5, 10.0])
def test_rows_of_every_length_fit(share, mean):
    noise = SpanCorruption(masked_share=share, mean_span=mean)
    for sequence_length in (8, 9, 33, 128):
        length, targets = noise.text_length(sequence_length), noise.target_length(sequence_length)
        masked, spans = (x[: length + 1] for x in span_counts(length, share, mean))
        source = np.maximum(np.arange(len(masked)), 2) - masked + spans + 1
        assert source.max() <= sequence_length
        assert (masked + spans + 1).max() <= targets
        assert spans.max() == noise.max_spans(sequence_length)
        assert (spans >= 1).all()
        assert (spans <= masked).all()


def segments(key, total, count):
    bounds = [0, *(n + 1 for n in plain.sample(key, total - 1, count - 1)), total]
    return [end - start for start, end in itertools.pairwise(bounds)]


def spans_of(key, length, share, mean):
    """(kept, masked) numbers of tokens of each pair of spans."""
    masked, spans = counts(length, share, mean)
    kept = max(length, 2) - masked
    return list(
        zip(
            segments(plain.fold(key, 1), kept, spans),
            segments(plain.fold(key, 0), masked, spans),
            strict=True,
        )
    )


def sides_of(key, tokens, share, mean):
    """Both sides of a row by the definition, with sentinels from 5999 down."""
    source, target, at = [], [], 0
    for number, (kept, masked) in enumerate(spans_of(key, len(tokens), share, mean)):
        middle, end = at + kept, at + kept + masked
        source += tokens[at:middle] + ([5999 - number] if middle < len(tokens) else [])
        target += ([5999 - number] if at < len(tokens) else []) + tokens[middle:end]
        at = end
    return [*source, SEP], [*target, SEP]


@pytest.mark.parametrize(
    ("sequence_length", "share", "mean"), [(64, 0.15, 3.0), (40, 0.5, 2.0), (8, 0.15, 3.0)]
)
def test_rows_are_those_of_a_loop(tokenizer, sequence_length, share, mean):
    noise = SpanCorruption(masked_share=share, mean_span=mean)
    text, keys, sentences = plain.random_text(noise.text_length(sequence_length))
    sides = plain.corrupted(noise, text, keys, tokenizer, sequence_length)
    for key, row, found in zip(plain.row_keys(len(sides)), sentences, sides, strict=True):
        assert found == sides_of(key, plain.listed(row), share, mean)


def restored(source, target):
    """The text, from the spans between the sentinels of both sides."""
    spans, at = {}, None
    for token in target[:-1]:
        if token >= 5600:
            at = spans.setdefault(token, [])
        else:
            at.append(token)
    text = []
    for token in source[:-1]:
        text += spans[token] if token >= 5600 else [token]
    return text


def test_both_sides_restore_the_text(tokenizer):
    noise = SpanCorruption()
    text, keys, sentences = plain.random_text(noise.text_length(128), seed=3)
    for (source, target), row in zip(
        plain.corrupted(noise, text, keys, tokenizer, 128), sentences, strict=True
    ):
        assert source[-1] == target[-1] == SEP
        if len(plain.listed(row)) > 1:  # of a single token the masked span is cut off
            assert restored(source, target) == plain.listed(row)


def check_statistics(tokenizer, rows):
    noise = SpanCorruption()
    text, keys, _ = plain.random_text(568, lengths=[568] * rows)
    sides = plain.corrupted(noise, text, keys, tokenizer, 512)
    lengths = []
    assert {len(source) for source, _ in sides} == {512}
    assert {len(target) for _, target in sides} == {114}
    for _, target in sides:
        sentinel_at = [n for n, token in enumerate(target) if token >= 5600]
        lengths += np.diff([*sentinel_at, len(target) - 1]).tolist()
        assert [target[n] for n in sentinel_at] == list(range(5999, 5971, -1))
    lengths = np.array(lengths) - 1
    assert lengths.mean() == 85 / 28  # exactly: the numbers of a row are fixed
    # A span of a random composition of 85 into 28 has n tokens with the probability
    # C(84 - n, 26) / C(84, 27).
    for n in (1, 2, 3, 5, 8):
        share = math.comb(84 - n, 26) / math.comb(84, 27)
        bound = 4.5 * math.sqrt(share * (1 - share) / len(lengths))
        assert abs(np.mean(lengths == n) - share) < bound


def test_statistics(tokenizer):
    check_statistics(tokenizer, rows=180)


@pytest.mark.slow
def test_statistics_of_a_million_tokens(tokenizer):
    check_statistics(tokenizer, rows=1800)


def test_named_sentinels(tokenizer_of):
    tokenizer = tokenizer_of(10)
    tokenizer.vocabulary = [*"abcdef", "<extra_id_1>", "<extra_id_0>", "g", "<extra_id_3>"]
    assert SpanCorruption().sentinel_ids(tokenizer) == [7, 6]
    tokenizer.vocabulary = [*"ab", "[unused2]", "[unused1]", "[unused3]", "[unused5]"]
    assert SpanCorruption().sentinel_ids(tokenizer) == [3, 2, 4]  # BERT's begin with 0 or 1
    tokenizer.vocabulary = [*"ab", "unused0", "[extra_id_0]"]
    assert SpanCorruption().sentinel_ids(tokenizer) == []


def test_too_few_sentinels_are_refused(tokenizer_of):
    tokenizer = tokenizer_of(6000)
    tokenizer.vocabulary = ["a", "<extra_id_0>"]
    with pytest.raises(ValueError, match=r"sequence_length=512 requires 28 sentinels.*Received: 1"):
        SpanCorruption().check_tokenizer(tokenizer, 512)
    SpanCorruption().check_tokenizer(tokenizer, 12)
    plain.with_sentinels(tokenizer, 27)
    with pytest.raises(ValueError, match=r"requires 28 sentinels.*Received: 27$"):
        SpanCorruption().check_tokenizer(tokenizer, 512)
    SpanCorruption().check_tokenizer(plain.with_sentinels(tokenizer, 28), 512)


def test_a_tokenizer_without_an_end_is_refused(tokenizer_of):
    tokenizer = tokenizer_of(6000)
    tokenizer.sep_id = None
    with pytest.raises(ValueError, match=r"noise='t5' requires .* pad, sep .*without sep"):
        SpanCorruption().check_tokenizer(tokenizer, 64)


def test_options_out_of_range_are_refused():
    for options, message in [
        ({"masked_share": 0.0}, r"`masked_share` must be a number above 0.*Received: 0.0"),
        ({"masked_share": 1.0}, r"`masked_share` must be a number .*below 1"),
        ({"mean_span": 0.5}, r"`mean_span` must be a number of at least 1"),
        ({"masked_share": 0.8}, r"must leave a token.*masked_share=0.8, mean_span=3.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            SpanCorruption(**options)


def test_the_whole_runs_in_a_graph(tokenizer):
    noise = SpanCorruption()
    text, keys, _ = plain.random_text(noise.text_length(32), rows=8)
    eager = noise.corrupt(keys, text, tokenizer, 32)
    graph = tf.function(lambda k, t: noise.corrupt(k, t, tokenizer, 32))(keys, text)
    for one, other in zip(eager[:4], graph[:4], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_noise_is_made_from_its_flag_and_back():
    noise = make_noise("t5:masked_share=0.2,mean_span=4")
    assert noise == SpanCorruption(masked_share=0.2, mean_span=4)
    assert make_noise(noise.to_text()) == noise
    assert SpanCorruption().to_text() == "t5"
