"""Streams of words: what is read and predicted, where batches resume, and on which host."""

import collections
import itertools
import os

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from kbert.data.corpus import manifest, records
from kbert.data.corpus.blocks import BlockReader
from kbert.data.pretraining import language_model
from kbert.data.pretraining.language_model import LanguageModelSettings, language_model_dataset
from kbert.tokenizers.words.characters import character_ids
from kbert.tokenizers.words.tokenizer import WordTokenizer

FEATURES = ("character_ids", "targets", "weights")
DIRECTIONS = ("", "reverse_")
C = 9  # letters of a word in these tests
SEP, CLS, UNK = 0, 1, 2


def words_of(count):
    """A tokenizer of `count` words; every word's letters are its own."""
    return WordTokenizer(["</S>", "<S>", "<UNK>", *(f"w{n}" for n in range(3, count))])


@pytest.fixture(scope="module")
def tokenizer():
    return words_of(6000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus, tokenizer):
    """40 documents of about 2,500 words, each there once, in some 20 blocks."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    documents = [rng.integers(1, 16, rng.integers(1, 15)).tolist() for _ in range(40)]
    write_corpus(folder, documents, tokenizer, shards=3, block_tokens=120)
    return folder


def small(corpus, tokenizer, **changes):
    settings = {"sequence_length": 7, "batch_size": 6, "seed": 3, "window_blocks": 5}
    settings |= {"max_characters": C, **changes}
    return language_model_dataset(corpus, tokenizer, **settings)


def listed(corpus, tokenizer, **changes):
    return list(small(corpus, tokenizer, **changes).as_numpy_iterator())


@pytest.fixture(scope="module")
def one_epoch(corpus, tokenizer):
    return listed(corpus, tokenizer, epochs=1)


@pytest.fixture(scope="module")
def two_epochs(corpus, tokenizer):
    return listed(corpus, tokenizer, epochs=2)


def opened(corpus, **changes):
    """Settings and reader, as `small` hands them to `batches`."""
    settings = {"sequence_length": 7, "batch_size": 6, "seed": 3, "window_blocks": 5}
    settings |= {"epochs": None, "num_hosts": 1, "host_index": 0, "threads": None}
    settings |= {"max_characters": C, "target_vocabulary": None, **changes}
    reader = BlockReader.from_manifest(
        manifest.read_manifest(corpus), "train", settings["seed"], settings["window_blocks"]
    )
    return LanguageModelSettings(**settings), reader


def read_words(batch, prefix, tokenizer):
    """(B, T) ids of the words whose letters a batch holds, -1 for padding."""
    letters = batch[f"{prefix}character_ids"]
    found = np.full(letters.shape[:2], -1)
    texts = [bytes(x - 1 for x in row if 1 <= x <= 256) for row in letters.reshape(-1, C)]
    for n, (text, row) in enumerate(zip(texts, letters.reshape(-1, C), strict=True)):
        if row.any():
            edge = {257: CLS, 258: SEP}.get(row[1])
            found.flat[n] = tokenizer.token_to_id(text.decode()) if edge is None else edge
    return found


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def expected_batches(reader, *, batch_size, sequence_length, epochs):
    """The definition in plain Python: [(position, {prefix: rows of (words, targets)})]."""
    found = []
    for epoch in range(epochs):
        for window in range(reader.windows):
            steps = []
            for serialized in next(iter(reader.window(np.int64(epoch), np.int64(window)))):
                block = records.parse_blocks(serialized[None], reader.token_dtype)
                tokens = iter(block["tokens"].numpy().tolist())
                for length in block["sentences"].numpy():
                    sentence = [CLS, *(next(tokens) for _ in range(length)), SEP]
                    steps += itertools.pairwise(sentence)
            cuts = [len(steps) * row // batch_size for row in range(batch_size + 1)]
            runs = [steps[a:b] for a, b in itertools.pairwise(cuts)]
            back = [[(word, target) for target, word in reversed(run)] for run in runs]
            for at in range(0, max(map(len, runs)), sequence_length):
                end = at + sequence_length
                rows = {"": [run[at:end] for run in runs], "reverse_": [r[at:end] for r in back]}
                found.append(((epoch, window, end), rows))
    return found


def assert_is_expected(batches, expected, tokenizer, sequence_length):
    assert len(batches) == len(expected)
    for n, (batch, (position, sides)) in enumerate(zip(batches, expected, strict=True)):
        assert np.all(batch["position"] == position)
        assert np.all(batch["begins"] == (n == 0))
        for prefix, rows in sides.items():
            padded = [row + [(-1, -1)] * (sequence_length - len(row)) for row in rows]
            words, targets = np.moveaxis(np.array(padded), 2, 0)
            np.testing.assert_array_equal(read_words(batch, prefix, tokenizer), words)
            np.testing.assert_array_equal(batch[f"{prefix}weights"], targets >= 0)
            np.testing.assert_array_equal(batch[f"{prefix}targets"], np.maximum(targets, 0))


def test_shapes_and_types_are_static(corpus, tokenizer):
    spec = small(corpus, tokenizer, num_hosts=2, max_characters=50).element_spec
    assert {name: (tuple(x.shape), x.dtype.name) for name, x in spec.items()} == {
        **{f"{d}character_ids": ((3, 7, 50), "int32") for d in DIRECTIONS},
        **{f"{d}targets": ((3, 7), "int32") for d in DIRECTIONS},
        **{f"{d}weights": ((3, 7), "float32") for d in DIRECTIONS},
        "begins": ((3,), "int32"),
        "position": ((3, 3), "int32"),
    }


def test_batches_are_those_of_the_definition(corpus, tokenizer, two_epochs):
    batches = two_epochs
    _, reader = opened(corpus)
    expected = expected_batches(reader, batch_size=6, sequence_length=7, epochs=2)
    assert reader.windows > 2
    assert_is_expected(batches, expected, tokenizer, 7)
    # An epoch has another order.
    half = len(batches) // 2
    assert not np.array_equal(batches[0]["targets"], batches[half]["targets"])


SENTENCES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@hypothesis.settings(max_examples=3, deadline=None, derandomize=True)
@hypothesis.given(
    st.lists(SENTENCES, min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 11),
    st.integers(2, 4),
)
def test_any_corpus(tmp_path_factory, write_corpus, documents, rows, length, window_blocks):
    tokenizer = words_of(5 + sum(map(sum, documents)))
    folder = tmp_path_factory.mktemp("any")
    write_corpus(folder, documents, tokenizer, shards=1, block_tokens=10)
    changes = {"batch_size": rows, "sequence_length": length, "window_blocks": window_blocks}
    batches = list(small(folder, tokenizer, epochs=1, **changes).as_numpy_iterator())
    _, reader = opened(folder, **changes)
    expected = expected_batches(reader, batch_size=rows, sequence_length=length, epochs=1)
    assert_is_expected(batches, expected, tokenizer, length)


@pytest.mark.parametrize("prefix", DIRECTIONS, ids=["forward", "backward"])
def test_every_word_is_read_once_and_predicted_once_an_epoch(corpus, tokenizer, one_epoch, prefix):
    read, predicted = collections.Counter(), collections.Counter()
    for batch in one_epoch:
        read.update(read_words(batch, prefix, tokenizer).ravel().tolist())
        predicted.update(batch[f"{prefix}targets"][batch[f"{prefix}weights"] > 0].tolist())
    split = manifest.read_manifest(corpus).split("train")
    once = dict.fromkeys(range(5, 5 + split.tokens), 1)
    begin, end = (CLS, SEP) if prefix == "" else (SEP, CLS)
    del read[-1]
    assert read == {**once, begin: split.sentences}
    assert predicted == {**once, end: split.sentences}


@pytest.mark.parametrize("prefix", DIRECTIONS, ids=["forward", "backward"])
def test_rows_continue_where_the_batch_before_ended(tokenizer, one_epoch, prefix):
    begin, end = (CLS, SEP) if prefix == "" else (SEP, CLS)
    before, seen = None, 0
    for batch in one_epoch:
        words = read_words(batch, prefix, tokenizer)
        if before is not None and before["position"][0, 1] == batch["position"][0, 1]:
            for row in np.flatnonzero(batch[f"{prefix}weights"][:, 0]):
                target = before[f"{prefix}targets"][row, -1]
                assert words[row, 0] == (begin if target == end else target)
                seen += 1
        before = batch
    assert seen > 200


def test_words_have_their_letters(tmp_path, write_corpus):
    words = ["</S>", "<S>", "<UNK>", "a", "b", "naïve", "日本", "internationalisation"]
    tokenizer = WordTokenizer(words)
    write_corpus(tmp_path, [[3]], tokenizer, shards=1)
    (batch,) = small(
        tmp_path, tokenizer, batch_size=1, sequence_length=5, epochs=1
    ).as_numpy_iterator()
    forward = character_ids(["<S>", "naïve", "日本", "internationalisation"], C)
    backward = character_ids(["</S>", "internationalisation", "日本", "naïve"], C)
    for prefix, expected in zip(DIRECTIONS, (forward, backward), strict=True):
        letters = batch[f"{prefix}character_ids"][0]
        np.testing.assert_array_equal(letters[:4], expected)
        assert not letters[4].any()
    assert batch["targets"].tolist() == [[5, 6, 7, SEP, 0]]
    assert batch["reverse_targets"].tolist() == [[7, 6, 5, CLS, 0]]
    assert batch["weights"].tolist() == batch["reverse_weights"].tolist() == [[1, 1, 1, 1, 0]]


def test_rare_words_are_unknown_as_targets_alone(corpus, tokenizer, one_epoch):
    bounded = listed(corpus, tokenizer, epochs=1, target_vocabulary=1000)
    for one, other in zip(one_epoch, bounded, strict=True):
        names = [f"{prefix}targets" for prefix in DIRECTIONS]
        targets = {name: np.where(one[name] < 1000, one[name], UNK) for name in names}
        assert_equal(other, one | targets)
    assert {UNK, 999} < set(np.concatenate([x["targets"] for x in bounded]).ravel())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_size", "sequence_length", "window_blocks", "count"),
    [
        pytest.param(6, 7, 5, 70, id="batches in windows"),
        pytest.param(1, 20, 2, 60, id="one row", marks=pytest.mark.slow),
        pytest.param(50, 30, 64, 6, id="one batch an epoch", marks=pytest.mark.slow),
        pytest.param(2, 1, 64, 40, id="one word", marks=pytest.mark.slow),
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
    batches = list(small(corpus, tokenizer, **changes).take(count + 3).as_numpy_iterator())
    starts = np.stack([batch["position"][0] for batch in batches]).astype(np.int64)
    settings, reader = opened(corpus, **changes)
    characters = language_model.character_table(tokenizer.vocabulary, C)

    def resume(start):
        position = tf.unstack(start)
        return language_model.batches(settings, reader, tokenizer, characters, position).take(3)

    # In one pipeline, to trace it once: three batches from each start.
    resumed = tf.data.Dataset.from_tensor_slices(starts[:count]).flat_map(resume)
    for n, found in enumerate(resumed.as_numpy_iterator()):
        assert_equal(found, batches[n // 3 + 1 + n % 3])
    assert n == 3 * count - 1
    assert len({tuple(start[:2]) for start in starts}) > (sequence_length > 1)


def test_resuming_through_the_front_door(corpus, tokenizer, two_epochs):
    batches = two_epochs[:90]
    assert len(batches) == 90
    assert batches[-1]["position"][0, 0] > 0
    for n in (13, 80):
        resumed = small(corpus, tokenizer, start=batches[n]["position"]).take(9)
        for expected, found in zip(batches[n + 1 :], resumed.as_numpy_iterator(), strict=False):
            assert_equal(found, expected)
            assert not found["begins"].any()
    again = next(small(corpus, tokenizer, start=(0, 0, 0)).as_numpy_iterator())
    assert_equal(again, batches[0])
    assert again["begins"].all()


def test_a_stream_ends_after_its_epochs_wherever_it_starts(corpus, tokenizer, two_epochs):
    batches = two_epochs
    resumed = small(corpus, tokenizer, epochs=2, start=batches[-3]["position"]).as_numpy_iterator()
    assert len(list(resumed)) == 2
    done = small(corpus, tokenizer, epochs=2, start=batches[-1]["position"]).as_numpy_iterator()
    assert not list(done)


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_hosts_together_make_the_batches_of_one(corpus, tokenizer, num_hosts):
    one = small(corpus, tokenizer, epochs=1)
    shares = [
        small(corpus, tokenizer, epochs=1, num_hosts=num_hosts, host_index=host)
        for host in range(num_hosts)
    ]
    for batch, *parts in zip(*(data.as_numpy_iterator() for data in (one, *shares)), strict=True):
        assert_equal({name: np.concatenate([p[name] for p in parts]) for name in batch}, batch)


@pytest.mark.slow
def test_threads_make_no_difference(corpus, tokenizer):
    one, four = (small(corpus, tokenizer, epochs=1, threads=n) for n in (1, 4))
    for found, expected in zip(one.as_numpy_iterator(), four.as_numpy_iterator(), strict=True):
        assert_equal(found, expected)


def test_fewer_words_than_a_batch_has_places(tmp_path, write_corpus):
    tokenizer = words_of(9)
    write_corpus(tmp_path, [[1], [2]], tokenizer, shards=1)
    data = small(tmp_path, tokenizer, batch_size=8, sequence_length=20, epochs=2)
    batches = list(data.as_numpy_iterator())
    assert [batch["position"][0].tolist() for batch in batches] == [[0, 0, 20], [1, 0, 20]]
    assert [batch["begins"].tolist() for batch in batches] == [[1] * 8, [0] * 8]
    for batch in batches:
        # Five steps: five rows have one, three have none.
        assert sorted(batch["weights"].sum(1).tolist()) == [0, 0, 0, 1, 1, 1, 1, 1]
        np.testing.assert_array_equal(batch["weights"], batch["reverse_weights"])
        empty = batch["weights"] == 0
        assert not batch["character_ids"][empty].any()
        assert not batch["targets"][empty].any()


def test_held_out_text(tmp_path, write_corpus):
    tokenizer = words_of(60)
    write_corpus(tmp_path, [[9, 2], [8]], tokenizer, split="held_out")
    data = small(tmp_path, tokenizer, split="held_out", epochs=1)
    weights = [batch["weights"] for batch in data.as_numpy_iterator()]
    assert np.sum(weights) == 9 + 2 + 8 + 3
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


def test_large_vocabularies(tmp_path, write_corpus):
    large = words_of(70_000)
    write_corpus(tmp_path, [[1000] * 69], large)
    read, predicted = set(), set()
    for batch in small(tmp_path, large, epochs=1, sequence_length=2000).as_numpy_iterator():
        read |= set(read_words(batch, "", large).flat)
        predicted |= set(batch["targets"].flat)
    assert predicted == {SEP, *range(5, 69_005)}
    assert read == {-1, CLS, *range(5, 69_005)}


def test_settings_out_of_range_are_refused(corpus, tokenizer):
    for changes, message in [
        (
            {"sequence_length": 0},
            "`sequence_length` must be .* from 1 to 65,536. Received: 0",
        ),
        ({"max_characters": 2}, "max_characters must be 3 or more.*Received: 2"),
        ({"target_vocabulary": 2}, "must lie in 3..6000. Received: target_vocabulary=2"),
        ({"target_vocabulary": 6001}, "must lie in 3..6000. Received: target_vocabulary=6001"),
        ({"batch_size": 7, "num_hosts": 2}, "`batch_size` counts .*batch_size=7, num_hosts=2"),
        ({"num_hosts": 2, "host_index": 2}, "`host_index` must be below"),
        ({"seed": -1}, "`seed` must be a whole number from 0"),
        ({"epochs": 0}, "`epochs` must be a whole"),
        ({"threads": 0}, "`threads` must be a whole"),
        ({"window_blocks": 1}, "`window_blocks` must be a whole number of at least 2"),
        ({"start": (0, 99, 0)}, "`start` must be .*Received: start=.0, 99, 0."),
    ]:
        with pytest.raises(ValueError, match=message):
            small(corpus, tokenizer, **changes)


def test_another_tokenizer_is_refused(corpus, tokenizer_of, tokenizer):
    with pytest.raises(ValueError, match=f"The shards in {corpus} were written with another"):
        small(corpus, words_of(50))
    pieces = tokenizer_of(6000)
    pieces.kind = "wordpiece"
    with pytest.raises(ValueError, match=r"prepared with a kbert.WordTokenizer.*'wordpiece'"):
        small(corpus, pieces)


def test_a_corrupt_record_stops_the_run_and_is_named(tmp_path, write_corpus):
    tokenizer = words_of(400)
    write_corpus(tmp_path, [[3], [4, 2]] * 20, tokenizer, shards=1)
    path = os.path.join(tmp_path, "train-00000-of-00001.tfrecord")
    with open(path, "r+b") as file:
        file.seek(30)
        file.write(b"\xff\xff\xff")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Cannot read {path}, record at"):
        next(iter(small(tmp_path, tokenizer)))


def test_devices_share_the_rows(corpus, tokenizer, mirrored):
    dataset = small(corpus, tokenizer)
    expected = next(iter(dataset))
    batch = next(iter(mirrored.experimental_distribute_dataset(dataset)))
    parts = mirrored.experimental_local_results(batch["targets"])
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate(parts), expected["targets"])
