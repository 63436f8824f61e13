"""Packed rows hold the same examples and masks as rows of one example, and little padding."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert.data.masking.hashing import fold
from kbert.data.masking.schemes import MASKING_SCHEMES
from kbert.data.pretraining.dataset import pretraining_dataset
from kbert.data.pretraining.packing import pack_examples
from kbert.data.pretraining.segment_schemes import SEGMENT_SCHEMES
from tests.packed import taken_apart


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return tokenizer_of(8000, continuation_share=0.3, pair_separators=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus, tokenizer):
    """70 documents, 3 shards; about 7,000 tokens in some 40 blocks."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    documents = [rng.integers(1, 20, rng.integers(1, 20)).tolist() for _ in range(70)]
    write_corpus(folder, documents, tokenizer, shards=3, block_tokens=150)
    return folder


def small(corpus, tokenizer, **changes):
    options = {"sequence_length": 64, "batch_size": 6, "seed": 3, "window_blocks": 8, "epochs": 1}
    return pretraining_dataset(corpus, tokenizer, **{"pack": True, **options, **changes})


def batches(corpus, tokenizer, **changes):
    return list(small(corpus, tokenizer, **changes).as_numpy_iterator())


@pytest.fixture(scope="module")
def spec_and_two_epochs(corpus, tokenizer):
    dataset = small(corpus, tokenizer, epochs=2)
    return dataset.element_spec, list(dataset.as_numpy_iterator())


@pytest.fixture(scope="module")
def two_epochs(spec_and_two_epochs):
    return spec_and_two_epochs[1]


def joined(found, drop=("position",)):
    return {n: np.concatenate([b[n] for b in found]) for n in found[0] if n not in drop}


def counted(rows):
    """The examples, each as a key, and how often it is there."""
    names = sorted(rows)
    return collections.Counter(
        tuple(rows[name][i].tobytes() for name in names) for i in range(len(rows["token_ids"]))
    )


# What differs in layout or features; the others repeat it.
QUICK = {("pairs", "span"), ("single", "permutation")}
SCHEMES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in (
        *(
            ("single" if scheme.permutes else "pairs", masking)
            for masking, scheme in MASKING_SCHEMES.items()
            if masking != "phrase"
        ),
        # Runs go on from batch to batch, and aligned texts are of a corpus of their own.
        *((x, "token") for x in SEGMENT_SCHEMES if x not in ("pairs", "runs", "aligned")),
    )
]


@pytest.mark.parametrize(("segments", "masking"), SCHEMES)
def test_the_same_examples_with_the_same_masks(corpus, tokenizer, segments, masking):
    options = {"segments": segments, "masking": masking}
    packed = joined(batches(corpus, tokenizer, **options))
    alone = joined(batches(corpus, tokenizer, pack=False, **options))
    real = alone["padding_mask"][:, 0] > 0
    alone = {name: values[real] for name, values in alone.items()}
    apart = taken_apart(packed)
    assert apart.keys() == alone.keys()
    assert counted({n: np.asarray(apart[n], alone[n].dtype) for n in apart}) == counted(alone)
    assert packed["padding_mask"].any(1).sum() <= len(alone["token_ids"])


def test_what_is_not_an_example_is_empty(two_epochs):
    batch = joined(two_epochs)
    padding = batch["padding_mask"] == 0
    for name in ("token_ids", "segment_ids", "position_ids", "example_ids"):
        assert not batch[name][padding].any()
    assert np.array_equal(batch["example_ids"] > 0, ~padding)
    unused = batch["mask_weights"] == 0
    assert not batch["mask_positions"][unused].any()
    assert not batch["mask_ids"][unused].any()
    empty = batch["next_sentence_weights"] == 0
    assert not batch["cls_positions"][empty].any()
    assert np.array_equal((~empty).sum(1), batch["example_ids"].max(1))


