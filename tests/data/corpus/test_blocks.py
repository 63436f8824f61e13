import dataclasses
import os

import numpy as np
import pytest
import tensorflow as tf

from kbert.data.corpus import manifest, records
from kbert.data.corpus.blocks import BlockReader
from kbert.data.unreadable import unreadable_record


@pytest.fixture
def reader(tmp_path, write_corpus, tokenizer_of):
    """23 blocks of one document each, in 3 shards."""
    write_corpus(tmp_path, [[20, 20]] * 23, tokenizer_of(1000), shards=3)
    return BlockReader.from_manifest(manifest.read_manifest(tmp_path), "train", seed=5)


def first_tokens(reader, epoch, window):
    (serialized,) = reader.window(tf.constant(epoch, tf.int64), tf.constant(window, tf.int64))
    return _first_tokens(serialized)


def _first_tokens(serialized):
    tokens = records.parse_blocks(serialized)["tokens"].numpy()
    return tokens.reshape(len(serialized), 40)[:, 0].tolist()


def windows_of(reader, epochs):
    """The first tokens of each window of each epoch, all read by one pipeline."""
    found = [[] for _ in range(epochs)]
    for epoch, window, serialized in reader.windows_from(0, 0, epochs=epochs):
        assert int(window) == len(found[int(epoch)])
        found[int(epoch)].append(_first_tokens(serialized))
    assert {len(windows) for windows in found} == {reader.windows}
    return found


@pytest.mark.parametrize("window_blocks", [2, 4, 5, 23, 64])
def test_an_epoch_visits_every_block_once(reader, window_blocks):
    reader = dataclasses.replace(reader, window_blocks=window_blocks)
    for windows in windows_of(reader, 2):
        assert all(len(window) >= min(window_blocks, 23) for window in windows)
        assert sorted(np.concatenate(windows)) == [5 + 40 * n for n in range(23)]
    # Each window can be read alone.
    assert first_tokens(reader, 1, reader.windows - 1) == windows[-1]


def test_the_order_is_of_seed_and_epoch_and_not_of_windows(reader):
    def order(seed, window_blocks=4):
        changed = dataclasses.replace(reader, seed=seed, window_blocks=window_blocks)
        return [np.concatenate(windows).tolist() for windows in windows_of(changed, 2)]

    orders = [*order(5), *order(6)]
    assert order(5) == order(5, window_blocks=23) == orders[:2]
    assert len({tuple(blocks) for blocks in orders}) == 4
    assert sorted(orders[0]) != orders[0]


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_few_blocks(tmp_path, write_corpus, tokenizer_of, blocks):
    write_corpus(tmp_path, [[40]] * blocks, tokenizer_of(1000), shards=1)
    reader = BlockReader.from_manifest(manifest.read_manifest(tmp_path), "train", seed=0)
    assert reader.windows == 1
    assert sorted(first_tokens(reader, 0, 0)) == [5 + 40 * n for n in range(blocks)]


def test_a_corrupt_record_is_named_with_its_file(reader):
    path, offset = reader.paths[1], int(reader.offsets[reader.shards == 1][2])
    with open(path, "r+b") as file:
        file.seek(offset + 40)
        byte = file.read(1)
        file.seek(offset + 40)
        file.write(bytes([byte[0] ^ 1]))
    where = f"Cannot read {path}, record at byte {offset}:"
    with pytest.raises(tf.errors.InvalidArgumentError, match=where) as eager:
        first_tokens(reader, 0, 0)
    windows = iter(reader.windows_from(0, 0))
    with pytest.raises(tf.errors.InvalidArgumentError, match=where) as in_a_graph:
        tf.function(windows.get_next)()
    for error in (eager, in_a_graph):
        line = f"{where} missing, truncated or corrupt (verify_corpus, or StoredRows.verify for "
        line += "rows, checks every record)"
        assert unreadable_record(error.value) == line


def test_a_shard_that_disappears_is_named(reader):
    os.remove(reader.paths[2])
    with pytest.raises(tf.errors.NotFoundError, match=reader.paths[2]):
        first_tokens(reader, 0, 0)


def test_a_shard_cut_short_is_named(reader):
    os.truncate(reader.paths[0], os.path.getsize(reader.paths[0]) - 1)
    offset = int(reader.offsets[reader.shards == 0][-1])
    message = f"Cannot read {reader.paths[0]}, record at byte {offset}:"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        first_tokens(reader, 0, 0)
    os.truncate(reader.paths[0], offset - 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Cannot read {reader.paths[0]}"):
        first_tokens(reader, 0, 0)
