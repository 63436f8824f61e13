"""`prepare_corpus` on small corpora: what comes out, and that nothing but the text decides it."""

import errno
import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import kbert
from kbert.data import Manifest, prepare_corpus, read_manifest, verify_corpus
from kbert.data.corpus import chunks, records, shards
from kbert.text import documents, source
from tests import columnar

WORDS = "the red fox jumps over two lazy dogs and runs by the river in the night".split()


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Different documents of one to nine sentences after a number."""
    draw = random.Random(seed)

    def sentence() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(2, 12))).capitalize() + "."

    return [
        f"{number} " + " ".join(sentence() for _ in range(draw.randint(1, 9)))
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture
def corpus(tmp_path):
    """300 documents in three files of different kinds."""
    texts = make_texts(300)
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(texts[:100]))
    with gzip.open(folder / "b.txt.gz", "wt") as file:
        file.write("\n\n".join(texts[100:200]))
    (folder / "c.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts[200:]))
    return folder


@pytest.fixture
def small_pieces(monkeypatch):
    """Many chunks, shards and blocks out of a little text."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 5_000)
    monkeypatch.setattr(shards, "SHARD_TEXT_BYTES", 20_000)
    monkeypatch.setattr(records, "BLOCK_TOKENS", 500)


def stored(folder, split: str) -> list[tuple[tuple[int, ...], ...]]:
    """The documents of a split, as tuples of sentences of ids."""
    manifest = read_manifest(folder)
    found = []
    for path in manifest.shard_paths(split):
        block = records.parse_blocks(
            list(tf.data.TFRecordDataset(path).as_numpy_iterator()), manifest.token_dtype
        )
        tokens, sentences, counts = (block[name].numpy() for name in records.FEATURES)
        pieces = iter(np.split(tokens, np.cumsum(sentences)[:-1]))
        found += [tuple(tuple(next(pieces).tolist()) for _ in range(n)) for n in counts]
    return found


def contents(folder) -> dict[str, bytes]:
    """Every file of a prepared folder but the plan, which names the sources."""
    return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.name != "plan.json"}


def test_every_document_is_stored_once_with_its_sentences(corpus, tmp_path, tokenizer):
    expected = Counter(
        tuple(tuple(ids) for ids in tokenizer.encode(sentences).to_list())
        for sentences in documents(f"{corpus}/*")
    )
    out = tmp_path / "out"
    manifest = prepare_corpus(f"{corpus}/*", out, tokenizer, held_out_share=0.2)
    assert Counter(stored(out, "train") + stored(out, "held_out")) == expected
    assert manifest == read_manifest(out) == verify_corpus(out)
    assert sum(split.documents for split in manifest.splits.values()) == 300
    assert manifest.counts["documents_read"] == 300
    assert kbert.load_tokenizer(out).checksum == tokenizer.checksum == manifest.vocabulary_sha256
    assert sorted(os.listdir(out)) == [
        *("held_out-00000-of-00001.index.npy", "held_out-00000-of-00001.tfrecord"),
        *("manifest.json", "plan.json", "tokenizer_config.json"),
        *("train-00000-of-00001.index.npy", "train-00000-of-00001.tfrecord", "vocab.txt"),
    ]


def test_byte_level_bpe_reads_sentences_as_the_text_has_them(tmp_path):
    """Of a published vocabulary too, which puts no space before a text of its own accord."""
    vocabulary, merges = kbert.tokenizers.train_byte_pair(make_texts(50), 300)
    tokenizer = kbert.BytePairTokenizer(vocabulary, merges)
    texts = ["He ran. She ran.", "Low. New. Old."]
    (tmp_path / "text.txt").write_text("\n\n".join(text.replace(". ", ".  ") for text in texts))
    prepare_corpus(str(tmp_path / "text.txt"), tmp_path / "out", tokenizer, held_out_share=0.0)
    found = [sum(document, ()) for document in stored(tmp_path / "out", "train")]
    assert sorted(tokenizer.decode(found)) == texts


def test_order_of_sources_files_and_chunks_changes_no_byte(
    corpus, tmp_path, tokenizer, monkeypatch, small_pieces
):
    prepare_corpus(f"{corpus}/*", tmp_path / "one", tokenizer, held_out_share=0.1)
    one = contents(tmp_path / "one")
    assert len([name for name in one if name.startswith("train") and "index" not in name]) > 2

    texts = [text for s in documents(f"{corpus}/*") for text in [" ".join(s)]]
    random.Random(1).shuffle(texts)
    (tmp_path / "shuffled.txt").write_text("\n\n".join(texts))
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 17_000)
    prepare_corpus(tmp_path / "shuffled.txt", tmp_path / "two", tokenizer, held_out_share=0.1)
    two = contents(tmp_path / "two")
    # The sizes of text differ by the blank lines alone, which are not counted.
    assert one == two


