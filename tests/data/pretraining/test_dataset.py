"""Exactness: which rows come, in which batches, on which host, from where on."""

import os
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert.data.pretraining import stream
from kbert.data.pretraining.dataset import pretraining_dataset

FEATURES = {"token_ids", "segment_ids", "padding_mask", "mask_positions", "mask_ids",
            "mask_weights", "next_sentence_labels", "position"}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return tokenizer_of(8000, continuation_share=0.3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus, tokenizer):
    """70 documents, 3 shards; about 7,000 tokens in some 40 blocks."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    documents = [rng.integers(1, 20, rng.integers(1, 20)).tolist() for _ in range(70)]
    write_corpus(folder, documents, tokenizer, shards=3, block_tokens=150)
    return folder


@pytest.fixture(scope="module")
def stream_of_batches(corpus, tokenizer):
    """The first batches of a stream that does not end."""
    return list(small(corpus, tokenizer).take(40).as_numpy_iterator())


@pytest.fixture(scope="module")
def two_epochs(corpus, tokenizer):
    """All batches of two epochs, and the same with rows one by one."""
    many, single = (small(corpus, tokenizer, epochs=2, **size) for size in ({}, {"batch_size": 1}))
    return list(many.as_numpy_iterator()), list(single.as_numpy_iterator())


@pytest.fixture(scope="module")
def lone_segments(corpus, tokenizer):
    """Three epochs, row by row, of full segments without a next one."""
    settings = {"next_sentence": False, "short_sequence_share": 0.0, "epochs": 3, "batch_size": 1}
    dataset = small(corpus, tokenizer, **settings)
    return dataset.element_spec, list(dataset.as_numpy_iterator())


def small(corpus, tokenizer, **changes):
    settings = {"sequence_length": 32, "batch_size": 12, "seed": 3, "window_blocks": 8}
    return pretraining_dataset(corpus, tokenizer, **{**settings, **changes})


def opened(corpus, tokenizer, **changes):
    """What `small` hands to `stream.batches`."""
    with (
        mock.patch.object(stream, "batches", side_effect=_Opened) as call,
        pytest.raises(_Opened),
    ):
        small(corpus, tokenizer, **changes)
    settings, reader, _, start, *_ = call.call_args.args
    return settings, reader, start


class _Opened(Exception):
    pass


def rows(dataset, take=None):
    """All rows of the features, without `position`, and the batches' positions."""
    return joined(list(dataset.take(take if take is not None else -1).as_numpy_iterator()))


def joined(batches):
    names = [name for name in batches[0] if name != "position"]
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in names}
    for batch in batches:
        assert np.all(batch["position"] == batch["position"][0])
    return joined, [tuple(batch["position"][0].tolist()) for batch in batches]


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_shapes_and_types_are_static(corpus, tokenizer):
    spec = small(corpus, tokenizer, sequence_length=128).element_spec
    assert set(spec) == FEATURES
    shapes = {name: (tuple(value.shape), value.dtype.name) for name, value in spec.items()}
    assert shapes == {
        **dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), ((12, 128), "int32")),
        **dict.fromkeys(("mask_positions", "mask_ids"), ((12, 20), "int32")),
        "mask_weights": ((12, 20), "float32"),
        "next_sentence_labels": ((12,), "int32"),
        "position": ((12, 3), "int32"),
    }


def test_without_next_sentence(lone_segments):
    spec, batches = lone_segments
    assert set(spec) == FEATURES - {"next_sentence_labels"}
    found, _ = joined([batch for batch in batches if batch["position"][0, 0] == 0])
    assert not found["segment_ids"].any()
    ids = found["token_ids"].copy()
    used = found["mask_weights"] > 0
    ids[np.nonzero(used)[0], found["mask_positions"][used]] = found["mask_ids"][used]
    # Every token of the corpus once, in runs, between [CLS] and [SEP].
    text = np.sort(ids[ids >= 5])
    assert np.array_equal(text, np.arange(5, 5 + len(text)))
    assert len(text) > 6000
    lengths = found["padding_mask"].sum(axis=1)
    assert lengths.all()
    for row, length in zip(ids, lengths, strict=True):
        assert row[0] == 2
        assert row[length - 1] == 3
        assert np.all(np.diff(row[1 : length - 1]) == 1)
    assert np.mean(lengths == 32) > 0.7