@pytest.mark.parametrize(
    "share", [0.5, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.0, 0.8, None))]
)
def test_it_resumes_after_any_batch(corpus, tokenizer, two_epochs, share):
    """In the first epoch, at its end and in the second; `slow` after every batch."""
    whole = two_epochs
    for at in range(len(whole) - 1) if share is None else [int(share * (len(whole) - 1))]:
        rest = batches(corpus, tokenizer, epochs=2, start=whole[at]["position"])
        assert len(rest) == len(whole) - at - 1
        for one, other in zip(rest, whole[at + 1 :], strict=True):
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("host", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_hosts_share_each_batch(corpus, tokenizer, two_epochs, host):
    own = batches(corpus, tokenizer, epochs=2, num_hosts=2, host_index=host)
    for batch, share in zip(two_epochs, own, strict=True):
        assert batch.keys() == share.keys()
        for name in batch:
            np.testing.assert_array_equal(share[name], batch[name][3 * host : 3 * host + 3])


@pytest.mark.slow
def test_batch_size_does_not_change_the_rows(corpus, tokenizer):
    one, other = (
        joined(batches(corpus, tokenizer, batch_size=n, drop_remainder=True)) for n in (4, 6)
    )
    length = min(len(one["token_ids"]), len(other["token_ids"]))
    for name in one:
        np.testing.assert_array_equal(one[name][:length], other[name][:length])


def test_shapes_are_static(spec_and_two_epochs):
    spec, _ = spec_and_two_epochs
    assert {name: tuple(s.shape) for name, s in spec.items()} == {
        **dict.fromkeys(
            ("token_ids", "segment_ids", "padding_mask", "position_ids", "example_ids"), (6, 64)
        ),
        **dict.fromkeys(("mask_positions", "mask_ids", "mask_weights"), (6, 11)),
        **dict.fromkeys(("cls_positions", "next_sentence_labels", "next_sentence_weights"), (6, 8)),
        "position": (6, 3),
    }


def test_every_epoch_packs_anew(corpus, tokenizer):
    found = batches(corpus, tokenizer, epochs=2, segments="full_sentences")
    epochs = [joined([b for b in found if b["position"][0, 0] == n])["token_ids"] for n in (0, 1)]
    rows = [{row.tobytes() for row in epoch} for epoch in epochs]
    assert not rows[0] & rows[1]


def packed(lengths, predictions, **limits):
    examples = np.zeros((len(lengths), 6), np.int32)
    examples[:, 1] = lengths
    examples[:, 5] = np.arange(len(lengths))
    # In a graph, as in a pipeline: the loop over a group's examples is long.
    rows = tf.function(pack_examples, autograph=False)(
        tf.constant(examples),
        tf.constant(lengths, tf.int32),
        tf.constant(predictions, tf.int32),
        fold(0, 0),
        **limits,
    ).numpy()
    count = limits["max_examples"]
    numbers, sizes = rows[:, 5 * count :], rows[:, 1 : 4 * count : 4]
    return [
        [n for n, size in zip(row, used, strict=True) if size]
        for row, used in zip(numbers.tolist(), sizes.tolist(), strict=True)
    ]


def best_fit(lengths, predictions, max_tokens, max_predictions, max_examples):
    """Best fit, longest first, by plain loops: the rows of one group."""
    rows = []
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        fitting = [
            row
            for row in rows
            if sum(lengths[i] for i in row) + lengths[n] <= max_tokens
            and sum(predictions[i] for i in row) + predictions[n] <= max_predictions
            and len(row) < max_examples
        ]
        if fitting:
            max(fitting, key=lambda row: sum(lengths[i] for i in row)).append(n)
        else:
            rows.append([n])
    return rows


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(3, 32), max_size=300),
    st.integers(1, 8),
    st.integers(5, 12),
)
def test_rows_are_those_of_best_fit(lengths, max_examples, max_predictions):
    predictions = [max(1, round(0.15 * n)) for n in lengths]
    limits = (32, max_predictions, max_examples)
    rows = packed(
        lengths,
        predictions,
        max_tokens=32,
        max_predictions=max_predictions,
        max_examples=max_examples,
    )
    expected = []
    for begin in range(0, len(lengths), 256):
        group = slice(begin, begin + 256)
        found = best_fit(lengths[group], predictions[group], *limits)
        expected += [[begin + n for n in row] for row in found]
    assert sorted(rows) == sorted(expected)


def test_little_padding_is_left():
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.exponential(250, 3000).astype(int) + 5, 512)
    predictions = np.maximum(1, np.round(0.15 * lengths)).astype(int)
    rows = packed(
        lengths.tolist(),
        predictions.tolist(),
        max_tokens=512,
        max_predictions=80,
        max_examples=16,
    )
    assert sorted(n for row in rows for n in row) == list(range(3000))
    assert lengths.sum() / (512 * len(rows)) > 0.97
