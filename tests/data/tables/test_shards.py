"""Rows on disk: what is written is read, each row once an epoch, resumed and killed exactly."""

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from kbert.data.corpus import records
from kbert.data.tables import shards
from kbert.data.tables.bucketing import bucketed_batches
from kbert.data.tables.rows import Rows
from kbert.data.tables.shards import FILE_NAME, read_rows, write_rows
from kbert.data.tables.table import Table

SETTINGS = hypothesis.settings(max_examples=8, deadline=None)
OPTIONS = {"batch_size": 8, "seed": 2, "epochs": 2}  # 13 batches an epoch, 2 a window
IDENTITY = {"task": {"kind": "letters", "max_length": 8}, "tokenizer": {"checksum": "abc"}}


def rows_of(table):
    """Of each text the letters, of each letter as many bits as its place says, and numbers."""
    ids = tf.strings.unicode_decode(table["text"], "UTF-8")
    lengths = ids.row_lengths().numpy()
    bits = tf.ragged.range(tf.ragged.range(lengths).flat_values)
    return Rows(
        ragged={"first": ids, "bits": tf.RaggedTensor.from_row_lengths(bits, lengths)},
        dense={
            "labels": np.array([len(text) for text in table["text"]], np.int32),
            "vectors": np.array([[len(text), 0.5] for text in table["text"]], np.float32),
            "flags": np.array(["a" in text for text in table["text"]]),
        },
        lengths=lengths + 2,
        examples=np.arange(len(table)),
        cut=sum(len(text) > 5 for text in table["text"]),
    )


def tables(texts, size=7):
    return [Table({"text": texts[i : i + size]}, start=i) for i in range(0, len(texts), size)]


def make_texts(count=100, seed=0):
    random = np.random.default_rng(seed)
    return ["".join(random.choice(list("abc"), random.integers(0, 40))) for _ in range(count)]


def make_small(patch):
    patch.setattr(shards, "BLOCK_ROWS", 4)
    patch.setattr(shards, "WINDOW_ROWS", 20)
    patch.setattr(shards, "SHARD_BYTES", 20_000)


@pytest.fixture
def small(monkeypatch):
    """Blocks of 4 rows, windows of 5 blocks, a shard for two parts or three."""
    make_small(monkeypatch)


@pytest.fixture(scope="module")
def stored_and_batches(tmp_path_factory):
    """A folder that no test changes, and the batches of `OPTIONS`."""
    folder = tmp_path_factory.mktemp("stored") / "rows"
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        write_rows(folder, tables(make_texts()), rows_of, IDENTITY)
        return folder, batches(read_rows(folder), **OPTIONS)


@pytest.fixture
def stored(small, stored_and_batches):
    return stored_and_batches[0]


@pytest.fixture
def whole(stored_and_batches):
    return stored_and_batches[1]


@pytest.fixture
def folder(small, tmp_path):
    write_rows(tmp_path / "rows", tables(make_texts()), rows_of, IDENTITY)
    return tmp_path / "rows"


def assemble(columns):
    return {"ids": columns["first"].to_tensor(), "labels": columns["labels"]}


def batches(rows, **options):
    return list(bucketed_batches(rows, assemble, **options).as_numpy_iterator())


def real(found):
    return [row for batch in found for row in batch["rows"][batch["label_weights"] > 0].tolist()]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for batch, other in zip(found, wanted, strict=True):
        assert set(batch) == set(other)
        for name, values in batch.items():
            np.testing.assert_array_equal(values, other[name])


@SETTINGS
@hypothesis.given(
    texts=st.lists(st.text("abé", max_size=9), min_size=1, max_size=30),
    size=st.integers(1, 9),
)
def test_what_is_written_is_read(tmp_path_factory, texts, size):
    folder = tmp_path_factory.mktemp("rows")
    rows = write_rows(folder, tables(texts, size), rows_of, IDENTITY)
    wanted = rows_of(Table({"text": texts}))
    assert (len(rows), rows.num_examples, rows.cut) == (len(texts), len(texts), wanted.cut)
    found = rows.first(len(texts) + 1)
    np.testing.assert_array_equal(found.lengths, wanted.lengths)
    assert set(found.ragged) | set(found.dense) == set(wanted.ragged) | set(wanted.dense)
    for name, column in wanted.ragged.items():
        assert found.ragged[name].to_list() == column.to_list()
        assert found.ragged[name].dtype == column.dtype
    for name, column in wanted.dense.items():
        np.testing.assert_array_equal(found.dense[name], column)
        assert found.dense[name].dtype == column.dtype
    assert found.checksum == wanted.checksum
    rows.verify()