def test_columnar_files_and_frames_have_the_bytes_of_text(tmp_path, tokenizer, small_pieces):
    texts = make_texts(300)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    path = columnar.write(tmp_path / "a.parquet", {"body": texts, "n": range(300)})
    for name, sources in (("text", tmp_path / "a.txt"), ("file", path)):
        prepare_corpus(sources, tmp_path / name, tokenizer, field="body")
    prepare_corpus(pd.DataFrame({"body": texts}), tmp_path / "frame", tokenizer, field="body")
    wanted = contents(tmp_path / "text")
    assert wanted == contents(tmp_path / "file") == contents(tmp_path / "frame")
    again = prepare_corpus({"body": texts}, tmp_path / "frame", tokenizer, field="body")
    assert again == read_manifest(tmp_path / "frame")
    with pytest.raises(ValueError, match="files in them that have changed since"):
        prepare_corpus({"body": texts[1:]}, tmp_path / "frame", tokenizer, field="body")


def test_worker_processes_change_no_byte(corpus, tmp_path, tokenizer, small_pieces):
    for workers in (0, 2):
        prepare_corpus(f"{corpus}/*", tmp_path / str(workers), tokenizer, num_workers=workers)
    assert contents(tmp_path / "0") == contents(tmp_path / "2")


def test_duplicates_fall_out_within_and_between_chunks(tmp_path, tokenizer, small_pieces):
    texts = make_texts(60)
    (tmp_path / "a.txt").write_text("\n\n".join(texts + texts[:30]))
    # The same sentences with other white space are the same document.
    (tmp_path / "c.txt").write_text("\n\n".join(t.replace(". ", ".\n  ") for t in texts[:5]))
    manifest = prepare_corpus(f"{tmp_path}/[ac].txt", tmp_path / "out", tokenizer)
    assert manifest.counts["documents_read"] == 95
    assert manifest.counts["duplicate_documents"] == 35
    found = stored(tmp_path / "out", "train") + stored(tmp_path / "out", "held_out")
    assert len(found) == len(set(found)) == 60
    assert "35 duplicate documents dropped" in manifest.summary()


