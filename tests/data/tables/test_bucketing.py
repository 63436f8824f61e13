"""Batches by length: every row once an epoch, another order each epoch, exact restarts."""

import dataclasses
import functools
import unittest.mock

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from kbert.core.ragged import Ragged
from kbert.data import pipeline
from kbert.data.tables import bucketing, rows as table_rows
from kbert.data.tables.bucketing import BUCKET, bucketed_batches
from kbert.data.tables.rows import Rows

SETTINGS = hypothesis.settings(max_examples=8, deadline=None)


def make_rows(lengths):
    lengths = np.asarray(lengths)
    ids = tf.RaggedTensor.from_row_lengths(tf.range(int(lengths.sum())), lengths)
    return Rows(
        ragged={"first": ids},
        dense={"labels": np.arange(len(lengths), dtype=np.int32)},
        lengths=lengths,
        examples=np.arange(len(lengths)),
    )


def assemble(columns):
    return {"ids": columns["first"].to_tensor(), "labels": columns["labels"]}


def batches(rows, **options):
    return list(bucketed_batches(rows, assemble, **options).as_numpy_iterator())


def random_lengths(count=100, seed=0):
    return np.random.default_rng(seed).integers(1, 60, count)


def real(batch):
    return batch["rows"][batch["label_weights"] > 0].tolist()


@SETTINGS
@hypothesis.given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(0, 2**31),
    st.booleans(),
    st.booleans(),
)
def test_every_row_once_an_epoch_in_batches_of_one_size(lengths, size, seed, shuffle, by_length):
    options = {"shuffle": shuffle, "by_length": by_length, "seed": seed, "epochs": 2}
    found = batches(make_rows(lengths), batch_size=size, **options)
    steps = -(-len(lengths) // size)
    assert len(found) == 2 * steps
    for epoch in (found[:steps], found[steps:]):
        assert sorted(row for batch in epoch for row in real(batch)) == list(range(len(lengths)))
    for number, batch in enumerate(found, start=1):
        assert batch["labels"].tolist() == batch["rows"].tolist()
        assert len(batch["rows"]) == size
        assert batch["position"].tolist() == [[number // steps, number % steps, 0]] * size


@functools.cache
def three_epochs(seed):
    """Options, and all their batches: 13 an epoch."""
    options = {"batch_size": 5, "seed": seed, "epochs": 3}
    return options, batches(make_rows(random_lengths(61)), **options)


@SETTINGS
@hypothesis.given(st.sampled_from([0, 2**31]), st.integers(1, 39))
def test_a_restart_resumes_bit_equal(seed, stop):
    options, whole = three_epochs(seed)
    rows = make_rows(random_lengths(61))
    rest = batches(rows, start=whole[stop - 1]["position"][0], **options)
    assert len(rest) == 39 - stop
    for found, wanted in zip(rest, whole[stop:], strict=True):
        for name in wanted:
            np.testing.assert_array_equal(found[name], wanted[name])


@SETTINGS
@hypothesis.given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
    st.data(),
)
def test_without_tensorflow_batches_are_the_same(lengths, shuffle, by_length, seed, data):
    rows, steps = make_rows(lengths), -(-len(lengths) // 4)
    start = (data.draw(st.integers(0, 2)), data.draw(st.integers(0, steps - 1)), 0)
    options = {"shuffle": shuffle, "by_length": by_length, "seed": seed, "start": start}
    options |= {"batch_size": 4, "epochs": 3, "num_hosts": 2, "host_index": 1}
    wanted = batches(rows, **options)
    ids = rows.ragged["first"]
    arrays = dataclasses.replace(rows, ragged={"first": Ragged.of(ids.to_list())})
    none = {"has_tensorflow": lambda: False}
    with (
        unittest.mock.patch.multiple(bucketing, **none),
        unittest.mock.patch.multiple(table_rows, **none),
    ):
        made = bucketed_batches(arrays, assemble_arrays, **options)
        found, spec = list(made), made.element_spec
    assert {k: x.dtype for k, x in spec.items()} == {name: x.dtype for name, x in wanted[0].items()}
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert arrays.checksum == rows.checksum


def assemble_arrays(columns):
    ids = columns["first"]
    dense = np.zeros((len(ids), ids.row_lengths().max()), np.int32)
    for row, numbers in zip(dense, ids, strict=True):
        row[: len(numbers)] = numbers
    return {"ids": dense, "labels": columns["labels"]}


def test_orders_follow_from_seed_and_epoch():
    rows = make_rows(random_lengths())
    orders = [
        [batch["rows"].tolist() for batch in batches(rows, batch_size=8, seed=seed, epochs=2)]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    first, second = orders[0][:13], orders[0][13:]
    assert first != second
    # Not the same batches in another order either: other rows meet.
    assert len({frozenset(x) for x in first} & {frozenset(x) for x in second}) < 3


def test_rows_of_like_length_meet():
    lengths = random_lengths(1000)
    rows = make_rows(lengths)

    def padded(**options):
        found = batches(rows, batch_size=10, epochs=1, **options)
        return sum(batch["ids"].size for batch in found), [x["ids"].shape[1] for x in found]

    ideal = (-(-lengths // BUCKET) * BUCKET).sum()
    size, widths = padded()
    assert size < 1.02 * ideal  # some batches lie on a border between two buckets
    assert padded(by_length=False)[0] > 1.5 * ideal
    assert widths != sorted(widths)  # the batches themselves are permuted


def test_without_shuffling_the_order_is_kept_or_that_of_lengths():
    rows = make_rows([20, 3, 50, 4])
    kept = batches(rows, batch_size=2, shuffle=False, by_length=False, epochs=1)
    assert [real(batch) for batch in kept] == [[0, 1], [2, 3]]
    sorted_ = batches(rows, batch_size=2, shuffle=False, epochs=1)
    assert [real(batch) for batch in sorted_] == [[1, 3], [0, 2]]


def test_weights_of_the_task_are_kept_and_copies_have_none():
    rows = make_rows([5, 6, 7])
    weights = tf.constant([[0.5, 2.0]])

    def weighted(columns):
        return {"label_weights": tf.tile(weights, [tf.size(columns["labels"]), 1])}

    (batch,) = bucketed_batches(rows, weighted, batch_size=5, epochs=1)
    found = batch["label_weights"].numpy()
    assert found[:2].tolist() == [[0, 0]] * 2
    assert found[2:].tolist() == [[0.5, 2.0]] * 3


def test_it_never_ends_and_knows_its_size_where_it_does():
    rows = make_rows([5, 6, 7])
    endless = bucketed_batches(rows, assemble, batch_size=2)
    assert len(list(endless.take(7))) == 7
    assert len(bucketed_batches(rows, assemble, batch_size=2, epochs=3, start=(1, 1, 0))) == 3


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([], {}, "Batches require at least one row.*Received: 0 rows, batch_size=2"),
        ([3], {"batch_size": 0}, "batch_size must be at least 1.*batch_size=0"),
        ([3, 3, 3], {"start": (0, 2, 0)}, r"an epoch has 2 batches. Received: \(0, 2, 0\)"),
        ([3], {"start": (-1, 0, 0)}, r"Received: \(-1, 0, 0\)"),
    ],
)
def test_numbers_out_of_range(lengths, options, message):
    with pytest.raises(ValueError, match=message):
        bucketed_batches(make_rows(lengths), assemble, **{"batch_size": 2, **options})


def test_no_thread_tunes_a_dataset():
    """It would sleep when the dataset is dropped, and `fit` would wait for it."""
    assert not pipeline.exact_options().autotune.enabled