def test_one_window_gives_the_batches_of_memory(tmp_path):
    texts = make_texts(90)
    rows = write_rows(tmp_path, tables(texts), rows_of, IDENTITY)
    options = {"batch_size": 8, "seed": 3, "epochs": 2}
    assert_same(batches(rows, **options), batches(rows_of(Table({"text": texts})), **options))


@pytest.mark.parametrize(
    "size", [1, 20, 200, *(pytest.param(x, marks=pytest.mark.slow) for x in (3, 8, 64))]
)
def test_every_row_once_an_epoch_in_another_order(stored, size):
    rows = read_rows(stored)
    assert repr(rows) == f"StoredRows({len(rows)} rows of {rows.num_examples} examples in {stored})"
    wanted = rows_of(Table({"text": make_texts()}))
    steps = -(-100 // size)
    found = batches(rows, batch_size=size, seed=5, epochs=2)
    assert len(found) == 2 * steps
    for epoch in (found[:steps], found[steps:]):
        assert sorted(real(epoch)) == list(range(100))
    assert real(found[:steps]) != real(found[steps:])
    for number, batch in enumerate(found, start=1):
        assert batch["ids"].shape[0] == len(batch["rows"]) == size
        assert batch["labels"].tolist() == wanted.dense["labels"][batch["rows"]].tolist()
        assert batch["position"].tolist() == [[number // steps, number % steps, 0]] * size


def test_orders_follow_from_the_seed(stored, whole):
    """And the batches of a stream that does not end are the same."""
    endless = bucketed_batches(read_rows(stored), assemble, batch_size=8, seed=2)
    assert_same(list(endless.take(30).as_numpy_iterator())[:26], whole)
    other = batches(read_rows(stored), batch_size=8, seed=6, epochs=1)
    assert real(other) != real(whole[:13])


def test_rows_of_all_the_data_meet_in_a_window(stored, whole):
    """In files that are sorted, as by their labels, a window must not be of one label."""
    first = real(whole[:2])
    assert max(first) - min(first) > 40
    kept = batches(read_rows(stored), batch_size=10, shuffle=False, by_length=False, epochs=1)
    assert real(kept) == list(range(100))


# In a window and at its end, at the end of an epoch, and before the last batch of all.
@pytest.mark.parametrize(
    "stop", [1, 2, 13, 25, *(pytest.param(x, marks=pytest.mark.slow) for x in (3, 6, 14))]
)
def test_a_restart_resumes_bit_equal(stored, whole, stop):
    rest = batches(read_rows(stored), start=whole[stop - 1]["position"][0], **OPTIONS)
    assert_same(rest, whole[stop:])


def test_hosts_share_the_batches_of_one(stored, whole):
    parts = [batches(read_rows(stored), num_hosts=2, host_index=host, **OPTIONS) for host in (0, 1)]
    joined = [
        {name: np.concatenate([one[name], other[name]]) for name in one}
        for one, other in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)


def test_windows_of_long_rows_are_of_fewer(folder, monkeypatch):
    monkeypatch.setattr(shards, "WINDOW_BYTES", 20_000)
    rows = read_rows(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.tfrecord"))
    assert rows.window_rows == 20_000 * 100 // size < 20
    assert sorted(real(batches(rows, batch_size=4, epochs=1))) == list(range(100))


def state(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("stop", [0, 1, 4, 9])
def test_a_writer_that_was_killed_resumes(folder, tmp_path, stop):
    made = []

    def killed(table):
        if len(made) == stop:
            raise InterruptedError
        made.append(table)
        return rows_of(table)

    again = tmp_path / "again"
    with pytest.raises(InterruptedError):
        write_rows(again, tables(make_texts()), killed, IDENTITY)
    with pytest.raises(
        ValueError, match=r"unfinished: repeat the interrupted call of prepare_rows .* Received: "
    ):
        read_rows(again)
    (again / "rows-00007.tfrecord.writing-1").write_bytes(b"of a process that was killed")

    def counted(table):
        made.append(table)
        return rows_of(table)

    write_rows(again, tables(make_texts()), counted, IDENTITY)
    assert state(again) == state(folder)
    assert 15 <= len(made) <= 17  # of the 15 parts those in shards were not made again
    assert len(json.loads((folder / FILE_NAME).read_text())["shards"]) > 3

    def never(table):
        raise AssertionError("all rows are there")

    assert len(write_rows(again, tables(make_texts()), never, IDENTITY)) == 100


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (make_texts(100, seed=1), "Received: other examples among the first 100"),
        (make_texts(93), "Received: 14 parts, but the rows of 15 are already written"),
        (make_texts() + ["a"] * 7, "Received: other examples among the first 100"),
    ],
)
def test_other_data_is_refused(folder, texts, message):
    with pytest.raises(ValueError, match=f"made from other data, or .* in other parts.*{message}"):
        write_rows(folder, tables(texts), rows_of, IDENTITY)


def test_more_data_is_refused(folder):
    more = [*tables(make_texts()), Table({"text": ["a"]})]
    with pytest.raises(ValueError, match="Received: more than 100 examples"):
        write_rows(folder, more, rows_of, IDENTITY)


def test_other_settings_are_refused(folder):
    other = {**IDENTITY, "task": {"kind": "letters", "max_length": 9}}
    wanted = r"Received: task.max_length was 8, is 9"
    with pytest.raises(ValueError, match=wanted):
        write_rows(folder, tables(make_texts()), rows_of, other)
    with pytest.raises(ValueError, match=f"for another task, tokenizer or settings.*{wanted}"):
        read_rows(folder).check(other)
    read_rows(folder).check(IDENTITY)


def test_another_folder_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=f"already exists without {FILE_NAME}"):
        write_rows(tmp_path, tables(["a"]), rows_of, IDENTITY)
    with pytest.raises(FileNotFoundError, match=f"{FILE_NAME}.*read_table. Received: {tmp_path}"):
        read_rows(tmp_path)


def test_data_without_rows_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"Training requires at least one row. Received: 0 examples"
    ):
        write_rows(tmp_path, [Table({"text": []})], rows_of, IDENTITY)


def test_columns_must_be_the_same_in_all_parts(tmp_path):
    def changing(table):
        rows = rows_of(table)
        if table["text"] == ["b"]:
            rows.dense["labels"] = rows.dense["labels"].astype(np.float32)
        return rows

    with pytest.raises(ValueError, match=r"row 1 of the data: the rows of all parts .*float32"):
        write_rows(tmp_path, tables(["a", "b"], 1), changing, IDENTITY)


def test_strings_are_refused(tmp_path):
    def named(table):
        rows = rows_of(table)
        rows.dense["name"] = np.array(table["text"])
        return rows

    with pytest.raises(ValueError, match=r"contain numbers: bool, .* a column 'name' of string"):
        write_rows(tmp_path, tables(["a"]), named, IDENTITY)


def test_a_corrupt_record_is_named(folder):
    path = sorted(folder.glob("*.tfrecord"))[1]
    index = np.load(records.index_path(str(path)))
    offset = index[1, 0]
    content = bytearray(path.read_bytes())
    content[offset + 20] ^= 1
    path.write_bytes(content)
    message = f"Cannot read {path}, record at byte {offset}: missing, truncated or corrupt"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(read_rows(folder), batch_size=8, epochs=1)
    with pytest.raises(ValueError, match=f"{path}, record at byte {offset} is corrupt"):
        read_rows(folder).verify()


def test_records_of_another_folder_are_noticed(folder, tmp_path):
    other = tmp_path / "other"
    texts = ["a" * len(text) for text in make_texts()]
    write_rows(other, tables(texts), rows_of, IDENTITY)
    path = folder / "rows-00000.tfrecord"
    path.write_bytes((other / path.name).read_bytes())
    with pytest.raises(ValueError, match=r"must have the CRC-32 that rows.json lists, .* Received"):
        read_rows(folder).verify()


@pytest.mark.parametrize("name", ["rows-00001.tfrecord", "rows-00001.index.npy"])
def test_a_file_that_is_missing_or_cut_is_named(folder, name):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    with pytest.raises(ValueError, match=f"{path} is truncated.*Received"):
        read_rows(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path} is listed in the manifest"):
        read_rows(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "reads format version 1. Received: 2"),
        ({"shards": None}, "incomplete or was changed: .* Received: TypeError"),
        ({"rows": 99}, "Received: 99 rows, 100 in the indexes"),
        ({"columns": [{"name": "first"}]}, "incomplete or was changed: .* Received: KeyError"),
    ],
)
def test_a_note_that_was_changed_is_refused(folder, changes, message):
    path = folder / FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=message):
        read_rows(folder)
