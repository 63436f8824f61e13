"""BART's noise: each transformation and their combinations against a loop, and statistics."""

import math

import numpy as np
import pytest
import tensorflow as tf

from kbert.data.denoising.bart import Bart, poisson_bounds, span_lengths
from kbert.data.masking.hashing import fold as fold_tensors
from tests.data.denoising import plain
from tests.data.denoising.plain import CLS, MASK_ID, SEP

ORDER, LENGTH, PLACE, ACTION, TOKEN, ROTATION = range(6)
SIZE = 5000  # of the vocabulary


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return tokenizer_of(SIZE)


def poisson(bits, mean):
    """The number of events with the distribution function at the hash, by its definition."""
    number, share, total = 0, math.exp(-mean), math.exp(-mean)
    while bits >> 32 >= round(total * 2**32):
        number += 1
        share *= mean / number
        total += share
    return number


def lengths_of(key, total, mean, columns):
    """Poisson numbers up to a total, which the last one is set to reach."""
    lengths, left = [], total
    for number in range(min(columns, total)):
        drawn = poisson(plain.fold(key, number), mean)
        is_last = drawn >= left or number == min(columns, total) - 1
        lengths.append(left if is_last else drawn)
        left -= lengths[-1]
        if is_last:
            break
    return lengths


def permuted(key, sentences, share):
    count = len(sentences)
    moved = plain.order(key, count)[: math.ceil(count * share)]
    new = list(sentences)
    for place, number in zip(sorted(moved), moved, strict=True):
        new[place] = sentences[number]
    return plain.listed(new)


def source_of(key, sentences, noise, columns):
    """The source of a row by the definition, without special tokens."""
    tokens = permuted(plain.fold(key, ORDER), sentences, noise.permuted_share)
    masked = math.ceil(len(tokens) * noise.masked_share)
    if noise.masking == "infilling":
        sizes = lengths_of(plain.fold(key, LENGTH), masked, noise.mean_span, columns)
    else:
        sizes = [1] * masked
    if noise.masking != "none":
        total = len(tokens) - masked + len(sizes)
        places = plain.sample(plain.fold(key, PLACE), total, len(sizes))
        new, at = [], 0
        for column in range(total):
            if column not in places:
                new.append(tokens[at])
                at += 1
                continue
            number = places.index(column)
            at += sizes[number]
            if noise.masking == "deletion":
                continue
            action = plain.fold(plain.fold(key, ACTION), number)
            is_random = plain.chance(action, noise.random_share)
            random_id = plain.below(plain.fold(plain.fold(key, TOKEN), number), SIZE)
            new.append(random_id if is_random else MASK_ID)
        assert at == len(tokens)
        tokens = new
    key = plain.fold(key, ROTATION)
    if plain.chance(key, noise.rotated_share) and tokens:
        offset = plain.below(plain.fold(key, 0), len(tokens))
        tokens = tokens[offset:] + tokens[:offset]
    return tokens


NONE = {"masking": "none", "permuted_share": 0.0}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="bart"),
        pytest.param({**NONE, "masking": "tokens"}, id="token masking"),
        pytest.param({**NONE, "masking": "deletion"}, id="token deletion"),
        pytest.param({**NONE, "masking": "infilling"}, id="text infilling"),
        pytest.param({**NONE, "permuted_share": 1.0}, id="sentence permutation"),
        pytest.param({**NONE, "permuted_share": 0.4}, id="some sentences"),
        pytest.param({**NONE, "rotated_share": 1.0}, id="document rotation"),
        pytest.param({**NONE, "rotated_share": 0.5}, id="some rows"),
        pytest.param({"random_share": 0.1, "rotated_share": 0.5, "mean_span": 3.5}, id="all"),
        pytest.param({"masked_share": 0.9, "mean_span": 0.5}, id="many masks"),
        pytest.param({"masking": "tokens", "random_share": 0.3}, id="random tokens"),
        pytest.param({"masking": "deletion", "permuted_share": 0.5}, id="deletion in a new order"),
    ],
)
def test_rows_are_those_of_a_loop(tokenizer, options):
    noise = Bart(**options)
    text, keys, sentences = plain.random_text(noise.text_length(48), rows=40)
    sides = plain.corrupted(noise, text, keys, tokenizer, 48)
    columns = noise.max_masks(48)
    for key, row, (source, target) in zip(plain.row_keys(40), sentences, sides, strict=True):
        assert source == [CLS, *source_of(key, row, noise, columns), SEP]
        assert target == [CLS, *plain.listed(row), SEP]


def test_targets_may_begin_without_cls(tokenizer):
    noise = Bart(targets_begin=False)
    text, keys, sentences = plain.random_text(noise.text_length(20), rows=9)
    assert noise.target_length(20) == 19
    for (_, target), row in zip(
        plain.corrupted(noise, text, keys, tokenizer, 20), sentences, strict=True
    ):
        assert target == [*plain.listed(row), SEP]


def test_kept_tokens_stay_in_order_and_masks_take_the_others(tokenizer):
    noise = Bart(permuted_share=0.0)
    text, keys, _ = plain.random_text(126, lengths=[126] * 100, vocabulary=10**6)
    for (source, target), row in zip(
        plain.corrupted(noise, text, keys, tokenizer, 128), text.ids.numpy().tolist(), strict=True
    ):
        kept = [token for token in source[1:-1] if token != MASK_ID]
        at = [row.index(token) for token in kept]
        assert at == sorted(at)
        assert len(kept) == 126 - math.ceil(126 * 0.3)
        assert target[1:-1] == row


