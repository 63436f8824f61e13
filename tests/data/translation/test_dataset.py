"""Batches of pairs: each once an epoch, bounded in tokens, the same on hosts and after restarts."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from kbert.data import encode_pairs, translation_dataset
from kbert.tokenizers import SPECIAL_TOKENS, BytePairTokenizer, WordPieceTokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

SETTINGS = hypothesis.settings(max_examples=6, deadline=None)
# Pair n is told by its first words, "s<n>" and "t<n>", on both sides.
MOST = 60
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, "x", *(f"{side}{n}" for side in "st" for n in range(MOST))]
)
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=MOST)


def make_pairs(lengths):
    """Pairs with that many tokens on each side, their ends not counted."""
    return [
        (" ".join([f"s{n}"] + ["x"] * (a - 1)), " ".join([f"t{n}"] + ["x"] * (b - 1)))
        for n, (a, b) in enumerate(lengths)
    ]


def random_lengths(count=MOST, seed=0):
    return np.random.default_rng(seed).integers(1, 40, (count, 2)).tolist()


def batches(pairs, **options):
    options = {"max_tokens": 160, "epochs": 1, **options}
    return list(translation_dataset(pairs, TOKENIZER, **options).as_numpy_iterator())


def real(batch):
    """The numbers of a batch's pairs, which every feature agrees on."""
    has_weight = batch["weights"].sum(1) > 0
    first = TOKENIZER.token_to_id("s0"), TOKENIZER.token_to_id("t0")
    sources = batch["encoder_token_ids"][has_weight, 0] - first[0]
    assert np.array_equal(sources, batch["targets"][has_weight, 0] - first[1])
    return sources.tolist()


@SETTINGS
@hypothesis.given(LENGTHS, st.integers(1, 3), st.integers(0, 2**31), st.booleans())
def test_every_pair_once_an_epoch_whole_and_within_the_bound(lengths, multiple, seed, shuffle):
    options = {"seed": seed, "shuffle": shuffle, "row_multiple": multiple}
    found = batches(make_pairs(lengths), epochs=2, **options)
    steps = len(found) // 2
    for epoch in (found[:steps], found[steps:]):
        assert sorted(n for batch in epoch for n in real(batch)) == list(range(len(lengths)))
    cls_id, sep_id = TOKENIZER.cls_id, TOKENIZER.sep_id
    for number, batch in enumerate(found, 1):
        rows, width = batch["encoder_token_ids"].shape
        assert rows % multiple == 0
        assert rows * max(width, batch["targets"].shape[1]) <= 160
        assert batch["position"].tolist() == [[number // steps, number % steps, 0]] * rows
        for n, row in zip(real(batch), range(rows), strict=False):  # empty rows come last
            source, target = lengths[n]
            assert batch["encoder_padding_mask"][row].sum() == source + 1
            assert batch["encoder_token_ids"][row, source] == sep_id
            assert batch["decoder_token_ids"][row, 0] == cls_id
            ids = batch["targets"][row, :target]
            assert np.array_equal(batch["decoder_token_ids"][row, 1 : target + 1], ids)
            assert ids[0] == TOKENIZER.token_to_id(f"t{n}")
            assert batch["targets"][row, target] == 3
            assert batch["weights"][row].sum() == target + 1
            for name in ("weights", "decoder_padding_mask"):
                assert not batch[name][row, target + 1 :].any()
        for row in range(len(real(batch)), rows):
            # A source is never masked whole: attention over nothing is not a number.
            assert batch["encoder_token_ids"][row, 0] == sep_id
            assert batch["encoder_padding_mask"][row].tolist() == [1] + [0] * (width - 1)
            assert batch["decoder_token_ids"][row, 0] == cls_id
            assert not batch["weights"][row].any()


@hypothesis.settings(max_examples=3, deadline=None)  # of two stops each
@hypothesis.given(LENGTHS, st.integers(0, 2**31), st.data())
def test_a_restart_resumes_bit_equal(lengths, seed, data):
    pairs = encode_pairs(make_pairs(lengths), TOKENIZER, max_length=50)
    options = {"seed": seed, "epochs": 3}
    whole = batches(pairs, **options)
    for stop in {data.draw(st.integers(1, len(whole))) for _ in range(2)}:
        rest = batches(pairs, start=whole[stop - 1]["position"], **options)
        assert len(rest) == len(whole) - stop
        for found, wanted in zip(rest, whole[stop:], strict=True):
            for name in wanted:
                np.testing.assert_array_equal(found[name], wanted[name])


@hypothesis.settings(max_examples=3, deadline=None)
@hypothesis.given(LENGTHS, st.integers(2, 3), st.integers(1, 4))
def test_the_slices_of_hosts_are_the_global_batch(lengths, hosts, threads):
    pairs = encode_pairs(make_pairs(lengths), TOKENIZER, max_length=50)
    whole = batches(pairs, row_multiple=hosts, epochs=2)
    shares = [
        batches(pairs, num_hosts=hosts, host_index=i, epochs=2, threads=threads)
        for i in range(hosts)
    ]
    for batch, *parts in zip(whole, *shares, strict=True):
        for name in batch:
            np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), batch[name])


