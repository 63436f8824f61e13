"""Prefix language modelling: where texts are split."""

import math

import numpy as np
import pytest

from kbert.data.denoising.prefix import PrefixLM
from tests.data.denoising import plain
from tests.data.denoising.plain import SEP


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return tokenizer_of(5000)


def test_rows_are_those_of_a_loop(tokenizer):
    text, keys, sentences = plain.random_text(30)
    sides = plain.corrupted(PrefixLM(), text, keys, tokenizer, 30)
    for key, row, found in zip(plain.row_keys(60), sentences, sides, strict=True):
        tokens = plain.listed(row)
        size = 1 + plain.below(key, len(tokens) - 1) if len(tokens) > 1 else len(tokens)
        assert found == ([*tokens[:size], SEP], [*tokens[size:], SEP])


def test_all_splits_are_equally_likely(tokenizer):
    text, keys, _ = plain.random_text(11, lengths=[11] * 4000)
    sides = plain.corrupted(PrefixLM(), text, keys, tokenizer, 11)
    sizes = np.array([len(source) - 1 for source, _ in sides])
    shares = np.bincount(sizes, minlength=12) / 4000
    assert shares[0] == shares[11] == 0
    assert np.abs(shares[1:11] - 0.1).max() < 4.5 * math.sqrt(0.1 * 0.9 / 4000)