def check_statistics(tokenizer, rows):
    """Shares, the numbers of masks and the distribution of span lengths, by the normal bounds."""
    noise = Bart(permuted_share=0.0)
    text, keys, _ = plain.random_text(510, lengths=[510] * rows, vocabulary=10**6)
    sides = plain.corrupted(noise, text, keys, tokenizer, 512)
    masks = np.array([source.count(MASK_ID) for source, _ in sides])
    kept = np.array([len(source) - 2 for source, _ in sides]) - masks
    assert set(kept) == {510 - 153}  # ceil(0.3 * 510) tokens are masked, in every row
    # Wald: the numbers drawn until their sum is at least m have a sum of m and what the last one
    # goes beyond it, E[X (X - 1)] / 2 E[X] = λ / 2. So there are m / λ + 1 / 2 of them, with a
    # standard deviation of √m / λ.
    mean = 153 / 3 + 0.5
    assert abs(masks.mean() - mean) < 4.5 * math.sqrt(153) / 3 / math.sqrt(rows)
    assert masks.max() < noise.max_masks(512)

    sizes, count = span_lengths(
        fold_tensors(keys, LENGTH), tf.fill([rows], 153), 3.0, noise.max_masks(512)
    )
    assert (count.numpy() == masks).all()
    assert (sizes.numpy().sum(1) == 153).all()
    # The sum of 30 numbers is 90 with a deviation of 9.5: none of them is the last one of its row.
    drawn = sizes.numpy()[:, :30].ravel()
    for number in range(9):
        share = math.exp(-3) * 3**number / math.factorial(number)
        bound = 4.5 * math.sqrt(share * (1 - share) / drawn.size)
        assert abs(np.mean(drawn == number) - share) < bound, number


def test_statistics(tokenizer):
    check_statistics(tokenizer, rows=200)


@pytest.mark.slow
def test_statistics_of_a_million_tokens(tokenizer):
    check_statistics(tokenizer, rows=2000)


def test_masks_are_anywhere_with_equal_probability(tokenizer):
    noise = Bart(masking="tokens", permuted_share=0.0)
    text, keys, _ = plain.random_text(30, lengths=[30] * 3000)
    sides = plain.corrupted(noise, text, keys, tokenizer, 32)
    masked = np.array([source for source, _ in sides])[:, 1:-1] == MASK_ID
    assert (masked.sum(1) == 9).all()
    assert np.abs(masked.mean(0) - 0.3).max() < 4.5 * math.sqrt(0.3 * 0.7 / 3000)


def test_all_permutations_and_rotations_are_equally_likely(tokenizer):
    rows = 3000
    for options, shifts in [({"permuted_share": 1.0}, 24), ({"rotated_share": 1.0}, 4)]:
        noise = Bart(**{**NONE, **options})
        ids = tf.tile(tf.constant([[10, 11, 12, 13, 0, 0]]), [rows, 1])
        text = plain.Text(ids, tf.fill([rows], 4), tf.range(6)[None] < tf.fill([rows, 1], 4))
        sides = plain.corrupted(noise, text, fold_tensors(1, tf.range(rows)), tokenizer, 8)
        _, counts = np.unique([source for source, _ in sides], axis=0, return_counts=True)
        assert len(counts) == shifts
        bound = 4.5 * math.sqrt(1 / shifts * (1 - 1 / shifts) / rows)
        assert np.abs(counts / rows - 1 / shifts).max() < bound


def test_poisson_bounds_are_the_distribution_function():
    for mean in (0.1, 3.0, 3.5, 30.0):
        bounds = poisson_bounds(mean) / 2**32
        assert bounds[-1] > 1 - 2**-32
        for number in range(len(bounds)):
            exact = sum(
                math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(number + 1)
            )
            assert bounds[number] == pytest.approx(exact, abs=2**-31)


@pytest.mark.parametrize("sequence_length", [8, 9, 64, 512, 1024])
def test_masks_have_room(sequence_length):
    for share in (0.05, 0.3, 0.99):
        for mean in (0.2, 3.0, 20.0):
            noise = Bart(masked_share=share, mean_span=mean)
            tokens = math.ceil((sequence_length - 2) * share)
            assert 1 <= noise.max_masks(sequence_length) <= tokens
    assert Bart().max_masks(512) == 51 + 25 + 4
    assert Bart(masking="tokens").max_masks(512) == 153


def test_sentences_are_read_only_if_they_move():
    assert Bart().uses_sentences
    assert not Bart(permuted_share=0.0).uses_sentences


def test_options_out_of_range_are_refused(tokenizer_of):
    for options, message in [
        ({"masked_share": 0.0}, "`masked_share` must be a number above 0.*Received: 0.0"),
        ({"masked_share": 1.0}, "`masked_share` must be .*below 1"),
        ({"mean_span": 0}, "`mean_span` must be a number above 0"),
        ({"masking": "words"}, "`masking` must be one of infilling, tokens, deletion, none"),
        ({"permuted_share": 1.1}, "`permuted_share` must be a number from 0 to 1"),
        ({"rotated_share": -0.1}, "`rotated_share` must be a number from 0 to 1"),
        (
            {"masking": "deletion", "random_share": 0.1},
            "`random_share` requires masks.*Received: masking='deletion', random_share=0.1",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            Bart(**options)
    other = tokenizer_of(100)
    other.mask_id = None
    with pytest.raises(ValueError, match=r"noise='bart' requires .* mask tokens.*without mask"):
        Bart().check_tokenizer(other, 64)
