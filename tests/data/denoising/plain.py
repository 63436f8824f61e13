"""The hashes and draws of rows in plain Python, one row at a time, to compare noise with."""

import numpy as np
import tensorflow as tf

from kbert.data.denoising.noise import Text
from kbert.data.masking.hashing import fold as fold_tensors

MASK = 2**64 - 1
PAD, SEP, CLS, MASK_ID = 0, 3, 2, 4  # the stand-in tokenizer's


def fold(key, number):
    bits = (key + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def below(bits, limit):
    return ((bits >> 32) * limit) >> 32


def chance(bits, share):
    return bits >> 32 < round(share * 2**32)


def sample(key, total, count):
    """Floyd's algorithm: `count` of the integers below `total`, ascending."""
    chosen = set()
    for number in range(count):
        newest = total - count + number
        lot = below(fold(key, number), newest + 1)
        chosen.add(newest if lot in chosen else lot)
    return sorted(chosen)


def order(key, count):
    """The numbers below `count` in the order of their hashes, as signed integers."""
    signed = [(h - 2**64 if h >= 2**63 else h) for h in (fold(key, n) for n in range(count))]
    return sorted(range(count), key=signed.__getitem__)


def row_keys(rows, seed=0):
    return [fold(seed, row) for row in range(rows)]


def random_text(width, rows=60, seed=0, vocabulary=5000, lengths=None):
    """Rows of any length up to `width`, 0 and the longest among them, and their sentences.

    Returns the `Text`, its keys, and for each row the list of its sentences.
    """
    rng = np.random.default_rng(seed)
    if lengths is None:
        lengths = np.concatenate([[0, 1, 2, 3, width], rng.integers(0, width + 1, rows - 5)])
    rows = len(lengths)
    ids = rng.integers(5, vocabulary, (rows, width)).astype(np.int32)
    begins = rng.random((rows, width)) < 0.15
    begins[:, 0] = True
    begins &= np.arange(width) < np.array(lengths)[:, None]
    sentences = []
    for row in range(rows):
        sentences.append([])
        for column in range(lengths[row]):
            if begins[row, column]:
                sentences[-1].append([])
            sentences[-1][-1].append(int(ids[row, column]))
    text = Text(tf.constant(ids), tf.constant(lengths, tf.int32), tf.constant(begins))
    return text, fold_tensors(seed, tf.range(rows)), sentences


def corrupted(noise, text, keys, tokenizer, sequence_length):
    """The sides of each row without padding, which is checked: (source, target, start, first)."""
    sides = noise.corrupt(keys, text, tokenizer, sequence_length)
    source, source_length, target, target_length = (x.numpy() for x in sides[:4])
    assert source.shape[1] == sequence_length
    assert target.shape[1] == noise.target_length(sequence_length)
    assert (source[np.arange(source.shape[1]) >= source_length[:, None]] == PAD).all()
    assert (target[np.arange(target.shape[1]) >= target_length[:, None]] == PAD).all()
    return [
        (source[n, : source_length[n]].tolist(), target[n, : target_length[n]].tolist())
        for n in range(len(source))
    ]


def listed(sentences):
    return [token for sentence in sentences for token in sentence]


def with_sentinels(tokenizer, count):
    """The tokenizer with this many sentinels, the first one at the end of its vocabulary."""
    words = [f"word{n}" for n in range(tokenizer.vocabulary_size - count)]
    tokenizer.vocabulary = [*words, *(f"<extra_id_{n}>" for n in reversed(range(count)))]
    return tokenizer
