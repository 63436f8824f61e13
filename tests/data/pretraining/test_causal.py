"""Packed rows of a causal language model: what is read and predicted, and where batches resume."""

import collections
import itertools
import os

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from kbert.data.corpus import manifest
from kbert.data.corpus.blocks import BlockReader
from kbert.data.pretraining import causal
from kbert.data.pretraining.causal import CausalSettings, causal_dataset

END = 3  # the stand-in tokenizer's "sep"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    return tokenizer_of(6000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus, tokenizer):
    """40 documents of about 2,500 tokens, each there once, in some 20 blocks; their bounds."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    documents = [rng.integers(1, 16, rng.integers(1, 15)).tolist() for _ in range(40)]
    bounds, _ = write_corpus(folder, documents, tokenizer, shards=3, block_tokens=120)
    return folder, 5 + bounds


def defaults(**changes):
    return {"sequence_length": 7, "batch_size": 6, "seed": 3, "window_blocks": 5, **changes}


def small(folder, tokenizer, **changes):
    return causal_dataset(folder, tokenizer, **defaults(**changes))


def listed(folder, tokenizer, **changes):
    return list(small(folder, tokenizer, **changes).as_numpy_iterator())


@pytest.fixture(scope="module")
def one_epoch(corpus, tokenizer):
    return listed(corpus[0], tokenizer, epochs=1)


@pytest.fixture(scope="module")
def two_epochs(corpus, tokenizer):
    return listed(corpus[0], tokenizer, epochs=2)


def opened(folder, **changes):
    """Settings and reader, as `small` hands them to `batches`."""
    others = {"epochs": None, "num_hosts": 1, "host_index": 0, "threads": None}
    settings = CausalSettings(**others | defaults(**changes))
    reader = BlockReader.from_manifest(
        manifest.read_manifest(folder), "train", settings.seed, settings.window_blocks
    )
    return settings, reader


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def transitions(batches):
    """(token read, token predicted) -> how often."""
    found = collections.Counter()
    for batch in batches:
        used = batch["weights"] > 0
        found.update(zip(batch["token_ids"][used], batch["targets"][used], strict=True))
    return {(int(a), int(b)): count for (a, b), count in found.items()}


def expected_transitions(bounds):
    """Inside a document each token after the one before it; the ends of text around it."""
    found = collections.Counter()
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        document = [END, *range(first, end), END]
        found.update(itertools.pairwise(document))
    return dict(found)


def test_shapes_and_types_are_static(corpus, tokenizer):
    spec = small(corpus[0], tokenizer, num_hosts=2).element_spec
    assert {name: (tuple(x.shape), x.dtype.name) for name, x in spec.items()} == {
        "token_ids": ((3, 7), "int32"),
        "targets": ((3, 7), "int32"),
        "weights": ((3, 7), "float32"),
        "position": ((3, 3), "int32"),
    }


def test_every_token_is_predicted_once_an_epoch_after_the_one_before_it(
    corpus, one_epoch, two_epochs
):
    expected = expected_transitions(corpus[1])
    assert transitions(one_epoch) == expected
    twice = {pair: 2 * count for pair, count in expected.items()}
    assert transitions(two_epochs) == twice


SENTENCES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@hypothesis.settings(max_examples=3, deadline=None, derandomize=True)
@hypothesis.given(
    st.lists(SENTENCES, min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 11),
    st.integers(2, 4),
)
def test_any_corpus(
    tmp_path_factory, write_corpus, tokenizer_of, documents, rows, length, window_blocks
):
    tokenizer = tokenizer_of(5 + sum(map(sum, documents)))
    folder = tmp_path_factory.mktemp("any")
    bounds, _ = write_corpus(folder, documents, tokenizer, shards=1, block_tokens=10)
    changes = {"batch_size": rows, "sequence_length": length, "window_blocks": window_blocks}
    batches = listed(folder, tokenizer, epochs=1, **changes)
    assert transitions(batches) == expected_transitions(5 + bounds)
    steps = sum(batch["weights"].sum() for batch in batches)
    windows = opened(folder, **changes)[1].windows
    # All rows are full but for one a window, and the batches but for the last.
    assert len(batches) <= -(-(steps // length + windows) // rows)


def test_rows_read_on_from_what_they_predict(one_epoch):
    for batch in one_epoch:
        used = batch["weights"] > 0
        # Weights are 1 from the left on, and what is read next is what was predicted.
        np.testing.assert_array_equal(used, np.sort(used, 1)[:, ::-1])
        both = used[:, 1:]
        np.testing.assert_array_equal(
            batch["token_ids"][:, 1:][both], batch["targets"][:, :-1][both]
        )
        assert (batch["targets"][~used] == END).all()


def test_rows_of_a_window_are_one_text_in_another_order_each_epoch(corpus, tokenizer):
    folder, bounds = corpus
    changes = {"sequence_length": 170, "window_blocks": 64, "batch_size": 1}
    batches = listed(folder, tokenizer, epochs=2, **changes)
    count = len(batches) // 2
    texts = []
    for epoch in (batches[:count], batches[count:]):
        rows = [
            [b["token_ids"][0, 0].item(), *b["targets"][0][b["weights"][0] > 0].tolist()]
            for b in epoch
        ]
        # A token is there once, and with this seed no two rows meet in an end of text: so the row
        # that continues is known by its first token. The first row of all begins with an end.
        after = {row[0]: row[1:] for row in rows}
        text, token = [], END
        while token in after:
            text += after.pop(token)
            token = text[-1]
        texts.append(text)
        assert not after, "a row ends where a document does: choose another seed"
        # Not the rows as they lie in the text: those are permuted.
        assert np.concatenate([row[1:] for row in rows]).tolist() != text
    orders = [[token for token in text if token in set(bounds.tolist())] for text in texts]
    assert sorted(orders[0]) == sorted(orders[1]) == bounds[:-1].tolist()
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_size", "sequence_length", "window_blocks", "count"),
    [
        pytest.param(6, 7, 5, 70, id="batches in windows"),
        pytest.param(1, 20, 2, 60, id="one row", marks=pytest.mark.slow),
        pytest.param(50, 30, 64, 6, id="one batch an epoch", marks=pytest.mark.slow),
        pytest.param(2, 1, 64, 40, id="one token", marks=pytest.mark.slow),
    ],
)
def test_resuming_at_every_batch_is_bit_equal(
    corpus, tokenizer, batch_size, sequence_length, window_blocks, count
):
    changes = {
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "window_blocks": window_blocks,
    }
    dataset = small(corpus[0], tokenizer, **changes)
    batches = list(dataset.take(count + 3).as_numpy_iterator())
    starts = np.stack([batch["position"][0] for batch in batches]).astype(np.int64)
    settings, reader = opened(corpus[0], **changes)

    def resume(start):
        return causal.batches(settings, reader, END, tf.unstack(start)).take(3)

    # In one pipeline, to trace it once: three batches from each start.
    resumed = tf.data.Dataset.from_tensor_slices(starts[:count]).flat_map(resume)
    for n, found in enumerate(resumed.as_numpy_iterator()):
        assert_equal(found, batches[n // 3 + 1 + n % 3])
    assert n == 3 * count - 1


def test_resuming_through_the_front_door(corpus, tokenizer, two_epochs):
    batches = two_epochs[:90]
    assert len(batches) == 90
    assert batches[-1]["position"][0, 0] > 0
    for n in (13, 80):
        resumed = small(corpus[0], tokenizer, start=batches[n]["position"]).take(9)
        for expected, found in zip(batches[n + 1 :], resumed.as_numpy_iterator(), strict=False):
            assert_equal(found, expected)


def test_a_stream_ends_after_its_epochs_wherever_it_starts(corpus, tokenizer, two_epochs):
    batches = two_epochs
    assert len(listed(corpus[0], tokenizer, epochs=2, start=batches[-3]["position"])) == 2
    assert not listed(corpus[0], tokenizer, epochs=2, start=batches[-1]["position"])


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_hosts_together_make_the_batches_of_one(corpus, tokenizer, one_epoch, num_hosts):
    one = one_epoch
    shares = [
        listed(corpus[0], tokenizer, epochs=1, num_hosts=num_hosts, host_index=host)
        for host in range(num_hosts)
    ]
    for batch, *parts in zip(one, *shares, strict=True):
        assert_equal({name: np.concatenate([p[name] for p in parts]) for name in batch}, batch)


@pytest.mark.slow
def test_threads_make_no_difference_and_seeds_do(corpus, tokenizer):
    one, four = (listed(corpus[0], tokenizer, epochs=1, threads=n) for n in (1, 4))
    for found, expected in zip(one, four, strict=True):
        assert_equal(found, expected)
    other = listed(corpus[0], tokenizer, epochs=1, seed=4)
    assert not np.array_equal(other[0]["token_ids"], one[0]["token_ids"])


def test_less_text_than_a_batch_has_places(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[1], [2]], tokenizer, shards=1)
    (batch,) = listed(tmp_path, tokenizer, batch_size=2, sequence_length=9, epochs=1)
    # Three tokens and two ends of text.
    assert sorted(batch["weights"].sum(1)) == [0, 5]
    assert sorted(batch["targets"].ravel().tolist())[-3:] == [5, 6, 7]


def test_held_out_text(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[9, 2], [8]], tokenizer, split="held_out")
    batches = listed(tmp_path, tokenizer, split="held_out", epochs=1)
    assert sum(batch["weights"].sum() for batch in batches) == 9 + 2 + 8 + 2
    with pytest.raises(ValueError, match=r"has the splits.*Received: split='train'"):
        small(tmp_path, tokenizer)


def test_no_text_is_refused(tmp_path, tokenizer):
    manifest.Manifest(
        folder=str(tmp_path),
        vocabulary_sha256=tokenizer.checksum,
        vocabulary_size=tokenizer.vocabulary_size,
        token_dtype="uint16",
        settings={},
        counts={},
        splits={"held_out": manifest.Split.of([])},
    ).save()
    with pytest.raises(
        ValueError, match=r"'held_out' split of .* at least one document. Received: none"
    ):
        small(tmp_path, tokenizer, split="held_out")


def test_a_tokenizer_without_an_end_of_text_is_refused(corpus, tokenizer_of):
    other = tokenizer_of(6000)
    other.sep_id, other.special_tokens = None, {"unk": "?", "bos": "!"}
    with pytest.raises(ValueError, match=r"a .sep. token, which marks .*Received: a .*unk, bos"):
        small(corpus[0], other)


def test_large_vocabularies(tmp_path, write_corpus, tokenizer_of):
    large = tokenizer_of(70_000)
    bounds, _ = write_corpus(tmp_path, [[1000] * 69], large)
    batches = listed(tmp_path, large, epochs=1, sequence_length=2000)
    assert transitions(batches) == expected_transitions(5 + bounds)


def test_settings_out_of_range_are_refused(corpus, tokenizer):
    for changes, message in [
        (
            {"sequence_length": 0},
            "`sequence_length` must be .* from 1 to 65,536. Received: 0",
        ),
        ({"batch_size": 7, "num_hosts": 2}, "`batch_size` counts .*batch_size=7, num_hosts=2"),
        ({"num_hosts": 2, "host_index": 2}, "`host_index` must be below"),
        ({"seed": -1}, "`seed` must be a whole number from 0"),
        ({"epochs": 0}, "`epochs` must be a whole"),
        ({"start": (0, 99, 0)}, "`start` must be .*Received: start=.0, 99, 0."),
    ]:
        with pytest.raises(ValueError, match=message):
            small(corpus[0], tokenizer, **changes)


def test_another_tokenizer_is_refused(corpus, tokenizer_of):
    other = tokenizer_of(6000, checksum="1" * 64)
    with pytest.raises(ValueError, match=f"The shards in {corpus[0]} were written with another"):
        small(corpus[0], other)


def test_a_corrupt_record_stops_the_run_and_is_named(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[3], [4, 2]] * 20, tokenizer, shards=1)
    path = os.path.join(tmp_path, "train-00000-of-00001.tfrecord")
    with open(path, "r+b") as file:
        file.seek(30)
        file.write(b"\xff\xff\xff")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Cannot read {path}, record at"):
        next(iter(small(tmp_path, tokenizer)))


def test_devices_share_the_rows(corpus, tokenizer, mirrored):
    dataset = small(corpus[0], tokenizer)
    expected = next(iter(dataset))
    batch = next(iter(mirrored.experimental_distribute_dataset(dataset)))
    parts = mirrored.experimental_local_results(batch["targets"])
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate(parts), expected["targets"])