def test_held_out_is_a_share_by_content(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\n".join(make_texts(2000)))
    (tmp_path / "b.txt").write_text("\n\n".join(make_texts(2000)[500:]))
    whole = prepare_corpus(tmp_path / "a.txt", tmp_path / "a", tokenizer, held_out_share=0.1)
    prepare_corpus(tmp_path / "b.txt", tmp_path / "b", tokenizer, held_out_share=0.1)
    # 200 expected, standard deviation 13.4
    assert abs(whole.splits["held_out"].documents - 200) < 54
    held, train = (set(stored(tmp_path / "a", split)) for split in ("held_out", "train"))
    assert not held & train
    assert set(stored(tmp_path / "b", "held_out")) <= held
    none = prepare_corpus(tmp_path / "a.txt", tmp_path / "none", tokenizer, held_out_share=0.0)
    assert none.splits["held_out"].shards == ()
    assert none.splits["train"].documents == 2000


def test_documents_without_a_token_are_dropped_and_counted(tmp_path, tokenizer):
    # A zero-width space is text to a file and nothing to BERT's normalisation.
    (tmp_path / "a.txt").write_text("the fox.\n\u200b\nthe dog.\n\n\u200b\n\n\u200b\n\nthe river.")
    manifest = prepare_corpus(tmp_path / "a.txt", tmp_path / "out", tokenizer, held_out_share=0)
    assert manifest.counts["empty_documents"] == 2
    assert manifest.counts["duplicate_documents"] == 0
    assert sorted(map(len, stored(tmp_path / "out", "train"))) == [1, 2]


def test_over_long_documents_are_counted_in_the_manifest(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 1000)
    (tmp_path / "a.txt").write_text("\n".join(make_texts(100)) + "\n\nshort.")
    manifest = prepare_corpus(tmp_path / "a.txt", tmp_path / "out", tokenizer)
    assert manifest.counts["cut_documents"] == 1
    assert sum(split.documents for split in manifest.splits.values()) > 10
    assert "1 over-long documents split into parts" in manifest.summary()


def test_large_vocabularies_are_stored_in_32_bits(tmp_path, tiny_vocabulary):
    large = kbert.WordPieceTokenizer(
        [*tiny_vocabulary, *(f"[unused{n}]" for n in range(70_000)), "zebra"]
    )
    (tmp_path / "a.txt").write_text("the zebra.\n\na fox.")
    manifest = prepare_corpus(tmp_path / "a.txt", tmp_path / "out", large, held_out_share=0)
    assert manifest.token_dtype == "int32"
    the, stop = large.token_to_id("the"), large.token_to_id(".")
    assert ((the, large.token_to_id("zebra"), stop),) in stored(tmp_path / "out", "train")


@pytest.mark.parametrize("text", ["one document. alone.", "the same.\n\nthe same.\n\nthe same."])
def test_one_document_is_refused_and_nothing_stays(tmp_path, tokenizer, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ValueError, match=r"two different documents.*blank line.*Received: 1 "):
        prepare_corpus(tmp_path / "a.txt", tmp_path / "out", tokenizer, held_out_share=0)
    assert sorted(os.listdir(tmp_path)) == ["a.txt"]


def test_bad_input_leaves_no_folder(tmp_path, tokenizer):
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="No file matches"):
        prepare_corpus(f"{tmp_path}/*.txt", out, tokenizer)
    (tmp_path / "a.txt").write_bytes(b"good\n\nbad \xff")
    with pytest.raises(ValueError, match=r"a\.txt: invalid UTF-8 at byte 10"):
        prepare_corpus(f"{tmp_path}/*.txt", out, tokenizer)
    for wrong in ({"held_out_share": 1.0}, {"num_workers": -1}):
        with pytest.raises(ValueError, match=r"Received: -?1"):
            prepare_corpus(f"{tmp_path}/*.txt", out, tokenizer, **wrong)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_finished_folder_is_taken_as_it_is(corpus, tmp_path, tokenizer, monkeypatch):
    out = tmp_path / "out"
    first = prepare_corpus(f"{corpus}/*", out, tokenizer)
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "chunks", lambda _: pytest.fail("read again"))
        assert prepare_corpus(f"{corpus}/*", out, tokenizer) == first
    before = contents(out)
    with pytest.raises(
        ValueError, match=r"prepared with other settings.*held_out_share was 0\.01, is 0\.5"
    ):
        prepare_corpus(f"{corpus}/*", out, tokenizer, held_out_share=0.5)
    with pytest.raises(
        ValueError, match=r"prepared with other settings.*the sources, or files in them"
    ):
        prepare_corpus(f"{corpus}/*.txt", out, tokenizer)
    assert contents(out) == before


def test_unfinished_work_with_other_settings_is_dropped(corpus, tmp_path, tokenizer, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(shards, "plan_shards", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare_corpus(f"{corpus}/*", out, tokenizer, held_out_share=0.5)
    assert [name[:5] for name in os.listdir(out / "work")] == ["chunk"]
    prepare_corpus(f"{corpus}/*", out, tokenizer)
    prepare_corpus(f"{corpus}/*", tmp_path / "fresh", tokenizer)
    assert contents(out) == contents(tmp_path / "fresh")


def test_shards_of_another_attempt_do_not_stay(corpus, tmp_path, tokenizer, small_pieces):
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "save", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare_corpus(f"{corpus}/*", out, tokenizer)
    prepare_corpus(f"{corpus}/a.txt", out, tokenizer)
    prepare_corpus(f"{corpus}/a.txt", tmp_path / "fresh", tokenizer)
    assert contents(out) == contents(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["chunk", "train", "index", "done", "manifest", "vocab"])
def test_a_full_disk_is_named_and_the_next_start_resumes(
    corpus, tmp_path, tokenizer, monkeypatch, name
):
    """Whichever file it is that finds the disk full."""
    out = tmp_path / "out"
    replace = os.replace

    def full(old, new):
        if os.path.basename(new).startswith(name) or f".{name}." in os.fspath(new):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(old, new)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left on device"):
        prepare_corpus(f"{corpus}/*", out, tokenizer)
    assert not (out / "manifest.json").exists()
    assert [path for path in out.rglob("*") if "writing" in path.name] == [] if out.exists() else 1
    monkeypatch.setattr(os, "replace", replace)
    prepare_corpus(f"{corpus}/*", out, tokenizer)
    prepare_corpus(f"{corpus}/*", tmp_path / "fresh", tokenizer)
    assert contents(out) == contents(tmp_path / "fresh")


def test_an_output_that_is_a_file(corpus, tmp_path, tokenizer):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(OSError, match=r"Cannot write .*out: File exists"):
        prepare_corpus(f"{corpus}/*", tmp_path / "out", tokenizer)
    with pytest.raises(OSError, match=r"Cannot write .*out/deeper: Not a directory"):
        prepare_corpus(f"{corpus}/*", tmp_path / "out" / "deeper", tokenizer)
