"""The record schema: what is written is read back, in the order given, by its offsets."""

import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert.data.corpus import records
from kbert.data.corpus.records import (
    BlockWriter,
    encode_block,
    index_path,
    parse_blocks,
    token_dtype,
)

DOCUMENTS = st.lists(
    st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=4), min_size=1, max_size=12
)


def write(path, documents, dtype="uint16", block_tokens=10) -> BlockWriter:
    """Writes documents given as sentence lengths; ids count through all of them."""
    start = 0
    with BlockWriter(str(path), dtype, block_tokens) as writer:
        for sentences in documents:
            writer.add(np.arange(start, start + sum(sentences)), np.array(sentences))
            start += sum(sentences)
    return writer


@settings(deadline=None, max_examples=50)
@given(documents=DOCUMENTS, dtype=st.sampled_from(["uint16", "int32"]))
def test_round_trip(tmp_path_factory, documents, dtype):
    path = tmp_path_factory.mktemp("shard") / "a.tfrecord"
    writer = write(path, documents, dtype)
    raw = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    read = {name: x.numpy() for name, x in parse_blocks(raw, dtype).items()}
    assert read["tokens"].dtype == dtype
    assert read["tokens"].tolist() == list(range(sum(map(sum, documents))))
    assert read["sentences"].tolist() == [n for sentences in documents for n in sentences]
    assert read["documents"].tolist() == [len(sentences) for sentences in documents]

    index = np.load(index_path(str(path)))
    assert index.dtype == np.int64
    assert len(index) == len(raw) == writer.totals()["blocks"]
    assert os.path.getsize(path) == writer.bytes
    for (offset, tokens, sentences, number), record in zip(index, raw, strict=True):
        with open(path, "rb") as file:
            file.seek(offset)
            assert int.from_bytes(file.read(8), "little") == len(record)
        block = {name: x.numpy() for name, x in parse_blocks([record], dtype).items()}
        assert [len(block[name]) for name in records.FEATURES] == [tokens, sentences, number]
    # Every block but the last is full, and was not before its last document.
    assert all(tokens >= 10 for tokens in index[:-1, 1])


def test_ids_above_16_bits():
    tokens = np.array([0, 65_535, 65_536, 119_546], "int32")
    block = encode_block(tokens, np.array([4]), np.array([1]))
    assert parse_blocks([block], "int32")["tokens"].numpy().tolist() == tokens.tolist()
    assert token_dtype(65_536) == "uint16"
    assert token_dtype(65_537) == "int32"


def test_parsing_in_a_graph_and_in_a_dataset_is_parsing_eagerly():
    blocks = [
        encode_block(np.arange(n, dtype="uint16"), np.array([n]), np.array([1])) for n in (2, 5)
    ]
    eager = parse_blocks(blocks)
    (batched,) = tf.data.Dataset.from_tensor_slices(blocks).batch(2).map(parse_blocks)
    for name in records.FEATURES:
        np.testing.assert_array_equal(eager[name], batched[name])
        np.testing.assert_array_equal(eager[name], tf.function(parse_blocks)(blocks)[name])


def test_equal_documents_give_equal_bytes(tmp_path):
    first = write(tmp_path / "a.tfrecord", [[1, 2], [3], [4, 4]])
    write(tmp_path / "b.tfrecord", [[1, 2], [3], [4, 4]])
    assert (tmp_path / "a.tfrecord").read_bytes() == (tmp_path / "b.tfrecord").read_bytes()
    assert first.totals() == {"blocks": 1, "tokens": 14, "sentences": 5, "documents": 3}


@pytest.mark.parametrize(
    ("tokens", "sentences"), [([1, 2], [1]), ([1, 2], [2, 0]), ([], []), ([1], [-1, 2])]
)
def test_a_document_that_breaks_the_rule_leaves_no_file(tmp_path, tokens, sentences):
    with (
        pytest.raises(ValueError, match=r"at least one sentence.*Received: \d tokens"),
        BlockWriter(str(tmp_path / "a.tfrecord"), "uint16", block_tokens=1) as writer,
    ):
        writer.add(np.array(tokens, int), np.array(sentences, int))
    assert os.listdir(tmp_path) == []


def test_an_error_in_the_middle_leaves_no_file(tmp_path):
    def write():
        with BlockWriter(str(tmp_path / "a.tfrecord"), "uint16", block_tokens=1) as writer:
            writer.add(np.arange(5), np.array([5]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    writer = BlockWriter(str(tmp_path / "missing" / "a.tfrecord"), "uint16")
    with pytest.raises(OSError, match=r"Cannot write .*missing/a\.tfrecord"), writer:
        pass
