"""MASS' fragments: against a loop, their places, and how they are replaced in the source."""

import math

import numpy as np
import pytest

from kbert.data.denoising.mass import Mass
from tests.data.denoising import plain
from tests.data.denoising.plain import CLS, MASK_ID, SEP

SIZE = 5000


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return tokenizer_of(SIZE)


def sides_of(key, tokens, noise):
    """Source, target, first input token and its position, by the definition."""
    row = [CLS, *tokens, SEP]
    size = min(max(1, round(len(tokens) * noise.masked_share)), len(tokens))
    first = 1 + plain.below(plain.fold(key, 0), len(tokens) - size + 1)
    source = list(row)
    for number in range(size):
        action = plain.fold(plain.fold(key, 1), number)
        if plain.chance(action, noise.random_share):
            source[first + number] = plain.below(plain.fold(plain.fold(key, 2), number), SIZE)
        elif not plain.chance(action, noise.random_share + noise.kept_share):
            source[first + number] = MASK_ID
    return source, row[first : first + size], row[first - 1], first - 1


@pytest.mark.parametrize(
    "options",
    [{}, {"masked_share": 0.15, "random_share": 0.3}, {"masked_share": 1.0, "kept_share": 0.9}],
)
def test_rows_are_those_of_a_loop(tokenizer, options):
    noise = Mass(**options)
    text, keys, sentences = plain.random_text(noise.text_length(40))
    pairs = plain.corrupted(noise, text, keys, tokenizer, 40)
    sides = noise.corrupt(keys, text, tokenizer, 40)
    starts, firsts = sides.start.numpy().tolist(), sides.first_position.numpy().tolist()
    keys = plain.row_keys(len(pairs))
    for key, row, pair, start, first in zip(keys, sentences, pairs, starts, firsts, strict=True):
        assert (*pair, start, first) == sides_of(key, plain.listed(row), noise)


def test_statistics(tokenizer):
    rows = 1000
    noise = Mass()
    text, keys, _ = plain.random_text(102, lengths=[102] * rows)
    sides = noise.corrupt(keys, text, tokenizer, 104)
    assert (sides.target_length.numpy() == 51).all()
    source, ids = sides.source.numpy()[:, 1:-1], text.ids.numpy()
    first = sides.first_position.numpy()
    # Uniform in 0..51, with mean 25.5 and variance (52² - 1) / 12.
    assert (first.min(), first.max()) == (0, 51)
    assert abs(first.mean() - 25.5) < 4.5 * math.sqrt((52**2 - 1) / 12 / rows)
    inside = (np.arange(102) >= first[:, None]) & (np.arange(102) < first[:, None] + 51)
    np.testing.assert_array_equal(source[~inside], ids[~inside])
    is_mask, is_kept = (source == MASK_ID)[inside], (source == ids)[inside]
    for share, found in [(0.8, is_mask), (0.1, is_kept), (0.1, ~is_mask & ~is_kept)]:
        bound = 4.5 * math.sqrt(share * (1 - share) / found.size) + 2 / SIZE
        assert abs(found.mean() - share) < bound


def test_sizes():
    assert (Mass().text_length(512), Mass().target_length(512)) == (510, 255)
    assert Mass(masked_share=0.01).target_length(8) == 1
    # Half to even, as for the fragments: 0.25 * 6 = 1.5 and 0.25 * 10 = 2.5.
    assert [Mass(masked_share=0.25).target_length(n) for n in (8, 12)] == [2, 2]


def test_options_out_of_range_are_refused(tokenizer_of):
    for options, message in [
        ({"masked_share": 0}, "`masked_share` must be a number above 0"),
        ({"masked_share": 1.1}, "`masked_share` must be .*at most 1"),
        (
            {"random_share": 0.6, "kept_share": 0.5},
            "must have a sum of at most 1. Received: random_share=0.6, kept_share=0.5",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            Mass(**options)
    other = tokenizer_of(100)
    other.cls_id = None
    with pytest.raises(ValueError, match=r"noise='mass' requires .*Received: one without cls"):
        Mass().check_tokenizer(other, 64)
