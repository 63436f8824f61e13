"""Targets with masked tokens: which are predicted, what is hidden, and the same in every way."""

import io

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.pretraining.examples import show_examples
from kbert.data.translation.dataset import translation_dataset
from kbert.data.translation.framing import Framing
from kbert.data.translation.masks import TargetMasks

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, CLS, SEP, MASK = 0, 2, 3, 4


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPieceTokenizer([*SPECIALS, *(f"w{n}" for n in range(300))])


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)

    def text():
        return " ".join(f"w{n}" for n in rng.integers(0, 300, rng.integers(1, 20)))

    return [(text(), text()) for _ in range(120)]


def batches(pairs, tokenizer, take=-1, **changes):
    settings = {"max_tokens": 256, "seed": 3, "epochs": 2, "masked_share": 0.7, **changes}
    return list(translation_dataset(pairs, tokenizer, **settings).take(take).as_numpy_iterator())


def by_pair(found):
    """The rows of each batch, without padding, in the order of their texts."""
    rows = []
    for batch in found:
        for n in np.flatnonzero(batch["weights"].any(1)):
            source = batch["encoder_token_ids"][n][batch["encoder_padding_mask"][n] > 0]
            length = 1 + np.argmax(batch["targets"][n] == SEP)
            sides = (batch[x][n][:length] for x in ("targets", "target_token_ids", "weights"))
            rows.append((tuple(source), *map(tuple, sides)))
    return sorted(rows)


def test_rows_are_those_of_a_translation_with_masks(pairs, tokenizer):
    masked = batches(pairs, tokenizer)
    framing = Framing.one_row(tokenizer)
    unmasked = batches(pairs, tokenizer, masked_share=None, framing=framing)
    for one, plain in zip(masked, unmasked, strict=True):
        np.testing.assert_array_equal(one["targets"], plain["targets"])
        np.testing.assert_array_equal(one["encoder_token_ids"], plain["encoder_token_ids"])
        np.testing.assert_array_equal(one["encoder_padding_mask"], plain["encoder_padding_mask"])
        np.testing.assert_array_equal(one["position"], plain["position"])
        assert (one["encoder_token_ids"][:, 0] == CLS).all()
        assert ((one["weights"] > 0) <= (plain["weights"] > 0)).all()
        lengths = plain["weights"].sum(1)
        expected = np.where(lengths > 0, np.maximum(1, np.rint(0.7 * lengths)), 0)
        np.testing.assert_array_equal(one["weights"].sum(1), expected)
        hidden = one["target_token_ids"] != one["targets"]
        assert not (hidden & (one["weights"] == 0))[lengths > 0].any()
        assert "decoder_token_ids" not in one


def test_shares_over_many_targets(tokenizer):
    """Of 100,000 tokens, within four standard deviations; the end is drawn as often as others."""
    length, rows = 20, 6000
    rng = np.random.default_rng(1)
    targets = rng.integers(5, 305, (rows, length)).astype("int32")
    targets[:, -1] = SEP
    ids, chosen = TargetMasks(tokenizer, 0.7, seed=5).apply(
        2, tf.range(rows, dtype=tf.int64), targets, np.ones_like(targets)
    )
    ids, chosen = ids.numpy(), chosen.numpy()
    assert (chosen.sum(1) == 14).all()
    assert np.abs(chosen.mean(0) - 0.7).max() < 4 * np.sqrt(0.7 * 0.3 / rows)
    count = chosen.sum()
    for found, share in (((ids == MASK), 0.8), ((ids == targets), 0.1)):
        bound = 4 * np.sqrt(share * (1 - share) / count) + 1 / 305  # random ids may be the same
        assert abs(found[chosen].mean() - share) < bound
    assert (ids == targets)[~chosen].all()
    pairs_chosen = (chosen[:, 3] & chosen[:, 4]).mean()  # without replacement: 14 of 20
    expected = 14 / 20 * 13 / 19
    assert abs(pairs_chosen - expected) < 4 * np.sqrt(expected * (1 - expected) / rows)


def test_masks_are_of_the_pair_the_epoch_and_the_seed(pairs, tokenizer):
    rows = by_pair(batches(pairs, tokenizer, epochs=1))
    other_shapes = by_pair(batches(pairs, tokenizer, epochs=1, max_tokens=400, max_length=21))
    assert rows == other_shapes
    both = batches(pairs, tokenizer)
    half = len(both) // 2
    assert by_pair(both[:half]) == rows
    second = by_pair(both[half:])
    assert [row[:2] for row in second] == [row[:2] for row in rows]
    assert sum(a == b for a, b in zip(rows, second, strict=True)) < 0.2 * len(rows)
    assert by_pair(batches(pairs, tokenizer, epochs=1, seed=4)) != rows


def test_a_stream_resumes_and_hosts_share_it(pairs, tokenizer):
    whole = batches(pairs, tokenizer)
    again = batches(pairs, tokenizer, start=whole[4]["position"])
    for one, other in zip(whole[5:], again, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    whole = batches(pairs, tokenizer, row_multiple=2)
    hosts = [batches(pairs, tokenizer, num_hosts=2, host_index=host) for host in (0, 1)]
    for one, *parts in zip(whole, *hosts, strict=True):
        for name in one:
            joined = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(one[name], joined, err_msg=name)


def test_examples_are_shown_with_their_masks(tokenizer):
    file = io.StringIO()
    dataset = translation_dataset([("w1 w2", "w3 w4 w5")], tokenizer, max_tokens=16, masked_share=1)
    show_examples(dataset, tokenizer, n=1, file=file)
    title, source, target = file.getvalue().splitlines()
    assert title == "4 source tokens and 4 target tokens, 4 predicted"
    assert source.split() == ["source:", "[CLS]", "w1", "w2", "[SEP]"]
    for word in ("w3", "w4", "w5", "[SEP]"):
        assert f"{{{word}" in target


def test_what_does_not_fit_is_refused(pairs, tokenizer):
    for share in (0, 1.5, -1):
        with pytest.raises(ValueError, match=r"`masked_share` must be above 0 and at most 1, or N"):
            translation_dataset(pairs, tokenizer, masked_share=share)
    bare = kbert.WordTokenizer(["</S>", "<S>", "<UNK>", "w1"])
    with pytest.raises(ValueError, match=r'"mask" token.*WordTokenizer with cls=1, mask=None'):
        translation_dataset([("w1", "w1")], bare, masked_share=0.7)