def test_orders_follow_from_seed_and_epoch():
    pairs = encode_pairs(make_pairs(random_lengths()), TOKENIZER, max_length=50)
    options = {"epochs": 2, "num_shapes": 2}  # with more, a shape has few batches to mix
    orders = [[real(b) for b in batches(pairs, seed=seed, **options)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    half = len(orders[0]) // 2
    first, second = orders[0][:half], orders[0][half:]
    # Other pairs meet, not the same batches in another order.
    assert len({frozenset(x) for x in first} & {frozenset(x) for x in second}) < half / 3


def test_without_shuffling_every_epoch_is_alike_and_short_batches_come_first():
    pairs = make_pairs([(4, 4), (30, 30), (5, 5), (31, 31)])
    found = batches(pairs, shuffle=False, epochs=2, max_tokens=64)
    assert [real(batch) for batch in found] == [[0, 2], [1, 3]] * 2


def test_pairs_that_cannot_be_used_are_counted(caplog):
    pairs = [*make_pairs([(3, 3), (9, 3), (3, 9), (8, 8)]), ("\u00ad", "x"), ("x", "\u00ad")]
    encoded = encode_pairs(pairs, TOKENIZER, max_length=9)
    assert (len(encoded), encoded.too_long, encoded.empty) == (2, 2, 2)
    assert "2 pairs are skipped: the source or target has more than 9 tokens" in caplog.text
    assert "2 pairs are skipped: the source or target has no tokens" in caplog.text
    assert sorted(n for b in batches(pairs, max_length=9) for n in real(b)) == [0, 3]
    # Without a limit it is what one row may have: 160 / 16.
    assert sorted(n for b in batches(pairs, row_multiple=16) for n in real(b)) == [0, 1, 2, 3]
    wide = batches(pairs, max_length=9, max_tokens=36)
    assert max(batch["targets"].shape[1] for batch in wide) == 9  # no wider than a model's table


def test_splits_are_disjoint_and_together_everything():
    pairs = make_pairs(random_lengths())
    train, held_out = (
        sorted(n for b in batches(pairs, split=split, held_out_share=0.3) for n in real(b))
        for split in ("train", "held_out")
    )
    assert sorted(train + held_out) == list(range(MOST))
    assert 5 < len(held_out) < 30


def test_chunks_of_pairs_are_joined(monkeypatch):
    pairs = make_pairs(random_lengths())
    whole = encode_pairs(pairs, TOKENIZER, max_length=30)
    monkeypatch.setattr("kbert.data.translation.pairs._CHUNK", 7)
    parts = encode_pairs(iter(pairs), TOKENIZER, max_length=30)
    assert whole.too_long == parts.too_long > 0
    for side in ("source", "target"):
        ours, theirs = getattr(whole, side), getattr(parts, side)
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.lengths, theirs.lengths)
        assert ours.ids.dtype == "uint16"


def test_it_never_ends_and_knows_its_size_where_it_does():
    pairs = encode_pairs(make_pairs([(3, 3)]), TOKENIZER, max_length=4)
    endless = translation_dataset(pairs, TOKENIZER, max_tokens=4)
    assert len(list(endless.take(5))) == 5
    assert len(translation_dataset(pairs, TOKENIZER, epochs=3, start=(1, 0, 0))) == 2
    assert endless.element_spec["targets"].shape == (1, 4)  # of one shape, so it is static


def test_a_vocabulary_without_a_pad_token():
    vocabulary = [*CHARACTERS, "<|endoftext|>"]
    roles = dict.fromkeys(("cls", "sep"), "<|endoftext|>")
    tokenizer = BytePairTokenizer(vocabulary, [], special_tokens=roles)
    (batch,) = translation_dataset([("a", "bc")], tokenizer, epochs=1, max_tokens=4)
    end = tokenizer.sep_id
    first = tokenizer.token_to_id("a")
    assert batch["encoder_token_ids"].numpy().tolist() == [[first, end, end, end]]
    assert batch["decoder_token_ids"].numpy()[0, 0] == end


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "`seed` must lie in .* Received: -1"),
        ({"epochs": 0}, "`epochs` must be above 0.* Received: 0"),
        ({"num_shapes": 0}, "`num_shapes` must be above 0. Received: 0"),
        ({"row_multiple": 0}, "`row_multiple` must be above 0. Received: 0"),
        ({"num_hosts": 2, "host_index": 2}, r"`host_index` must lie in .* Received: \(2, 2\)"),
        ({"threads": 0}, "`threads` must be above 0.* Received: 0"),
        ({"max_length": 1}, "`max_length` must be at least 2.* Received: 1"),
        ({"max_length": 41, "row_multiple": 4}, r"`max_tokens` must be at least .*\(160, 41, 4\)"),
        ({"start": (0, 9, 0)}, r"an epoch of this corpus has 1 window.* start=\(0, 9, 0\)"),
        ({"split": "dev"}, "Received: split='dev'"),
        (
            {"split": "held_out"},
            "A dataset must have at least one usable pair. Received: none; 0 were",
        ),
        ({"max_length": 3}, "usable pair.*; 1 were too long for max_length=3, 0 were empty"),
    ],
)
def test_settings_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        batches(make_pairs([(3, 3)]), **options)


def test_pairs_and_tokenizers_that_do_not_fit():
    pairs = encode_pairs(make_pairs([(3, 3)]), TOKENIZER, max_length=50)
    other = WordPieceTokenizer([*SPECIAL_TOKENS, "x"])
    with pytest.raises(ValueError, match="encoded with another tokenizer"):
        translation_dataset(pairs, other)
    with pytest.raises(ValueError, match="Received: max_length=50 when they were encoded, 9 now"):
        translation_dataset(pairs, TOKENIZER, max_length=9)
    with pytest.raises(ValueError, match=r"A pair must be .* Received: \('a', 3\) as pair 1"):
        encode_pairs([("a", "b"), ("a", 3)], TOKENIZER, max_length=9)
    with pytest.raises(ValueError, match="Received: 'ab' as pair 0"):
        encode_pairs(["ab"], TOKENIZER, max_length=9)
    bare = BytePairTokenizer(CHARACTERS, [])
    with pytest.raises(ValueError, match="BytePairTokenizer with cls=None, pad=None, sep=None"):
        translation_dataset([("a", "b")], bare)