@pytest.mark.parametrize(
    ("num_hosts", "hosts", "drop_remainder"),
    [
        (2, [1], False),
        pytest.param(2, [0], False, marks=pytest.mark.slow),
        pytest.param(4, range(4), True, marks=pytest.mark.slow),
    ],
)
def test_hosts_together_make_the_batches_of_one(
    corpus, tokenizer, two_epochs, num_hosts, hosts, drop_remainder
):
    settings = {"epochs": 2, "drop_remainder": drop_remainder}
    one = two_epochs[0][:-1] if drop_remainder else two_epochs[0]
    size = 12 // num_hosts
    for host in hosts:
        own = small(corpus, tokenizer, num_hosts=num_hosts, host_index=host, **settings)
        for batch, share in zip(one, own.as_numpy_iterator(), strict=True):
            assert_equal(share, {k: x[host * size : (host + 1) * size] for k, x in batch.items()})


@pytest.mark.parametrize(
    ("batch_size", "window_blocks", "count"),
    [
        pytest.param(12, 8, 30, id="batches in windows", marks=pytest.mark.slow),
        pytest.param(100, 2, 10, id="batches over windows"),
        pytest.param(400, 64, 6, id="batches over epochs", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_resuming_at_every_batch_is_bit_equal(corpus, tokenizer, batch_size, window_blocks, count):
    settings = {"batch_size": batch_size, "window_blocks": window_blocks}
    batches = list(small(corpus, tokenizer, **settings).take(count + 3).as_numpy_iterator())
    starts = np.stack([batch["position"][0] for batch in batches]).astype(np.int64)
    # In one pipeline, to trace it once: three batches from each start.
    checked, reader, _ = opened(corpus, tokenizer, **settings)
    resumed = tf.data.Dataset.from_tensor_slices(starts[:count]).flat_map(
        lambda start: stream.batches(checked, reader, tokenizer, tf.unstack(start)).take(3)
    )
    for n, found in enumerate(resumed.as_numpy_iterator()):
        assert_equal(found, batches[n // 3 + 1 + n % 3])
    assert n == 3 * count - 1
    assert len(set(starts[:, 0])) > 1, "the corpus is too large: no epoch ends in this test"


def test_resuming_through_the_front_door(corpus, tokenizer, stream_of_batches):
    batches = stream_of_batches
    for n in (30,):
        resumed = small(corpus, tokenizer, start=batches[n]["position"][0]).take(9)
        for expected, found in zip(batches[n + 1 :], resumed.as_numpy_iterator(), strict=False):
            assert_equal(found, expected)


def test_a_start_may_be_a_whole_position_or_a_variable(corpus, tokenizer, stream_of_batches):
    position = stream_of_batches[4]["position"]
    one = position[0]
    for start in (position, tf.constant(position), tf.Variable(one), keras.Variable(one)):
        *_, found = opened(corpus, tokenizer, start=start)
        assert found == tuple(one.tolist())


@pytest.mark.parametrize(
    ("start", "received"),
    [
        ([[0, 0, 1], [0, 0, 2]], r"of shape \(2, 3\)"),
        ((0, 1), r"of shape \(2,\)"),
        (5, r"of shape \(\): 5"),
        (np.zeros((0, 3), np.int32), r"of shape \(0, 3\)"),
        ((0.0, 0.0, 1.5), "float64 of shape"),
    ],
)
def test_a_start_that_is_no_position(corpus, tokenizer, start, received):
    with pytest.raises(
        ValueError, match=rf"`start` must be three integers.*Received: .*{received}"
    ):
        small(corpus, tokenizer, start=start)


def test_after_the_last_window_comes_the_next_epoch(corpus, tokenizer):
    _, reader, _ = opened(corpus, tokenizer)
    *_, start = opened(corpus, tokenizer, start=(0, reader.windows, 0))
    assert start == (1, 0, 0)


def test_a_start_is_free_of_the_batch_size(corpus, tokenizer, stream_of_batches):
    expected, positions = joined(stream_of_batches)
    found, _ = rows(small(corpus, tokenizer, batch_size=8, start=positions[9]), take=10)
    assert_equal(found, {name: value[120:200] for name, value in expected.items()})


def test_every_epoch_has_new_masks(lone_segments):
    epochs = [set(), set(), set()]
    for batch in lone_segments[1]:
        # The full segments are the same in each epoch: what differs is the masks.
        if batch["padding_mask"].all():
            masked = zip(batch["mask_positions"][0], batch["mask_ids"][0], strict=True)
            epochs[batch["position"][0, 0]].add(tuple(masked))
    assert len(epochs[0]) == len(epochs[1]) == len(epochs[2]) > 150
    assert len(set.union(*epochs)) == 3 * len(epochs[0])


def test_every_epoch_has_new_pairs(two_epochs):
    epochs = [set(), set()]
    for batch in two_epochs[1]:
        ids, used = batch["token_ids"][0].copy(), batch["mask_weights"][0] > 0
        ids[batch["mask_positions"][0, used]] = batch["mask_ids"][0, used]
        epochs[batch["position"][0, 0]].add(tuple(ids))
    assert min(map(len, epochs)) > 100
    assert len(epochs[0] & epochs[1]) < 0.1 * len(epochs[0])


def test_another_seed_gives_other_rows(corpus, tokenizer, stream_of_batches):
    other = next(small(corpus, tokenizer, seed=4).as_numpy_iterator())
    assert not np.array_equal(stream_of_batches[0]["token_ids"], other["token_ids"])


def test_the_last_batch_is_filled_with_rows_of_no_weight(two_epochs):
    (kept, _), (every, _) = map(joined, two_epochs)
    count = len(every["token_ids"])
    assert len(kept["token_ids"]) == -(-count // 12) * 12 > count
    assert_equal({name: value[:count] for name, value in kept.items()}, every)
    assert all(not value[count:].any() for value in kept.values())
    assert every["padding_mask"][:, 0].all()


def test_two_documents_are_enough(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[3], [4, 2]], tokenizer, shards=1)
    found, positions = rows(small(tmp_path, tokenizer, batch_size=8), take=20)
    assert len(positions) == 20
    assert found["next_sentence_labels"].min() == 0


def test_one_document_is_refused_unless_nothing_comes_next(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[30] * 20], tokenizer, shards=1)
    with pytest.raises(ValueError, match=r"requires 2.*Received: 1 document"):
        small(tmp_path, tokenizer)
    found, _ = rows(small(tmp_path, tokenizer, next_sentence=False), take=4)
    assert len(found["token_ids"]) == 48


def test_settings_out_of_range_are_refused(corpus, tokenizer):
    for changes, message in [
        (
            {"sequence_length": 7},
            "`sequence_length` must be .* from 8 to 65,536. Received: 7",
        ),
        ({"masking": "words"}, "`masking` must be one of token, .*Received: 'words'"),
        ({"segments": "triples"}, "`segments` must be one of pairs, .*Received: 'triples'"),
        ({"segments": "halves", "next_sentence": True}, "`next_sentence` must be True with segm"),
        ({"segments": "pairs", "next_sentence": False}, "Received: next_sentence=False, segm"),
        ({"replacement": (0.8, 0.3)}, "`replacement` must be two shares.*Received: replacement"),
        ({"replacement": (0.8,)}, "`replacement` must be a sequence of 2, .*Received: .0.8,."),
        ({"masking": "independent", "replacement": (0.8, 0.1)}, "must have no random tokens"),
        ({"masking": "phrase"}, 'masking="phrase" requires `phrases`.*phrases=None'),
        ({"phrases": ["a b"]}, "no other masking uses them. Received: masking='token'"),
        ({"static_masks": 0}, "`static_masks` must be a whole number of at least 1"),
        (
            {"masked_share": 0.0},
            "`masked_share` must be .* above 0 and at most 1. Received: 0.0",
        ),
        ({"short_sequence_share": 1.5}, "`short_sequence_share` must be a number from 0 to 1"),
        ({"seed": -1}, "`seed` must be a whole number from 0 to"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1. Received: 0"),
        ({"num_hosts": 5}, "`batch_size` counts .*Received: batch_size=12, num_hosts=5"),
        (
            {"num_hosts": 2, "host_index": 2},
            "`host_index` must be below .*host_index=2, num_hosts=2",
        ),
        ({"window_blocks": 1}, "`window_blocks` must be a whole number of at least 2"),
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1 or None"),
        ({"threads": 0}, "`threads` must be a whole number of at least 1 or None"),
        ({"start": (0, 99, 0)}, "`start` must be .*Received: start=.0, 99, 0."),
        ({"split": "test"}, "has the splits.*Received: split='test'"),
    ]:
        with pytest.raises(ValueError, match=message):
            small(corpus, tokenizer, **changes)


def test_another_vocabulary_is_refused(corpus, tokenizer_of):
    with pytest.raises(ValueError, match=f"The shards in {corpus} were written with another"):
        small(corpus, tokenizer_of(8000, checksum="1" * 64))


def test_a_tokenizer_without_mask_is_refused(corpus, tokenizer_of):
    tokenizer = tokenizer_of(8000)
    tokenizer.mask_id = tokenizer.sep_id = None
    with pytest.raises(ValueError, match="Received: one without sep, mask"):
        small(corpus, tokenizer)


def test_missing_and_truncated_shards_are_refused(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[3], [4, 2]] * 50, tokenizer, shards=2)
    path = os.path.join(tmp_path, "train-00001-of-00002.tfrecord")
    os.truncate(path, os.path.getsize(path) - 10)
    with pytest.raises(ValueError, match=f"{path} is truncated"):
        small(tmp_path, tokenizer)
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=path):
        small(tmp_path, tokenizer)


def test_a_record_that_turns_corrupt_stops_the_run_and_is_named(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[3], [4, 2]] * 50, tokenizer, shards=2)
    path = os.path.join(tmp_path, "train-00000-of-00002.tfrecord")
    with open(path, "r+b") as file:
        file.seek(30)
        file.write(b"\xff\xff\xff")
    dataset = small(tmp_path, tokenizer)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Cannot read {path}, record at"):
        next(iter(dataset))


def test_a_folder_without_shards_is_refused(tmp_path, tokenizer):
    with pytest.raises(FileNotFoundError, match="not a prepared corpus"):
        small(tmp_path, tokenizer)


def test_large_vocabularies_are_stored_in_32_bits(tmp_path, write_corpus, tokenizer_of):
    large = tokenizer_of(70_000)
    write_corpus(tmp_path, [[10] * 200] * 34, large)
    found, _ = rows(small(tmp_path, large, epochs=1))
    assert found["mask_ids"].max() > 66_000


def test_the_pipeline_is_not_sharded_again(corpus, tokenizer, mirrored, stream_of_batches):
    dataset = small(corpus, tokenizer)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    batch = next(iter(mirrored.experimental_distribute_dataset(dataset)))
    parts = mirrored.experimental_local_results(batch["token_ids"])
    assert np.array_equal(np.concatenate(parts), stream_of_batches[0]["token_ids"])
